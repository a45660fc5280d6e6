"""Targets that a question does not look at: of them the answer is neither yes nor no.

The records are made by the package's own encoder, as its chains write them: one that is decided,
and once all is published the same again, finished, under another attempt.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from onceward.engine.ledger.record import (
    FrameWritten,
    LedgerRecord,
    Output,
    RecordState,
    encode,
)
from onceward.files.ledger import FolderLedger
from onceward.ids import AttemptId, BatchId, PipelineId, SourceRange
from onceward_verify import tables, topics
from onceward_verify.conservation import Conservation
from onceward_verify.database import DatabaseSnapshot, StoredRecord, TableRef
from onceward_verify.files import FilesQuestion, check_files
from onceward_verify.findings import CannotTell, Findings, as_text
from onceward_verify.ledger import Since, parse_batch

ROWS = 3
TOPIC = {"out": {"0": [ROWS, 0, ROWS - 1, "0" * 16]}}


def output(kind: str, data: dict[str, Any]) -> Output:
    return Output(kind, 1, ROWS, data)


def files_of(sequence: int, root: str = "/data/v", size: int = 7) -> Output:
    batch = {
        "folder": "x",
        "root": root,
        "layout": "batches",
        "to": f"batch=p@{sequence:010d}",
        "files": {"part-0.parquet": size},
    }
    return output("files", {"version": 1, "format": "parquet", "committables": [batch]})


def prepared_in(sequence: int, table: str = "orders") -> Output:
    data = {"version": 1, "table": table, "committables": [f"p@x-7.{sequence}-0.x{90 + sequence}"]}
    return output("prepared", data)


def staged() -> Output:
    return output("table", {"mode": "append"})


def targets(kind: str, sequence: int) -> dict[str, Output]:
    return {
        "files": {"files": files_of(sequence)},
        "tables": {"prepared": prepared_in(sequence)},
        "files, tables": {"@a": files_of(sequence), "@b": prepared_in(sequence)},
    }[kind]


def records(*batches: dict[str, Output], compacted: bool = False) -> list[LedgerRecord]:
    """One batch of ``ROWS`` input records for each of ``batches``, which are its outputs."""
    found = []
    for sequence, outputs in enumerate(batches):
        decided, finished = AttemptId(7, 2 * sequence), AttemptId(7, 2 * sequence + 1)
        ends = [{"in": {"0": (sequence + more) * ROWS}} for more in (0, 1)]
        record = LedgerRecord(
            PipelineId("p"),
            sequence,
            BatchId("q", sequence),
            (SourceRange(ends[0], ends[1], None),),
            decided,
            outputs,
            committed_at_ms=1,
            state=RecordState.DECIDED,
            frames=tuple(
                FrameWritten(name if name.startswith("@") else None, each.records)
                for name, each in outputs.items()
            ),
        )
        again = replace(
            record, state=RecordState.FINISHED, attempt=finished, decided=record.attempt
        )
        found += [again] if compacted else [record, again]
    return found


class Cluster:
    """One partition of an input and of an output, read to their ends, and all is committed."""

    group = "p"
    inputs = 0
    outputs = 0

    def __init__(self, *_: object, **__: object) -> None: ...

    def _end(self, where: tuple[str, int]) -> int:
        return self.inputs if where[0] == "in" else self.outputs

    def partitions(self, topic: str) -> list[tuple[str, int]]:
        return [(topic, 0)]

    def starts(self, partitions: Any) -> Any:
        return dict.fromkeys(partitions, 0)

    def ends(self, partitions: Any, isolation: str = "") -> Any:
        return {where: self._end(where) for where in partitions}

    def wait_until_stable(self, targets: Any, settle_s: float) -> Any:
        return dict(targets)

    def group_offsets(self) -> dict[tuple[str, int], int]:
        return {("in", 0): self.inputs}

    def is_compacted(self, topic: str) -> bool:
        return False

    def read(self, ranges: Any, isolation: str = "") -> Any:
        for where, (start, end) in ranges.items():
            if where[0] == "in":
                yield where, [], np.arange(start, end)


def about_topics(
    monkeypatch: pytest.MonkeyPatch, read: list[LedgerRecord], **more: Any
) -> Findings:
    batches = [parse_batch(encode(one), "ledger", 0, n) for n, one in enumerate(read)]
    monkeypatch.setattr(Cluster, "inputs", (batches[-1].sequence + 1) * ROWS)
    monkeypatch.setattr(topics, "Cluster", Cluster)
    monkeypatch.setattr(
        topics, "read_ledger", lambda *_: topics.LedgerReading(batches, [], [], [])
    )
    question = topics.TopicsQuestion(bootstrap_servers="b:9092", pipeline_id="p", **more)
    return topics.check_topics(question)


def left_open(findings: Findings) -> list[str]:
    assert (findings.verdict, findings.anomalies) == ("inconclusive", []), as_text(findings)
    return [what.partition(":")[0] for what in findings.not_covered]


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize("kind", ["files", "tables", "files, tables"])
def test_a_ledger_in_kafka_of_what_are_no_topics(
    monkeypatch: pytest.MonkeyPatch, kind: str, compacted: bool
) -> None:
    """It was VIOLATED for the records that are there twice, or EXACTLY ONCE without them."""
    read = records(*(targets(kind, number) for number in range(3)), compacted=compacted)
    found = about_topics(monkeypatch, read, expect_caught_up=True)
    expected = [f"what 3 batches have put into {each}" for each in sorted(kind.split(", "))]
    assert sorted(left_open(found)) == expected
    assert (found.facts["ledger"]["batches"], found.facts["ledger"]["records"]) == (3, 0)
    assert ("(--files)" in as_text(found)) is ("files" in kind)
    assert ("(--database-url)" in as_text(found)) is ("tables" in kind)


def test_files_of_which_no_batch_has_any_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be some that nobody tells of."""
    empty = Output("files", 1, 0, {"version": 1, "format": "orc", "committables": []})
    found = about_topics(monkeypatch, records({"files": empty}, compacted=True))
    assert left_open(found) == ["what 1 batches have put into files"]


