"""A sink object over its runs: closed in between, failed, started again, and called by a run that
was replaced.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import shlex
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from weakref import WeakValueDictionary

import pytest
import typer
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql import Row
from typer.testing import CliRunner

from onceward import surroundings
from onceward.cli.shared import LedgerOptions, names_a_ledger
from onceward.engine.calls import foreach_batch, journal, runs
from onceward.engine.calls.foreach_batch import ForeachBatchSink
from onceward.engine.calls.journal import Journal
from onceward.engine.ledger.chain import Ledger
from onceward.engine.ledger.record import LedgerRecord, Output, RecordState
from onceward.engine.policy import SinkPolicy
from onceward.engine.target import Write
from onceward.errors import (
    ROWS_REFUSED,
    AuthenticationFailed,
    BatchChanged,
    BatchFailed,
    BatchNotWritten,
    CheckpointUnreachable,
    Fenced,
    InvalidColumn,
    LedgerBehind,
    LedgerOutdated,
    LedgerUndecided,
    OncewardError,
    PartitionsAdded,
    SendFailed,
    SourceDataLost,
    StateOfFailedAttempt,
    TableMissing,
    UnsupportedQuery,
)
from onceward.files.ledger import FolderLedger
from onceward.ids import AttemptId, BatchId, PipelineId
from onceward.kafka.ledger.chain import KafkaLedger
from onceward.libraries import readable_file
from onceward.spark.batch import job
from onceward.spark.batch.checkpoint_files import PLAN_ANEW
from onceward.spark.batch.job import JobInterrupted
from onceward.sql.ledger.database_ledger import DatabaseLedger
from support.errors import raises


class Frame(str):
    """``run/query``: a frame knows where it belongs."""

    sparkSession = None  # noqa: N815 — Spark's name


class Running:
    computes_once = stateful = False

    def __init__(self, run_id: str, batch_id: int) -> None:
        self.run_id = run_id
        self.batch = BatchId(run_id.split("/")[-1], batch_id)


class Target:
    def __init__(self) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True


policies: list[SinkPolicy] = []


class Batches:
    """Stands where the nine steps are: this is about who is called, not about what they do."""

    error: Exception | None = None

    replays = False

    def __init__(
        self,
        target: Target,
        policy: SinkPolicy,
        failed: BatchId | None,
        failures: Journal | None,
        known: LedgerRecord | None,
    ) -> None:
        self.known = known
        self.target = target
        self.failures = failures
        self.policy = policy
        policies.append(policy)
        self.failed = failed

    def process(self, writes: Any, running: Running) -> None:
        assert not self.target.closed
        if self.error is not None:
            raise self.error

    def is_replay(self, running: Running) -> bool:
        return self.replays

    def log_end(self) -> None:
        pass


HERE = FolderLedger("/mnt/the ledger").where


class Sink(ForeachBatchSink):
    def __init__(
        self, settings: str = "alike", attempts: int = 1, resume: Any = "checkpoint"
    ) -> None:
        policy = SinkPolicy(PipelineId("p"), resume=resume, batch_attempts=attempts)
        super().__init__(policy, ledger=HERE, settings=settings)
        self.targets: list[Target] = []

    def _new_target(self, policy: SinkPolicy) -> Any:
        self.targets.append(Target())
        return self.targets[-1]


class Query:
    """What ``error_of`` asks a query."""

    def __init__(self, run_id: str, *, failed: bool) -> None:
        self.runId = run_id
        self._failed = failed

    def exception(self) -> Exception | None:
        return RuntimeError("foreachBatch failed") if self._failed else None


ended: set[str] = set()
stopped: set[str] = set()


class Files:
    """What lies beside the checkpoint."""

    def __init__(self) -> None:
        self.away = False
        self.calls = 0
        self.written: dict[str, str] = {}

    def read(self) -> dict[str, str]:
        self.calls += 1
        return {}

    def write(self, name: str, text: str) -> None:
        self.calls += 1
        if self.away:
            raise CheckpointUnreachable("the file system is away")
        self.written[name] = text

    def remove(self, name: str) -> None:
        self.calls += 1
        self.written.pop(name, None)


files = Files()


@pytest.fixture
def sink(monkeypatch: pytest.MonkeyPatch) -> Iterator[Sink]:
    monkeypatch.setattr(runs, "MicroBatches", Batches)
    monkeypatch.setattr(foreach_batch, "running_batch", Running)
    monkeypatch.setattr(foreach_batch, "current_run_id", lambda frame: frame)
    monkeypatch.setattr(runs, "is_running", lambda frame, query_id: query_id != "ended")
    monkeypatch.setattr(
        runs, "run_is_active", lambda session, query_id, run_id: run_id not in ended
    )
    monkeypatch.setattr(foreach_batch, "is_being_stopped", lambda frame: frame in stopped)
    # A wrong number is over a thousand: Spark knows the right one.
    monkeypatch.setattr(journal, "failed_call", lambda frame, number: (number % 1000, False))
    monkeypatch.setattr(journal, "checkpoint_files", lambda frame, pipeline: files)
    monkeypatch.setattr(journal, "fingerprint", hash)
    monkeypatch.setattr(journal, "_WRITE_AGAIN_SECONDS", (0.0, 0.0))
    monkeypatch.setattr(runs, "_LOOK_SECONDS", 0.01)
    files.__init__()  # type: ignore[misc]
    runs._open.clear()  # tests call their runs by the same names
    runs._memories.clear()
    runs._chains.clear()
    runs._known.clear()
    ended.clear()
    stopped.clear()
    sink = Sink()
    yield sink
    sink.close()


def call(sink: Sink, run: str, batch_id: int) -> None:
    sink(Frame(run), batch_id)  # type: ignore[arg-type]


def fail(sink: Sink, run: str, batch_id: int, error: Exception) -> None:
    """Call the sink for a batch that ends with ``error``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Batches, "error", error)
        with pytest.raises(type(error)):
            call(sink, run, batch_id)


