"""What ``DatabaseSink(xa=True)`` refuses when it is built, and how its transactions are named.
Nothing is connected.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import onceward as ow
from onceward.engine.task_writer import Task
from onceward.engine.two_phase import TwoPhaseTarget
from onceward.errors import ConfigurationError, ContradictoryOptions, RowRefused
from onceward.ids import AttemptId, BatchId, PipelineId, chain_mark
from onceward.sql.mysql.prepared import xid
from onceward.sql.postgresql.prepared import sent_as
from onceward.sql.sink import dialect as names
from onceward.sql.sink.columns import Written, must_stay_as_they_are

POSTGRES, MYSQL = "postgresql://u:p@h/d", "mysql://u:p@h/d"
LARGEST = 2**63 - 1


def sink(**more: Any) -> ow.DatabaseSink:
    return ow.DatabaseSink(
        **{"url": POSTGRES, "table": "t", "pipeline_id": "p", "xa": True, **more}
    )


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"mode": "upsert", "key": "id"}, 'xa=True adds rows, and mode="upsert" replaces some'),
        ({"mode": "changes", "key": "id", "order_by": "at"}, 'mode="changes" replaces some'),
        ({"table": None}, "straight into one table, and table= names none"),
        ({"xa": False, "ledger": ow.KafkaLedger("localhost:9092")}, "ledger= is for xa=True"),
    ],
)
def test_what_contradicts_itself_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ContradictoryOptions, match=said):
        sink(**settings)


@pytest.mark.parametrize(
    ("ledger", "is_beside"),
    [
        (None, True),
        (ow.DatabaseLedger("postgresql://another:login@h/d?sslmode=require", "s.ledger"), True),
        (ow.DatabaseLedger("postgresql://u:p@h/ledgers"), False),
        (ow.DatabaseLedger(MYSQL), False),
        (ow.KafkaLedger("localhost:9092"), False),
        (ow.FolderLedger("/ledger"), False),
    ],
)
def test_it_is_known_whether_the_ledger_is_in_the_database_of_the_table(
    ledger: Any, is_beside: bool
) -> None:
    assert sink(ledger=ledger).settings.is_beside_ledger is is_beside


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"ledger": "somewhere"}, "ledger='somewhere' is no ledger"),
        ({"commit_timeout_s": -1}, "commit_timeout_s=-1 is not a number of seconds"),
        ({"pipeline_id": "p" * 100}, "has 100 characters.*room for 99"),
        ({"pipeline_id": "p" * 56, "url": MYSQL}, "has 56 characters.*room for 55"),
    ],
)
def test_what_cannot_be_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        sink(**settings)


def test_it_is_decided_by_the_ledger(tmp_path: Path) -> None:
    """So that in a fan-out it may be one of several."""
    elsewhere = ow.FolderLedger(tmp_path)
    assert sink().is_atomic is False
    assert sink(xa=False).is_atomic is True
    assert sink(ledger_table="s.ledger").settings.markers == "s.onceward_prepared"
    assert repr(sink()).endswith("mode='append', xa=True)")
    kafka = ow.KafkaSink(bootstrap_servers="h:1", topic="t", pipeline_id="p")
    both = ow.FanOut({"topic": kafka, "table": sink(ledger=ow.KafkaLedger("h:1"))})
    assert "decided by topic" in repr(both)
    target = sink(ledger=elsewhere)._new_target(sink()._policy)
    assert isinstance(target, TwoPhaseTarget)
    assert type(target.chain).__module__.endswith("files.ledger")
    target.close()


@pytest.mark.parametrize(("url", "longest"), [(POSTGRES, 99), (MYSQL, 55)])
def test_the_longest_name_fits(url: str, longest: int) -> None:
    pipeline = PipelineId("p" * longest)
    sink(url=url, pipeline_id=pipeline)
    attempt = AttemptId(LARGEST, 99_999)
    task = Task(pipeline, BatchId("q", LARGEST), attempt, 9_999, 2**31 - 1, 3, LARGEST)
    name = names.transaction_name(task, chain_mark("chain"))
    assert name.startswith(names.attempt_prefix(pipeline, chain_mark("chain"), attempt))
    if url == POSTGRES:
        assert len(name) <= 199
        return
    whose, which, _ = xid(name).split(", ")
    parts = [bytes.fromhex(part[2:-1]).decode() for part in (whose, which)]
    assert "-".join(parts) == name
    assert max(map(len, parts)) <= 64


@pytest.mark.parametrize(
    ("ours", "theirs", "sent"),
    [
        ("bigint", "bigint", ""),
        ("smallint", "bigint", "int64"),
        ("integer", "double precision", "float64"),
        ("numeric(10,2)", "numeric(12,2)", ""),
        ("numeric(10,2)", "numeric", None),
        ("numeric(10,2)[]", "numeric[]", None),
        ("text", "character varying(3)", ""),
        ("bigint[]", "bigint[]", ""),
        ("bigint", "double precision", None),
        ("double precision", "bigint", None),
        ("text", "bigint", None),
        ("text", "jsonb", None),
        ("bigint", "numeric", None),
        ("smallint[]", "bigint[]", None),
        ("date", "timestamp without time zone", None),
    ],
)
def test_a_binary_copy_is_for_one_and_the_same_type(
    ours: str, theirs: str, sent: str | None
) -> None:
    """Where widths agree it would store other values."""
    assert sent_as(ours, theirs) == sent


@pytest.mark.parametrize(
    ("column", "values", "said"),
    [
        (Written("x", longest=3), ["abc", "abc ", None], "has 4 characters"),
        (Written("x", most_bytes=3), ["abc", "üü"], "has 4 bytes"),
        (Written("x", labels=("a", "b")), ["a", "1", None], "none of its labels"),
        (Written("x", never_null=True), ["a", None], "1 rows .* have a null"),
    ],
)
def test_what_a_server_would_change_is_refused(
    column: Written, values: list[str | None], said: str
) -> None:
    rows = pa.table({"x": pa.array(values, pa.string())})
    with pytest.raises(RowRefused, match=said):
        must_stay_as_they_are(rows, [column], "t")
    must_stay_as_they_are(rows.slice(0, 1), [column], "t")
    must_stay_as_they_are(rows.slice(0, 0), [column], "t")
