"""Which chain a pipeline's folder in the store is of. Driver only.

Files of rows that no record of the chain names are dropped at a start. Seen from another chain,
those that the right one has decided look the same. So the first start notes the chain beside the
folder, and a start with another one is refused before anything is dropped.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from onceward import surroundings
from onceward.delivery.row_files import reached
from onceward.durable import sync
from onceward.errors import ConfigurationError, StoreUnreachable
from onceward.ids import PipelineId

_NOTE = "@ledger"
"""Behind the folder's name; no pipeline's name has an ``@``."""


def must_be_there(folder: Path) -> None:
    """Check that a store in which rows were put still is there: a disk that is not mounted leaves
    an empty folder.

    :raises StoreUnreachable: it is not.
    """
    note = _read_note(folder)
    with reached(folder.parent):
        if note.exists():
            return
    raise StoreUnreachable(
        f"{note} is not there, though this pipeline has stored rows in {folder}: its disk may not "
        "be mounted",
        next_step="mount it; nothing was written in its place. Where the store was emptied on "
        "purpose, pass another store=",
        details={"store": str(folder)},
    )


def _read_note(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}{_NOTE}")


def must_belong(folder: Path, pipeline: PipelineId, identity: str, place: str) -> None:
    """Mark ``folder`` as that of the chain with ``identity``.

    :param place: of the ledger, for readers of the mark or the error.
    :raises ConfigurationError: it is of another one.
    """
    note = _read_note(folder)
    with reached(folder.parent):
        try:
            noted = note.read_text()
        except FileNotFoundError:
            _write(note, json.dumps({"chain": identity, "ledger": place}))
            return
    other = _other(noted, identity)
    if other is not None:
        raise ConfigurationError(
            f"the store {folder} is of another ledger ({other}) than pipeline {pipeline} was "
            f"started with ({place}), or of one that was in its place before: that one may have "
            "decided rows in it that are not delivered yet",
            next_step="start the query with the ledger that it has had, or restore that; to begin "
            "anew without what is left in the store, pass another store=, or remove the folder "
            f"and {note}",
            details={"pipeline": pipeline, "store": str(folder)},
        )


def _other(noted: str, identity: str) -> str | None:
    """Return the place of the other ledger; None if it is this one."""
    try:
        found = json.loads(noted)
        return None if found["chain"] == identity else str(found["ledger"])
    except (ValueError, KeyError, TypeError):
        return "which one cannot be read"


def _write(note: Path, text: str) -> None:
    written = note.with_name(f"{note.name}.{surroundings.random_bytes(16).hex()}")
    with written.open("x") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    written.replace(note)
    sync(note.parent)
