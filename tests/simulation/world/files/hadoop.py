# ruff: noqa: N802 — Java's names
"""Hadoop's ``FileSystem`` and ``FileContext`` as the product calls them through py4j, over a
:class:`Tree`.

What is missing is an exception of Java's (``java.io.FileNotFoundException``), as
``DistributedFileSystem.listStatus`` and ``open`` throw it; everything else that fails is a
``java.io.IOException``.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from py4j.protocol import Py4JJavaError

from simulation.world.files.tree import Folder, Tree

_KINDS = (
    (FileNotFoundError, "java.io.FileNotFoundException"),
    (FileExistsError, "org.apache.hadoop.fs.FileAlreadyExistsException"),
    (NotADirectoryError, "org.apache.hadoop.fs.ParentNotDirectoryException"),
)


class JavaError(Py4JJavaError):  # type: ignore[misc] # py4j is not typed
    """As py4j raises it. Its own asks the JVM what to print."""

    def __init__(self, kind: str, text: str) -> None:
        Exception.__init__(self, f"{kind}: {text}")
        self.errmsg = text
        self.exception_cmd = ""
        self.java_exception = _Throwable(kind, text)

    def __str__(self) -> str:
        return f"An error occurred while calling o1.call.\n: {self.java_exception.toString()}"


class _Throwable:
    __slots__ = ("_kind", "_text")

    def __init__(self, kind: str, text: str) -> None:
        self._kind, self._text = kind, text

    def getClass(self) -> _Throwable:
        return self

    def getName(self) -> str:
        return self._kind

    def getMessage(self) -> str:
        return self._text

    def toString(self) -> str:
        return f"{self._kind}: {self._text}"

    def getStackTrace(self) -> list[Any]:
        return []

    def getCause(self) -> None:
        """It is the cause."""


def as_java(error: OSError) -> JavaError:
    for kind, name in _KINDS:
        if isinstance(error, kind):
            return JavaError(name, str(error))
    return JavaError("java.io.IOException", str(error))


class Path:
    """``org.apache.hadoop.fs.Path``."""

    __slots__ = ("_files", "path", "scheme")

    def __init__(self, files: Any, text: str) -> None:
        self._files = files
        scheme, colon, rest = text.partition(":")
        if colon and "/" not in scheme:
            self.scheme = scheme
            if rest.startswith("//"):
                rest = rest[2:][rest[2:].find("/") :]
            text = rest
        else:
            self.scheme = ""
        self.path = text.rstrip("/") or "/"

    def getFileSystem(self, configuration: Any) -> FileSystem:
        return FileSystem(self._files, self._files.tree(self.scheme))

    def getName(self) -> str:
        return self.path.rpartition("/")[2]

    def getParent(self) -> Path:
        return self._beside(self.path.rpartition("/")[0])

    def toUri(self) -> Path:
        return self

    def toString(self) -> str:
        if not self.scheme:
            return self.path
        return (
            f"{self.scheme}:{self.path}"
            if self.scheme == "file"
            else f"{self.scheme}://host{self.path}"
        )

    def child(self, name: str) -> Path:
        return self._beside(f"{self.path}/{name}")

    def qualified(self) -> Path:
        path = self._beside(self.path)
        path.scheme = self.scheme or self._files.default
        return path

    def _beside(self, path: str) -> Path:
        other = Path.__new__(Path)
        other._files, other.scheme, other.path = self._files, self.scheme, path or "/"
        return other


class Status:
    """``FileStatus``."""

    __slots__ = ("_length", "_path")

    def __init__(self, path: Path, node: Any) -> None:
        self._path = path
        self._length = -1 if node.__class__ is Folder else len(node.data)

    def getPath(self) -> Path:
        return self._path

    def getLen(self) -> int:
        return max(0, self._length)

    def isDirectory(self) -> bool:
        return self._length < 0

    def isFile(self) -> bool:
        return self._length >= 0


class FileSystem:
    """``org.apache.hadoop.fs.FileSystem``."""

    __slots__ = ("_files", "_tree")

    def __init__(self, files: Any, tree: Tree) -> None:
        self._files = files
        self._tree = tree

    def makeQualified(self, path: Path) -> Path:
        return path.qualified()

    def exists(self, path: Path) -> bool:
        try:
            return self._tree.look(path.path) is not None
        except OSError as error:
            raise as_java(error) from error

    def getFileStatus(self, path: Path) -> Status:
        try:
            node = self._tree.look(path.path)
            if node is None:
                raise FileNotFoundError(f"File does not exist: {path.path}")
            return Status(path, node)
        except OSError as error:
            raise as_java(error) from error

    def listStatus(self, path: Path) -> list[Status]:
        """Of a folder, by name (``FSDirStatAndListingOp``); of a file its own."""
        tree = self._tree
        try:
            node = tree.at(path.path)
            if node is not None and node.__class__ is not Folder:
                return [Status(path, node)]
            found = []
            for name in sorted(tree.names(path.path)):
                node = tree.at(f"{path.path}/{name}")
                if node is not None:
                    found.append(Status(path.child(name), node))
            return found
        except OSError as error:
            raise as_java(error) from error

    def mkdirs(self, path: Path) -> bool:
        try:
            self._tree.make(path.path, parents=True)
        except OSError as error:
            raise as_java(error) from error
        return True

    def createNewFile(self, path: Path) -> bool:
        """It looks, and creates then: ``FileSystem.createNewFile``."""
        if self.exists(path):
            return False
        self.create(path, False).close()
        return True

    def create(self, path: Path, overwrite: bool) -> Output:
        tree = self._tree
        try:
            if not tree.whole:
                return Output(tree, path, tree.create(path.path, replace=overwrite, parents=True))
            if not overwrite and tree.look(path.path) is not None:
                raise FileExistsError(f"{path.path} already exists")
            return Output(tree, path, None)
        except OSError as error:
            raise as_java(error) from error

    def setTimes(self, path: Path, modified_ms: int, read_ms: int) -> None:
        """Nothing of this model goes by times."""
        self.getFileStatus(path)

    def open(self, path: Path) -> Input:
        try:
            return Input(self._tree.read(path.path))
        except OSError as error:
            raise as_java(error) from error

    def delete(self, path: Path, recursive: bool) -> bool:
        try:
            node = self._tree.at(path.path)
            if not recursive and node.__class__ is Folder and node.entries:
                raise OSError(f"{path.path} is non empty")  # PathIsNotEmptyDirectoryException
            return self._tree.delete(path.path)
        except OSError as error:
            raise as_java(error) from error


class Output:
    """``FSDataOutputStream``: what was written is there when it is closed; of HDFS, perhaps some
    of it before.
    """

    __slots__ = ("_data", "_file", "_path", "_tree")

    def __init__(self, tree: Tree, path: Path, file: Any) -> None:
        self._tree, self._path, self._file = tree, path, file
        self._data = bytearray()

    def write(self, data: bytearray) -> None:
        self._data += data

    def close(self) -> None:
        tree, path = self._tree, self._path.path
        data, self._data = bytes(self._data), bytearray()
        try:
            if self._file is None:
                tree.put(path, data)
            elif data:
                if tree.at(path) is not self._file:
                    # LeaseExpiredException (FSNamesystem.checkLease): somebody has replaced or
                    # removed it
                    raise OSError(f"No lease on {path}: the file does not exist or is another one")
                tree.write(self._file, data, path)
        except OSError as error:
            raise as_java(error) from error


class Input:
    """``FSDataInputStream``."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data

    def readAllBytes(self) -> bytes:
        return self.data

    def close(self) -> None:
        """Nothing is held."""