def test_one_target_serves_all_batches_of_a_run(sink: Any) -> None:
    call(sink, "run-1/q", 0)
    call(sink, "run-1/q", 1)
    assert len(sink.targets) == 1


def test_a_sink_that_was_closed_in_between_opens_again(sink: Any) -> None:
    call(sink, "run-1/q", 0)
    sink.close()
    call(sink, "run-1/q", 1)
    call(sink, "run-1/q", 2)
    assert [target.closed for target in sink.targets] == [True, False]


def test_a_new_run_takes_the_sink_over_and_the_old_one_is_fenced(sink: Any) -> None:
    call(sink, "run-1/q", 0)
    call(sink, "run-2/q", 1)
    assert [target.closed for target in sink.targets] == [True, False]
    with raises(Fenced, "run-1"):
        call(sink, "run-1/q", 1)
    call(sink, "run-2/q", 2)


def test_another_query_is_refused_while_the_first_one_runs_and_does_not_disturb_it(
    sink: Any,
) -> None:
    call(sink, "run-1/q", 0)
    with raises(UnsupportedQuery):
        call(sink, "run-2/other", 0)
    call(sink, "run-1/q", 1)
    assert [target.closed for target in sink.targets] == [False]


def test_another_query_may_have_the_sink_of_one_that_has_ended(sink: Any) -> None:
    call(sink, "run-1/ended", 0)
    call(sink, "run-2/other", 0)
    assert [target.closed for target in sink.targets] == [True, False]


def test_a_failure_gives_everything_back_and_is_remembered(
    sink: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Batches, "error", SendFailed("lost"))
    with pytest.raises(SendFailed):
        call(sink, "run-9", 0)
    assert sink.targets[0].closed
    assert isinstance(foreach_batch.error_of(Query("run-9", failed=True)), SendFailed)
    assert foreach_batch.error_of(Query("run-9", failed=False)) is None, (
        "the function kept it to itself"
    )
    assert list(files.written) == ["0.failed"]
    assert foreach_batch.error_of(Query("another", failed=True)) is None


def test_a_sink_built_anew_goes_on_for_the_first(sink: Any) -> None:
    call(sink, "run-1/q", 0)
    anew = Sink()
    call(anew, "run-1/q", 1)
    call(sink, "run-1/q", 2)
    assert (len(sink.targets), anew.targets) == (1, [])
    assert not sink.targets[0].closed


def test_the_next_start_may_build_the_sink_with_another_password(sink: Any) -> None:
    """As under ``ow.supervise``, whose function builds it."""
    fail(sink, "run-1/q", 1, AuthenticationFailed("the password was changed"))
    ended.add("run-1/q")
    anew = Sink("another password")
    call(anew, "run-2/q", 1)
    call(anew, "run-2/q", 2)
    assert (len(sink.targets), len(anew.targets)) == (1, 1)
    assert (sink.targets[0].closed, anew.targets[0].closed) == (True, False)
    anew.close()


def test_two_unlike_sinks_of_one_pipeline_are_refused(sink: Any) -> None:
    call(sink, "run-1/q", 0)
    with raises(UnsupportedQuery):
        call(Sink("unlike"), "run-1/q", 1)
    call(sink, "run-1/q", 1)
    assert len(sink.targets) == 1


def test_a_sink_is_closed_when_its_query_ends(sink: Any) -> None:
    call(sink, "run-1/q", 0)
    assert not sink.targets[0].closed
    ended.add("run-1/q")
    deadline = time.monotonic() + 60
    while not sink.targets[0].closed:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_second_try_knows_what_failed(sink: Any) -> None:
    fail(sink, "run-1/q", 3, SendFailed("lost"))
    call(sink, "run-1/q", 3)
    assert runs.find(runs.RunKey("run-1/q", (HERE, "p")), "alike").batches.failed == BatchId(
        "q", 3
    )  # type: ignore[union-attr,attr-defined]


def test_what_is_written_outside_the_block_is_refused(sink: Any) -> None:
    batch = sink.batch(Frame("run-1/q"), 0)
    with raises(UnsupportedQuery):
        batch.write(Frame("run-1/q"))
    assert list(files.written) == ["0.refused"], "the function may keep it to itself"
    again = sink.batch(Frame("run-1/q"), 1)
    with again:
        pass
    with raises(UnsupportedQuery):
        again.write(Frame("run-1/q"))


