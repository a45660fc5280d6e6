"""The verdict is multiset equality, never "contains"; transactions are read off the offsets."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceward.testing.transaction_runs import TransactionRun, transaction_runs
from onceward.testing.verdict import exactly_once

multisets = st.lists(st.sampled_from("abcdef"), max_size=30)


def test_equal_multisets_hold_in_any_order() -> None:
    verdict = exactly_once(["a", "b", "b"], ["b", "a", "b"])
    assert verdict.holds
    assert (verdict.expected, verdict.visible) == (3, 3)


def test_each_kind_of_difference_is_told_apart_and_counted() -> None:
    verdict = exactly_once(["a", "b", "b", "c"], ["b", "c", "c", "c", "x", "x"])
    assert not verdict.holds
    assert verdict.lost == Counter(a=1, b=1)
    assert verdict.duplicates == Counter(c=2)
    assert verdict.unexpected == Counter(x=2)
    assert "lost 2 ('a', 'b')" in str(verdict)


def test_a_loss_and_a_duplicate_do_not_cancel_out() -> None:
    verdict = exactly_once(["a", "b"], ["a", "a"])
    assert verdict.expected == verdict.visible
    assert not verdict.holds


@given(multisets, multisets)
def test_differences_add_up_to_the_two_sides(expected: list[str], visible: list[str]) -> None:
    verdict = exactly_once(expected, visible)
    rebuilt = Counter(expected) - verdict.lost + verdict.duplicates + verdict.unexpected
    assert rebuilt == Counter(visible)
    assert verdict.holds == (Counter(expected) == Counter(visible))


def test_runs_end_at_the_gaps_that_markers_leave() -> None:
    # records 0-2, marker 3 (commit), records 4-5, marker 6 (abort), marker 7 (nothing sent), record 8, marker 9
    runs = transaction_runs([0, 1, 2, 4, 5, 8], [8, 0, 1, 2])
    assert runs == [TransactionRun(0, 2, True), TransactionRun(4, 5, False), TransactionRun(8, 8, True)]
    assert [run.count for run in runs] == [3, 2, 1]


def test_a_transaction_visible_in_part_is_an_error() -> None:
    with pytest.raises(ValueError, match="only 1 are visible"):
        transaction_runs([0, 1, 3], [0, 3])


def test_visible_offsets_that_are_not_there_are_an_error() -> None:
    with pytest.raises(ValueError, match="missing"):
        transaction_runs([0, 1], [0, 1, 5])


@given(st.lists(st.tuples(st.integers(1, 5), st.booleans()), max_size=20))
def test_runs_are_what_was_written(transactions: list[tuple[int, bool]]) -> None:
    uncommitted: list[int] = []
    committed: list[int] = []
    written = []
    position = 0
    for count, commit in transactions:
        offsets = list(range(position, position + count))
        uncommitted += offsets
        committed += offsets if commit else []
        written.append(TransactionRun(offsets[0], offsets[-1], commit))
        position += count + 1
    assert transaction_runs(uncommitted, committed) == written