class Context:
    """``FileContext``."""

    __slots__ = ("_tree",)

    def __init__(self, tree: Tree) -> None:
        self._tree = tree

    def rename(self, source: Path, target: Path, options: Any) -> None:
        """``ClientProtocol.rename2``: one step or refused
        (``FSDirRenameOp.validateRenameDestination``).
        """
        try:
            self._tree.rename(source.path, target.path, replace=False)
        except OSError as error:
            raise as_java(error) from error


class Hadoop:
    """``jvm.org.apache.hadoop.fs``."""

    __slots__ = ("FileContext", "Options", "_files")

    def __init__(self, files: Any) -> None:
        self._files = files
        self.FileContext = self
        self.Options = SimpleNamespace(Rename=None)

    def Path(self, text: str) -> Any:
        return Path(self._files, text)

    def getFileContext(self, uri: Any, configuration: Any) -> Context:
        return Context(self._files.tree(uri.scheme))


class Jvm:
    """As much of ``SparkContext._jvm`` as asks for files."""

    __slots__ = ("java", "org")

    def __init__(self, hadoop: Hadoop, session: Session | None = None) -> None:
        thread = SimpleNamespace(interrupted=lambda: False)
        self.java = SimpleNamespace(lang=SimpleNamespace(Thread=thread))
        utils = SimpleNamespace(toString=lambda stream, charset: stream.data.decode(charset))
        commons = SimpleNamespace(io=SimpleNamespace(IOUtils=utils))
        sessions = SimpleNamespace(getActiveSession=lambda: Active(session))
        self.org = SimpleNamespace(
            apache=SimpleNamespace(
                hadoop=SimpleNamespace(fs=hadoop),
                commons=commons,
                spark=SimpleNamespace(
                    sql=SimpleNamespace(classic=SimpleNamespace(SparkSession=sessions))
                ),
            )
        )


class Active:
    """A session, as Scala's ``Option``."""

    __slots__ = ("get",)

    def __init__(self, session: Session | None) -> None:
        self.get = lambda: session

    def isDefined(self) -> bool:
        return True


class Session:
    """``SparkSession``, with a context: what ``spark.checkpoint_files`` and ``spark.file_system``
    take of one.
    """

    __slots__ = ("_gateway", "_jsparkSession", "_jvm", "sparkContext")

    def __init__(self, hadoop: Hadoop) -> None:
        self.sparkContext = self
        self._jvm = Jvm(hadoop, self)
        self._gateway = SimpleNamespace(
            jvm=self._jvm, new_array=lambda kind, length: [None] * length
        )
        self._jsparkSession = self

    def sessionState(self) -> Session:
        return self

    def newHadoopConf(self) -> None:
        """Settings."""
