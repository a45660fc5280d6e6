"""Files that Spark has logged for a batch of a file source: are they those of the ledger, and is
one gone or emptied since? Driver only.

Called by ``engine.micro_batch`` for each batch. Such a source has numbers for offsets, which say
nothing of files: a checkpoint that has lost its last entries, or is an older copy, gives a
committed number to other files. So the ledger keeps a digest of them. ``FileStreamSource`` logs
the files of a batch beside the checkpoint (``sources/<source>/<batch>``, each tenth with all
before it, as ``<batch>.compact``) with their times, and lists them anew when it plans the batch
(``getBatch``, with ``checkFilesExist = false``): one that is gone by then is left out, without a
word. So is what was in one that has been emptied, as by ``copytruncate`` of logrotate. One that
has other rows by now is read as it is: appending to a listed file is a mistake, but a common one.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from onceward.errors import CheckpointRewound, SourceFileMissing
from onceward.ids import PipelineId, SourceRange
from onceward.spark.batch.causes import thrown_by
from onceward.spark.batch.checkpoint_files import CheckpointFiles
from onceward.spark.batch.query import RunningBatch, items, leaves

log = logging.getLogger(__name__)

_SOURCE = "FileStreamSource"
_NAME = "FileSource["
_OFFSET = "logOffset"
_IGNORES = "ignoreMissingFiles"
_AGE = "maxFileAge"
_SHOWN = 10
_DIGEST = "files "
_TAIL_BYTES = 1 << 16
_FURTHEST = 100
# Of FileStreamSourceLog
_VERSION = "v1"
# Of Hadoop's FileStatus.toString
_SIZE_AND_TIME = re.compile(r"; length=(\d+); replication=\d+; .*?; modification_time=(\d+);")
# Bytes and time of a file whose name looks like a part of that
_UNKNOWN = (1, 0)


LoggedFiles = Mapping[int, Mapping[str, int]]
"""By index of its source: each file of a batch, and when it was changed, in ms since 1970."""


def logged_files(running: RunningBatch) -> LoggedFiles:
    """Return the files that Spark has logged for the batch, of each source of files."""
    if running.history is None or not any(map(_is_logged, running.sources)):
        return {}
    execution = running.history.execution
    checkpoint = execution.resolvedCheckpointRoot()
    return {
        index: dict(_logged(f"{checkpoint}/sources/{folder}", running.sources[index]))
        for index, folder in enumerate(_folders(execution))
        if folder is not None
    }


def _folders(execution: Any) -> Iterator[int | None]:
    """Yield for each place of a source in the plan the number of its log; None: it reads no
    files. ``MicroBatchExecution.logicalPlan`` counts a stream that is used twice once.
    """
    distinct: list[Any] = []
    for source in items(execution.sources()):
        same = (number for number, each in enumerate(distinct) if each.equals(source))
        number = next(same, len(distinct))
        if number == len(distinct):
            distinct.append(source)
        is_of_files = source.getClass().getSimpleName() == _SOURCE
        yield number if is_of_files else None


def digests(logged: LoggedFiles, sources: int) -> tuple[str | None, ...]:
    """Return for each source what tells its files of a batch from others; None: it has none."""
    return tuple(_digest(logged[index]) if logged.get(index) else None for index in range(sources))


def _digest(files: Mapping[str, int]) -> str:
    lines = "".join(f"{changed} {path}\n" for path, changed in sorted(files.items()))
    return f"{_DIGEST}{hashlib.sha256(lines.encode()).hexdigest()[:32]}"


def must_be_committed_files(
    logged: LoggedFiles, running: RunningBatch, committed: Sequence[SourceRange]
) -> None:
    """Check that a batch that is committed was planned with the files of then.

    :raises CheckpointRewound: it was planned with others.
    """
    for index, files in logged.items():
        then = committed[index].identity
        is_digest = isinstance(then, str) and then.startswith(_DIGEST)
        # Without an entry Spark itself says that its checkpoint is damaged
        if files and is_digest and then != _digest(files):
            raise CheckpointRewound(
                f"{running.batch} is committed with other files than those that Spark has planned "
                f"it with now: {', '.join(sorted(files)[:_SHOWN])}. The checkpoint has lost its "
                "last entries (a power failure, say), or was restored from an older copy",
                next_step="if another copy of the query is running, stop one of the two; else "
                "restore the newest checkpoint, or read the files anew under another pipeline_id, "
                "with a new checkpoint, into new targets",
                details={"files": sorted(files)[:100]},
            )


def warn_of_age(running: RunningBatch, pipeline: PipelineId) -> None:
    """Log that a source leaves old files out (``FileStreamSource``, ``maxFileAgeMs``), unless its
    ``maxFileAge`` was chosen.
    """
    if running.history is None or not any(map(_is_logged, running.sources)):
        return
    if any(_AGE.lower() not in options for options in _options(running.history.execution)):
        log.warning(
            "%s: Spark's source of files leaves out files whose time is more than seven days "
            "before that of the newest one it has seen, as of rsync -a, cp -p or mv; set "
            ".option(%r, …) to as late as one may come",
            pipeline,
            _AGE,
        )


def must_have_files(running: RunningBatch, files: LoggedFiles) -> None:
    """Check that the batch's plan has the ``files`` that were logged for it.

    :raises SourceFileMissing: it lacks some, or they are empty by now, unless they may.
    """
    if not files or running.history is None:
        return
    execution = running.history.execution
    last = execution.lastExecution()
    usual = str(last.sparkSession().conf().get(f"spark.sql.files.{_IGNORES}"))
    ignores = [options.get(_IGNORES.lower(), usual) for options in _options(execution)]
    ignores += [usual] * (len(files) - len(ignores))
    logged = {
        path: changed
        for of_source, may_lack in zip(files.values(), ignores, strict=False)
        if may_lack.lower() != "true"
        for path, changed in of_source.items()
    }
    if not logged:
        return
    planned = dict(_planned(last.analyzed()))
    lacking = sorted(logged.keys() - planned)
    if not lacking:
        _must_not_be_emptied(logged, planned, running)
        return
    shown, details = ", ".join(lacking[:_SHOWN]), {"files": lacking[:100]}
    if _is_any_there(lacking[:_SHOWN], running):
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


def _options(execution: Any) -> Iterator[dict[str, str]]:
    """Yield the options of each file source of the query, in plan order, by small letters."""
    for leaf in leaves(execution.analyzedPlan(), "StreamingRelation"):
        if str(leaf.sourceName()).startswith(_NAME):
            pairs = items(leaf.dataSource().options().toSeq())
            yield {str(pair._1()).lower(): str(pair._2()) for pair in pairs}


def _logged(folder: str, source: SourceRange) -> Iterator[tuple[str, int]]:
    """Yield files of a range's batches, by the source's own count, and their times in ms."""
    if not _is_logged(source):
        return
    start = -1 if source.start is None else int(source.start[_OFFSET])
    end = int(source.end[_OFFSET])
    files = CheckpointFiles(SparkSession.active(), folder)
    for number in range(start + 1, end + 1):
        text = files.read_one(str(number))
        lines = text.splitlines()[1:] if text else _compacted(files, number)
        if lines is None:
            log.warning(
                "%s has no entry %d: whether its files are there is not known", folder, number
            )
        for entry in map(json.loads, lines or ()):
            if entry.get("batchId", number) == number:
                yield str(entry["path"]), int(entry["timestamp"])


def _compacted(files: CheckpointFiles, number: int) -> list[str] | None:
    """Return the lines of a log that has all batches up to ``number``, or a later one that was
    compacted since, as far as they may be of that one: they are the last, and the whole may be
    large. None: it is not there.
    """
    size, later = _TAIL_BYTES, number
    while True:
        text = files.read_one(f"{later}.compact", size)
        if text is None:
            later += 1
            if later > number + _FURTHEST:
                return None
            continue
        # The first line is the version where this is all of it, else a part of an entry
        first, *lines = text.splitlines() or [_VERSION]
        if first == _VERSION or (lines and json.loads(lines[0]).get("batchId", number) < number):
            return lines
        size *= 8


def _is_any_there(paths: Sequence[str], running: RunningBatch) -> bool:
    """:raises SourceFileMissing: nobody can tell."""
    session: Any = SparkSession.active()
    jvm = session._jvm
    try:
        configuration = session._jsparkSession.sessionState().newHadoopConf()
        places = [jvm.org.apache.hadoop.fs.Path(jvm.java.net.URI(path)) for path in paths]
        return any(place.getFileSystem(configuration).exists(place) for place in places)
    except Exception as error:
        if not (causes := thrown_by(error)):
            raise
        raise SourceFileMissing(
            f"the source leaves out files that {running.batch} was planned with, and whether they "
            f"are there its file system does not say ({causes[0]}): {', '.join(paths)}",
            next_step="see that it answers and lets the driver read there, and start the query "
            "again",
            details={"files": list(paths)},
        ) from error


def _planned(plan: Any) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield the files of the plan's relations of files, with bytes and time of change in ms."""
    for leaf in leaves(plan, "LogicalRelation"):
        relation = leaf.relation()
        if relation.getClass().getSimpleName() == "HadoopFsRelation":
            location = relation.location()
            paths = [str(path) for path in location.inputFiles()]
            # One call: a batch may have many files
            try:
                text = str(location.allFiles().mkString("\n"))
            except Py4JError:
                # Of a table's catalogue, say, which is no source of files
                text = ""
            states = [(int(size), int(at)) for size, at in _SIZE_AND_TIME.findall(text)]
            known = len(states) == len(paths)
            yield from zip(paths, states if known else [_UNKNOWN] * len(paths), strict=True)
