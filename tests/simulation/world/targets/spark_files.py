"""Spark's own tasks, writing files: what ``spark.file_writer`` has Spark do, by version 1 of
Hadoop's algorithm.

Sources: ``FileOutputCommitter`` (``commitTask``: the attempt's folder is renamed to the task's,
which is deleted before; ``commitJob``: the files of all tasks are moved to where they belong, and
``_temporary`` is deleted), ``HadoopMapReduceCommitProtocol`` (names of files have the job in them,
not the attempt), ``OutputCommitCoordinator`` (one attempt of a task may commit; that one fails,
then another), ``FileFormatWriter`` (the first task writes a file without rows, for the schema's
sake), ``BasicWriteJobStatsTracker`` (what each task says that it has written).
"""

from __future__ import annotations

import json
import marshal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from onceward.spark.batch.write_errors import failures_told
from onceward.spark.files.file_writer import MAX_RECORDS, WrittenFiles
from simulation.kernel import current
from simulation.kernel.scheduler import Process
from simulation.spark.frames import Row, Rows
from simulation.spark.jobs import JobFailed
from simulation.world.files.hadoop import Path, as_java
from simulation.world.files.tree import File, Folder, Tree

_LENGTH_BYTES = 4
_ASKING = 0.001  # seconds on the way to the driver and back


def rows_in(data: bytes) -> Iterator[tuple[int, int, list[Row]]]:
    """What a file has: of which batch, of which computation, and the rows. :raises ValueError: it
    is cut short.
    """
    at = 0
    while at < len(data):
        length = int.from_bytes(data[at : at + _LENGTH_BYTES], "big")
        body = data[at + _LENGTH_BYTES : at + _LENGTH_BYTES + length]
        if len(body) < length or at + _LENGTH_BYTES > len(data):
            raise ValueError("cut short")
        if body:
            yield marshal.loads(body)  # noqa: S302 — written below
        at += _LENGTH_BYTES + length


class _Job:
    """One write job, as the driver knows it."""

    __slots__ = ("by_partition", "folder", "may_commit", "most_rows", "name", "query", "tree")

    def __init__(
        self, query: Any, tree: Tree, folder: str, name: str, most_rows: int, by_partition: bool
    ) -> None:
        self.query = query
        self.tree = tree
        self.folder = folder
        self.name = name
        self.most_rows = most_rows
        self.by_partition = by_partition
        self.may_commit: dict[int, tuple[int, Process]] = {}

    @property
    def temporary(self) -> str:
        return f"{self.folder}/_temporary/0"

    def asks_to_commit(self, partition: int, attempt: int, executor: Process) -> bool:
        """``OutputCommitCoordinator.handleAskPermissionToCommit``."""
        if executor not in self.query.executors.alive:
            return False
        known = self.may_commit.get(partition)
        if known is not None and known[0] != attempt and known[1] in self.query.executors.alive:
            return False
        self.may_commit[partition] = attempt, executor
        return True

    def __call__(self, task: Any) -> _Writer:
        return _Writer(self, task)


