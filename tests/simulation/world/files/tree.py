"""One file system: folders, files, and what befalls them. What each operation promises:

* ``link``, ``rename``, ``mkdir`` and creating a file that must not be there are one step each, of
  which one caller wins (POSIX: ``link`` fails with EEXIST; ``rename`` is atomic for whoever
  looks).
* On a disk, a file's bytes outlast a power failure from its ``fsync`` on, and its name from the
  ``fsync`` of its folder on (``fsync(2)``). Of what was not synced any part may be left, in no
  order that was promised (Pillai et al., OSDI 2014, *All File Systems Are Not Created Equal*);
  only a rename is there as a whole or not at all. HDFS and object stores have what they have
  answered: the edit log is synced before the answer (``FSEditLog.logSync``).
* A name that comes or goes while somebody lists the folder may be listed or not (POSIX
  ``readdir``; HDFS lists 1,000 names at a time, ``dfs.ls.limit``): here a listing may be halted
  between two halves.
"""

from __future__ import annotations

import errno
import os
from typing import Any
from zlib import crc32

from simulation.kernel.scheduler import Process, Sim

FAULTS = {
    "fs:crash": "a process dies between two operations on files",
    "fs:pause": "a process is stopped between two operations on files, for up to two minutes",
    "fs:slow": "an operation takes seconds, and is carried out at their end",
    "fs:torn listing": "a folder is listed in two halves, with seconds between them",
    "fs:error": "an operation fails (EIO), carried out or not",
    "fs:no space": "the file system is full for up to half a minute (ENOSPC)",
    "fs:power failure": "the machine loses power: its processes, and what was not synced on its "
    "disk",
}
_LONGEST_PAUSE, _SLOW, _FULL = 120.0, 10.0, 30.0

Node = Any  # a Folder, a File, or None
Change = tuple["Folder", str, Node, Node]


class File:
    """Bytes, and what of them is on the disk for good."""

    __slots__ = ("data", "made_at", "synced")

    def __init__(self, made_at: float, data: bytes = b"") -> None:
        self.data = data
        self.synced = b""
        self.made_at = made_at


class Folder:
    """Names; and which changes to them are not on the disk for good."""

    __slots__ = ("entries", "made_at", "unsynced")

    def __init__(self, made_at: float = 0.0) -> None:
        self.made_at = made_at
        self.entries: dict[str, Node] = {}
        self.unsynced: list[int] = []


