"""What a failure of Spark's own writers means, by what the JVM threw: without a JVM."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from pyspark.errors import AnalysisException

from onceward.errors import InvalidColumn, OncewardError, RowRefused, SendFailed
from onceward.spark.batch import write_errors
from onceward.spark.batch.causes import Thrown
from support.errors import raises

UNMAPPABLE = Thrown(
    "java.nio.file.InvalidPathException", "Malformed input or input contains unmappable characters"
)
THERE = Thrown(
    "org.apache.hadoop.fs.FileAlreadyExistsException", "File already exists: /data/v=??/part-00000"
)
RULE = Thrown(
    "org.apache.spark.sql.delta.schema.DeltaInvariantViolationException",
    "CHECK constraint short violated by row with values:\n - value : secret",
)
MINE = Thrown(
    "org.apache.hadoop.fs.FileAlreadyExistsException", "File already exists: /data/v=a/part-00000"
)
FULL = Thrown("java.io.IOException", "No space left on device")


@pytest.mark.parametrize(
    ("thrown", "utf8", "error"),
    [
        ([UNMAPPABLE], False, RowRefused),
        (
            [THERE],
            False,
            RowRefused,
        ),  # the second try of a task, under the name that the first one has mangled
        ([MINE], False, SendFailed),
        ([UNMAPPABLE], True, SendFailed),
        ([THERE], True, SendFailed),
        ([FULL], False, SendFailed),
    ],
)
def test_a_name_that_the_jvm_cannot_write_is_the_datas_fault_where_its_locale_is_not_utf8(
    monkeypatch: pytest.MonkeyPatch,
    thrown: Sequence[Thrown],
    utf8: bool,
    error: type[OncewardError],
):
    monkeypatch.setattr(write_errors, "thrown_by", lambda _: tuple(thrown))
    monkeypatch.setattr(write_errors, "names_are_utf8", lambda: utf8)
    for has_partitions, kind in ((True, error), (False, SendFailed)):
        with (
            pytest.raises(kind) as told,
            write_errors.failures_told("to it", "/data", rows_name_folders=has_partitions),
        ):
            raise RuntimeError("the job failed")
        assert ("LC_ALL" in told.value.next_step) == (kind is RowRefused)


def test_a_rule_of_the_table_that_a_row_breaks_is_the_rows_fault(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        write_errors,
        "thrown_by",
        lambda _: (Thrown("org.apache.spark.SparkException", "failed"), RULE),
    )
    with (
        raises(RowRefused) as refused,
        write_errors.failures_told("as delta", "/data"),
    ):
        raise RuntimeError("the job failed")
    assert "secret" not in str(refused.value)


def test_a_table_that_is_not_found_while_it_is_written_may_come_back(
    monkeypatch: pytest.MonkeyPatch,
):
    """It was there when the batch began: a catalog that is away for a moment says so, too."""
    missing = Thrown("org.apache.spark.sql.AnalysisException", "no t", "TABLE_OR_VIEW_NOT_FOUND")
    monkeypatch.setattr(write_errors, "thrown_by", lambda error: (missing,))
    with pytest.raises(SendFailed), write_errors.failures_told("to t", "table t"):
        raise AnalysisException("no t")
    monkeypatch.setattr(write_errors, "thrown_by", lambda error: ())
    with pytest.raises(InvalidColumn), write_errors.failures_told("to t", "table t"):
        raise AnalysisException("no column")
