"""What lies in folders of a local disk: the entries of a folder ledger, the files below a path, and their rows.

The rows of Parquet and ORC files stand in their footers, which pyarrow reads; those of other formats are not counted.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from onceward.verify.findings import CannotTell, Unavailable
from onceward.verify.ledger import Batch, batch_of

_DIGITS = 20
_HIDDEN = ("_", ".")
_COUNTED = ("parquet", "orc")


def entries(ledger: Path, pipeline_id: str) -> dict[int, Batch]:
    """The records of a pipeline in a folder ledger, by sequence: of a batch that was decided and finished the latter.

    :raises CannotTell: there is no such ledger.
    """
    folder = ledger / pipeline_id
    found: dict[int, Batch] = {}
    for slot in sorted(name for name in _names(folder) if _is_slot(name)):
        try:
            entry = (folder / slot).read_bytes()
        except FileNotFoundError:  # removed since, as old ones are
            continue
        if not _is_takeover(entry):
            batch = batch_of(entry, str(ledger), 0, int(slot.removesuffix(".json")))
            found[batch.sequence] = batch
    return found


def _is_takeover(entry: bytes) -> bool:
    try:
        return "takeover" in json.loads(entry)
    except (ValueError, TypeError):
        return False  # batch_of says what is wrong with it


def _is_slot(name: str) -> bool:
    return name.endswith(".json") and name.removesuffix(".json").isdecimal() and len(name) == _DIGITS + len(".json")


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError as error:
        raise CannotTell(
            f"there is no ledger of the pipeline in {folder}: {error}",
            next_step="name the folder of the sink with --files, and with --ledger-folder that of its ledger, where it "
            "has one of its own; ledgers in Kafka and in databases are not looked at together with files",
        ) from error


def files_below(root: Path) -> dict[str, int]:
    """Sizes in bytes of the files that a reader sees: no name on the way begins with ``_`` or ``.``."""
    found = {}
    for folder, folders, names in os.walk(root, onerror=_fail):
        folders[:] = [name for name in folders if not name.startswith(_HIDDEN)]
        for name in names:
            if not name.startswith(_HIDDEN):
                path = Path(folder) / name
                try:
                    found[str(path.relative_to(root))] = path.stat().st_size
                except FileNotFoundError:
                    continue
    return found


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
