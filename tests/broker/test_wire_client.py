"""The client: who cannot be reached, who is refused, what survives a fork, and where secrets do
not appear.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import subprocess
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from onceward.errors import AuthenticationFailed, BrokerUnreachable, OncewardError, TopicMissing
from onceward.kafka.wire.client import KafkaClient
from onceward.kafka.wire.options.settings import settings_from_options
from onceward_testing import LocalKafka
from onceward_testing.free_ports import free_ports

pytestmark = pytest.mark.broker

CANARY = "canary-password"
LOGIN = "org.apache.kafka.common.security"


def client_for(servers: str, options: dict[str, Any] | None = None) -> KafkaClient:
    quick = {"socket.connection.setup.timeout.max.ms": 3_000, **(options or {})}
    return KafkaClient(settings_from_options(servers, quick, client_id="wire-test")[0])


def test_a_cluster_that_does_not_answer_is_named_with_the_setting() -> None:
    (port,) = free_ports(1)
    client = client_for(f"127.0.0.1:{port}")
    with pytest.raises(BrokerUnreachable) as unreachable:
        client.cluster_id()
    assert f"bootstrap.servers=127.0.0.1:{port}" in str(unreachable.value)
    client.close()


def test_one_living_bootstrap_server_is_enough(kafka: LocalKafka) -> None:
    (port,) = free_ports(1)
    client = client_for(f"127.0.0.1:{port},{kafka.bootstrap_servers}")
    assert client.cluster_id()
    client.close()


def test_topics_are_created_once_and_never_by_asking_for_them(kafka: LocalKafka) -> None:
    client = client_for(kafka.bootstrap_servers)
    with pytest.raises(TopicMissing, match="client-test-topic"):
        client.topic_partitions(["client-test-topic"])
    assert client.create_topic("client-test-topic", 3, configs={"cleanup.policy": "compact"})
    assert not client.create_topic("client-test-topic", 3)
    assert set(client.topic_partitions(["client-test-topic"])["client-test-topic"]) == {0, 1, 2}
    assert client.topic_config("client-test-topic")["cleanup.policy"] == "compact"
    assert client.replication_factor("client-test-topic") == 1
    assert client.broker_config()["transaction.max.timeout.ms"] == "900000"
    client.close()


def test_a_topic_has_the_id_that_kafkas_own_tool_prints(
    kafka: LocalKafka, new_topic: Callable[..., str]
) -> None:
    topics = {new_topic(kafka.bootstrap_servers) for _ in range(2)}
    client = client_for(kafka.bootstrap_servers)
    ids = client.topic_ids(topics)
    assert set(ids) == topics
    for topic, topic_id in ids.items():
        assert f"TopicId: {topic_id}" in kafka.kafka_tool(
            "kafka-topics", "--describe", "--topic", topic
        )
    client.close()


@pytest.mark.slow
def test_a_cluster_is_recognised_by_any_of_its_brokers(
    three_nodes: LocalKafka, kafka: LocalKafka
) -> None:
    first, second, third = (node.bootstrap_server for node in three_nodes.nodes)
    client = client_for(first)
    assert client.is_served_by([first])
    assert client.is_served_by(["elsewhere:9092", second])
    assert client.is_served_by([third])
    assert not client.is_served_by([kafka.bootstrap_servers])
    client.close()


def test_brokers_from_3_8_on_say_that_they_bound_reads_of_tiered_storage(
    any_kafka: LocalKafka,
) -> None:
    client = client_for(any_kafka.bootstrap_servers)
    assert client.bounds_remote_reads()
    client.close()


def test_equal_settings_share_a_client_and_a_fork_gets_its_own(kafka: LocalKafka) -> None:
    settings, _ = settings_from_options(kafka.bootstrap_servers, {}, client_id="shared")
    again, _ = settings_from_options(kafka.bootstrap_servers, {}, client_id="shared")
    client = KafkaClient.shared(settings)
    expected = client.cluster_id()
    assert KafkaClient.shared(again) is client
    child = os.fork()
    if child == 0:
        os._exit(_in_the_child(client, settings, expected))
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert client.brokers()  # the parent's connection is untouched
    assert client.transaction_version() == 2
    client.close()
    assert KafkaClient.shared(settings) is not client
    KafkaClient.shared(settings).close()


def _in_the_child(inherited: KafkaClient, settings: Any, expected: str) -> int:
    try:
        mine = KafkaClient.shared(settings)
        if mine is inherited or mine.cluster_id() != expected:
            return 1
        try:
            inherited.transaction_version()
        except OncewardError:
            return 0
        return 2
    except BaseException:  # noqa: BLE001 - a forked child must not run on into pytest
        traceback.print_exc()
        return 3


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalKafka]:
    """A broker with a SASL listener and two TLS ones: its certificate names 127.0.0.1, or another
    host.
    """
    folder = tmp_path_factory.mktemp("certificates")
    properties: dict[str, object] = {
        "delegation.token.secret.key": "of all brokers",
        "listener.name.login.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "listener.name.login.plain.sasl.jaas.config": f"{LOGIN}.plain.PlainLoginModule required "
        f'user_ann="{CANARY}";',
        "listener.name.login.scram-sha-256.sasl.jaas.config": f"{LOGIN}.scram.ScramLoginModule "
        f"required;",
        "listener.name.login.scram-sha-512.sasl.jaas.config": f"{LOGIN}.scram.ScramLoginModule "
        f"required;",
    }
    for listener, name in (("right", "IP:127.0.0.1"), ("wrong", "DNS:elsewhere.example")):
        properties[f"listener.name.{listener}.ssl.keystore.type"] = "PEM"
        properties[f"listener.name.{listener}.ssl.keystore.location"] = _certificate(
            folder, listener, name
        )
    scram = [f"{m}=[name=ann,password={CANARY}]" for m in ("SCRAM-SHA-256", "SCRAM-SHA-512")]
    with LocalKafka(
        extra_listeners={"LOGIN": "SASL_PLAINTEXT", "RIGHT": "SSL", "WRONG": "SSL"},
        properties=properties,
        format_arguments=[word for line in scram for word in ("--add-scram", line)],
    ) as cluster:
        cluster.certificates = folder
        yield cluster


def _certificate(folder: Path, name: str, alternative: str) -> Path:
    """A self-signed certificate with its key in one PEM file; clients trust the certificate
    alone.
    """
    key, certificate, both = (folder / f"{name}.{kind}" for kind in ("key", "crt", "pem"))
    request = (
        f"req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN={name} -addext "
        f"subjectAltName={alternative}"
    )
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(["openssl", *request.split(), *files], check=True, capture_output=True)
    both.write_text(key.read_text() + certificate.read_text())
    return both


def sasl(mechanism: str, password: str) -> dict[str, str]:
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": "ann",
        "sasl.password": password,
    }


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_the_right_password_opens_and_a_wrong_one_is_named_but_never_shown(
    guarded: LocalKafka, mechanism: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    logging.getLogger("kafka").setLevel(logging.DEBUG)  # a user who wants to see everything
    try:
        client = client_for(guarded.servers_on("LOGIN"), sasl(mechanism, CANARY))
        assert client.cluster_id()
        client.close()
        client = client_for(guarded.servers_on("LOGIN"), sasl(mechanism, CANARY + "-wrong"))
        with pytest.raises(AuthenticationFailed) as refused:
            client.cluster_id()
        client.close()
    finally:
        logging.getLogger("kafka").setLevel(logging.CRITICAL)
    assert "security.protocol" in refused.value.next_step
    assert CANARY not in str(refused.value) + repr(refused.value) + "".join(
        traceback.format_exception(refused.value)
    )
    assert caplog.records
    assert CANARY not in caplog.text


def test_a_delegation_token_opens_as_javas_line_says(guarded: LocalKafka, tmp_path: Path) -> None:
    """KIP-48: a token's id and HMAC are no user's, and the first message has to say so."""
    servers, mechanism = guarded.servers_on("LOGIN"), "SCRAM-SHA-512"
    module = f"{LOGIN}.scram.ScramLoginModule required"
    properties = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": f'{module} username="ann" password="{CANARY}";',
    }
    file = tmp_path / "ann.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    asked = ["--bootstrap-server", servers, "--command-config", str(file)]
    create = ["--create", "--max-life-time-period", "-1", "--renewer-principal", "User:ann"]
    said = guarded.kafka_tool("kafka-delegation-tokens", *asked, *create)
    token = re.search(r"^([\w-]{22})\s+([\w+/]{80,}=*)", said, re.MULTILINE)
    assert token is not None, said
    # the controller has it, and the broker hears of it
    known = ["--describe", "--owner-principal", "User:ann"]
    while token[1] not in guarded.kafka_tool("kafka-delegation-tokens", *asked, *known):
        pass
    login = f'{module} username="{token[1]}" password="{token[2]}"'
    for line, opens in ((f'{login} tokenauth="true";', True), (f"{login};", False)):
        client = client_for(servers, {**properties, "sasl.jaas.config": line})
        with contextlib.nullcontext() if opens else pytest.raises(AuthenticationFailed):
            assert client.cluster_id()
        client.close()


def test_a_client_without_a_login_is_told_where_to_look(guarded: LocalKafka) -> None:
    client = client_for(guarded.servers_on("LOGIN"))
    with pytest.raises(BrokerUnreachable) as unreachable:
        client.cluster_id()
    assert "security.protocol" in unreachable.value.next_step
    client.close()


def tls(guarded: LocalKafka, certificate: str | None) -> dict[str, str]:
    folder: Path = guarded.certificates
    trust = {} if certificate is None else {"ssl.ca.location": str(folder / f"{certificate}.crt")}
    return {"security.protocol": "SSL", **trust}


def test_a_trusted_certificate_for_the_right_host_is_accepted(guarded: LocalKafka) -> None:
    client = client_for(guarded.servers_on("RIGHT"), tls(guarded, "right"))
    assert client.cluster_id()
    assert client.create_topic("over-tls", 1) in (True, False)
    client.close()


@pytest.mark.parametrize(
    ("listener", "trusted", "reason"),
    [
        ("RIGHT", None, "certificate"),
        ("RIGHT", "wrong", "certificate"),
        ("WRONG", "wrong", "127.0.0.1"),
    ],
)
def test_an_untrusted_certificate_or_one_for_another_host_is_refused(
    guarded: LocalKafka, listener: str, trusted: str | None, reason: str
) -> None:
    client = client_for(guarded.servers_on(listener), tls(guarded, trusted))
    with pytest.raises(AuthenticationFailed, match=reason):
        client.cluster_id()
    client.close()


def test_the_host_name_check_can_be_switched_off(guarded: LocalKafka) -> None:
    options = {**tls(guarded, "wrong"), "ssl.endpoint.identification.algorithm": ""}
    client = client_for(guarded.servers_on("WRONG"), options)
    assert client.cluster_id()
    client.close()
