"""Healthy topics that look odd: a pipeline that runs on, compaction, others' transactions, expired
offsets.
"""

from __future__ import annotations

import errno
import io
import json
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, cast
from uuid import UUID

import numpy as np
import pytest
from confluent_kafka import Uuid
from crc32c import crc32c
from psycopg.errors import SerializationFailure

from onceward.kafka.wire.client import _as_kafka_spells
from onceward_verify import cluster as checkers
from onceward_verify import fencing, tables
from onceward_verify.cli import run
from onceward_verify.database import DatabaseSnapshot, StoredRecord, TableRef
from onceward_verify.fencing import BatchHeader, Epochs, Marker, check_output
from onceward_verify.findings import CHECKER_FAILED, CannotTell, Findings, as_text
from onceward_verify.ledger import LedgerBatch, OutputPart
from onceward_verify.mysql import MySQLSnapshot
from onceward_verify.outputs import OutputRange, Reading, check_outputs
from onceward_verify.partition_log import PartitionLog
from onceward_verify.postgresql import PostgreSQLSnapshot
from onceward_verify.sources import _check_topic, check_sources
from onceward_verify.topics import TopicsQuestion, _report_undecided, read_ledger

WHERE = ("out", 0)


def reading_of(
    part: OutputPart,
    seen: list[int],
    end: int,
    *,
    compacted: bool | None = False,
    shared: bool = False,
) -> Reading:
    looked_at = OutputRange(0, end, 0, end)
    log = PartitionLog([part], 0, end)
    offsets = np.array(seen, np.int64)
    log.visible.add(offsets)
    log.tallies[0].count = len(seen)
    reading = Reading(log, looked_at, compacted, shared)
    reading.written.add(offsets)
    return reading


def written(first: int, last: int, producer: int, marker: Marker | None = None) -> BatchHeader:
    return BatchHeader(first, last, last - first + 1, producer, 3, True, marker)


