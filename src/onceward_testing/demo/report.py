"""The demo on the screen: progress while it works, and its result, as a table for people and one
JSON line for programs.

The result itself is pure.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

from onceward_testing.demo.kill_plan import Kill
from onceward_testing.demo.outputs import CheckerFacts
from onceward_testing.demo.settings import DemoSettings
from onceward_testing.verdict import Verdict

_PLAIN_PROGRESS_SECONDS = 10.0


class Screen:
    """Progress on stderr, within a ``with`` block: bars on a terminal, plain lines elsewhere.

    :param quiet: show nothing.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self.console = Console(stderr=True, quiet=quiet, highlight=False, soft_wrap=True)
        self._began = time.monotonic()
        self._bars: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._latest: dict[str, tuple[int, int]] = {}
        self._last_plain = 0.0

    @property
    def seconds(self) -> float:
        """Time since the demo began."""
        return time.monotonic() - self._began

    def say(self, text: str, style: str = "") -> None:
        """Print one line with the time in front."""
        self.console.print(
            f"[dim]{self.seconds:6.1f} s[/dim]  {f'[{style}]{text}[/{style}]' if style else text}"
        )

    def advance(self, name: str, done: int, total: int) -> None:
        """Display that ``done`` of ``total`` records are ``name`` (written, visible …)."""
        self._latest[name] = (done, total)
        if self._bars is not None:
            if name not in self._tasks:
                self._tasks[name] = self._bars.add_task(name, total=total)
            self._bars.update(self._tasks[name], completed=done, total=total)
        elif self.seconds - self._last_plain >= _PLAIN_PROGRESS_SECONDS:
            self._last_plain = self.seconds
            self.say(
                ", ".join(
                    f"{name} {done:,} of {total:,}" for name, (done, total) in self._latest.items()
                )
            )

    def __enter__(self) -> Screen:
        if self.console.is_terminal and not self.console.quiet:
            self._bars = Progress(
                TextColumn("{task.description:>22}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                console=self.console,
            )
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bars is not None:
            self._bars.stop()
            self._bars = None


@dataclass(frozen=True)
class OutputFacts:
    """The output beside the model of the input.

    ``verdict``: what a reader sees against what it should. ``aborted_records_hidden``: in a topic,
    how many records of aborted attempts it is not shown; None: elsewhere there is no such thing.
    ``dead_letters``: against the invalid records; None: there were none. ``left_over``: what
    killed attempts have left behind. ``broken``: what else is wrong.
    """

    verdict: Verdict[str]
    aborted_records_hidden: int | None = None
    dead_letters: Verdict[bytes] | None = None
    left_over: list[str] = field(default_factory=list)
    snapshot_rows: int = 0
    broken: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class DemoResult:
    """The facts of one run, and what follows from them.

    :param checked: None: the sink keeps no ledger that could be checked.
    :param finished_batches: in Spark's commit log.
    :param written: of the input.
    """

    settings: DemoSettings
    output: OutputFacts
    checked: CheckerFacts | None
    kills: Sequence[Kill]
    finished_batches: int
    seconds: float
    written: int

    @property
    def violations(self) -> list[str]:
        """List what is wrong, in words; empty when the promise was kept."""
        output, letters = self.output, self.output.dead_letters
        found = [] if output.verdict.holds else [str(output.verdict)]
        found += output.broken
        if letters is not None and not letters.holds:
            found.append(f"dead letters: {letters}")
        if letters is not None and letters.expected == 0:
            found.append(
                "INVALID: no record was invalid, so this shows nothing; use more --records"
            )
        found += [f"left over: {name}" for name in output.left_over]
        if self.checked is not None:
            found += self.checked.violations
            if output.aborted_records_hidden == 0:
                found.append("INVALID: the kills left no aborted records that could be hidden")
        elif not found:
            found.append("INVALID: the kills caused no duplicates; run it again")
        return found

    @property
    def kept(self) -> bool:
        """Return whether exactly once held."""
        return not self.violations

    @property
    def figures(self) -> dict[str, Any]:
        """Return the result by the names that its JSON has.

        ``batches``: with Onceward's sink those in the ledger. ``group_lag``: None where no
        consumer group takes part. ``poison``: invalid records, of which each must be a dead
        letter.
        """
        verdict, letters, checked = self.output.verdict, self.output.dead_letters, self.checked
        names = ("source", "sink", "delivery", "broker_version", "nodes", "master")
        return {
            **{name: getattr(self.settings, name) for name in names},
            "input": self.written,
            "snapshot_rows": self.output.snapshot_rows,
            "expected": verdict.expected,
            "visible": verdict.visible,
            "lost": verdict.lost.total(),
            "duplicates": verdict.duplicates.total(),
            "unexpected": verdict.unexpected.total(),
            "poison": 0 if letters is None else letters.expected,
            "dead_letters": 0 if letters is None else letters.visible,
            "aborted_records_hidden": self.output.aborted_records_hidden,
            "left_over": len(self.output.left_over),
            "kills": len(self.kills),
            "killed_at": [kill.where for kill in self.kills],
            "batches": self.finished_batches if checked is None else checked.batches,
            "group_lag": None if checked is None else checked.group_lag,
            "seconds": round(self.seconds, 1),
            "violations": self.violations,
            "exactly_once": self.kept,
        }

    def to_json(self) -> str:
        """Return one line."""
        return json.dumps(self.figures, ensure_ascii=False)


_SINK = {
    "kafka": ("Onceward's KafkaSink", "a read_committed reader"),
    "postgres": ("Onceward's DatabaseSink, to PostgreSQL,", "a SELECT"),
    "mysql": ("Onceward's DatabaseSink, to MySQL,", "a SELECT"),
    "files": ("Onceward's FileSink", "a reader of Parquet"),
}
_INPUT = {
    "kafka": "records written to the input topic while the job ran",
    "mysql": "changes committed in MySQL, some before the job's first start, most while it ran",
}
_EXPECTED = {
    ("mysql", "kafka"): "each key's row as the snapshot met it, and every change after it",
    ("mysql", "postgres"): "rows of the source's table, in the end",
}
_BATCHES = {
    "exactly_once": "micro-batches in the ledger; `onceward verify` looked at each",
    "at_least_once": "finished micro-batches",
}


def show(result: DemoResult, console: Console) -> None:
    """Print the table, and what it means."""
    settings, figures = result.settings, result.figures
    sink = _SINK[settings.sink][0] if settings.exactly_once else "Spark's own Kafka sink"
    source = "MySQL; " if settings.source == "mysql" else ""
    kafka = f"Kafka {settings.broker_version}, {settings.nodes} node(s)"
    table = Table(title=f"{sink} behind {source}{kafka}", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column()
    for name, figure, meaning in _meanings(settings, result.kills):
        if figures[figure] is not None and figures.get(_SHOWN_WITH.get(figure, "kills")):
            table.add_row(name, f"{figures[figure]:,}", meaning)
    console.print(table)
    for violation in figures["violations"]:
        console.print(f"[red]violated[/red]  {escape(violation)}")
    console.print(_summary(settings, figures))


_SHOWN_WITH = {"snapshot_rows": "snapshot_rows", "poison": "poison", "dead_letters": "poison"}
"""Figures that are of no interest where another one is 0."""


def _meanings(settings: DemoSettings, kills: Sequence[Kill]) -> list[tuple[str, str, str]]:
    numbers = "distinct numbers of 18 characters among them"
    expected = _EXPECTED.get((settings.source, settings.sink), numbers)
    hidden = "records of killed attempts that no such reader sees"
    letters = "records in the dead-letter topic: must be as many, and are compared"
    return [
        ("input", "input", _INPUT[settings.source]),
        ("expected", "expected", expected),
        ("visible", "visible", f"records that {_SINK[settings.sink][1]} sees"),
        ("lost", "lost", "expected and not visible"),
        ("duplicates", "duplicates", "visible more than once"),
        ("left over", "left_over", "staging tables, hidden files: what killed attempts had begun"),
        ("kills", "kills", "; ".join(dict.fromkeys(kill.where for kill in kills))),
        ("batches", "batches", _BATCHES[settings.delivery]),
        ("snapshot", "snapshot_rows", "rows among them that the snapshot has read"),
        ("poison", "poison", "records that are no Avro of a known schema"),
        ("dead letters", "dead_letters", letters),
        ("aborted, hidden", "aborted_records_hidden", hidden),
        ("lag", "group_lag", "of the pipeline's consumer group"),
    ]


def _summary(settings: DemoSettings, figures: dict[str, Any]) -> str:
    if figures["exactly_once"]:
        kept = f"{figures['kills']} × kill -9, nothing lost, nothing repeated."
        return f"[green]Exactly once: {kept}[/green]"
    duplicates = figures["duplicates"]
    if not settings.exactly_once and figures["lost"] == figures["unexpected"] == 0 and duplicates:
        return (
            "[yellow]As expected of at-least-once: "
            f"{duplicates:,} records are there more than once. "
            "The exit status is 1, because this is not exactly once.[/yellow]"
        )
    return "[red]Exactly once does not hold.[/red]"
