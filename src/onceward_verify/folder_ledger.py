"""The entries of a folder ledger, on a local disk."""

from __future__ import annotations

import json
import os
from pathlib import Path

from onceward_verify.findings import CannotTell
from onceward_verify.ledger import Batch, batch_of

_DIGITS = 20
_SLOT = ".json"
_FLOOR = "floor-"


def entries(ledger: Path, pipeline_id: str) -> dict[int, Batch]:
    """The records of a pipeline in a folder ledger, by sequence: of a batch that was decided and
    finished the latter.

    What lies below the ledger's floor (``floor-<slot>``) says nothing any more: it is being
    removed, in any order, or was put there by an owner who came too late.

    :raises CannotTell: there is no such ledger.
    """
    folder = ledger / pipeline_id
    read: dict[int, Batch] = {}
    floor = _floor(folder)
    for slot in sorted(int(name.removesuffix(_SLOT)) for name in _names(folder) if _is_slot(name)):
        try:
            entry = (folder / f"{slot:0{_DIGITS}}{_SLOT}").read_bytes()
        except FileNotFoundError:  # removed since, as old ones are
            continue
        if slot >= floor and not _is_takeover(entry):
            read[slot] = batch_of(entry, str(ledger), 0, slot)
    floor = _floor(folder)  # by now: nothing is removed before that is said
    return {batch.sequence: batch for slot, batch in read.items() if slot >= floor}


def _floor(folder: Path) -> int:
    """The lowest slot that counts."""
    told = (name.removeprefix(_FLOOR) for name in _names(folder) if name.startswith(_FLOOR))
    return max((int(slot) for slot in told if slot.isdecimal()), default=0)


def _is_takeover(entry: bytes) -> bool:
    try:
        return "takeover" in json.loads(entry)
    except (ValueError, TypeError):
        return False  # batch_of says what is wrong with it


def _is_slot(name: str) -> bool:
    return (
        name.endswith(_SLOT)
        and name.removesuffix(_SLOT).isdecimal()
        and len(name) == _DIGITS + len(_SLOT)
    )


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError as error:
        raise CannotTell(
            f"there is no ledger of the pipeline in {folder}: {error}",
            next_step="name the folder of the sink with --files, and with --ledger-folder that of "
            "its ledger, where it "
            "has one of its own; ledgers in Kafka and in databases are not looked at together "
            "with files",
        ) from error
