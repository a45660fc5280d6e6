"""The entries of a folder ledger, on a local disk.

The questions to a folder of files, in order: what does the ledger tell, does it make one chain,
are its files there?

The order matters while the pipeline runs: the ledger is read before the files are listed, and
again after it. What is finished in the first reading must be there; what is there must be told of
by the second.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from onceward_verify.chain import ledger_facts, one_chain
from onceward_verify.file_views import Place, Seen, place_at
from onceward_verify.findings import CannotTell, Findings, WrongUsage
from onceward_verify.ledger import Batch, Since, batch_of, select

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


_BATCH_FOLDER = re.compile(r"(?:_onceward/files/_attempt=[^/]+/)?([^/=]+)=([^/@]+)@([0-9]{10,})/")


@dataclass(frozen=True, kw_only=True)
class FilesQuestion:
    """What to look at.

    :param root: the sink's path: on a local disk, or a URI of S3
        (:class:`~onceward_verify.file_views.Listed`).
    :param ledger: the folder ledger; None: the one below ``root``.
    :param expect_caught_up: the pipeline is at rest: what is decided and not published is an
        anomaly.
    :param shared: others write files there, too.
    :param ignore_expired: what the ledger has removed is not asked for.
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
    """The answer. :raises CannotTell: there is none, because something that is not the pipeline's
    is missing.
    """
    began = time.monotonic()
    findings = Findings(ignore_expired=question.ignore_expired)
    root = str(question.root)
    ledger = question.ledger or _beside(root)
    told = entries(ledger, question.pipeline_id)
    has_lists = any(batch.files and batch.files.layout == "manifest" for batch in told.values())
    place = place_at(root, has_lists=has_lists)
    seen = place.seen()
    told_later = entries(ledger, question.pipeline_id)

    selected = select(list(told.values()), question.since)
    chain = one_chain(selected.batches, findings, complete=selected.complete)
    findings.facts |= {
        "pipeline_id": question.pipeline_id,
        "ledger": ledger_facts(str(ledger), chain),
    }
    if not chain.batches:
        findings.cannot_judge(f"pipeline {question.pipeline_id}: {ledger} has no batch of it")
    if seen.links and not question.shared:
        findings.cannot_judge(f"what is behind symbolic links: {_some(sorted(seen.links))}")
    for batch in chain.batches:
        _whole(batch, seen, place, question, findings)
    if not question.shared:
        for name in sorted(seen.twice):
            findings.anomaly("duplicate-write", "I2", name, "lists name the file more than once")
    unaccounted = _of_nobody(seen, {**told, **told_later}, question, findings)
    findings.facts["files"] = {
        "path": place.where,
        "files": sum(len(batch.files.files) for batch in chain.batches if batch.files),
        "batches": sum(1 for batch in chain.batches if batch.files and batch.files.files),
        "unaccounted_files": unaccounted,
    }
    findings.facts["prepared"] = place.prepared_by(question.pipeline_id)
    findings.facts["seconds"] = round(time.monotonic() - began, 3)
    return findings


def _beside(root: str) -> Path:
    if "://" in root and not root.startswith("file:"):
        raise WrongUsage(
            f"beside {root.partition('?')[0]} is no ledger of a kind that the checker looks at "
            f"together with files",
            next_step="name the folder of the sink's ledger with --ledger-folder",
        )
    return Path(re.sub(r"^file:(?://[^/]*)?/+", "/", root)) / "_onceward" / "ledger"


def _whole(
    batch: Batch, seen: Seen, place: Place, question: FilesQuestion, findings: Findings
) -> None:
    """Every file of the batch is there, as long as it was, with as many rows in all as the batch
    has.
    """
    told = batch.files
    if told is None or not told.files:
        return
    if not place.is_here(told.root):
        findings.cannot_judge(f"sequence {batch.sequence}: it was written below {told.root}")
        return
    if any(seen.behind_a_link(name) for name in told.files):
        findings.cannot_judge(
            f"sequence {batch.sequence}: its files are behind symbolic links, which are not "
            f"followed"
        )
        return
    if not batch.finished and any(name not in seen.sizes for name in told.files):
        what = f"sequence {batch.sequence} is decided and not published yet"
        if question.expect_caught_up:
            findings.anomaly("open-transaction", "I8", batch.place, what)
        else:
            findings.cannot_judge(what)
        return
    rows: list[int | None] = []
    for name, size in told.files.items():
        if name not in seen.sizes:
            findings.anomaly(
                "lost-write", "I1", name, f"a file of sequence {batch.sequence} is not there"
            )
        elif seen.sizes[name] != size:
            detail = (
                f"a file of sequence {batch.sequence} has {seen.sizes[name]} bytes, and had "
                f"{size} when it was decided"
            )
            findings.anomaly("state-mismatch", "I4", name, detail)
        else:
            rows.append(_rows(place, told.format, name, findings))
    counted = [number for number in rows if number is not None]
    if len(counted) == len(told.files) and sum(counted) != told.rows:
        detail = (
            f"the files of sequence {batch.sequence} have {sum(counted)} rows, and it is "
            f"told to have {told.rows}"
        )
        kind = "lost-write" if sum(counted) < told.rows else "duplicate-write"
        findings.anomaly(kind, "I1", batch.place, detail)


def _rows(place: Place, form: str, name: str, findings: Findings) -> int | None:
    try:
        return place.rows_of(name, form)
    except ValueError as error:
        findings.anomaly("state-mismatch", "I4", name, str(error))
        return None


def _of_nobody(
    seen: Seen, told: Mapping[int, Batch], question: FilesQuestion, findings: Findings
) -> int:
    """Files that no batch names.

    Where old records are gone, the number of a batch's folder tells whether a record that is there
    would have to name what is in it. Of files in flat folders it is only known that what was
    written after the oldest record of all is none of a batch before it; whoever copies files makes
    them new, so that this accuses nobody.
    """
    named = {name for batch in told.values() if batch.files for name in batch.files.files}
    columns = {
        place.column
        for place in map(_place, named)
        if place and place.pipeline == question.pipeline_id
    }
    is_flat = bool(named) and any(_place(name) is None for name in named)
    oldest = min(told, default=0)
    others, of_older, newer = 0, [], []
    for name in sorted((seen.sizes.keys() | seen.missing) - named):
        place = None if is_flat else _place(name)
        if (
            place
            and place.pipeline != question.pipeline_id
            and (not columns or place.column in columns)
        ):
            continue  # another pipeline's
        others += 1
        ours = place is not None and place.pipeline == question.pipeline_id
        if question.shared:
            continue
        if told and (oldest == 0 or (place.number >= oldest if place and ours else columns)):
            findings.anomaly(
                "unaccounted-write", "I2", name, "a file is visible that no batch names"
            )
        elif not ours and told and seen.written_at_ms.get(name, 0) > told[oldest].committed_at_ms:
            newer.append(name)
        else:
            of_older.append(name)
    if newer:
        findings.cannot_judge(
            f"{len(newer)} files that no record names, and that were written after the oldest "
            f"record which the ledger "
            f"has still: {_some(newer)}"
        )
    if of_older:
        findings.gone(f"{len(of_older)} files that no record names which the ledger has still")
    return others


class _Place(NamedTuple):
    """Of ``<column>=<pipeline>@<number>/…``: where the sink puts a batch."""

    column: str
    pipeline: str
    number: int


def _place(name: str) -> _Place | None:
    found = _BATCH_FOLDER.match(name)
    return None if found is None else _Place(found[1], found[2], int(found[3]))


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
