"""A user's own ``foreachBatch`` function: several frames, skipped batches, sinks in odd places,
errors kept back.

It works, or is refused by name, and following the advice works, too. Nothing is dropped silently.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark import inheritable_thread_target
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from streaming_pipeline import Pipeline, copy, source_records, use_state_store

import onceward
from onceward import events
from onceward.errors import (
    BatchChanged,
    BatchFailed,
    BatchNotWritten,
    InvalidColumn,
    OncewardError,
    SendFailed,
    UnsupportedQuery,
)
from support.verify_process import verify_at

Function = Callable[[DataFrame, int], None]


def run(pipeline: Pipeline, function: Function) -> OncewardError | None:
    """Run to the source's end with ``function``; the typed error it ended with, if any."""
    query: StreamingQuery = (
        pipeline.frame()
        .writeStream.option("checkpointLocation", str(pipeline.checkpoint))
        .trigger(availableNow=True)
        .foreachBatch(function)
        .start()
    )
    text = pipeline.ended(query)
    error = onceward.error_of(query)
    assert (error is None) == (text == ""), text
    return error


def count_by_key(pipeline: Pipeline, function: Function, **source: Any) -> None:
    """Run to the source's end a query with state, which hands ``function`` the counts that have
    changed.
    """
    query = (
        pipeline.frame(**source)
        .groupBy("key")
        .count()
        .writeStream.outputMode("update")
        .option("checkpointLocation", str(pipeline.checkpoint))
        .trigger(availableNow=True)
        .foreachBatch(function)
        .start()
    )
    assert pipeline.ended(query) == ""


def plain(sink: onceward.KafkaSink) -> Function:
    return lambda frame, batch_id: sink(copy(frame), batch_id)


def judged(pipeline: Pipeline, *options: str) -> dict[str, Any]:
    return verify_at(pipeline.bootstrap, pipeline.name, pipeline.ledger_topic, *options)


def values(pipeline: Pipeline, topic: str | None = None) -> Counter[Any]:
    return Counter(source_records(pipeline.visible(topic)))


def halves(frame: DataFrame) -> tuple[DataFrame, DataFrame]:
    rows = copy(frame)
    return rows.where("value LIKE '%0'"), rows.where("value NOT LIKE '%0'")


def test_frames_of_one_batch_are_one_transaction(any_pipeline: Pipeline):
    second = any_pipeline.topic(2)
    any_pipeline.feed(100)
    sink = any_pipeline.sink()

    def function(frame: DataFrame, batch_id: int) -> None:
        zeros, others = halves(frame)
        with sink.batch(frame, batch_id) as batch:
            batch.write(zeros)
            batch.write(others)
            batch.write(copy(frame), topic=second)

    assert run(any_pipeline, function) is None
    any_pipeline.feed(20)
    assert run(any_pipeline, function) is None
    assert values(any_pipeline) == values(any_pipeline, second) == Counter(any_pipeline.fed)
    chain = any_pipeline.ledger()
    assert [record["sequence"] for record in chain] == list(range(len(chain)))
    assert [sum(n for _, n in record["writes"]) for record in chain] == [
        record["records"] for record in chain
    ]
    assert {where for where, _ in chain[0]["writes"]} == {any_pipeline.output, second}
    assert (
        any_pipeline.open_transactions(any_pipeline.output, second, any_pipeline.ledger_topic)
        == []
    )


