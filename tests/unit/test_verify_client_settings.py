"""The checker takes the client settings that Kafka's own tools take, and librdkafka's."""

from __future__ import annotations

from pathlib import Path

import pytest

from onceward.kafka.wire.options.settings import read_properties
from onceward_verify.client_settings import settings_from_file
from onceward_verify.findings import CannotTell
from support.errors import raises


def settings(folder: Path, text: str) -> dict[str, str]:
    file = folder / "client.properties"
    file.write_text(text)
    return settings_from_file(file)


def test_librdkafkas_names_pass_through_but_for_those_that_are_the_checkers(tmp_path: Path):
    text = "# secured\nsecurity.protocol = SASL_SSL\nsasl.username: app\nssl.ca.location=/ca.pem\n"
    text += "isolation.level=read_uncommitted\n"
    assert settings(tmp_path, text) == {
        "security.protocol": "SASL_SSL",
        "sasl.username": "app",
        "ssl.ca.location": "/ca.pem",
    }


@pytest.mark.parametrize(
    "value",
    [
        r"a\:b", r"a\=b", r"pa\#x", r"a\pb", r"a\N1", r"a\x41", r"a\101", "ends\\\\", r"é\u00e9",
        r"C\:\\x", "a b ", "\u20ac5", "two \\\n   lines", "",
    ],
)  # fmt: skip
def test_a_value_is_what_it_is_to_every_other_command(tmp_path: Path, value: str):
    file = tmp_path / "client.properties"
    file.write_text(f"sasl.password={value}\n", encoding="utf-8")
    assert settings_from_file(file) == read_properties(file)


def test_a_file_in_latin_1_is_read_as_by_every_other_command(tmp_path: Path):
    file = tmp_path / "client.properties"
    file.write_bytes("sasl.password=pä\n".encode("latin-1"))
    assert settings_from_file(file) == read_properties(file) == {"sasl.password": "pä"}


def test_a_comment_is_not_continued(tmp_path: Path):
    text = "# comment \\\nsecurity.protocol=SSL\n! another \\\nsasl.username = a\\\n   # b\\"
    assert settings(tmp_path, text) == {"security.protocol": "SSL", "sasl.username": "a# b"}
    assert read_properties(tmp_path / "client.properties") == settings(tmp_path, text)


def test_javas_names_become_librdkafkas(tmp_path: Path):
    text = (
        "security.protocol=SASL_SSL\n"
        "sasl.mechanism=SCRAM-SHA-256\n"
        "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \\\n"
        '    username="app" password="p=\\\\"w ü";\n'
        "ssl.truststore.type=PEM\n"
        "ssl.truststore.location=/ca.pem\n"
        "ssl.endpoint.identification.algorithm=\n"
        "request.timeout.ms=5000\n"
    )
    assert settings(tmp_path, text) == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": "app",
        "sasl.password": 'p="w ü',
        "ssl.ca.location": "/ca.pem",
        "ssl.endpoint.identification.algorithm": "none",
    }


def test_a_java_truststore_is_refused_with_what_to_do(tmp_path: Path):
    with raises(CannotTell) as refused:
        settings(tmp_path, "ssl.truststore.location=/trust.jks\nssl.truststore.password=secret\n")
    assert "ssl.ca.location" in refused.value.next_step


def test_a_delegation_token_is_no_login_of_librdkafkas(tmp_path: Path):
    line = 'a.ScramLoginModule required username="i" password="m" tokenauth="true";'
    with raises(CannotTell, "delegation token") as refused:
        settings(tmp_path, f"sasl.jaas.config={line}\n")
    assert "another login" in refused.value.next_step


def test_a_file_that_is_not_there_is_named(tmp_path: Path):
    with raises(CannotTell, "nothing.properties"):
        settings_from_file(tmp_path / "nothing.properties")


def test_tokens_come_from_an_identity_provider_that_librdkafka_asks(tmp_path: Path):
    login = "security.protocol=SASL_SSL\nsasl.mechanism=OAUTHBEARER\n"
    with raises(CannotTell, "OAUTHBEARER") as refused:
        settings(tmp_path, f"{login}onceward.oauth.token.provider=tokens:TOKENS\n")
    assert "sasl.oauthbearer.method=oidc" in refused.value.next_step
    assert settings(tmp_path, f"{login}sasl.oauthbearer.method=oidc\n")
