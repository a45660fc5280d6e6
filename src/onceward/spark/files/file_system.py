"""What publishing files needs of a file system: on a local disk, on HDFS, in S3. Driver only.

Called by the file sink. Paths are relative to the root of a :class:`Files`, with ``/`` between
their parts. What all of them owe: a file is there whole or not at all, and whoever lists sees what
is there; a name that begins with ``.`` or ``_`` is hidden, as it is to Spark, Hive and pyarrow,
unless it is a partition (``_a=1``). Where files can be renamed (not in S3), :meth:`Files.move` is
one atomic step which never replaces anything and never moves into it.

On a local disk this is Python's own ``os`` (Hadoop syncs nothing there), on HDFS
``FileContext.rename``; why, stands at each :meth:`Files.move`. In S3 an object is there when its
PUT was answered, and every GET and LIST from then on tells of it (*Amazon S3 data consistency
model*); S3A's streams put it when they are closed.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import IllegalArgumentException
from pyspark.sql import SparkSession

from onceward import patience, surroundings
from onceward.durable import make, sync
from onceward.errors import ServerMisconfigured
from onceward.spark.batch.checkpoint_files import java_class
from onceward.spark.files import STORES, local_path, path_scheme, refuse_other_schemes

_UNFINISHED = re.compile(r"\.(.+)\.[0-9a-f]{8}")
_SYNCING = 8  # A disk takes several requests at once, and a journal commits them together
_ANSWER_SECONDS = 600.0  # A folder of many objects is removed in as many minutes
# link(2), where a file system has none, as of SMB or FUSE
_NO_LINKS = (errno.ENOTSUP, errno.ENOSYS, errno.EPERM)
# of a rename that was not carried out
_REFUSED = {
    "org.apache.hadoop.fs.FileAlreadyExistsException",
    "org.apache.hadoop.fs.ParentNotDirectoryException",
    "java.io.FileNotFoundException",
}


def hidden(name: str) -> bool:
    """Do readers pass over it? As ``HadoopFSUtils.shouldFilterOutPathName`` has it."""
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


def _unfinished(name: str) -> str:
    return f".{name}.{surroundings.random_bytes(4).hex()}"


def finished(name: str) -> str:
    """Return the final name of an unfinished file of :meth:`Files.put_if_absent`; else empty."""
    found = _UNFINISHED.fullmatch(name)
    return found[1] if found else ""


class Files(ABC):
    """What lies below :attr:`root`. Whatever fails raises ``OSError``."""

    root: str
    """As Spark takes it."""
    local: str | None = None
    """The same as a path of this machine."""

    def uri(self, path: str) -> str:
        """Return ``path`` as Spark takes it."""
        return f"{self.root}/{path}"

    @abstractmethod
    def names(self, folder: str) -> list[str]:
        """List the names in ``folder``, hidden or not; none where there is no such folder."""

    @abstractmethod
    def listed(self, folder: str) -> dict[str, int] | None:
        """List the files in ``folder`` and below that are not hidden, relative to it, with their
        sizes in bytes; None where there is no such folder.
        """

    @abstractmethod
    def size(self, path: str) -> int | None:
        """Return the size of a file in bytes; None where there is none."""

    @abstractmethod
    def text(self, path: str) -> str | None:
        """Read the text of the file at ``path``; None where there is none."""

    @abstractmethod
    def make(self, folder: str) -> None:
        """Create a folder with its parents, so that all of them outlast a power failure."""

    @abstractmethod
    def put_if_absent(self, path: str, text: str) -> str:
        """Write ``text`` to ``path`` unless there is a file, for good; return what the file says.
        Of several callers one wins; in S3 that is certain only if they do not come at the same
        moment, or write the same.
        """

    @abstractmethod
    def renew(self, path: str) -> None:
        """Make a file as young as one that is written now, if it is there: rules that remove old
        files go by that.
        """

    @abstractmethod
    def move(self, source: str, target: str) -> bool:
        """Rename atomically; return False if there is no ``source``, or there is a ``target``.

        :raises ServerMisconfigured: they are on two disks.
        """

    @abstractmethod
    def mark(self, path: str) -> None:
        """Create an empty file, or leave the one that is there. It outlasts the death of this
        process, and a power failure once :meth:`sync_names` has returned.
        """

    @abstractmethod
    def remove(self, path: str) -> None:
        """Remove a file or a folder with all that is in it, if it exists."""

    @abstractmethod
    def sync(self, folder: str) -> None:
        """Make all that is in ``folder``, and its own name, outlast a power failure."""

    @abstractmethod
    def sync_names(self, folders: set[str]) -> None:
        """Make the names in each of ``folders`` that is there outlast a power failure."""


def files_at(path: str, *, renames: bool = True, session: SparkSession | None = None) -> Files:
    """Return access to the files below ``path``, whose scheme was checked; a path without one is
    on Hadoop's default file system, by the settings of ``session``, or of this thread's batch.

    :raises ConfigurationError: that default is none that is known (:func:`refuse_other_schemes`).
    :raises OSError: Hadoop knows no such file system.
    """
    if path_scheme(path) == "file":
        return LocalFiles(local_path(path))
    qualified = qualify(path, session)
    refuse_other_schemes(qualified, renames=renames)
    if path_scheme(qualified) == "file":
        return LocalFiles(local_path(qualified))
    try:
        kind = S3Files if path_scheme(qualified) in STORES else HadoopFiles
        return kind(_configuration(session), qualified)
    except Py4JJavaError as error:
        raise _as_os_error(error) from error


def qualify(path: str, session: SparkSession | None) -> str:
    """Return the path with its scheme; one without is on Hadoop's default file system.

    :raises OSError: Hadoop knows no such file system.
    """
    try:
        hadoop_path = _gateway().jvm.org.apache.hadoop.fs.Path(path)
        system = hadoop_path.getFileSystem(_configuration(session))
        return str(system.makeQualified(hadoop_path).toString())
    except Py4JJavaError as error:
        raise _as_os_error(error) from error
    except IllegalArgumentException as error:  # a host that nobody knows
        raise OSError(str(error)) from error


def _gateway() -> Any:
    context = SparkContext._active_spark_context
    assert context is not None  # noqa: S101 — a batch is running
    return context._gateway


def _configuration(session: SparkSession | None) -> Any:
    """Return Hadoop's configuration with a session's settings, as Spark's own tasks have it."""
    if session is None:  # PySpark's own active one is one for the process
        sessions = _gateway().jvm.org.apache.spark.sql.classic.SparkSession
        active = sessions.getActiveSession()
        java = (active if active.isDefined() else sessions.getDefaultSession()).get()
    else:
        java = session._jsparkSession
    return java.sessionState().newHadoopConf()


