"""Notes beside Spark's checkpoint of what a sink was handed, and of what it could not write.

Made by ``engine.micro_batch`` before a batch is written and by ``engine.foreach_batch`` when one fails; runs in the
driver. Spark counts a batch as done when the user's function returns, and a function may leave batches out. So when
batch numbers jump, three things look alike: batches that were never handed over, batches that failed while the
function kept the error to itself, and batches that the ledger had and lost (a cluster restored from a backup). The
notes tell them apart: what was handed over and is not in the ledger is missing.

``<checkpoint>/onceward/<pipeline_id>/<batch_id>-<run_id>``: one file for each batch and run that was handed it, so that
two copies of a query leave each other's alone. It is empty until the batch fails; then it says why, and whether rows
are *lacking*: those of a call that was refused while another call committed the batch. Those of batches before the
ledger's newest are removed. Why in the checkpoint: Spark's commit log is about to be written to that very file system,
so where a note cannot be written, the commit most likely cannot either; who restores the one restores the other.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from py4j.protocol import Py4JJavaError

from onceward.errors import CheckpointUnreachable
from onceward.ids import PipelineId

log = logging.getLogger(__name__)

_LONGEST_TEXT = 2_000
_NOTHING_LACKING = " "
"""Before the JSON of a note that lacks nothing: as much of it as a write that was cut short has left says so, too."""
_DAMAGED = "its note cannot be read"
_lock = threading.Lock()
"""A thread of the function's may be late with a note: it is not to be taken for an empty one, and removed."""


class Note(NamedTuple):
    """The run ``run_id`` was handed ``batch_id``.

    ``error`` is what it met, empty if nothing is known of any; ``lacking``: the batch is committed without rows that
    this run refused, or may be, and another call for it does not settle the matter.
    """

    batch_id: int
    run_id: str
    error: str = ""
    lacking: bool = False


