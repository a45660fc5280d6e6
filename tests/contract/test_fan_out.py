"""The contract over several targets at once: decided by a ledger alone, by a Kafka transaction, by
a database.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from file_kits import write_here
from kafka_kit import KafkaKit
from pyspark import cloudpickle
from test_database import DatabaseKit
from test_folder_sink import folder_sink, reader

import onceward as ow
from onceward.engine import spark_jobs
from onceward.engine.calls.foreach_batch import ForeachBatchSink
from onceward.engine.fan_out import FanOutTarget
from onceward.engine.ledger.record import LedgerRecord, RecordState
from onceward.engine.micro_batch import MicroBatches
from onceward.engine.policy import SinkPolicy
from onceward.engine.target import Attempt, Target, Write
from onceward.errors import (
    ContradictoryOptions,
    DeliveryRefused,
    LedgerUnreadable,
    PublishIncomplete,
)
from onceward.ids import pipeline_id
from onceward.spark.batch.query import RunningBatch
from onceward.spark.files import file_writer
from onceward_testing import LocalKafka, LocalPostgres
from onceward_testing.sink_contract import (
    FIRST,
    SECOND,
    Died,
    Process,
    SinkContract,
    SinkKit,
    assert_holds,
    batch,
    lost_append,
    run_batch,
)
from support.errors import raises
from support.http_target import HttpTarget, post
from support.tasks_here import ArrowFrame, TasksHere

Visible = Callable[[], Counter[str]]


class FanOutKit(SinkKit):
    """Every frame goes to every target; whoever reads one of them must find what is in all."""

    sinks: Callable[[], Mapping[str, ForeachBatchSink]]
    """As a new process builds them."""
    readers: Mapping[str, Visible]
    copies = 2

    def __init__(self) -> None:
        self._targets: list[Target] = []

    def fan_out(self) -> ow.FanOut:
        return ow.FanOut(self.sinks())

    def writes(self, fan_out: ow.FanOut, frame: Any) -> Sequence[Write]:
        return fan_out._checked_writes(frame, None)

    def new_target(self) -> FanOutTarget:
        fan_out = self.fan_out()
        target = fan_out.new_target()
        begin = target.begin

        def begin_for_all(newest: LedgerRecord | None, running: RunningBatch) -> Attempt:
            attempt = begin(newest, running)
            write_to_one = attempt.write

            def write_to_all(write: Write, running: RunningBatch) -> int:
                (rows,) = {write_to_one(one, running) for one in self.writes(fan_out, write.frame)}
                return rows

            attempt.write = write_to_all  # type: ignore[method-assign]
            return attempt

        target.begin = begin_for_all  # type: ignore[assignment]
        self._targets.append(target)
        return target

    def visible(self) -> Counter[str]:
        found = {name: read() for name, read in self.readers.items()}
        one, *others = found.values()
        assert all(other == one for other in others), found
        return one

    def unanswered(self, target: Target, *, carried_out: bool) -> AbstractContextManager[None]:
        assert isinstance(target, FanOutTarget)
        return lost_append(target.chain, carried_out=carried_out)

    def close(self) -> None:
        for target in self._targets:
            target.close()


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpTarget]:
    with HttpTarget(tmp_path_factory.mktemp("http")) as server:
        yield server


class HereKit(FanOutKit):
    """Files, a sink of one's own and deliveries, decided by a folder; tasks run in this
    process.
    """

    def __init__(self, http: HttpTarget, folder: Path, patch: pytest.MonkeyPatch) -> None:
        super().__init__()
        patch.setattr(spark_jobs, "run", TasksHere().run)
        patch.setattr(file_writer, "write", write_here)
        self.pipeline = pipeline_id(f"contract-{uuid.uuid4().hex[:10]}")
        self.folder, self.http = folder, http
        self.deliver: Callable[[ow.delivery.Chunk], object] = self.post
        self.names = ["own", "delivered"]
        self.readers = {
            "own": reader(folder / "own"),
            "delivered": lambda: http.values(self.pipeline, "ignores"),  # every repetition shows
        }

    def sinks(self) -> Mapping[str, ForeachBatchSink]:
        ledger = ow.FolderLedger(self.folder / "ledger")
        made: dict[str, ForeachBatchSink] = {
            "own": folder_sink.FolderSink(
                folder=self.folder / "own", pipeline_id=self.pipeline, ledger=ledger
            ),
            "delivered": self.delivering(2),
            "delivered_too": self.delivering(3),
            "files": ow.FileSink(
                path=f"file://{self.folder}/out", pipeline_id=self.pipeline, ledger=ledger
            ),
        }
        return {name: made[name] for name in self.names}

    def delivering(self, chunk_rows: int) -> ow.WriteAheadSink:
        return ow.WriteAheadSink(
            deliver=lambda chunk: self.deliver(chunk),
            pipeline_id=self.pipeline,
            ledger=ow.FolderLedger(self.folder / "ledger"),
            store=self.folder / "store",
            chunk_rows=chunk_rows,
            commit_timeout_s=0.5,
        )

    def post(self, chunk: ow.delivery.Chunk) -> None:
        post(
            self.http.url(self.pipeline, "ignores"),
            chunk.key,
            [row["value"] for row in chunk.to_pylist()],
        )

    def writes(self, fan_out: ow.FanOut, frame: Any) -> Sequence[Write]:
        return [Write(frame, f"@{name}") for name in fan_out._sinks]

    def frame(self, values: Sequence[str], tasks: int = 2) -> ArrowFrame:
        return ArrowFrame(pa.table({"value": pa.array(values, pa.string())}), tasks=tasks)

    def failing(self, values: Sequence[str]) -> ArrowFrame:
        return replace(self.frame(values), error=ValueError("this plan hurts"))


@pytest.mark.lengthy("ci")
class TestALedgerDecides(SinkContract):
    @pytest.fixture
    def kit(self, http: HttpTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HereKit:
        return HereKit(http, tmp_path, monkeypatch)


class KafkaDecides(FanOutKit):
    """A topic, and a folder of one's own."""

    def __init__(self, kafka_kit: KafkaKit, folder: Path) -> None:
        super().__init__()
        cloudpickle.register_pickle_by_value(folder_sink)  # type: ignore[no-untyped-call]
        self.pipeline = kafka_kit.pipeline
        self._kafka, self._folder = kafka_kit, folder
        self.readers = {"topic": kafka_kit.visible, "own": reader(folder / "own")}

    def fan_out(self) -> ow.FanOut:
        kafka = self._kafka
        ledger = ow.KafkaLedger(kafka._bootstrap, kafka._ledger_topic)
        return ow.FanOut(
            {
                "topic": ow.KafkaSink(
                    bootstrap_servers=kafka._bootstrap,
                    pipeline_id=self.pipeline,
                    topic=kafka._topic,
                    ledger_topic=kafka._ledger_topic,
                ),
                "own": folder_sink.FolderSink(
                    folder=self._folder / "own", pipeline_id=self.pipeline, ledger=ledger
                ),
            },
            select={"own": lambda frame: frame.select("value")},
        )

    def frame(self, values: Sequence[str], tasks: int = 2) -> Any:
        return self._kafka.frame(values, tasks)

    def unanswered(self, target: Target, *, carried_out: bool) -> AbstractContextManager[None]:
        assert isinstance(target, FanOutTarget)
        return self._kafka.unanswered(target._atomic, carried_out=carried_out)  # type: ignore[arg-type]


