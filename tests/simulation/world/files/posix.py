"""The local disk as the product's modules reach it: in the place of ``os``, ``pathlib.Path``,
``shutil`` and of pools of threads that sync. As much of them as is used, over the simulated
world's disk.
"""

from __future__ import annotations

import errno
import os
import posixpath
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any

from simulation.kernel import current
from simulation.world.files.tree import File, Folder, Tree

_READ = os.O_RDONLY


def disk() -> Tree:
    """Of the world that runs."""
    tree: Tree = current().world.files.disk
    return tree


class Descriptor:
    """An open file, or folder."""

    __slots__ = ("node", "path")

    def __init__(self, node: Any, path: str) -> None:
        self.node = node
        self.path = path


class Opened:
    """An open file: what is written is the operating system's when it is flushed, or closed."""

    __slots__ = ("_at", "_path", "_text", "_tree", "_unwritten", "closed", "node")

    def __init__(self, tree: Tree, node: File, path: str, text: bool) -> None:
        self._tree, self.node, self._path, self._text = tree, node, path, text
        self._unwritten: list[bytes] = []
        self._at = 0
        self.closed = False

    def write(self, data: Any) -> int:
        self._unwritten.append(data.encode() if self._text else bytes(data))
        return len(data)

    def flush(self) -> None:
        if self._unwritten:
            data, self._unwritten = b"".join(self._unwritten), []
            self._tree.write(self.node, data, self._path)

    def read(self, size: int = -1) -> bytes:
        data = (
            self.node.data[self._at :] if size < 0 else self.node.data[self._at : self._at + size]
        )
        self._at += len(data)
        return data

    def fileno(self) -> Descriptor:
        return Descriptor(self.node, self._path)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.flush()

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Path:
    """``pathlib.Path``, of absolute paths."""

    __slots__ = ("_path",)

    def __init__(self, path: Any) -> None:
        self._path: str = os.fspath(path)

    def __fspath__(self) -> str:
        return self._path

    __str__ = __fspath__

    def __repr__(self) -> str:
        return f"Path({self._path!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Path) and other._path == self._path

    def __hash__(self) -> int:
        return hash(self._path)

    def __truediv__(self, name: Any) -> Path:
        return Path(f"{self._path}/{os.fspath(name)}")

    @property
    def name(self) -> str:
        return self._path.rpartition("/")[2]

    @property
    def parent(self) -> Path:
        return Path(self._path.rpartition("/")[0] or "/")

    def with_name(self, name: str) -> Path:
        return self.parent / name

    def absolute(self) -> Path:
        return self

    def is_dir(self) -> bool:
        return disk().look(self._path).__class__ is Folder

    def exists(self) -> bool:
        return disk().look(self._path) is not None

    def stat(self) -> SimpleNamespace:
        return SimpleNamespace(st_size=_size(self._path))

    def mkdir(self, *, exist_ok: bool = False) -> None:
        tree = disk()
        try:
            tree.make(self._path)
        except FileExistsError:
            if not exist_ok or tree.at(self._path).__class__ is not Folder:
                raise

    def open(self, mode: str) -> Opened:
        tree = disk()
        if "r" in mode:
            tree.read(self._path)
            return Opened(tree, tree.at(self._path), self._path, text=False)
        assert "x" in mode, mode
        return Opened(tree, tree.create(self._path), self._path, text="b" not in mode)

    def touch(self) -> None:
        tree = disk()
        if tree.look(self._path) is None:
            tree.create(self._path, replace=True)

    def read_bytes(self) -> bytes:
        return disk().read(self._path)

    def read_text(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return self.read_bytes().decode(encoding, errors)

    def write_text(self, text: str, encoding: str = "utf-8") -> None:
        tree = disk()
        tree.write(tree.create(self._path, replace=True), text.encode(encoding), self._path)

    def unlink(self, missing_ok: bool = False) -> None:
        try:
            disk().unlink(self._path)
        except FileNotFoundError:
            if not missing_ok:
                raise

    def rename(self, target: Path) -> Path:
        disk().rename(self._path, target._path)
        return target

    replace = rename


def _size(path: str) -> int:
    node = disk().look(path)
    if node is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    return 4096 if node.__class__ is Folder else len(node.data)


def _open(path: Any, flags: int) -> Descriptor:
    assert flags == _READ
    found = os.fspath(path)
    node = disk().look(found)
    if node is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), found)
    return Descriptor(node, found)


def _utime(path: Any) -> None:
    """No file has an age here."""
    _size(os.fspath(path))


def _fsync(descriptor: Descriptor) -> None:
    disk().sync_node(descriptor.node, descriptor.path)


def _walk(
    top: str, onerror: Callable[[OSError], None]
) -> Iterator[tuple[str, list[str], list[str]]]:
    """From above, as ``os.walk`` does it: who takes a folder out of the list is not shown it."""
    tree = disk()
    try:
        names = tree.names(top)
    except OSError as error:
        onerror(error)
        return
    folders = [name for name in names if tree.at(f"{top}/{name}").__class__ is Folder]
    yield top, folders, [name for name in names if tree.at(f"{top}/{name}").__class__ is File]
    for name in folders:
        yield from _walk(f"{top}/{name}", onerror)


def _remove_all(top: str) -> None:
    """``shutil.rmtree``: name by name."""
    tree = disk()
    for name in tree.names(top):
        path = f"{top}/{name}"
        if tree.at(path).__class__ is Folder:
            _remove_all(path)
        else:
            tree.unlink(path)
    tree.remove_folder(top)


class _Pool:
    """One thread is as good as eight where nothing takes long."""

    def __init__(self, threads: int) -> None: ...

    def __enter__(self) -> _Pool:
        return self

    def __exit__(self, *_: object) -> None:
        """Nobody waits."""

    def map(self, function: Callable[[Any], Any], values: Iterable[Any]) -> list[Any]:
        return [function(value) for value in values]


OS = SimpleNamespace(
    environ={},
    O_RDONLY=_READ,
    PathLike=os.PathLike,
    fspath=os.fspath,
    open=_open,
    fsync=_fsync,
    close=lambda descriptor: None,
    link=lambda source, target: disk().link(os.fspath(source), os.fspath(target)),
    listdir=lambda path: disk().names(os.fspath(path)),
    rename=lambda source, target: disk().rename(os.fspath(source), os.fspath(target)),
    unlink=lambda path: disk().unlink(os.fspath(path)),
    utime=_utime,
    walk=_walk,
    path=SimpleNamespace(
        join=posixpath.join,
        realpath=posixpath.normpath,
        relpath=posixpath.relpath,
        dirname=posixpath.dirname,
        isdir=lambda path: disk().look(path).__class__ is Folder,
        islink=lambda path: False,
        lexists=lambda path: disk().look(path) is not None,
        getsize=_size,
    ),
)
SHUTIL = SimpleNamespace(rmtree=_remove_all)
POOL = _Pool