class LocalFiles(Files):
    """On a disk of this machine, or one that all machines have under the same path."""

    def __init__(self, folder: str) -> None:
        self.local = folder.rstrip("/") or "/"
        self.root = f"file://{self.local}"

    def names(self, folder: str) -> list[str]:
        try:
            return sorted(os.listdir(self._at(folder)))
        except FileNotFoundError:
            return []

    def listed(self, folder: str) -> dict[str, int] | None:
        top = self._at(folder)
        if not os.path.isdir(top):
            return None
        found: dict[str, int] = {}
        for where, folders, names in os.walk(top, onerror=_raise):
            folders[:] = [name for name in folders if not hidden(name)]
            for name in names:
                if not hidden(name):
                    path = os.path.join(where, name)
                    found[os.path.relpath(path, top)] = os.path.getsize(path)
        return found

    def size(self, path: str) -> int | None:
        try:
            return os.path.getsize(self._at(path))
        except FileNotFoundError:
            return None

    def make(self, folder: str) -> None:
        make(Path(self._at(folder)))

    def text(self, path: str) -> str | None:
        with suppress(FileNotFoundError):
            return Path(self._at(path)).read_text("utf-8", errors="replace")
        return None

    def put_if_absent(self, path: str, text: str) -> str:
        if (there := self.text(path)) is not None:
            return there
        place = Path(self._at(path))
        written = place.with_name(_unfinished(place.name))
        try:
            written.write_text(text, "utf-8")
            sync(written)
            self._link(written, place)
        finally:
            written.unlink(missing_ok=True)
        # Last: a power failure would bring a name back that is gone here
        sync(place.parent)
        return place.read_text("utf-8", errors="replace")

    def _link(self, written: Path, place: Path) -> None:
        try:
            with suppress(FileExistsError):
                os.link(written, place)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            raise ServerMisconfigured(
                f"{self.local} is on a file system without hard links ({error.strerror}), where "
                "nothing is known of its renames either",
                next_step="write to a local disk, to NFS (of Azure Files, a share of NFS) or to "
                'HDFS; or with layout="manifest" to S3 by s3a:; or to Kafka or a database',
            ) from error

    def renew(self, path: str) -> None:
        with suppress(FileNotFoundError):
            os.utime(self._at(path))

    def move(self, source: str, target: str) -> bool:
        # rename(2) replaces a file, or a folder that is empty. Nobody else makes names like ours;
        # whoever publishes the same batch takes the same source away, and one of two finds it
        # gone.
        if os.path.lexists(self._at(target)):
            return False
        try:
            # Python's rename: Hadoop's on a local disk (RawLocalFileSystem.rename) checks for the
            # target first, moves a folder *into* one that has appeared in between, and copies
            # file by file where the rename fails, which readers see half done.
            os.rename(self._at(source), self._at(target))
        except FileNotFoundError:
            return False
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            # A copy is several steps: a copy of the pipeline that wakes up in one of them would
            # publish again what readers have taken away.
            raise ServerMisconfigured(
                f"{self._at(source)} cannot be renamed to {self._at(target)}, which is on another "
                "disk: one of its folders is a symbolic link, or a mount",
                next_step=f"put that folder, and not a link, back on the disk of {self.local}, "
                "and start the query again: it publishes the batch first of all",
            ) from error
        return True

    def mark(self, path: str) -> None:
        Path(self._at(path)).touch()

    def remove(self, path: str) -> None:
        found = self._at(path)
        if os.path.isdir(found) and not os.path.islink(found):
            shutil.rmtree(found)
        elif os.path.lexists(found):
            os.unlink(found)

    def sync(self, folder: str) -> None:
        top = self._at(folder)
        every = [os.path.dirname(top)]
        for where, _, names in os.walk(top, onerror=_raise):
            every += [where, *(os.path.join(where, name) for name in names)]
        with ThreadPoolExecutor(_SYNCING) as pool:
            list(pool.map(sync, every))

    def sync_names(self, folders: set[str]) -> None:
        for folder in sorted(folders):
            with suppress(FileNotFoundError):
                sync(self._at(folder))

    def _at(self, path: str) -> str:
        return os.path.join(str(self.local), path) if path else str(self.local)


