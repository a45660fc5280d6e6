"""Chains in a local folder: a file an entry, by ``link(2)``, which one wins. Driver only.

``<path>/<pipeline>/<slot>.json``, slots counted from 0 without gap. An entry is a ledger record or
a takeover, and both are made in the same way: written to a file of their own, synced, and linked
to the name of the slot behind the newest one. ``link`` fails if the name is there (POSIX), so that
who has lost a slot has lost the chain:

* a takeover wins the next slot, and no older owner can append there any more: what lies before it
  is final;
* a record wins it, or its owner learns that there is a newer one.

Renaming would not do, nor does Spark's ``createAtomic``, which looks first and renames then: a
late rename replaces what somebody else has put there meanwhile, and says that all is well.

Old entries are removed, and a very late owner could win the name of one. So before any is removed,
an empty file ``floor-<slot>`` says from which slot on entries count (of several the highest); who
has won a slot below it has won nothing.

Whoever keeps things beside a chain asks for its ``identity``, an entry of its own by that name,
which is by lot. Old entries go all the time, and this one stays: so that nobody who removes files
by their age takes it alone, it is kept as young as the newest entry.

The driver that comes next must see the same folder. Network file systems are refused: there an
answer can get lost and a request be repeated.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shlex
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from onceward import surroundings
from onceward.durable import make, sync, write_new
from onceward.engine.ledger.chain import (
    Chain,
    Ledger,
    LedgerPlace,
    cut_off_error,
    new_owner,
    takeover_error,
    takeover_lost_error,
)
from onceward.engine.ledger.record import LedgerRecord, decode, encode
from onceward.errors import (
    CommitInDoubt,
    ConfigurationError,
    Fenced,
    LedgerUnreachable,
    LedgerUnreadable,
    OncewardError,
)
from onceward.ids import AttemptId, PipelineId, is_pipeline_id
from onceward.spark.files import local_folder

log = logging.getLogger(__name__)

_DIGITS = 20
_SUFFIX = ".json"
_FLOOR = "floor-"
_ENTRIES, _FLOORS = rf"(\d+){re.escape(_SUFFIX)}", rf"{_FLOOR}(\d+)"
_IDENTITY = "identity"
_KEPT = 1_000
"""Entries behind the newest record, for whoever wants to know what was."""
_NOBODY = -1
_RESTORED = "the folder was deleted, or restored from an older copy"
_LOCAL = {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "overlay", "tmpfs"}
"""Their ``link`` fails exactly if the name is there, and has happened or not when it returns."""


@dataclass(frozen=True)
class FolderLedger(Ledger):
    """Chains in a folder of a local disk, which is made when it is missing; one for all pipelines.

    For a query whose driver always starts on the same machine, or on one that is given the same
    disk. On Linux other file systems are refused by name; elsewhere nobody tells what a folder
    lies on.

    :param path: the folder, or its URI (``file:///…``).
    :raises ConfigurationError: it is empty, or an address of something else.
    """

    path: str | os.PathLike[str]

    def __post_init__(self) -> None:
        if (folder := local_folder(self.path)) is None:
            raise ConfigurationError(
                f"FolderLedger(path={self.path!r}) names no folder of a local disk",
                next_step="pass the path of a folder, or its URI (file:///…), absolute where a "
                "name has a colon; for a ledger that several machines see, use KafkaLedger",
            )
        object.__setattr__(self, "path", folder)

    def chain(self, pipeline: PipelineId) -> Chain:
        """Return the chain of a pipeline, a folder of its own in this one."""
        return FolderChain(Path(self.path), pipeline)

    def pipelines(self) -> list[PipelineId]:
        """Return the pipelines that have a folder with an entry in this one."""
        path = Path(self.path)
        try:
            found = [each.name for each in path.iterdir() if _may_have_entries(each)]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise LedgerUnreachable(
                f"the ledger folder {path} cannot be read: {error}",
                next_step="make it readable for this login",
            ) from error
        return sorted(map(PipelineId, found))

    def recent(self, pipeline: PipelineId, limit: int = 100) -> list[LedgerRecord]:
        """Return the last records. :raises LedgerUnreadable: this login may not read them."""
        try:
            return super().recent(pipeline, limit)
        except LedgerUnreachable as error:
            if not isinstance(error.__cause__, PermissionError):
                raise
            raise LedgerUnreadable(
                f"what the ledger folder has of {pipeline} cannot be read: {error.__cause__}",
                next_step="look as the login that runs the pipeline, or let this one read there",
            ) from error

    @property
    def where(self) -> LedgerPlace:
        path = str(self.path)
        return LedgerPlace(("folder", path), shlex.join(["--ledger-path", path]))


class FolderChain(Chain):
    """See the module."""

    def __init__(self, path: Path, pipeline: PipelineId) -> None:
        self._folder = path / pipeline
        self._pipeline = pipeline
        # the slot behind the newest entry, as far as known
        self._next = 0
        self._owner = _NOBODY
        self._attempts = 0
        # the last record that was to be
        self._appended = b""
        # Takeovers of ours of which it is not known whether they were carried out
        self._takeovers: set[bytes] = set()
        # The chain's, once it was asked for
        self._identity = ""

    def peek(self) -> LedgerRecord | None:
        return next(self.history(1), None)

    def must_be_there(self) -> None:
        """Check that the folder is mounted: else an empty one is in its place, or none."""
        found = self._folder.parent
        with self._reached(), suppress(FileNotFoundError):
            if os.listdir(found):
                return
        raise LedgerUnreachable(
            f"the ledger folder {found} is not there, or empty: its disk may not be mounted",
            next_step="mount it, or restore the folder from a backup; if it was deleted for good, "
            "find out from the output how far it goes, and begin a chain anew by starting once "
            'with another pipeline_id (outputs and stores keep the old one) and resume="adopt"',
        )

    def take(self) -> LedgerRecord | None:
        """Win the next slot with a takeover: whoever had the chain is fenced."""
        with self._reached():
            make(self._folder)
            _refuse_other_file_systems(self._folder)
        while True:
            slots, floor = self._listed()
            self._next = max(slots, default=floor - 1) + 1
            if self._take_next():
                return self.newest()

    def _take_next(self) -> bool:
        """Win the next slot with a takeover; return False if it is taken."""
        owner = new_owner()
        takeover = {
            "takeover": self._next,
            "owner": owner,
            "host": socket.gethostname(),
            "pid": surroundings.process_id(),
            "at_ms": surroundings.wall_clock_ns() // 1_000_000,
        }
        entry = json.dumps(takeover).encode()
        self._takeovers.add(entry)
        if not self._won(entry):
            self._takeovers.discard(entry)
            return False
        self._takeovers.clear()
        self._owner, self._attempts = owner, 0
        self._next += 1
        return True

    def newest(self) -> LedgerRecord | None:
        """Return the newest record, after a look that the chain is still ours."""
        self.last = self._newest_record(self._still_ours())
        return self.last

    def _newest_record(self, slots: list[int]) -> LedgerRecord | None:
        """Return the newest record, which is no older than one that this owner has seen."""
        newest = next(self._records(slots), None)
        found, known = (-1 if each is None else each.sequence for each in (newest, self.last))
        if found < known:
            what = f"ended with sequence {known} and now ends with {found}: {_RESTORED}"
            raise cut_off_error(self._pipeline, str(self._folder), what)
        return newest

    def identity(self) -> str:
        """Return the chain's identity, drawn when its folder was made."""
        path = self._folder / _IDENTITY
        with self._reached():
            if not path.exists():
                identity = self._identity or surroundings.random_bytes(16).hex()
                written = self._folder / f".{surroundings.random_bytes(16).hex()}"
                try:
                    write_new(written, identity.encode())
                    with suppress(FileExistsError):
                        os.link(written, path)
                finally:
                    with suppress(OSError):
                        written.unlink()
            sync(self._folder)
            self._identity = path.read_text()
        return self._identity

    def _keep_identity(self) -> None:
        """Make its file as young as the newest entry. Never raises: another login may own it."""
        if not self._identity:
            return
        try:
            os.utime(self._folder / _IDENTITY)
        except FileNotFoundError:
            with suppress(OncewardError):
                self.identity()
        except OSError as error:
            log.debug("%s of %s keeps its age: %s", _IDENTITY, self._folder, error)

    def begin(self, newest: LedgerRecord | None) -> AttemptId:
        """Number an attempt."""
        self._must_end_here(self._still_ours())
        self._attempts += 1
        return AttemptId(self._owner, self._attempts)

    def append(self, record: LedgerRecord) -> None:
        """Write the record into the next slot, by a link that fails where one is."""
        self._appended = encode(record)
        if not self._won(self._appended):
            raise self._overtaken()
        slots, floor = self._listed()
        try:
            # the name was free because its entry has been removed
            if floor > self._next:
                raise self._overtaken()
            self._must_end_here([slot for slot in slots if slot != self._next])
        except OncewardError:
            with suppress(OSError):
                self._path(self._next).unlink()
            raise
        self._next += 1
        self.last = record
        if self._next % _KEPT == 0:
            self._remove_old()

    def settle(self) -> LedgerRecord | None:
        """Take the slot that the append in doubt was for, or the one behind it and behind settling
        that was in doubt itself; from nobody else.
        """
        while not self._take_next():
            entry = self._entry_at(self._next)
            if entry is None or not self._is_our_own(entry):
                raise self._overtaken()
            # it was carried out
            self._next += 1
        return self.newest()

    def _is_our_own(self, entry: bytes) -> bool:
        """What a new owner publishes of its predecessor's batch names the deciding attempt."""
        if _is_takeover(entry):
            return entry in self._takeovers
        if entry == self._appended:
            return True
        record = decode(entry, where=str(self._path(self._next)))
        return record.attempt.owner == self._owner

    def history(self, limit: int = 100) -> Iterator[LedgerRecord]:
        return islice(self._records(self._listed()[0]), limit)

    # the folder

    def _won(self, entry: bytes) -> bool:
        """Make the entry of the next slot; False if somebody else has.

        :raises CommitInDoubt: it may be there and not outlast a power failure, or not be there.
        """
        target = self._path(self._next)
        written = self._folder / f".{surroundings.random_bytes(16).hex()}"
        with self._reached():
            write_new(written, entry)
        try:
            # link(2), not rename(2):
            # 1. an owner that is about to write slot n stands still;
            # 2. a newer copy takes slot n by its takeover, and goes on;
            # 3. the old owner resumes: its rename would replace the takeover, its link fails
            #    (EEXIST).
            os.link(written, target)
            self._keep_identity()
            sync(self._folder)
        except FileExistsError:
            return False
        except OSError as error:
            raise CommitInDoubt(
                f"whether {target} was written is not known: {error}",
                next_step="look at the disk; the next start of the query looks what is there",
            ) from error
        finally:
            with suppress(OSError):
                written.unlink()
        return True

    def _still_ours(self) -> list[int]:
        """Return all slots that count, none of them behind our own."""
        slots, floor = self._listed()
        if self._next in slots or floor > self._next:
            raise self._overtaken()
        return slots

    def _must_end_here(self, slots: list[int]) -> None:
        """Check that the newest of ``slots`` is the entry that this owner knows.

        :raises LedgerBehind: batches are gone.
        :raises LedgerOutdated: its takeover is, or what it has noted of the newest batch.
        """
        if self._next - 1 not in slots:
            self._newest_record(slots)
            raise takeover_lost_error(self, self._pipeline, str(self._folder), _RESTORED)

    def _overtaken(self) -> Fenced:
        return takeover_error(self._pipeline, f"{self._folder}, slot {self._next}")

    def _listed(self) -> tuple[list[int], int]:
        """Return the slots that count and have an entry now, and the lowest one that counts."""
        with self._reached():
            try:
                names = os.listdir(self._folder)
            except FileNotFoundError:
                if self._owner != _NOBODY:  # it was there
                    self.must_be_there()
                return [], 0
        floor = max(_numbers(names, _FLOORS).values(), default=0)
        return [slot for slot in _numbers(names, _ENTRIES).values() if slot >= floor], floor

    def _records(self, slots: list[int]) -> Iterator[LedgerRecord]:
        """Yield records, newest first and one by one: who wants the newest reads no other."""
        found = (self._record_at(slot) for slot in sorted(slots, reverse=True))
        return (record for record in found if record is not None)

    def _record_at(self, slot: int) -> LedgerRecord | None:
        """Return a slot's record; None where the entry is a takeover, or removed meanwhile."""
        entry = self._entry_at(slot)
        if entry is None or _is_takeover(entry):
            return None
        return decode(entry, where=str(self._path(slot)))

    def _entry_at(self, slot: int) -> bytes | None:
        with self._reached(), suppress(FileNotFoundError):
            return self._path(slot).read_bytes()
        return None

    def _remove_old(self) -> None:
        """Remove what lies far behind. Never raises: it can be done later."""
        floor = self._next - _KEPT
        try:
            # Never lowered, whoever makes one late: the highest counts. Before any name becomes
            # free.
            (self._folder / f"{_FLOOR}{floor}").touch()
            sync(self._folder)
            names = os.listdir(self._folder)
            old = [name for name, slot in _numbers(names, _ENTRIES).items() if slot < floor]
            # The one before stays: who lists the folder just now may see neither old nor new.
            old += [n for n, slot in _numbers(names, _FLOORS).items() if slot < floor - _KEPT]
            for name in old:
                (self._folder / name).unlink()
        except OSError as error:
            log.warning("old entries of %s are not removed: %s", self._folder, error)

    def _path(self, slot: int) -> Path:
        return self._folder / f"{slot:0{_DIGITS}}{_SUFFIX}"

    @contextmanager
    def _reached(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise LedgerUnreachable(
                f"the ledger folder {self._folder} cannot be used: {error}",
                next_step="make the folder readable and writable for the driver, and see that its "
                "disk has room",
            ) from error


def _may_have_entries(folder: Path) -> bool:
    """Return whether a folder has entries; of one that this login may not list it is taken so, if
    it may be a pipeline's: beside them there may be a file system's own."""
    try:
        return any(name.endswith(_SUFFIX) for name in os.listdir(folder))
    except PermissionError:
        return is_pipeline_id(folder.name) and not folder.name.startswith(".")
    except (FileNotFoundError, NotADirectoryError):
        return False


def _numbers(names: Iterable[str], pattern: str) -> dict[str, int]:
    """Return those of ``names`` that have the number that ``pattern`` looks for, with it."""
    found = {name: re.fullmatch(pattern, name) for name in names}
    return {name: int(match[1]) for name, match in found.items() if match}


def _is_takeover(data: bytes) -> bool:
    try:
        return "takeover" in json.loads(data)
    except (ValueError, TypeError):
        # decode() says what is wrong with it
        return False


def _refuse_other_file_systems(folder: Path) -> None:
    """Refuse file systems of which it is not known that ``link`` does what it must."""
    kind = file_system_type(folder)
    if kind is not None and kind not in _LOCAL:
        raise ConfigurationError(
            f"the ledger folder {folder} lies on a file system of type {kind}, of which it is not "
            "known whether one of two drivers wins",
            next_step="keep the ledger on a local disk, or use KafkaLedger",
        )


def file_system_type(folder: Path) -> str | None:
    """Return its type, as Linux names it (``proc(5)``, ``/proc/[pid]/mountinfo``); None where that
    is not told."""
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return None
    device = os.stat(folder).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in lines:
        mount, _, kind = line.partition(" - ")
        if mount.split()[2] == number:
            return kind.split()[0]
    return None