@pytest.mark.parametrize("refusal", [InvalidColumn("no column value"), OSError("Spark's own")])
def test_a_frame_that_was_refused_is_not_left_out(
    sink: Any, monkeypatch: pytest.MonkeyPatch, refusal: Exception
) -> None:
    """Not though the function goes on with the other frames of the block."""

    def checked(self: Sink, frame: Frame, where: str | None) -> Write:
        if frame == "bad":
            raise refusal
        return Write(frame, where)  # type: ignore[arg-type]

    monkeypatch.setattr(Sink, "_checked", checked)

    def write() -> None:
        with sink.batch(Frame("run-1/q"), 0) as batch:
            batch.write(Frame("good"))
            with contextlib.suppress(InvalidColumn, OSError):
                batch.write(Frame("bad"))
            batch.write(Frame("good"))

    with pytest.raises(type(refusal)):
        write()
    assert sink.targets == []
    assert list(files.written) == ["0.failed"]


@pytest.mark.parametrize("error", [SendFailed("lost"), InvalidColumn("no value")])
def test_other_frames_do_not_stand_in_for_those_that_failed(
    sink: Any, monkeypatch: pytest.MonkeyPatch, error: OncewardError
) -> None:
    def call_with(*frames: str) -> None:
        with sink.batch(Frame("run-parts/q"), 3) as batch:
            for frame in frames:
                batch.write(Frame(frame))

    monkeypatch.setattr(Batches, "error", error)
    with pytest.raises(type(error)):
        call_with("left")
    monkeypatch.setattr(Batches, "error", None)
    with raises(UnsupportedQuery):
        call_with("right")
    assert list(files.written) == ["3.failed", "3.refused"]
    with raises(UnsupportedQuery):
        call_with("left")  # which of the two it lacks is no longer known


def test_an_error_of_sparks_own_is_a_failed_call_too(sink: Any) -> None:
    """A function of the user's in the frame has raised, say."""
    fail(sink, "run-raw/q", 3, ZeroDivisionError("in a UDF"))
    with raises(UnsupportedQuery), sink.batch(Frame("run-raw/q"), 3) as batch:
        batch.write(Frame("another"))


def test_what_cannot_be_written_down_is_written_with_the_next_call(
    sink: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Batches, "error", SendFailed("lost"))
    files.away = True
    with pytest.raises(SendFailed):
        call(sink, "run-away/q", 3)
    assert files.calls == 3
    assert "no file could be left" in caplog.text
    files.away = False
    monkeypatch.setattr(Batches, "error", BatchNotWritten("the run is poisoned"))
    with pytest.raises(BatchNotWritten):
        call(sink, "run-away/q", 4)
    assert list(files.written) == ["3.failed"]


