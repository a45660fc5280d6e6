"""What executors do, without Spark: tasks in threads, with the real sequencer and a real broker.

The transaction is the driver's (`Writer`); what became visible is read with librdkafka.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from onceward import events
from onceward.engine import task_writer
from onceward.engine.ledger.record import Output
from onceward.errors import EpochPoisoned, Fenced
from onceward.ids import ProducerIdentity, TaskAttempt
from onceward.kafka.sink.sequencer.frames import EpochCredentials
from onceward.kafka.sink.sequencer.listener import Sequencer
from onceward.kafka.sink.task_reports import TaskReport, check, kafka_output
from onceward.kafka.sink.tasks import TaskSpec, open_kafka_writer
from onceward.kafka.wire.client import KafkaClient
from onceward.kafka.wire.connections import ConnectionLost
from onceward_testing import LocalKafka
from onceward_verify.partition_log import RunningChecksum
from support.wire_fixtures import Writer, settings

pytestmark = pytest.mark.broker

LEDGER = "no-ledger-here"
LONG = 60.0
A_WHILE = 1.5  # how long an answer is held back for something that must not happen meanwhile


class WatchedClient(KafkaClient):
    """Hands every ``Produce`` to ``watch``, which may keep its answer back; ``None`` lets it
    pass.
    """

    watch: Callable[[Future[Any]], Future[Any] | None] | None = None

    def send(
        self, request: Any, node_id: int | str, timeout_ms: float | None = None
    ) -> Future[Any]:
        answer = super().send(request, node_id, timeout_ms)
        if type(request).__name__ != "ProduceFrame" or self.watch is None:
            return answer
        return self.watch(answer) or answer


class Work:
    """One pipeline: its transaction, its sequencer, and tasks that run in threads of this
    process.
    """

    def __init__(self, client: WatchedClient, topic: str, bootstrap: str) -> None:
        self.client = client
        self.topic = topic
        self.bootstrap = bootstrap
        self.driver = Writer(client, f"tasks-{uuid.uuid4().hex[:10]}")
        self.driver.transaction.take_over()
        self.sequencer = Sequencer("127.0.0.1", "127.0.0.1")

    def begin(self) -> tuple[EpochCredentials, ProducerIdentity]:
        identity = self.driver.transaction.begin()
        ticket = self.sequencer.open_epoch(
            identity,
            lease_limit_seconds=LONG,
            on_first_lease=self.driver.transaction.add_partitions,
        )
        return ticket, identity

    def spec(
        self, ticket: EpochCredentials, held_bytes: int = 1 << 20, **producer: Any
    ) -> TaskSpec:
        client_settings, producer_settings = settings(self.bootstrap, **producer)
        return TaskSpec(
            client=client_settings,
            producer=producer_settings,
            topic=self.topic,
            topics={self.topic: 1},
            ledger_topic=LEDGER,
            held_bytes=held_bytes,
            credentials=ticket,
            transactional_id=self.driver.transaction.transactional_id,
            transaction_version=self.driver.transaction.version,
            connect_timeout_s=20.0,
        )

    def run(
        self, spec: TaskSpec, task: TaskAttempt, values: Sequence[str], rows: int = 50
    ) -> TaskReport:
        """One task, in the calling thread; ``rows`` values in each Arrow batch."""
        slices = [values[i : i + rows] for i in range(0, len(values), rows)]
        batches = [pa.RecordBatch.from_pydict({"value": pa.array(s, pa.binary())}) for s in slices]
        _, report = task_writer._written(partial(open_kafka_writer, spec), task, batches)
        return TaskReport.from_json(json.loads(report))

    def commit(self, reports: Sequence[TaskReport]) -> Output:
        book = self.sequencer.close_epoch()
        assert book is not None
        assert book.poisoned is None
        output = kafka_output(check(reports, book.returned, len(reports)))
        self.driver.transaction.commit()
        return output


@pytest.fixture
def work(
    any_kafka: LocalKafka, new_topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Work]:
    client = WatchedClient(settings(any_kafka.bootstrap_servers)[0])
    work = Work(client, new_topic(any_kafka.bootstrap_servers, 1), any_kafka.bootstrap_servers)
    monkeypatch.setattr(KafkaClient, "shared", lambda _: client)
    with closing(work.sequencer), closing(client):
        yield work


@pytest.fixture
def visible(work: Work, read_committed: Callable[..., Any]) -> Callable[[], Counter[str]]:
    return lambda: Counter(m.value().decode() for m in read_committed(work.bootstrap, work.topic))


def task(number: int, attempt: int = 0) -> TaskAttempt:
    return TaskAttempt(number, attempt, 100 * attempt + number)


def values(name: str, count: int) -> list[str]:
    return [f"{name}-{i}" for i in range(count)]


class InBackground(threading.Thread):
    """``call`` at work already; ``outcome()`` waits for its result or its error."""

    def __init__(self, call: Callable[[], Any]) -> None:
        super().__init__()
        self._call = call
        self._result: Future[Any] = Future()
        self.start()

    def run(self) -> None:
        try:
            self._result.set_result(self._call())
        except BaseException as error:  # noqa: BLE001 - the test judges it
            self._result.set_exception(error)

    def outcome(self) -> Any:
        self.join(120)
        return self._result.result(0)


def test_tasks_go_on_in_each_others_sequence_and_every_epoch_begins_anew(
    work: Work, visible: Callable[[], Counter[str]]
) -> None:
    expected: list[str] = []
    for number in range(3):
        ticket, _ = work.begin()
        spec = work.spec(ticket, held_bytes=500)
        rows = [values(f"{number}-{n}", 200) for n in range(3)]
        running = [
            InBackground(lambda n=n, spec=spec, rows=rows: work.run(spec, task(n), rows[n]))
            for n in range(3)
        ]
        output = work.commit([thread.outcome() for thread in running])
        assert output.data[work.topic]["0"][0] == 600
        expected += [value for some in rows for value in some]
    assert visible() == Counter(expected)


def test_a_lease_goes_back_only_when_everything_sent_under_it_is_acknowledged(
    work: Work, visible: Callable[[], Counter[str]]
) -> None:
    """The next holder goes on with the sequence; and what the report names must be in the log."""
    ticket, _ = work.begin()
    given_back = threading.Event()
    too_early: list[str] = []

    def hold(answer: Future[Any]) -> Future[Any]:
        held: Future[Any] = Future()

        def release() -> None:
            if given_back.wait(A_WHILE):
                too_early.append("a lease was given back before the answer")
            answer.add_done_callback(lambda done: held.set_result(done.result()))

        threading.Thread(target=release).start()
        return held

    def listen(event: events.Event) -> None:
        if (event.step, event.phase) == (events.LEASE, "finished"):
            given_back.set()

    work.client.watch = hold
    stop = events.probe(listen)
    try:
        report = work.run(work.spec(ticket), task(0), values("x", 40))
    finally:
        stop()
    assert given_back.wait(20)
    assert too_early == []
    work.client.watch = None
    work.commit([report])
    assert visible() == Counter(values("x", 40))


@pytest.mark.fault("second-hello")
def test_a_second_attempt_is_not_let_in_when_the_first_may_have_sent(
    work: Work, visible: Callable[[], Counter[str]]
) -> None:
    """The broker would take the records of both: their sequences differ."""
    ticket, _ = work.begin()
    spec = work.spec(ticket)
    sent, go_on = threading.Event(), threading.Event()

    def freeze(answer: Future[Any]) -> Future[Any]:
        held: Future[Any] = Future()

        def release() -> None:
            go_on.wait(30)
            answer.add_done_callback(lambda done: held.set_result(done.result()))

        sent.set()
        threading.Thread(target=release).start()
        return held

    work.client.watch = freeze
    first = InBackground(lambda: work.run(spec, task(0), values("x", 40)))
    assert sent.wait(60)
    work.client.watch = None
    second = InBackground(lambda: work.run(spec, task(0, attempt=1), values("x", 40)))
    try:
        with pytest.raises(EpochPoisoned):
            second.outcome()
    finally:
        go_on.set()
    with pytest.raises(EpochPoisoned):
        first.outcome()
    book = work.sequencer.close_epoch()
    assert book is not None
    assert book.poisoned is not None
    work.driver.transaction.abort()
    ticket, _ = work.begin()
    work.commit([work.run(work.spec(ticket), task(0, attempt=2), values("x", 40))])
    assert visible() == Counter(values("x", 40))


@pytest.mark.fault("sequencer-token-wrong")
def test_a_task_of_an_epoch_that_is_over_gets_nowhere_near_the_next(
    work: Work, visible: Callable[[], Counter[str]]
) -> None:
    """As one whose executor was slow to start: its batch runs again already, under another
    epoch.
    """
    old, _ = work.begin()
    work.sequencer.close_epoch()
    work.driver.transaction.abort()
    ticket, _ = work.begin()
    with pytest.raises(EpochPoisoned):
        work.run(work.spec(old), task(0), values("late", 40))
    work.commit([work.run(work.spec(ticket), task(0, attempt=1), values("x", 40))])
    assert visible() == Counter(values("x", 40))


def test_a_task_that_is_told_to_stop_stops_sending(
    work: Work, visible: Callable[[], Counter[str]]
) -> None:
    """Not at ``delivery.timeout.ms``: until then its records could join what it has no part in any
    more.
    """
    ticket, _ = work.begin()
    tried = threading.Event()

    def lose(answer: Future[Any]) -> Future[Any]:
        lost: Future[Any] = Future()
        answer.add_done_callback(lambda _: lost.set_exception(ConnectionLost("lost on purpose")))
        tried.set()
        return lost

    work.client.watch = lose
    spec = work.spec(ticket, delivery_timeout_ms=20_000, request_timeout_ms=10_000)
    running = InBackground(lambda: work.run(spec, task(0), values("x", 40)))
    assert tried.wait(60)
    work.sequencer.poison("another task failed")
    with pytest.raises(EpochPoisoned):
        running.outcome()
    work.client.watch = None
    work.sequencer.close_epoch()
    work.driver.transaction.abort()
    assert visible() == Counter()


def test_what_the_report_names_is_what_is_in_the_log(
    work: Work, read_committed: Callable[..., Any]
) -> None:
    """A task that sends many times reports every one of them, or the batch may not commit."""
    ticket, _ = work.begin()
    report = work.run(work.spec(ticket, held_bytes=500), task(0), values("x", 500))
    count, first, last, checksum = work.commit([report]).data[work.topic]["0"]
    found = read_committed(work.bootstrap, work.topic)
    offsets = [message.offset() for message in found]
    content = RunningChecksum()  # the checker's own
    content.feed(
        [m.key() for m in found], [m.value() for m in found], [m.headers() for m in found]
    )
    assert len(report.segments[work.topic]) > 3
    assert (count, first, last) == (500, min(offsets), max(offsets))
    assert len(offsets) == 500
    assert checksum == content.hexdigest()


def test_a_task_that_finds_its_epoch_refused_tells_the_driver_what_it_met(work: Work) -> None:
    """A lost connection alone would be one more reason to try again; this one is none."""
    ticket, _ = work.begin()
    Writer(work.client, work.driver.transaction.transactional_id).transaction.take_over()
    with pytest.raises(Fenced):
        work.run(work.spec(ticket), task(0), values("x", 40))
    assert isinstance(work.sequencer.failure, Fenced)
