"""I15: the contract over deliveries to an HTTP server, which has no transactions."""

from __future__ import annotations

import itertools
import json
import shutil
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import onceward as ow
from onceward import events
from onceward.delivery import target as write_ahead
from onceward.delivery.target import WriteAheadTarget
from onceward.engine import spark_jobs
from onceward.engine.ledger.chain import Ledger
from onceward.engine.ledger.record import LedgerRecord, RecordState
from onceward.engine.micro_batch import MicroBatches
from onceward.engine.policy import SinkPolicy
from onceward.engine.target import Write
from onceward.errors import (
    CommitInDoubt,
    ConfigurationError,
    DeliveryRefused,
    Fenced,
    LedgerUnreadable,
    PreparedDataLost,
    PublishIncomplete,
    StoreUnreachable,
)
from onceward.ids import pipeline_id
from onceward_testing import LocalKafka
from onceward_testing.sink_contract import (
    FIRST,
    SECOND,
    Died,
    Process,
    TwoPhaseContract,
    TwoPhaseKit,
    assert_holds,
    batch,
    fault,
    run_batch,
)
from support.errors import raises
from support.http_target import HttpTarget, post
from support.tasks_here import ArrowFrame, TasksHere

CHUNK_ROWS = 2


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpTarget]:
    with HttpTarget(tmp_path_factory.mktemp("http")) as server:
        yield server


class HttpKit(TwoPhaseKit):
    """What the server kept under a name of the kit's own. ``deliver`` may be replaced: later sinks
    have it.
    """

    def __init__(
        self, spark: Any, http: HttpTarget, folder: Path, ledger: Ledger, how: str = "honours"
    ) -> None:
        self.name = f"contract-{uuid.uuid4().hex[:10]}"
        self.http, self.how = http, how
        self.store = folder / "store"
        self.ledger = ledger
        self.chunk_rows = CHUNK_ROWS
        self.deliver: Callable[[ow.delivery.Chunk], object] = self.post
        super().__init__(spark, self._sink, lambda: http.values(self.name, how))

    def _sink(self) -> ow.WriteAheadSink:
        return ow.WriteAheadSink(
            deliver=lambda chunk: self.deliver(chunk),
            pipeline_id=self.name,
            ledger=self.ledger,
            store=self.store,
            chunk_rows=self.chunk_rows,
            commit_timeout_s=5.0,
        )

    def post(self, chunk: ow.delivery.Chunk) -> None:
        post(
            self.http.url(self.name, self.how),
            chunk.key,
            [row["value"] for row in chunk.to_pylist()],
        )

    def kept(self) -> list[tuple[str, list[str]]]:
        return self.http.kept(self.name, self.how)

    def files(self) -> list[Path]:
        return sorted((self.store / self.name).iterdir())


class HttpKitHere(HttpKit):
    """Tasks run here, one after the other, each with a copy of what they get; everything else is
    as on Spark.
    """

    def frame(self, values: Sequence[str], tasks: int = 2) -> ArrowFrame:
        return ArrowFrame(pa.table({"value": pa.array(values, pa.string())}), tasks=tasks)

    def failing(self, values: Sequence[str]) -> ArrowFrame:
        return replace(self.frame(values), error=ValueError("this plan hurts"))


