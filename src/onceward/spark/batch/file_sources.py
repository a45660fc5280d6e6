"""Files that Spark has logged for a batch of a file source, and that are gone or emptied since.
Driver only.

Called by ``engine.micro_batch`` for what a run begins with. ``FileStreamSource`` logs the files of
a batch beside the checkpoint (``sources/<source>/<batch>``, each tenth with all before it, as
``<batch>.compact``) with their times, and lists them anew when it plans the batch (``getBatch``,
with ``checkFilesExist = false``): one that is gone by then is left out, without a word. So is what
was in one that has been emptied, as by ``copytruncate`` of logrotate. One that has other rows by
now is read as it is: appending to a file that is listed already is a mistake, but a common one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from pyspark.sql import SparkSession

from onceward.errors import SourceFileMissing
from onceward.ids import SourceRange
from onceward.spark.batch.checkpoint_files import CheckpointFiles
from onceward.spark.batch.query import RunningBatch

_SOURCE = "FileStreamSource"
_OFFSET = "logOffset"
_IGNORES = "ignoreMissingFiles"
_SHOWN = 10
# Of Hadoop's FileStatus.toString
_SIZE_AND_TIME = re.compile(r"; length=(\d+); replication=\d+; .*?; modification_time=(\d+);")
# Bytes and time of a file whose name looks like a part of that
_UNKNOWN = (1, 0)


def must_have_files(running: RunningBatch) -> None:
    """Check that the batch's plan has the files that were logged for it.

    :raises SourceFileMissing: it lacks some, or they are empty by now, and nobody has said that
        they may be.
    """
    if running.history is None or not any(map(_is_logged, running.sources)):
        return
    execution = running.history.execution
    last, sources = execution.lastExecution(), execution.sources()
    files = [
        index
        for index in range(sources.size())
        if sources.apply(index).getClass().getSimpleName() == _SOURCE
    ]
    usual = str(last.sparkSession().conf().get(f"spark.sql.files.{_IGNORES}"))
    ignores = [usual if option is None else option for option in _options(execution)]
    ignores += [usual] * (len(files) - len(ignores))
    logged = {
        path: changed
        for index, may_lack in zip(files, ignores, strict=False)
        if _is_logged(running.sources[index]) and may_lack.lower() != "true"
        for path, changed in _logged(execution, index, running.sources[index])
    }
    if not logged:
        return
    planned = dict(_planned(last.analyzed()))
    lacking = sorted(logged.keys() - planned)
    if not lacking:
        _must_not_be_emptied(logged, planned, running)
        return
    shown, details = ", ".join(lacking[:_SHOWN]), {"files": lacking[:100]}
    if any(map(_is_there, lacking[:_SHOWN])):
        raise SourceFileMissing(
            f"the source leaves out {len(lacking)} of the files that {running.batch} was planned "
            f"with: {shown}",
            next_step="its options were changed (pathGlobFilter, modifiedBefore, modifiedAfter, "
            "recursiveFileLookup): start the query once with those from before, which writes "
            "this batch",
            details=details,
        )
    raise SourceFileMissing(
        f"{len(lacking)} of the files of {running.batch} are gone from the source, and their rows "
        f"would be left out: {shown}",
        next_step="bring them back (is the disk mounted?), and start the query again; to go on "
        f"without them, start it once with spark.sql.files.{_IGNORES}=true",
        details=details,
    )


def _must_not_be_emptied(
    logged: Mapping[str, int], planned: Mapping[str, tuple[int, int]], running: RunningBatch
) -> None:
    emptied = sorted(
        path
        for path, changed in logged.items()
        if planned[path][0] == 0 and planned[path][1] != changed
    )
    if emptied:
        raise SourceFileMissing(
            f"{len(emptied)} of the files of {running.batch} are empty, and were changed since it "
            f"was planned; rows that they had would be left out: {', '.join(emptied[:_SHOWN])}",
            next_step="restore what was in them, and start the query again; to go on without, or "
            f"if there was nothing, start it once with spark.sql.files.{_IGNORES}=true",
            details={"files": emptied[:100]},
        )


def _is_logged(source: SourceRange) -> bool:
    return isinstance(source.end, dict) and source.end.keys() == {_OFFSET}


def _options(execution: Any) -> Iterator[str | None]:
    """Yield what each file source of the query has for ``ignoreMissingFiles``, in plan order."""
    leaves = execution.analyzedPlan().collectLeaves()
    for index in range(leaves.size()):
        leaf = leaves.apply(index)
        if leaf.getClass().getSimpleName() == "StreamingRelation":
            given = leaf.dataSource().options().toSeq()
            pairs = (given.apply(place) for place in range(given.size()))
            found = {str(pair._1()).lower(): str(pair._2()) for pair in pairs}
            yield found.get(_IGNORES.lower())


def _logged(execution: Any, index: int, source: SourceRange) -> Iterator[tuple[str, int]]:
    """Yield the files of the batches of a range, in the source's own count, and when they were
    changed, in ms.
    """
    start = -1 if source.start is None else int(source.start[_OFFSET])
    files = CheckpointFiles(
        SparkSession.active(), f"{execution.resolvedCheckpointRoot()}/sources/{index}"
    )
    for number in range(start + 1, int(source.end[_OFFSET]) + 1):
        text = files.read_one(str(number)) or files.read_one(f"{number}.compact") or ""
        for line in text.splitlines()[1:]:
            entry = json.loads(line)
            if entry.get("batchId", number) == number:
                yield str(entry["path"]), int(entry["timestamp"])


def _is_there(path: str) -> bool:
    jvm: Any = SparkSession.active()._jvm
    place = jvm.org.apache.hadoop.fs.Path(jvm.java.net.URI(path))
    configuration = SparkSession.active()._jsparkSession.sessionState().newHadoopConf()
    return bool(place.getFileSystem(configuration).exists(place))


def _planned(plan: Any) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield the files of each relation of files in the plan, with their bytes and the time of the
    last change, in ms.
    """
    leaves = plan.collectLeaves()
    for index in range(leaves.size()):
        leaf = leaves.apply(index)
        if leaf.getClass().getSimpleName() != "LogicalRelation":
            continue
        relation = leaf.relation()
        if relation.getClass().getSimpleName() == "HadoopFsRelation":
            location = relation.location()
            paths = [str(path) for path in location.inputFiles()]
            # One call: a batch may have many files
            text = str(location.allFiles().mkString("\n"))
            states = [(int(size), int(at)) for size, at in _SIZE_AND_TIME.findall(text)]
            known = len(states) == len(paths)
            yield from zip(paths, states if known else [_UNKNOWN] * len(paths), strict=True)
