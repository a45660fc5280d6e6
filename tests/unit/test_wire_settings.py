"""Kafka options: what is accepted, what is refused and how, and that secrets stay inside."""

from __future__ import annotations

import pickle
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from onceward.errors import ConfigurationError, ContradictoryOptions, FileUnreadable, UnknownOption
from onceward.files.settings import text_options
from onceward.formats.registry.settings import parse_settings
from onceward.kafka.sink.settings import KafkaSinkSettings
from onceward.kafka.sink.sink import KafkaSink
from onceward.kafka.source.source import _knows_the_login, _ours, _own
from onceward.kafka.wire.options.security import Certificates
from onceward.kafka.wire.options.settings import (
    ClientSettings,
    ProducerSettings,
    settings_from_options,
    spark_source_options,
)
from onceward.operate.restart import may_pass
from support.certificates import make_certificates
from support.errors import raises

CANARY = "canary-password"
SASL = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.username": "ann",
    "sasl.password": CANARY,
}


def parsed(options: Any, **more: Any) -> tuple[ClientSettings, ProducerSettings]:
    return settings_from_options("a:9092, b:9093", options, client_id="me", **more)


def test_defaults_are_kafkas() -> None:
    client, producer = parsed({})
    assert client.bootstrap_servers == ("a:9092", "b:9093")
    assert client.client_id == "me"
    assert (producer.delivery_timeout_ms, producer.transaction_timeout_ms) == (120_000, None)
    assert (producer.acks, producer.compression, producer.max_in_flight) == (-1, "none", 5)


def test_values_may_be_numbers_or_text() -> None:
    client, producer = parsed(
        {"batch.size": 5000, "request.timeout.ms": "1000", "compression.type": "zstd"}
    )
    assert (producer.batch_bytes, client.request_timeout_ms, producer.compression) == (
        5000,
        1000,
        "zstd",
    )


@pytest.mark.parametrize(
    ("option", "meant"),
    [("compresion.type", "compression.type"), ("kafka.batch.size", "batch.size")],
)
def test_an_unknown_option_is_refused_with_the_nearest_name(option: str, meant: str) -> None:
    with pytest.raises(UnknownOption) as refused:
        parsed({option: "1"})
    assert option in refused.value.message
    assert meant in refused.value.next_step


@pytest.mark.parametrize(
    ("option", "step"),
    [
        ("message.max.bytes", "did you mean 'max.request.size'?"),
        ("compression.codec", "did you mean 'compression.type'?"),
        ("kafka.request.required.acks", "did you mean 'acks'?"),
        ("queue.buffering.max.ms", "remove queue.buffering.max.ms"),
        ("linger_ms", "remove linger_ms"),
        ("metadata.broker.list", "remove metadata.broker.list from options"),
        ("fetch.wait.max.ms", "as 'kafka.fetch.max.wait.ms'"),
    ],
)
def test_names_of_other_clients_are_known_for_what_they_mean(option: str, step: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(option)) as refused:
        parsed({option: "1"})
    assert step in refused.value.next_step


@pytest.mark.parametrize(
    "options",
    [
        {"enable.idempotence": "false"},
        {"enable.idempotence": False},
        {"acks": "1"},
        {"acks": 0},
        {"transactional.id": "x"},
        {"bootstrap.servers": "c:9092"},
        {"kafka.bootstrap.servers": "c:9092"},
        {"isolation.level": "read_committed"},
        {"kafka.auto.offset.reset": "latest"},
        {"retries": 3},
        {"sasl.mechanism": "PLAIN"},
        {"ssl.ca.location": __file__},
        {"delivery.timeout.ms": 1000},
        {"max.request.size": 10_000},
        {"compression.zstd.level": 3},
        {**SASL, "sasl.jaas.config": "…PlainLoginModule required;"},
        {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": f'x.ScramLoginModule required username="u" password="{CANARY}";',
        },
    ],
    ids=str,
)
def test_settings_that_cannot_both_hold_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ContradictoryOptions) as refused:
        parsed(options)
    assert refused.value.next_step
    assert CANARY not in str(refused.value)


@pytest.mark.parametrize(
    ("option", "instead"),
    [
        ("partitioner", "a `partition` column"),
        ("ssl.ca.pem", "ssl.truststore.certificates"),
        ("ssl.certificate.pem", "ssl.keystore.certificate.chain"),
        ("ssl.key.pem", "ssl.keystore.key"),
        ("sasl.oauthbearer.extensions", "oauth_token_provider="),
    ],
)
def test_a_name_of_librdkafkas_leads_to_what_there_is_instead(option: str, instead: str) -> None:
    with raises(ContradictoryOptions, instead):
        parsed({option: "x"})