@pytest.mark.once_more
class TestKafkaDecides(SinkContract):
    @pytest.fixture
    def kit(
        self, spark: Any, kafka: LocalKafka, new_topic: Any, read_committed: Any, tmp_path: Path
    ) -> FanOutKit:
        return KafkaDecides(KafkaKit(spark, kafka, new_topic, read_committed), tmp_path)


class DatabaseDecides(FanOutKit):
    def __init__(self, database_kit: DatabaseKit, folder: Path) -> None:
        super().__init__()
        cloudpickle.register_pickle_by_value(folder_sink)  # type: ignore[no-untyped-call]
        self.pipeline = database_kit.pipeline
        self._database, self._folder = database_kit, folder
        self.readers = {"table": database_kit.visible, "own": reader(folder / "own")}

    def sinks(self) -> Mapping[str, ForeachBatchSink]:
        kit = self._database
        ledger_table = f"{kit.schema}.ledger"
        ledger = ow.DatabaseLedger(kit._server.url, ledger_table)
        return {
            "own": folder_sink.FolderSink(
                folder=self._folder / "own", pipeline_id=self.pipeline, ledger=ledger
            ),
            "table": ow.DatabaseSink(
                url=kit._server.url,
                pipeline_id=self.pipeline,
                table=f"{kit.schema}.written",
                ledger_table=ledger_table,
                driver_records=0,
            ),
        }

    def frame(self, values: Sequence[str], tasks: int = 2) -> Any:
        return self._database.frame(values, tasks)

    def unanswered(self, target: Target, *, carried_out: bool) -> AbstractContextManager[None]:
        assert isinstance(target, FanOutTarget)
        return self._database.unanswered(target._atomic, carried_out=carried_out)  # type: ignore[arg-type]


