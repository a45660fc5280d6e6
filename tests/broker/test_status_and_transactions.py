"""``onceward status``, ``lag`` and ``transactions`` on a real broker: what they say of a pipeline
without a driver, and how they free a reader.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka import TopicPartition as Position
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
)
from typer.testing import CliRunner

from onceward.cli import app
from onceward.errors import TopicMissing
from onceward.ids import TopicPartition
from onceward.kafka.wire.client import NO_LEADER, KafkaClient
from onceward.kafka.wire.transactions.listing import describe_transaction
from onceward.operate import status as operate_status
from onceward.operate.status import LedgerView, PipelineState, open_ledger
from onceward_testing import LocalKafka
from support.ledger_driver import Driver
from support.wire_fixtures import Writer, appends_to, fragments, settings


def run(*arguments: str, **more: Any) -> Any:
    return CliRunner().invoke(app, arguments, catch_exceptions=False, **more)


@pytest.fixture
def view(driver: Driver) -> LedgerView:
    return open_ledger(bootstrap_servers=driver.bootstrap, ledger_topic=driver.ledger_topic)


def produce(driver: Driver, records: int, partition: int = 0) -> None:
    producer = Producer({"bootstrap.servers": driver.bootstrap})
    for number in range(records):
        producer.produce(driver.source, str(number), partition=partition)
    assert producer.flush(60) == 0


@contextmanager
def undecided(driver: Driver) -> Iterator[None]:
    """Three records in the source, of a transaction that is open meanwhile and aborted then."""
    producer = Producer(
        {"bootstrap.servers": driver.bootstrap, "transactional.id": f"open-{driver.source}"}
    )
    producer.init_transactions(60)
    producer.begin_transaction()
    for number in range(3):
        producer.produce(driver.source, str(number), partition=0)
    assert producer.flush(60) == 0
    yield
    producer.abort_transaction(60)


def until_visible(view: LedgerView, driver: Driver, batch: int) -> None:
    """Markers are written after the answer to ``EndTxn``, the ledger's before others or after."""
    deadline = time.monotonic() + 60
    while (
        not (found := view.entries(driver.name, 1))
        or found[0].batch_id != batch
        or (transaction := view.status(driver.name).transaction) is None
        or transaction.state != "CompleteCommit"
    ):
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


def test_a_pipeline_is_told_from_ledger_coordinator_and_log_ends(
    driver: Driver, view: LedgerView
) -> None:
    assert view.pipelines() == []
    assert view.status(driver.name).state is PipelineState.UNKNOWN
    produce(driver, 25)
    target = driver.new()
    target.open(driver.running(0))
    driver.commit(target, 0)
    until_visible(view, driver, 0)
    assert view.pipelines() == [driver.name]
    with undecided(driver):  # which nobody who reads committed records is given
        (lag,) = view.lag(driver.name)
    assert (lag.topic, lag.offset, lag.last_stable_offset, lag.lag) == (driver.source, 10, 25, 15)
    open_one = driver.stage(target, 1)
    found = view.status(driver.name)
    assert found.state is PipelineState.RUNNING
    assert found.transaction is not None
    # three records and the marker of their abort are to be passed over
    assert (found.transaction.state, found.lag) == ("Ongoing", 19)
    open_one.commit()
    until_visible(view, driver, 1)
    found = view.status(driver.name)
    # the record was made long ago by its clock
    assert found.state is PipelineState.STOPPED
    assert found.newest is not None
    assert found.newest.batch_id == 1
    assert found.lag == 9
    done = run(
        "status", "--bootstrap-servers", driver.bootstrap, "--ledger-topic", driver.ledger_topic
    )
    assert done.exit_code == 1
    assert "stopped" in done.stdout
    table = run(
        "lag", "--bootstrap-servers", driver.bootstrap, "--ledger-topic", driver.ledger_topic,
        "--pipeline-id", driver.name,
    )  # fmt: skip
    assert table.exit_code == 0
    assert "9 offsets in all" in table.stdout
    place = ("--bootstrap-servers", driver.bootstrap, "--ledger-topic")
    for command in (
        ("status", *place, f"no-{driver.ledger_topic}"),
        ("lag", *place, driver.ledger_topic, "--pipeline-id", "misspelt"),
        ("ledger", "show", *place, driver.ledger_topic, "--pipeline-id", "misspelt"),
        ("ledger", "export", *place, driver.ledger_topic, "--pipeline-id", "misspelt"),
    ):
        empty = run(*command)
        assert empty.exit_code == 1, command
        assert "see that it is the right one" in empty.stderr
    admin = AdminClient({"bootstrap.servers": driver.bootstrap})
    admin.create_partitions([NewPartitions(driver.source, 2)])[driver.source].result(60)
    produce(driver, 2, partition=1)
    assert [(each.partition, each.lag) for each in view.lag(driver.name)] == [(0, 9), (1, 2)]
    # A topic of the same name, deleted and created again or another cluster's, is another one
    newest = view.entries(driver.name, 1)[0]
    client = view.client()
    assert client is not None
    # Two sources of one query on one topic: what the one has not read is not read
    ahead = {
        **newest.sources[0],
        "end": {driver.source: {"0": newest.sources[0]["end"][driver.source]["0"] + 3}},
    }
    for both in ((newest.sources[0], ahead), (ahead, newest.sources[0])):
        found = operate_status._lag(client, replace(newest, sources=both))
        assert [(each.partition, each.lag) for each in found] == [(0, 9), (1, 2)]
    source = {**newest.sources[0], "identity": {driver.source: "0" * 22}}
    cut_off = {**newest.sources[0], "end": {driver.source: {"0": 1_000}}}
    for other in (source, cut_off):
        with pytest.raises(TopicMissing, match="made anew"):
            operate_status._lag(client, replace(newest, sources=(other,)))