def _raise(error: OSError) -> None:
    raise error


class HadoopFiles(Files):
    """On HDFS. What the name node has answered outlasts its death (the edit log), and blocks are
    on as many machines as the file system is told to write at once (``dfs.replication``,
    ``dfs.namenode.replication.min``).
    """

    def __init__(self, configuration: Any, root: str) -> None:
        self._gateway = _gateway()
        self._hadoop = self._gateway.jvm.org.apache.hadoop.fs
        self.root = root.rstrip("/")
        self._configuration = configuration
        self._system = self._hadoop.Path(self.root).getFileSystem(self._configuration)

    @patience.OpenedOnce
    def _context(self) -> Any:
        return self._hadoop.FileContext.getFileContext(self._at("").toUri(), self._configuration)

    def names(self, folder: str) -> list[str]:
        found = self._asked(lambda: self._system.listStatus(self._at(folder)))
        return [] if found is None else sorted(str(status.getPath().getName()) for status in found)

    def listed(self, folder: str) -> dict[str, int] | None:
        top = self._asked(lambda: self._system.getFileStatus(self._at(folder)))
        return None if top is None or not top.isDirectory() else dict(self._below(folder, ""))

    def _below(self, folder: str, within: str) -> Iterator[tuple[str, int]]:
        here = self._at(f"{folder}/{within}".rstrip("/"))
        for status in self._asked(lambda: self._system.listStatus(here)) or ():
            name = str(status.getPath().getName())
            if hidden(name):
                continue
            if status.isDirectory():
                yield from self._below(folder, f"{within}{name}/")
            else:
                yield f"{within}{name}", int(status.getLen())

    def size(self, path: str) -> int | None:
        status = self._asked(lambda: self._system.getFileStatus(self._at(path)))
        return None if status is None else int(status.getLen())

    def make(self, folder: str) -> None:
        self._asked(lambda: self._system.mkdirs(self._at(folder)))

    def put_if_absent(self, path: str, text: str) -> str:
        if (there := self.text(path)) is not None:
            return there
        self._put(path, text)
        if (there := self.text(path)) is None:
            raise FileNotFoundError(f"{self.uri(path)} has been written, and is not there")
        return there

    def _put(self, path: str, text: str) -> None:
        """Write a file as a whole or not at all; a file that appears meanwhile stays."""
        folder, _, name = path.rpartition("/")
        written = f"{folder}/{_unfinished(name)}"
        self._asked(lambda: self._write(written, text))
        if not self.move(written, path):
            self.remove(written)

    def text(self, path: str) -> str | None:
        def read() -> str:
            with closing(self._system.open(self._at(path))) as stream:
                io = self._gateway.jvm.org.apache.commons.io
                return str(io.IOUtils.toString(stream, "UTF-8"))

        found: str | None = self._asked(read)
        return found

    def _write(self, path: str, text: str, replace: bool = False) -> None:
        with closing(self._system.create(self._at(path), replace)) as stream:
            stream.write(bytearray(text.encode()))

    def renew(self, path: str) -> None:
        now = int(surroundings.wall_clock() * 1_000)
        self._asked(lambda: self._system.setTimes(self._at(path), now, -1))

    def move(self, source: str, target: str) -> bool:
        # Of a folder over a file the name node says more than that it is there
        if self.size(target) is not None:
            return False
        no_options = self._gateway.new_array(self._hadoop.Options.Rename, 0)
        try:
            # ClientProtocol.rename2: the name node renames in one step or refuses.
            # FileSystem.rename on HDFS would move a folder into one that exists, as on a local
            # disk.
            self._answered(
                lambda: self._context.rename(self._at(source), self._at(target), no_options)
            )
        except Py4JJavaError as error:
            if java_class(error) in _REFUSED:
                return False
            raise _as_os_error(error) from error
        return True

    def mark(self, path: str) -> None:
        self._asked(lambda: self._system.create(self._at(path), True).close())

    def remove(self, path: str) -> None:
        self._asked(lambda: self._system.delete(self._at(path), True))

    def sync(self, folder: str) -> None:
        """Return when the name node has answered; see the class."""

    def sync_names(self, folders: set[str]) -> None:
        """The same."""

    def _at(self, path: str) -> Any:
        return self._hadoop.Path(f"{self.root}/{path}" if path else self.root)

    def _asked(self, question: Callable[[], Any]) -> Any:
        """Ask Hadoop; return None where there is no such file."""
        try:
            return self._answered(question)
        except Py4JJavaError as error:
            if java_class(error) == "java.io.FileNotFoundException":
                return None
            raise _as_os_error(error) from error

    def _answered(self, ask: Callable[[], Any]) -> Any:
        """Return what the file system answers: its client tries for longer than a batch waits, and
        does not notice that the query is stopped."""
        late = OSError(errno.ETIMEDOUT, f"{self.root} has not answered for {_ANSWER_SECONDS:g} s")
        # What it carries out late, whoever comes next finds, and looks before each step
        return patience.in_time(
            ask, _ANSWER_SECONDS, "onceward-files", late=late, abandon=lambda: None
        )


class S3Files(HadoopFiles):
    """In S3, by Hadoop's S3A. Objects cannot be renamed; what is put replaces what was there."""

    def _put(self, path: str, text: str) -> None:
        self._asked(lambda: self._write(path, text))

    def renew(self, path: str) -> None:
        if (text := self.text(path)) is not None:
            self._asked(lambda: self._write(path, text, replace=True))

    def move(self, source: str, target: str) -> bool:
        raise NotImplementedError(
            "a copy of every object, one by one: nothing that publishes may call it"
        )


def _as_os_error(error: Py4JJavaError) -> OSError:
    return OSError(str(error.java_exception.toString()))
