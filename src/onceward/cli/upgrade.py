"""``onceward plan``, what the start of a job would do, and ``onceward savepoint``, copies of a
checkpoint behind one batch, to go on from or to fork.

Registered in :mod:`onceward.cli`; the work is done in :mod:`onceward.operate.plan` and
:mod:`onceward.operate.savepoint`.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import threading
import traceback
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from onceward.cli.groups import tell
from onceward.cli.shared import Json, LedgerOptions, names_a_ledger, print_table, say, table
from onceward.errors import ConfigurationError, OncewardError
from onceward.operate.logs import moment
from onceward.operate.run_job import FAILED, FINISHED, NEEDS_A_CHANGE, is_at_work

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
            min=1,
            max=86_400,
            help="Seconds that the job may run until it defines a query, and after each.",
        ),
    ] = 120.0,
    as_json: Json = False,
) -> None:
    """Say what starting a job would do: where each query goes on, which batch runs again, what it
    reads first, whether its state fits. Nothing is started or written.

    Exit status: 0 it goes on as before; 2 something changes, or a query's sink is not found; 78 it
    would be refused. Run it where the job runs: the job's file is executed up to its queries.
    """
    if not os.path.isfile(job):
        raise ConfigurationError(f"{job} is no file", next_step="name the job's Python file")
    from onceward.operate.plan import plan_job
    from onceward.operate.plan_lines import Weight

    before = set(threading.enumerate())
    try:
        found = plan_job(str(job), arguments or [], timeout)
    except OncewardError as error:
        _leave(tell(error), before)
    except Exception as error:  # noqa: BLE001 — of the job
        _print_as_python_would(error, str(job))
        _leave(FAILED, before)
    if as_json:
        say(json.dumps([_document(each) for each in found], indent=2))
    for each in () if as_json else found:
        say(f"{each.name or 'a query'} ({each.checkpoint or 'no checkpoint'})")
        for line in each.lines:
            say(f"  {line.weight.value:<10} {line.topic}: {line.text}")
    weights = {each.weight for each in found}
    refused, as_before = Weight.REFUSED in weights, weights <= {Weight.AS_BEFORE}
    _leave(NEEDS_A_CHANGE if refused else FINISHED if as_before else CHANGES, before)


def _leave(status: int, before: set[threading.Thread]) -> NoReturn:
    """End the command, also where a thread of the job's goes on, for which Python would wait."""
    if any(map(is_at_work, set(threading.enumerate()) - before)):
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError):
                stream.flush()
        os._exit(status)
    raise typer.Exit(status)


def _print_as_python_would(error: Exception, job: str) -> None:
    """Print what the job has raised, from the job's own frame on."""
    place = error.__traceback__
    while place is not None and place.tb_frame.f_code.co_filename != job:
        place = place.tb_next
    traceback.print_exception(type(error), error, place or error.__traceback__)


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


savepoint = typer.Typer(
    name="savepoint",
    help="Copies of a checkpoint behind one batch: to upgrade, move or fork a pipeline.",
    no_args_is_help=True,
)
SavepointPath = Annotated[
    str, typer.Argument(help="The savepoint: a folder, also s3://, gs:// or hdfs://.")
]
NewCheckpoint = Annotated[
    str, typer.Option("--checkpoint", help="The checkpoint to make; nothing is there yet.")
]


@savepoint.command("create")
@names_a_ledger
def create(
    *,
    at: LedgerOptions,
    pipeline_id: Annotated[str, typer.Option(help="The pipeline; it may be running.")],
    checkpoint: Annotated[str, typer.Option(help="Its query's checkpointLocation.")],
    to: Annotated[str, typer.Option(help="A folder for savepoints; this one is named in it.")],
    for_fork: Annotated[
        bool,
        typer.Option("--for-fork", help="Also where the ledger is ahead: it can only be forked."),
    ] = False,
) -> None:
    """Copy the checkpoint as it is behind the newest batch, and note where the ledger stands.
    Prints the savepoint's path.
    """
    from onceward.operate import savepoint as savepoints

    view = at.view()
    copy = savepoints.create(checkpoint, to, view.ledger, pipeline_id, for_fork=for_fork)
    say(f"behind batch {copy.batch_id}: {len(copy.files)} files, {copy.bytes:,} bytes", err=True)
    say(copy.path)


@savepoint.command("list")
def list_savepoints(
    folder: Annotated[str, typer.Argument(help="The folder that `create --to` was given.")],
    as_json: Json = False,
) -> None:
    """List the finished savepoints in a folder, oldest first; those that are not, to stderr."""
    from onceward.operate import savepoint as savepoints

    if not savepoints.is_folder(folder):
        raise ConfigurationError(
            f"there is no folder {folder}",
            next_step="correct the path, and see that its disk is mounted here",
        )
    found = savepoints.saved(folder)
    for path in savepoints.unfinished(folder, found):
        say(
            f"{path} is not finished: it is being written, or was left by a command that died, "
            "and may be removed then",
            err=True,
        )
    if as_json:
        documents = [dataclasses.asdict(each) for each in found]
        for document in documents:
            del document["files"]
        say(json.dumps(documents, indent=2))
        return
    rows = (
        (a.pipeline_id, a.batch_id, a.sequence, moment(a.created_at_ms), f"{a.bytes:,}", a.path)
        for a in found
    )
    names = ("PIPELINE", "BATCH>", "SEQUENCE>", "TAKEN", "BYTES>", "SAVEPOINT")
    print_table(table(*names, rows=rows))


@savepoint.command("restore")
@names_a_ledger
def restore(*, at: LedgerOptions, path: SavepointPath, checkpoint: NewCheckpoint) -> None:
    """Make a checkpoint with which the same pipeline goes on behind the savepoint. Refused once
    more is committed.
    """
    from onceward.operate import savepoint as savepoints

    found = savepoints.read(path)
    view = at.view()
    savepoints.restore(found, checkpoint, view.ledger)
    say(
        f"{checkpoint} is behind batch {found.batch_id}. Next: start pipeline {found.pipeline_id} "
        "with this checkpointLocation, and with no other any more"
    )


@savepoint.command("fork")
@names_a_ledger
def fork(
    *,
    at: LedgerOptions,
    path: SavepointPath,
    checkpoint: NewCheckpoint,
    pipeline_id: Annotated[str, typer.Option(help="The new pipeline's own id.")],
) -> None:
    """Make a checkpoint with which another pipeline, into other targets, goes on behind the
    savepoint. The ledger is the new pipeline's; the old one is not touched.
    """
    from onceward.operate import savepoint as savepoints

    found = savepoints.read(path)
    view = at.view()
    savepoints.fork(found, checkpoint, view.ledger, pipeline_id)
    say(
        f"{checkpoint} is behind batch {found.batch_id}. Next: start it once with pipeline_id="
        f'"{pipeline_id}", this checkpointLocation, targets of its own and resume="adopt"'
    )
