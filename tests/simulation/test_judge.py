"""Can the judge be wrong? A right world is found right; spoilt in one place, it is found by the
right invariant.
"""

from __future__ import annotations

import json
import logging
import marshal
import subprocess
import sys
from collections.abc import Callable
from copy import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from crc32c import crc32c

from onceward import events
from simulation import assembled
from simulation.judge import CANARY, Violation, differences, ending, judge
from simulation.judge.chain import Chain, Record, judge_records, key_and_value
from simulation.judge.stops import ALLOWED
from simulation.kernel.scheduler import Sim
from simulation.planted import ended
from simulation.run import simulate
from simulation.spark.world import World
from simulation.world.kafka.log import Entry

TESTS = Path(__file__).resolve().parents[1]
SMALL = {
    "brokers": 1,
    "source_partitions": 2,
    "output_partitions": 2,
    "topics": 2,
    "rows": 4,
    "shuffle": False,
    "between": 0,
    "by_chance": False,
    "stateful": False,
    "driver_records": 0,
    "transaction_version": 2,
    "at_home": True,
    "user": "sink",
    "ledger_partitions": 1,
    "trouble_seconds": 40.0,
    "batch_attempts": 3,
    "transaction_timeout_ms": 60_000,
    "operator": "nobody",
    "once_more": True,
}


def calm_world(**options: Any) -> Any:
    """The world of a story in which nothing happens, when it is over."""
    outcome, world = ended("kafka", batches=7, **{**SMALL, **options})
    assert outcome.violations == []
    assert outcome.batches >= 5
    return world


@pytest.fixture
def world() -> Any:
    return calm_world()


def found(world: Any) -> set[str]:
    """Which invariants do not hold."""
    return {violation.invariant for violation in judge(world)}


# ── spoiling ──


def log_of(world: Any, topic: str, partition: int = 0) -> list[Entry]:
    entries: list[Entry] = world.cluster.partitions[topic, partition].log.entries
    return entries


def data(entries: list[Entry]) -> list[Entry]:
    return [entry for entry in entries if entry.kind == "data"]


def never_caught_up(world: Any, stopped_by: BaseException | None = None) -> None:
    """Then it was not started once more, either."""
    for start in world.starts:
        start.caught_up = False
    world.once_more, world.stopped_by = 0, stopped_by


def rows_changed(
    entry: Entry, change: Callable[[list[Any]], list[Any]], batch_id: int | None = None
) -> None:
    number, computation, rows = marshal.loads(entry.body)  # noqa: S302 — the simulation's own
    entry.body = marshal.dumps(
        (number if batch_id is None else batch_id, computation, change(rows))
    )


def checksums_fit(world: Any) -> Any:
    """The sink itself has written the rows so: manifests tell of what is in the topics."""
    for number, entry in enumerate(data(log_of(world, "onceward-ledger"))):
        identity = entry.producer, entry.epoch

        def change(document: dict[str, Any], identity: tuple[int, int] = identity) -> None:
            for topic, partitions in document["outputs"]["kafka"]["data"].items():
                for partition, said in partitions.items():
                    written = data(log_of(world, topic, int(partition)))
                    bodies = [one.body for one in written if (one.producer, one.epoch) == identity]
                    said[3] = f"{crc32c(b''.join(bodies)):08x}{said[3][8:]}"

        told(world, number, change)
    return world


def several(entries: list[Entry]) -> Entry:
    """A record batch of two records of one source partition."""
    for entry in data(entries):
        _, _, rows = marshal.loads(entry.body)  # noqa: S302 — the simulation's own
        if len(rows) > 1 and rows[0][1] == rows[1][1]:
            return entry
    raise AssertionError("no batch of two rows")


def told(world: Any, number: int, change: Callable[[dict[str, Any]], None]) -> None:
    """The pipeline's ledger record of that place is another one."""
    entry = data(log_of(world, "onceward-ledger"))[number]
    key, value = key_and_value(entry.body)
    assert key is not None
    assert value is not None
    document = json.loads(value)
    change(document)
    entry.body = one_record(key, json.dumps(document).encode())


def one_record(key: bytes, value: bytes) -> bytes:
    body = b"\0\0\0" + varint(len(key)) + key + varint(len(value)) + value + b"\0"
    return varint(len(body)) + body