@pytest.mark.parametrize("kind", ["files", "tables"])
def test_what_a_fan_out_writes_beside_a_topic(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """The ledger's records make one chain, and only those of the topic count as looked at."""
    (beside,) = targets(kind, 0).values()
    read = records({"kafka": output("kafka", TOPIC), "@beside": beside})
    monkeypatch.setattr(Cluster, "outputs", ROWS)
    found = about_topics(monkeypatch, read)
    # The stub's topic lacks its records, which is for the topic alone
    assert {one.where for one in found.anomalies} == {"out-0@0..2"}
    assert found.facts["ledger"]["records"] == ROWS
    assert [what.partition(":")[0] for what in found.not_covered] == [
        f"what 1 batches have put into {kind}"
    ]


@pytest.mark.parametrize("newest", ["kafka", "files"])
def test_a_group_that_the_newest_sink_does_not_commit_to_says_nothing_of_its_lag(
    monkeypatch: pytest.MonkeyPatch, newest: str
) -> None:
    """Its offsets are those of a Kafka sink that the pipeline once had."""
    outputs = {"kafka": Output("kafka", 1, 0, {}), "files": files_of(1)}
    read = records({"kafka": outputs["kafka"]}, {newest: outputs[newest]}, compacted=True)
    monkeypatch.setattr(Cluster, "group_offsets", lambda _: {("in", 0): ROWS})
    found = about_topics(monkeypatch, read, expect_caught_up=True)
    assert [one.name for one in found.anomalies] == (["lag"] if newest == "kafka" else [])
    lag = found.facts["sources"]["in"]["group_lag"]
    assert lag == (ROWS if newest == "kafka" else None)


def test_a_pipeline_that_has_moved_to_topics_is_judged_from_there_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read = records(targets("files", 0), {"kafka": Output("kafka", 1, 0, {})})
    assert left_open(about_topics(monkeypatch, read)) == ["what 1 batches have put into files"]
    found = about_topics(monkeypatch, read, since=Since("sequence", 1, "sequence:1"))
    assert "files" not in as_text(found)


@pytest.mark.parametrize("each_topic", [False, True])
def test_an_input_that_another_target_may_name_is_not_lost(
    monkeypatch: pytest.MonkeyPatch, each_topic: bool
) -> None:
    """But where each topic is to name it."""
    rule = Conservation("exactly", each_topic)
    read = records({"kafka": Output("kafka", 1, 0, {}), "@beside": files_of(0)})
    monkeypatch.setattr(Cluster, "outputs", 0)
    found = about_topics(monkeypatch, read, conserves=rule, topics=("out",))
    assert [one.name for one in found.anomalies] == (["lost-input"] if each_topic else [])
    assert found.verdict == ("violated" if each_topic else "inconclusive")


class Database(DatabaseSnapshot):
    """A database with a ledger and a table; each row of a staged sink is there."""

    names_writers = False
    read: ClassVar[list[LedgerRecord]] = []

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *_: object) -> None: ...

    def is_replica(self) -> bool:
        return False

    def find_table(self, name: str) -> TableRef:
        return TableRef(name, name)

    def ledger_end(self, ledger: TableRef, pipeline_id: str) -> int:
        return self.read[-1].sequence

    def batches(self, batches: TableRef, pipeline_id: str) -> list[StoredRecord]:
        return [StoredRecord(one.sequence, encode(one)) for one in self.read]

    def row_counts(self, table: TableRef) -> dict[int, int]:
        return {0: ROWS * sum("orders" in one.outputs for one in self.read)}

    def staging_tables(self, ledger: TableRef) -> list[str]:
        return []


