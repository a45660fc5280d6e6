"""``onceward doctor --consumers``: who reads an output topic, and what their offsets prove, with
real consumers.
"""

from __future__ import annotations

import shlex
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import Consumer, Producer
from kafka import KafkaConsumer
from kafka import TopicPartition as KafkaPartition
from typer.testing import CliRunner

from onceward.cli import app
from onceward.cli.doctor.consumers import check_consumers
from onceward.cli.doctor.kinds import CheckResult
from onceward_testing import LocalKafka
from onceward_testing.free_ports import free_ports

WAIT_SECONDS = 60
RECORDS = 10


class Output:
    """A topic of one partition: ten committed records, and behind them a transaction, left open or
    aborted.
    """

    def __init__(self, servers: str, topic: str) -> None:
        self.servers, self.topic = servers, topic
        self.group = f"group-{uuid.uuid4().hex[:10]}"
        self._producer = Producer(
            {"bootstrap.servers": servers, "transactional.id": topic, "linger.ms": 1000}
        )
        self._producer.init_transactions(60)
        self.begin()
        self._producer.commit_transaction(60)

    def begin(self) -> None:
        """Ten records in one batch, of a transaction that stays open."""
        self._producer.begin_transaction()
        for number in range(RECORDS):
            self._producer.produce(self.topic, b"value-%d" % number, partition=0)
        assert self._producer.flush(60) == 0

    def abort(self) -> None:
        self._producer.abort_transaction(60)

    def findings(self) -> list[CheckResult]:
        """What is said of this group, or of this topic."""
        every = check_consumers(self.servers, None, [self.topic])
        return [
            finding
            for finding in every
            if self.group in finding.what or f"topic {self.topic}:" in finding.what
        ]

    def finding(self) -> CheckResult:
        (finding,) = self.findings()
        return finding


@pytest.fixture
def output(kafka: LocalKafka, new_topic: Callable[..., str]) -> Iterator[Output]:
    output = Output(kafka.bootstrap_servers, new_topic(kafka.bootstrap_servers, prefix="out"))
    yield output
    output._producer.purge()


def read(output: Output, how: str, isolation_level: str | None, records: int) -> None:
    """Be given so many records, and commit behind the last of them; nobody is in the group
    afterwards.
    """
    level = {"isolation_level": isolation_level} if isolation_level else {}
    if how == "kafka-python":
        with consuming(output, **level) as consumer:
            consumer.assign([KafkaPartition(output.topic, 0)])
            seen = 0
            deadline = time.monotonic() + WAIT_SECONDS
            while seen < records:
                seen += sum(map(len, consumer.poll(2_000, max_records=records - seen).values()))
                assert time.monotonic() < deadline, f"{seen} of {records} records"
            consumer.commit()
        return
    protocol = {"group.protocol": "consumer"} if how == "KIP-848" else {}
    settings = {
        "bootstrap.servers": output.servers,
        "group.id": output.group,
        "auto.offset.reset": "earliest",
    }
    settings |= {
        "enable.auto.commit": "false",
        **protocol,
        **{n.replace("_", "."): v for n, v in level.items()},
    }
    consumer = Consumer(settings)
    consumer.subscribe([output.topic])
    try:
        for number in range(records):
            message = consumer.poll(WAIT_SECONDS)
            assert message is not None, f"{number} of {records} records"
            assert message.error() is None, message.error()
        consumer.commit(message=message, asynchronous=False)
    finally:
        consumer.close()


@contextmanager
def consuming(output: Output, **settings: object) -> Iterator[KafkaConsumer]:
    consumer = KafkaConsumer(
        bootstrap_servers=output.servers,
        group_id=output.group,
        client_id=f"reader-of-{output.group}",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        **settings,
    )
    try:
        yield consumer
    finally:
        consumer.close()


def test_a_topic_that_is_not_there_has_not_no_readers(kafka: LocalKafka):
    reached, *others = check_consumers(kafka.bootstrap_servers, None, ["misspelt"])
    (missing,) = (each for each in others if "misspelt" in each.what)
    assert (reached.status, missing.status) == ("ok", "fail")


