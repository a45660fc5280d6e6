"""Notes beside Spark's checkpoint of what a sink was given and did not write.

Called by ``engine.foreach_batch`` when a batch fails and by ``engine.spark_query`` when one is admitted; runs in the
driver. A user's function may keep an error of the sink to itself (``try: sink(frame, batch_id) except Exception: …``).
Spark then logs the batch as done, and its rows are lost, unless the next batch is refused, in this process and after
the next start. Why in the checkpoint: whatever made the batch fail, Spark's commit log is about to be written to that
very file system, so where the note cannot be written, the commit most likely cannot either.

``<checkpoint>/onceward/<pipeline_id>/<batch_id>``: one JSON file a batch, with the run and what it met. When a batch is
admitted, notes that are out of date are removed: it is written now, or was by a later attempt or another start. Not so
a note of rows that are *lacking*: those of a call that was refused, while another call committed the batch.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from onceward.ids import PipelineId

_LONGEST_TEXT = 2_000


class Note(NamedTuple):
    """A batch, or rows of it, that the run ``run_id`` of its query did not write.

    ``lacking``: the batch is committed without these rows, or may be: another call for it does not settle the matter.
    """

    batch_id: int
    run_id: str
    error: str
    lacking: bool


class NotWritten:
    """The notes of one pipeline in one checkpoint.

    :param session: a Spark session, for its Hadoop configuration.
    :param checkpoint: the root of the query's checkpoint, as ``StreamExecution.resolvedCheckpointRoot`` has it.
    """

    def __init__(self, session: Any, checkpoint: str, pipeline: PipelineId) -> None:
        self._jvm = session.sparkContext._jvm
        self._folder = self._jvm.org.apache.hadoop.fs.Path(f"{checkpoint}/onceward/{pipeline}")
        self._files = self._folder.getFileSystem(session._jsparkSession.sessionState().newHadoopConf())

    def note(self, batch_id: int, run_id: str, error: BaseException, *, lacking: bool) -> None:
        """Note that the batch, or rows of it, could not be written, and why."""
        text = f"{type(error).__name__}: {error}"[:_LONGEST_TEXT]
        stream = self._files.create(self._path(batch_id), True)
        try:
            stream.write(bytearray(json.dumps({"run_id": run_id, "error": text, "lacking": lacking}).encode()))
        finally:
            stream.close()

    def unsettled(self, newest: int, offered: int, run_id: str) -> list[Note]:
        """The notes that stand against ``offered``, in order; those that are out of date are removed.

        :param newest: the ledger's newest batch, -1 without any; above it nothing is written, below it everything is.
        :param offered: the batch that the run ``run_id`` is about to write or to replay.
        """
        if not self._files.exists(self._folder):
            return []
        names = [status.getPath().getName() for status in self._files.listStatus(self._folder)]
        standing = []
        for batch_id in sorted(int(name) for name in names if name.isdecimal()):
            note = self._read(batch_id)
            if newest < batch_id < offered or (batch_id == newest < offered and note.lacking):
                standing.append(note)
            # Before the batch is written, not after: when the process dies in between, it is offered again.
            elif batch_id < offered or (batch_id == offered and not (note.lacking and note.run_id == run_id)):
                self._files.delete(self._path(batch_id), False)
        return standing

    def _read(self, batch_id: int) -> Note:
        stream = self._files.open(self._path(batch_id))
        try:
            content = bytes(stream.readAllBytes()).decode(errors="replace")
        finally:
            stream.close()
        try:
            document = json.loads(content)
            return Note(batch_id, str(document["run_id"]), str(document["error"]), bool(document["lacking"]))
        except (ValueError, KeyError, TypeError):
            return Note(batch_id, "", "its note cannot be read", True)  # cut short by a crash: still a note

    def _path(self, batch_id: int) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self._folder, str(batch_id))