@pytest.mark.parametrize(
    "options",
    [
        {"batch.size": "1MB"},
        {"transaction.timeout.ms": "60s"},
        {"transaction.timeout.ms": 0},
        {"compression.type": "brotli"},
        {"security.protocol": "TLS"},
        {"batch.size": 1.5},
        {"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"},
        {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"},
        {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"},
        {"security.protocol": "SSL", "ssl.truststore.location": "/trust.jks"},
        {
            "security.protocol": "SSL",
            "ssl.keystore.type": "PKCS12",
            "ssl.keystore.location": "/k.p12",
        },
        {"security.protocol": "SSL", "ssl.ca.location": "/no/such/file.pem"},
        {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.jaas.config": CANARY},
        {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": f'x.PlainLoginModule required username="u" password="{CANARY}" '
            'serviceName="kafka";',
        },
        {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": f'x.PlainLoginModule required username="u" password="a"{CANARY}=1";',
        },
        {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": f'x.PlainLoginModule required username="u" password="{CANARY}" '
            'tokenauth="true";',
        },
        {"security.protocol": "SSL", "ssl.key.location": f"-----BEGIN PRIVATE KEY-----\n{CANARY}"},
    ],
    ids=str,
)
def test_what_cannot_be_understood_is_refused_and_no_secret_is_repeated(
    options: dict[str, Any],
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        parsed(options)
    assert refused.value.next_step
    assert CANARY not in str(refused.value)


class TokenHolder(NamedTuple):
    """A provider of tokens whose method has another name."""

    secret: str = CANARY


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (lambda: parsed(SASL | {"sasl.password": CANARY.encode()}), "sasl.password is bytes"),
        (lambda: parsed({"ssl.keystore.key": CANARY.encode()}), "ssl.keystore.key is bytes"),
        (lambda: parsed({}, oauth_token_provider=CANARY), "oauth_token_provider= is str"),
        (lambda: parsed({}, oauth_token_provider=TokenHolder()), "is TokenHolder, which has no"),
        (lambda: parsed(f'{{"sasl.password": "{CANARY}"}}'), "options= is str, no dict"),
        (lambda: parsed([("sasl.password", CANARY)]), "options= is list, no dict"),
        (lambda: _own([("kafka.sasl.jaas.config", CANARY)]), "spark_options= is list"),
        (lambda: settings_from_options(f"u:{CANARY}@a", {}, client_id="c"), "'a' is not host"),
        (lambda: text_options([("key", CANARY)], None), "options= is list, no dict"),
        (lambda: text_options({"key": CANARY.encode()}, None), "is bytes, no text"),
        (
            lambda: parse_settings("http://r", [("basic.auth.user.info", CANARY)]),
            "is list, no dict",
        ),
    ],
)
def test_a_secret_in_the_wrong_form_is_not_repeated(wrong: Any, named: str) -> None:
    with raises(ConfigurationError, named) as refused:
        wrong()
    assert CANARY not in str(refused.value) + repr(refused.value)


TRUSTING = {
    "security.protocol": "SSL",
    "ssl.truststore.certificates": "pem",
    "ssl.truststore.type": "PEM",
}


@pytest.mark.parametrize(
    ("own", "is_known"),
    [
        ({"kafka.ssl.enabled.protocols": "TLSv1.3", "kafka.SSL.Cipher.Suites": "a"}, True),
        ({"kafka.sasl.login.refresh.buffer.seconds": "1", "kafka.security.providers": "a"}, True),
        ({"kafka.bootstrap.servers": "a:9092,b:9093", "kafka.security.protocol": "SSL"}, True),
        ({"kafka.bootstrap.servers": "c:9092"}, False),
        ({"kafka.security.protocol": "SASL_SSL"}, False),
        ({"kafka.SASL.Mechanism": "GSSAPI"}, False),
        ({"kafka.sasl.login.callback.handler.class": "a.B"}, False),
        ({"kafka.ssl.keystore.location": "/a.jks"}, False),
        ({"kafka.ssl.truststore.location": "/a.jks"}, False),
        ({"kafka.ssl.engine.factory.class": "a.B"}, False),
        ({"kafka.security.providers": "a", "kafka.ssl.keymanager.algorithm": "Spiffe"}, False),
        ({"kafka.ssl.trustmanager.algorithm": "Spiffe"}, False),
        ({"kafka.ssl.endpoint.identification.algorithm": ""}, False),
    ],
)
def test_what_says_neither_who_logs_in_nor_where_is_no_other_login(
    own: dict[str, str], is_known: bool
) -> None:
    client, _ = parsed(TRUSTING)
    assert _knows_the_login(client, _ours(client, TRUSTING, own), own) is is_known


@pytest.mark.parametrize("servers", ["", "a", "a:b", "a:0", "a:99999", []])
def test_servers_must_be_host_and_port(servers: Any) -> None:
    with raises(ConfigurationError, "bootstrap_servers"):
        settings_from_options(servers, {}, client_id="me")


def test_a_java_keystore_is_refused_with_the_way_to_convert_it() -> None:
    with pytest.raises(ConfigurationError) as refused:
        parsed({"security.protocol": "SSL", "ssl.truststore.location": "/trust.jks"})
    assert "keytool" in refused.value.next_step
    assert "/trust.jks" in refused.value.next_step


@pytest.mark.parametrize(
    ("mechanism", "module"),
    [("PLAIN", "plain.PlainLoginModule"), ("SCRAM-SHA-256", "scram.ScramLoginModule")],
)
def test_a_jaas_line_names_the_user(mechanism: str, module: str) -> None:
    line = (
        f'org.apache.kafka.common.security.{module} required username="ann" password=\'a '
        f"\\'b\\\\c';"
    )
    client, _ = parsed(
        {"security.protocol": "sasl_ssl", "sasl.mechanism": mechanism, "sasl.jaas.config": line}
    )
    assert (client.security.username, client.security.password) == ("ann", "a 'b\\c")


def test_a_delegation_token_goes_on_to_sparks_reader() -> None:
    line = 'x.ScramLoginModule required username="id" password="mac" tokenauth="True";'
    options = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.jaas.config": line,
    }
    client, _ = parsed(options)
    assert client.security.is_token
    java = spark_source_options(client, options)["kafka.sasl.jaas.config"]
    assert java.endswith('required username="id" password="mac" tokenauth="true";')


@pytest.mark.parametrize(
    ("named", "to_java"),
    [
        (
            "kafkashaded.org.apache.kafka.common.security.scram.ScramLoginModule",
            "kafkashaded.org.apache.kafka.common.security.scram.ScramLoginModule",
        ),
        ("ScramLoginModule", "org.apache.kafka.common.security.scram.ScramLoginModule"),
        ("com.shop.ScramLoginModule", "org.apache.kafka.common.security.scram.ScramLoginModule"),
    ],
)
def test_a_login_module_stays_in_the_package_that_sparks_reader_has_it_in(
    named: str, to_java: str
) -> None:
    """Databricks has Kafka's classes below ``kafkashaded.``, and no others."""
    options = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": f'{named} required username="u" password="p";',
    }
    client, _ = parsed(options)
    java = spark_source_options(client, options)["kafka.sasl.jaas.config"]
    assert java == f'{to_java} required username="u" password="p";'
    by_name, _ = parsed(
        {name: value for name, value in options.items() if "jaas" not in name}
        | {"sasl.username": "u", "sasl.password": "p"}
    )
    assert client == by_name, "one login, for which clients are shared"


