"""The contract of a source that can be read again, as tests that you run against a source of your
own.

::

    from onceward_testing.source_contract import SourceContract, SourceKit

    class TestMySource(SourceContract):
        @pytest.fixture
        def kit(self, spark, tmp_path):
            return SourceKit(
                spark,
                tmp_path,
                new_source=lambda: MySource(url),
                add=lambda count: ...,   # makes so many more rows at the source before it returns
                wanted=lambda: [...],    # the column `key` of each row that is there by now
                key="id",
            )

``kit`` makes the source as a new process would; ``wanted`` asks whoever made the rows, not the
source. Each test has a kit and rows of its own.

The contract: **what lies behind a position never changes**. Whatever fails, and wherever a process
dies, in the end a sink has every row exactly once, in batches that are bounded and never empty.

For :class:`~onceward.ResettableSource` and :class:`~onceward.PartitionedSource`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as dataset
import pytest
from pyspark import cloudpickle

from onceward import events
from onceward.custom.resettable.fitting import Fitting
from onceward.custom.resettable.ranges import Ranges
from onceward.engine.calls.foreach_batch import error_of
from onceward.engine.ledger.record import LedgerRecord
from onceward.errors import SourceContractViolated
from onceward.files.ledger import FolderLedger
from onceward.files.sink import FileSink
from onceward.ids import pipeline_id
from onceward_testing.sink_contract import fault

_PIPELINE = "source-contract"
_READS = 10_000  # of one test, before a source is taken for one without an end

STEPS = [
    (events.ADMIT, "started"),  # Spark has logged the range; nothing of it is written
    (events.SEND, "finished"),  # written, and not decided
    (events.PUBLISH, "started"),  # decided: the ledger knows it, Spark's commit log does not
    (events.FINISH, "started"),  # published as well
]
"""Steps at which a run is ended between "offset logged" and "batch committed"."""


class Killed(Exception):
    """Ends a query where a crash would have."""


@dataclass
class SourceKit:
    """One source, and who knows what it has."""

    spark: Any
    folder: Path
    new_source: Callable[[], Any]
    add: Callable[[int], None]
    wanted: Callable[[], list[Any]]
    key: str

    @property
    def ledger(self) -> FolderLedger:
        """Return the id of the pipeline that the tests run."""
        return FolderLedger(self.folder / "ledger")

    def records(self) -> list[LedgerRecord]:
        """Return the ledger records that it has committed, newest first, one a batch."""
        chain = self.ledger.chain(pipeline_id(_PIPELINE))
        try:
            newest_first = {record.sequence: record for record in chain.history(_READS)}
        finally:
            chain.close()
        return list(newest_first.values())

    def visible(self) -> Counter[Any]:
        """Return the column ``key`` of all rows that readers of the sink find."""
        out = self.folder / "out"
        if not out.exists():
            return Counter()
        return Counter(
            dataset.dataset(str(out), format="parquet")
            .to_table(columns=[self.key])
            .column(0)
            .to_pylist()
        )

    def run(self, max_rows: int = 1_000) -> Any:
        """Run a query on the kit's checkpoint, until it has read everything; the query,
        which has ended."""
        sink = FileSink(
            path=str(self.folder / "out"),
            format="parquet",
            pipeline_id=_PIPELINE,
            ledger=self.ledger,
            batch_attempts=1,
        )
        frame = self.new_source().stream(self.spark, max_rows_per_batch=max_rows, poll_seconds=0)
        writer = frame.writeStream.foreachBatch(sink).option(
            "checkpointLocation", str(self.folder / "checkpoint")
        )
        query = writer.start()
        try:
            query.processAllAvailable()
        except Exception:
            if query.exception() is None:
                raise
        finally:
            query.stop()
        return query

    def ends_well(self, max_rows: int = 1_000) -> None:
        """Run as :meth:`run` does, and assert that the sink has every row once."""
        query = self.run(max_rows)
        assert query.exception() is None, error_of(query) or query.exception()
        assert self.visible() == Counter(self.wanted())


class RangeReader:
    """Goes through a source as a query would, range by range, without Spark."""

    def __init__(self, kit: SourceKit, source: Any, limit: int) -> None:
        schema = kit.new_source()._struct()
        self.fitting = Fitting(schema)
        self.ranges = Ranges(source, self.fitting, limit)
        self.at = self.ranges.beginning()
        self.key, self.limit = kit.key, limit

    def to_the_end(self) -> list[tuple[Any, pa.Table]]:
        """Yield each range and its rows, until there is nothing new."""
        found: list[tuple[Any, pa.Table]] = []
        for _ in range(_READS):
            following = self.ranges.following(self.at)
            if following is None:
                return found
            self.at = following[0]
            found.append(following)
        raise AssertionError(f"no end after {_READS} ranges")

    def keys(self, ranges: list[tuple[Any, pa.Table]]) -> list[Any]:
        """Return the column ``key`` of all their rows."""
        return [value for _, rows in ranges for value in rows.column(self.key).to_pylist()]


class SourceContract:
    """The contract on which a query relies in every source. A subclass has the fixture ``kit``."""

    # in queries, with real restarts

    def test_every_row_arrives_once_over_restarts(self, kit: SourceKit) -> None:
        for rows in (7, 1, 13):
            kit.add(rows)
            kit.ends_well(max_rows=8)
        assert all(0 < record.records <= 8 for record in kit.records()), (
            "an empty batch, or one that is too large"
        )
        before = len(kit.records())
        kit.ends_well(max_rows=8)
        assert len(kit.records()) == before, "a batch without anything new"

    @pytest.mark.parametrize(("step", "phase"), STEPS)
    def test_killed_between_offset_and_commit(self, kit: SourceKit, step: str, phase: str) -> None:
        kit.add(12)
        kit.ends_well()
        kit.add(9)
        with fault(step, phase, Killed("killed here")):
            assert kit.run().exception() is not None
        kit.add(11)  # the range was logged without these, and must not have them now
        kit.ends_well(max_rows=4)
        assert kit.records()[0].batch.batch_id == len(kit.records()) - 1

    def test_killed_in_the_first_batch(self, kit: SourceKit) -> None:
        """Spark logs no beginning: it asks for that again."""
        kit.add(5)
        with fault(events.SEND, "finished", Killed("killed here")):
            assert kit.run().exception() is not None
        kit.add(5)
        kit.ends_well()

    # by hand

    def test_a_pickled_copy_reads_the_same(self, kit: SourceKit) -> None:
        kit.add(5)
        source = kit.new_source()
        copy = cloudpickle.loads(cloudpickle.dumps(source))  # type: ignore[no-untyped-call]
        walks = [RangeReader(kit, each, 3) for each in (source, copy)]
        ours, theirs = (walk.to_the_end() for walk in walks)
        assert [end for end, _ in ours] == [end for end, _ in theirs]
        assert Counter(walks[0].keys(ours)) == Counter(kit.wanted())

    @pytest.mark.parametrize("limit", [1, 7, 1_000])
    def test_ranges_join_and_are_bounded(self, kit: SourceKit, limit: int) -> None:
        kit.add(20)
        walk = RangeReader(kit, kit.new_source(), limit)
        first = walk.to_the_end()
        kit.add(5)
        ranges = first + walk.to_the_end()
        assert Counter(walk.keys(ranges)) == Counter(kit.wanted())
        assert all(0 < rows.num_rows <= limit for _, rows in ranges)

    def test_a_range_is_the_same_when_there_is_more(self, kit: SourceKit) -> None:
        kit.add(20)
        ranges = RangeReader(kit, kit.new_source(), 6).to_the_end()
        kit.add(20)
        again = RangeReader(
            kit, kit.new_source(), 1_000
        ).ranges  # a new process, with another bound
        for end, rows in ranges:
            assert again.again(end).equals(rows)

    def test_nothing_new_moves_nothing(self, kit: SourceKit) -> None:
        kit.add(4)
        walk = RangeReader(kit, kit.new_source(), 10)
        walk.to_the_end()
        assert walk.ranges.following(walk.at) is None
        kit.add(1)
        assert len(walk.keys(walk.to_the_end())) == 1

    def test_a_beginning_is_where_rows_are_found_later(self, kit: SourceKit) -> None:
        """Before there is any row."""
        walk = RangeReader(kit, kit.new_source(), 10)
        assert walk.to_the_end() == []
        kit.add(3)
        assert Counter(walk.keys(walk.to_the_end())) == Counter(kit.wanted())

    def test_positions_and_identity_are_the_same_in_a_new_process(self, kit: SourceKit) -> None:
        kit.add(3)
        first, second = kit.new_source(), kit.new_source()
        assert first.identity() == second.identity()
        assert json.dumps(first.start()) == json.dumps(second.start())

    def test_a_limit_is_kept_by_each_call(self, kit: SourceKit) -> None:
        kit.add(10)
        walk = RangeReader(kit, kit.new_source(), 1)
        try:
            assert len(walk.to_the_end()) == len(kit.wanted())
        except SourceContractViolated as broken:
            raise AssertionError(f"read(position, 1) is a legal call: {broken}") from broken
