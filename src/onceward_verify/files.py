"""Question about files: is the ledger one chain, and are the files of its batches there?

The order matters while the pipeline runs: the ledger is read before the files are listed, and
again after it. What is finished in the first reading must be there; what is there must be in the
second.
"""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from onceward_verify.chain import build_chain, leave_others_open, ledger_facts
from onceward_verify.file_views import FileView, Listing, open_view
from onceward_verify.findings import CannotTell, Findings, WrongUsage
from onceward_verify.ledger import FilesPart, LedgerBatch, Since, parse_batch, select

_DIGITS = 20
_SLOT = ".json"
_FLOOR = "floor-"


def read_entries(ledger: Path, pipeline_id: str) -> list[LedgerBatch]:
    """Read a pipeline's records in a folder ledger, by slot.

    Of a batch that was decided and then finished both. What lies below the ledger's floor
    (``floor-<slot>``) counts for nothing: it is being removed, in any order, or an owner put it
    there too late.

    :raises CannotTell: there is no such ledger.
    """
    folder = ledger / pipeline_id
    read: dict[int, LedgerBatch] = {}
    floor = _floor(folder)
    for slot in sorted(int(name.removesuffix(_SLOT)) for name in _names(folder) if _is_slot(name)):
        try:
            entry = (folder / f"{slot:0{_DIGITS}}{_SLOT}").read_bytes()
        except FileNotFoundError:
            # Removed since, as old ones are
            continue
        if slot >= floor and not _is_takeover(entry):
            read[slot] = parse_batch(entry, str(ledger), 0, slot)
    # Once more: an owner raises the floor before it removes the slots below, so that what was
    # removed while we read lies below the floor of now.
    floor = _floor(folder)
    return [batch for slot, batch in read.items() if slot >= floor]


def _floor(folder: Path) -> int:
    """Return the lowest slot that counts."""
    slots = (name.removeprefix(_FLOOR) for name in _names(folder) if name.startswith(_FLOOR))
    return max((int(slot) for slot in slots if slot.isdecimal()), default=0)


def _is_takeover(entry: bytes) -> bool:
    try:
        return "takeover" in json.loads(entry)
    except (ValueError, TypeError):
        # parse_batch reports what is wrong with it
        return False


def _is_slot(name: str) -> bool:
    number = name.removesuffix(_SLOT)
    return name.endswith(_SLOT) and number.isdecimal() and len(number) == _DIGITS


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError as error:
        raise CannotTell(
            f"there is no ledger of the pipeline in {folder}: {error}",
            next_step="name the folder of the sink with --files, and with --ledger-folder that "
            "of its ledger, where it has one of its own; ledgers in Kafka and in databases are "
            "not looked at together with files",
        ) from error


_BATCH_FOLDER = re.compile(r"(?:_onceward/files/_attempt=[^/]+/)?([^/=]+)=([^/@]+)@([0-9]{10,})/")


@dataclass(frozen=True, kw_only=True)
class FilesQuestion:
    """Question about the files of one pipeline.

    :param root: the sink's path: on a local disk, or a URI of S3
        (:class:`~onceward_verify.file_views.ListView`).
    :param ledger: the folder ledger; None: the one below ``root``.
    :param expect_caught_up: the pipeline is at rest: what is decided and not published is an
        anomaly.
    :param shared: others write files there, too.
    :param ignore_expired: do not report what the ledger has removed.
    :param since: the batch to begin with; None: the ledger's first.
    """

    root: str | Path
    pipeline_id: str
    ledger: Path | None = None
    expect_caught_up: bool = False
    shared: bool = False
    ignore_expired: bool = False
    since: Since | None = None


def check_files(question: FilesQuestion) -> Findings:
    """Answer ``question``.

    :raises CannotTell: something that is not the pipeline's is missing.
    """
    began = time.monotonic()
    findings = Findings(ignore_expired=question.ignore_expired)
    root = str(question.root)
    ledger = question.ledger or _default_ledger(root)
    batches = read_entries(ledger, question.pipeline_id)
    has_lists = any(batch.files and batch.files.layout == "manifest" for batch in batches)
    view = open_view(root, has_lists=has_lists)
    listing = view.list_files()
    known = [*batches, *read_entries(ledger, question.pipeline_id)]
    if _is_another_path(question, view, listing, known):
        findings.cannot_judge(
            f"files below {view.where}: no batch of the ledger has written there"
        )
        # Whose they are is known to nobody
        question = replace(question, shared=True)

    selection = select(batches, question.since)
    chain = build_chain(
        selection.batches, findings, complete=selection.complete, has_one_order=True
    )
    findings.facts |= {
        "pipeline_id": question.pipeline_id,
        "ledger": ledger_facts(str(ledger), chain, "files"),
    }
    leave_others_open(chain, "files", findings)
    if not chain.batches:
        findings.cannot_judge(f"pipeline {question.pipeline_id}: {ledger} has no batch of it")
    if listing.links and not question.shared:
        findings.cannot_judge(f"what is behind symbolic links: {_shorten(sorted(listing.links))}")
    for batch in chain.batches:
        if batch.files is not None and batch.files.files:
            _check_batch(batch, batch.files, listing, view, question, findings)
    if not question.shared:
        for name in sorted(listing.twice):
            findings.anomaly("duplicate-write", "I2", name, "lists name the file more than once")
    strangers = _count_unaccounted(listing, known, question, findings)
    findings.facts["files"] = {
        "path": view.where,
        "files": sum(len(batch.files.files) for batch in chain.batches if batch.files),
        "batches": sum(1 for batch in chain.batches if batch.files and batch.files.files),
        "unaccounted_files": strangers,
    }
    findings.facts["prepared"] = view.list_prepared(question.pipeline_id)
    findings.facts["seconds"] = round(time.monotonic() - began, 3)
    return findings