@pytest.mark.parametrize("store", ["HDFSBackedStateStoreProvider", "RocksDBStateStoreProvider"])
def test_several_frames_of_a_query_with_state(
    pipeline: Pipeline, request: pytest.FixtureRequest, store: str
):
    """Each frame is a job of its own, which runs the stateful plan again over the same version of
    the state.
    """
    use_state_store(pipeline, request, store)
    second = pipeline.topic(2)
    sink = pipeline.sink()

    def function(frame: DataFrame, batch_id: int) -> None:
        rows = frame.selectExpr("CAST(key AS STRING) AS key", "CAST(count AS STRING) AS value")
        with sink.batch(frame, batch_id) as batch:
            batch.write(rows)
            batch.write(rows, topic=second)

    counted: Counter[bytes] = Counter()
    expected: Counter[tuple[bytes | None, bytes | None]] = Counter()
    for _ in range(3):
        fed = [(b"key-%d" % (n % 3), b"") for n in range(20)]
        pipeline.feed(fed)
        count_by_key(pipeline, function)
        counted.update(key for key, _ in fed)
        expected.update((key, b"%d" % count) for key, count in counted.items())
        pipeline.forget_commit()
    count_by_key(pipeline, function)
    for topic in (pipeline.output, second):
        assert Counter((m.key(), m.value()) for m in pipeline.visible(topic)) == expected


@pytest.mark.fault("function-writes-several-frames")
def test_a_failure_in_the_second_frame_takes_both(pipeline: Pipeline, at_step: Any):
    pipeline.feed(40)
    sink = pipeline.sink()

    def function(frame: DataFrame, batch_id: int) -> None:
        with sink.batch(frame, batch_id) as batch:
            for half in halves(frame):
                batch.write(half)

    at_step(events.SEND, "finished", SendFailed("lost", next_step="nothing"), nth=2)
    assert run(pipeline, function) is None  # tried again, both frames
    pipeline.assert_exactly_once(ledger_records=1)
    assert len(pipeline.appended()) > 40


@pytest.mark.fault("function-calls-two-sinks")
@pytest.mark.parametrize("unlike", [False, True], ids=["alike", "unlike"])
def test_two_sinks_under_one_id(pipeline: Pipeline, unlike: bool):
    """The refusal, then its advice: a function with one block, ``resume="write_missing"``, and all rows
    are there once.
    """
    second = pipeline.topic(2)
    pipeline.feed(40)
    first_sink, second_sink = (
        pipeline.sink(topic=None),
        pipeline.sink(topic=second if unlike else None),
    )

    def twice(frame: DataFrame, batch_id: int) -> None:
        first_sink(copy(frame).selectExpr("*", f"'{pipeline.output}' AS topic"), batch_id)
        second_sink(copy(frame).selectExpr("*", f"'{second}' AS topic"), batch_id)

    error = run(pipeline, twice)
    assert type(error) is UnsupportedQuery
    assert "sink.batch(frame, batch_id)" in error.next_step
    assert values(pipeline) == Counter(pipeline.fed)
    assert values(pipeline, second) == Counter()

    def advised(**options: Any) -> Function:
        sink = pipeline.sink(topic=None, **options)

        def function(frame: DataFrame, batch_id: int) -> None:
            with sink.batch(frame, batch_id) as batch:
                batch.write(copy(frame).selectExpr("*", f"'{pipeline.output}' AS topic"))
                batch.write(copy(frame), topic=second)

        return function

    assert type(run(pipeline, advised())) is BatchChanged
    assert values(pipeline, second) == Counter()
    assert run(pipeline, advised(resume="write_missing")) is None
    pipeline.feed(20)
    assert run(pipeline, advised()) is None
    assert values(pipeline) == values(pipeline, second) == Counter(pipeline.fed)
    assert [record["sequence"] for record in pipeline.ledger()] == [0, 1, 2]
    answer = judged(pipeline)
    assert (answer["verdict"], answer["facts"]["ledger"]["supplements"]) == ("exactly_once", 1), (
        answer
    )


@pytest.mark.fault("function-calls-two-sinks")
def test_rows_united_after_a_refusal_are_named(pipeline: Pipeline):
    pipeline.feed(40)
    sink = pipeline.sink()

    def twice(frame: DataFrame, batch_id: int) -> None:
        sink(copy(frame), batch_id)
        sink(copy(frame), batch_id)

    assert type(run(pipeline, twice)) is UnsupportedQuery
    error = run(pipeline, lambda frame, batch_id: sink(copy(frame).union(copy(frame)), batch_id))
    assert type(error) is BatchChanged
    assert "40 records" in error.message
    assert "80 records" in error.message
    kept = pipeline.sink(resume="skip_missing")
    assert (
        run(pipeline, lambda frame, batch_id: kept(copy(frame).union(copy(frame)), batch_id))
        is None
    )
    pipeline.assert_exactly_once(ledger_records=1)


