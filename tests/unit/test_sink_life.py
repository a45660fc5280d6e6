"""A sink object over its runs: closed in between, failed, started again, and called by a run that was replaced."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from onceward import surroundings
from onceward.engine import foreach_batch, runs
from onceward.engine.foreach_batch import ForeachBatchSink
from onceward.engine.policy import SinkPolicy
from onceward.engine.target import Write
from onceward.errors import (
    ROWS_REFUSED,
    BadColumn,
    BatchChanged,
    Fenced,
    LedgerOutdated,
    OncewardError,
    SendFailed,
    UnsupportedQuery,
)
from onceward.ids import BatchId, PipelineId
from onceward.spark.handed_over import Note


class Frame(str):
    """``run/query``: a frame knows where it belongs."""

    sparkSession = None  # noqa: N815 — Spark's name


class Running:
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

    def __init__(self, target: Target, policy: SinkPolicy, failed: BatchId | None) -> None:
        self.target = target
        self.policy = policy
        policies.append(policy)
        self.failed = failed

    def process(self, writes: Any, running: Running) -> None:
        assert not self.target.closed
        if self.error is not None:
            raise self.error


class Sink(ForeachBatchSink):
    def __init__(self, settings: str = "alike", attempts: int = 1, resume: Any = "checkpoint") -> None:
        policy = SinkPolicy(PipelineId("p"), resume=resume, batch_attempts=attempts)
        super().__init__(policy, where="here", settings=settings)
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
notes: list[tuple[str, int]] = []
rows_lacking: list[bool] = []


def note(frame: str, number: int, error: BaseException) -> Note:
    """A wrong number is over a thousand: Spark knows the right one."""
    notes.append((frame, number % 1000))
    refused = isinstance(error, OncewardError) and error.details.get(ROWS_REFUSED, False)
    return Note(number % 1000, frame, str(error), refused)


class Files:
    """Where notes go."""

    def __init__(self) -> None:
        self.away = False
        self.written: list[Note] = []

    def failed(self, note: Note) -> None:
        if self.away:
            raise OSError("the file system is away")
        self.written.append(note)
        rows_lacking.append(note.lacking)


files = Files()


@pytest.fixture
def sink(monkeypatch: pytest.MonkeyPatch) -> Iterator[Sink]:
    monkeypatch.setattr(foreach_batch, "MicroBatches", Batches)
    monkeypatch.setattr(foreach_batch, "running_batch", lambda frame, batch_id, pipeline: Running(frame, batch_id))
    monkeypatch.setattr(foreach_batch, "current_run_id", lambda frame: frame)
    monkeypatch.setattr(foreach_batch, "is_running", lambda frame, query_id: query_id != "ended")
    monkeypatch.setattr(foreach_batch, "run_is_active", lambda session, query_id, run_id: run_id not in ended)
    monkeypatch.setattr(foreach_batch, "note_of_failure", note)
    monkeypatch.setattr(foreach_batch, "notes_at", lambda frame, pipeline: files)
    monkeypatch.setattr(foreach_batch, "fingerprint", hash)
    monkeypatch.setattr(runs, "_LOOK_SECONDS", 0.01)
    files.__init__()  # type: ignore[misc]
    runs._memories.clear()  # tests call their runs by the same names
    runs._homes.clear()
    ended.clear()
    notes.clear()
    rows_lacking.clear()
    sink = Sink()
    yield sink
    sink.close()


def call(sink: Sink, run: str, batch_id: int) -> None:
    sink(Frame(run), batch_id)  # type: ignore[arg-type]


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
    with pytest.raises(Fenced, match="run-1"):
        call(sink, "run-1/q", 1)
    call(sink, "run-2/q", 2)


def test_another_query_is_refused_while_the_first_one_runs_and_does_not_disturb_it(sink: Any) -> None:
    call(sink, "run-1/q", 0)
    with pytest.raises(UnsupportedQuery, match="given the sink of query q"):
        call(sink, "run-2/other", 0)
    call(sink, "run-1/q", 1)
    assert [target.closed for target in sink.targets] == [False]


def test_another_query_may_have_the_sink_of_one_that_has_ended(sink: Any) -> None:
    call(sink, "run-1/ended", 0)
    call(sink, "run-2/other", 0)
    assert [target.closed for target in sink.targets] == [True, False]


def test_a_failure_gives_everything_back_and_is_remembered(sink: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Batches, "error", SendFailed("lost"))
    with pytest.raises(SendFailed):
        call(sink, "run-9", 0)
    assert sink.targets[0].closed
    assert isinstance(foreach_batch.error_of(Query("run-9", failed=True)), SendFailed)
    assert foreach_batch.error_of(Query("run-9", failed=False)) is None, "the function kept it to itself"
    assert notes == [("run-9", 0)]
    assert foreach_batch.error_of(Query("another", failed=True)) is None


def test_a_sink_built_anew_goes_on_for_the_first(sink: Any) -> None:
    call(sink, "run-1/q", 0)
    anew = Sink()
    call(anew, "run-1/q", 1)
    call(sink, "run-1/q", 2)
    assert (len(sink.targets), anew.targets) == (1, [])
    assert not sink.targets[0].closed


def test_two_unlike_sinks_of_one_pipeline_are_refused(sink: Any) -> None:
    call(sink, "run-1/q", 0)
    with pytest.raises(UnsupportedQuery, match="different settings"):
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


def test_a_second_try_knows_what_failed(sink: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Batches, "error", SendFailed("lost"))
    with pytest.raises(SendFailed):
        call(sink, "run-1/q", 3)
    monkeypatch.setattr(Batches, "error", None)
    call(sink, "run-1/q", 3)
    assert runs.find(runs.Place("run-1/q", "here"), "alike").batches.failed == BatchId("q", 3)  # type: ignore[union-attr,attr-defined]


def test_what_is_written_outside_the_block_is_refused(sink: Any) -> None:
    batch = sink.batch(Frame("run-1/q"), 0)
    with pytest.raises(UnsupportedQuery, match="with block"):
        batch.write(Frame("run-1/q"))
    assert notes == [("run-1/q", 0)], "the function may keep it to itself"
    again = sink.batch(Frame("run-1/q"), 1)
    with again:
        pass
    with pytest.raises(UnsupportedQuery, match="with block"):
        again.write(Frame("run-1/q"))


@pytest.mark.parametrize("refusal", [BadColumn("no column value"), OSError("Spark's own")])
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
            with contextlib.suppress(BadColumn, OSError):
                batch.write(Frame("bad"))
            batch.write(Frame("good"))

    with pytest.raises(type(refusal)):
        write()
    assert sink.targets == []
    assert notes == [("run-1/q", 0)]


@pytest.mark.parametrize("error", [SendFailed("lost"), BadColumn("no value")])
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
    with pytest.raises(UnsupportedQuery, match="other frames"):
        call_with("right")
    assert rows_lacking == [False, True]
    with pytest.raises(UnsupportedQuery, match="other frames"):
        call_with("left")  # which of the two it lacks is no longer known


def test_an_error_of_sparks_own_is_a_failed_call_too(sink: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A function of the user's in the frame has raised, say."""
    monkeypatch.setattr(Batches, "error", ZeroDivisionError("in a UDF"))
    with pytest.raises(ZeroDivisionError):
        call(sink, "run-raw/q", 3)
    monkeypatch.setattr(Batches, "error", None)
    with pytest.raises(UnsupportedQuery, match="other frames"), sink.batch(Frame("run-raw/q"), 3) as batch:
        batch.write(Frame("another"))


