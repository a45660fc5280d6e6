"""What a table's number of rows says, beside what batches are told to have written, and what it
does not.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from onceward_verify.chain import BatchChain
from onceward_verify.database import TableRef
from onceward_verify.findings import Findings
from onceward_verify.ledger import LedgerBatch, TablePart
from onceward_verify.table_rows import check_totals, row_bounds

APPENDED = [("append", 3), ("append", 2)]
UPSERTED = [("append", 3), ("upsert", 2)]


def findings_of(
    told: Sequence[tuple[str, int]],
    rows: int,
    *,
    from_the_beginning: bool = True,
    shared: bool = False,
    gap: bool = False,
) -> Findings:
    batches = tuple(
        LedgerBatch(
            number,
            "q",
            number,
            (),
            (),
            (0, 0),
            "ledger",
            0,
            number,
            tables=(TablePart("t", count, mode),),
        )
        for number, (mode, count) in enumerate(told)
    )
    findings = Findings(facts={"tables": {}})
    if gap:
        findings.anomaly("ledger-gap", "I6", "ledger", "no record of sequence 7")
    chain = BatchChain(batches, batches, from_the_beginning)
    check_totals(rows, TableRef("t", "s.t"), frozenset({"t"}), chain, findings, shared=shared)
    return findings


@pytest.mark.parametrize(
    ("told", "bounds"),
    [
        ([], (0, 0)),
        (APPENDED, (5, 5)),
        (UPSERTED, (3, 5)),
        ([("upsert", 4)], (1, 4)),
        ([("upsert", 0)], (0, 0)),
        ([("append", 3), ("changes", 2)], (1, 5)),
        ([("changes", 2), ("append", 3)], (3, 5)),
        ([("a mode of later versions", 2)], (0, 2)),
    ],
)
def test_how_many_rows_there_may_be(
    told: Sequence[tuple[str, int]], bounds: tuple[int, int]
) -> None:
    assert row_bounds([TablePart("t", count, mode) for mode, count in told]) == bounds


@pytest.mark.parametrize(
    ("told", "rows", "verdict", "names"),
    [
        (APPENDED, 5, "exactly_once", []),
        (APPENDED, 4, "violated", ["lost-write"]),
        (APPENDED, 6, "violated", ["unaccounted-write"]),
        (UPSERTED, 2, "violated", ["lost-write"]),
        (UPSERTED, 3, "inconclusive", []),
        (UPSERTED, 5, "inconclusive", []),
        (UPSERTED, 6, "violated", ["unaccounted-write"]),
    ],
)
def test_what_a_total_says(
    told: Sequence[tuple[str, int]], rows: int, verdict: str, names: list[str]
) -> None:
    found = findings_of(told, rows)
    assert (found.verdict, [one.name for one in found.anomalies]) == (verdict, names)
    assert found.facts["tables"]["s.t"] == {
        "rows": rows,
        "told_rows": 5,
        "batches": 2,
        "anomalies": names,
    }


@pytest.mark.parametrize("rows", [4, 5, 6])
def test_where_others_write_it_says_nothing(rows: int) -> None:
    found = findings_of(APPENDED, rows, shared=True)
    assert (found.verdict, found.anomalies) == ("inconclusive", [])


@pytest.mark.parametrize("rows", [4, 5, 6])
def test_where_records_are_missing_it_adds_nothing(rows: int) -> None:
    found = findings_of(APPENDED, rows, gap=True)
    assert [one.name for one in found.anomalies] == ["ledger-gap"]
    assert len(found.not_covered) == 1


@pytest.mark.parametrize(("rows", "names"), [(4, ["lost-write"]), (5, []), (6, [])])
def test_where_there_were_batches_before_only_fewer_rows_say_something(
    rows: int, names: list[str]
) -> None:
    found = findings_of(APPENDED, rows, from_the_beginning=False)
    assert [one.name for one in found.anomalies] == names
    assert found.verdict == ("violated" if names else "inconclusive")