def test_two_sinks_with_ids_of_their_own(pipeline: Pipeline):
    second = pipeline.topic(2)
    pipeline.feed(40)
    one, other = pipeline.sink(), pipeline.sink(topic=second, pipeline_id=f"{pipeline.name}-b")

    def function(frame: DataFrame, batch_id: int) -> None:
        one(copy(frame), batch_id)
        other(copy(frame), batch_id)

    assert run(pipeline, function) is None
    pipeline.forget_commit()
    assert run(pipeline, function) is None
    assert values(pipeline) == values(pipeline, second) == Counter(pipeline.fed)


@pytest.mark.fault("function-skips-batches")
@pytest.mark.parametrize("stateful", [False, True])
def test_empty_batches_may_be_skipped_where_that_is_allowed(pipeline: Pipeline, stateful: bool):
    """Some in the middle of a run, some at the end of one, so that the next begins after a gap;
    and the first.
    """

    def rows(frame: DataFrame) -> DataFrame:
        kept = frame.where("CAST(value AS STRING) NOT LIKE 'drop%'")
        return kept.dropDuplicates(["value"]) if stateful else kept

    def go() -> None:
        sink = pipeline.sink(skipped_batches="allow")

        def function(frame: DataFrame, batch_id: int) -> None:
            if not frame.isEmpty():
                sink(copy(frame), batch_id)

        query = (
            rows(pipeline.frame(max_offsets_per_trigger=10))
            .writeStream.option("checkpointLocation", str(pipeline.checkpoint))
            .trigger(availableNow=True)
            .foreachBatch(function)
            .start()
        )
        assert pipeline.ended(query) == ""

    drop = [(b"key", b"drop-%d" % n) for n in range(20)]
    pipeline.feed(drop)
    pipeline.feed(20)
    go()
    pipeline.feed(drop)
    go()
    pipeline.feed(10)
    go()
    expected = Counter(record for record in pipeline.fed if not record[1].startswith(b"drop"))
    assert values(pipeline) == expected
    batch_ids = [record["batch_id"] for record in pipeline.ledger()]
    assert batch_ids != list(range(len(batch_ids))), "INVALID: no batch was skipped"
    pipeline.forget_commit()
    go()
    assert values(pipeline) == expected
    answer = judged(pipeline)
    assert (answer["verdict"], answer["anomalies"]) == ("inconclusive", []), (
        "batches 0 and 1 may be another sink's"
    )
    answer = judged(pipeline, "--since", str(batch_ids[0]))
    assert (answer["verdict"], answer["facts"]["ledger"]["skipped"] != []) == (
        "exactly_once",
        True,
    ), answer


@pytest.mark.fault("function-skips-batches")
@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_a_batch_of_which_nothing_is_written_leaves_its_state(pipeline: Pipeline, delivery: str):
    """Also one that is replayed; Spark computes a batch only where somebody asks for its rows."""

    def go(write: bool) -> None:
        sink = pipeline.sink(delivery=delivery)

        def function(frame: DataFrame, batch_id: int) -> None:
            rows = frame.selectExpr("key", "CAST(count AS STRING) AS value")
            with sink.batch(frame, batch_id) as batch:
                if write:
                    batch.write(rows)

        count_by_key(pipeline, function, max_offsets_per_trigger=100)

    for write in (True, False, False, True):
        pipeline.feed([(b"a", b"")] * 10)
        go(write)
        pipeline.forget_commit()
        go(write)
    counts = [b"10", b"40"] if delivery == "exactly_once" else [b"10", b"10", b"40", b"40"]
    assert Counter(m.value() for m in pipeline.visible()) == Counter(counts)


