"""``onceward status``, ``lag`` and ``ledger``: what pipelines are doing, and what they have done.
No Spark, and no driver is asked.

Registered in :mod:`onceward.cli`; what they read is in :mod:`onceward.operate.status`.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Iterable
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from onceward.cli.shared import (
    Interval,
    Json,
    LagOptions,
    LedgerOptions,
    Pipeline,
    is_terminal,
    names_a_ledger,
    print_table,
    say,
    table,
)
from onceward.errors import ConfigurationError, OncewardError, plain_text
from onceward.operate.logs import ago, moment, span

if TYPE_CHECKING:
    from onceward.operate.status import LedgerEntry, LedgerView, PipelineStatus

NOT_WELL = 1

Pipelines = Annotated[
    list[str] | None, typer.Option("--pipeline-id", help="A pipeline; may be repeated.")
]
Limit = Annotated[int, typer.Option(min=1, help="So many batches at most.")]

ledger = typer.Typer(
    name="ledger",
    help="The batches that a pipeline has committed: show, follow or export them.",
    no_args_is_help=True,
)


@names_a_ledger
def status(
    *,
    at: LagOptions,
    pipeline_id: Pipelines = None,
    every: Annotated[
        bool, typer.Option("--all", help="Every pipeline of the ledger (the default).")
    ] = False,
    without: Annotated[
        list[str] | None,
        typer.Option("--except", help="Leave this one out, which was given up; may be repeated."),
    ] = None,
    as_json: Json = False,
    watch: Annotated[
        bool,
        typer.Option("--watch", help="Look again until Ctrl-C; with --json a line for each look."),
    ] = False,
    interval: Interval = 2.0,
) -> None:
    """Say what each pipeline is doing: running, idle, catching up, restarting, stopped, fenced,
    stuck or unknown. Exit status 1 if one of them is none of the first three, or there is none.
    """
    if every and pipeline_id:
        raise ConfigurationError(
            "--all and --pipeline-id are both given", next_step="leave one of them out"
        )
    view = at.view()

    def look() -> list[PipelineStatus]:
        with view.looking():
            names = pipeline_id or view.pipelines()
            return view.statuses(name for name in names if name not in (without or ()))

    if watch:
        _watch(look, interval, as_json=as_json)
        return
    found = look()
    if as_json:
        say(json.dumps(_json(found), indent=2))
    else:
        _print(found, as_json=False)
        for each in found:
            _explain(each)
    if not found and without and (pipeline_id or view.pipelines()):
        say(
            "--except leaves out each pipeline that was asked for. Next: name fewer with it",
            err=True,
        )
    elif not found:
        _say_that_it_is_empty("no pipeline")
    if not found or not all(each.is_well for each in found):
        raise typer.Exit(NOT_WELL)


@names_a_ledger
def lag(*, at: LagOptions, pipeline_id: Pipeline, as_json: Json = False) -> None:
    """Print how far a pipeline is behind in each source partition, against the last stable
    offset; of sources that cannot be asked for, why.
    """
    if at.bootstrap_servers is at.source_bootstrap_servers is None:
        raise ConfigurationError(
            "no brokers are named that could be asked for the lag",
            next_step="add --bootstrap-servers, or set ONCEWARD_BOOTSTRAP_SERVERS in the shell",
        )
    view = at.view()
    (newest,) = _entries(view, pipeline_id, 1)
    found, refused = view.lag_behind(newest)
    if as_json:
        say(json.dumps(_json(found), indent=2))
    elif found:
        rows = (
            (a.topic, a.partition, a.offset, a.last_stable_offset, f"{a.lag:,}") for a in found
        )
        names = ("TOPIC", "PARTITION>", "OFFSET>", "LAST STABLE OFFSET>", "LAG>")
        print_table(table(*names, rows=rows))
        of = "in all" if refused is None else "in these, and not in all"
        say(f"{sum(each.lag for each in found):,} offsets {of}")
    elif refused is None:
        say("the ledger names no offsets of Kafka for it", err=True)
    if refused is not None:
        raise refused


@ledger.command("show")
@names_a_ledger
def show(*, at: LedgerOptions, pipeline_id: Pipeline, limit: Limit = 20) -> None:
    """Print the last batches, oldest first, as far as the ledger keeps them."""
    rows = table(
        "COMMITTED", "SEQUENCE>", "BATCH>", "READ>", "RECORDS>", "OPEN>", "ATTEMPT", "STATE"
    )
    for each in _entries(at.view(), pipeline_id, limit):
        rows.add_row(
            moment(each.committed_at_ms),
            each.sequence,
            each.batch_id,
            f"{each.read:,}",
            f"{each.records:,}",
            "" if each.open_ms is None else f"{each.open_ms} ms",
            f"{each.owner}-{each.epoch}",
            each.state,
        )
    print_table(rows)


@ledger.command("tail")
@names_a_ledger
def tail(
    *,
    at: LedgerOptions,
    pipeline_id: Pipeline,
    interval: Interval = 2.0,
) -> None:
    """Print each new batch as a line of JSON, until Ctrl-C."""
    view = at.view()
    new = view.entries(pipeline_id, 1)
    if not new:
        # One that has just been started has none yet
        _say_that_it_is_empty(f"no batch of {pipeline_id}")
    last, expected = None, new[0].sequence if new else 0
    while True:
        for entry in new:
            if entry.sequence > expected:
                gap = f"{expected} to {entry.sequence - 1}"
                say(f"batches {gap} are not in the ledger any more", err=True)
            last, expected = entry, entry.sequence + 1
            say(json.dumps(_json(entry)))
        time.sleep(interval)
        try:
            with view.looking():
                new, is_the_same = _entries_since(view, pipeline_id, last)
        except OncewardError as error:
            say(_failed(error), err=True)
            new = []
            continue
        if not is_the_same:
            say("the ledger has begun anew, or an older copy was put back", err=True)
            last, expected = None, new[0].sequence if new else 0


def _entries_since(
    view: LedgerView, pipeline: str, last: LedgerEntry | None
) -> tuple[list[LedgerEntry], bool]:
    """Return the batches behind ``last``, however many there are by now, and whether they are of
    the same ledger; of another one those that it keeps, a hundred at most.
    """
    newest = next(iter(view.entries(pipeline, 1)), None)
    if newest is None or (last is not None and _batch(newest) == _batch(last)):
        return [], True
    behind = -1 if last is None else last.sequence
    number = max(newest.sequence - behind, 0) + 1
    by_sequence = {each.sequence: each for each in view.entries(pipeline, number)}
    is_the_same = last is None or (
        newest.sequence > behind and _batch(by_sequence.get(behind, last)) == _batch(last)
    )
    if not is_the_same:
        by_sequence, behind = {each.sequence: each for each in view.entries(pipeline)}, -1
    return [each for key, each in sorted(by_sequence.items()) if key > behind], is_the_same


def _batch(entry: LedgerEntry) -> tuple[int, str, int]:
    return entry.sequence, entry.query_id, entry.batch_id


@ledger.command("export")
@names_a_ledger
def export(*, at: LedgerOptions, pipeline_id: Pipeline, limit: Limit = 10_000) -> None:
    """Print the last batches as lines of JSON, oldest first, as far as the ledger keeps them."""
    for entry in _entries(at.view(), pipeline_id, limit):
        say(json.dumps(_json(entry)))


def _entries(view: LedgerView, pipeline: str, limit: int) -> list[LedgerEntry]:
    """Return the last batches of a pipeline that is there."""
    found = view.entries(pipeline, limit)
    if not found:
        _say_that_it_is_empty(f"no batch of {pipeline}")
        raise typer.Exit(NOT_WELL)
    return found


def _say_that_it_is_empty(lacks: str) -> None:
    say(
        f"the ledger has {lacks}. Next: see that it is the right one (--ledger-topic, "
        "--ledger-path or --ledger-url), and that ids are spelt right; `onceward status` lists "
        "its pipelines",
        err=True,
    )


def _watch(look: Callable[[], list[PipelineStatus]], interval: float, *, as_json: bool) -> None:
    """Show look after look: on a terminal in one place, elsewhere one behind the other."""
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    if as_json or not is_terminal():
        _look_on(look, interval, partial(_print, as_json=as_json), partial(say, err=True))
    with Live(console=Console(), screen=False, auto_refresh=False) as live:
        show = partial(live.update, refresh=True)

        def show_all(found: list[PipelineStatus]) -> None:
            lines = (Text(plain_text(trouble)) for trouble in _troubles(found))
            show(Group(_status_table(found), *lines))

        _look_on(look, interval, show_all, lambda text: show(Text(plain_text(text))))


def _look_on(
    look: Callable[[], list[PipelineStatus]],
    interval: float,
    show: Callable[[list[PipelineStatus]], None],
    tell: Callable[[str], None],
) -> NoReturn:
    """Look for ever. :param tell: what is shown of a look that failed."""
    while True:
        try:
            show(look())
        except OncewardError as error:
            tell(_failed(error))
        time.sleep(interval)


def _failed(error: OncewardError) -> str:
    """Return the line of a look that failed: the next one may go well."""
    return f"{moment(time.time() * 1000)}  {type(error).__name__}: {error.message}"


def _print(found: list[PipelineStatus], as_json: bool) -> None:
    if as_json:
        say(json.dumps(_json(found)))
    else:
        print_table(_status_table(found))
        for line in _troubles(found):
            say(line, err=True)


def _troubles(found: Iterable[PipelineStatus]) -> list[str]:
    """Return what could not be asked, each with the pipelines of which that is so."""
    names: dict[str, list[str]] = {}
    for each in found:
        for trouble in each.trouble:
            names.setdefault(trouble, []).append(each.pipeline_id)
    return [f"{', '.join(of)}: not asked: {trouble}" for trouble, of in names.items()]


def _status_table(found: Iterable[PipelineStatus]) -> Any:
    from rich.text import Text

    colours = {"fenced": "red", "stuck": "red", "stopped": "red", "restarting": "yellow"}
    rows = table(
        "PIPELINE", "STATE", "COMMITTED>", "BATCH>", "RECORDS>", "LAG>", "EPOCH>", "OPEN>", "OWNER"
    )
    for each in found:
        newest, transaction = each.newest, each.transaction
        rows.add_row(
            each.pipeline_id,
            Text(each.state.value, colours.get(each.state.value, "")),
            "" if each.age_s is None else ago(each.age_s),
            "" if newest is None else newest.batch_id,
            "" if newest is None else f"{newest.records:,}",
            "?" if each.lag is None else f"{each.lag:,}",
            transaction.epoch if transaction else newest.epoch if newest else "",
            span(transaction.age_s) if transaction and transaction.age_s is not None else "",
            (newest and newest.written_by) or "?",
        )
    return rows


def _explain(each: PipelineStatus) -> None:
    """Say why a pipeline is not well, and what to do next."""
    if each.is_well:
        return
    say(f"{each.pipeline_id} is {each.state.value}: {each.reason}.")
    say(f"  Next: {each.next_step}.")


def _json(value: Any) -> Any:
    """Return a value as JSON has it: enums by their values, and lags beside their offsets."""
    if isinstance(value, Enum):
        return value.value
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
        lag = ["lag"] if "last_stable_offset" in names else []
        return {name: _json(getattr(value, name)) for name in [*names, *lag]}
    if hasattr(value, "_asdict"):
        return value._asdict()
    return [_json(each) for each in value] if isinstance(value, tuple | list) else value