def test_delivery_without_guarantees_may_wait_for_the_leader_alone() -> None:
    _, producer = parsed({"acks": "1", "enable.idempotence": "false"}, delivery="none")
    assert producer.acks == 1


def test_secrets_are_in_no_repr_but_travel_to_executors() -> None:
    client, producer = parsed(SASL)
    assert CANARY not in repr(client) + str(client) + repr(producer)
    arrived = pickle.loads(pickle.dumps(client))  # noqa: S301 - our own bytes
    assert arrived == client
    assert arrived.security.password == CANARY


def test_a_certificate_that_cannot_be_read_says_so(tmp_path: Path) -> None:
    broken = tmp_path / "ca.pem"
    broken.write_text("no certificate")
    client, _ = parsed({"security.protocol": "SSL", "ssl.ca.location": str(broken)})
    with raises(FileUnreadable) as unreadable:
        Certificates(client.security)
    assert may_pass(unreadable.value), "files may be being replaced"
    assert not may_pass(unreadable.value, worked_before=False)


def test_the_host_name_is_checked_unless_it_is_switched_off() -> None:
    checked, _ = parsed({"security.protocol": "SSL"})
    unchecked, _ = parsed(
        {"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": ""}
    )
    assert Certificates(checked.security).context().check_hostname
    assert not Certificates(unchecked.security).context().check_hostname


