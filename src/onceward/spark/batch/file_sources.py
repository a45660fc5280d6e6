"""Files that Spark has logged for a batch of a file source, and that are gone. Driver only.

Called by ``engine.micro_batch`` for what a run begins with. ``FileStreamSource`` logs the files of
a batch beside the checkpoint (``sources/<source>/<batch>``, each tenth with all before it, as
``<batch>.compact``), and lists them anew when it plans the batch (``getBatch``, with
``checkFilesExist = false``): one that is gone by then is left out, without a word.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from pyspark.sql import SparkSession

from onceward.errors import SourceFileMissing
from onceward.spark.batch.checkpoint_files import CheckpointFiles
from onceward.spark.batch.query import RunningBatch

_SOURCE = "FileStreamSource"
_OFFSET = "logOffset"
_IGNORES = "spark.sql.files.ignoreMissingFiles"
_SHOWN = 10


def must_have_files(running: RunningBatch) -> None:
    """Check that the batch's plan has the files that were logged for it.

    :raises SourceFileMissing: it lacks some, and nobody has said that it may.
    """
    ranges = {
        index: (
            -1 if source.start is None else int(source.start[_OFFSET]),
            int(source.end[_OFFSET]),
        )
        for index, source in enumerate(running.sources)
        if isinstance(source.end, dict) and source.end.keys() == {_OFFSET}
    }
    if running.history is None or not ranges:
        return
    execution = running.history.execution
    last = execution.lastExecution()
    if str(last.sparkSession().conf().get(_IGNORES)).lower() == "true":
        return
    logged = {
        path
        for index, (start, end) in ranges.items()
        if execution.sources().apply(index).getClass().getSimpleName() == _SOURCE
        for path in _logged(execution, index, start, end)
    }
    gone = sorted(logged.difference(*_planned(last.analyzed()))) if logged else []
    if gone:
        raise SourceFileMissing(
            f"{len(gone)} of the files of {running.batch} are gone from the source, and their "
            f"rows would be left out: {', '.join(gone[:_SHOWN])}",
            next_step="bring them back (is the disk mounted?), and start the query again; to go "
            f"on without them, start it once with {_IGNORES}=true",
            details={"files": gone[:100]},
        )


def _logged(execution: Any, source: int, start: int, end: int) -> Iterator[str]:
    """Yield the files of the batches behind ``start`` up to ``end``, in the source's own count."""
    files = CheckpointFiles(
        SparkSession.active(), f"{execution.resolvedCheckpointRoot()}/sources/{source}"
    )
    for number in range(start + 1, end + 1):
        text = files.read_one(str(number)) or files.read_one(f"{number}.compact") or ""
        for line in text.splitlines()[1:]:
            entry = json.loads(line)
            if entry.get("batchId", number) == number:
                yield str(entry["path"])


def _planned(plan: Any) -> Iterator[list[str]]:
    """Yield the files of each relation of files in the plan."""
    leaves = plan.collectLeaves()
    for index in range(leaves.size()):
        leaf = leaves.apply(index)
        if leaf.getClass().getSimpleName() != "LogicalRelation":
            continue
        relation = leaf.relation()
        if relation.getClass().getSimpleName() == "HadoopFsRelation":
            yield [str(path) for path in relation.location().inputFiles()]