@pytest.fixture
def held(kafka: LocalKafka, new_topic: Callable[..., str]) -> Iterator[tuple[str, str, Producer]]:
    """A topic whose readers wait for somebody's transaction, which stays open for a day."""
    topic = new_topic(kafka.bootstrap_servers, prefix="held")
    producer = Producer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "transactional.id": f"forgotten-{topic}",
            "transaction.timeout.ms": 600_000,
        }
    )
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(topic, b"never committed", partition=0)
    assert producer.flush(60) == 0
    plain = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    plain.produce(topic, b"behind it", partition=0)
    assert plain.flush(60) == 0
    yield kafka.bootstrap_servers, topic, producer
    producer.purge()


def next_value(servers: str, topic: str, seconds: float) -> bytes | None:
    """What a consumer of committed records is given first, within so many seconds."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": f"reader-{topic}",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.assign([Position(topic, 0, 0)])
    try:
        message = consumer.poll(seconds)
        return None if message is None else message.value()
    finally:
        consumer.close()


def test_abort_frees_a_reader_that_waits_for_another_clients_transaction(
    held: tuple[str, str, Producer],
) -> None:
    servers, topic, producer = held
    name = f"forgotten-{topic}"
    assert next_value(servers, topic, 3) is None
    listed = run("transactions", "list", "--bootstrap-servers", servers, "--topic", topic)
    assert name in listed.stdout
    assert f"{topic}-0" in listed.stdout
    document = json.loads(
        run(
            "transactions", "list", "--bootstrap-servers", servers, "--topic", topic, "--json"
        ).stdout
    )  # fmt: skip
    assert name in [each["transactional_id"] for each in document["transactions"]]
    (where,) = document["partitions"]
    assert (where["topic"], where["partition"], where["owner"]) == (topic, 0, name)
    assert document["leaderless"] == []
    described = run(
        "transactions", "describe", "--bootstrap-servers", servers, "--transactional-id", name,
        "--json",
    )  # fmt: skip
    found = json.loads(described.stdout)
    assert (found["state"], found["partitions"]) == ("Ongoing", [[topic, 0]])
    abort = ("transactions", "abort", "--bootstrap-servers", servers, "--transactional-id", name)
    for nobody in ("n\n", ""):
        refused = run(*abort, input=nobody)
        assert refused.exit_code == 1
        assert f"{topic}-0" in refused.stdout
        assert "nothing was done" in refused.stderr
        assert "Aborted" not in refused.output
    assert next_value(servers, topic, 3) is None
    done = run(*abort, "--yes")
    assert done.exit_code == 0
    assert f"{topic}-0" in done.stdout
    assert next_value(servers, topic, 30) == b"behind it"
    with pytest.raises(KafkaException):
        producer.commit_transaction(30)
    again = run(*abort, "--yes")
    assert again.exit_code == 1
    assert "has nothing open" in again.stderr
    # Its own may be above what brokers allow by now
    described = run(
        "transactions", "describe", "--bootstrap-servers", servers, "--transactional-id", name,
        "--json",
    )  # fmt: skip
    assert json.loads(described.stdout)["timeout_ms"] == 1


def test_none_is_aborted_but_the_one_that_was_shown(
    held: tuple[str, str, Producer], monkeypatch: pytest.MonkeyPatch
) -> None:
    servers, topic, producer = held
    name = f"forgotten-{topic}"

    def agree(_: str) -> bool:
        producer.commit_transaction(30)
        producer.begin_transaction()
        producer.produce(topic, b"the next one", partition=0)
        producer.flush(30)
        return True

    monkeypatch.setattr("typer.confirm", agree)
    done = run("transactions", "abort", "--bootstrap-servers", servers, "--transactional-id", name)
    assert done.exit_code == 1
    assert "has changed meanwhile" in done.stderr
    producer.commit_transaction(30)


def test_one_whose_coordinator_knows_it_is_not_torn_in_a_single_partition(
    held: tuple[str, str, Producer],
) -> None:
    servers, topic, _ = held
    where = ("--topic", topic, "--partition", "0")
    done = run("transactions", "abort", "--bootstrap-servers", servers, *where, "--yes")
    assert done.exit_code == 1
    assert f"--transactional-id forgotten-{topic}" in done.stderr


@pytest.mark.parametrize("verb", ["abort", "commit"])
def test_a_partition_that_is_not_there_is_named(
    held: tuple[str, str, Producer], verb: str
) -> None:
    servers, topic, _ = held
    where = ("--topic", topic, "--partition", "99")
    done = run("transactions", verb, "--bootstrap-servers", servers, *where, "--yes")
    assert done.exit_code == 1
    assert "PartitionMissing" in done.stderr


@contextmanager
def just_before(
    request: str, act: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Act when the first request of that name is about to be sent."""
    acts, call = [act], KafkaClient.call

    def called(client: KafkaClient, asked: Any, *rest: Any, **more: Any) -> Any:
        if type(asked).__name__ == request and acts:
            acts.pop()()
        return call(client, asked, *rest, **more)

    with monkeypatch.context() as patched:
        patched.setattr(KafkaClient, "call", called)
        yield
    assert not acts