def judged(log: list[BatchHeader], end: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(fencing, "record_batches", lambda folder: log)
    part = OutputPart(0, *WHERE, count=2, first=0, last=1, checksum="")
    told = LedgerBatch(0, "q", 0, (), (part,), (7, 3), "ledger", 0, 0)
    findings = Findings()
    epochs = Epochs({0: told}, frozenset({7}), {(7, 3): 0})
    check_output(WHERE, reading_of(part, [0, 1], end), Path(), epochs, findings)
    return [anomaly.name for anomaly in findings.anomalies]


def test_a_marker_behind_what_is_looked_at_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    more = [written(3, 3, 7), written(4, 4, 7, "abort"), written(5, 5, 9)]
    assert judged([written(0, 1, 7), written(2, 2, 7, "commit"), *more], 2, monkeypatch) == []


def test_what_no_marker_follows_is_told_of_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    assert judged([written(0, 1, 7), written(2, 2, 8, "commit")], 2, monkeypatch) == [
        "aborted-read"
    ]


@pytest.mark.parametrize(
    ("compacted", "verdict"), [(False, "violated"), (True, "inconclusive"), (None, "inconclusive")]
)
def test_a_topic_that_may_be_compacted_may_lack_records(
    compacted: bool | None, verdict: str
) -> None:
    part = OutputPart(0, *WHERE, count=3, first=0, last=2, checksum="")
    findings = Findings()
    check_outputs({WHERE: reading_of(part, [0, 2], 3, compacted=compacted)}, findings)
    assert findings.verdict == verdict


def test_a_compacted_topic_of_several_may_hold_as_many_records_as_the_batch_had() -> None:
    part = OutputPart(0, *WHERE, count=2, first=0, last=2, checksum="of the batch's own two")
    findings = Findings()
    check_outputs({WHERE: reading_of(part, [1, 2], 3, compacted=True, shared=True)}, findings)
    assert findings.verdict == "inconclusive"


class Cluster:
    """A source partition with ten records, of which a transaction that is open hides the last
    two.
    """

    group = "p"

    def partitions(self, topic: str) -> list[tuple[str, int]]:
        return [(topic, 0)]

    def starts(self, partitions: Any) -> Any:
        return dict.fromkeys(partitions, 0)

    def ends(self, partitions: Any, isolation: str = "read_uncommitted") -> Any:
        return dict.fromkeys(partitions, 8 if isolation == "read_committed" else 10)


@pytest.mark.parametrize(
    ("position", "group", "verdict"),
    [
        (8, {("in", 0): 8}, "exactly_once"),
        (7, {("in", 0): 7}, "violated"),
        (8, {("in", 0): 7}, "violated"),
        (8, {}, "inconclusive"),  # offsets.retention.minutes
        (11, {("in", 0): 11}, "inconclusive"),
    ],
)
def test_lag_is_what_could_have_been_read_and_was_not(
    position: int, group: Any, verdict: str
) -> None:
    findings, cluster = Findings(), Cluster()
    _check_topic(cluster, "in", {0: position}, group, findings, True)  # type: ignore[arg-type]
    assert findings.verdict == verdict


@pytest.mark.parametrize("caught_up", [True, False])
@pytest.mark.parametrize(("known", "is_judged"), [("its", True), ("another's", False), ("", True)])
def test_a_mirror_of_the_same_name_is_no_source(known: str, caught_up: bool, is_judged: bool):
    """The ledger names a topic by its id, too, where brokers have ids."""

    class Mirror(Cluster):
        def group_offsets(self) -> dict[tuple[str, int], int]:
            return {("in", 0): 7}

        def topic_id(self, topic: str, default: str) -> str:
            return "its"

    span = SimpleNamespace(end={"in": {"0": 7}}, ids=(("in", known),) if known else ())
    chain = SimpleNamespace(batches=[SimpleNamespace(spans=[span], has_group=True)])
    findings, cluster, batches = Findings(), cast(Any, Mirror()), cast(Any, chain)
    check_sources(cluster, batches, findings, expect_caught_up=caught_up)
    assert findings.facts["sources"]["in"]["on_this_cluster"] is is_judged
    if not is_judged:
        assert findings.verdict == "inconclusive"
    else:
        assert findings.verdict == ("violated" if caught_up else "exactly_once")


@pytest.mark.parametrize("words", [(1, 2), (-1, -(2**61) - 7)])
def test_a_topics_id_is_spelt_as_kafka_does(words: tuple[int, int]) -> None:
    """librdkafka has standard Base64, in which half of all ids have another letter."""
    found = SimpleNamespace(topic_id=Uuid(*words))
    asked = SimpleNamespace(_described=lambda topic: found)
    number = b"".join(word.to_bytes(8, "big", signed=True) for word in words)
    theirs = _as_kafka_spells(UUID(bytes=number))
    assert checkers.Cluster.topic_id(cast(Any, asked), "t", "") == theirs


def control_batch(offset: int, record: bytes) -> bytes:
    rest = struct.pack(">hiqqqhii", 0x30, 0, 0, 0, 7, 3, -1, bool(record)) + record
    head = struct.pack(">qiibI", offset, len(rest) + 9, 0, 2, crc32c(rest))
    return head + rest


def test_a_marker_that_the_log_cleaner_has_emptied_is_passed_over(tmp_path: Path) -> None:
    """Of a producer's last batch it keeps the header alone: what is behind it is the next batch,
    or the end of the segment.
    """
    commit = b"\x20\0\0\0\x08\0\0\0\x01\x0c\0\0\0\0\0\0\0"
    batches = control_batch(512, b""), control_batch(513, commit), control_batch(514, b"")
    (tmp_path / "00.log").write_bytes(b"".join(batches))
    found = [(batch.first, batch.marker) for batch in fencing.record_batches(tmp_path)]
    assert found == [(513, "commit")]


class Tiered:
    """A consumer of a broker before 3.8: of two records it has the second one in an object store,
    which takes longer than a fetch of 50 ms waits (KIP-1018).
    """

    made: ClassVar[list[Tiered]] = []

    def __init__(self, settings: dict[str, Any]) -> None:
        self.wait_ms, self.closed = settings["fetch.wait.max.ms"], False
        self.made.append(self)

    def assign(self, starts: list[Any]) -> None:
        (self.start,) = (start.offset for start in starts)

    def consume(self, *_: Any) -> list[Any]:
        if self.start > 1 or (self.start == 1 and self.wait_ms < 1_000):
            return []
        at, self.start = self.start, self.start + 1
        record = {"error": None, "topic": "out", "partition": 0, "offset": at}
        return [SimpleNamespace(**{name: lambda it=it: it for name, it in record.items()})]

    def pause(self, _: list[Any]) -> None: ...

    def close(self) -> None:
        self.closed = True


def test_records_in_tiered_storage_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkers.kafka, "Consumer", Tiered)
    monkeypatch.setattr(checkers, "_REMOTE_AFTER_S", 0.01)
    monkeypatch.setattr(Tiered, "made", [])
    cluster = object.__new__(checkers.Cluster)
    cluster._settings, cluster.group, cluster._patience_s = {}, "p", 0.05
    read = [(where, list(at)) for where, _, at in cluster.read({WHERE: (0, 2)})]
    assert read == [(WHERE, [0]), (WHERE, [1])]
    assert [consumer.closed for consumer in Tiered.made] == [True, True]
    with pytest.raises(CannotTell, match="not read to the end"):
        list(cluster.read({WHERE: (0, 3)}))


@pytest.mark.parametrize("output", ["json", "text"])
def test_a_report_that_cannot_be_written_accuses_nobody(output: str):
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    def ask() -> Findings:
        findings = Findings()
        findings.facts["batches"] = 1
        return findings

    assert run(ask, output, Full()) == CHECKER_FAILED


class Message:
    def __init__(self, key: bytes, offset: int) -> None:
        self._key, self._offset = key, offset

    def key(self) -> bytes:
        return self._key

    def offset(self) -> int:
        return self._offset


class SharedLedger(Cluster):
    """Two records, neither decided."""

    def __init__(self, *keys: bytes) -> None:
        self.records = [Message(key, offset) for offset, key in enumerate(keys)]

    def ends(self, partitions: Any, isolation: str = "read_uncommitted") -> Any:
        return dict.fromkeys(partitions, 0 if isolation == "read_committed" else len(self.records))

    def read(self, ranges: Any, isolation: str = "read_committed") -> Any:
        for where, (start, end) in ranges.items():
            for message in self.records[start:end]:
                yield where, [message], np.array([message.offset()])


