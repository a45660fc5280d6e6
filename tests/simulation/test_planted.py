"""The lines that the searches for planted faults change are there: those run in ``make chaos``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from simulation import (
    test_database,
    test_fan_out,
    test_file_sink,
    test_two_phase,
    test_write_ahead,
)
from simulation.planted import planted

SEARCHES = (test_fan_out, test_file_sink, test_two_phase, test_write_ahead)


def places() -> Iterator[Any]:
    for module in SEARCHES:
        (mark,) = (
            mark
            for mark in module.test_what_is_wrong_is_found.pytestmark  # type: ignore[attr-defined]
            if mark.name == "parametrize"
        )
        for values in mark.args[1]:
            place = dict(zip(mark.args[0], getattr(values, "values", values), strict=True))
            yield pytest.param(*(place[name] for name in ("owner", "name", "before", "after")))


@pytest.mark.parametrize(("owner", "name", "before", "after"), list(places()))
def test_a_line_that_is_changed_is_there(owner: Any, name: str, before: str, after: str) -> None:
    with planted(owner, name, before, after):
        pass


@pytest.mark.parametrize("name", test_database.PLANTED)
def test_a_line_of_the_database_sink_is_there(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, plant, _, _ = test_database.PLANTED[name]
    with monkeypatch.context() as patch:
        plant(patch)