def test_sparks_source_gets_the_same_settings_in_javas_names(tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    ca.write_text("-----BEGIN CERTIFICATE-----")
    options = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "ann",
        "sasl.password": 'a"b\\c',
        "ssl.ca.location": str(ca),
        "compression.type": "zstd",
        "request.timeout.ms": 1000,
    }
    assert spark_source_options(parsed(options)[0], options) == {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule "
        "required "
        'username="ann" password="a\\"b\\\\c";',
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.certificates": "-----BEGIN CERTIFICATE-----",
        "kafka.request.timeout.ms": "1000",
    }
    assert spark_source_options(parsed({})[0], {"compression.type": "lz4"}) == {}


@pytest.mark.parametrize("kind", ["JKS", None])
def test_stores_of_the_readers_own_leave_nothing_of_ours_that_java_refuses(
    tmp_path: Path, kind: str | None
) -> None:
    """``DefaultSslEngineFactory`` takes no two stores, and no password of a store beside PEM."""
    make_certificates(tmp_path)
    options = {
        "security.protocol": "SSL",
        "ssl.ca.location": str(tmp_path / "authority.crt"),
        "ssl.certificate.location": str(tmp_path / "client.crt"),
        "ssl.key.location": str(tmp_path / "client.key"),
    }
    client, _ = parsed(options)
    trust = {"kafka.ssl.truststore.location": "/t.jks", "kafka.ssl.truststore.password": "x"}
    key = {"kafka.ssl.Keystore.location": "/k.jks", "kafka.ssl.keystore.password": "x"}
    if kind:
        trust["kafka.ssl.truststore.type"] = kind
    ours = spark_source_options(client, options)
    assert ours.keys() >= {"kafka.ssl.truststore.certificates", "kafka.ssl.keystore.key"}
    for own, store in ((trust, "truststore"), (key, "keystore"), (trust | key, "store")):
        left = {name: text for name, text in ours.items() if store not in name}
        assert spark_source_options(client, options, own) == left
    pem = {"kafka.ssl.truststore.location": "/of/the/executors.pem"}
    left = {n: text for n, text in ours.items() if n != "kafka.ssl.truststore.certificates"}
    assert spark_source_options(client, options, pem) == left, "read as ours, for no password"


@pytest.mark.parametrize("encoding", ["latin-1", "utf-8"])
def test_comments_in_pem_may_be_in_any_encoding(tmp_path: Path, encoding: str) -> None:
    """``openssl pkcs12`` writes a friendlyName in Latin-1, lists of authorities are in UTF-8."""
    make_certificates(tmp_path)
    parts = {
        "authority.crt": ("ssl.ca.location", "ssl.truststore.certificates"),
        "client.crt": ("ssl.certificate.location", "ssl.keystore.certificate.chain"),
        "client.key": ("ssl.key.location", "ssl.keystore.key"),
    }
    files, texts = {"security.protocol": "SSL"}, {"security.protocol": "SSL"}
    without = {}
    for name, (location, text) in parts.items():
        file = tmp_path / name
        without[f"kafka.{text}"] = file.read_text().strip()
        file.write_bytes("# Prüfstelle\n".encode(encoding) + file.read_bytes())
        files[location], texts[text] = str(file), file.read_text(encoding)
    for options in (files, texts):
        client, _ = parsed(options)
        assert Certificates(client.security).context().get_ca_certs()
        given = spark_source_options(client, options)
        assert {name: given[name].split("\n", 1)[1].strip() for name in without} == without


def test_a_file_that_is_being_replaced_is_no_bug_of_the_sources(tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    ca.write_text("-----BEGIN CERTIFICATE-----")
    options = {"security.protocol": "SSL", "ssl.ca.location": str(ca)}
    client, _ = parsed(options)
    ca.unlink()
    with raises(FileUnreadable, "ca.pem' named by an ssl option cannot be read"):
        spark_source_options(client, options)


def test_oauth_tokens_cannot_be_passed_on_to_spark() -> None:
    """Which has to be given a class of Java's beside."""
    options = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}
    client, _ = parsed(options, oauth_token_provider=Tokens())
    with raises(ConfigurationError, "OAUTHBEARER") as refused:
        spark_source_options(client, options)
    own = [name for name in refused.value.next_step.split() if name.startswith("kafka.")]
    assert spark_source_options(client, options, dict.fromkeys(own, "…")) == {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "OAUTHBEARER",
    }


IAM = {
    "kafka.sasl.mechanism": "AWS_MSK_IAM",
    "kafka.sasl.jaas.config": "software.amazon.msk.auth.iam.IAMLoginModule required;",
    "kafka.sasl.client.callback.handler.class": (
        "software.amazon.msk.auth.iam.IAMClientCallbackHandler"
    ),
}