def left_behind(pipeline: Pipeline) -> list[Path]:
    """What lies beside the checkpoint, but for Hadoop's checksums."""
    folder = pipeline.checkpoint / "onceward" / pipeline.name
    return sorted(file for file in folder.glob("*") if not file.name.startswith("."))


@pytest.mark.fault("function-skips-batches")
@pytest.mark.parametrize("first", [False, True], ids=["in the middle", "the first"])
def test_a_batch_that_is_left_out_is_refused_and_the_advice_works(pipeline: Pipeline, first: bool):
    pipeline.feed([] if first else [(b"key", b"good-1")])
    for value in (b"drop-1", b"good-2"):
        pipeline.feed([(b"key", value)])

    def go(function: Function) -> OncewardError | None:
        rows = pipeline.frame(max_offsets_per_trigger=1).where(
            "CAST(value AS STRING) NOT LIKE 'drop%'"
        )
        query = (
            rows.writeStream.option("checkpointLocation", str(pipeline.checkpoint))
            .trigger(availableNow=True)
            .foreachBatch(function)
            .start()
        )
        pipeline.ended(query)
        return onceward.error_of(query)

    sink = pipeline.sink()
    error = go(lambda frame, batch_id: None if frame.isEmpty() else sink(copy(frame), batch_id))
    assert type(error) is BatchNotWritten
    assert "call the sink for every batch, also for an empty one" in error.next_step
    (resume,) = re.findall(r'start once with resume="(\w+)"', error.next_step)
    assert go(plain(pipeline.sink(resume=resume))) is None
    pipeline.feed([(b"key", b"good-3")])
    assert go(plain(pipeline.sink())) is None
    assert values(pipeline) == Counter(
        record for record in pipeline.fed if not record[1].startswith(b"drop")
    )


def test_more_batches_may_be_left_out_than_spark_remembers(
    pipeline: Pipeline, request: pytest.FixtureRequest
):
    """``recentProgress`` and the offset log have so many entries; here two. A hit may be rarer."""
    for name, value in (
        ("spark.sql.streaming.numRecentProgressUpdates", "2"),
        ("spark.sql.streaming.minBatchesToRetain", "2"),
    ):
        pipeline.spark.conf.set(name, value)
        request.addfinalizer(partial(pipeline.spark.conf.unset, name))
    for value in (*(b"drop",) * 6, b"hit-1", *(b"drop",) * 6, b"hit-2"):
        pipeline.feed([(b"key", value)])
    sink = pipeline.sink(skipped_batches="allow")

    def function(frame: DataFrame, batch_id: int) -> None:
        if not frame.isEmpty():
            sink(copy(frame), batch_id)

    hits = pipeline.frame(max_offsets_per_trigger=1).where("CAST(value AS STRING) LIKE 'hit%'")
    query = (
        hits.writeStream.option("checkpointLocation", str(pipeline.checkpoint))
        .trigger(availableNow=True)
        .foreachBatch(function)
        .start()
    )
    assert pipeline.ended(query) == ""
    assert values(pipeline) == Counter([(b"key", b"hit-1"), (b"key", b"hit-2")])


def test_nothing_is_left_beside_the_checkpoint_of_what_goes_well(pipeline: Pipeline, at_step: Any):
    pipeline.feed(40)
    assert run(pipeline, plain(pipeline.sink())) is None
    assert not (pipeline.checkpoint / "onceward").exists()
    pipeline.feed(40)
    at_step(events.SEND, "started", SendFailed("lost", next_step="nothing"))
    assert type(run(pipeline, plain(pipeline.sink(batch_attempts=1)))) is SendFailed
    assert [file.name for file in left_behind(pipeline)] == ["1.failed"]
    assert run(pipeline, plain(pipeline.sink())) is None
    assert left_behind(pipeline) == []
    pipeline.assert_exactly_once()


