"""The way between tasks and their sequencer, cut, silent, replayed and shouted at, while a batch
is on it.

Tasks reach the sequencer over a cable of ours, which sees what they say and can repeat it: with
the real token.
"""

from __future__ import annotations

import random
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  as everybody writes it
from streaming_pipeline import Pipeline

from fault_table import fired
from onceward import events
from onceward.errors import SequencerUnreachable
from onceward.ids import TaskAttempt
from onceward.kafka.sink.sequencer import frames
from onceward_testing.free_ports import free_ports

BATCH = 40
PATIENCE_SECONDS = 60
HERE, THERE = (
    "127.0.0.1",
    "127.0.0.2",
)  # the sequencer's end, the tasks' end; both are this machine


class Cable:
    """Carries bytes from ``THERE`` to the sequencer ``HERE`` and back, both at ``port``; keeps
    each HELLO.
    """

    def __init__(self, port: int, *, silent: bool = False) -> None:
        self.port = port
        self.hellos: list[bytes] = []
        self._silent = silent
        self._sockets: list[socket.socket] = []
        self._door = socket.create_server((THERE, port))
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):  # closed
            while True:
                task, _ = self._door.accept()
                self._sockets.append(task)
                if self._silent:
                    continue
                sequencer = socket.create_connection((HERE, self.port))
                self._sockets.append(sequencer)
                hello = task.recv(frames.HELLO_FRAME_BYTES, socket.MSG_WAITALL)
                self.hellos.append(hello)
                sequencer.sendall(hello)
                for source, sink in ((task, sequencer), (sequencer, task)):
                    threading.Thread(target=_pump, args=(source, sink), daemon=True).start()

    def cut(self) -> None:
        """Every connection, both ways."""
        for end in self._sockets:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.cut()
        for end in (self._door, *self._sockets):
            end.close()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65_536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)


@pytest.fixture
def cable() -> Iterator[Callable[..., Cable]]:
    with ExitStack() as stack:
        yield lambda **how: stack.enter_context(closing(Cable(free_ports(1)[0], **how)))


@pytest.fixture
def poisoned() -> Iterator[Callable[[], str]]:
    """Why the epoch was poisoned, once a lease was lost by it: waits for that."""
    lost: list[events.Event] = []
    told = threading.Event()

    def listen(event: events.Event) -> None:
        if (event.step, event.phase) == (events.LEASE, "failed"):
            lost.append(event)
            told.set()

    def wait() -> str:
        fired(told.wait(PATIENCE_SECONDS), "no lease was lost")
        return str(lost[0].error)

    stop = events.probe(listen)
    yield wait
    stop()


def said(port: int, data: bytes) -> bytes:
    """What the sequencer answers to ``data``."""
    with closing(socket.create_connection((HERE, port), PATIENCE_SECONDS)) as raw:
        with suppress(OSError):
            raw.sendall(data)
            raw.shutdown(socket.SHUT_WR)
        with suppress(OSError):
            return raw.recv(1_000)
    return b""


def epochs_of(steps: list[events.Event], batch_id: int) -> list[int]:
    """Those under which a batch was planned: one for each attempt."""
    planned = [e for e in steps if (e.step, e.phase) == (events.PLAN, "started")]
    return [e.ids["epoch"] for e in planned if e.ids["batch_id"] == batch_id]


def must_have_cost_one_attempt(pipeline: Pipeline, steps: list[events.Event]) -> None:
    """Batch 0 ran twice, the second time under a later epoch, and nothing of its first attempt is
    visible.
    """
    first, second = epochs_of(steps, 0)
    assert second > first
    assert len(epochs_of(steps, 1)) == 1
    pipeline.assert_exactly_once(ledger_records=2)
    assert pipeline.ledger()[0]["attempt"][1] == second
    fired(
        len(pipeline.appended()) > len(pipeline.visible()),
        "nothing had been sent under the poisoned epoch",
    )


@pytest.mark.fault("lease-connection-lost")
def test_the_connection_is_cut_while_a_lease_is_held(
    any_pipeline: Pipeline,
    cable: Any,
    at_step: Any,
    steps: list[events.Event],
    poisoned: Callable[[], str],
):
    any_pipeline.feed(2 * BATCH)
    wire = cable()
    at_step(events.LEASE, "started", lambda _: wire.cut(), nth=3)  # by then something is sent
    any_pipeline.run(sequencer_host=THERE, sequencer_port=wire.port, driver_records=0)
    assert "was lost" in poisoned()
    must_have_cost_one_attempt(any_pipeline, steps)


@pytest.mark.lengthy("chaos")
@pytest.mark.fault("lease-overdue")
def test_a_lease_is_held_for_too_long(
    any_pipeline: Pipeline, at_step: Any, steps: list[events.Event], poisoned: Callable[[], str]
):
    """Its holder has the grant on its way and never sends; twice ``delivery.timeout.ms`` bounds
    that, and five seconds: tasks that get no answer shall say so themselves."""
    any_pipeline.feed(2 * BATCH)
    at_step(events.LEASE, "started", lambda _: poisoned(), nth=3)
    any_pipeline.run(
        options={"delivery.timeout.ms": 3_000, "request.timeout.ms": 3_000}, driver_records=0
    )
    assert "for more than 11 s" in poisoned()
    must_have_cost_one_attempt(any_pipeline, steps)