def test_what_cannot_be_noted_is_noted_before_anything_else_is_written(
    sink: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Batches, "error", SendFailed("lost"))
    files.away = True
    for number in (3, 4):
        with pytest.raises((SendFailed, OSError)), sink.batch(Frame("run-away/q"), number):
            raise SendFailed("lost")
    monkeypatch.setattr(Batches, "error", None)
    files.away = False
    call(sink, "run-away/q", 5)
    assert [note.batch_id for note in files.written] == [3, 4]


def test_the_first_error_is_the_one_to_hear_of(sink: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Batches, "error", SendFailed("lost"))

    def gone(frame: str) -> str:
        raise OSError("the JVM is gone")

    monkeypatch.setattr(foreach_batch, "current_run_id", gone)
    with pytest.raises(SendFailed):
        call(sink, "run-gone/q", 3)


def test_what_was_written_is_not_tried_again(sink: Any) -> None:
    """Not under the name of a failed try either, when the sink was closed in between and opens again."""
    call(sink, "run-1/q", 3)
    sink.close()
    with pytest.raises(UnsupportedQuery, match="called twice"):
        call(sink, "run-1/q", 3)


def test_who_was_fenced_does_not_take_the_pipeline_back(sink: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Batches, "error", Fenced("a newer copy has taken over"))
    with pytest.raises(Fenced):
        call(sink, "run-fenced/q", 3)
    monkeypatch.setattr(Batches, "error", None)
    for number in (3, 4):
        with pytest.raises(Fenced, match="has lost pipeline"):
            call(sink, "run-fenced/q", number)
    assert len(sink.targets) == 1
    call(sink, "run-of-another-start/q", 3)