class Tree:
    """See the module. Paths are absolute, with ``/`` between their parts.

    Each operation is a door: its process may die, stop or wait there, and nothing happens for a
    dead one.

    :param durable: what was answered is there for good.
    :param whole: a file is there when its writer closes it, and not before.
    """

    __slots__ = ("_full_until", "_lossy", "_sim", "_undisturbed", "_unsynced", "_users",
        "_written", "name", "root",
                 "whole")  # fmt: skip

    def __init__(self, sim: Any, name: str, *, durable: bool = False, whole: bool = False) -> None:
        self._sim: Sim = sim
        self.name = name
        self.root = Folder()
        self.whole = whole
        self._lossy = not durable and sim.lots.is_on("fs:power failure")
        self._undisturbed = not any(sim.lots.is_on(kind) for kind in FAULTS)
        self._unsynced: dict[int, tuple[Change, ...]] = {}
        self._written: dict[File, None] = {}
        self._users: dict[Process, None] = {}
        self._full_until = 0.0

    # ── looking ──

    def at(self, path: str) -> Node:
        """What is there now; None without. For judges and models: no operation, nothing happens to
        it.
        """
        node: Node = self.root
        for part in path.split("/"):
            if part:
                if node.__class__ is not Folder:
                    return None
                node = node.entries.get(part)
                if node is None:
                    return None
        return node

    def look(self, path: str) -> Node:
        """``stat``, None where there is nothing."""
        self.door("look at", path)
        return self.at(path)

    def names(self, path: str) -> list[str]:
        """In no order of any meaning. :raises FileNotFoundError: no such folder."""
        self.door("list", path)
        folder = self._folder(path)
        sim = self._sim
        if not self._undisturbed and sim.lots.fires("fs:torn listing"):
            middle = sim.lots.below("fs:torn listing", 2**32)
            seen = [name for name in folder.entries if crc32(name.encode()) < middle]
            self._tell("is listed in two halves:", path)
            self._wait(0.1 + sim.lots.below("fs:torn listing", 1000) / 1000 * _SLOW)
            return seen + [name for name in folder.entries if crc32(name.encode()) >= middle]
        return list(folder.entries)

    def read(self, path: str) -> bytes:
        self.door("read", path)
        node = self.at(path)
        if node is None:
            raise _error(errno.ENOENT, path)
        if node.__class__ is Folder:
            raise _error(errno.EISDIR, path)
        data: bytes = node.data
        return data

    # ── changing ──

    def create(self, path: str, *, replace: bool = False, parents: bool = False) -> File:
        """An empty file. :raises FileExistsError: unless it may be replaced."""
        late = self.door("create", path, writes=True)
        parent, name = self._place(path, parents)
        there = parent.entries.get(name)
        if there.__class__ is Folder:
            raise _error(errno.EISDIR, path)
        if there is not None and not replace:
            raise _error(errno.EEXIST, path)
        file = File(self._sim.now)
        self._change((parent, name, there, file))
        if late:
            raise late
        return file

    def write(self, file: File, data: bytes, path: str) -> None:
        """More bytes at its end."""
        late = self.door("write", path, writes=True)
        if late:  # cut short
            file.data += data[: len(data) // 2]
        else:
            file.data += data
        if self._lossy:
            self._written[file] = None
        if late:
            raise late

    def put(self, path: str, data: bytes) -> None:
        """A file whole or not at all, over what is there: a PUT."""
        late = self.door("put", path, writes=True)
        parent, name = self._place(path, parents=True)
        self._change((parent, name, parent.entries.get(name), File(self._sim.now, data)))
        if late:
            raise late

    def make(self, path: str, *, parents: bool = False) -> None:
        """A folder. :raises FileExistsError: something is there; with ``parents``: something
        else.
        """
        late = self.door("make", path, writes=True)
        parent, name = self._place(path, parents)
        there = parent.entries.get(name)
        if there is None:
            self._change((parent, name, None, Folder(self._sim.now)))
        elif not parents or there.__class__ is not Folder:
            raise _error(errno.EEXIST, path)
        if late:
            raise late

    def link(self, source: str, target: str) -> None:
        late = self.door("link", target, writes=True)
        node = self.at(source)
        parent, name = self._place(target)
        if node is None:
            raise _error(errno.ENOENT, source)
        if name in parent.entries:
            raise _error(errno.EEXIST, target)
        self._change((parent, name, None, node))
        if late:
            raise late

    def rename(self, source: str, target: str, *, replace: bool = True) -> None:
        """As ``rename(2)``; without ``replace`` as ``ClientProtocol.rename2`` without options."""
        late = self.door("rename", source)
        old, old_name = self._place(source)
        node = old.entries.get(old_name)
        if node is None:
            raise _error(errno.ENOENT, source)
        new, new_name = self._place(target)
        there = new.entries.get(new_name)
        if there is not None:
            if not replace:
                raise _error(errno.EEXIST, target)
            if there is node:
                return
            if there.__class__ is Folder:
                if node.__class__ is not Folder:
                    raise _error(errno.EISDIR, target)
                if there.entries:
                    raise _error(errno.ENOTEMPTY, target)
            elif node.__class__ is Folder:
                raise _error(errno.ENOTDIR, target)
        if f"{target}/".startswith(f"{source}/"):
            raise _error(errno.EINVAL, target)
        self._change((old, old_name, node, None), (new, new_name, there, node))
        node.made_at = self._sim.now  # under this name: whoever had listed it before knew another
        if late:
            raise late

    def unlink(self, path: str) -> None:
        late = self.door("remove", path)
        parent, name = self._place(path)
        node = parent.entries.get(name)
        if node is None:
            raise _error(errno.ENOENT, path)
        if node.__class__ is Folder:
            raise _error(errno.EISDIR, path)
        self._change((parent, name, node, None))
        if late:
            raise late

    def delete(self, path: str) -> bool:
        """With all that is in it, in one step, as HDFS does it. False where there is nothing."""
        late = self.door("delete", path)
        parts = path.rstrip("/").rpartition("/")
        parent = self.at(parts[0])
        found = parent.__class__ is Folder and parts[2] in parent.entries
        if found:
            self._change((parent, parts[2], parent.entries[parts[2]], None))
        if late:
            raise late
        return found

    def remove_folder(self, path: str) -> None:
        """``rmdir``."""
        late = self.door("remove", path)
        folder = self._folder(path)
        if folder.entries:
            raise _error(errno.ENOTEMPTY, path)
        parent, name = self._place(path)
        self._change((parent, name, folder, None))
        if late:
            raise late

    def sync_node(self, node: Node, path: str) -> None:
        """``fsync`` of a file's bytes, or of a folder's names."""
        late = self.door("sync", path)
        if late:
            raise late  # fsync(2) that fails has perhaps written nothing
        if node.__class__ is Folder:
            for number in node.unsynced:
                self._unsynced.pop(number, None)
            node.unsynced.clear()
        else:
            node.synced = node.data
            self._written.pop(node, None)

    # ── what befalls it ──

    def door(self, what: str, path: str, *, writes: bool = False) -> OSError | None:
        """Each operation passes here. An error that is returned is to be raised when it has been
        carried out.
        """
        sim = self._sim
        sim.alive()
        if self._undisturbed:
            return None
        here = sim.here
        if here is sim.outside:
            return None
        lots = sim.lots
        if self._lossy:
            self._users[here] = None
            if lots.fires("fs:power failure"):
                self.lose_power()
        if lots.fires("fs:crash"):
            sim.kill(here, f"before it could {what} {path}")
        if lots.fires("fs:pause"):
            sim.pause(here, 0.1 + lots.below("fs:pause", 1000) / 1000 * _LONGEST_PAUSE)
            sim.sleep(0.0)
        if lots.fires("fs:slow"):
            self._tell(f"is slow to {what}", path)
            self._wait(0.1 + lots.below("fs:slow", 1000) / 1000 * _SLOW)
        if writes:
            if lots.fires("fs:no space"):
                self._full_until = sim.now + lots.below("fs:no space", 1000) / 1000 * _FULL
            if sim.now < self._full_until and not lots.calm:
                self._tell(f"has no space to {what}", path)
                raise _error(errno.ENOSPC, path)
        if lots.fires("fs:error"):
            carried_out = lots.below("fs:error", 2)
            self._tell(f"fails to {what}" + (" (it has)" if carried_out else ""), path)
            if not carried_out:
                raise _error(errno.EIO, path)
            return _error(errno.EIO, path)
        return None

    def lose_power(self) -> None:
        """Now. Whoever was at work on this machine is dead."""
        sim = self._sim
        lot = sim.lots.below
        users = [process for process in self._users if process.alive]
        self._users.clear()
        self._tell("loses power, and", f"{len(users)} processes")
        lost: set[tuple[Folder, str]] = set()
        undone: list[tuple[Change, ...]] = []
        for changes in self._unsynced.values():
            # What builds on a name that is lost is lost.
            if any((folder, name) in lost for folder, name, _, _ in changes) or lot(
                "fs:power failure", 2
            ):
                undone.append(changes)
                lost.update((folder, name) for folder, name, _, _ in changes)
        for changes in reversed(undone):
            for folder, name, before, _ in reversed(changes):
                if before is None:
                    folder.entries.pop(name, None)
                else:
                    folder.entries[name] = before
        for changes in self._unsynced.values():
            for folder, _, _, _ in changes:
                folder.unsynced.clear()
        self._unsynced.clear()
        for file in self._written:
            left = lot("fs:power failure", 3)
            if left < 2:
                file.data = (
                    file.synced
                    if left
                    else file.data[: max(len(file.synced), len(file.data) // 2)]
                )
            file.synced = file.data
        self._written.clear()
        here = sim.here
        for process in users:
            if process is not here:
                sim.kill(process, "the machine has lost power")
        if here in users:
            sim.kill(here, "the machine has lost power")

    def _change(self, *changes: Change) -> None:
        for folder, name, _, node in changes:
            if node is None:
                folder.entries.pop(name, None)
            else:
                folder.entries[name] = node
        if self._lossy:
            sim = self._sim
            sim._order = number = sim._order + 1
            self._unsynced[number] = changes
            for folder, _, _, _ in changes:
                folder.unsynced.append(number)

    def _folder(self, path: str) -> Folder:
        node = self.at(path)
        if node is None:
            raise _error(errno.ENOENT, path)
        if node.__class__ is not Folder:
            raise _error(errno.ENOTDIR, path)
        folder: Folder = node
        return folder

    def _place(self, path: str, parents: bool = False) -> tuple[Folder, str]:
        """The folder that has it, or would, and its name there."""
        above, _, name = path.rstrip("/").rpartition("/")
        node = self.at(above)
        if node is None and parents:
            grand, inner = self._place(above, True)
            node = Folder(self._sim.now)
            self._change((grand, inner, None, node))
        if node is None:
            raise _error(errno.ENOENT, path)
        if node.__class__ is not Folder:
            raise _error(errno.ENOTDIR, path)
        return node, name

    def _wait(self, seconds: float) -> None:
        self._sim.sleep(seconds)

    def _tell(self, what: str, path: str) -> None:
        sim = self._sim
        if sim.tell is not None:
            sim.tell(sim.now, sim.here.name, f"⚡ the {self.name} {what} {path}")


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)