@pytest.mark.parametrize("how", ["kafka-python", "confluent-kafka", "KIP-848"])
def test_who_commits_beyond_the_last_stable_offset_is_proved_to_read_uncommitted(
    output: Output, how: str
) -> None:
    output.begin()
    read(output, how, "read_uncommitted", RECORDS + 5)
    found = output.finding()
    assert found.status == "fail", found
    assert f"16 of {output.topic}-0 (stable up to 11)" in found.what
    assert "isolation.level=read_committed" in found.next_step
    output.abort()
    assert output.finding().status == "warn", (
        "no transaction is open any more: it cannot be proved now"
    )


@pytest.mark.parametrize(
    ("how", "level"),
    [("confluent-kafka", None), ("kafka-python", "read_committed"), ("KIP-848", "read_committed")],
)
def test_who_reads_committed_records_is_never_accused(
    output: Output, how: str, level: str | None
) -> None:
    """librdkafka's default is read_committed. That it is right cannot be proved either."""
    output.begin()
    read(output, how, level, RECORDS)
    found = output.finding()
    assert found.status == "warn", found
    assert "its isolation level cannot be told" in found.what
    assert "isolation.level" in found.next_step
    assert "librdkafka" in found.next_step


@pytest.mark.parametrize("how", ["kafka-python", "confluent-kafka"])
def test_an_offset_between_two_aborted_records_is_a_hint(output: Output, how: str) -> None:
    output.begin()
    output.abort()
    read(output, how, "read_uncommitted", RECORDS + 4)
    found = output.finding()
    assert found.status == "warn", found
    assert (
        f"its offset 15 of {output.topic}-0 stands between two records of an aborted transaction"
        in found.what
    )


def test_an_offset_between_two_committed_records_is_none(output: Output) -> None:
    read(output, "kafka-python", "read_uncommitted", RECORDS // 2)
    assert "cannot be told" in output.finding().what


def test_members_without_offsets_are_found(output: Output) -> None:
    with consuming(output) as consumer:
        consumer.subscribe([output.topic])
        deadline = time.monotonic() + WAIT_SECONDS
        while not consumer.assignment():
            consumer.poll(2_000)
            assert time.monotonic() < deadline, "nothing was assigned"
        found = output.finding()
    assert found.status == "warn", found
    assert f"reader-of-{output.group} at 127.0.0.1" in found.what


def test_a_topic_that_no_group_reads(output: Output) -> None:
    found = output.finding()
    assert (found.status, found.what.split(":")[0]) == ("ok", f"topic {output.topic}")


@pytest.mark.slow
def test_a_share_groups_level_is_known_to_the_brokers(kafka: LocalKafka, output: Output) -> None:
    kafka.kafka_tool(
        "kafka-console-share-consumer",
        "--topic",
        output.topic,
        "--group",
        output.group,
        "--timeout-ms",
        "3000",
    )
    mine = next(finding for finding in output.findings() if output.group in finding.what)
    assert mine.status == "warn", mine
    assert "share.isolation.level=read_uncommitted" in mine.what
    command, _, servers, *alter = shlex.split(mine.next_step.partition(": ")[2])
    assert servers == kafka.bootstrap_servers
    kafka.kafka_tool(command, *alter)
    mine = next(finding for finding in output.findings() if output.group in finding.what)
    assert mine.status == "ok", mine


def test_the_command_fails_where_something_is_proved_and_only_there(output: Output) -> None:
    arguments = [
        "doctor",
        "--consumers",
        "--bootstrap-servers",
        output.servers,
        "--topic",
        output.topic,
    ]
    read(output, "confluent-kafka", None, RECORDS)
    sound = CliRunner().invoke(app, arguments)
    assert sound.exit_code == 0, sound.output
    output.begin()
    read(output, "kafka-python", None, RECORDS)
    proved = CliRunner().invoke(app, arguments)
    assert proved.exit_code == 1, proved.output
    assert f"fail consumer group {output.group}" in proved.output
    output.abort()
    (port,) = free_ports(1)
    assert (
        CliRunner().invoke(app, [*arguments[:3], f"127.0.0.1:{port}", *arguments[4:]]).exit_code
        == 69
    )
    assert CliRunner().invoke(app, arguments[:4]).exit_code == 64