def test_one_pipeline_has_one_home_in_a_run(sink: Any) -> None:
    """Notes beside the checkpoint have the pipeline's name, and one cluster's would be taken for the other's."""
    call(sink, "run-homes/q", 0)
    elsewhere = Sink()
    elsewhere._where = "there"
    for number in (0, 1):
        with pytest.raises(UnsupportedQuery, match="different clusters"):
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
    assert notes == [("run-1/q", 0)]


@pytest.mark.parametrize(("outdated", "opened"), [(1, 2), (2, 3)])
def test_an_outdated_ledger_makes_it_begin_anew(
    sink: Sink, monkeypatch: pytest.MonkeyPatch, outdated: int, opened: int
) -> None:
    seen: list[BatchId | None] = []

    def process(self: Batches, writes: Any, running: Running) -> None:
        seen.append(self.failed)
        if len(seen) <= outdated:
            raise LedgerOutdated("read from a deposed leader", next_step="start the query again")

    monkeypatch.setattr(Batches, "process", process)
    patient = Sink(attempts=3)
    call(patient, f"run-{outdated}-of-its-own/q", 4)
    assert [target.closed for target in patient.targets] == [True] * (opened - 1) + [False]
    assert seen == [None] + [BatchId("q", 4)] * outdated, "it may be committed by the very run that offers it again"
    patient.close()
    seen.clear()
    with pytest.raises(LedgerOutdated):
        call(sink, "run-2/q", 4)


@pytest.mark.parametrize("failed_before", [False, True])
def test_a_refused_second_call_is_no_failed_try(
    sink: Any, monkeypatch: pytest.MonkeyPatch, failed_before: bool
) -> None:
    place = runs.Place("run-1/q", "here")
    if failed_before:
        monkeypatch.setattr(Batches, "error", SendFailed("lost"))
        with pytest.raises(SendFailed):
            call(sink, "run-1/q", 3)
        monkeypatch.setattr(Batches, "error", None)
    call(sink, "run-1/q", 3)
    monkeypatch.setattr(Batches, "error", UnsupportedQuery("twice"))
    with pytest.raises(UnsupportedQuery):
        call(sink, "run-1/q", 3)
    assert runs.memory(place).failed is None


