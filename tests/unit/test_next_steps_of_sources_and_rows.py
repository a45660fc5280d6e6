"""Whoever does what an error of a source of one's own, or of rows, says is done: each row has what
was wrong, the words of the next step, and what is done with them. No server and no Spark.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import types as t

import onceward as ow
from onceward.custom.resettable import source
from onceward.custom.resettable.fitting import Fitting
from onceward.custom.resettable.offsets import Offset, as_partition, logged_position
from onceward.custom.resettable.ranges import Ranges
from onceward.delivery.upserts import UpsertColumns
from onceward.errors import RowRefused
from onceward.sql.mysql import staging as mysql_staging
from onceward.sql.postgresql import staging as postgresql_staging
from onceward.sql.sink import columns
from onceward.sql.sink.columns import Written
from support.next_steps import Done, Wrong, advice, case_name, follow_whole

LEDGER = ow.FolderLedger("/ledger")


class Numbers:
    """A source of one's own: its answers are what a test wants."""

    def __init__(self, answer: Any = None, identity: Any = None) -> None:
        self.answer, self.name = answer, identity

    def start(self) -> Any:
        return 0

    def identity(self) -> Any:
        return self.name

    def read(self, position: Any, limit: int) -> Any:
        return self.answer


def read(answer: Any) -> Wrong:
    schema = t.StructType().add("n", t.LongType(), False)
    return lambda: Ranges(Numbers(answer), Fitting(schema), 2)._read(0, 2)


def named(identity: Any) -> Wrong:
    schema = t.StructType().add("n", t.LongType())
    return lambda: Ranges(Numbers(None, identity), Fitting(schema), 2)._identity()


checks: Any = functools.partial(source._check, ledger=None, pipeline=None)
OFFSET = Offset(5, 0, 5, "c", None)
SOURCES: list[tuple[Wrong, str, Done]] = [
    (
        read([(1,)]),
        "return two things, `return rows, next_position`",
        lambda: read(([(1,)], 1))(),
    ),
    (
        read(("rows", 1)),
        "return a pyarrow Table or RecordBatch, or a list of tuples or dicts",
        lambda: [
            read((given, 1))()
            for given in (pa.table({"n": [1]}), pa.record_batch({"n": [1]}), [(1,)], [{"n": 1}])
        ],
    ),
    (read(([(1,), (2,), (3,)], 3)), "return at most `limit` rows: .+", read(([(1,), (2,)], 2))),
    (read(([(1,)], 0)), "return the position behind the last row", read(([(1,)], 1))),
    (
        named(5),
        "return a string, or None where there is none",
        lambda: [named(name)() for name in ("a", None)],
    ),
    (
        lambda: logged_position({1, 2}, "start()"),
        "make positions of strings, numbers, true, false, null, lists and objects",
        lambda: [logged_position(x, "start()") for x in ("a", 1, True, None, [1], {"a": 1})],
    ),
    (
        lambda: as_partition({1, 2}, "partitions(1, 2)"),
        "make partitions of strings, numbers, true, false, null, lists and objects",
        lambda: [as_partition(x, "partitions(1, 2)") for x in ("a", 1, True, None, [1], {"a": 1})],
    ),
    (
        lambda: logged_position("x" * 1_000_000, "start()"),
        r"keep it below (\d+) characters: a cursor, not what was read",
        lambda most: logged_position("x" * (int(most) - 3), "start()"),
    ),
    (
        lambda: Offset.from_json({"kafka": 1}),
        "start this query with a checkpoint of its own, .+",
        lambda: Offset.from_json(OFFSET.to_json()),
    ),
    (
        lambda: checks(0, 1),
        r"use a whole number of rows, (\d+) or more",
        lambda least: checks(int(least), 1),
    ),
    (
        lambda: checks(1, 61),
        r"use seconds, from (\d+) to (\d+); for longer pauses, a processing-time trigger",
        lambda least, most: [checks(1, int(each)) for each in (least, most)],
    ),
    (
        lambda: checks(1, 1, ledger=LEDGER),
        "pass both, those of the sink, to begin where its ledger ends; or none of them",
        lambda: (checks(1, 1, ledger=LEDGER, pipeline="p"), checks(1, 1)),
    ),
]


