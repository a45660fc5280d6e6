"""Pictures of batches as inline SVG, without styles of their own: the pages allow none. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape

from onceward.operate.status import LedgerEntry

STEPS = ("send", "plan", "open", "check")
"""Those that have a color of their own."""


def text(value: object) -> str:
    """Return a value for HTML, also inside an attribute's quotes."""
    return escape(str(value), quote=True)


def strip(entries: Sequence[LedgerEntry], *, height: int) -> str:
    """Return a picture of batches, a bar each, in pieces of its steps."""
    if not entries:
        return ""
    pieces = [_pieces(entry) for entry in entries]
    highest = max(1, *(sum(each.values()) for each in pieces))
    bars = "".join(
        f"<g><title>batch {entry.batch_id}: {entry.records:,} records{_described(entry)}</title>"
        f"{_stack(6 * n, of, height, highest)}</g>"
        for n, (entry, of) in enumerate(zip(entries, pieces, strict=True))
    )
    width = 6 * len(entries)
    return (
        f'<svg class="strip" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="the last {len(entries)} batches">{bars}</svg>'
    )


def _pieces(entry: LedgerEntry) -> dict[str, float]:
    """Return how high a batch is, by step; its records where the ledger has no steps of it."""
    seconds_by_step = {
        step: float(entry.steps_ms[step]) for step in STEPS if step in entry.steps_ms
    }
    other = sum(took for step, took in entry.steps_ms.items() if step not in STEPS)
    return (
        {**seconds_by_step, "other": float(other)}
        if entry.steps_ms
        else {"records": float(entry.records)}
    )


def _described(entry: LedgerEntry) -> str:
    return "".join(f", {text(step)} {took} ms" for step, took in entry.steps_ms.items())


def _stack(x: int, pieces: Mapping[str, float], height: int, highest: float) -> str:
    found, y = "", float(height)
    for step, size in pieces.items():
        tall = max(0.5, height * size / highest)
        y -= tall
        found += (
            f'<rect x="{x}" y="{max(0.0, y):.1f}" width="5" height="{tall:.1f}" class="{step}"/>'
        )
    return found


def plot(title: str, unit: str, times: Sequence[float], values: Sequence[float]) -> str:
    if len(times) < 2:
        return f"<h2>{title}</h2><p>Two batches more, and there is a line.</p>"
    data = json.dumps({"x": times, "y": [round(value, 3) for value in values], "unit": unit})
    return (
        f'<h2>{title}</h2><figure class="plot" data-plot="{text(data)}" role="img" '
        f'aria-label="{title}: {values[-1]:,.1f} {unit} now, {max(values):,.1f} at most"></figure>'
    )


def line(title: str, unit: str, times: Sequence[float], values: Sequence[float]) -> str:
    """Return a plot as a picture that needs no script."""
    if len(times) < 2:
        return ""
    first, last, highest = times[0], times[-1], max(values) or 1.0
    points = " ".join(
        f"{600 * (x - first) / ((last - first) or 1):.1f},{120 - 110 * y / highest:.1f}"
        for x, y in zip(times, values, strict=True)
    )
    return (
        f'<h2>{title}</h2><svg class="line" viewBox="0 0 600 120" width="600" height="120" '
        'role="img" '
        f'aria-label="{title}: {values[-1]:,.1f} {unit} now"><polyline points="{points}"/></svg>'
        f"<p>At most {highest:,.1f} {unit}; now {values[-1]:,.1f}.</p>"
    )