def test_rows_that_a_committed_batch_lacks_are_noted_so(sink: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the later call for it met; a batch that failed altogether lacks nothing once it is written."""
    call(sink, "run-lacking/q", 3)
    with pytest.raises(UnsupportedQuery, match="called twice"):
        call(sink, "run-lacking/q", 3)
    with pytest.raises(ZeroDivisionError), sink.batch(Frame("run-lacking/q"), 3):
        raise ZeroDivisionError
    monkeypatch.setattr(Batches, "error", SendFailed("lost"))
    with pytest.raises(SendFailed):
        call(sink, "run-lacking/q", 4)
    assert rows_lacking == [True, True, False]


def refused_for_good(kind: type[OncewardError]) -> OncewardError:
    return kind("rows are left behind", details={ROWS_REFUSED: True})


def test_a_call_that_no_second_try_can_mend_is_noted_so(sink: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the other sink commits the batch, or in a run that has not committed it."""
    for error in (refused_for_good(UnsupportedQuery), refused_for_good(BatchChanged)):
        monkeypatch.setattr(Batches, "error", error)
        with pytest.raises(type(error)):
            call(sink, "run-unlike/q", 3)
    assert rows_lacking == [True, True]


def test_a_look_out_that_died_is_replaced(sink: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    dead = threading.Thread(target=lambda: None)
    dead.start()
    dead.join()
    monkeypatch.setattr(runs, "_janitor", dead)
    test_a_sink_is_closed_when_its_query_ends(sink)


@pytest.mark.parametrize("bad_first", [False, True])
def test_a_wrong_batch_number_hides_no_refused_frame(
    sink: Any, monkeypatch: pytest.MonkeyPatch, bad_first: bool
) -> None:
    def refuse() -> None:
        with pytest.raises(BadColumn), sink.batch(Frame("run-number/q"), 5003):
            raise BadColumn("no column value")

    if bad_first:
        refuse()
        with pytest.raises(UnsupportedQuery, match="other frames"):
            call(sink, "run-number/q", 3)
    else:
        call(sink, "run-number/q", 3)
        refuse()
    assert rows_lacking[-1] is True


def test_blocks_of_one_batch_do_not_nest(sink: Any) -> None:
    batch = sink.batch(Frame("run-nested/q"), 3)

    def nested() -> None:
        with batch:
            batch.write(Frame("run-nested/q"))
            with contextlib.suppress(UnsupportedQuery), batch:
                raise AssertionError("never begun")

    with pytest.raises(UnsupportedQuery, match="within another"):
        nested()
    assert sink.targets == []


def test_an_error_without_a_length_is_an_error(sink: Any) -> None:
    class Empty(Exception):
        def __len__(self) -> int:
            return 0

    leave_a_block_by(Empty, sink, "run-empty/q", 3)
    assert sink.targets == []


def test_what_comes_late_is_noted_as_lacking(sink: Any) -> None:
    """A call for a batch before the newest that was committed."""
    for number in (3, 4):
        call(sink, "run-late/q", number)
    with pytest.raises(ZeroDivisionError), sink.batch(Frame("run-late/q"), 3):
        raise ZeroDivisionError
    assert rows_lacking == [True]


@pytest.mark.parametrize("resume", ["adopt", "complete", "keep"])
def test_what_was_allowed_for_one_start_is_over_when_a_batch_is_committed(
    sink: Any, monkeypatch: pytest.MonkeyPatch, resume: Any
) -> None:
    """A supervisor starts the query again with the same sink: what is lost then, nobody has looked at."""
    patient = Sink(resume=resume)
    monkeypatch.setattr(Batches, "error", SendFailed("lost"))
    with pytest.raises(SendFailed):
        call(patient, f"run-one-{resume}/q", 0)
    monkeypatch.setattr(Batches, "error", None)
    call(patient, f"run-two-{resume}/q", 0)
    assert [policy.resume for policy in policies[-2:]] == [resume, resume]
    patient.close()
    call(patient, f"run-two-{resume}/q", 1)
    assert policies[-1].resume == resume, "the same start still"
    call(patient, f"run-three-{resume}/q", 2)
    assert policies[-1].resume == "checkpoint"


def test_a_late_error_of_an_earlier_batch_lets_no_other_frames_in(sink: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Batches, "error", SendFailed("lost"))
    with pytest.raises(SendFailed), sink.batch(Frame("run-late-error/q"), 4) as batch:
        batch.write(Frame("run-late-error/q"))
    with pytest.raises(BadColumn), sink.batch(Frame("run-late-error/q"), 3):
        raise BadColumn("of batch 3, in a thread")
    monkeypatch.setattr(Batches, "error", None)
    with pytest.raises(UnsupportedQuery, match="other frames"), sink.batch(Frame("run-late-error/q"), 4):
        pass


def test_of_several_errors_the_one_that_weighs_most_is_told() -> None:
    """Another sink's error must not hide that a newer copy has taken over, or ow.supervise would start this one."""
    met = [Fenced("a newer copy"), BadColumn("no value"), SendFailed("lost")]
    for number, error in enumerate(met):
        runs.memory(runs.Place("run-several", number)).error = error
    assert runs.error_in("run-several") is met[0]
    runs.memory(runs.Place("run-several", 0)).error = None
    assert runs.error_in("run-several") is met[1]


@pytest.mark.parametrize(("fails", "noted"), [(1, True), (2, True), (3, False)])
def test_a_note_that_cannot_be_written_for_a_moment_is_written(
    sink: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fails: int, noted: bool
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
    assert [one.batch_id for one in files.written] == ([4] if noted else [])
    assert ("has left this batch out" in caplog.text) is not noted


def test_notes_of_many_threads_are_each_written_once(sink: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    known = runs.memory(runs.Place("run-threads", "here"))
    known.to_note += [Note(number, "run-threads") for number in range(60)]
    before = len(files.written)
    threads = [threading.Thread(target=sink._note, args=(Frame("run-threads/q"), known)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [one.batch_id for one in files.written[before:]] == list(range(60))