def about_tables(
    monkeypatch: pytest.MonkeyPatch, read: list[LedgerRecord], **more: Any
) -> Findings:
    monkeypatch.setattr(Database, "read", read)
    monkeypatch.setattr(tables, "connect", lambda _: Database())
    return tables.check_tables(tables.TablesQuestion(url="", pipeline_id="p", **more))


def test_a_ledger_in_a_database_of_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of files beside a table, which is judged; and of a pipeline that once wrote files."""
    alone = about_tables(monkeypatch, records(targets("files", 0)))
    assert left_open(alone) == ["what 1 batches have put into files"]
    assert "(--files)" in as_text(alone)
    beside = records({"orders": staged(), "@archive": files_of(0)}, compacted=True)
    found = about_tables(monkeypatch, beside)
    assert left_open(found) == ["what 1 batches have put into files"]
    assert found.facts["tables"]["orders"]["rows"] == found.facts["ledger"]["records"] == ROWS
    moved = records(targets("files", 0), {"orders": staged()}, compacted=True)
    assert "files" in " ".join(left_open(about_tables(monkeypatch, moved)))
    since = Since("sequence", 1, "sequence:1")
    assert "files" not in as_text(about_tables(monkeypatch, moved, since=since))


@pytest.mark.parametrize("names", [{"orders": staged()}, {"@first": prepared_in(0)}])
def test_a_table_that_two_sinks_name_may_be_of_two_databases(
    monkeypatch: pytest.MonkeyPatch, names: dict[str, Output]
) -> None:
    """This one has the rows of one of them, and the others were taken for lost."""
    read = records(names | {"@copy": prepared_in(0)}, compacted=True)
    found = about_tables(monkeypatch, read)
    assert left_open(found) == ["table orders"]


def test_a_table_in_another_database_than_its_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    """This one has a table of the same name, of which the pipeline was told to have lost rows."""
    there = prepared_in(0)
    there = replace(there, data={**there.data, "elsewhere": True})
    read = as_stores_of_one_order_write(records({"prepared": there}))
    found = about_tables(monkeypatch, read)
    assert left_open(found) == ["table orders"]
    # One server may be spelt in two ways
    assert "may be another table" in found.not_covered[0]
    here = as_stores_of_one_order_write(records({"prepared": prepared_in(0)}))
    assert [one.name for one in about_tables(monkeypatch, here).anomalies] == ["lost-write"]


@pytest.mark.parametrize(("second", "is_judged"), [(staged(), True), (prepared_in(0), False)])
def test_a_table_that_is_named_in_two_ways(
    monkeypatch: pytest.MonkeyPatch, second: Output, is_judged: bool
) -> None:
    """By two sinks, or by one that writes to two parts of a table."""
    other = {"@copy": replace(second, data={**second.data, "table": "public.orders"})}
    other = {"public.orders": second} if is_judged else other
    monkeypatch.setattr(Database, "find_table", lambda *_: TableRef("orders", "orders"))
    found = about_tables(monkeypatch, records({"orders": staged()} | other, compacted=True))
    if is_judged:  # The stub has the rows of one name
        assert [one.name for one in found.anomalies] == ["lost-write"]
    else:
        assert left_open(found) == ["table orders"]


def file_below(root: Path) -> Output:
    """A file of three rows below ``root``, which is a batch's."""
    folder = root / "batch=p@0000000000"
    folder.mkdir(parents=True)
    parquet.write_table(pa.table({"a": range(ROWS)}), folder / "part-0.parquet")
    return files_of(0, str(root), (folder / "part-0.parquet").stat().st_size)


