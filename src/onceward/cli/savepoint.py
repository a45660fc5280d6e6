"""``onceward savepoint``: copies of a checkpoint behind one batch, to go on from or to fork.

Registered in :mod:`onceward.cli`; what it does is in :mod:`onceward.operate.savepoint`.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated

import typer

from onceward.cli.shared import Json, LedgerOptions, names_a_ledger, print_table, table
from onceward.errors import ConfigurationError
from onceward.operate.status import moment

savepoint = typer.Typer(
    name="savepoint",
    help="Copies of a checkpoint behind one batch: to upgrade, move or fork a pipeline.",
    no_args_is_help=True,
)
Path = Annotated[
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
) -> None:
    """Copy the checkpoint as it is behind the newest batch, and note where the ledger stands.
    Prints the savepoint's path.
    """
    from onceward.operate import savepoint as savepoints

    view = at.view()
    copy = savepoints.create(checkpoint, to, view.ledger, pipeline_id)
    typer.echo(
        f"behind batch {copy.batch_id}: {len(copy.files)} files, {copy.bytes:,} bytes", err=True
    )
    typer.echo(copy.path)


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
        typer.echo(
            f"{path} is not finished: it is being written, or was left by a command that died, "
            "and may be removed then",
            err=True,
        )
    if as_json:
        documents = [dataclasses.asdict(each) for each in found]
        for document in documents:
            del document["files"]
        typer.echo(json.dumps(documents, indent=2))
        return
    rows = (
        (a.pipeline_id, a.batch_id, a.sequence, moment(a.created_at_ms), f"{a.bytes:,}", a.path)
        for a in found
    )
    names = ("PIPELINE", "BATCH>", "SEQUENCE>", "TAKEN", "BYTES>", "SAVEPOINT")
    print_table(table(*names, rows=rows))


@savepoint.command("restore")
@names_a_ledger
def restore(*, at: LedgerOptions, path: Path, checkpoint: NewCheckpoint) -> None:
    """Make a checkpoint with which the same pipeline goes on behind the savepoint. Refused once
    more is committed.
    """
    from onceward.operate import savepoint as savepoints

    found = savepoints.read(path)
    view = at.view()
    savepoints.restore(found, checkpoint, view.ledger)
    typer.echo(
        f"{checkpoint} is behind batch {found.batch_id}. Next: start pipeline {found.pipeline_id} "
        "with this checkpointLocation, and with no other any more"
    )


@savepoint.command("fork")
@names_a_ledger
def fork(
    *,
    at: LedgerOptions,
    path: Path,
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
    typer.echo(
        f"{checkpoint} is behind batch {found.batch_id}. Next: start it once with pipeline_id="
        f'"{pipeline_id}", this checkpointLocation, targets of its own and resume="adopt"'
    )