def test_one_batch_that_failed_is_one_file(sink: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Later batches are refused for it, and leave none."""
    monkeypatch.setattr(Batches, "error", SendFailed("lost"))
    for _ in range(3):
        with pytest.raises(SendFailed):
            call(sink, "run-one-file/q", 3)
    monkeypatch.setattr(Batches, "error", BatchNotWritten("the run is poisoned"))
    for number in (4, 5):
        with pytest.raises(BatchNotWritten):
            call(sink, "run-one-file/q", number)
    assert list(files.written) == ["3.failed"]
    assert json.loads(files.written["3.failed"]) == {
        "error": "SendFailed: lost",
        "run_id": "run-one-file/q",
    }


def test_nothing_is_asked_of_the_file_system_for_batches_that_go_well(sink: Any) -> None:
    for number in range(5):
        call(sink, "run-well/q", number)
    assert files.calls == 0, "the nine steps look once, when they begin"


def test_a_failed_replay_is_told_from_a_failed_batch(
    sink: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Batches, "error", SendFailed("lost"))
    monkeypatch.setattr(Batches, "replays", True)
    with pytest.raises(SendFailed):
        call(sink, "run-replay/q", 3)
    assert list(files.written) == ["3.replay"]


def test_a_batch_that_is_given_up_is_one_paragraph_in_the_log(
    sink: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Batches, "error", SendFailed("lost\non the way", next_step="see to it"))
    with pytest.raises(SendFailed):
        call(sink, "run-paragraph/q", 3)
    (record,) = [record for record in caplog.records if record.levelname in ("ERROR", "WARNING")]
    assert (
        record.getMessage()
        == "p: batch 3 is not written: SendFailed: lost on the way. Next: see to it. (onceward "
        "status --pipeline-id p --ledger-path '/mnt/the ledger')"
    )
    assert record.exc_info is None


@pytest.mark.parametrize(
    "met",
    [
        RuntimeError("of a thread that is interrupted"),
        CheckpointUnreachable("a file, say"),
        SendFailed("lost"),
    ],
)
def test_a_batch_that_somebody_stops_is_no_error(
    sink: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, met: Exception
) -> None:
    monkeypatch.setattr(Batches, "error", met)
    stopped.add("run-stopped/q")
    with raises(JobInterrupted) as ended:
        call(sink, "run-stopped/q", 3)
    assert len(str(ended.value)) < 300, "Spark's expression for it takes stack for each character"
    (record,) = [record for record in caplog.records if record.levelname in ("ERROR", "WARNING")]
    assert (
        record.getMessage()
        == "p: stopped in batch 3. Next: start the query again, which settles it first."
    )


def test_a_takeover_is_told_also_while_somebody_stops_the_query(
    sink: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Batches, "error", Fenced("somebody newer"))
    stopped.add("run-fenced/q")
    with pytest.raises(Fenced):
        call(sink, "run-fenced/q", 3)


def test_a_failed_attempt_whose_state_spark_would_commit_is_not_tried_again_by_the_function(
    sink: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def once(frame: Any, number: int) -> Running:
        running = Running(frame, number)
        running.computes_once = True
        return running

    monkeypatch.setattr(foreach_batch, "running_batch", once)
    call(sink, "run-state/q", 2)
    fail(sink, "run-state/q", 3, SendFailed("lost"))
    with raises(StateOfFailedAttempt):
        call(sink, "run-state/q", 3)
    call(sink, "run-state-started-anew/q", 3)
    monkeypatch.setattr(Batches, "error", LedgerOutdated("read from a deposed leader"))
    with raises(StateOfFailedAttempt):
        call(Sink(attempts=3), "run-state-outdated/q", 4)


@pytest.mark.parametrize("batch", [Frame("run-class/q"), Row(value=b"x")])
def test_the_class_in_the_place_of_a_sink_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, batch: Any
) -> None:
    monkeypatch.setattr(foreach_batch, "DataFrame", Frame)
    monkeypatch.setattr(foreach_batch, "current_run_id", lambda frame: frame)
    with raises(UnsupportedQuery) as refused:
        Sink(batch, 0)
    assert "foreachBatch(Sink(…))" in refused.value.next_step
    if isinstance(batch, Frame):
        assert foreach_batch.error_of(Query("run-class/q", failed=True)) is refused.value


@pytest.mark.parametrize(
    "given", [(Frame("run-n/q"),), (Frame("run-n/q"), "0"), (0, Frame("run-n/q"))], ids=str
)
def test_a_call_without_the_number_of_the_batch_is_refused_by_name(
    sink: Any, monkeypatch: pytest.MonkeyPatch, given: Any
) -> None:
    monkeypatch.setattr(foreach_batch, "DataFrame", Frame)
    with raises(UnsupportedQuery, "batch_id=") as refused:
        sink(*given)
    assert "sink(frame, batch_id)" in refused.value.next_step
    assert foreach_batch.error_of(Query("run-n/q", failed=True)) is refused.value


def test_a_sink_that_is_handed_to_foreach_is_refused_by_name() -> None:
    """Spark pickles the function at once, in the driver, and passes on what is a
    ``PickleError``.
    """
    with raises(UnsupportedQuery, "writeStream.foreach,") as refused:
        CloudPickleSerializer().dumps(Sink())
    assert "foreachBatch(Sink(…))" in refused.value.next_step
    with raises(UnsupportedQuery, "not to foreach,"):
        Sink()(Row(value=b"x"))  # type: ignore[arg-type]


def test_a_block_that_spark_itself_asks_for_is_refused_by_name(
    sink: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``foreachBatch(sink.batch)``: Spark takes a batch whose block nobody begins for done."""
    called_by_spark = eval("lambda make, frame: make(frame, 0)", {"__name__": "pyspark.sql.utils"})  # noqa: S307
    with raises(UnsupportedQuery):
        called_by_spark(sink.batch, Frame("run-block/q"))


def test_that_spark_cannot_be_asked_ends_no_run(sink: Any) -> None:
    """Out of file descriptors, py4j opens no connection: that is no answer."""
    call(sink, "run-asked/q", 0)
    (run,) = (run for key, run in runs._open.items() if key.run_id == "run-asked/q")
    asked = threading.Event()

    def flaky() -> bool:
        if asked.is_set():
            again.set()
            return True
        asked.set()
        raise OSError(24, "Too many open files")

    again = threading.Event()
    run.is_running = flaky
    assert again.wait(60), "the look-out has died of it"
    assert not sink.targets[0].closed
    call(sink, "run-asked/q", 1)
    assert len(sink.targets) == 1


def test_a_sink_that_cannot_be_closed_keeps_no_other_open(
    sink: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Sink()
    other._where = "there"
    call(sink, "run-unclosed/q", 0)
    other_run = "run-other/q"
    call(other, other_run, 0)

    def close() -> None:
        raise RuntimeError("half closed")

    monkeypatch.setattr(sink.targets[0], "close", close)
    ended.update(("run-unclosed/q", other_run))
    deadline = time.monotonic() + 60
    while not other.targets[0].closed:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_first_error_is_the_one_to_hear_of(sink: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Batches, "error", SendFailed("lost"))

    def gone(frame: str) -> str:
        raise OSError("the JVM is gone")

    monkeypatch.setattr(foreach_batch, "current_run_id", gone)
    with pytest.raises(SendFailed):
        call(sink, "run-gone/q", 3)


def test_what_was_written_is_not_tried_again(sink: Any) -> None:
    """Not under the name of a failed try either, when the sink was closed in between and opens
    again.
    """
    call(sink, "run-1/q", 3)
    sink.close()
    with raises(UnsupportedQuery, batch_id=3):
        call(sink, "run-1/q", 3)


def test_who_was_fenced_does_not_take_the_pipeline_back(sink: Any) -> None:
    fail(sink, "run-fenced/q", 3, Fenced("a newer copy has taken over"))
    for number in (3, 4):
        with raises(Fenced):
            call(sink, "run-fenced/q", number)
    assert len(sink.targets) == 1
    call(sink, "run-of-another-start/q", 3)


def test_a_takeover_that_the_function_kept_to_itself_is_what_ends_the_query(
    sink: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another error in its place would have ow.supervise start the query, and fence the newer."""
    lost = Fenced("a newer copy has taken over")
    fail(sink, "run-kept/q", 3, lost)

    def away(*_: Any) -> None:
        raise SendFailed("a registry is away")

    with monkeypatch.context() as patch:
        patch.setattr(foreach_batch.decoding, "find_steps", away)
        with pytest.raises(SendFailed):
            call(sink, "run-kept/q", 4)
    assert runs.error_in("run-kept/q") is lost


def test_one_pipeline_has_one_home_in_a_run(sink: Any) -> None:
    """Files beside the checkpoint have the pipeline's name, and one cluster's would be taken for
    the other's.
    """
    call(sink, "run-homes/q", 0)
    elsewhere = Sink()
    elsewhere._where = "there"
    for number in (0, 1):
        with raises(UnsupportedQuery):
            call(elsewhere, "run-homes/q", number)
    call(sink, "run-homes/q", 1)
    elsewhere.close()


def leave_a_block_by(error: type[Exception], sink: Any, run: str, number: int) -> None:
    def write() -> None:
        with sink.batch(Frame(run), number) as batch:
            batch.write(Frame(run))
            raise error

    with pytest.raises(error):
        write()


def test_a_block_left_by_an_error_writes_nothing(sink: Any) -> None:
    leave_a_block_by(ZeroDivisionError, sink, "run-1/q", 0)
    assert sink.targets == []
    assert list(files.written) == ["0.failed"]


def known_record(chunks: int) -> LedgerRecord:
    outputs = {"out": Output("write_ahead", 1, 9, {"delivered": chunks})}
    return LedgerRecord(
        PipelineId("p"), 0, BatchId("q", 0), (), AttemptId(1, 1), outputs, 0, RecordState.DECIDED
    )


@pytest.mark.parametrize(("outdated", "opened"), [(1, 2), (2, 3)])
def test_an_outdated_ledger_makes_it_begin_anew(
    sink: Sink, monkeypatch: pytest.MonkeyPatch, outdated: int, opened: int
) -> None:
    seen: list[BatchId | None] = []
    known: list[Any] = []

    def process(self: Batches, writes: Any, running: Running) -> None:
        seen.append(self.failed)
        known.append(self.known)
        if len(seen) <= outdated:
            error = LedgerOutdated("read from a deposed leader", next_step="start the query again")
            error.known = known_record(len(seen))
            raise error

    monkeypatch.setattr(Batches, "process", process)
    patient = Sink(attempts=3)
    call(patient, f"run-{outdated}-of-its-own/q", 4)
    assert [target.closed for target in patient.targets] == [True] * (opened - 1) + [False]
    assert seen == [None] + [BatchId("q", 4)] * outdated, (
        "it may be committed by the very run that offers it again"
    )
    assert known == [None, known_record(1), known_record(2)][: outdated + 1]
    patient.close()
    seen.clear()
    with pytest.raises(LedgerOutdated):
        call(sink, "run-2/q", 4)


@pytest.mark.parametrize("computes_once", [False, True], ids=["one attempt", "computes once"])
def test_what_a_run_knew_of_its_ledger_is_kept_for_the_next_run(
    sink: Sink, monkeypatch: pytest.MonkeyPatch, computes_once: bool
) -> None:
    """A supervisor starts it in this process. Once it was named, whoever restored goes on."""
    monkeypatch.setattr(Running, "computes_once", computes_once)
    outdated = LedgerOutdated("put back", next_step="nothing")
    outdated.known = known_record(3)
    known: list[Any] = []
    ends = [outdated, LedgerBehind("put back", next_step="restore it"), None, None]

    def process(self: Batches, writes: Any, running: Running) -> None:
        known.append(self.known)
        if (error := ends.pop(0)) is not None:
            raise error

    monkeypatch.setattr(Batches, "process", process)
    patient = Sink(attempts=3 if computes_once else 1)
    for run in range(3):
        with contextlib.suppress(OncewardError):
            call(patient, f"run-{run}/q", 4)
    assert known == [None, known_record(3), None]


@pytest.mark.parametrize("failed_before", [False, True])
def test_a_refused_second_call_is_no_failed_try(
    sink: Any, monkeypatch: pytest.MonkeyPatch, failed_before: bool
) -> None:
    place = runs.RunKey("run-1/q", (HERE, "p"))
    if failed_before:
        fail(sink, "run-1/q", 3, SendFailed("lost"))
    call(sink, "run-1/q", 3)
    monkeypatch.setattr(Batches, "error", UnsupportedQuery("twice"))
    with pytest.raises(UnsupportedQuery):
        call(sink, "run-1/q", 3)
    assert runs.memory(place).closed_at is None


def test_rows_that_a_committed_batch_lacks_are_kept_as_refused(
    sink: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the later call for it met; a batch that failed altogether lacks nothing once it is
    written.
    """
    call(sink, "run-lacking/q", 3)
    with raises(UnsupportedQuery, batch_id=3):
        call(sink, "run-lacking/q", 3)
    with pytest.raises(ZeroDivisionError), sink.batch(Frame("run-lacking/q"), 3):
        raise ZeroDivisionError
    monkeypatch.setattr(Batches, "error", SendFailed("lost"))
    with pytest.raises(SendFailed):
        call(sink, "run-lacking/q", 4)
    assert list(files.written) == ["3.refused", "4.failed"]


def refused_for_good(kind: type[OncewardError]) -> OncewardError:
    return kind("rows are left behind", details={ROWS_REFUSED: True})


def test_a_call_that_no_second_try_can_mend_is_kept_as_refused(
    sink: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the other sink commits the batch, or in a run that has not committed it."""
    for error in (refused_for_good(UnsupportedQuery), refused_for_good(BatchChanged)):
        monkeypatch.setattr(Batches, "error", error)
        with pytest.raises(type(error)):
            call(sink, "run-unlike/q", 3)
    assert list(files.written) == ["3.refused"]


def test_a_look_out_that_died_is_replaced(sink: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    dead = threading.Thread(target=lambda: None)
    dead.start()
    dead.join()
    monkeypatch.setattr(runs, "_closer", dead)
    test_a_sink_is_closed_when_its_query_ends(sink)


@pytest.mark.parametrize("bad_first", [False, True])
def test_a_wrong_batch_number_hides_no_refused_frame(
    sink: Any, monkeypatch: pytest.MonkeyPatch, bad_first: bool
) -> None:
    def refuse() -> None:
        with pytest.raises(InvalidColumn), sink.batch(Frame("run-number/q"), 5003):
            raise InvalidColumn("no column value")

    if bad_first:
        refuse()
        with raises(UnsupportedQuery):
            call(sink, "run-number/q", 3)
    else:
        call(sink, "run-number/q", 3)
        refuse()
    assert "3.refused" in files.written


def test_blocks_of_one_batch_do_not_nest(sink: Any) -> None:
    batch = sink.batch(Frame("run-nested/q"), 3)

    def nested() -> None:
        with batch:
            batch.write(Frame("run-nested/q"))
            with contextlib.suppress(UnsupportedQuery), batch:
                raise AssertionError("never begun")

    with raises(UnsupportedQuery):
        nested()
    assert sink.targets == []


def test_an_error_without_a_length_is_an_error(sink: Any) -> None:
    class Empty(Exception):
        def __len__(self) -> int:
            return 0

    leave_a_block_by(Empty, sink, "run-empty/q", 3)
    assert sink.targets == []


def test_what_comes_late_is_kept_as_refused(sink: Any) -> None:
    """A call for a batch before the newest that was committed."""
    for number in (3, 4):
        call(sink, "run-late/q", number)
    with pytest.raises(ZeroDivisionError), sink.batch(Frame("run-late/q"), 3):
        raise ZeroDivisionError
    assert list(files.written) == ["3.refused"]


@pytest.mark.parametrize("resume", ["adopt", "write_missing", "skip_missing"])
def test_what_was_allowed_for_one_start_is_over_when_a_batch_is_committed(
    sink: Any, resume: Any
) -> None:
    """A supervisor starts the query again with the same sink: what is lost then, nobody has looked
    at.
    """
    patient = Sink(resume=resume)
    fail(patient, f"run-one-{resume}/q", 0, SendFailed("lost"))
    call(patient, f"run-two-{resume}/q", 0)
    assert [policy.resume for policy in policies[-2:]] == [resume, resume]
    patient.close()
    call(patient, f"run-two-{resume}/q", 1)
    assert policies[-1].resume == resume, "the same start still"
    call(patient, f"run-three-{resume}/q", 2)
    assert policies[-1].resume == "checkpoint"


def test_a_late_error_of_an_earlier_batch_lets_no_other_frames_in(
    sink: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Batches, "error", SendFailed("lost"))
    with pytest.raises(SendFailed), sink.batch(Frame("run-late-error/q"), 4) as batch:
        batch.write(Frame("run-late-error/q"))
    with pytest.raises(InvalidColumn), sink.batch(Frame("run-late-error/q"), 3):
        raise InvalidColumn("of batch 3, in a thread")
    monkeypatch.setattr(Batches, "error", None)
    with raises(UnsupportedQuery), sink.batch(Frame("run-late-error/q"), 4):
        pass


def test_of_several_errors_the_one_that_weighs_most_is_told() -> None:
    """Another sink's error must not hide that a newer copy has taken over, or ow.supervise would
    start this one.
    """
    met = [Fenced("a newer copy"), InvalidColumn("no value"), SendFailed("lost")]
    for number, error in enumerate(met):
        runs.memory(runs.RunKey("run-several", number)).error = error
    assert runs.error_in("run-several") is met[0]
    runs.memory(runs.RunKey("run-several", 0)).error = None
    assert runs.error_in("run-several") is met[1]


@pytest.mark.parametrize("number", [0, -1])
def test_a_query_whose_call_is_refused_before_its_sink_is_open_has_failed(
    sink: Any, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """A job that only asks whether it is active must not end as if all were well."""
    error = SimpleNamespace(getMessage=lambda: "by foreachBatch")
    told = SimpleNamespace(isDefined=lambda: True, get=lambda: error)
    query_id = SimpleNamespace(toString=lambda: "q")
    query = SimpleNamespace(id=lambda: query_id, exception=lambda: told)
    for module in (runs, job):
        monkeypatch.setattr(module, "query_by_id", lambda frame: query)
    monkeypatch.setattr(job, "thrown_from", lambda error: [])
    monkeypatch.setattr(runs, "_last", OrderedDict())
    monkeypatch.setattr(foreach_batch, "DataFrame", Frame)

    def refuse(frame: Any, batch_id: int) -> Any:
        raise UnsupportedQuery("speculation is on", next_step="switch it off")

    monkeypatch.setattr(foreach_batch, "running_batch", refuse)
    with pytest.raises(UnsupportedQuery) as refused:
        call(sink, "run-refused/q", number)
    assert runs.failed_at_last() is refused.value
    told.isDefined = lambda: False
    assert runs.failed_at_last() is None, "it goes on, or was stopped"


@pytest.mark.parametrize(("fails", "left"), [(1, True), (2, True), (3, False)])
def test_a_file_that_cannot_be_written_for_a_moment_is_written(
    sink: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    fails: int,
    left: bool,
) -> None:
    """The function may keep the error to itself, and end: nothing else tells of the batch then."""
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        files.away = len(pauses) < fails

    monkeypatch.setattr(surroundings, "sleep", sleep)
    monkeypatch.setattr(Batches, "error", SendFailed("lost"))
    files.away = True
    with pytest.raises(SendFailed):
        call(sink, "run-moment/q", 4)
    assert len(pauses) == min(fails, 2)
    assert list(files.written) == (["4.failed"] if left else [])
    assert ("has left this batch out" in caplog.text) is not left


@pytest.mark.parametrize(
    ("ledger", "options"),
    [
        (FolderLedger("/mnt/the ledger"), {"ledger_path": Path("/mnt/the ledger")}),
        (KafkaLedger("b:9092"), {}),
        (KafkaLedger("b:9092", topic="audit"), {"ledger_topic": "audit"}),
        (
            DatabaseLedger("postgresql://me:s%40crt@h/db?password=s%40crt&sslmode=require"),
            {"ledger_url": "postgresql://me@h/db?sslmode=require"},
        ),
        # libpq takes these characters as they are
        (
            DatabaseLedger("postgresql://me:s[#?℀@h:1,i:2/d%20b"),
            {"ledger_url": "postgresql://me@h:1,i:2/d%20b"},
        ),
        (
            DatabaseLedger("postgresql://[::1]:1/db?pass%77ord=secret"),
            {"ledger_url": "postgresql://[::1]:1/db"},
        ),
        (
            DatabaseLedger("postgresql://h/db?oauth_client_secret=s&scram_client_key=c2Vj"),
            {"ledger_url": "postgresql://h/db"},
        ),
        (
            DatabaseLedger("mysql://me:secret@h:3307/db", table="a.b"),
            {"ledger_url": "mysql://me@h:3307/db", "ledger_table": "a.b"},
        ),
    ],
)
def test_a_ledger_says_by_which_options_a_command_names_it(
    ledger: Ledger, options: dict[str, Any]
) -> None:
    found: list[LedgerOptions] = []

    @names_a_ledger
    def look(*, at: LedgerOptions) -> None:
        found.append(at)

    app = typer.Typer()
    app.command()(look)
    CliRunner().invoke(app, shlex.split(ledger.where.options), catch_exceptions=False)
    assert found == [LedgerOptions(**options)]


@pytest.mark.parametrize(
    ("sequence", "state", "chunks", "worked"),
    [
        (None, None, 0, False),
        (0, RecordState.DECIDED, 0, False),  # its target may never have taken it
        (0, RecordState.DECIDED, 3, True),
        (0, RecordState.FINISHED, 0, True),
        (1, RecordState.DECIDED, 0, True),
    ],
)
def test_a_pipeline_has_worked_once_a_target_has_taken_a_batch(
    sink: Any,
    monkeypatch: pytest.MonkeyPatch,
    sequence: int | None,
    state: RecordState | None,
    chunks: int,
    worked: bool,
) -> None:
    outputs = {
        "@cache": Output("write_ahead", 1, 9, {"delivered": chunks}),
        "kafka": Output("kafka", 1, 9, []),
    }
    newest = sequence is not None and LedgerRecord(
        PipelineId("p"), sequence, BatchId("q", sequence), (), AttemptId(1, 1), outputs, 0, state
    )
    monkeypatch.setattr(Sink, "newest_record", lambda _, certain: newest or None)
    monkeypatch.setattr(Batches, "error", TableMissing("gone"))
    with pytest.raises(TableMissing) as failed:
        call(sink, "run-worked/q", 0)
    assert failed.value.worked_before is worked


UNDECIDED = LedgerUndecided("a transaction is open")
OF_THE_BATCH = LedgerRecord(PipelineId("p"), 7, BatchId("q", 3), (), AttemptId(1, 1), {}, 0)
BEFORE, BEHIND = (replace(OF_THE_BATCH, batch=BatchId("q", number)) for number in (2, 4))
ELSEWHERE = replace(OF_THE_BATCH, batch=BatchId("another", 3))


class Told(ForeachBatchSink):
    def __init__(self, number: int, read: Callable[[int], Any]) -> None:
        policy = SinkPolicy(PipelineId(f"p{number}"))
        super().__init__(policy, ledger=HERE, settings=None)
        self.read = functools.partial(read, number)

    def _new_target(self, policy: SinkPolicy) -> Any:
        return SimpleNamespace(chain=self, peek=lambda: None, close=lambda: None)


@pytest.mark.parametrize(
    ("told", "outcome"),
    [
        ([None], PLAN_ANEW),
        ([BEFORE], PLAN_ANEW),
        ([ELSEWHERE], PLAN_ANEW),
        ([OF_THE_BATCH], SourceDataLost),
        # The checkpoint was put back from an older copy
        ([BEHIND], SourceDataLost),
        ([None, BEFORE, OF_THE_BATCH], SourceDataLost),
        # A marker is yet to be written, or a ledger is away
        ([UNDECIDED], "not known (p0: a transaction is open"),
        ([ELSEWHERE, UNDECIDED], "not known (p1: a transaction is open"),
        ([BEFORE, UNDECIDED], PLAN_ANEW),
        ([OF_THE_BATCH, UNDECIDED], SourceDataLost),
    ],
)
def test_a_batch_is_planned_anew_unless_a_ledger_may_have_it(
    monkeypatch: pytest.MonkeyPatch, told: list[Any], outcome: Any
) -> None:
    monkeypatch.setattr(foreach_batch, "_living", WeakValueDictionary())
    asked: list[str] = []

    def read(number: int) -> Any:
        asked.append(f"p{number}")
        if isinstance(told[number], Exception):
            raise told[number]
        return told[number]

    # Given up for the second, and not collected yet
    sinks = [Told(number, read) for number in range(len(told)) for _ in range(2)]
    lost = SourceDataLost("offsets/3 has other topics")
    anew = PartitionsAdded("batch 3 was planned otherwise", details={PLAN_ANEW: 3})
    query: Any = SimpleNamespace(id="q")
    found = foreach_batch._unless_written(anew, query, lost)
    assert len(asked) == len(set(asked)) < len(sinks)
    if outcome is SourceDataLost:
        assert type(found) is SourceDataLost
        assert "batch 3 of query q is committed by" in found.message
    else:
        assert found is anew
        assert (PLAN_ANEW in found.details) is (outcome is PLAN_ANEW)
        assert outcome is PLAN_ANEW or outcome in found.next_step


def test_a_ledger_on_a_disk_that_hangs_holds_up_no_end_of_a_query(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(foreach_batch, "_living", WeakValueDictionary())
    monkeypatch.setattr(foreach_batch, "_ASK_MS", 0)
    monkeypatch.setattr(foreach_batch, "_LATE_S", 0.0)
    hangs = threading.Event()
    sink = Told(0, lambda _: hangs.wait(20))
    anew = PartitionsAdded("batch 3 was planned otherwise", details={PLAN_ANEW: 3})
    query: Any = SimpleNamespace(id="q")
    found = foreach_batch._unless_written(anew, query, SourceDataLost("other topics"))
    hangs.set()
    assert f"not known ({sink._policy.pipeline}: no answer" in found.next_step
    assert PLAN_ANEW not in found.details


def test_what_a_library_takes_as_a_file_needs_no_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "NamedTemporaryFile", full)
    with readable_file(b"a certificate") as path:
        assert Path(path).read_bytes() == b"a certificate"
    assert not Path(path).exists()


@pytest.mark.parametrize("where", ["in the block", "by select="])
def test_what_is_no_exception_is_one_before_it_leaves_the_sink(
    sink: Any, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Py4J's thread would end without an answer, and the query wait for ever."""

    def leave(*_: object) -> Any:
        raise SystemExit(3)

    if where == "by select=":
        monkeypatch.setattr(Sink, "_checked_writes", leave)
    with raises(BatchFailed), sink.batch(Frame("run-exit/q"), 3) as batch:
        batch.write(Frame("run-exit/q"))
        leave()
    with pytest.raises(KeyboardInterrupt), sink.batch(Frame("run-exit/q"), 3):
        raise KeyboardInterrupt