@pytest.mark.parametrize(("wrong", "says", "does"), SOURCES, ids=case_name)
def test_a_source_as_it_is_asked_for(wrong: Wrong, says: str, does: Done):
    follow_whole(wrong, says, does)


@pytest.mark.parametrize("setting", ["key", "version", "op_column"])
def test_a_column_of_upserts_is_cast_as_it_is_offered(setting: str):
    def check(kind: t.DataType) -> None:
        given = ("x",) if setting == "key" else ("id",)
        names: dict[str, Any] = {"version": None, "op": None}
        names |= {setting.removesuffix("_column"): "x", "key": given}
        schema = t.StructType().add("id", t.LongType()).add("x", kind)
        UpsertColumns("p", **names).check(schema)

    step = advice(lambda: check(t.DoubleType()))
    for kind in step.removeprefix("add it, or cast it to one of ").split(", "):
        check(getattr(t, f"{kind.capitalize()}Type")())


NAN = float("nan")
Check = Callable[[pa.Table], object]


def stays(**written: Any) -> Check:
    return lambda given: columns.must_stay_as_they_are(given, [Written("x", **written)], "t")


def staged_by_mysql(given: pa.Table) -> object:
    return [mysql_staging._text("x", column) for column in given.column("x").chunks]


def filtered(given: pa.Table) -> pa.Table:
    """Leave the first row out, which is the one that does not fit."""
    return given.slice(1)


def shortened(given: pa.Table) -> pa.Table:
    values = given.column("x")
    short = pc.binary_slice if pa.types.is_binary(values.type) else pc.utf8_slice_codeunits
    return pa.table({"x": short(values, 0, 3)})


MEND = "mend or filter such rows in the query"
VALUES: list[tuple[Check, pa.Array, str, list[Callable[[pa.Table], pa.Table]]]] = [
    (stays(longest=3), pa.array(["long", "a"]), "shorten the value", [shortened]),
    (stays(most_bytes=3), pa.array([b"long", b"a"]), "shorten the value", [shortened]),
    (stays(never_null=True), pa.array([None, "a"]), "filter them", [filtered]),
    (stays(labels=("a", "b")), pa.array(["c", "a"]), MEND, [filtered]),
    (staged_by_mysql, pa.array([NAN, 1.0]), "makes nulls of both", [filtered]),
    (staged_by_mysql, pa.array([-800_000, 1], pa.date32()), MEND, [filtered]),
    (
        postgresql_staging.must_be_storable,
        pa.array([-3_000_000, 1], pa.date32()),
        MEND,
        [filtered],
    ),
    (postgresql_staging.must_be_storable, pa.array(["a\0", "a"]), MEND, [filtered]),
    (
        postgresql_staging.must_be_storable,
        pa.array([b"\xff", b"a"]).view(pa.string()),
        "is_valid_utf8 finds such",
        [filtered],
    ),
    (
        lambda given: columns.python_values(given.column("x"), "x"),
        pa.array([b"\xff", b"a"]).view(pa.string()),
        "is_valid_utf8 finds such",
        [filtered],
    ),
]


@pytest.mark.parametrize(("check", "values", "says", "mended"), VALUES)
def test_rows_are_written_once_they_are_mended_as_it_is_said(
    check: Check, values: pa.Array, says: str, mended: list[Callable[[pa.Table], pa.Table]]
):
    given = pa.table({"x": values})
    with pytest.raises(RowRefused) as refused:
        check(given)
    assert says in refused.value.next_step
    for mend in mended:
        check(mend(given))
