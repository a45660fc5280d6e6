"""Layout "manifest": files stay where Spark wrote them, hidden, and a list makes a batch visible.

For stores in which nothing can be renamed, or readers of whole batches. Below the sink's path::

    _onceward/prepared/<attempt>                  where an attempt writes, until it is published
    _onceward/files/_attempt=<attempt>/batch=<pipeline>@<number>/day=2026-11-22/part-….parquet
    _symlink_format_manifest/<pipeline>@<number>  a published batch: one file's URI a line

The list is one file, written last: who reads the lists sees all of a batch or nothing of it. It is
written as Hive's ``SymlinkTextInputFormat`` reads it, which Hive, Trino, Presto and Athena have.
Who lists folders sees nothing.

The note is written before anything else of an attempt, and removed behind the list: what a crash
leaves is found by it, however many batches the path has. Driver only; called by :mod:`publishing`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from onceward.engine.two_phase import CommitResult
from onceward.errors import ConfigurationError
from onceward.files.settings import HIDDEN
from onceward.spark.files.file_system import Files, finished

log = logging.getLogger(__name__)


PREPARED = f"{HIDDEN}/prepared"
"""Below the sink's path: what an attempt leaves until it is published or dropped, by its name."""


class Committable(NamedTuple):
    """``folder`` is the attempt's name, ``root`` the sink's path when it was prepared, ``to``
    where the files go below it, or the list of them (layout "manifest"), ``files`` their names
    there with their sizes in bytes. ``at`` is where they are already (layout "manifest").
    """

    folder: str
    root: str
    layout: str
    to: str
    files: Mapping[str, int]
    at: str = ""

    def as_told(self) -> dict[str, Any]:
        """Return it for the ledger record; :func:`Committable` takes it back."""
        return {name: value for name, value in self._asdict().items() if value or name != "at"}


def lost_files(wanted: Mapping[str, int], found: Mapping[str, int]) -> list[str]:
    """Return the files that are not there as they were."""
    return [name for name, size in wanted.items() if found.get(name) != size]


def report_lost(lost: Sequence[str], batch: Committable) -> CommitResult:
    """Log what is lost, and return ``LOST``."""
    log.error(
        "of %s below %s %d files are lost: %s",
        batch.folder,
        batch.root,
        len(lost),
        ", ".join(lost[:10]),
    )
    return CommitResult.LOST


MANIFESTS = "_symlink_format_manifest"
DATA = f"{HIDDEN}/files"
ATTEMPT = "_attempt"
"""The column that readers of the files' folders would find besides."""


class Place(NamedTuple):
    """Of one attempt at a batch."""

    note: str
    files: str
    manifest: str


def list_place(attempt: str, batch_column: str, batch: str) -> Place:
    """Return the place of an attempt's files. :param batch: ``<pipeline>@<number>``."""
    return Place(
        f"{PREPARED}/{attempt}",
        f"{DATA}/{ATTEMPT}={attempt}/{batch_column}={batch}",
        f"{MANIFESTS}/{batch}",
    )


def publish(files: Files, batch: Committable) -> CommitResult:
    """Write the list of ``batch``.

    :raises ConfigurationError: there is another one of its name.
    """
    listing = files.text(batch.to)
    # What is listed is its readers': they may have removed files of it since
    is_listed = listing == _listing(files, batch, batch.files)
    if not is_listed and (lost := lost_files(batch.files, files.listed(batch.at) or {})):
        return report_lost(lost, batch)
    _write(files, batch, batch.files)
    files.remove(f"{PREPARED}/{batch.folder}")
    return CommitResult.DONE if listing is None else CommitResult.ALREADY_DONE


def publish_what_is_left(files: Files, batch: Committable) -> None:
    """Write the list of the files that are whole; that of a batch published before stays."""
    there = files.listed(batch.at) or {}
    if files.text(batch.to) != _listing(files, batch, batch.files):
        lost = lost_files(batch.files, there)
        _write(files, batch, batch.files.keys() - lost)
    files.remove(f"{PREPARED}/{batch.folder}")


def _write(files: Files, batch: Committable, names: Iterable[str]) -> None:
    listing = _listing(files, batch, names)
    files.make(MANIFESTS)
    if files.put_if_absent(batch.to, listing) != listing:
        raise ConfigurationError(
            f"{files.uri(batch.to)} is there, and does not list the files of the batch that is "
            "decided: somebody else has written it",
            next_step="move it away, and start again: the batch is published first of all",
        )
    files.sync_names({"", MANIFESTS})


def _listing(files: Files, batch: Committable, names: Iterable[str]) -> str:
    return "".join(f"{files.uri(f'{batch.at}/{name}')}\n" for name in sorted(names))


def drop(files: Files, attempt: str) -> None:
    """Remove an attempt's files and its note; what a list names stays, even if said undecided."""
    note = f"{PREPARED}/{attempt}"
    for name in files.names(PREPARED):
        # whoever wrote the note died over it
        if finished(name) == attempt:
            files.remove(f"{PREPARED}/{name}")
    target = files.text(note)
    # nothing was written, or a list has it
    if target is None:
        return
    if target.startswith(f"{MANIFESTS}/") and attempt in _listed(files, target):
        log.error(
            "%s names files of attempt %s, which is to be dropped: they stay",
            files.uri(target),
            attempt,
        )
    else:
        files.remove(f"{DATA}/{ATTEMPT}={attempt}")
        # no task has come to write
        with suppress(FileNotFoundError):
            # or a power failure brings them back, and no note tells of them
            files.sync_names({DATA})
    files.remove(note)


def _listed(files: Files, manifest: str) -> set[str]:
    """Return the attempts whose files a list names."""
    # Not by splitlines(): a partition's folder may have other line ends (U+0085, U+2028).
    lines = (files.text(manifest) or "").split("\n")
    return {line.partition(f"/{ATTEMPT}=")[2].partition("/")[0] for line in lines}