def test_one_that_commits_while_its_owner_is_looked_for_is_not_ended_by_a_marker(
    held: tuple[str, str, Producer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The marker is by producer id and epoch: it would end what that producer has begun since."""
    servers, topic, producer = held

    def go_on() -> None:
        producer.commit_transaction(30)
        producer.begin_transaction()
        producer.produce(topic, b"the next one", partition=0)
        assert producer.flush(60) == 0

    where = ("--topic", topic, "--partition", "0")
    with just_before(
        "ListTransactionsRequest", lambda: producer.commit_transaction(30), monkeypatch
    ):
        done = run("transactions", "abort", "--bootstrap-servers", servers, *where, "--yes")
    assert done.exit_code == 1
    assert f"{topic}-0 has 0 open transactions" in done.stderr
    producer.begin_transaction()
    producer.produce(topic, b"another", partition=0)
    assert producer.flush(60) == 0
    with just_before("ListTransactionsRequest", go_on, monkeypatch):
        done = run("transactions", "abort", "--bootstrap-servers", servers, *where, "--yes")
    assert done.exit_code == 1
    producer.commit_transaction(30)
    assert read_values(servers, topic, 4) == [
        b"never committed", b"behind it", b"another", b"the next one"
    ]  # fmt: skip


def test_one_that_begins_between_two_questions_does_not_hang(
    held: tuple[str, str, Producer], monkeypatch: pytest.MonkeyPatch
) -> None:
    servers, topic, producer = held
    producer.commit_transaction(30)

    def begin() -> None:
        producer.begin_transaction()
        producer.produce(topic, b"the next one", partition=0)
        assert producer.flush(60) == 0

    with just_before("DescribeProducersRequest", begin, monkeypatch):
        listed = run("transactions", "list", "--bootstrap-servers", servers, "--topic", topic)
    (line,) = [line for line in listed.stdout.splitlines() if f"{topic}-0" in line]
    assert line.rstrip().endswith(f"forgotten-{topic}")


def read_values(servers: str, topic: str, number: int) -> list[bytes | None]:
    """Return the first values of partition 0 that a consumer of committed records is given."""
    group = {"group.id": f"all-{topic}", "auto.offset.reset": "earliest"}
    consumer = Consumer({"bootstrap.servers": servers, **group})
    consumer.assign([Position(topic, 0, 0)])
    try:
        return [message.value() for message in consumer.consume(number, 30)]
    finally:
        consumer.close()


def leave_hanging(servers: str, topic: str, ahead_s: int) -> None:
    """Append a record of a transaction that the coordinator knows nothing of, which brokers take
    while they do not ask it (KIP-890).
    """
    client = KafkaClient(settings(servers)[0])
    writer = Writer(client, f"hanging-{topic}")
    where = TopicPartition(topic, 0)
    try:
        writer.transaction.take_over()
        verify(servers, "false")
        writer.transaction.begin()
        writer.producer().send(appends_to(where, fragments([b"hangs"], ahead_s=ahead_s)))
    finally:
        verify(servers, "true")
        client.close()


def verify(servers: str, wanted: str) -> None:
    name = "transaction.partition.verification.enable"
    admin = AdminClient({"bootstrap.servers": servers})
    (broker,) = admin.list_topics(timeout=30).brokers
    entry = ConfigEntry(name, wanted, incremental_operation=AlterConfigOpType.SET)
    cluster = ConfigResource(ConfigResource.Type.BROKER, str(broker), incremental_configs=[entry])
    for done in admin.incremental_alter_configs([cluster]).values():
        done.result(30)
    time.sleep(1)


def test_a_transaction_that_hangs_is_ended_by_a_marker(
    kafka39: LocalKafka, new_topic: Callable[..., str]
) -> None:
    """As on brokers before KIP-890: a record of a transaction arrives after its marker. Nothing
    but a marker frees the readers then.
    """
    servers = kafka39.bootstrap_servers
    topic = new_topic(servers, prefix="hangs")
    leave_hanging(servers, topic, ahead_s=-3600)
    plain = Producer({"bootstrap.servers": servers})
    plain.produce(topic, b"behind it", partition=0)
    assert plain.flush(60) == 0
    assert next_value(servers, topic, 3) is None
    where = ("--topic", topic, "--partition", "0")
    listed = run("transactions", "list", "--bootstrap-servers", servers, "--topic", topic)
    (line,) = [line for line in listed.stdout.splitlines() if f"{topic}-0" in line]
    assert line.rstrip().endswith("yes")
    done = run("transactions", "abort", "--bootstrap-servers", servers, *where, "--yes")
    assert done.exit_code == 0, done.output
    deadline = time.monotonic() + 60
    while (value := next_value(servers, topic, 5)) is None and time.monotonic() < deadline:
        pass
    assert value == b"behind it"


def test_one_that_a_moving_coordinator_may_still_commit_is_not_called_hanging(
    kafka39: LocalKafka, new_topic: Callable[..., str]
) -> None:
    servers = kafka39.bootstrap_servers
    topic = new_topic(servers, prefix="young")
    leave_hanging(servers, topic, ahead_s=0)
    listed = run("transactions", "list", "--bootstrap-servers", servers, "--topic", topic)
    (line,) = [line for line in listed.stdout.splitlines() if f"{topic}-0" in line]
    assert line.rstrip().endswith("in 15 min")
    where = ("--topic", topic, "--partition", "0")
    done = run("transactions", "abort", "--bootstrap-servers", servers, *where, "--yes")
    assert done.exit_code == 1
    assert "ask again in 15 min" in done.stderr


@pytest.mark.lengthy("ci")
def test_a_committed_one_whose_marker_never_came_is_committed_and_not_aborted() -> None:
    """Coordinators of 4.3 pass over a partition that has no leader (KAFKA-20734)."""
    with LocalKafka(nodes=3) as kafka:
        servers, admin = (
            kafka.bootstrap_servers,
            AdminClient({"bootstrap.servers": kafka.bootstrap_servers}),
        )
        client = KafkaClient(settings(servers)[0])
        writer = Writer(client, "before-the-leader-is-gone", timeout_ms=600_000)
        writer.transaction.take_over()
        node = client.coordinator(writer.transaction.transactional_id, "transaction")
        away = next(number for number in (1, 2, 3) if number != node)
        topic = NewTopic("passed-over", 2, replica_assignment=[[away], [node]])
        admin.create_topics([topic])["passed-over"].result(60)
        where = TopicPartition("passed-over", 0)
        until(lambda: client.topic_partitions(["passed-over"])["passed-over"][0] == away)
        writer.transaction.begin()
        writer.producer().send(appends_to(where, fragments([b"decided"], ahead_s=-3600)))
        kafka.nodes[away - 1].kill()
        until(lambda: client.topic_partitions(["passed-over"])["passed-over"][0] == NO_LEADER)
        place = ("--bootstrap-servers", servers, "--topic", "passed-over")
        listed = run("transactions", "list", *place)
        assert listed.exit_code == 0
        assert (
            "without a leader, so that nobody knows who is there: passed-over-0" in listed.stderr
        )
        refused = run("transactions", "abort", *place, "--partition", "0", "--yes")
        assert "passed-over-0: no leader" in refused.stderr
        writer.transaction.commit()
        until(lambda: state(client, writer) == "CompleteCommit")
        kafka.nodes[away - 1].start()
        until(lambda: client.topic_partitions(["passed-over"])["passed-over"][0] == away)
        client.close()
        assert next_value(servers, "passed-over", 3) is None
        listed = run("transactions", "list", *place)
        assert "yes, committed" in listed.stdout
        place += ("--partition", "0", "--yes")
        refused = run("transactions", "abort", *place)
        assert refused.exit_code == 1
        assert "onceward transactions commit" in refused.stderr
        done = run("transactions", "commit", *place)
        assert done.exit_code == 0, done.output
        assert next_value(servers, "passed-over", 30) == b"decided"
        again = run("transactions", "commit", *place)
        assert again.exit_code == 1
        assert "has 0 open transactions" in again.stderr


def state(client: KafkaClient, writer: Writer) -> str | None:
    found = describe_transaction(client, writer.transaction.transactional_id)
    return None if found is None else found.state


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 90
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.2)
