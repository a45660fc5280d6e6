"""What lies in folders of a local disk: the entries of a folder ledger, the files below a path, and their rows.

The rows of Parquet and ORC files stand in their footers, which pyarrow reads; those of other formats are not counted.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from onceward.verify.findings import CannotTell, Unavailable
from onceward.verify.ledger import Batch, batch_of

_DIGITS = 20
_SLOT = ".json"
_FLOOR = "floor-"
_HIDDEN = ("_", ".")
_COUNTED = ("parquet", "orc")


def entries(ledger: Path, pipeline_id: str) -> dict[int, Batch]:
    """The records of a pipeline in a folder ledger, by sequence: of a batch that was decided and finished the latter.

    What lies below the ledger's floor (``floor-<slot>``) says nothing any more: it is being removed, in any order, or
    was put there by an owner who came too late.

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
    return name.endswith(_SLOT) and name.removesuffix(_SLOT).isdecimal() and len(name) == _DIGITS + len(_SLOT)


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError as error:
        raise CannotTell(
            f"there is no ledger of the pipeline in {folder}: {error}",
            next_step="name the folder of the sink with --files, and with --ledger-folder that of its ledger, where it "
            "has one of its own; ledgers in Kafka and in databases are not looked at together with files",
        ) from error


class Seen(NamedTuple):
    """What a reader sees, relative to the path: no name on the way begins with ``_`` or ``.``."""

    sizes: Mapping[str, int]
    """Of files, in bytes."""
    links: frozenset[str]
    """Symbolic links, which readers follow, and nobody here."""

    def behind_a_link(self, name: str) -> bool:
        return any(name == link or name.startswith(f"{link}/") for link in self.links)


def files_below(root: Path) -> Seen:
    """What is there. :raises CannotTell: it cannot be listed."""
    sizes: dict[str, int] = {}
    links: set[str] = set()
    for folder, folders, names in os.walk(root, onerror=_fail):
        folders[:] = [name for name in folders if not name.startswith(_HIDDEN)]
        for name in (*folders, *names):
            path = Path(folder) / name
            if name.startswith(_HIDDEN):
                continue
            if path.is_symlink():
                links.add(str(path.relative_to(root)))
            elif name in names:
                try:
                    sizes[str(path.relative_to(root))] = path.stat().st_size
                except FileNotFoundError:
                    continue
    return Seen(sizes, frozenset(links))


def written_at_ms(path: Path) -> int:
    """When the file was written, and 0 where it has gone since. Renaming leaves that as it is."""
    try:
        return path.stat().st_mtime_ns // 1_000_000
    except FileNotFoundError:
        return 0


def _fail(error: OSError) -> None:
    raise CannotTell(f"the files cannot be listed: {error}", next_step="see that --files names a folder, and let us in")


def prepared_by(root: Path, pipeline_id: str) -> list[str]:
    """What is hidden and of the pipeline's attempts."""
    folder = root / "_onceward" / "prepared"
    return sorted(name for name in os.listdir(folder) if name.startswith(f"{pipeline_id}@")) if folder.is_dir() else []


def rows_of(path: Path, form: str) -> int | None:
    """How many rows the file's footer tells; None: its format has none.

    :raises ValueError: it is no file of that format.
    """
    if form not in _COUNTED:
        return None
    try:
        import pyarrow as pa
        from pyarrow import orc, parquet
    except ImportError as missing:
        raise Unavailable("the checker reads files with pyarrow, which is missing", next_step="install it") from missing
    try:
        if form == "parquet":
            return int(parquet.read_metadata(path).num_rows)
        return int(orc.ORCFile(path).nrows)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"no {form} file: {error}") from error