def test_a_query_without_a_checkpoint_location_is_refused(
    pipeline: Pipeline, tmp_path: Path, request: pytest.FixtureRequest
):
    """Then the advice; and a folder for all queries of the session is one, too, to a query with a
    name.
    """
    conf, name = pipeline.spark.conf, "spark.sql.streaming.checkpointLocation"
    request.addfinalizer(partial(conf.set, name, str(conf.get(name))))
    conf.unset(name)
    pipeline.feed(20)

    def go(name: str | None = pipeline.name, **options: str) -> OncewardError | None:
        writer = pipeline.frame().writeStream.options(**options).trigger(availableNow=True)
        writer = writer if name is None else writer.queryName(name)
        query = writer.foreachBatch(plain(pipeline.sink())).start()
        pipeline.ended(query)
        return onceward.error_of(query)

    for query_name, root in ((pipeline.name, None), (None, str(tmp_path))):
        if root is not None:
            conf.set(name, root)
        error = go(query_name)
        assert type(error) is UnsupportedQuery
        assert "no checkpoint location" in error.message
        assert 'option("checkpointLocation", "…")' in error.next_step
    assert pipeline.appended() == []
    for _ in range(2):
        assert go() is None
        pipeline.feed(20)
    conf.unset(name)
    assert go(checkpointLocation=str(tmp_path / pipeline.name)) is None
    pipeline.assert_exactly_once()


def test_what_is_handed_to_spark_in_the_place_of_a_sink_is_named(pipeline: Pipeline):
    pipeline.feed(20)
    with pytest.raises(UnsupportedQuery, match=r"writeStream\.foreach,"):
        pipeline.frame().writeStream.foreach(pipeline.sink())
    for wrong in (onceward.KafkaSink, pipeline.sink().batch):
        error = run(pipeline, wrong)  # type: ignore[arg-type]
        assert isinstance(error, UnsupportedQuery)
        assert "foreachBatch(KafkaSink(…))" in error.next_step
    assert run(pipeline, plain(pipeline.sink())) is None
    pipeline.assert_exactly_once()


@pytest.mark.fault("function-keeps-an-error")
def test_an_error_that_is_kept_back_is_found(pipeline: Pipeline, at_step: Any):
    pipeline.feed(80)

    def patient(sink: onceward.KafkaSink) -> Function:
        def function(frame: DataFrame, batch_id: int) -> None:
            # As functions do, for Spark's pages; the query's run is not to be known by it.
            frame.sparkSession.sparkContext.setJobGroup(f"batch {batch_id}", "ours")
            with contextlib.suppress(SendFailed):
                sink(copy(frame), batch_id)

        return function

    at_step(events.SEND, "started", SendFailed("lost", next_step="nothing"))
    error = run(pipeline, patient(pipeline.sink(batch_attempts=1)))
    assert type(error) is BatchNotWritten  # in the same run, at the next batch
    pipeline.feed(20)
    error = run(pipeline, patient(pipeline.sink()))
    assert type(error) is BatchNotWritten  # and after a restart
    assert pipeline.visible() == []
    for name in ("commits/0", "offsets/1"):  # what the error tells to delete
        assert name in error.next_step
        file = pipeline.checkpoint / name
        file.unlink()
        file.with_name(f".{file.name}.crc").unlink()
    assert run(pipeline, patient(pipeline.sink())) is None
    pipeline.assert_exactly_once()