def varint(number: int) -> bytes:
    zigzag, out = number << 1, bytearray()
    while zigzag > 0x7F:
        out.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    out.append(zigzag)
    return bytes(out)


def added_start(world: Any, **changes: Any) -> Any:
    """One more start of the query, in a process of its own, just before the end."""
    start = copy(world.starts[0])
    start.number, start.caught_up, start.error = len(world.starts), False, None
    start.process, start.query = (
        SimpleNamespace(name="another"),
        SimpleNamespace(run_id="run-of-another"),
    )
    start.when = start.over_at = world.starts[0].over_at + 50
    start.opened_at = -1.0
    for name, value in changes.items():
        setattr(start, name, value)
    world.starts.append(start)
    return start


# ── the tests ──


def test_a_right_world_is_found_right(world: Any):
    assert judge(world) == []


def test_it_shares_no_code_with_the_engine():
    program = (
        "import sys, simulation.judge; strange = {'onceward', 'kafka', 'pyspark'} & "
        "{name.split('.')[0] for name in sys.modules}; sys.exit(', '.join(strange) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=TESTS,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


class TestWhatIsInTheTopics:
    def test_i1_a_row_is_missing(self, world: Any):
        rows_changed(several(log_of(world, "out-0")), lambda rows: rows[1:])
        assert found(checksums_fit(world)) == {"I1"}

    def test_i1_the_newest_batch_is_nowhere(self, world: Any):
        """With its ledger record, so that only the source tells of it."""
        for (topic, _), partition in world.cluster.partitions.items():
            entries = partition.log.entries
            if topic in ("out-0", "out-1", "onceward-ledger"):
                newest = max(
                    (entry.epoch for entry in entries if entry.kind == "data"), default=-1
                )
                last = data(log_of(world, "onceward-ledger"))[-1].epoch
                entries[:] = [
                    e for e in entries if e.kind != "data" or e.epoch != last or newest != last
                ]
        assert {"I1", "I8"} <= found(world)

    def test_i1_spark_counts_as_done_what_the_ledger_has_not(self, world: Any):
        """Nobody has caught up, so that only Spark's commit log says how far it must be."""
        never_caught_up(world, ValueError())
        assert judge(world) == []
        last = max(world.checkpoint.commits)
        world.checkpoint.offsets[last] = [end + 1 for end in world.checkpoint.offsets[last]]
        assert found(world) == {"I1"}

    def test_i1_spark_was_told_of_a_batch_that_nobody_has_committed(self, world: Any):
        world.returned.append((world.starts[0], 99, world.sim.now))
        assert found(world) == {"I1"}

    def test_nothing_is_asked_for_beyond_the_ledger_and_sparks_log(self, world: Any):
        never_caught_up(world, ValueError())
        world.source._ends[0] += 3
        assert judge(world) == []

    def test_i2_a_row_is_there_twice(self, world: Any):
        world.plan = world.plan._replace(shuffle=True)  # or I3 would find it, too
        rows_changed(several(log_of(world, "out-0")), lambda rows: [*rows, rows[0]])
        assert found(checksums_fit(world)) == {"I2"}

    def test_i2_a_row_that_no_record_has(self, world: Any):
        rows_changed(several(log_of(world, "out-0")), lambda rows: [*rows, ("out-0", 0, 10_000)])
        assert "I2" in found(world)

    def test_i2_a_row_in_another_topic(self, world: Any):
        rows_changed(
            several(log_of(world, "out-0")), lambda rows: [("out-1", *rows[0][1:]), *rows[1:]]
        )
        assert "I2" in found(world)

    def test_i3_two_rows_have_changed_places(self, world: Any):
        rows_changed(several(log_of(world, "out-0")), lambda rows: [rows[1], rows[0], *rows[2:]])
        assert found(checksums_fit(world)) == {"I3"}

    def test_i3_behind_a_shuffle_only_batches_follow_each_other(self):
        world = calm_world(shuffle=True, rows=8)
        rows_changed(several(log_of(world, "out-0")), lambda rows: rows[::-1])
        assert judge(checksums_fit(world)) == []
        first, *_, second = data(log_of(world, "onceward-ledger"))
        for partition in (0, 1):
            entries = log_of(world, "out-0", partition)
            for entry in entries:
                if entry.kind == "data" and entry.epoch in (first.epoch, second.epoch):
                    entry.epoch = first.epoch + second.epoch - entry.epoch
        assert "I3" in found(world)

    def test_i4_a_part_of_a_batch_is_aborted(self, world: Any):
        marker = next(entry for entry in log_of(world, "out-0") if entry.kind == "commit")
        marker.kind = "abort"
        assert found(world) == {"I1", "I4", "I5"}

    def test_i4_the_manifest_tells_of_more(self, world: Any):
        def change(document: dict[str, Any]) -> None:
            next(iter(next(iter(document["outputs"]["kafka"]["data"].values())).values()))[0] += 1

        told(world, 1, change)
        assert found(world) == {"I4"}

    def test_i4_the_manifest_has_another_checksum(self, world: Any):
        def change(document: dict[str, Any]) -> None:
            next(iter(next(iter(document["outputs"]["kafka"]["data"].values())).values()))[3] = (
                f"{7:08x}" * 4
            )

        told(world, 1, change)
        assert found(world) == {"I4"}

    def test_i4_the_manifest_tells_of_another_partition(self, world: Any):
        def change(document: dict[str, Any]) -> None:
            manifest = document["outputs"]["kafka"]["data"]
            topic = next(iter(manifest))
            manifest[topic]["9"] = manifest[topic].pop(next(iter(manifest[topic])))

        told(world, 1, change)
        assert found(world) == {"I4"}

    @pytest.mark.parametrize("name", ["records", "writes"])
    def test_i4_the_numbers_do_not_agree(self, world: Any, name: str):
        def change(document: dict[str, Any]) -> None:
            document.update(records=999) if name == "records" else document.update(
                writes=[["out-0", 999]]
            )

        told(world, 1, change)
        assert found(world) == {"I4"}

    def test_i4_what_lies_in_the_topic_is_not_what_was_sent(self, world: Any):
        rows_changed(several(log_of(world, "out-0")), lambda rows: [rows[1], rows[0], *rows[2:]])
        assert found(world) == {"I3", "I4"}

    def test_i4_rows_of_another_batch(self, world: Any):
        rows_changed(several(log_of(world, "out-0")), lambda rows: rows, batch_id=77)
        assert found(world) == {"I4"}

    def test_i4_a_sequence_is_left_out(self, world: Any):
        data(log_of(world, "out-0"))[0].first += 1
        assert found(world) == {"I4"}

    def test_i5_a_part_of_the_ledgers_own_transaction_is_aborted(self, world: Any):
        """Of a partition that tells nothing else: the identity is committed here, and aborted
        there.
        """
        newest = data(log_of(world, "onceward-ledger"))[-1]
        world.cluster.create_topic("out-2", world.setting.output_partitions)
        log = world.cluster.partitions["out-2", 0].log
        log.append(
            b"h", marshal.dumps((0, 0, [])), 1, newest.producer, newest.epoch, 0, True, 0, 0
        )
        log.end_transaction(newest.producer, newest.epoch, False, 0, 0, 0)
        log.raise_high(log.end)
        world.setting.options.update(topics=3)
        assert "I5" in found(world)


@pytest.mark.parametrize(
    ("user", "stop"), [("shrugs", "BatchNotWritten"), ("unites", "BatchChanged")]
)
def test_rows_of_a_second_call_are_lacking_in_the_newest_batch_alone(user: str, stop: str):
    outcome, world = ended("kafka", **{**SMALL, "user": user, "batches": 5})
    assert (outcome.violations, outcome.stops[-1]) == ([], stop)
    world.setting.options["user"] = "sink"
    assert "I1" in found(world)


class TestTheLedger:
    def test_i6_a_gap(self, world: Any):
        entries = log_of(world, "onceward-ledger")
        entries.remove(data(entries)[1])
        assert "I6" in found(world)

    def test_i6_a_fork(self, world: Any):
        told(world, 2, lambda document: document.update(sequence=1))
        assert "I6" in found(world)

    def test_i6_in_two_partitions_by_who_was_committed_first(self):
        world = calm_world(ledger_partitions=4)
        logs = [
            world.cluster.partitions["onceward-ledger", partition].log for partition in range(4)
        ]
        (home,) = (log for log in logs if log.entries)
        other = logs[logs.index(home) - 1]
        other.high = home.high
        place = next(
            at for at in range(4, len(home.entries)) if home.entries[at - 1].kind != "data"
        )
        home.entries, other.entries = home.entries[place:], home.entries[:place]
        assert judge(world) == []
        for entry in other.entries:
            entry.time_ms += 1_000_000
        assert "I6" in found(world)

    def test_i6_offsets_go_back(self, world: Any):
        told(
            world, 2, lambda document: document["sources"][0]["start"]["source"].update({"0": -1})
        )
        assert found(world) == {"I6"}

    def test_i6_offsets_leave_something_out(self, world: Any):
        told(
            world,
            1,
            lambda document: document["sources"][0]["start"]["source"].update({"0": 10_000}),
        )
        assert "I6" in found(world)

    def test_i6_a_batch_comes_again(self, world: Any):
        told(world, 2, lambda document: document.update(batch_id=1))
        assert "I6" in found(world)

    def test_i6_a_record_by_somebody_else(self, world: Any):
        told(world, 1, lambda document: document.update(attempt=[5, 5]))
        assert found(world) == {"I6"}

    def test_i6_a_record_outside_any_transaction(self, world: Any):
        data(log_of(world, "onceward-ledger"))[0].transactional = False
        assert "I6" in found(world)

    def test_i6_what_is_no_batch(self, world: Any):
        """As a run appends to be aborted, when it wants to know what lies before."""
        log = world.cluster.partitions["onceward-ledger", 0].log
        trial = one_record(b"orders", b'{"attempt":[0,1000],"trial":true}')
        log.append(b"h", trial, 1, 0, 1_000, 0, True, 0, 0)
        log.end_transaction(0, 1_000, True, 0, 0, 0)
        log.raise_high(log.end)
        assert found(world) == {"I6"}

    def test_i6_the_group_is_ahead(self, world: Any):
        for coordinator in world.cluster.group_coordinators.values():
            for where, offset in coordinator.offsets.get("orders", {}).items():
                coordinator.offsets["orders"][where] = (offset[0] + 1, *offset[1:])
        assert found(world) == {"I6"}

    def test_i6_a_source_elsewhere_has_no_group(self, world: Any):
        world.setting.options["at_home"] = False
        assert found(world) == {"I6"}


def record(sequence: int, batch_id: int, start: int, end: int, **more: Any) -> Record:
    """One by one identity each, of one source partition."""
    document = {
        "sequence": sequence,
        "batch_id": batch_id,
        "query_id": "query",
        "run_id": "run",
        "state": "finished",
        "supplement": False,
        "records": 1,
        "committed_at_ms": 1,
        "sources": [{"start": {"source": {"0": start}}, "end": {"source": {"0": end}}}],
        **more,
    }
    return Record(
        f"ledger@{sequence}", (0, sequence * 10 + int(more.get("epoch", 0))), 0, document
    )


class TestChains:
    """Of stories that a calm world does not tell."""

    def said(self, *records: Record, compacted: bool = False) -> list[str]:
        chain = Chain()
        chain.written.extend(records)
        judge_records(chain, compacted=compacted)
        return [violation.invariant for violation in chain.violations]

    def test_right_ones(self):
        first, second = record(0, 0, 0, 3), record(1, 1, 3, 5)
        decided = record(2, 2, 5, 6, state="decided")
        assert self.said(first, second) == []
        assert (
            self.said(first, second, decided, record(2, 2, 5, 6, epoch=1), record(3, 3, 6, 9))
            == []
        )
        assert self.said(first, record(1, 0, 0, 3, supplement=True), record(2, 1, 3, 4)) == []
        assert self.said(first, record(1, 4, 7, 9)) == [], "skipped batches"
        assert self.said(record(4, 4, 7, 9), record(6, 6, 12, 13), compacted=True) == []
        assert self.said(first, record(1, 0, 3, 4, query_id="a new checkpoint")) == []

    def test_wrong_ones(self):
        first, second = record(0, 0, 0, 3), record(1, 1, 3, 5)
        decided = record(2, 2, 5, 6, state="decided")
        assert self.said(record(1, 1, 3, 5)) == ["I6"], "no beginning"
        assert self.said(first, record(2, 1, 3, 5)) == ["I6"], "a gap"
        assert self.said(first, second, record(1, 1, 3, 5, epoch=1)) == ["I6"], "a fork"
        assert self.said(first, second, decided, record(3, 3, 6, 9)) == ["I6"], "not finished"
        assert self.said(first, second, decided, record(2, 2, 5, 7, epoch=1)) == ["I6"], (
            "another decision"
        )
        assert self.said(first, record(1, 1, 4, 5)) == ["I6"], "a hole"
        assert self.said(first, record(1, 1, 2, 5)) == ["I6"], "back"
        assert self.said(first, record(1, 4, 2, 9)) == ["I6"], "back, though batches were skipped"
        assert self.said(first, record(1, 1, 3, 2)) == ["I6"], "backwards"
        assert self.said(first, record(1, 7, 0, 3, supplement=True)) == ["I6"], (
            "no supplement of this batch"
        )
        assert self.said(first, second, record(0, 0, 0, 3, epoch=30)) == ["I6"], (
            "the first once more"
        )

    def test_owners(self):
        first, second = record(0, 0, 0, 3, run_id="a"), record(1, 1, 3, 5, run_id="b")
        assert self.said(first, second, record(2, 2, 5, 6, run_id="a")) == ["I7"], (
            "a run that was taken over"
        )
        late = record(2, 2, 5, 6, run_id="b")
        late.identity = (0, 5)
        assert self.said(first, second, late) == ["I7"], "an older epoch"
        late.identity = second.identity
        assert self.said(first, second, late) == ["I7"], "one identity twice"


class TestOwners:
    def test_i7_visible_and_nobody_tells_of_it(self, world: Any):
        log = world.cluster.partitions["out-0", 0].log
        log.append(b"h", marshal.dumps((1, 0, [("out-0", 0, 0)])), 1, 0, 1_000, 0, True, 0, 0)
        log.end_transaction(0, 1_000, True, 0, 0, 0)
        log.raise_high(log.end)
        assert {"I2", "I7"} <= found(world)

    def test_i7_two_epochs_in_a_transaction(self, world: Any):
        """A late append of the epoch before lands in the next transaction (KIP-890)."""
        entries = log_of(world, "out-0")
        entry = data(entries)[1]
        log = world.cluster.partitions["out-0", 0].log
        log.append(b"h", marshal.dumps((1, 0, [])), 1, entry.producer, entry.epoch, 0, True, 0, 0)
        log.append(
            b"h", marshal.dumps((1, 0, [])), 1, entry.producer, entry.epoch + 900, 0, True, 0, 0
        )
        log.end_transaction(entry.producer, entry.epoch + 900, True, 0, 0, 0)
        log.raise_high(log.end)
        assert "I7" in found(world)

    def test_i7_a_run_comes_back(self, world: Any):
        told(world, 1, lambda document: document.update(run_id="run-of-another"))
        assert "I7" in found(world)

    def test_i7_visible_after_a_takeover(self, world: Any):
        first = data(log_of(world, "onceward-ledger"))[0]
        marker = [entry for entry in log_of(world, "onceward-ledger") if entry.kind == "commit"][
            -1
        ]
        began = marker.time_ms / 1000 - (world.cluster.around.now_ms() / 1000 - world.sim.now)
        heir = added_start(world, opened_at=began - 0.01, identities=[(first.producer, 1_000)])
        assert found(world) == {"I7"}
        heir.identities = [(first.producer, first.epoch)]  # opened later, and took the id earlier
        assert judge(world) == []

    def test_i7_whoever_was_overtaken_takes_it_back(self, world: Any):
        """Under an epoch above the heir's, which no epoch tells."""
        marker = [entry for entry in log_of(world, "onceward-ledger") if entry.kind == "commit"][
            -1
        ]
        began = marker.time_ms / 1000 - (world.cluster.around.now_ms() / 1000 - world.sim.now)
        heir = added_start(world, opens=[(began - 0.02, began - 0.01)])
        assert found(world) == {"I7"}
        heir.opens = [
            (world.starts[0].opens[0][0], began - 0.01)
        ]  # at the same time: nobody knows who was first
        assert judge(world) == []
        heir.opens = [(began - 0.02, began + 1)]  # it was not through yet
        assert judge(world) == []
        heir.opens = [(began - 0.02, began - 0.01)]
        world.cluster.ids_forgotten = 1
        assert judge(world) == []


class TestTheEnd:
    def test_i8_it_never_came_to_an_end(self, world: Any):
        never_caught_up(world)
        assert found(world) == {"I8"}

    def test_i8_it_cannot_be_started_once_more(self, world: Any):
        assert world.once_more == 1
        world.starts[-1].caught_up = False
        assert found(world) == {"I8"}
        world.stopped_by = ValueError("a note says that rows are missing")
        assert found(world) == {"I8"}

    def test_i8_a_transaction_is_open(self, world: Any):
        log = world.cluster.partitions["out-0", 0].log
        log.append(b"h", marshal.dumps((1, 0, [])), 1, 0, 1_000, 0, True, 0, 0)
        log.high = log.end
        assert found(world) == {"I8"}

    def test_i8_a_lease_is_out_for_too_long(self, world: Any):
        limit = ending.lease_limit_seconds(world.setting)
        world.longest_lease = (limit + 1.0, "task 0 attempt 0 (id 7) held out-0-1")
        assert judge(world) == []  # the clock is looked at once a second
        world.longest_lease = (limit + 4.0, "task 0 attempt 0 (id 7) held out-0-1")
        assert found(world) == {"I8"}

    def test_i8_the_ledger_is_behind(self):
        """Records that give no row: nothing is lost, and yet the ledger must have them."""
        world = calm_world()
        branches, ends = world.plan.branches, world.source.ends()
        world.plan = world.plan._replace(
            branches=lambda p, o, drawn: branches(p, o, drawn) if o < ends[p] else []
        )
        world.source._ends[0] += 1
        assert found(world) == {"I8"}

    def test_i9_a_count_is_wrong(self):
        world = calm_world(stateful=True, shuffle=True, topics=1)
        assert judge(world) == []
        rows_changed(
            data(log_of(world, "out-0"))[3], lambda rows: [(rows[0][0], rows[0][1], 99), *rows[1:]]
        )
        assert found(checksums_fit(world)) == {"I9"}

    def test_i9_a_key_is_left_out(self):
        world = calm_world(stateful=True, shuffle=True, topics=1)
        rows_changed(data(log_of(world, "out-0"))[3], lambda rows: rows[1:])
        assert found(checksums_fit(world)) == {"I9"}


class SendFailed(Exception):
    """As the product's."""


class TransactionTimedOut(Exception):
    """As the product's."""

    def __init__(self, said: str, open_for_ms: int) -> None:
        super().__init__(said)
        self.details = {"open_for_ms": open_for_ms, "transaction.timeout.ms": 60_000}


class Fenced(Exception):
    """As the product's, by name."""


class TestStops:
    def test_i11_an_error_that_is_a_bug(self, world: Any):
        world.starts[0].error = KeyError("batch")
        assert found(world) == {"I11"}

    def test_i11_fenced_by_nobody(self, world: Any):
        world.starts[0].error = Fenced("a newer copy has taken over")
        assert found(world) == {"I11"}

    def test_i11_fenced_for_another_refusal(self, world: Any):
        """Who has the id, a coordinator tells, unless it is just that which it refuses."""
        world.starts[0].error = Fenced("a newer copy has taken over")
        world.lots.fired.append(("answer:EndTxn:120", 0))
        assert found(world) == {"I11"}
        world.lots.fired.append(("answer:DescribeTransactions:53", 0))
        assert judge(world) == []

    def test_fenced_by_a_later_copy(self, world: Any):
        first = world.starts[0]
        added_start(world, when=first.when + 0.1, over_at=first.over_at + 5, caught_up=True)
        first.error = Fenced("a newer copy has taken over")
        assert judge(world) == []

    def test_i11_no_error_is_right_where_nothing_happened(self, world: Any):
        for name in ALLOWED:
            world.starts[0].error = type(name, (Exception,), {})("because")
            assert found(world) == {"I11"}, name

    @pytest.mark.parametrize(
        ("text", "reason", "no_reason"),
        [
            ("refused with OUT_OF_ORDER_SEQUENCE_NUMBER (45)", "broker:crash", "net:held"),
            (
                "1 partition(s) not acknowledged within delivery.timeout.ms=8000",
                "net:held",
                "net:request lost",
            ),
        ],
    )
    def test_i11_given_up_without_need(self, world: Any, text: str, reason: str, no_reason: str):
        world.failed.append((world.starts[0], 1.5, SendFailed(text)))
        world.lots.fired.append((no_reason, 1))
        assert found(world) == {"I11"}
        world.lots.fired.append((reason, 2))
        assert judge(world) == []

    def test_i11_a_timeout_that_was_not_over(self, world: Any):
        world.failed.append(
            (
                world.starts[0],
                1.5,
                TransactionTimedOut("open for long (transaction.timeout.ms)", 900),
            )
        )
        assert found(world) == {"I11"}

    def test_a_timeout_that_was_over(self, world: Any):
        by_another = TransactionTimedOut("at the request of an older copy of this pipeline", 900)
        for error in (
            by_another,
            TransactionTimedOut("open for long (transaction.timeout.ms)", 60_001),
        ):
            world.failed.append((world.starts[0], 1.5, error))
        assert judge(world) == []


class TestSecrets:
    @pytest.mark.parametrize(
        "text",
        [CANARY, "Y2FuYXJ5LTdmM2I5YS1zaW5ncw==", CANARY.encode().hex()],
        ids=["clear", "base64", "hex"],
    )
    def test_i12_in_an_error(self, world: Any, text: str):
        added_start(
            world,
            caught_up=True,
            error=type("JobFailed", (Exception,), {})(f"login with {text} failed"),
        )
        assert "I12" in found(world)

    def test_i12_in_what_an_error_came_from(self, world: Any):
        error = Fenced("taken over")
        error.__cause__ = ValueError(f"login with {CANARY} failed")
        world.starts[0].error = error
        assert "I12" in found(world)

    def test_i12_in_a_note(self, world: Any):
        world.files.hdfs.put(
            "checkpoint/onceward/orders/9-run", f"login with {CANARY} failed".encode()
        )
        assert found(world) == {"I12"}

    def test_i12_in_a_ledger_record(self, world: Any):
        told(world, 1, lambda document: document.update(hint=CANARY))
        assert found(world) == {"I12"}


class TestDifferences:
    """I1 and I2: what every target's judge says of rows."""

    def test_equal(self):
        assert differences([("a", 0, 1), ("a", 0, 1)], [("a", 0, 1), ("a", 0, 1)]) == []

    def test_all_at_once(self):
        expected = [("a", 0, 1), ("a", 0, 2), ("b", 1, 3)]
        seen = [("a", 0, 2), ("a", 0, 2), ("b", 1, 3), ("b", 9, 9)]
        assert [str(violation) for violation in differences(expected, seen, "table t")] == [
            "I1 no loss: lost 1: source-0@1 in a (table t)",
            "I2 no duplicate: more often than once 1: source-0@2 in a (table t)",
            "I2 no duplicate: nobody asked for 1: source-9@9 in b (table t)",
        ]

    def test_many_are_told_in_short(self):
        (violation,) = differences([("", 0, offset) for offset in range(9)], [])
        assert violation == Violation(
            "I1", "lost 9: source-0@0, source-0@1, source-0@2, source-0@3, …"
        )


class TestWhatIsSaid:
    """I12 of what is not kept: events, and what is logged at DEBUG."""

    @pytest.mark.parametrize("seed", [3, 30, 75])
    def test_i12_in_no_event_and_no_log_line(self, seed: int):
        heard: list[str] = []
        handler = logging.Handler()
        handler.emit = lambda line: heard.append(line.getMessage())  # type: ignore[method-assign]
        log = logging.getLogger("onceward")

        def build(sim: Sim, chosen: Any) -> World:
            made = assembled.build(sim, chosen)
            log.setLevel(logging.DEBUG)
            return made

        stop = events.probe(lambda event: heard.append(f"{event.ids} {event.error!r}"))
        log.addHandler(handler)
        try:
            outcome = simulate(seed, pipeline="kafka", change={"user": "sink"}, build=build)
        finally:
            stop()
            log.removeHandler(handler)
            log.setLevel(logging.CRITICAL)
        assert outcome.violations == []
        assert len(heard) > 100
        assert not [text for text in heard if CANARY in text]