def folder_ledger(root: Path, outputs: dict[str, Output]) -> Path:
    """A folder ledger below ``root`` that has one batch."""
    ledger = root / "_onceward" / "ledger" / "p"
    ledger.mkdir(parents=True)
    for slot, record in enumerate(records(outputs)):
        (ledger / f"{slot:020}.json").write_bytes(encode(record))
    return ledger.parent


def test_a_table_beside_files(tmp_path: Path) -> None:
    """It was EXACTLY ONCE, and its rows counted as visible."""
    folder_ledger(tmp_path, {"@files": file_below(tmp_path), "@table": prepared_in(0)})
    found = check_files(FilesQuestion(root=tmp_path, pipeline_id="p"))
    assert left_open(found) == ["what 1 batches have put into tables"]
    assert (found.facts["ledger"]["records"], found.facts["files"]["files"]) == (ROWS, 1)


def as_stores_of_one_order_write(read: list[LedgerRecord]) -> list[LedgerRecord]:
    """As in a folder or a table: what is written again names the attempt that decided alone."""
    return [replace(one, attempt=one.decided or one.attempt, decided=None) for one in read]


@pytest.mark.parametrize(
    ("other", "name"),
    [
        ({}, None),
        ({"batch": BatchId("q", 1)}, "ledger-fork"),
        ({"attempt": AttemptId(8, 1)}, "ledger-fork"),
        ({"outputs": {"files": files_of(9)}}, "ledger-fork"),
    ],
)
def test_two_records_of_one_sequence_are_one_batch_or_a_fork(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, other: dict[str, Any], name: str | None
) -> None:
    """In a folder and in a database the later of them was the only one that was looked at."""
    decided, finished = as_stores_of_one_order_write(records({"files": file_below(tmp_path)}))
    read = [decided, replace(finished, **other)]
    ledger = tmp_path / "_onceward" / "ledger" / "p"
    ledger.mkdir(parents=True)
    for slot, record in enumerate(read):
        (ledger / f"{slot:020}.json").write_bytes(encode(record))
    in_folder = check_files(FilesQuestion(root=tmp_path, pipeline_id="p"))
    in_database = about_tables(monkeypatch, read)
    for found in (in_folder, in_database):
        assert {one.name for one in found.anomalies} == ({name} if name else set())
        assert found.facts["ledger"]["batches"] == 1