@pytest.mark.fault("function-keeps-an-error")
@pytest.mark.parametrize(("inherits", "bad"), [(False, False), (True, False), (False, True)])
def test_a_call_in_a_thread_is_refused(pipeline: Pipeline, inherits: bool, bad: bool):
    """Nobody may look into its future, and the function may end before it does: the next batch is
    refused, too.

    Also when the thread got no further than to the columns of its frame, which are looked at
    first.
    """
    pipeline.feed(80)
    sink = pipeline.sink()
    said: list[BaseException | None] = []

    def function(frame: DataFrame, batch_id: int) -> None:
        def call() -> None:
            sink(frame if bad else copy(frame), batch_id)

        with ThreadPoolExecutor(1) as pool:
            said.append(
                pool.submit(inheritable_thread_target(call) if inherits else call).exception()
            )

    def in_turn(frame: DataFrame, batch_id: int) -> None:
        if batch_id == 0:
            function(frame, batch_id)
        else:
            sink(copy(frame), batch_id)

    error = run(pipeline, in_turn)
    assert type(said[0]) is (InvalidColumn if bad else UnsupportedQuery)
    assert bad or "thread" in str(said[0])
    assert type(error) is BatchNotWritten
    assert pipeline.visible() == []
    assert [file.name for file in left_behind(pipeline)] == ["0.refused"]


@pytest.mark.fault("function-keeps-an-error")
@pytest.mark.parametrize("refused", ["second", "unlike", "changed"])
def test_a_refusal_that_is_kept_back_is_found(pipeline: Pipeline, refused: str):
    """The batch is committed, and lacks what was refused: neither the same run nor the next goes
    on as if it did not.

    Then the advice: the files that are named are deleted, and a function that hands all over
    completes the batch.
    """
    second = pipeline.topic(2)
    pipeline.feed(40)

    def careless(sink: onceward.KafkaSink, other: onceward.KafkaSink) -> Function:
        def function(frame: DataFrame, batch_id: int) -> None:
            rows = copy(frame)
            sink(rows, batch_id)
            with contextlib.suppress(UnsupportedQuery):
                other(rows, batch_id)

        return function

    def complete(sink: onceward.KafkaSink, *, kept_back: bool = False) -> Function:
        def function(frame: DataFrame, batch_id: int) -> None:
            keeper = contextlib.suppress(BatchChanged) if kept_back else contextlib.nullcontext()
            with keeper, sink.batch(frame, batch_id) as batch:
                batch.write(copy(frame))
                batch.write(copy(frame), topic=second)

        return function

    def forget(*names: str) -> None:
        for name in names:
            file = pipeline.checkpoint / name
            file.unlink()
            file.with_name(f".{file.name}.crc").unlink()

    if refused == "changed":  # a replay that would drop rows
        assert run(pipeline, plain(pipeline.sink())) is None
        forget("commits/0")
        function = complete(pipeline.sink(), kept_back=True)
        assert run(pipeline, function) is None
    else:
        function = careless(
            pipeline.sink(),
            pipeline.sink(topic=pipeline.output if refused == "second" else second),
        )
        assert run(pipeline, function) is None, "INVALID: there is a second batch"
    pipeline.feed(20)
    error = run(pipeline, function)
    assert type(error) is BatchNotWritten
    assert "a call for batch 0 before it failed" in error.message
    pipeline.feed(20)
    error = run(pipeline, plain(pipeline.sink()))
    assert type(error) is BatchNotWritten, "and after a restart"
    assert Counter(values(pipeline)) == Counter(pipeline.fed[:40])
    named = re.findall(r"(?:commits|offsets)/\d+", error.next_step)
    assert named == ["commits/0", "offsets/1"]
    forget(*named)
    assert run(pipeline, complete(pipeline.sink(resume="write_missing"))) is None
    pipeline.feed(20)
    assert run(pipeline, complete(pipeline.sink())) is None
    assert values(pipeline) == values(pipeline, second) == Counter(pipeline.fed)


def test_a_function_may_try_again_itself(pipeline: Pipeline, at_step: Any):
    pipeline.feed(40)
    sink = pipeline.sink(batch_attempts=1)

    def function(frame: DataFrame, batch_id: int) -> None:
        try:
            sink(copy(frame), batch_id)
        except SendFailed:
            sink(copy(frame), batch_id)

    at_step(events.SEND, "started", SendFailed("lost", next_step="nothing"))
    assert run(pipeline, function) is None
    pipeline.feed(20)
    assert run(pipeline, function) is None
    pipeline.assert_exactly_once()