class _Writer:
    """One attempt of one task."""

    __slots__ = ("_at", "_files", "_job", "_rows", "_task")

    def __init__(self, job: _Job, task: Any) -> None:
        self._job, self._task = job, task
        self._at = f"{job.temporary}/_temporary/attempt_{task.task_attempt_id}"
        self._files: dict[
            str, list[Any]
        ] = {}  # by folder: the open file, its path, its rows, its number
        self._rows = 0

    def write(self, rows: Rows) -> None:
        with _of_java():
            self._write(rows)

    def _write(self, rows: Rows) -> None:
        job = self._job
        parts: dict[str, list[Row]] = {}
        for row in rows:
            parts.setdefault(f"p={row[1]}/" if job.by_partition else "", []).append(row)
        for folder, all_rows in parts.items():
            left = all_rows
            while left:
                opened = self._files.get(folder)
                if opened is None or opened[2] >= job.most_rows:
                    opened = self._open(folder, 0 if opened is None else opened[3] + 1)
                some, left = left[: job.most_rows - opened[2]], left[job.most_rows - opened[2] :]
                data = marshal.dumps((rows.batch_id, rows.computation, some))
                job.tree.write(
                    opened[0], len(data).to_bytes(_LENGTH_BYTES, "big") + data, opened[1]
                )
                opened[2] += len(some)
        self._rows += len(rows)

    def _open(self, folder: str, number: int) -> list[Any]:
        path = f"{self._at}/{folder}part-{self._task.partition_id:05}-{self._job.name}-c{number:03}.parquet"
        opened = self._files[folder] = [
            self._job.tree.create(path, replace=True, parents=True),
            path,
            0,
            number,
        ]
        return opened

    def pre_commit(self) -> Any:
        with _of_java():
            return self._commit()

    def _commit(self) -> Any:
        job, task = self._job, self._task
        if not self._files and task.partition_id == 0:
            file, path, _, _ = self._open("", 0)
            job.tree.write(file, bytes(_LENGTH_BYTES), path)
        written = _files_below(job.tree, self._at)
        if not job.asks_to_commit(task.partition_id, task.task_attempt_id, current().here):
            raise RuntimeError("TaskCommitDenied")
        current().park(_ASKING)
        if written:
            there = f"{job.temporary}/task_{task.partition_id}"
            job.tree.delete(there)
            job.tree.rename(self._at, there)
        return {
            "rows": self._rows,
            "files": len(written),
            "bytes": sum(len(file.data) for file in written.values()),
        }

    def close(self) -> None:
        """What is left in the attempt's folder goes with ``_temporary``."""


@contextmanager
def _of_java() -> Iterator[None]:
    """What goes wrong with files in Spark's own code is an exception of Java's."""
    try:
        yield
    except OSError as error:
        raise as_java(error) from error


def _files_below(tree: Tree, path: str, within: str = "") -> dict[str, File]:
    """Relative to ``path``. No operation of its own: whoever wrote them knows them."""
    node = tree.at(path)
    found: dict[str, File] = {}
    if node.__class__ is Folder:
        for name, one in node.entries.items():
            if one.__class__ is Folder:
                found.update(_files_below(tree, f"{path}/{name}", f"{within}{name}/"))
            else:
                found[f"{within}{name}"] = one
    return found


def written(frame: Any, folder: str, how: Any) -> WrittenFiles:
    """In the place of ``spark.file_writer._written``."""
    world = current().world
    query = frame.computed.query
    place = Path(world.files, folder)
    most_rows = int(how.options.get(MAX_RECORDS, 1_000_000_000))
    tree = world.files.tree(place.scheme)
    job = _Job(
        query, tree, place.path, f"job{world.next_number()}", most_rows, bool(how.partition_by)
    )
    with failures_told(f"as {how.name}", folder), _of_java():
        tree.make(job.temporary, parents=True)
        results, tasks = world.jobs.collect(frame.written(job, ()), query.lost)
        by_task = {
            result.partition_id: result for result in results
        }  # ``ret(index) = res``, in ``executeWrite``
        if len(by_task) < tasks:
            raise JobFailed("java.lang.NullPointerException")
        _commit_job(job)
    told = [json.loads(result.committable) for result in by_task.values()]
    return WrittenFiles(*(sum(one[what] for one in told) for what in ("rows", "files", "bytes")))


def _commit_job(job: _Job) -> None:
    """``FileOutputCommitter.commitJobInternal`` and ``mergePaths``."""
    tree = job.tree
    for task in sorted(tree.names(job.temporary)):
        if task.startswith("task_"):
            for name in sorted(_files_below(tree, f"{job.temporary}/{task}")):
                target = f"{job.folder}/{name}"
                if "/" in name:
                    tree.make(target.rpartition("/")[0], parents=True)
                tree.rename(f"{job.temporary}/{task}/{name}", target)
    tree.delete(f"{job.folder}/_temporary")


@contextmanager
def watched(frame: Any, lost: Any) -> Iterator[None]:
    """In the place of ``spark.job._watched``: jobs inside are cancelled by what ``lost`` says."""
    query = frame.computed.query
    query.lost = lost
    try:
        yield
    finally:
        query.lost = _never


def _never() -> None:
    """Nothing cancels it."""