@pytest.mark.once_more
class TestADatabaseDecides(SinkContract):
    @pytest.fixture
    def kit(self, spark: Any, postgres: LocalPostgres, tmp_path: Path) -> FanOutKit:
        return DatabaseDecides(DatabaseKit(spark, postgres, driver_records=0), tmp_path)


# what a fan-out owes besides, in this process


@pytest.fixture
def here(http: HttpTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HereKit]:
    kit = HereKit(http, tmp_path, monkeypatch)
    yield kit
    kit.close()


@pytest.mark.fault("fan-out-half-published")
@pytest.mark.parametrize("died_in", ["own", "delivered", "files"])
def test_a_death_among_the_targets_is_made_good_at_the_next_start(here: HereKit, died_in: str):
    here.names = ["own", "delivered", "files"]
    run_batch(here, 0, FIRST)
    target = here.new_target()
    publisher = target._branches[f"@{died_in}"].target
    finish = publisher.finish

    def dying(record: LedgerRecord) -> LedgerRecord:
        finish(record)
        raise Died

    publisher.finish = dying  # type: ignore[method-assign]
    with pytest.raises(Died):
        MicroBatches(target, SinkPolicy(here.pipeline)).process(
            [Write(here.frame(SECOND))], batch(1)
        )
    run_batch(here, 2, ["z"])
    assert_holds(here, [*FIRST, *SECOND, "z"], 2)
    assert here.http.values(here.pipeline, "ignores") == Counter([*FIRST, *SECOND, "z"]), (
        "delivered twice"
    )
    assert len(list((here.folder / "out").glob("batch=*"))) == 3


def test_none_is_passed_over_while_another_is_down(here: HereKit):
    """The batch after it waits, for all."""

    def down(chunk: ow.delivery.Chunk) -> None:
        raise OSError("lost on purpose")

    run_batch(here, 0, FIRST)
    here.deliver = down
    for _ in range(2):
        with pytest.raises(PublishIncomplete):
            run_batch(here, 1, SECOND)
    assert here.readers["own"]() == Counter(FIRST + SECOND)
    assert here.readers["delivered"]() == Counter(FIRST)
    here.deliver = here.post
    run_batch(here, 2, ["z"])
    assert_holds(here, [*FIRST, *SECOND, "z"], 2)


def test_two_that_prepare_in_one_place_leave_each_others_alone(
    here: HereKit, monkeypatch: pytest.MonkeyPatch
):
    """And what they deliver has keys of its own, should they deliver to one target."""
    keys: list[str] = []

    def noting(chunk: ow.delivery.Chunk) -> None:
        keys.append(chunk.key)

    here.names = ["delivered", "delivered_too"]
    here.deliver = noting
    process = Process(here).open()
    process.decide(FIRST)  # and it dies
    aborted: list[Any] = []
    monkeypatch.setattr(
        ow.WriteAheadSink, "abort", lambda sink, committable: aborted.append(committable)
    )
    Process(here).open().begin()
    assert aborted == [], "it was asked to drop what is decided"
    assert len(set(keys)) == len(keys) == 4 + 3
    assert list((here.folder / "store" / here.pipeline).iterdir()) == []


@pytest.mark.parametrize("who", ["without one of them", "one of them alone"])
def test_a_decided_batch_is_for_the_fan_out_that_decided_it(here: HereKit, who: str):
    process = Process(here).open()
    process.decide(FIRST)
    sinks = here.sinks()
    if who == "one of them alone":
        target = sinks["own"].new_target()  # type: ignore[attr-defined]
    else:
        target = ow.FanOut({"own": sinks["own"], "other": sinks["delivered"]}).new_target()
    with raises(LedgerUnreadable, batch_id=0):
        MicroBatches(target, SinkPolicy(here.pipeline)).process(
            [Write(here.frame(SECOND), "@own")], batch(1)
        )
    target.close()
    run_batch(here, 1, SECOND)
    assert_holds(here, FIRST + SECOND, 1)


