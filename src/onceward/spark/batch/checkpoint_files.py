"""Small files of ours beside Spark's checkpoint, on the file system that has the checkpoint; and
Spark's own logs there.

Called by ``engine.calls.journal`` and ``operate``; runs in the driver.
``<checkpoint>/onceward/<pipeline_id>/<name>``. Why there: Spark's commit log is written to that
very file system, so where such a file cannot be written, the commit most likely cannot either; and
who restores the one from a copy restores the other.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from typing import Any, TypeVar

from py4j.protocol import Py4JJavaError
from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from onceward import patience
from onceward.errors import CheckpointUnreachable
from onceward.ids import PipelineId

log = logging.getLogger(__name__)

_T = TypeVar("_T")
_SNAPSHOT = re.compile(r"(\d+)\.snapshot")
_RETAINED, _LEAST_RETAINED = "spark.sql.streaming.minBatchesToRetain", 4
_FOLDER, _AGAIN = PipelineId("@state"), ".again"  # no pipeline is called so
_ASKED_AT_ONCE = 16
_ANSWER_SECONDS = 600.0
# Of a join; all other operators have one store in a partition (StateStoreId.DEFAULT_STORE_NAME)
_JOIN_STORES = tuple(
    f"{side}-{kind}"
    for side in ("left", "right")
    for kind in ("keyToNumValues", "keyWithIndexToValue")
)

PLAN_ANEW = "plan_anew"
"""In an error's ``details``: the number of a batch that Spark has logged and that cannot be
written, so that only :func:`forget_planned` helps.
"""


def remove_planned(batch_id: int | str = "n, the newest,") -> str:
    """Return the next step by which a batch is planned anew. On a local disk Hadoop's checksum
    lies beside the file, and Spark takes one that is left for another query's
    (``CONCURRENT_STREAM_LOG_UPDATE``); of batch 0 see :func:`forget_planned`.
    """
    beside = f"its hidden offsets/.{batch_id if isinstance(batch_id, int) else 'n'}.crc"
    if not isinstance(batch_id, int):
        beside += ", and of batch 0 the folder state,"
    elif batch_id == 0:
        beside += " and the folder state"
    return (
        f"remove the file offsets/{batch_id} and, where there is one, {beside} from "
        "the query's checkpoint (not where the ledger of a pipeline of the query has that batch: "
        "then leave the file)"
    )


_MISSING = "java.io.FileNotFoundException"
_DAMAGED = "org.apache.hadoop.fs.ChecksumException"


class CheckpointFiles:
    """The files in one folder of a checkpoint. Each method is a call or two to the file system.

    :param session: a Spark session, for its Hadoop configuration.
    """

    def __init__(self, session: Any, folder: str) -> None:
        self._jvm = session.sparkContext._jvm
        self._session = session
        self._folder = folder

    def read(self) -> dict[str, str]:
        """Return what each file says; of one that is damaged or cut short, as much as is left.
        :raises CheckpointUnreachable: the folder cannot be listed, or a file not be opened."""
        names = self.names()
        with self._reached() as files:
            texts = {name: self._text(files, name) for name in names}
        return {name: text for name, text in texts.items() if text is not None}

    def read_one(self, name: str, last_bytes: int | None = None) -> str | None:
        """Return what a file says, or its ``last_bytes`` do; None: it is not there. :raises
        CheckpointUnreachable: it cannot be opened."""
        with self._reached() as files:
            return self._text(files, name, last_bytes)

    def write(self, name: str, text: str) -> None:
        """Write the file, replacing any. :raises CheckpointUnreachable: it may not be there."""
        with self._reached() as files, closing(files.create(self._file(name), True)) as stream:
            stream.write(bytearray(text.encode()))

    def remove(self, name: str) -> None:
        """Remove the file, if any. :raises CheckpointUnreachable: it may be there still."""
        self._delete(f"{self._folder}/{name}", recursive=False)

    def remove_all(self) -> None:
        """Remove the folder with all that is in it. :raises CheckpointUnreachable: something of it
        may be there still."""
        self._delete(self._folder, recursive=True)

    def _delete(self, path: str, *, recursive: bool) -> None:
        with self._reached() as files:
            place = self._path(path)
            # A local disk says no more than False of what it could not remove
            is_left = not files.delete(place, recursive) and bool(files.exists(place))
        if is_left:
            raise CheckpointUnreachable(
                f"{path}, in the query's checkpoint, could not be removed, or not all of it",
                next_step="see that the driver may write there and that no process has its files "
                "open, and start the query again",
            )

    def names(self, below: str = "") -> set[str]:
        """List the names in the folder, or in one below; none where there is none. :raises
        CheckpointUnreachable: it cannot be listed."""
        with self._reached() as files:
            try:
                found = files.listStatus(self._path(f"{self._folder}/{below}".rstrip("/")))
            except Py4JJavaError as error:
                if java_class(error) == _MISSING:
                    return set()
                raise
            return {str(status.getPath().getName()) for status in found}

    def has(self, name: str) -> bool:
        """Return whether there is such a file. :raises CheckpointUnreachable: nobody can tell."""
        with self._reached() as files:
            return bool(files.exists(self._file(name)))

    def _text(self, files: Any, name: str, last_bytes: int | None = None) -> str | None:
        """Read a file; None if another copy of the query has removed it."""
        try:
            with closing(files.open(self._file(name))) as stream:
                if last_bytes is not None:
                    length = files.getFileStatus(self._file(name)).getLen()
                    stream.seek(max(0, length - last_bytes))
                return bytes(stream.readAllBytes()).decode(errors="replace")
        except Py4JJavaError as error:
            if java_class(error) == _DAMAGED:
                return ""
            if java_class(error) == _MISSING:
                return None
            raise

    @contextmanager
    def _reached(self) -> Iterator[Any]:
        """Give the file system; what goes wrong with it is told with the folder's name."""
        thread = self._jvm.java.lang.Thread
        # A query being stopped is interrupted, and then Hadoop's streams refuse its thread.
        interrupted = thread.interrupted()
        try:
            configuration = self._session._jsparkSession.sessionState().newHadoopConf()
            yield self._path(self._folder).getFileSystem(configuration)
        except Py4JJavaError as error:
            raise CheckpointUnreachable(
                f"the files in {self._folder}, in the query's checkpoint, cannot be used: "
                f"{error.java_exception.toString()}",
                next_step="make the checkpoint readable and writable for the driver, see that its "
                "file system has room, and start the query again",
            ) from error
        finally:
            if interrupted:
                thread.currentThread().interrupt()

    def _file(self, name: str) -> Any:
        return self._path(f"{self._folder}/{name}")

    def _path(self, text: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(text)


class StateFiles:
    """The changes and snapshots of a query's state, as ``HDFSBackedStateStoreProvider`` has them:
    ``<operator>/<partition>[/<store>]/<version>.delta`` and ``.snapshot``.

    Spark loads a snapshot rather than the changes that lead to it, and one may be of an attempt
    that failed:

    1. a task commits version n + 1 before its attempt is decided, and each attempt replaces that
       file of changes;
    2. the maintenance of its executor (``doSnapshot``), also of one whose run is over, writes what
       it has in memory as a snapshot, as long as n + 1 is the newest version;
    3. no later attempt replaces that, and the next start reads it.

    RocksDB is left alone: its ``.zip`` has more than the changes say (column families' numbers),
    and mostly the attempt that counts replaces it by its own maintenance.

    :param files: a checkpoint's folder ``state``; see :class:`CheckpointFiles`.
    """

    def __init__(self, files: Any) -> None:
        self._files = files

    def computed(self, version: int) -> bool:
        """Return whether an attempt has made this version of a store."""
        return any(self._each(lambda folder: bool(self._files.has(f"{folder}/{version}.delta"))))

    def drop_snapshots(self, version: int) -> None:
        """Remove the snapshots of a version, where all changes that lead to it are there."""

        def drop(folder: str) -> None:
            snapshot = f"{folder}/{version}.snapshot"
            if not self._files.has(snapshot):
                return
            names: set[str] = self._files.names(folder)
            full = {int(each[1]) for each in map(_SNAPSHOT.fullmatch, names) if each}
            begin = max((each for each in full if each < version), default=0)
            if names.issuperset(f"{each}.delta" for each in range(begin + 1, version + 1)):
                log.debug("removing %s, which may be of a failed attempt", snapshot)
                self._files.remove(snapshot)

        self._each(drop)

    def _each(self, act: Callable[[str], _T]) -> list[_T]:
        with ThreadPoolExecutor(_ASKED_AT_ONCE) as pool:
            return list(pool.map(act, self._folders()))

    def _folders(self) -> Iterator[str]:
        for operator in filter(str.isdecimal, self._files.names("")):
            partitions = sorted(filter(str.isdecimal, self._files.names(operator)))
            found = self._files.names(f"{operator}/{partitions[0]}") if partitions else set()
            inside = [f"/{name}" for name in _JOIN_STORES if name in found] or [""]
            yield from (f"{operator}/{one}{store}" for one in partitions for store in inside)


class SnapshotsOfFailures:
    """Those that attempts which failed may have left in a checkpoint's state. One for a run.

    They go once the batch is written, before the next one reads its state, and behind that one:
    from then on nobody can write that version. Executors write for a run that is over, too, and a
    process may end in between: so a batch that was computed again has a file beside the checkpoint
    until then. The first batch of a run counts as one within the run: an older copy, whose tasks
    are yet to end, may be computing it. Each method raises CheckpointUnreachable.
    """

    def __init__(self, checkpoint: str) -> None:
        self._checkpoint = checkpoint
        self._first: int | None = None

    def clear(self, batch_id: int) -> None:
        """Remove them before a batch; the first of a run may have been computed by another run."""
        if batch_id - 1 in self._again:
            self._drop(batch_id)
        if self._first is None:
            if _in_state(self._checkpoint, lambda state: state.computed(batch_id + 1)):
                self.note(batch_id)
            self._first = batch_id

    def note(self, batch_id: int) -> None:
        """Note that the batch is computed once more."""
        if batch_id not in self._noted:
            self._files.write(f"{batch_id}{_AGAIN}", "")
            self._noted.add(batch_id)

    def settle(self, batch_id: int) -> None:
        """Remove them when the batch is written."""
        for each in {batch_id - 1, batch_id} & self._again:
            self._drop(each + 1)
        for over in [each for each in self._noted if each < batch_id]:
            self._files.remove(f"{over}{_AGAIN}")
            self._noted.remove(over)

    @property
    def _again(self) -> set[int]:
        return self._noted if self._first is None else self._noted | {self._first}

    @patience.OpenedOnce
    def _noted(self) -> set[int]:
        names = (each.removesuffix(_AGAIN) for each in self._files.names())
        return {int(number) for number in names if number.isdecimal()}

    @property
    def _files(self) -> CheckpointFiles:
        return CheckpointFiles(SparkSession.active(), f"{self._checkpoint}/onceward/{_FOLDER}")

    def _drop(self, version: int) -> None:
        # Where Spark keeps a version or two, a clean-up that is under way may take what is older
        # than the snapshot for what nobody needs
        if int(SparkSession.active().conf.get(_RETAINED) or 0) >= _LEAST_RETAINED:
            _in_state(self._checkpoint, lambda state: state.drop_snapshots(version))


def _in_state(checkpoint: str, ask: Callable[[StateFiles], _T]) -> _T:
    state = StateFiles(CheckpointFiles(SparkSession.active(), f"{checkpoint}/state"))
    late = CheckpointUnreachable(
        f"the state in {checkpoint} has not been looked at within {_ANSWER_SECONDS:g} s",
        next_step="see that the checkpoint's file system answers, and start the query again",
    )
    return patience.in_time(
        partial(ask, state), _ANSWER_SECONDS, "onceward-state", late=late, abandon=lambda: None
    )


def java_class(error: Py4JJavaError) -> str:
    """Return the name of the class of what Java threw."""
    return str(error.java_exception.getClass().getName())


def newest_committed(query: StreamingQuery) -> int | None:
    """Return the newest batch in the commit log of the query's checkpoint, whichever run has
    written it; None if there is none.

    Whatever the log's file system raises is raised, and takes as long as it takes.
    """
    # None in Spark Connect, which the sink refuses anyway
    wrapper = getattr(query, "_jsq", None)
    if wrapper is None:
        return None
    newest = wrapper.streamingQuery().commitLog().getLatestBatchId()
    return None if newest.isEmpty() else int(newest.get())


def checkpoint_of(query: StreamingQuery) -> str:
    """Return where the query keeps its logs, as ``History.checkpoint`` does."""
    return str(query._jsq.streamingQuery().resolvedCheckpointRoot())


def newest_committed_at(checkpoint: str) -> int | None:
    """Return what :func:`newest_committed` does, for a query that does not exist yet; None, too,
    where there is no checkpoint yet.

    :param checkpoint: the query's ``checkpointLocation``.
    :raises LookupError: there is no Spark to look with.
    """
    # A session would be that of a thread
    context: Any = SparkContext._active_spark_context
    if context is None:
        raise LookupError("no SparkContext")
    paths = context._jvm.org.apache.hadoop.fs
    folder = paths.Path(paths.Path(checkpoint), "commits")
    files = folder.getFileSystem(context._jsc.hadoopConfiguration())
    if not files.exists(folder):
        return None
    names = [str(status.getPath().getName()) for status in files.listStatus(folder)]
    return max((int(name) for name in names if name.isdecimal()), default=None)


def forget_planned(query: StreamingQuery, number: int) -> None:
    """Remove batch ``number`` from the log of planned batches of a query that has ended, so that
    its next start plans it anew. Only if it is the newest one, and the next to be committed:
    another process may run the query by now.

    Of batch 0 the state goes, too, of which nothing is committed: from Spark 4.1 on
    (SPARK-53103) no query begins where one is left.
    """
    execution = query._jsq.streamingQuery()
    log = execution.offsetLog()
    newest, committed = log.getLatestBatchId(), newest_committed(query)
    is_newest = not newest.isEmpty() and int(newest.get()) == number
    if is_newest and number == (0 if committed is None else committed + 1):
        if number == 0:
            # First: if this process ends in between, batch 0 runs as it is planned, with a state
            # that it begins. A state without a planned batch would let no start through.
            # By the session that the logs are of: another may have other settings of the store
            context: Any = SparkContext._active_spark_context
            session = SparkSession(context, execution.sparkSession())
            state = f"{checkpoint_of(query)}/state"
            # Descriptions first: if this process ends in the middle, one that names a schema which
            # is gone (transformWithState) lets no start through either
            for operator in sorted(CheckpointFiles(session, state).names()):
                CheckpointFiles(session, f"{state}/{operator}/_metadata").remove_all()
            CheckpointFiles(session, state).remove_all()
        log.purgeAfter(number - 1)