class HandedOver:
    """The notes of one pipeline in one checkpoint.

    :param session: a Spark session, for its Hadoop configuration.
    :param checkpoint: the root of the query's checkpoint, as ``StreamExecution.resolvedCheckpointRoot`` has it.
    """

    def __init__(self, session: Any, checkpoint: str, pipeline: PipelineId) -> None:
        self._jvm = session.sparkContext._jvm
        self._folder = self._path(f"{checkpoint}/onceward/{pipeline}")
        self._files = self._folder.getFileSystem(session._jsparkSession.sessionState().newHadoopConf())

    def notes(self, newest: int, offered: int) -> list[Note]:
        """All there are, by batch. Those that lack nothing and are of no more use are removed.

        Of no more use is what lies below the ledger's ``newest`` batch, but for the newest note below the batch that is
        ``offered``. While a batch is replayed, that one is what remains to tell of a ledger that loses its end then.
        """
        with _lock, self._reached():
            notes = self._all()
            kept_from = min(newest, max((note.batch_id for note in notes if note.batch_id < offered), default=newest))
            for note in notes:
                if note.batch_id < kept_from and not note.lacking:
                    self.forget(note)
            return notes

    def _all(self) -> list[Note]:
        if not self._files.exists(self._folder):
            return []
        found = []
        for status in self._files.listStatus(self._folder):
            number, dash, run_id = status.getPath().getName().partition("-")
            if dash and number.isdecimal():
                note = Note(int(number), run_id)
                known = note if status.getLen() == 0 else self._read(note, believed=True)
                if known is not None:
                    found.append(known)
        return sorted(found)

    def give(self, batch_id: int, run_id: str) -> None:
        """Note that the run was handed the batch: before anything of it is written."""
        with self._reached():
            self._files.createNewFile(self._file(batch_id, run_id))

    def failed(self, note: Note) -> None:
        """Note that the batch, or rows of it, could not be written, and why. What is lacking stays so.

        :raises CheckpointUnreachable: also where what is noted so far cannot be read now. To take it for lacking, for
            good, would stop a query that has lost nothing.
        """
        with _lock, self._reached():
            known = self._read(note._replace(lacking=False), believed=True)
            if known is not None and known.lacking and known.error != _DAMAGED:
                return  # it says all: written anew, it would say nothing if the file system failed in the middle
            lacking = note.lacking or (known is not None and known.lacking)
            stream = self._files.create(self._file(note.batch_id, note.run_id), True)
            try:
                text = json.dumps({"error": note.error[:_LONGEST_TEXT], "lacking": lacking})
                stream.write(bytearray(f"{'' if lacking else _NOTHING_LACKING}{text}".encode()))
            finally:
                stream.close()

    def settle(self, batch_id: int, run_id: str, notes: Iterable[Note]) -> None:
        """The batch is written: of ``notes``, those of failed tries are out of date. Not what this run refused."""
        for note in notes:
            if note.batch_id != batch_id or not note.error:
                continue
            with _lock, self._reached():  # a thread of the function's may have been refused since the notes were read
                now = self._read(note._replace(error="", lacking=False))
                if now is not None and not (now.lacking and note.run_id == run_id):
                    self.forget(note)
                    if note.run_id == run_id:
                        self.give(batch_id, run_id)

    def forget(self, note: Note) -> None:
        with self._reached():
            self._files.delete(self._file(note.batch_id, note.run_id), False)

    def others(self, since: int) -> tuple[str, ...]:
        """Pipelines beside this one that the query has handed batches above ``since`` to."""
        with self._reached():
            beside = [status.getPath() for status in self._files.listStatus(self._folder.getParent())]
            return tuple(
                sorted(
                    str(folder.getName())
                    for folder in beside
                    if folder.getName() != self._folder.getName() and self._newest_in(folder) > since
                )
            )

    def _newest_in(self, folder: Any) -> int:
        names = (str(status.getPath().getName()) for status in self._files.listStatus(folder))
        return max(
            (int(number) for number in (name.partition("-")[0] for name in names) if number.isdecimal()), default=-1
        )

    def _read(self, note: Note, *, believed: bool = False) -> Note | None:
        """``note`` with what its file says; None when it is gone: another copy of the query has settled it.

        :param believed: what it says decides. :raises Exception: it cannot be read, and may be another time: to take it
            for lacking would stop a query that has lost nothing, and name rows that are written.
        """
        file = self._file(note.batch_id, note.run_id)
        if not self._files.exists(file):
            return None
        content = ""
        try:
            stream = self._files.open(file)
            try:
                content = bytes(stream.readAllBytes()).decode(errors="replace")
            finally:
                stream.close()
            if not content:
                return note
            document = json.loads(content)
            return note._replace(error=str(document["error"]), lacking=bool(document["lacking"]))
        except Exception as error:  # cut short by a crash, or damaged on its disk: still a note
            if not self._files.exists(file):
                return None
            if believed and not _is_damage(error):
                raise
            log.warning("the note %s cannot be read: %s", file.toString(), error)
            lacking = not content.startswith(_NOTHING_LACKING)
            return note._replace(error=_DAMAGED, lacking=lacking)

    @contextmanager
    def _reached(self) -> Iterator[None]:
        """Inside, what goes wrong with files is told with the folder's name."""
        try:
            yield
        except Py4JJavaError as error:
            raise CheckpointUnreachable(
                f"the notes in {self._folder.toString()}, beside the query's checkpoint, cannot be used: "
                f"{error.java_exception.toString()}",
                next_step="make the checkpoint readable and writable for the driver, see that its file system has "
                "room, and start the query again",
            ) from error

    def _file(self, batch_id: int, run_id: str) -> Any:
        return self._path(f"{self._folder.toString()}/{batch_id}-{run_id}")

    def _path(self, text: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(text)


def _is_damage(error: Exception) -> bool:
    """Is it what the file says, or does not say any more? Then it will say no more another time."""
    if isinstance(error, Py4JJavaError):
        return bool(error.java_exception.toString().startswith("org.apache.hadoop.fs.ChecksumException"))
    return isinstance(error, (ValueError, KeyError, TypeError))


def standing(
    notes: Sequence[Note], newest: int, offered: int, run_id: str, executed: Callable[[], Collection[int]]
) -> list[Note]:
    """Those of ``notes`` that stand against the batch ``offered``: what was handed over and is not in the ledger.

    A batch that this run executed without handing it over, after an earlier one had failed with it, is not among
    them: the function had nothing of it to hand over.

    :param newest: the ledger's newest batch, -1 without any; above it nothing is written.
    :param run_id: the run that is offered the batch; ``executed``: the batches that it has ended so far, asked for only
        where it matters.
    """
    done = executed() if any(newest < note.batch_id < offered for note in notes) else ()
    ours = {note.batch_id for note in notes if note.run_id == run_id}
    return [
        note
        for note in notes
        if (newest < note.batch_id < offered and (note.batch_id in ours or note.batch_id not in done))
        or (note.lacking and note.batch_id <= newest and note.batch_id < offered)
    ]