@pytest.mark.lengthy("chaos")
def test_a_sink_for_each_batch_leaks_nothing(pipeline: Pipeline):
    def function(frame: DataFrame, batch_id: int) -> None:
        pipeline.sink()(copy(frame), batch_id)

    others = set(threading.enumerate())  # such as that of the shared broker's proxy

    def held() -> tuple[int, int]:
        """Ours: Spark's and the tests' own threads come and go."""
        mine = [
            t.name for t in set(threading.enumerate()) - others if t.name.startswith("onceward-")
        ]
        return len(mine), len(os.listdir("/proc/self/fd"))

    pipeline.feed(40)
    assert run(pipeline, function) is None
    _until(lambda: held()[0] == 0)
    _, files = held()
    for _ in range(4):
        pipeline.feed(80)
        assert run(pipeline, function) is None
    _until(lambda: held()[0] == 0)
    assert held()[1] < files + 8
    pipeline.assert_exactly_once()
    assert len({record["attempt"][0] for record in pipeline.ledger()}) == 1


def _until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline, [thread.name for thread in threading.enumerate()]
        time.sleep(0.1)


def test_a_frame_may_be_persisted(pipeline: Pipeline):
    pipeline.feed(80)
    sink = pipeline.sink()

    def function(frame: DataFrame, batch_id: int) -> None:
        kept = copy(frame).persist()
        if kept.count():
            with sink.batch(frame, batch_id) as batch:
                batch.write(kept.where("value LIKE '%0'"))
                batch.write(kept.where("value NOT LIKE '%0'"))
        kept.unpersist()

    assert run(pipeline, function) is None
    pipeline.assert_exactly_once()


def test_a_batch_id_of_ones_own_is_refused(pipeline: Pipeline):
    pipeline.feed(10)
    sink = pipeline.sink()
    error = run(pipeline, lambda frame, batch_id: sink(copy(frame), batch_id + 1))
    assert type(error) is UnsupportedQuery
    assert "Spark runs batch 0" in error.message
    pipeline.run()
    pipeline.assert_exactly_once()


def test_a_column_that_nobody_knows_is_refused(pipeline: Pipeline):
    pipeline.feed(10)
    error = pipeline.refused(lambda rows: rows.selectExpr("key AS Key", "value"))
    assert type(error) is InvalidColumn
    assert "Key" in error.message
    pipeline.run()
    pipeline.assert_exactly_once()


class Panic(BaseException):
    """Python's side of PyO3 has one, of a library in Rust that has lost its way."""


@pytest.mark.parametrize(
    "raised", [SystemExit(3), asyncio.CancelledError("cancelled"), Panic("at lib.rs:7")], ids=repr
)
def test_what_is_no_exception_ends_the_query_and_is_settled(
    spark: SparkSession, tmp_path: Path, raised: BaseException
):
    """Py4J's thread would end without an answer, and the query wait for ever."""
    met, delivered = [raised], []

    def deliver(chunk: Any) -> None:
        if met:
            raise met.pop()
        delivered.append(chunk.rows.num_rows)

    def run_once() -> OncewardError | None:
        sink = onceward.WriteAheadSink(
            deliver=deliver,
            pipeline_id="p",
            ledger=onceward.FolderLedger(tmp_path / "ledger"),
            store=str(tmp_path / "store"),
        )
        rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 7).load()
        writing = rows.select("value").writeStream.option(
            "checkpointLocation", str(tmp_path / "checkpoint")
        )
        query = writing.trigger(once=True).foreachBatch(sink).start()
        with contextlib.suppress(StreamingQueryException):
            assert query.awaitTermination(120)
        return onceward.error_of(query)

    error = run_once()
    assert type(error) is BatchFailed
    assert repr(raised) in error.message
    assert run_once() is None
    assert delivered[0] == 7
