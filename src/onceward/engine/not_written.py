"""Notes beside Spark's checkpoint of batches that a sink was given and could not write.

Called by ``engine.foreach_batch`` when a batch fails and by ``engine.spark_query`` when batch numbers jump; runs in the
driver. A user's function may keep an error of the sink to itself (``try: sink(frame, batch_id) except Exception: …``).
Spark then logs the batch as done, and its rows are lost, unless the next batch is refused, in this process and after
the next start. Why in the checkpoint: whatever made the batch fail, Spark's commit log is about to be written to that
very file system, so where the note cannot be written, the commit most likely cannot either.

``<checkpoint>/onceward/<pipeline_id>/<batch_id>``: one JSON file a batch, with the run and what it met. A note of a
batch that was written later, by another attempt or another start, is out of date and removed when notes are next read.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from onceward.ids import PipelineId

_LONGEST_TEXT = 2_000


class Note(NamedTuple):
    """A batch that the run ``run_id`` of its query could not write."""

    batch_id: int
    run_id: str
    error: str


class NotWritten:
    """The notes of one pipeline in one checkpoint.

    :param session: a Spark session, for its Hadoop configuration.
    :param checkpoint: the root of the query's checkpoint, as ``StreamExecution.resolvedCheckpointRoot`` has it.
    """

    def __init__(self, session: Any, checkpoint: str, pipeline: PipelineId) -> None:
        self._jvm = session.sparkContext._jvm
        self._folder = self._jvm.org.apache.hadoop.fs.Path(f"{checkpoint}/onceward/{pipeline}")
        self._files = self._folder.getFileSystem(session._jsparkSession.sessionState().newHadoopConf())

    def note(self, batch_id: int, run_id: str, error: BaseException) -> None:
        """Note that the batch could not be written, and why."""
        text = f"{type(error).__name__}: {error}"[:_LONGEST_TEXT]
        stream = self._files.create(self._path(batch_id), True)
        try:
            stream.write(bytearray(json.dumps({"run_id": run_id, "error": text}).encode()))
        finally:
            stream.close()

    def between(self, after: int, before: int) -> list[Note]:
        """Notes of batches above ``after`` and below ``before``, in order; those of older batches are removed."""
        if not self._files.exists(self._folder):
            return []
        names = [status.getPath().getName() for status in self._files.listStatus(self._folder)]
        noted = sorted(int(name) for name in names if name.isdecimal())
        for outdated in (batch_id for batch_id in noted if batch_id <= after):
            self._files.delete(self._path(outdated), False)
        return [self._read(batch_id) for batch_id in noted if after < batch_id < before]

    def _read(self, batch_id: int) -> Note:
        stream = self._files.open(self._path(batch_id))
        try:
            content = bytes(stream.readAllBytes()).decode(errors="replace")
        finally:
            stream.close()
        try:
            document = json.loads(content)
            return Note(batch_id, str(document["run_id"]), str(document["error"]))
        except (ValueError, KeyError, TypeError):
            return Note(batch_id, "", "its note cannot be read")  # cut short by a crash: still a note

    def _path(self, batch_id: int) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self._folder, str(batch_id))