def _is_another_path(
    question: FilesQuestion, view: FileView, listing: Listing, batches: Iterable[LedgerBatch]
) -> bool:
    """Return whether the batches tell of other paths alone, and nothing of theirs is at this one.

    Where the ledger lies below the path, that is the pipeline's, whatever it was called before.
    """
    parts = [batch.files for batch in batches if batch.files and batch.files.root]
    return (
        question.ledger is not None
        and bool(parts)
        and not any(view.has_root(root) for root in {part.root for part in parts})
        # The same folder, moved, or mounted elsewhere
        and all(listing.sizes.keys().isdisjoint(part.files) for part in parts)
    )


def _default_ledger(root: str) -> Path:
    if "://" in root and not root.startswith("file:"):
        raise WrongUsage(
            f"beside {root.partition('?')[0]} is no ledger of a kind that the checker looks at "
            f"together with files",
            next_step="name the folder of the sink's ledger with --ledger-folder",
        )
    return Path(re.sub(r"^file:(?://[^/]*)?/+", "/", root)) / "_onceward" / "ledger"


def _check_batch(
    batch: LedgerBatch,
    part: FilesPart,
    listing: Listing,
    view: FileView,
    question: FilesQuestion,
    findings: Findings,
) -> None:
    """Check that the batch's files are there, as long as they were and with as many rows in
    all.
    """
    if not view.has_root(part.root):
        findings.cannot_judge(f"sequence {batch.sequence}: it was written below {part.root}")
    elif any(listing.behind_a_link(name) for name in part.files):
        findings.cannot_judge(
            f"sequence {batch.sequence}: its files are behind symbolic links, which are not "
            f"followed"
        )
    elif not batch.finished and any(name not in listing.sizes for name in part.files):
        what = f"sequence {batch.sequence} is decided and not published yet"
        if question.expect_caught_up:
            findings.anomaly("open-transaction", "I8", batch.place, what)
        else:
            findings.cannot_judge(what)
    else:
        _check_contents(batch, part, listing, view, findings)


def _check_contents(
    batch: LedgerBatch, part: FilesPart, listing: Listing, view: FileView, findings: Findings
) -> None:
    rows: list[int] = []
    for name, size in part.files.items():
        if name not in listing.sizes:
            detail = f"a file of sequence {batch.sequence} is not there"
            findings.anomaly("lost-write", "I1", name, detail)
        elif listing.sizes[name] != size:
            detail = (
                f"a file of sequence {batch.sequence} has {listing.sizes[name]} bytes, "
                f"and had {size} when it was decided"
            )
            findings.anomaly("state-mismatch", "I4", name, detail)
        else:
            try:
                number = view.count_rows(name, part.format)
            except ValueError as error:
                findings.anomaly("state-mismatch", "I4", name, str(error))
            else:
                rows += [] if number is None else [number]
    total = sum(rows)
    if len(rows) == len(part.files) and total != part.rows:
        detail = (
            f"the files of sequence {batch.sequence} have {total} rows, and it is told to "
            f"have {part.rows}"
        )
        name = "lost-write" if total < part.rows else "duplicate-write"
        findings.anomaly(name, "I1", batch.place, detail)


class _BatchFolder(NamedTuple):
    """Folder of a batch, ``<column>=<pipeline>@<number>/…``."""

    column: str
    pipeline: str
    number: int


def _batch_folder(name: str) -> _BatchFolder | None:
    found = _BATCH_FOLDER.match(name)
    return None if found is None else _BatchFolder(found[1], found[2], int(found[3]))


def _count_unaccounted(
    listing: Listing,
    batches: Sequence[LedgerBatch],
    question: FilesQuestion,
    findings: Findings,
) -> int:
    """Report files that no batch names, and return their number.

    Where old records are gone, the number of a batch's folder tells whether a record that is there
    would have to name what is in it. Of files in flat folders it is only known that one written
    after the oldest record is of no batch before it; copying files makes them new, so that this is
    no anomaly.
    """
    names = {name for batch in batches if batch.files for name in batch.files.files}
    folders = [_batch_folder(name) for name in names]
    columns = {one.column for one in folders if one and one.pipeline == question.pipeline_id}
    is_flat = None in folders
    first = min(batches, key=lambda batch: batch.sequence, default=None)
    oldest, since_ms = (first.sequence, first.committed_at_ms) if first else (0, math.inf)
    number, old, new = 0, [], []
    for name in sorted((listing.sizes.keys() | listing.missing) - names):
        folder = None if is_flat else _batch_folder(name)
        is_ours = folder is not None and folder.pipeline == question.pipeline_id
        if folder and not is_ours and (not columns or folder.column in columns):
            continue  # another pipeline's
        number += 1
        if question.shared:
            continue
        is_covered = folder.number >= oldest if folder and is_ours else bool(columns)
        if batches and (oldest == 0 or is_covered):
            detail = "a file is visible that no batch names"
            findings.anomaly("unaccounted-write", "I2", name, detail)
        elif not is_ours and listing.written_at_ms.get(name, 0) > since_ms:
            new.append(name)
        else:
            old.append(name)
    if new:
        findings.cannot_judge(
            f"{len(new)} files that no record names, and that were written after the oldest "
            f"record which the ledger "
            f"has still: {_shorten(new)}"
        )
    if old:
        findings.note_expired(f"{len(old)} files that no record names which the ledger has still")
    return number


def _shorten(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
