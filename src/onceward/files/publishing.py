"""From hidden to visible: how a batch's files are prepared, published, dropped. Driver only.

Below the sink's path::

    _onceward/ledger/<pipeline>/…        the ledger, where none was given
    _onceward/shape.json                 what all files of the path have in common (:mod:`reading`)
    _onceward/prepared/<attempt>/        what Spark is writing into
    _onceward/prepared/<attempt>.ready/  what Spark has written: what the ledger will name
    _onceward/prepared/<attempt>.published  a mark: all of it has been published
    batch=<pipeline>@<number>/…          a published batch (layout "batches"): column ``batch``
    day=2026-11-22/part-….parquet        a published file (layout "flat")

Layout "manifest" renames nothing: see :mod:`manifest`. For the others:

Executors know the first of the two folders of an attempt. The second one, which it is renamed to
once the jobs have ended, is known to the driver alone: a task that was given up and goes on
writing all the same has no way into it.

``batches`` is published by one rename of the folder: a reader who lists the path sees the whole
batch, or nothing of it. ``flat`` is published file by file: each is renamed once, so that none is
seen twice, and none that is not decided; in between a reader sees a part.

Both are repeated until they are done, and look first: what has gone from the one place and is in
the other is done. What is published is its readers', who may take it away at once, while the
ledger's last word on the batch is yet to be written. So each rename leaves a mark where the file
or the folder was (``<name>.published``); what is in neither place, and has no mark, is lost. The
mark of a batch goes when the next attempt begins.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

from onceward import patience, surroundings
from onceward.engine.two_phase import CommitResult
from onceward.errors import (
    ConfigurationError,
    LedgerUnreadable,
    ReportMismatch,
    RowRefused,
    SendFailed,
    TargetUnreachable,
)
from onceward.files import manifest, reading
from onceward.files.ledger import FolderLedger
from onceward.files.manifest import PREPARED, Committable, lost_files, report_lost
from onceward.files.settings import HIDDEN, FileSinkSettings
from onceward.spark.files.file_system import Files, files_at, finished
from onceward.spark.files.file_writer import WrittenFiles

log = logging.getLogger(__name__)

_READY, _PUBLISHED = ".ready", ".published"
_DIGITS = 10
_KEEP_SECONDS = 3_600.0
"""Nobody's retention of files is as short."""


