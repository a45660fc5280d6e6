"""The questions to a folder of files, in order: what does the ledger tell, does it make one chain, are its files there?

The order matters while the pipeline runs: the ledger is read before the files are listed, and again after it. What is
finished in the first reading must be there; what is there must be told of by the second.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from onceward.verify.chain import Chain, ledger_facts, one_chain
from onceward.verify.file_listing import entries, files_below, prepared_by, rows_of
from onceward.verify.findings import Findings
from onceward.verify.ledger import Batch
from onceward.verify.since import Since, select


@dataclass(frozen=True, kw_only=True)
class FilesQuestion:
    """What to look at.

    :param root: the sink's path, on a local disk.
    :param ledger: the folder ledger; None: the one below ``root``.
    :param expect_caught_up: the pipeline is at rest: what is decided and not published is an anomaly.
    :param shared: others write files there, too.
    :param what_is_left: what the ledger has removed is not asked for.
    :param since: the batch to begin with; None: the ledger's first.
    """

    root: Path
    pipeline_id: str
    ledger: Path | None = None
    expect_caught_up: bool = False
    shared: bool = False
    what_is_left: bool = False
    since: Since | None = None


def check_files(question: FilesQuestion) -> Findings:
    """The answer. :raises CannotTell: there is none, because something that is not the pipeline's is missing."""
    began = time.monotonic()
    findings = Findings(what_is_left=question.what_is_left)
    ledger = question.ledger or question.root / "_onceward" / "ledger"
    told = entries(ledger, question.pipeline_id)
    seen = files_below(question.root)
    told_later = entries(ledger, question.pipeline_id)

    selected = select(list(told.values()), question.since)
    chain = one_chain(selected.batches, findings, complete=selected.complete)
    findings.facts |= {"pipeline_id": question.pipeline_id, "ledger": ledger_facts(str(ledger), chain)}
    if not chain.batches:
        findings.cannot_judge(f"pipeline {question.pipeline_id}: {ledger} has no batch of it")
    for batch in chain.batches:
        _whole(batch, seen, question, findings)
    unaccounted = _of_nobody(seen, {**told, **told_later}, chain, question, findings)
    findings.facts["files"] = {
        "path": str(question.root),
        "files": sum(len(batch.files.files) for batch in chain.batches if batch.files),
        "batches": sum(1 for batch in chain.batches if batch.files and batch.files.files),
        "unaccounted_files": unaccounted,
    }
    findings.facts["prepared"] = prepared_by(question.root, question.pipeline_id)
    findings.facts["seconds"] = round(time.monotonic() - began, 3)
    return findings


def _whole(batch: Batch, seen: Mapping[str, int], question: FilesQuestion, findings: Findings) -> None:
    """Every file of the batch is there, as long as it was, with as many rows in all as the batch has."""
    told = batch.files
    if told is None or not told.files:
        return
    if not _is_here(told.root, question.root):
        findings.cannot_judge(f"sequence {batch.sequence}: it was written below {told.root}")
        return
    if not batch.finished and any(name not in seen for name in told.files):
        what = f"sequence {batch.sequence} is decided and not published yet"
        if question.expect_caught_up:
            findings.anomaly("open-transaction", "I8", batch.place, what)
        else:
            findings.cannot_judge(what)
        return
    rows: list[int | None] = []
    for name, size in told.files.items():
        if name not in seen:
            findings.anomaly("lost-write", "I1", name, f"a file of sequence {batch.sequence} is not there")
        elif seen[name] != size:
            detail = f"a file of sequence {batch.sequence} has {seen[name]} bytes, and had {size} when it was decided"
            findings.anomaly("state-mismatch", "I4", name, detail)
        else:
            rows.append(_rows(question.root / name, told.format, name, findings))
    counted = [number for number in rows if number is not None]
    if len(counted) == len(told.files) and sum(counted) != told.rows:
        detail = f"the files of sequence {batch.sequence} have {sum(counted)} rows, and it is told to have {told.rows}"
        kind = "lost-write" if sum(counted) < told.rows else "duplicate-write"
        findings.anomaly(kind, "I1", batch.place, detail)


def _rows(path: Path, form: str, name: str, findings: Findings) -> int | None:
    try:
        return rows_of(path, form)
    except ValueError as error:
        findings.anomaly("state-mismatch", "I4", name, str(error))
        return None


def _is_here(root: str, looked_at: Path) -> bool:
    """Is the path that the sink was given the one that we were given?"""
    return Path(unquote(urlsplit(root).path)).resolve() == looked_at.resolve()


def _of_nobody(
    seen: Mapping[str, int], told: Mapping[int, Batch], chain: Chain, question: FilesQuestion, findings: Findings
) -> int:
    """Files that no batch names."""
    named = {name for batch in told.values() if batch.files for name in batch.files.files}
    others = [name for name in sorted(seen.keys() - named) if not _is_another_pipelines(name, question.pipeline_id)]
    if not others or question.shared:
        return len(others)
    if not told or min(told) > 0:
        findings.gone(f"{len(others)} files below {question.root} that no record names which the ledger has still")
        return 0
    for name in others:
        findings.anomaly("unaccounted-write", "I2", name, "a file is visible that no batch names")
    return len(others)


def _is_another_pipelines(name: str, pipeline_id: str) -> bool:
    """In a folder ``<column>=<pipeline>@<number>`` of somebody else."""
    folder, _, rest = name.partition("/")
    _, _, value = folder.partition("=")
    owner, separator, number = value.rpartition("@")
    return bool(rest and separator and number.isdecimal()) and owner != pipeline_id
