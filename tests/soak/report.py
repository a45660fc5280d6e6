"""The table at the end of a soak, as text and as Markdown: what was done to the pipelines, and
what became of it.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from .plan import KILLS, KINDS
from .workload import PIPELINES


@dataclass(frozen=True)
class Recovery:
    """Seconds from a kill until every pipeline has committed a batch again."""

    kind: str
    seconds: float


@dataclass(frozen=True)
class Report:
    """Rows of the table, and the two verdicts."""

    rows: Sequence[tuple[str, str]]
    safety: Sequence[str]
    liveness: Sequence[str]

    @property
    def passed(self) -> bool:
        return not self.safety and not self.liveness

    def text(self) -> str:
        width = max(len(name) for name, _ in self.rows)
        lines = [f"{name:<{width}}  {value}" for name, value in self.rows]
        return "\n".join([*lines, *self._violations("  ")])

    def markdown(self, title: str) -> str:
        lines = [f"# {title}", "", "| | |", "|---|---|"]
        lines += [f"| {name} | {value} |" for name, value in self.rows]
        return "\n".join([*lines, "", *self._violations("* ")]).rstrip() + "\n"

    def _violations(self, mark: str) -> list[str]:
        return [f"{mark}{violation}" for violation in (*self.safety, *self.liveness)]


def recoveries(
    journal: Iterable[dict[str, Any]], news: Iterable[dict[str, Any]]
) -> list[Recovery]:
    """One for each kill after which all pipelines have committed again; a later kill may have come
    in between.
    """
    commits: dict[str, list[float]] = {pipeline: [] for pipeline in PIPELINES}
    for told in news:
        if told["what"] == "step" and (told["step"], told["phase"]) == ("commit", "finished"):
            commits[told["pipeline"]].append(told["at"])
    found = []
    for entry in journal:
        if entry["what"] == "fault" and entry["kind"] in KILLS:
            began = entry["began"]
            back = [next((at for at in times if at > began), None) for times in commits.values()]
            if None not in back:
                found.append(
                    Recovery(entry["kind"], max(at for at in back if at is not None) - began)
                )
    return found


def fault_rows(journal: Sequence[dict[str, Any]], planned: Counter[str]) -> list[tuple[str, str]]:
    """Faults by kind, and the kills in all."""
    fired = Counter(entry["kind"] for entry in journal if entry["what"] == "fault")
    rows = [(f"fault {kind}", f"planned {planned[kind]}, fired {fired[kind]}") for kind in KINDS]
    kills = ", ".join(f"{kind.removeprefix('kill-')} {fired[kind]}" for kind in KILLS)
    return [*rows, ("kills", f"{sum(fired[kind] for kind in KILLS)}: {kills}")]


def recovery_rows(found: Sequence[Recovery]) -> list[tuple[str, str]]:
    """Minimum, median and maximum by kind of kill."""
    rows = []
    for kind in KILLS:
        seconds = sorted(entry.seconds for entry in found if entry.kind == kind)
        if seconds:
            spread = (
                f"min {seconds[0]:.1f} s, median {statistics.median(seconds):.1f} s, max "
                f"{seconds[-1]:.1f} s"
            )
            rows.append((f"recovery after {kind}", f"{spread} (of {len(seconds)})"))
    return rows


def step_error_row(fired: Iterable[dict[str, Any]]) -> tuple[str, str]:
    """Fault points that fired, by step."""
    by_step = Counter(":".join(entry["fault"].split(":")[:2]) for entry in fired)
    told = ", ".join(f"{step} {times}" for step, times in sorted(by_step.items()))
    return "errors injected in steps", f"{by_step.total()}: {told}" if by_step else "0"


def attempt_row(news: Iterable[dict[str, Any]]) -> tuple[str, str]:
    """What the engine told of its attempts."""
    told = Counter((entry["step"], entry["phase"]) for entry in news if entry["what"] == "step")
    return (
        "told by the engine",
        f"{told['commit', 'finished']} commits, {told['abort', 'finished']} attempts aborted, "
        f"{told['replay', 'finished']} replays, {told['open', 'finished']} takeovers",
    )


def failure_row(news: Iterable[dict[str, Any]]) -> tuple[str, str]:
    """Why attempts failed that had begun to send, by error and pipeline."""
    failed = (
        told
        for told in news
        if told["what"] == "step" and (told["step"], told["phase"]) == ("send", "failed")
    )
    kinds = Counter(f"{told['pipeline']} {told['error']}" for told in failed)
    told = ", ".join(f"{kind} {times}" for kind, times in sorted(kinds.items()))
    return "attempts that failed while sending", f"{kinds.total()}: {told}" if kinds else "0"


def ends_row(journal: Sequence[dict[str, Any]]) -> tuple[str, str]:
    """Drivers that ended without being killed, by error."""
    ends = [entry for entry in journal if entry["what"] == "driver-ended"]
    kinds = Counter(
        entry["end"][0]["error"] if entry["end"] else f"status {entry['status']}" for entry in ends
    )
    told = ", ".join(f"{kind} {times}" for kind, times in sorted(kinds.items()))
    return "drivers that ended by themselves", f"{len(ends)}: {told}" if ends else "0"


def today() -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