def test_what_the_folder_ledger_writes_of_a_batch_is_one_batch(tmp_path: Path) -> None:
    """Its own chain: decided, published in part by its targets, finished by another owner."""
    ledger = FolderLedger(tmp_path / "_onceward" / "ledger")
    (decided, _) = records({"files": file_below(tmp_path)})
    chain = ledger.chain(PipelineId("p"))
    chain.take()
    decided = replace(decided, attempt=chain.begin(None))
    chain.append(decided)
    chain.progress(decided)
    heir = ledger.chain(PipelineId("p"))
    assert heir.take() == decided
    heir.progress(replace(decided, state=RecordState.FINISHED))
    found = check_files(FilesQuestion(root=tmp_path, pipeline_id="p"))
    assert (found.verdict, found.facts["ledger"]["batches"]) == ("exactly_once", 1)


@pytest.mark.parametrize("layout", ["batches", "flat"])
def test_files_at_another_path_than_the_pipelines(tmp_path: Path, layout: str) -> None:
    """As where a path is mistyped, and the ledger's folder is right."""
    ledger = folder_ledger(tmp_path, {"files": file_below(tmp_path / "ours")})
    theirs = tmp_path / "theirs" / ("user=joe@1" if layout == "batches" else "")
    theirs.mkdir(parents=True)
    (theirs / "part-9.parquet").write_bytes(b"")
    question = FilesQuestion(root=tmp_path / "theirs", ledger=ledger, pipeline_id="p")
    found = check_files(question)
    assert len(left_open(found)) == 2
    assert found.facts["files"]["unaccounted_files"] == 1
    ours = check_files(replace(question, root=tmp_path / "ours"))
    assert ours.verdict == "exactly_once", ours.not_covered


@pytest.mark.parametrize("names_ledger", [False, True])
def test_a_folder_that_was_moved_is_the_pipelines(tmp_path: Path, names_ledger: bool) -> None:
    """So that a file of nobody is still found there."""
    before, now = tmp_path / "before", tmp_path / "now"
    folder_ledger(before, {"files": file_below(before)})
    before.rename(now)
    ledger = now / "_onceward" / "ledger" if names_ledger else None
    question = FilesQuestion(root=now, ledger=ledger, pipeline_id="p")
    assert len(left_open(check_files(question))) == 1
    (now / "batch=p@0000000000" / "part-1.parquet").write_bytes(b"")
    assert [one.name for one in check_files(question).anomalies] == ["unaccounted-write"]


@pytest.mark.parametrize("is_there", [False, True])
def test_a_path_of_which_no_batch_has_files_yet(tmp_path: Path, is_there: bool) -> None:
    """Its record names it, too: elsewhere there is nothing to judge, here a file is nobody's."""
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    empty = {"version": 1, "format": "orc", "root": str(ours), "committables": []}
    ledger = folder_ledger(tmp_path, {"files": Output("files", 1, 0, empty)})
    for path in (ours, theirs):
        path.mkdir()
        (path / "part-0.orc").write_bytes(b"")
    root = ours if is_there else theirs
    found = check_files(FilesQuestion(root=root, ledger=ledger, pipeline_id="p"))
    assert found.verdict == ("violated" if is_there else "inconclusive")


@pytest.mark.parametrize("kind", ["two_phase", "write_ahead", "delta", "iceberg"])
def test_kinds_that_no_question_is_about(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str
) -> None:
    read = records({"@a": output(kind, {"version": 1, "committables": ["x"], "delivered": 1})})
    with pytest.raises(CannotTell, match=kind):
        about_topics(monkeypatch, read)
    with pytest.raises(CannotTell, match=kind):
        about_tables(monkeypatch, read)
    folder_ledger(tmp_path, dict(read[0].outputs))
    with pytest.raises(CannotTell, match=kind):
        check_files(FilesQuestion(root=tmp_path, pipeline_id="p"))