@pytest.mark.fault("second-hello")
@pytest.mark.parametrize(
    "who", ["the same attempt", pytest.param("the next attempt", marks=pytest.mark.slow)]
)
def test_an_attempt_says_hello_while_its_task_holds_a_lease(
    any_pipeline: Pipeline,
    cable: Any,
    at_step: Any,
    steps: list[events.Event],
    poisoned: Callable[[], str],
    who: str,
):
    any_pipeline.feed(2 * BATCH)
    wire = cable()
    answers: list[bytes] = []

    def say_hello_again(event: events.Event) -> None:
        holder: TaskAttempt = event.ids["task"]
        token, task = next(
            hello for hello in map(frames.parse_hello, wire.hellos) if hello[1] == holder
        )
        if who == "the next attempt":
            task = TaskAttempt(
                task.partition_id, task.attempt_number + 1, task.task_attempt_id + 1_000
            )
        answers.append(said(wire.port, frames.hello_frame(token, task)))

    at_step(events.LEASE, "started", say_hello_again, nth=3)
    any_pipeline.run(sequencer_host=THERE, sequencer_port=wire.port, driver_records=0)
    assert ("said hello twice" if who == "the same attempt" else "may have sent") in poisoned()
    assert answers[0][0] == frames.Op.STOP
    must_have_cost_one_attempt(any_pipeline, steps)


@pytest.mark.fault("sequencer-token-wrong", "sequencer-garbage")
def test_wrong_and_old_tokens_and_garbage_do_not_disturb_a_batch(
    any_pipeline: Pipeline, cable: Any, at_step: Any, steps: list[events.Event]
):
    any_pipeline.feed(2 * BATCH)
    wire = cable()
    answers: list[bytes] = []

    def shout(event: events.Event) -> None:
        of_batch_0 = wire.hellos[0]
        token, _ = frames.parse_hello(of_batch_0)
        fired(token != frames.parse_hello(wire.hellos[-1])[0], "batch 1 has the token of batch 0")
        dice = random.Random(event.ids["base_sequence"])
        noise = [
            of_batch_0,
            frames.hello_frame(bytes(len(token)), event.ids["task"]),
            b"GET / HTTP/1.1\r\nHost: driver\r\n\r\n",
            frames.frame(frames.Op.FINISH) + of_batch_0,
            *(dice.randbytes(dice.randrange(1, 500)) for _ in range(20)),
        ]
        answers.extend(said(wire.port, data) for data in noise)

    leases_of_batch_0 = 6  # two tasks, three partitions
    at_step(events.LEASE, "started", shout, nth=leases_of_batch_0 + 2)
    any_pipeline.run(sequencer_host=THERE, sequencer_port=wire.port, driver_records=0)
    assert set(answers) == {b""}
    assert [len(epochs_of(steps, batch)) for batch in (0, 1)] == [1, 1]
    any_pipeline.assert_exactly_once(ledger_records=2)
    assert len(any_pipeline.appended()) == 2 * BATCH


@pytest.mark.fault("sequencer-unreachable")
@pytest.mark.parametrize("silent", [False, True])
def test_a_sequencer_that_tasks_cannot_reach_is_a_named_stop(
    any_pipeline: Pipeline, cable: Any, silent: bool
):
    """Nobody listens where the tasks were sent, or something that never answers."""
    any_pipeline.feed(BATCH)
    options = {"socket.connection.setup.timeout.max.ms": 1_000}
    port = cable(silent=True).port if silent else free_ports(1)[0]
    where = {"sequencer_host": THERE, "sequencer_port": port}
    error = any_pipeline.refused(**where, options=options, batch_attempts=2)
    assert type(error) is SequencerUnreachable
    for word in (f"{THERE}:{port}", "sequencer_host", "sequencer_port"):
        assert word in str(error)
    assert any_pipeline.appended() == []
    any_pipeline.run()
    any_pipeline.assert_exactly_once(ledger_records=1)


@pytest.mark.fault("stage-retried", "speculative-copy")
def test_a_stage_that_is_retried_while_a_task_of_it_still_sends(
    any_pipeline: Pipeline, at_step: Any, steps: list[events.Event], poisoned: Callable[[], str]
):
    """Spark really runs two attempts of one task at once, as it does with a speculative copy.

    The shuffle's files are lost when the first task has its lease, so that the next one cannot
    fetch its rows. Spark makes the files again and starts the stage again, with a second attempt
    of the first task, which still holds on.
    """
    any_pipeline.feed(2 * BATCH)

    def lose_the_shuffle(_: events.Event) -> None:
        fired(delete_shuffle_files(any_pipeline), "there was no shuffle")
        poisoned()

    at_step(events.LEASE, "started", lose_the_shuffle)
    any_pipeline.run(each_task_a_partition, driver_records=0)
    why = poisoned()
    assert "may have sent" in why
    # Within one try of a stage, the attempts of a task are numbered: a second number 0 belongs to
    # another try.
    fired(
        re.search(r"attempt 0 \(id \d+\) came although task \d+ attempt 0 ", why),
        f"not a stage's retry: {why}",
    )
    first, second = epochs_of(steps, 0)
    assert second > first
    any_pipeline.assert_exactly_once(ledger_records=2)
    assert any_pipeline.ledger()[0]["attempt"][1] == second


def each_task_a_partition(rows: DataFrame) -> DataFrame:
    """A copy behind a shuffle: three tasks, each of which writes to one partition of its own."""
    value = F.concat_ws(":", F.col("partition"), F.col("offset"), F.col("value").cast("string"))
    return rows.repartition(3).select(
        "key", value.alias("value"), F.spark_partition_id().alias("partition")
    )


def delete_shuffle_files(pipeline: Pipeline) -> int:
    """Of the one batch that runs; returns how many there were."""
    folder = Path(pipeline.spark.conf.get("spark.local.dir"))
    found = list(folder.glob("blockmgr-*/*/shuffle_*"))
    for file in found:
        file.unlink()
    return len(found)