@pytest.fixture
def here(
    http: HttpTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[HttpKitHere]:
    """With a server that ignores keys: every repetition shows."""
    monkeypatch.setattr(spark_jobs, "run", TasksHere().run)
    kit = HttpKitHere(None, http, tmp_path, ow.FolderLedger(tmp_path / "ledger"), how="ignores")
    yield kit
    kit.close()


@pytest.mark.once_more
class TestOnSpark(TwoPhaseContract):
    @pytest.fixture
    def kit(self, spark: Any, http: HttpTarget, tmp_path: Path) -> HttpKit:
        return HttpKit(spark, http, tmp_path, ow.FolderLedger(tmp_path / "ledger"))


@pytest.mark.lengthy("ci")
class TestInThisProcess(TwoPhaseContract):
    @pytest.fixture
    def kit(self, http: HttpTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HttpKit:
        monkeypatch.setattr(spark_jobs, "run", TasksHere().run)
        return HttpKitHere(None, http, tmp_path, ow.FolderLedger(tmp_path / "ledger"))


@pytest.mark.once_more
class TestWithALedgerInKafka(TwoPhaseContract):
    @pytest.fixture
    def kit(
        self,
        kafka: LocalKafka,
        new_topic: Any,
        http: HttpTarget,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> HttpKit:
        monkeypatch.setattr(spark_jobs, "run", TasksHere().run)
        topic = new_topic(kafka.bootstrap_servers, 1, prefix="ledger", cleanup_policy="compact")
        return HttpKitHere(None, http, tmp_path, ow.KafkaLedger(kafka.bootstrap_servers, topic))


# what is delivered, and when


def chunks_of(kit: HttpKit) -> list[list[str]]:
    return [values for _, values in kit.kept()]


def test_chunks_are_cut_from_the_rows_in_their_order(here: HttpKitHere):
    Process(here).open().commit(FIRST)
    # Two tasks, of which each has every second row; a chunk may have rows of both.
    assert chunks_of(here) == [["a", "c"], ["e", "g"], ["b", "d"], ["f"]]
    here.chunk_rows = 100
    Process(here).open().commit(SECOND)
    assert chunks_of(here)[4:] == [["h", "j", "i"]]


def test_a_chunk_has_rows_of_one_frame(here: HttpKitHere):
    seen: list[ow.delivery.Chunk] = []
    here.deliver = seen.append
    process = Process(here).open()
    process.write(here.frame(SECOND), here.frame([]), here.frame(SECOND))
    process.stage_what_is_written()
    process.attempt.commit()
    Process(here).open()
    assert [chunk.rows.column("value").to_pylist() for chunk in seen] == [
        ["h", "j"],
        ["i"],
        ["h", "j"],
        ["i"],
    ]
    assert [(chunk.number, chunk.of, chunk.first_row) for chunk in seen] == [
        (0, 4, 0),
        (1, 4, 2),
        (2, 4, 3),
        (3, 4, 5),
    ]


def test_no_two_chunks_have_one_key(here: HttpKitHere):
    """Not even those of a batch that was decided anew under its number, after ledger and
    checkpoint were restored.
    """
    Process(here).open().commit(FIRST)
    here.ledger = ow.FolderLedger(f"{here.ledger.path}-restored")  # type: ignore[attr-defined]
    here.store = here.store.with_name("another-store")
    Process(here).open().commit(FIRST)
    keys = [key for key, _ in here.kept()]
    assert len(keys) == len(set(keys)) == 8


def test_every_type_comes_back_as_it_was(here: HttpKitHere):
    rows = pa.table(
        {
            "value": ["a", None],
            "number": pa.array([1, None], pa.int64()),
            "price": pa.array(["1.50", "2.25"]).cast(pa.decimal128(10, 2)),
            "at": pa.array([0, 1], pa.timestamp("us", "UTC")),
            "parts": pa.array([[{"x": 1}], []], pa.list_(pa.struct([("x", pa.int32())]))),
        }
    )
    seen: list[ow.delivery.Chunk] = []
    here.deliver = seen.append
    process = Process(here).open()
    process.stage(ArrowFrame(rows, tasks=1))
    process.attempt.commit()
    Process(here).open()
    assert pa.Table.from_batches([chunk.rows for chunk in seen]) == rows


def test_nothing_is_left_in_the_store(here: HttpKitHere):
    Process(here).open().commit(FIRST)
    assert here.files() == []


# crashes


class Interrupted:
    """A ``deliver`` that dies at one chunk, before or after the target has it."""

    def __init__(self, kit: HttpKit, at: int, moment: str) -> None:
        self.kit, self.at, self.moment = kit, at, moment
        self.count = itertools.count()

    def __call__(self, chunk: ow.delivery.Chunk) -> None:
        dies = next(self.count) == self.at
        if dies and self.moment == "before":
            raise Died
        self.kit.post(chunk)
        if dies:
            raise Died


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("at", range(4))
def test_a_death_repeats_one_chunk_at_most(here: HttpKitHere, at: int, moment: str):
    here.deliver = Interrupted(here, at, moment)
    process = Process(here).open()
    with pytest.raises(Died):
        process.commit(FIRST)
    here.deliver = here.post
    here.chunk_rows = 5  # settings may change at a restart; what is decided does not
    heir = Process(here).open()
    repeated = {"before": {}, "after": {here.kept()[at][0]: 2}}[moment]
    counts = Counter(key for key, _ in here.kept())
    assert {key: count for key, count in counts.items() if count > 1} == repeated
    once = dict(here.kept())
    assert list(once.values()) == [["a", "c"], ["e", "g"], ["b", "d"], ["f"]]
    assert here.files() == []
    heir.commit(SECOND)
    assert Counter(
        value for values in chunks_of(here)[4 + len(repeated) :] for value in values
    ) == Counter(SECOND)


def test_each_of_many_deaths_repeats_one_chunk_at_most(here: HttpKitHere):
    here.chunk_rows = 1
    here.deliver = Interrupted(here, 0, "after")
    process = Process(here).open()
    with pytest.raises(Died):
        process.commit(FIRST)
    for at in (1, 1, 1):
        here.deliver = Interrupted(here, at, "after")
        with pytest.raises(Died):
            Process(here).open()
    here.deliver = here.post
    Process(here).open()
    assert "".join(values[0] for values in chunks_of(here)) == "aaccee" + "ggbdf"


@pytest.mark.fault("write-ahead-progress-unanswered")
@pytest.mark.parametrize("carried_out", [True, False])
def test_progress_without_an_answer_repeats_nothing(here: HttpKitHere, carried_out: bool):
    process = Process(here).open()
    process.stage(here.frame(FIRST))
    process.attempt.commit()
    process.newest = process.attempt.record
    chain = process.target.chain  # type: ignore[attr-defined]
    progress, lost = chain.progress, []

    def losing(record: LedgerRecord) -> LedgerRecord:
        if not lost:
            lost.append(record)
            if carried_out:
                progress(record)
            raise CommitInDoubt("lost on purpose")
        return progress(record)

    chain.progress = losing
    process.finish()
    assert lost
    assert_holds(here, FIRST, 0)
    process.commit(SECOND)
    assert_holds(here, FIRST + SECOND, 1)


@pytest.mark.parametrize("step", [events.PUBLISH, events.DELIVER])
@pytest.mark.parametrize("phase", ["started", "finished"])
@pytest.mark.parametrize("what", [OSError("lost on purpose"), Died()], ids=["error", "death"])
def test_a_fault_while_it_is_published_loses_nothing(
    here: HttpKitHere, step: str, phase: str, what: BaseException
):
    run_batch(here, 0, FIRST)
    with fault(step, phase, what), suppress(OSError, Died):
        run_batch(here, 1, SECOND)
    run_batch(here, 1, SECOND)
    run_batch(here, 2, ["z"])
    counts = Counter(key for key, _ in here.kept())
    assert sum(counts.values()) - len(counts) == ((step, phase) == (events.DELIVER, "finished"))
    assert Counter(value for values in dict(here.kept()).values() for value in values) == Counter(
        [*FIRST, *SECOND, "z"]
    )


# a newer copy


@pytest.mark.fault("write-ahead-older-copy")
def test_of_an_older_copy_the_target_gets_the_one_chunk_in_its_hands(here: HttpKitHere):
    """It stands still within its delivery, the newer copy does all, and then it goes on."""
    old = Process(here).open()
    held: list[str] = []

    def standing_still(chunk: ow.delivery.Chunk) -> None:
        held.append(chunk.key)
        here.deliver = here.post
        Process(here).open()
        here.post(chunk)
        here.deliver = standing_still

    here.deliver = standing_still
    with pytest.raises(Fenced):
        old.commit(FIRST)
    assert len(held) == 1
    counts = Counter(key for key, _ in here.kept())
    assert {key: count for key, count in counts.items() if count > 1} == {held[0]: 2}
    assert here.kept()[-1][0] == held[0], "it came late"


@pytest.mark.fault("write-ahead-older-copy")
def test_an_older_copy_asks_before_it_tries_again(here: HttpKitHere):
    old = Process(here).open()
    tried: list[str] = []

    def down(chunk: ow.delivery.Chunk) -> None:
        tried.append(chunk.key)
        here.deliver = here.post
        Process(here).open()
        here.deliver = down
        raise OSError("the target is down")

    here.deliver = down
    with pytest.raises(Fenced):
        old.commit(FIRST)
    assert len(tried) == 1
    assert_holds(here, FIRST, 0)


def test_an_older_copy_that_stood_still_does_not_take_removed_files_for_lost(here: HttpKitHere):
    old, heir = Process(here).open(), Process(here)
    old.decide(FIRST)
    target = old.target
    assert isinstance(target, WriteAheadTarget)
    looked_at = target._looked_at

    def and_stood_still(*arguments: Any) -> Any:
        found = looked_at(*arguments)
        heir.open()
        return found

    target._looked_at = and_stood_still  # type: ignore[method-assign]
    with pytest.raises(Fenced):
        old.finish()
    assert_holds(here, FIRST, 0)


@pytest.mark.fault("write-ahead-older-copy")
def test_an_older_copy_delivers_nothing_after_a_pause_in_which_it_was_overtaken(
    here: HttpKitHere, monkeypatch: pytest.MonkeyPatch
):
    """Its heir stands still, too, and has removed no files yet."""
    monkeypatch.setattr(write_ahead, "OWNED_SECONDS", 0.0)
    old, heir = Process(here).open(), Process(here)
    old.decide(FIRST)
    heir.newest = heir.target.open(heir.next_batch())
    with pytest.raises(Fenced):
        old.finish()
    assert here.kept() == []
    heir.finish()
    assert_holds(here, FIRST, 0)


def test_an_older_copy_does_not_take_for_lost_what_its_heir_has_removed(here: HttpKitHere):
    old = Process(here).open()
    old.decide(FIRST)
    Process(here).open()
    with pytest.raises(Fenced):
        old.finish()
    assert_holds(here, FIRST, 0)


# targets that refuse, and rows that are lost


@pytest.mark.fault("write-ahead-target-down")
def test_a_target_that_is_down_for_good_stops_the_query_by_name(here: HttpKitHere):
    def down(chunk: ow.delivery.Chunk) -> None:
        raise ConnectionRefusedError("nobody listens")

    here.deliver = down
    target = here.new_target()
    target.commit_timeout_s = 0.3
    with pytest.raises(PublishIncomplete, match=r"chunk 0 of 4 \(.*nobody listens"):
        MicroBatches(target, SinkPolicy(here.pipeline)).process(
            [Write(here.frame(FIRST))], batch(0)
        )
    here.deliver = here.post
    run_batch(here, 0, FIRST)
    assert_holds(here, FIRST, 0)


@pytest.mark.fault("write-ahead-target-down")
def test_a_target_that_comes_back_in_time_is_waited_for(here: HttpKitHere):
    answers = iter([OSError("down"), None, OSError("down"), OSError("down")])

    def now_and_then(chunk: ow.delivery.Chunk) -> None:
        error = next(answers, None)
        if error is not None:
            raise error
        here.post(chunk)

    here.deliver = now_and_then
    run_batch(here, 0, FIRST)
    assert_holds(here, FIRST, 0)


@pytest.mark.fault("write-ahead-poison")
def test_what_the_target_will_never_take_stops_the_query_at_every_start(here: HttpKitHere):
    def poisoned(chunk: ow.delivery.Chunk) -> None:
        if "e" in chunk.rows.column("value").to_pylist():
            raise DeliveryRefused("the server says 422")
        here.post(chunk)

    here.deliver = poisoned
    for _ in range(2):
        with raises(DeliveryRefused, chunk=1, of=4) as caught:
            run_batch(here, 0, FIRST)
        assert caught.value.details["chunk"] == 1
    assert chunks_of(here) == [["a", "c"]]
    here.deliver = here.post
    run_batch(here, 0, FIRST)
    assert_holds(here, FIRST, 0)


@pytest.mark.parametrize("answer", [500, False, object()])
def test_an_answer_is_no_delivery(here: HttpKitHere, answer: object):
    here.deliver = lambda chunk: answer
    with raises(ConfigurationError):
        run_batch(here, 0, FIRST)
    here.deliver = here.post
    run_batch(here, 0, FIRST)
    assert_holds(here, FIRST, 0)


def _remove(file: Path) -> None:
    file.unlink()


def _change_a_byte(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def _cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-8])


@pytest.mark.fault("write-ahead-rows-lost")
@pytest.mark.parametrize("harm", [_remove, _change_a_byte, _cut])
def test_rows_that_are_lost_are_named_and_nothing_is_delivered(
    here: HttpKitHere, harm: Callable[[Path], None]
):
    Process(here).open().decide(FIRST)
    second = here.files()[1]
    whole = second.read_bytes()
    harm(second)
    for _ in range(2):
        with pytest.raises(PreparedDataLost, match=second.name):
            run_batch(here, 0, FIRST)
    assert here.kept() == []
    second.write_bytes(whole)  # somebody has restored it
    run_batch(here, 0, FIRST)
    assert_holds(here, FIRST, 0)


@pytest.mark.fault("write-ahead-rows-lost")
def test_rows_that_change_after_somebody_looked_are_not_delivered(here: HttpKitHere):
    """The file is another one by then, with as many rows and bytes, and sound in itself."""
    process = Process(here).open()
    process.decide(FIRST)
    target, first = process.target, here.files()[0]
    assert isinstance(target, WriteAheadTarget)
    whole, looked_at = first.read_bytes(), target._looked_at

    def and_changed(*arguments: Any) -> Any:
        found = looked_at(*arguments)
        other = whole.replace(b"aceg", b"xxxx")
        assert other != whole
        first.write_bytes(other)
        return found

    target._looked_at = and_changed  # type: ignore[method-assign]
    # The next start looks at it anew
    with raises(StoreUnreachable):
        process.finish()
    assert here.kept() == []
    first.write_bytes(whole)
    run_batch(here, 0, FIRST)
    assert_holds(here, FIRST, 0)


def test_what_is_lost_is_left_out_if_one_asks_for_it(here: HttpKitHere):
    here.chunk_rows = 3
    here.deliver = Interrupted(here, 0, "after")
    with pytest.raises(Died):
        Process(here).open().commit(FIRST)
    here.deliver = here.post
    _remove(here.files()[1])
    target = here.new_target()
    target._policy = SinkPolicy(here.pipeline, resume="skip_missing")
    target.open(batch(1))
    newest = target.peek()
    assert newest is not None
    target.finish(newest)
    # Of b, d, f, all in the second file, nothing is left; g is in a chunk with two of them, and
    # keeps its key.
    assert chunks_of(here) == [["a", "c", "e"], ["a", "c", "e"], ["g"]]
    assert [key.rpartition("-")[2] for key, _ in here.kept()] == ["0", "0", "1"]


def test_what_is_delivered_already_may_be_lost(here: HttpKitHere):
    here.deliver = Interrupted(here, 3, "before")
    with pytest.raises(Died):
        Process(here).open().commit(FIRST)
    here.deliver = here.post
    _remove(here.files()[0])
    run_batch(here, 0, FIRST)
    assert_holds(here, FIRST, 0)


# the store


@pytest.mark.fault("write-ahead-store-apart")
def test_a_store_that_the_driver_does_not_see_is_named_before_the_decision(here: HttpKitHere):
    process = Process(here).open()
    process.write(here.frame(FIRST))
    for file in here.files():
        _remove(file)
    with raises(ConfigurationError, "store="):
        process.stage_what_is_written()
    process.attempt.abort()
    assert_holds(here, [], None)


@pytest.mark.fault("write-ahead-store-apart")
def test_a_store_that_an_executor_does_not_see_is_named(here: HttpKitHere):
    process = Process(here).open()
    (here.store / here.name).rmdir()
    with raises(ConfigurationError):
        process.write(here.frame(FIRST))


def test_a_store_that_is_no_folder_is_named(here: HttpKitHere):
    here.store.write_text("a file")
    with raises(StoreUnreachable):
        Process(here).open()


@pytest.mark.parametrize("gone", [False, True], ids=["elsewhere", "begun anew"])
def test_a_start_with_another_ledger_drops_nothing_of_what_the_right_one_has_decided(
    here: HttpKitHere, gone: bool
):
    """With a new checkpoint it would be admitted, as the first start ever."""
    Process(here).open().decide(FIRST)
    ledger, files = here.ledger, here.files()
    path = Path(ledger.path)  # type: ignore[attr-defined]
    if gone:
        path.rename(path.with_name("saved"))
    else:
        here.ledger = ow.FolderLedger(path.with_name("another"))
    for _ in range(2):
        with raises(ConfigurationError):
            run_batch(here, 0, SECOND)
    assert here.files() == files
    if gone:
        here.ledger = ow.FolderLedger(path.with_name("saved"))  # wherever it is: it is the one
    else:
        here.ledger = ledger
    run_batch(here, 0, FIRST)
    assert_holds(here, FIRST, 0)


def test_to_begin_anew_one_removes_what_the_error_names(here: HttpKitHere):
    Process(here).open().decide(FIRST)
    here.ledger = ow.FolderLedger(here.store.with_name("another"))
    with raises(ConfigurationError) as refused:
        run_batch(here, 0, SECOND)
    note = here.store / f"{here.name}@ledger"
    assert str(note) in refused.value.next_step
    note.write_text("no JSON")
    with raises(ConfigurationError):
        run_batch(here, 0, SECOND)
    note.unlink()
    shutil.rmtree(here.store / here.name)
    run_batch(here, 0, SECOND)
    assert_holds(here, SECOND, 0)


def test_whoever_removes_old_files_takes_no_store_with_its_note(here: HttpKitHere):
    """The note is written once, rows are there for seconds."""
    Process(here).open().decide(FIRST)
    note = here.store / f"{here.name}@ledger"
    note.unlink()
    ledger, here.ledger = here.ledger, ow.FolderLedger(here.store.with_name("another"))
    files = here.files()
    with raises(ConfigurationError):
        run_batch(here, 0, SECOND)
    assert here.files() == files
    here.ledger = ledger
    run_batch(here, 0, FIRST)
    assert_holds(here, FIRST, 0)
    assert note.exists()


def test_a_store_whose_disk_is_not_mounted_is_waited_for(here: HttpKitHere):
    """Its rows are not lost: what is in their place is an empty folder."""
    run_batch(here, 0, FIRST)
    Process(here).open().decide(SECOND)
    away = here.store.with_name("the disk")
    here.store.rename(away)
    here.store.mkdir()
    with raises(StoreUnreachable):
        run_batch(here, 1, SECOND)
    assert list(here.store.iterdir()) == []
    here.store.rmdir()
    away.rename(here.store)
    run_batch(here, 1, SECOND)
    assert_holds(here, FIRST + SECOND, 1)


@pytest.mark.parametrize("moment", ["before the tasks", "decided", "first chunk"])
def test_a_disk_that_goes_in_mid_run_is_waited_for(here: HttpKitHere, moment: str):
    """Whatever was about to be done: nothing is lost, and no setting is wrong."""
    process = Process(here).open()
    process.commit(FIRST)
    away = here.store.with_name("the disk")

    def go_away() -> None:
        here.store.rename(away)
        here.store.mkdir()

    def run() -> None:
        if moment == "before the tasks":
            go_away()
        process.stage(here.frame(SECOND))
        process.attempt.commit()
        process.newest = process.attempt.record
        if moment == "decided":
            go_away()
        deliver = process.target.deliver

        def delivered(chunk: ow.delivery.Chunk) -> None:
            if moment == "first chunk" and not away.exists():
                go_away()
            deliver(chunk)

        process.target.deliver = delivered
        process.finish()

    with raises(StoreUnreachable):
        run()
    assert [path for path in here.store.rglob("*") if path.is_file()] == []
    here.store.rmdir()
    away.rename(here.store)
    run_batch(here, 1, SECOND)
    assert_holds(here, FIRST + SECOND, 1)


def test_pipelines_of_one_store_are_of_ledgers_of_their_own(here: HttpKitHere):
    Process(here).open().commit(FIRST)
    beside = HttpKitHere(
        None, here.http, here.store.parent, ow.FolderLedger(here.store.with_name("another"))
    )
    Process(beside).open().commit(SECOND)
    Process(here).open()
    beside.close()


def test_what_a_dead_task_left_half_written_is_removed_by_the_next_start(here: HttpKitHere):
    Process(here).open().commit(FIRST)
    left = here.store / here.name / "3b6c0de1-1-9.9-0-0.7.part"
    left.write_bytes(b"half")
    other = here.store / here.name / "notes.txt"
    other.write_text("somebody's")
    Process(here).open().begin()
    assert here.files() == [other]
    assert json.dumps(here.sink().recover()) == "[]"  # type: ignore[arg-type]


def test_a_task_that_runs_twice_is_delivered_once(here: HttpKitHere):
    """The first attempt did all, and its report was lost."""
    process = Process(here).open()
    process.stage(replace(here.frame(FIRST), again=[0, 1]))
    assert len(here.files()) == 4
    process.attempt.commit()
    Process(here).open()
    assert_holds(here, FIRST, 0)
    Process(here).open().begin()
    assert here.files() == []


def test_what_another_sink_has_decided_is_left_to_it(here: HttpKitHere):
    process = Process(here).open()
    record = process.decide(FIRST)
    (output,) = record.outputs.values()
    of_another = replace(record, outputs={"two_phase": replace(output, kind="two_phase")})
    with raises(LedgerUnreadable, batch_id=0):
        process.target.finish(of_another)
    assert here.kept() == []


def test_the_ledger_counts_what_is_delivered(here: HttpKitHere):
    here.deliver = Interrupted(here, 2, "before")
    with pytest.raises(Died):
        Process(here).open().commit(FIRST)
    newest = here.new_target().peek()
    assert newest is not None
    assert (newest.state, newest.records) == (RecordState.DECIDED, 7)
    assert newest.outputs["write_ahead"].data["delivered"] == 2
    assert pipeline_id(here.name) == newest.pipeline
