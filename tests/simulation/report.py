"""What a campaign of seeds says of itself, in Markdown."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

from simulation import coverage, swarm
from simulation.campaign import Campaign

HERE = Path(__file__).resolve().parent


def markdown(
    campaign: Campaign, title: str = "Simulation: the protocol, one seed after the other"
) -> str:
    tally = campaign.tally
    pairs, rows = coverage.all_pairs(), coverage.all_rows()
    unmet_pairs, unmet_rows = coverage.never(tally.pairs, pairs), coverage.never(tally.rows, rows)
    facts: list[tuple[str, Any]] = [
        ("date", datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")),
        ("commit", commit()),
        ("seeds", f"{campaign.first} to {campaign.next_seed - 1}, {tally.seeds:,} in all"),
        ("batches of",
        ", ".join(f"{kind} {n:,}" for kind, n in sorted(tally.by_pipeline.items()))),
        ("batches committed", f"{tally.batches:,}"),
        ("batches a second", f"{tally.batches / max(campaign.seconds, 1e-9):,.0f} in "
                             f"{campaign.jobs} process(es)"),
        ("CPU for a batch", f"{campaign.cpu_seconds / max(tally.batches, 1) * 1e6:,.0f} µs"),
        ("time", f"{campaign.seconds:,.0f} s; {tally.seconds / 86_400:,.1f} days of virtual time"),
        ("machine", f"{os.cpu_count()} cores, Python {platform.python_version()}"),
        ("steps", f"{tally.steps:,}; the longest story {tally.longest[0]:,} (seed "
                  f"{tally.longest[1]})"),
        ("faults", f"{sum(tally.fired.values()):,} of {len(tally.fired)} kinds; stories without "
                   f"any {tally.calm:,}"),
        ("(step, fault) pairs met", f"{len(pairs) - len(unmet_pairs)} of {len(pairs)}"),
        ("rows of the error table met", f"{len(rows) - len(unmet_rows)} of {len(rows)}"),
        ("violations", len(tally.violations)),
    ]  # fmt: skip
    parts = [f"# {title}", _table(("", ""), facts)]
    if tally.violations:
        parts += [
            "## Violations",
            _table(("what", "told again by"), [(v[0], f"`{c}`") for _, c, v in tally.violations]),
        ]
    parts += [
        "## Faults that happened",
        _table(("kind", "times"), [(k, f"{n:,}") for k, n in _sorted(tally.fired)]),
    ]
    parts += [
        "## What stopped a query",
        _table(("error", "times"), [(k, f"{n:,}") for k, n in _sorted(tally.stops)]),
    ]
    met = [(" ".join(map(str, one)), f"{n:,}") for one, n in _sorted(tally.met)]
    if met:
        parts += ["## What else was met", _table(("what", "stories"), met)]
    parts += ["## What no seed has met", never_met(campaign)]
    return "\n\n".join(parts) + "\n"


def never_met(campaign: Campaign) -> str:
    """Kinds of faults that never happened, pairs and rows that were not met; by step and by
    request.
    """
    tally = campaign.tally
    kinds = coverage.never(tally.fired, swarm.faults())
    pairs: dict[str, list[str]] = {}
    for step, kind in coverage.never(tally.pairs, coverage.all_pairs()):
        pairs.setdefault(step, []).append(kind)
    rows: dict[str, list[str]] = {}
    for api, code in coverage.never(tally.rows, coverage.all_rows()):
        rows.setdefault(api, []).append(str(code))
    table = [("kinds", ", ".join(kinds))] if kinds else []
    table += [(f"in step {step}", ", ".join(missing)) for step, missing in pairs.items()]
    table += [(f"answers to {api}", ", ".join(codes)) for api, codes in rows.items()]
    return _table(("", "never"), table) if table else "Nothing."


def commit() -> str:
    found = subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD"],
        cwd=HERE,
        capture_output=True,
        text=True,
        check=False,
    )
    return found.stdout.strip() or "unknown"


def _sorted(counter: Counter[Any]) -> list[tuple[Any, int]]:
    return sorted(counter.items(), key=lambda item: (-item[1], item[0]))


def _table(head: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(
        "| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines
    )