class Publisher:
    """What a :class:`~onceward.engine.two_phase.TwoPhaseTarget` asks of the files of one sink."""

    committable_version: ClassVar[int] = 1

    def __init__(self, settings: FileSinkSettings, *, ledger_is_beside: bool) -> None:
        self._settings = settings
        self._ledger_is_beside = ledger_is_beside
        self._keep_at = 0.0
        self._has_listed_marks = False
        self._marks: set[str] = set()

    @patience.OpenedOnce
    def files(self) -> Files:
        """Of the sink's path. Asked for inside a batch."""
        return files_at(self._settings.path, renames=self._settings.renames)

    # before the first batch

    def check(self, written_to: str) -> None:
        """Check the path, and make what it lacks.

        :param written_to: the path of this pipeline's newest batch, by its ledger; or "".
        :raises TargetUnreachable: the path cannot be written to, or is ``written_to`` and has lost
            what was written there (its disk is away).
        :raises ConfigurationError: the path has files of another shape, or somebody else's list.
        """
        with self._writable():
            if written_to == self.files.root:
                reading.must_be_there(self.files, self._settings)
            if self._settings.renames:
                reading.must_list_nothing_else(self.files)
            self.files.make(PREPARED)
            reading.must_fit(self.files, self._settings)

    @contextmanager
    def _writable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise TargetUnreachable(
                f"files cannot be written below {self._settings.path}: {error}",
                next_step="make the folder, and let the driver and the executors write there; see "
                "that its file system is there and has room",
            ) from error

    def must_be_beside_its_ledger(self) -> None:
        """Check that the ledger is where the files are.

        :raises TargetUnreachable: Hadoop does not know the path's file system.
        :raises ConfigurationError: it is elsewhere.
        """
        ledger = self._settings.ledger
        if not self._ledger_is_beside or not isinstance(ledger, FolderLedger):
            return
        with self._writable():
            local = self.files.local
        if local is None or FolderLedger(f"{local}/{HIDDEN}/ledger").path != ledger.path:
            raise ConfigurationError(
                f"path={self._settings.path!r} is {self.files.root} to Spark, and without ledger= "
                f"the ledger would be kept in {ledger.path}",
                next_step="pass a path with its scheme (file:/… or hdfs://…), and for hdfs also "
                "ledger=",
            )

    # an attempt

    def must_have(self, columns: Sequence[str]) -> None:
        """Check the columns, but ``partition_by``, of a frame that becomes CSV, before any write.

        :raises InvalidColumn: the path has other columns.
        :raises SendFailed: the file system does not do its part.
        """
        with self._reached():
            reading.columns_must_fit(self.files, columns)

    def opened(self, attempt: str, sequence: int) -> str:
        """Return where Spark writes, of an attempt at batch number ``sequence`` of the ledger.

        :raises SendFailed: the file system does not do its part.
        """
        with self._reached():
            reading.must_be_there(self.files, self._settings)
            if surroundings.monotonic() >= self._keep_at:
                reading.keep(self.files)
                self._keep_at = surroundings.monotonic() + _KEEP_SECONDS
            if self._settings.renames:
                return self.files.uri(f"{PREPARED}/{attempt}")
            place = self._place(attempt, sequence)
            self.files.put_if_absent(place.note, place.manifest)
            return self.files.uri(place.files)

    def remove_marks(self, chain: str) -> None:
        """Remove the marks of a chain's batches, all of which are finished.

        :param chain: how the names of its attempts begin.
        :raises SendFailed: the file system does not do its part.
        """
        if not self._settings.renames:
            return
        with self._reached():
            if not self._has_listed_marks:
                names = [name for name in self.files.names(PREPARED) if name.endswith(_PUBLISHED)]
                self._marks |= {f"{PREPARED}/{name}" for name in names if name.startswith(chain)}
                self._has_listed_marks = True
            for mark in sorted(self._marks):
                self.files.remove(mark)
        self._marks.clear()

    def _place(self, attempt: str, sequence: int) -> manifest.Place:
        return manifest.list_place(attempt, self._settings.batch_column, self._batch(sequence))

    def _batch(self, sequence: int) -> str:
        return f"{self._settings.policy.pipeline}@{sequence:0{_DIGITS}}"

    def free_place(self, sequence: int) -> str:
        """Return where the ledger's batch ``sequence`` goes below the path; empty: the path."""
        if self._settings.layout == "flat":
            return ""
        pipeline, batch = self._settings.policy.pipeline, self._batch(sequence)
        lists = self._settings.layout == "manifest"
        place = (
            f"{manifest.MANIFESTS}/{batch}" if lists else f"{self._settings.batch_column}={batch}"
        )
        with self._reached():
            is_free = (self.files.size(place) if lists else self.files.listed(place)) is None
        if not is_free:
            raise ConfigurationError(
                f"{self.files.uri(place)} is there, where batch number {sequence} of pipeline "
                f"{pipeline} would have to go: the pipeline has written to this path under a "
                "ledger that is no longer used",
                next_step="use the ledger that the pipeline has had; or, if it shall begin anew, "
                "another path or another pipeline_id",
            )
        return place

    def prepare(self, attempt: str, sequence: int, jobs: Sequence[WrittenFiles]) -> Committable:
        """Return an attempt's files after its last job: durable, out of reach of all tasks.

        :raises ConfigurationError: there is something where they are to go.
        :raises ReportMismatch: there are others than the tasks have written.
        :raises RowRefused: a folder's name does not give back the value that it has its name from.
        :raises SendFailed: the file system does not do its part.
        """
        to = self.free_place(sequence)
        with self._reached():
            if self._settings.renames:
                ready, at = f"{PREPARED}/{attempt}{_READY}", ""
                self.files.move(f"{PREPARED}/{attempt}", ready)
            else:
                # a task that was given up may still write there, under other names than are there
                ready = at = self._place(attempt, sequence).files
            found = self._found(ready, jobs)
            # Spark has made the attempt's folder, and nobody has synced its name
            if at:
                self.files.sync_names({manifest.DATA, HIDDEN})
            # or Spark has made folders where the disk should be
            reading.must_be_there(self.files, self._settings)
            return Committable(attempt, self.files.root, self._settings.layout, to, found, at)

    def _found(self, ready: str, jobs: Sequence[WrittenFiles]) -> dict[str, int]:
        # leftovers of tasks that were given up
        for name in self.files.names(ready):
            if name.startswith(("_temporary", "__magic")):
                self.files.remove(f"{ready}/{name}")
        found = self.files.listed(ready) or {}
        written = sum(job.files for job in jobs), sum(job.bytes for job in jobs)
        there = len(found), sum(found.values())
        if there != written:
            raise ReportMismatch(
                f"tasks have written {written[0]} files of {written[1]} bytes, and {there[0]} of "
                f"{there[1]} bytes are in {self.files.uri(ready)}",
                next_step="nothing, the batch runs again; if it repeats, see that the path is one "
                "that driver and executors share, and that nobody else writes or deletes below "
                "_onceward",
            )
        _must_be_read_back(found)
        self.files.sync(ready)
        return found

    @contextmanager
    def _reached(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise SendFailed(
                f"the files of a batch could not be prepared below {self._settings.path}: {error}",
                next_step="nothing, the batch runs again; if it repeats, see that its file system "
                "is there and has room",
            ) from error

    # after the decision, or instead of it

    def commit(self, committable: Mapping[str, Any]) -> CommitResult:
        """Publish, see the module, by the batch's own settings, whatever the sink's are by now."""
        batch = Committable(**committable)
        files = self._committed_files(batch)
        if batch.layout == "manifest":
            result = manifest.publish(files, batch)
        else:
            result = _publish_renaming(files, batch)
            self._marks |= {_mark(batch)} if files.root == self.files.root else set()
        if result is CommitResult.LOST:
            # or it is the disk that is away
            reading.must_be_there(files, self._settings)
        return result

    def commit_what_is_left(self, committable: Mapping[str, Any]) -> CommitResult:
        """Publish what is left of a batch, on the user's word; again, if more is lost since."""
        batch = Committable(**committable)
        files = self._committed_files(batch)
        if batch.layout == "manifest":
            manifest.publish_what_is_left(files, batch)
            return CommitResult.DONE
        there = files.listed(_ready(batch)) or {}
        whole = {
            name: size
            for name, size in batch.files.items()
            if there.get(name) == size or name + _PUBLISHED in there
        }
        # cut short: no reader could read on
        for name in there.keys() - whole.keys() - {name + _PUBLISHED for name in whole}:
            files.remove(f"{_ready(batch)}/{name}")
        return self.commit(batch._replace(files=whole).as_told())

    def _committed_files(self, batch: Committable) -> Files:
        """Return the files below the path of ``batch``: that of then; or the sink's own, where
        the folder was moved or copied to between decision and publication."""
        if batch.root == self.files.root:
            return self.files
        renames = batch.layout != "manifest"
        here = files_at(self.files.root, renames=renames)
        # An attempt's name is its own. Of a copy readers have the new one; the old may be away
        if not _has(here, batch):
            return files_at(batch.root, renames=renames)
        log.warning(
            "%s was prepared below %s, and is below %s", batch.folder, batch.root, here.root
        )
        return here

    def abort(self, committable: Mapping[str, Any]) -> None:
        """Drop what an attempt has prepared."""
        folder = str(committable["folder"])
        if not self._settings.renames:
            manifest.drop(self.files, folder)
            return
        for name in (folder, f"{folder}{_READY}"):
            self.files.remove(f"{PREPARED}/{name}")

    def recover(self) -> list[dict[str, str]]:
        """List, by their folders, the pipeline's attempts of which something is prepared."""
        ours = f"{self._settings.policy.pipeline}@"
        try:
            names = self.files.names(PREPARED)
        except OSError as error:
            raise TargetUnreachable(
                f"{self.files.uri(PREPARED)} cannot be listed: {error}",
                next_step="see that the file system is there, and lets the driver read",
            ) from error
        attempts = {
            (finished(name) or name).removesuffix(_READY)
            for name in names
            if not name.endswith(_PUBLISHED)
        }
        return [{"folder": name} for name in sorted(attempts) if name.startswith(ours)]

    def begin(self, task: Any) -> Any:
        """Raise: Spark's own tasks write."""
        raise NotImplementedError

    def upgrade(self, committable: Any, version: int) -> Any:
        """Raise: there is no older form."""
        raise LedgerUnreadable(f"version {version} of prepared files is unknown")


def _must_be_read_back(names: Iterable[str]) -> None:
    """Check partitions' folders: Spark escapes what their names must not have, ``?`` for one."""
    for folder in sorted({folder for name in names for folder in name.split("/")[:-1]}):
        if folder.endswith("._COPYING_"):  # HadoopFSUtils.shouldFilterOutPathName
            raise RowRefused(
                f"a value of a partition column makes a folder {folder!r}, and readers pass over "
                "names that end so",
                next_step="change such values in the query, or partition by another column",
            )
        # Bytes of a file's name that are no UTF-8 are surrogates in Python's
        is_text = folder.encode("utf-8", "ignore").decode() == folder
        if "?" in folder or "\ufffd" in folder or not is_text:
            raise RowRefused(
                f"a value of a partition column has become the folder {folder!a}, which does not "
                "give it back: it is no valid text, or one that the JVM cannot write in a file's "
                "name",
                next_step="start Spark's JVMs with a locale of UTF-8 (LC_ALL=C.UTF-8), and "
                "partition by valid text: url_encode or hex in the query makes some of everything",
            )


def _ready(batch: Committable) -> str:
    return f"{PREPARED}/{batch.folder}{_READY}"


def _mark(batch: Committable) -> str:
    return f"{PREPARED}/{batch.folder}{_PUBLISHED}"


def _has(files: Files, batch: Committable) -> bool:
    """Return whether the files of an attempt are there, or the mark that they were published."""
    prepared = files.listed(batch.at or _ready(batch))
    return prepared is not None or files.size(_mark(batch)) is not None


def _publish_renaming(files: Files, batch: Committable) -> CommitResult:
    prepared = files.listed(_ready(batch)) or {}
    # A mark beside what is moved before it: the machine has lost power, and of two names that were
    # not synced the later one alone is left.
    if files.size(_mark(batch)) is not None and prepared.keys().isdisjoint(batch.files):
        files.remove(_ready(batch))
        result = CommitResult.ALREADY_DONE
    elif batch.layout == "batches":
        result = _publish_folder(files, batch, prepared)
    else:
        result = _publish_files(files, batch, prepared)
    if result in (CommitResult.DONE, CommitResult.ALREADY_DONE):
        # also what an earlier call has renamed
        files.sync_names({"", PREPARED})
    return result


def _publish_folder(files: Files, batch: Committable, prepared: Mapping[str, int]) -> CommitResult:
    published = files.listed(batch.to)
    marked = any(name + _PUBLISHED in prepared for name in batch.files)
    waiting = [
        name for name in lost_files(batch.files, published or {}) if not _is_moved(name, prepared)
    ]
    if lost := [name for name in waiting if prepared.get(name) != batch.files[name]]:
        return report_lost(lost, batch)
    if published is None and not marked:
        if not files.move(_ready(batch), batch.to):
            # another copy is about it: look again
            return CommitResult.RETRY_LATER
    elif waiting or marked:
        # somebody has made that folder, or has taken files out of it and put them back: nobody's
        # is removed
        return _publish_files(files, batch, prepared)
    files.mark(_mark(batch))
    return CommitResult.DONE if published is None else CommitResult.ALREADY_DONE


def _publish_files(files: Files, batch: Committable, prepared: Mapping[str, int]) -> CommitResult:
    """Publish whole files: a batch of which a file is lost is decided all the same."""
    places = {name: f"{batch.to}/{name}".lstrip("/") for name in batch.files}
    folders = {name: place.rpartition("/")[0] for name, place in places.items()}
    for folder in sorted({folders[name] for name in places if name in prepared}):
        files.make(folder)
    results = {
        name: _publish_file(
            files, f"{_ready(batch)}/{name}", places[name], size, prepared.get(name)
        )
        for name, size in batch.files.items()
        if not _is_moved(name, prepared)
    }
    files.sync_names(set(folders.values()))
    if lost := [name for name, result in results.items() if result is CommitResult.LOST]:
        return report_lost(lost, batch)
    if CommitResult.RETRY_LATER in results.values():
        return CommitResult.RETRY_LATER
    files.mark(_mark(batch))
    files.remove(_ready(batch))
    is_new = CommitResult.DONE in results.values()
    return CommitResult.DONE if is_new else CommitResult.ALREADY_DONE


def _is_moved(name: str, prepared: Mapping[str, int]) -> bool:
    """Return whether a mark says so, and the file is not there still, as after a power failure."""
    return name + _PUBLISHED in prepared and name not in prepared


def _publish_file(
    files: Files, source: str, place: str, size: int, prepared: int | None
) -> CommitResult:
    patience.ask()
    if prepared == size and files.move(source, place):
        files.mark(source + _PUBLISHED)
        return CommitResult.DONE
    # another copy has moved it; or it was moved, and this process died before it left the mark
    if files.size(place) == size or files.size(source + _PUBLISHED) is not None:
        return CommitResult.ALREADY_DONE
    if prepared == size and files.size(place) is None:
        # a reader has removed the folder again, which was empty
        return CommitResult.RETRY_LATER
    return CommitResult.LOST
