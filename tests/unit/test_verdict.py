"""The verdict is multiset equality, never "contains"."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from onceward_testing.verdict import exactly_once

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