@pytest.mark.parametrize(
    ("keys", "verdict"),
    [((b"p", b"q"), "violated"), ((b"q", b"p"), "inconclusive"), ((b"q", b"q"), "exactly_once")],
)
def test_the_transaction_that_never_ends_may_be_another_pipelines(
    keys: tuple[bytes, ...], verdict: str
) -> None:
    cluster: Any = SharedLedger(*keys)
    findings = Findings()
    question = TopicsQuestion(bootstrap_servers="", pipeline_id="p", expect_caught_up=True)
    _report_undecided(read_ledger(cluster, "ledger", "p", settle_s=0), question, findings)
    assert findings.verdict == verdict


class Copy(DatabaseSnapshot):
    """A database with one batch, which has read ten records of twenty, and no tables."""

    names_writers = True
    replicated = False
    batch: ClassVar = {
        "version": 2, "sequence": 0, "query_id": "q", "batch_id": 0, "attempt": [7, 1],
        "sources": [{"start": {"in": {"0": 0}}, "end": {"in": {"0": 10}}}], "outputs": {},
    }  # fmt: skip

    def __enter__(self) -> Copy:
        return self

    def __exit__(self, *_: object) -> None: ...

    def is_replica(self) -> bool:
        return self.replicated

    def find_table(self, name: str) -> TableRef:
        return TableRef(name, name)

    def ledger_end(self, ledger: TableRef, pipeline_id: str) -> int:
        return 0

    def batches(self, batches: TableRef, pipeline_id: str) -> list[StoredRecord]:
        return [StoredRecord(0, json.dumps(self.batch).encode())]

    def row_counts(self, table: TableRef) -> dict[int, int]:
        return {}

    def staging_tables(self, ledger: TableRef) -> list[str]:
        return []


@pytest.mark.parametrize(("replicated", "verdict"), [(False, "violated"), (True, "inconclusive")])
def test_what_a_replica_does_not_have_yet_is_not_the_pipelines_lag(
    monkeypatch: pytest.MonkeyPatch, replicated: bool, verdict: str
) -> None:
    cluster = SimpleNamespace(
        partitions=lambda topic: [(topic, 0)],
        starts=lambda _: {("in", 0): 0},
        ends=lambda *_: {("in", 0): 20},
    )
    monkeypatch.setattr(checkers, "Cluster", lambda *_, **__: cluster)
    monkeypatch.setattr(Copy, "replicated", replicated)
    monkeypatch.setattr(tables, "connect", lambda _: Copy())
    question = tables.TablesQuestion(
        url="", pipeline_id="p", bootstrap_servers="b:9092", expect_caught_up=True
    )
    found = tables.check_tables(question)
    assert (found.verdict, found.facts["replica"]) == (verdict, replicated)
    assert found.facts["sources"]["in"]["records_behind"] == 10
    assert ("read from a replica" in as_text(found)) is replicated
    assert ("name that with --database-url" in as_text(found)) is replicated


def test_a_standby_that_ends_a_long_look_leads_to_the_primary() -> None:
    def conflict(*_: Any) -> Any:
        raise SerializationFailure("canceling statement due to conflict with recovery")

    snapshot = object.__new__(PostgreSQLSnapshot)
    snapshot._connection = cast("Any", SimpleNamespace(execute=conflict))
    with pytest.raises(CannotTell, match="conflict with recovery") as told:
        snapshot.row_counts(TableRef("t", "t"))
    assert "max_standby_streaming_delay" in told.value.next_step


@pytest.mark.parametrize(
    ("words", "is_replica"),
    [("0 0", False), ("OFF 0", False), ("1 0", True), ("ON 0", True), ("0 1", True)],
)
def test_a_server_of_mysql_or_mariadb_that_takes_no_writes_is_a_replica(
    monkeypatch: pytest.MonkeyPatch, words: str, is_replica: bool
) -> None:
    """`read_only` comes as a number or as a word; Aurora has the other one (`innodb_read_only`)."""
    snapshot = object.__new__(MySQLSnapshot)
    monkeypatch.setattr(snapshot, "_query", lambda _: [(words,)])
    assert snapshot.is_replica() is is_replica


def test_why_nobody_can_tell_is_shown_and_no_terminal_obeys_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def ask() -> Any:
        raise CannotTell("the server says \x1b[2J", next_step="see \x9b2J")

    run(ask, "text", io.StringIO())
    assert capsys.readouterr().err == (
        "CANNOT TELL: the server says \\x1b[2J. Next: see \\x9b2J.\n"
    )


def test_a_checker_that_fails_accuses_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    def ask() -> Any:
        raise FileNotFoundError("a segment that retention has just deleted")

    stream = io.StringIO()
    assert run(ask, "json", stream) == 70
    assert json.loads(stream.getvalue())["verdict"] == "inconclusive"
    assert "Traceback" in capsys.readouterr().err