@pytest.mark.parametrize("own", [IAM, {"kafka.Security.Protocol": "SSL"}])
def test_tokens_of_java_are_not_asked_of_a_reader_that_logs_in_otherwise(
    own: dict[str, str],
) -> None:
    """Amazon MSK with IAM: Python logs in by OAUTHBEARER, Java by a mechanism of its own."""
    options = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}
    client, _ = parsed(options, oauth_token_provider=Tokens())
    assert spark_source_options(client, options, own)["kafka.security.protocol"] == "SASL_SSL"
    as_python = {"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "OAUTHBEARER"}
    with pytest.raises(ConfigurationError, match="OAUTHBEARER"):
        spark_source_options(client, options, own | as_python)


@pytest.mark.parametrize("name", ["session.timeout.ms", "ssl.cipher.suites", "client.rack"])
def test_options_of_kafkas_own_clients_are_not_taken_for_others(name: str) -> None:
    with pytest.raises(UnknownOption) as refused:
        parsed({name: "1"})
    assert "did you mean" not in refused.value.next_step
    assert f"'kafka.{name}'" in refused.value.next_step


class Tokens:
    def token(self) -> str:
        return "t"


TOKENS = Tokens()


class TokensWithoutAWeakReference:
    __slots__ = ()

    def token(self) -> str:
        return "t"


@pytest.mark.parametrize("name", ["Tokens", "TOKENS"])
def test_a_command_names_the_object_that_it_asks_for_tokens(name: str) -> None:
    options = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}
    named = {**options, "onceward.oauth.token.provider": f"{__name__}:{name}"}
    provider = parsed(named)[0].oauth_token_provider
    assert isinstance(provider, Tokens)
    assert provider.token()
    with raises(ConfigurationError) as refused:
        parsed(options)
    assert "onceward.oauth.token.provider=module:object" in refused.value.next_step


@pytest.mark.parametrize("named", ["no_such_module:x", "os:no_such_name", "os", "os:sep"])
def test_what_a_command_cannot_ask_for_tokens_is_refused(named: str) -> None:
    with pytest.raises(ConfigurationError, match=r"onceward\.oauth\.token\.provider"):
        parsed(
            {
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "OAUTHBEARER",
                "onceward.oauth.token.provider": named,
            }
        )


@pytest.mark.parametrize("kind", [Tokens, TokensWithoutAWeakReference])
def test_sinks_with_one_provider_of_tokens_are_built_alike(kind: type) -> None:
    """A function may build its sink anew for each batch. Two providers stay two, though one has
    the other's address.
    """
    options = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}
    provider = kind()
    first, again = (parsed(options, oauth_token_provider=provider)[0] for _ in range(2))
    assert first == again
    seen = {
        parsed(options, oauth_token_provider=kind())[0].oauth_token_provider_id for _ in range(100)
    }
    assert len(seen) == 100


@dataclass(frozen=True)
class TokensOf:
    region: str

    def token(self) -> str:
        return self.region


class PlainTokensOf:
    def __init__(self, region: str) -> None:
        self.region = region

    def token(self) -> str:
        return self.region


@pytest.mark.parametrize("kind", [TokensOf, PlainTokensOf])
def test_sinks_whose_providers_are_built_alike_are_alike(kind: Any) -> None:
    """A function may build its sink anew for each batch, and the provider with it."""

    def settings(region: str) -> KafkaSinkSettings:
        login = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}
        return KafkaSink(
            bootstrap_servers="h:9092", pipeline_id="p", topic="t", options=login,
            oauth_token_provider=kind(region),
        ).settings  # fmt: skip

    first, again = settings("eu"), settings("eu")
    assert first == again
    assert hash(first.client) == hash(again.client)
    pickle.dumps(first.client.oauth_token_provider)
    assert first == again
    assert first != settings("us")
    assert first.client.oauth_token_provider_id != again.client.oauth_token_provider_id


@pytest.mark.parametrize("codec", ["gzip", "none"])
def test_a_level_that_the_codec_does_not_have_is_refused_when_the_sink_is_built(
    codec: str,
) -> None:
    with pytest.raises(ConfigurationError):
        parsed({"compression.type": codec, "compression.level": 15})
    assert parsed({"compression.type": "lz4", "compression.level": 15})[1].compression_level == 15
    for kind in ("none", "gzip", "lz4", "zstd"):
        default = {"compression.type": kind, "compression.level": -1}
        assert parsed(default)[1].compression_level is None
    fast = {"compression.type": "zstd", "compression.zstd.level": -1}
    assert parsed(fast)[1].compression_level == -1
