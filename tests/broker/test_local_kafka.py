"""LocalKafka is what every broker test stands on: it serves, survives its nodes' deaths, and
leaves nothing behind.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
import pytest
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from onceward.errors import ConfigurationError, ResourceError
from onceward_testing import LocalKafka

Reader = Callable[[str, str], list[Message]]


def produce(bootstrap_servers: str, topic: str, values: list[bytes]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap_servers, "acks": "all", "linger.ms": 5})
    failures: list[object] = []
    for value in values:
        producer.produce(
            topic, value, on_delivery=lambda error, _: failures.append(error) if error else None
        )
    assert producer.flush(60) == 0
    assert failures == []


def values_of(messages: list[Message]) -> list[bytes]:
    return [message.value() for message in messages]


def test_both_versions_serve_what_was_produced(
    any_kafka: LocalKafka, new_topic: Callable[..., str], read_committed: Reader
):
    topic = new_topic(any_kafka.bootstrap_servers, 1)
    produce(any_kafka.bootstrap_servers, topic, [b"%d" % i for i in range(100)])
    assert values_of(read_committed(any_kafka.bootstrap_servers, topic)) == [
        b"%d" % i for i in range(100)
    ]


def test_a_topic_nobody_made_is_an_error_not_a_new_topic(kafka: LocalKafka):
    producer = Producer(
        {"bootstrap.servers": kafka.bootstrap_servers}
    )  # asks with allow_auto_topic_creation
    for _ in range(2):  # the first question would create it
        answer = producer.list_topics("nobody-made-me", timeout=30).topics["nobody-made-me"]
        assert answer.error is not None
        assert answer.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_kafkas_own_tools_answer(any_kafka: LocalKafka, new_topic: Callable[..., str]):
    topic = new_topic(any_kafka.bootstrap_servers, 2)
    assert topic in any_kafka.kafka_tool("kafka-topics", "--list").splitlines()
    produce(any_kafka.bootstrap_servers, topic, [b"only"] * 3)
    log = next(any_kafka.nodes[0].data_folder.glob(f"{topic}-*/00000000000000000000.log"))
    assert "Dumping" in any_kafka.kafka_tool("kafka-dump-log", "--files", str(log))


def test_a_failing_tool_says_what_it_said(kafka: LocalKafka):
    with pytest.raises(ResourceError, match="does not exist"):
        kafka.kafka_tool("kafka-topics", "--describe", "--topic", "no-such-topic")


def test_a_misspelt_tool_is_told_the_right_name(kafka: LocalKafka):
    with pytest.raises(ConfigurationError, match="kafka-topics"):
        kafka.kafka_tool("kafka-topic")


def test_three_nodes_go_on_when_one_is_killed_and_the_killed_one_comes_back_with_its_data(
    new_topic: Callable[..., str], read_committed: Reader
):
    with LocalKafka(nodes=3) as kafka:
        topic = new_topic(kafka.bootstrap_servers, 3)
        produce(kafka.bootstrap_servers, topic, [b"before"] * 30)
        victim = kafka.nodes[1]
        port, pid = victim.port, victim.pid
        victim.kill()
        assert pid is not None
        assert not psutil.pid_exists(pid)
        produce(kafka.bootstrap_servers, topic, [b"while it is down"] * 30)

        victim.start()
        assert victim.port == port
        assert victim.pid != pid
        kafka.wait_until_serving()
        assert all(node.sees() == {1, 2, 3} for node in kafka.nodes)
        produce(kafka.bootstrap_servers, topic, [b"after"] * 30)
        assert len(read_committed(kafka.bootstrap_servers, topic)) == 90


def test_a_node_that_was_killed_keeps_data_and_port(
    new_topic: Callable[..., str], read_committed: Reader
):
    with LocalKafka() as kafka:
        servers = kafka.bootstrap_servers
        topic = new_topic(servers, 1)
        produce(servers, topic, [b"kept"])
        kafka.nodes[0].kill()
        assert kafka.nodes[0].sees() == frozenset()
        kafka.nodes[0].start()
        assert kafka.bootstrap_servers == servers
        assert values_of(read_committed(servers, topic)) == [b"kept"]


def test_a_suspended_node_answers_nothing_until_resumed():
    with LocalKafka() as kafka:
        node = kafka.nodes[0]
        node.suspend()
        assert node.running
        assert node.sees() == frozenset()
        node.resume()
        node.wait_until_it_sees({1})


def test_settings_of_the_caller_reach_the_broker(new_topic: Callable[..., str]):
    chosen = {"transaction.max.timeout.ms": 12_345, "delete.topic.enable": False}
    with LocalKafka(properties=chosen) as kafka:
        described = kafka.kafka_tool(
            "kafka-configs",
            "--describe",
            "--all",
            "--entity-type",
            "brokers",
            "--entity-name",
            "1",
        )
    assert "transaction.max.timeout.ms=12345 " in described
    assert "delete.topic.enable=false " in described


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_an_extra_listener_lets_in_who_knows_the_password(mechanism: str):
    login = "org.apache.kafka.common.security"
    properties = {
        "listener.name.secure.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
        "listener.name.secure.plain.sasl.jaas.config": f"{login}.plain.PlainLoginModule required "
        f'user_ann="ann-1";',
        "listener.name.secure.scram-sha-256.sasl.jaas.config": f"{login}.scram.ScramLoginModule "
        f"required;",
    }
    scram = ("--add-scram", "SCRAM-SHA-256=[name=ann,password=ann-1]")
    secure = {"SECURE": "SASL_PLAINTEXT"}
    with LocalKafka(
        extra_listeners=secure, properties=properties, format_arguments=scram
    ) as kafka:
        client = {
            "bootstrap.servers": kafka.servers_on("SECURE"),
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": mechanism,
            "sasl.username": "ann",
        }
        assert Producer({**client, "sasl.password": "ann-1"}).list_topics(
            timeout=30
        ).brokers.keys() == {1}
        with pytest.raises(KafkaException):
            Producer({**client, "sasl.password": "guessed", "log_level": 0}).list_topics(timeout=3)


def test_a_broker_that_cannot_start_is_reported_with_its_own_words():
    with pytest.raises(ResourceError, match=r"num\.partitions"):
        LocalKafka(properties={"num.partitions": "many"}).start()


@pytest.mark.parametrize("death", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_is_left_when_the_owner_is_killed(death: signal.Signals):
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert owner.stdout is not None
    with owner.stdout as announced:
        folder, *pids = announced.readline().split()
        brokers = [psutil.Process(int(pid)) for pid in pids]
        guards = [broker.parent() for broker in brokers]
        assert Path(folder).is_dir()
        owner.send_signal(death)
        owner.wait()
    assert survivors([*brokers, *guards]) == []
    assert goes_away(Path(folder))


@pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux tells a child that its parent has died"
)
def test_a_broker_does_not_outlive_its_guard():
    with LocalKafka() as kafka:
        broker = psutil.Process(kafka.nodes[0].pid)
        guard = broker.parent()
        assert guard is not None
        guard.kill()
        assert survivors([broker]) == []


def survivors(processes: Sequence[psutil.Process | None]) -> list[psutil.Process]:
    """Those that are still there after a while; they are killed, so that a failing test leaves
    nothing either.
    """
    _, alive = psutil.wait_procs(
        [process for process in processes if process is not None], timeout=30
    )
    for process in alive:
        process.kill()
    return list(alive)


OWNER = textwrap.dedent(
    """
    import signal, threading
    from onceward_testing import LocalKafka

    kafka = LocalKafka()
    starter = threading.Thread(target=kafka.start)  # a thread that ends: its end must not be taken for the owner's
    starter.start()
    starter.join()
    assert kafka.nodes[0].running
    print(kafka.nodes[0].folder.parent, *(node.pid for node in kafka.nodes))
    signal.pause()
    """
)


def goes_away(folder: Path, seconds: float = 30) -> bool:
    deadline = time.monotonic() + seconds
    while folder.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    return not folder.exists()


def test_nothing_is_left_after_an_orderly_end():
    with LocalKafka() as kafka:
        broker = psutil.Process(kafka.nodes[0].pid)
        guard, folder = broker.parent(), kafka.nodes[0].folder.parent
    assert not broker.is_running()
    assert guard is None or not guard.is_running()
    assert not folder.exists()


def test_a_kept_folder_serves_the_next_start(
    tmp_path: Path, new_topic: Callable[..., str], read_committed: Reader
):
    folder = tmp_path / "cluster"
    with LocalKafka(folder=folder) as first:
        servers = first.bootstrap_servers
        topic = new_topic(servers, 1)
        produce(servers, topic, [b"kept"])
    with LocalKafka(folder=folder) as second:
        assert second.bootstrap_servers == servers
        assert values_of(read_committed(servers, topic)) == [b"kept"]
    with pytest.raises(ConfigurationError, match="holds 1 node"):
        LocalKafka(nodes=3, folder=folder).start()


def test_a_kept_folder_outlives_its_owner_and_its_port(
    tmp_path: Path, new_topic: Callable[..., str], read_committed: Reader
):
    folder = tmp_path / "cluster"
    script = f"""
        from onceward_testing import LocalKafka
        kafka = LocalKafka(folder={str(folder)!r}).start()
        print(kafka.bootstrap_servers, kafka.nodes[0].pid, flush=True)
        input()
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as owner:
        assert owner.stdout is not None
        servers, pid = owner.stdout.readline().split()
        topic = new_topic(servers, 1)
        produce(servers, topic, [b"kept"])
        owner.kill()
    deadline = time.monotonic() + 30
    while psutil.pid_exists(int(pid)):
        assert time.monotonic() < deadline, "the broker outlived its owner"
        time.sleep(0.05)
    with (
        socket.create_server(("127.0.0.1", int(servers.rpartition(":")[2]))),
        LocalKafka(folder=folder) as kafka,
    ):
        assert kafka.bootstrap_servers != servers
        assert values_of(read_committed(kafka.bootstrap_servers, topic)) == [b"kept"]
