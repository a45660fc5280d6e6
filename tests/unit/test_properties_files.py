"""``--command-config`` reads what Kafka's own tools read (Java's ``Properties.load``)."""

from __future__ import annotations

from pathlib import Path

import pytest

from onceward.cli.shared import LedgerOptions, client_options
from onceward.errors import ConfigurationError, UnknownOption
from onceward.kafka.wire.options.settings import read_properties, settings_from_options
from onceward_verify.client_settings import settings_from_file
from support.errors import raises

OF_KAFKAS_PAGES = r"""
# SASL/PLAIN
sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \
    username="alice" \
    password="a\\b\u00e4";
security.protocol: SASL_SSL
  sasl.mechanism   PLAIN
! another comment \
client.id = one two=three
ssl.truststore.location=C\:\\certs\\ca.pem
empty=
last=1"""


def read(tmp_path: Path, data: bytes) -> dict[str, str]:
    file = tmp_path / "client.properties"
    file.write_bytes(data)
    return read_properties(file)


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_every_form_of_a_line_is_taken(tmp_path: Path, line_end: str):
    assert read(tmp_path, OF_KAFKAS_PAGES.replace("\n", line_end).encode()) == {
        "sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required "
        'username="alice" password="a\\bä";',
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "client.id": "one two=three",
        "ssl.truststore.location": "C:\\certs\\ca.pem",
        "empty": "",
        "last": "1",
    }


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_both_encodings_are_taken(tmp_path: Path, encoding: str):
    assert read(tmp_path, "sasl.password=größe".encode(encoding)) == {"sasl.password": "größe"}


@pytest.mark.parametrize("text", ["bootstrap", "a=1\n\n=2"])
def test_what_is_no_pair_is_named_by_its_line(tmp_path: Path, text: str):
    with pytest.raises(ConfigurationError, match=f"line {text.count(chr(10)) + 1} is not"):
        read(tmp_path, text.encode())


def test_a_file_that_is_missing_is_named(tmp_path: Path):
    with pytest.raises(ConfigurationError, match="there is no file"):
        read_properties(tmp_path / "none")


HANDED_OUT = """
# Required connection configs for Kafka producer, consumer, and admin
bootstrap.servers=pkc-1.eu.confluent.cloud:9092
security.protocol=SASL_SSL
sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required username="K" \\
    password="S";
sasl.mechanism=PLAIN
# Required for correctness in Apache Kafka clients prior to 2.6
client.dns.lookup=use_all_dns_ips
# Best practice for higher availability in Apache Kafka clients prior to 3.0
session.timeout.ms=45000
# Best practice for Kafka producer to prevent data loss
acks=all
schema.registry.url=https://psrc-1.eu.confluent.cloud
basic.auth.credentials.source=USER_INFO
basic.auth.user.info=A:B
"""
OF_OTHERS = """
acks=1
enable.idempotence=false
admin.ssl.endpoint.identification.algorithm=https
auto.offset.reset=earliest
client.dns.lookup=default
confluent.license=x
default.api.timeout.ms=60000
group.id=g
interceptor.classes=a.B
linger.ms=5
max.poll.records=5
partition.assignment.strategy=org.apache.kafka.clients.consumer.RangeAssignor
producer.security.protocol=SSL
retries=3
sasl.login.connect.timeout.ms=5000
sasl.oauthbearer.jwks.endpoint.url=https://idp
schema.registry.ssl.endpoint.identification.algorithm=https
security.providers=a.B
socket.connection.setup.timeout.ms=10000
ssl.cipher.suites=TLS_AES_256_GCM_SHA384
ssl.enabled.protocols=TLSv1.3
ssl.protocol=TLSv1.3
ssl.trustmanager.algorithm=PKIX
transactional.id=t
value.deserializer=a.B
"""


def test_what_other_clients_of_a_shared_file_take_is_passed_over(tmp_path: Path):
    file = tmp_path / "client.properties"
    file.write_text(HANDED_OUT + OF_OTHERS)
    known = client_options(file)
    client, _ = settings_from_options("broker:9092", known, client_id="status")
    assert sorted(known) == ["sasl.jaas.config", "sasl.mechanism", "security.protocol"]
    assert (client.bootstrap_servers, client.security.username) == (("broker:9092",), "K")
    view = LedgerOptions(bootstrap_servers="broker:9092", command_config=file).view()
    assert view.kafka == {"bootstrap_servers": "broker:9092", "options": known}
    assert settings_from_file(file) == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "K",
        "sasl.password": "S",
        "socket.connection.setup.timeout.ms": "10000",
    }


@pytest.mark.parametrize(
    ("misspelt", "meant"),
    [("sasl.pasword", "sasl.password"), ("security.protcol", "security.protocol")],
)
def test_a_name_that_is_most_likely_misspelt_is_not_passed_over(
    tmp_path: Path, misspelt: str, meant: str
):
    file = tmp_path / "client.properties"
    file.write_text(f"{misspelt}=the-canary\n")
    with raises(UnknownOption, misspelt) as refused:
        client_options(file)
    assert str(file) in refused.value.message
    assert refused.value.next_step == f"did you mean {meant!r}?"
    assert "canary" not in str(refused.value)


def test_every_setting_is_itself_in_a_file(tmp_path: Path):
    file = tmp_path / "client.properties"
    file.write_text("max.request.size=5000\nonceward.oauth.token.provider=tokens:TOKENS\n")
    assert client_options(file) == read_properties(file)
    assert client_options(None) == {}
