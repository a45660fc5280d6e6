"""The demo's result: judged, as a table for people and as one JSON line for programs. Pure but for
printing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from onceward_testing.demo.audit import CheckerFacts, OutputFacts
from onceward_testing.demo.job_lives import Killed
from onceward_testing.demo.settings import DemoSettings


@dataclass(frozen=True)
class DemoResult:
    """One run. ``batches`` is the number of batches finished, with Onceward's sink those in the
    ledger; ``group_lag`` None where no consumer group takes part. ``poison``: spoilt records
    written, of which each must be one of the ``dead_letters``. ``aborted_records_hidden``: None
    where the target has no such thing. ``violations`` in words, empty when the promise was kept.
    """

    source: str
    sink: str
    delivery: str
    broker_version: str
    nodes: int
    master: str
    input: int
    snapshot_rows: int
    expected: int
    visible: int
    lost: int
    duplicates: int
    unexpected: int
    poison: int
    dead_letters: int
    aborted_records_hidden: int | None
    left_over: int
    kills: int
    killed_at: list[str]
    batches: int
    group_lag: int | None
    seconds: float
    violations: list[str]

    @property
    def kept(self) -> bool:
        """Whether exactly once held."""
        return not self.violations

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self) | {"exactly_once": self.kept}, ensure_ascii=False)


def judge(
    settings: DemoSettings,
    output: OutputFacts,
    checked: CheckerFacts | None,
    killed: Sequence[Killed],
    batches: int,
    seconds: float,
    written: int,
) -> DemoResult:
    """The result of a run with these facts. ``checked`` None: the sink keeps no ledger that could
    be checked.

    :param written: of the input.
    """
    violations = [] if output.verdict.holds else [str(output.verdict)]
    violations += output.broken
    letters = output.dead_letters
    if letters is not None:
        violations += [] if letters.holds else [f"dead letters: {letters}"]
        if letters.expected == 0:
            violations.append(
                "INVALID: nothing was spoilt, so nothing shows where it goes; use more --records"
            )
    violations += [f"left over: {what}" for what in output.left_over]
    if checked is not None:
        violations += checked.violations
        if output.aborted_records_hidden == 0:
            violations.append(
                "INVALID: the kills left no aborted records, so nothing shows that they are hidden"
            )
    elif not violations:
        violations.append(
            "INVALID: the kills caused no duplicates, so this comparison shows nothing; run it "
            "again"
        )
    return DemoResult(
        source=settings.source,
        sink=settings.sink,
        delivery=settings.delivery,
        broker_version=settings.broker_version,
        nodes=settings.nodes,
        master=settings.master,
        input=written,
        snapshot_rows=output.snapshot_rows,
        expected=output.verdict.expected,
        visible=output.verdict.visible,
        lost=output.verdict.lost.total(),
        duplicates=output.verdict.duplicates.total(),
        unexpected=output.verdict.unexpected.total(),
        poison=0 if letters is None else letters.expected,
        dead_letters=0 if letters is None else letters.visible,
        aborted_records_hidden=output.aborted_records_hidden,
        left_over=len(output.left_over),
        kills=len(killed),
        killed_at=[one.kill.where for one in killed],
        batches=checked.batches if checked is not None else batches,
        group_lag=checked.group_lag if checked is not None else None,
        seconds=round(seconds, 1),
        violations=violations,
    )


def show(result: DemoResult, console: Console) -> None:
    """The table, and what it means."""
    sink = _SINK[result.sink] if result.delivery == "exactly_once" else "Spark's own Kafka sink"
    source = "MySQL" if result.source == "mysql" else "Kafka"
    kafka = f"Kafka {result.broker_version}, {result.nodes} node(s)"
    where = kafka if source == "Kafka" else f"{source}; {kafka}"
    table = Table(title=f"{sink} behind {where}", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column()
    for name, value, meaning in _rows(result):
        table.add_row(name, f"{value:,}", meaning)
    console.print(table)
    for violation in result.violations:
        console.print(f"[red]violated[/red]  {escape(violation)}")
    console.print(_closing_words(result))


_INPUT = {
    "kafka": "records written to the input topic while the job ran",
    "mysql": "changes of rows committed in MySQL, some before the job's first start, most while "
    "it ran",
}
_EXPECTED = {
    ("kafka", "kafka"): "distinct numbers of 18 characters among them",
    ("mysql", "kafka"): "each key's row as the snapshot met it, and every change after it",
    ("mysql", "postgres"): "rows of the source's table, in the end",
}
_BATCHES = {
    "exactly_once": "micro-batches in the ledger; `onceward verify` looked at each",
    "at_least_once": "finished micro-batches",
}
_SINK = {
    "kafka": "Onceward's KafkaSink",
    "postgres": "Onceward's DatabaseSink, to PostgreSQL,",
    "mysql": "Onceward's DatabaseSink, to MySQL,",
    "files": "Onceward's FileSink",
}
_READER = {
    "kafka": "a read_committed reader",
    "postgres": "a SELECT",
    "mysql": "a SELECT",
    "files": "a reader of Parquet",
}


def _rows(result: DemoResult) -> list[tuple[str, int, str]]:
    rows = [
        ("input", result.input, _INPUT[result.source]),
        (
            "expected",
            result.expected,
            _EXPECTED.get((result.source, result.sink), _EXPECTED["kafka", "kafka"]),
        ),
        ("visible", result.visible, f"records that {_READER[result.sink]} sees"),
        ("lost", result.lost, "expected and not visible"),
        ("duplicates", result.duplicates, "visible more than once"),
        (
            "left over",
            result.left_over,
            "staging tables, hidden files: what killed attempts had begun",
        ),
        ("kills", result.kills, "; ".join(dict.fromkeys(result.killed_at))),
        ("batches", result.batches, _BATCHES[result.delivery]),
    ]
    if result.snapshot_rows:
        rows.append(
            ("snapshot", result.snapshot_rows, "rows among them that the snapshot has read")
        )
    if result.poison:
        rows.append(("poison", result.poison, "records that are no Avro of a known schema"))
        rows.append(
            (
                "dead letters",
                result.dead_letters,
                "records in the dead-letter topic: must be as many, and are compared",
            )
        )
    if result.aborted_records_hidden is not None:
        hidden = "records of killed attempts that no such reader sees"
        rows.append(("aborted, hidden", result.aborted_records_hidden, hidden))
    if result.group_lag is not None:
        rows.append(("lag", result.group_lag, "of the pipeline's consumer group"))
    return rows


def _closing_words(result: DemoResult) -> str:
    if result.kept:
        return (
            f"[green]Exactly once: {result.kills} × kill -9, nothing lost, nothing "
            f"repeated.[/green]"
        )
    if (
        result.delivery == "at_least_once"
        and result.lost == result.unexpected == 0
        and result.duplicates
    ):
        return (
            f"[yellow]As expected of at-least-once: {result.duplicates:,} records are there more "
            f"than once. "
            "The exit status is 1, because this is not exactly once.[/yellow]"
        )
    return "[red]Exactly once does not hold.[/red]"