def test_the_record_names_all_and_is_finished_at_last(here: HereKit):
    record = Process(here).open().decide(FIRST)
    assert record.state is RecordState.DECIDED
    assert {name: output.records for name, output in record.outputs.items()} == {
        "@own": 7,
        "@delivered": 7,
    }
    newest = Process(here).open().newest
    assert newest is not None
    assert newest.state is RecordState.FINISHED
    assert newest.pipeline == here.pipeline
    assert newest.outputs["@delivered"].data["delivered"] == 4


@pytest.mark.parametrize("where", ["sinks", "link"])
def test_two_file_sinks_at_one_path(here: HereKit, where: str):
    """One of them has no rows, and has nothing of the other to drop. Told for what it is, it is
    refused.
    """
    (here.folder / "out").mkdir()
    (here.folder / "link").symlink_to(here.folder / "out")
    ledger = ow.FolderLedger(here.folder / "ledger")
    paths = [
        f"file://{here.folder}/{name}" for name in ("out", "out" if where == "sinks" else "link")
    ]
    good, bad = (
        ow.FileSink(path=path, pipeline_id=here.pipeline, ledger=ledger, layout="flat")
        for path in paths
    )
    with raises(ContradictoryOptions):
        ow.FanOut({"good": good, "bad": bad})
    bad.writes_to = None  # a folder may have two names for other reasons, too: a bind mount, say
    target = ow.FanOut({"good": good, "bad": bad}).new_target()
    writes = [Write(here.frame(FIRST), "@good"), Write(here.frame([]), "@bad")]
    MicroBatches(target, SinkPolicy(here.pipeline)).process(writes, batch(0))
    target.close()
    found = [row for file in (here.folder / "out").glob("*.parquet") for row in _values(file)]
    assert Counter(found) == Counter(FIRST)


def _values(file: Path) -> list[str]:
    return list(parquet.read_table(file).column("value").to_pylist())


def test_what_is_published_may_be_taken_away_while_another_is_down(
    here: HereKit, monkeypatch: pytest.MonkeyPatch
):
    """It does not count as lost when the other is back."""

    def down(*_: object) -> None:
        raise OSError("lost on purpose")

    here.names = ["files", "own"]
    target = here.new_target()
    own = target._branches["@own"].target
    own.commit_timeout_s = 0.0
    with monkeypatch.context() as patch:
        # Not the class: a task that unpickles it by value sets its methods anew
        patch.setattr(own.committer, "commit", down)
        with pytest.raises(PublishIncomplete):
            MicroBatches(target, SinkPolicy(here.pipeline)).process(
                [Write(here.frame(FIRST))], batch(0)
            )
    published = list((here.folder / "out").rglob("*.parquet"))
    assert published
    for file in published:
        file.unlink()
    newest = Process(here).open().newest
    assert newest is not None
    assert newest.state is RecordState.FINISHED
    assert here.readers["own"]() == Counter(FIRST)


def test_rows_by_one_key_of_two_sinks_in_one_batch_are_refused(here: HereKit):
    """Of which one would have been left out."""
    stored: dict[str, str] = {}

    def write(upserts: list[ow.delivery.Upsert]) -> None:
        for upsert in upserts:
            if upsert.replaces(stored.get(upsert.key)):
                stored[upsert.key] = upsert.mark

    ledger = ow.FolderLedger(here.folder / "ledger")

    def upserting(
        name: str, function: Callable[[list[ow.delivery.Upsert]], None]
    ) -> ow.UpsertSink:
        return ow.UpsertSink(
            key="value",
            pipeline_id=here.pipeline,
            ledger=ledger,
            store=here.folder / name,
            write=function,
        )

    with raises(ContradictoryOptions):
        ow.FanOut({"one": upserting("1", write), "two": upserting("2", write)})
    target = ow.FanOut(
        {"one": upserting("1", write), "two": upserting("2", lambda all: write(all))}
    ).new_target()
    writes = [Write(here.frame(["k"]), "@one"), Write(here.frame(["k"]), "@two")]
    with raises(DeliveryRefused, chunk=0, of=1):
        MicroBatches(target, SinkPolicy(here.pipeline)).process(writes, batch(0))
    target.close()
