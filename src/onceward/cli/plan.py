"""``onceward plan``: what the start of a job would do.

Registered in :mod:`onceward.cli`; how it is found out is in :mod:`onceward.operate.plan`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from onceward.cli.shared import Json
from onceward.errors import ConfigurationError
from onceward.operate.exit_status import NEEDS_A_CHANGE

if TYPE_CHECKING:
    from onceward.operate.plan_lines import QueryPlan

CHANGES = 2
"""As ``terraform plan -detailed-exitcode`` has it."""


def plan(
    job: Annotated[Path, typer.Argument(help="The job's Python file.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="Its own arguments and options.")
    ] = None,
    timeout: Annotated[
        float,
        typer.Option(
            min=1, help="Seconds that the job may run until it defines a query, and after each."
        ),
    ] = 120.0,
    as_json: Json = False,
) -> None:
    """Say what starting a job would do: where each query goes on, which batch runs again, what it
    reads first, whether its state fits. Nothing is started or written.

    Exit status: 0 it goes on as before; 2 something changes; 78 it would be refused. Run it where
    the job runs: the job's file is executed up to its queries.
    """
    if not job.is_file():
        raise ConfigurationError(f"{job} is no file", next_step="name the job's Python file")
    from onceward.operate.plan import plan_job
    from onceward.operate.plan_lines import Weight

    found = plan_job(str(job), arguments or [], timeout)
    if as_json:
        typer.echo(json.dumps([_document(each) for each in found], indent=2))
    for each in () if as_json else found:
        typer.echo(f"{each.name or 'a query'} ({each.checkpoint or 'no checkpoint'})")
        for line in each.lines:
            typer.echo(f"  {line.weight.value:<10} {line.topic}: {line.text}")
    if not found:
        typer.echo("the job has started no streaming query", err=True)
    weights = {each.weight for each in found}
    if Weight.REFUSED in weights:
        raise typer.Exit(NEEDS_A_CHANGE)
    if Weight.CHANGES in weights:
        raise typer.Exit(CHANGES)


def _document(plan: QueryPlan) -> dict[str, object]:
    lines = [
        {"weight": line.weight.value, "about": line.topic, "text": line.text}
        for line in plan.lines
    ]
    return {
        "name": plan.name,
        "checkpoint": plan.checkpoint,
        "result": plan.weight.value,
        "lines": lines,
    }
