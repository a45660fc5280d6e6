"""Savepoints: a copy of a query's checkpoint as it was behind one batch, with the ledger record of
that batch. Taken while the pipeline runs; no Spark is needed, and no driver is asked.

Called by ``onceward savepoint``. A savepoint is a folder: ``checkpoint/`` as Spark has it, and
``savepoint.json``, which is written last and names each file with its SHA-256. What Spark needs
behind batch *n* (``MicroBatchExecution.populateStartOffsets``): ``offsets`` and ``commits`` *n*
and *n* - 1, the sources' own logs, and of each state store the version *n* + 1: the newest full
file up to it and the changes behind that (``HDFSBackedStateStoreProvider``,
``RocksDBFileManager``). All of these are files that nobody changes once they have their names;
Spark removes old ones. If one that is needed goes while it is copied, the copy begins anew at a
later batch.
"""

from __future__ import annotations

import io
import json
import os
import re
import uuid
import zipfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone

from onceward import surroundings
from onceward.engine.ledger.chain import Ledger
from onceward.engine.ledger.record import LedgerRecord
from onceward.errors import (
    CheckpointCorrupted,
    CheckpointReplaced,
    CheckpointRewound,
    CheckpointUnreachable,
    ConfigurationError,
    LedgerBehind,
)
from onceward.ids import PipelineId, pipeline_id
from onceward.libraries import release
from onceward.operate.checkpoint_files import (
    OPERATOR,
    Folder,
    description_in,
    logged_batches,
    logged_ends,
    stateful_operators,
)

MANIFEST = "savepoint.json"
_FORMAT = 1
_CHECKPOINT = "checkpoint"
_TRIES = 5
_COMMIT_LOG_SECONDS, _COMMIT_LOG_LOOK_SECONDS = 30.0, 0.2
_BEGUN = re.compile(r"\.[0-9a-f]{8}\.tmp")
_OF_A_VOLUME = "lost+found"
_RECENT = 1_000
_CHECKSUM = ".crc"
"""Ends Hadoop's hidden ones, and those that Spark 4.1 and later has beside a file of state."""
_NUMBERED = re.compile(r"(offsets|commits)/(\d+)")
_NOTE = re.compile(r"onceward/[^/]+/(\d+)\.[a-z]+")
_STATE = re.compile(r"(state/.+)/(\d+)(?:_[^/.]+)?\.(delta|snapshot|zip|changelog)")
_FULL = ("snapshot", "zip")
_NAME = re.compile(r".+-\d+-\d{8}T\d{6}\.\d{6}Z")
_SHARED = re.compile(r"(state/.+)/(?:SSTs|logs)/([^/]+)")
"""Files of RocksDB that several versions of a store have in common."""
_SHARED_NAME = re.compile(rb'"dfs(?:Sst|Log)FileName"\s*:\s*"([^"]+)"')


@dataclass(frozen=True, slots=True)
class Savepoint:
    """What ``savepoint.json`` says: batch and ledger record (by its ``sequence``) behind which the
    checkpoint was copied, when (milliseconds since 1970), by which Onceward, and the files.
    """

    path: str
    pipeline_id: str
    query_id: str
    batch_id: int
    ledger_batch_id: int
    sequence: int
    created_at_ms: int
    version: str
    files: Mapping[str, tuple[int, str]]

    @property
    def bytes(self) -> int:
        """Size of all files."""
        return sum(size for size, _ in self.files.values())


def select(names: Iterable[str], batch_id: int) -> tuple[list[str], set[str]]:
    """Return those files of a checkpoint that a copy behind ``batch_id`` may have, and those of
    them that it must. Pure.

    Left out: what belongs to later batches, files that are being written (their names begin with a
    dot), and checksums: Spark reads without them, and ``savepoint.json`` has its own.
    """
    copied, needed, stores = [], set(), defaultdict(list)
    for name in sorted(set(names)):
        if name.rpartition("/")[2].startswith(".") or name.endswith(_CHECKSUM):
            continue
        numbered, state = _NUMBERED.fullmatch(name), _STATE.fullmatch(name)
        if numbered:
            number = int(numbered[2])
            if number <= batch_id:
                copied.append(name)
            if batch_id - 1 <= number <= batch_id:
                needed.add(name)
        elif description := OPERATOR.fullmatch(name):
            if int(description[2] or 0) <= batch_id:
                copied.append(name)
                stores[description[1]].append((int(description[2] or 0), True, name))
        elif state:
            if int(state[2]) <= batch_id + 1:
                copied.append(name)
                stores[state[1]].append((int(state[2]), state[3] in _FULL, name))
        elif note := _NOTE.fullmatch(name):
            if int(note[1]) <= batch_id:
                copied.append(name)
        else:
            copied.append(name)
            if not _SHARED.fullmatch(name):
                needed.add(name)
    for files in stores.values():
        full = max((version for version, is_full, _ in files if is_full), default=0)
        needed.update(name for version, _, name in files if version >= full)
    return copied, needed


def find_gap(names: Iterable[str], batch_id: int) -> str:
    """Return a store of which the version behind ``batch_id`` cannot be loaded from these files;
    empty if there is none. Pure.

    Every task of a stateful operator commits a version for each batch, also one without rows: from
    the newest full file (or version 1) on there is one file or more for each.
    """
    stores: defaultdict[str, list[tuple[int, bool]]] = defaultdict(list)
    partitions: defaultdict[str, set[int]] = defaultdict(set)
    for state in filter(None, map(_STATE.fullmatch, names)):
        stores[state[1]].append((int(state[2]), state[3] in _FULL))
        operator, partition = state[1].split("/")[1:3]
        partitions[operator].add(int(partition))
    for store, files in sorted(stores.items()):
        candidates = [(version, is_full) for version, is_full in files if version <= batch_id + 1]
        begin = max((version for version, is_full in candidates if is_full), default=1)
        if not set(range(begin, batch_id + 2)) <= {version for version, _ in candidates}:
            return store
    for operator, found in sorted(partitions.items()):
        if missing := set(range(max(found) + 1)) - found:
            return f"state/{operator}/{min(missing)}"
    return ""


def select_logs(names: Iterable[str]) -> list[str]:
    """Return files that say what was read and how state is laid out, not its contents. Pure."""
    return [
        name
        for name in names
        if not (name.endswith(_CHECKSUM) or _STATE.fullmatch(name) or _SHARED.fullmatch(name))
    ]


def create(
    checkpoint: str, to: str, ledger: Ledger, pipeline: str, *, for_fork: bool = False
) -> Savepoint:
    """Copy the checkpoint behind its newest batch that Spark and the ledger both have.

    :param checkpoint: the query's ``checkpointLocation``; it may be running.
    :param to: a folder for savepoints; this one gets a name of its own in it.
    :param for_fork: also where the ledger is ahead, of which no checkpoint can be restored.
    :raises ConfigurationError: the checkpoint has no finished batch, or ``to`` is in it.
    :raises CheckpointReplaced: the ledger's batches are of another query than the checkpoint.
    :raises CheckpointRewound: the checkpoint has other offsets for the batch than the ledger, or
        lacks its newest batch.
    :raises CheckpointUnreachable: the checkpoint cannot be read, or not copied before files go.
    """
    source, name = Folder(checkpoint), pipeline_id(pipeline)
    if source.holds(Folder(to)):
        raise ConfigurationError(
            f"the savepoints' folder {to} is in the checkpoint {checkpoint}, which is Spark's",
            next_step="name a folder outside of it",
        )
    for _ in range(_TRIES):
        query_id, batch_id = _newest_commit(source)
        newest = None if for_fork else _newest(ledger, name)
        if newest and newest.batch.query_id == query_id and newest.batch.batch_id > batch_id:
            batch_id = _commit_behind(source, newest.batch.batch_id)
        record = _record_behind(ledger, name, query_id, batch_id, checkpoint)
        if record.batch.batch_id == batch_id:
            _must_agree(source, record)
        made_at = datetime.fromtimestamp(surroundings.wall_clock_ns() / 1e9, timezone.utc)
        target = Folder(to).below(f"{pipeline}-{batch_id}-{made_at:%Y%m%dT%H%M%S.%f}Z")
        try:
            files = _copy(source, target.below(_CHECKPOINT), batch_id)
        except FileNotFoundError:
            target.remove()
            continue
        # Absolute: where it is printed, a shell would take another folder for ~
        savepoint = Savepoint(
            target.root if target.is_local else target.path,
            pipeline, query_id, batch_id, record.batch.batch_id, record.sequence,
            int(made_at.timestamp() * 1000), release(), files,
        )  # fmt: skip
        target.write(MANIFEST, [_document(savepoint)])
        return savepoint
    raise CheckpointUnreachable(
        f"files of the checkpoint {checkpoint} went while they were copied, {_TRIES} times",
        next_step="set spark.sql.streaming.minBatchesToRetain so high that the batches of a "
        "minute are kept, or stop the query for the moment of the copy",
    )


def _newest_commit(checkpoint: Folder) -> tuple[str, int]:
    batches = logged_batches(checkpoint.names(), "commits")
    try:
        query_id = str(json.loads(checkpoint.read("metadata"))["id"])
    except (FileNotFoundError, ValueError, KeyError) as error:
        query_id = ""
        reason = f"its metadata cannot be read: {type(error).__name__}"
    else:
        reason = "no batch of it is done"
    if not query_id or not batches:
        raise ConfigurationError(
            f"{checkpoint.path} is no checkpoint of which a savepoint can be made ({reason})",
            next_step="name the query's checkpointLocation, once its first batch is done",
        )
    return query_id, max(batches)


def _commit_behind(checkpoint: Folder, decided: int) -> int:
    """Return the newest batch of Spark's log once that has the batch ``decided`` by the ledger."""
    until = surroundings.monotonic() + _COMMIT_LOG_SECONDS
    while (batch_id := _newest_commit(checkpoint)[1]) < decided:
        if surroundings.monotonic() > until:
            raise CheckpointRewound(
                f"the ledger has batch {decided}, and Spark's log in {checkpoint.path} does not, "
                f"after {_COMMIT_LOG_SECONDS:g} s: the driver died in between, the batch is still "
                "being published, or it is an old copy; what is copied now could not be restored",
                next_step="name the checkpoint that the pipeline uses now; start the pipeline "
                "once and end it with one SIGTERM, or wait until the batch is finished; then make "
                "the savepoint. To fork it all the same, add --for-fork",
            )
        surroundings.sleep(_COMMIT_LOG_LOOK_SECONDS)
    return batch_id


def _record_behind(
    ledger: Ledger, pipeline: PipelineId, query_id: str, batch_id: int, checkpoint: str
) -> LedgerRecord:
    """Return the newest record of that batch, or of one before it that the function skipped."""
    found = ledger.recent(pipeline, _RECENT)
    for record in found:
        if record.batch.query_id == query_id and record.batch.batch_id <= batch_id:
            return record
    if not found:
        raise LedgerBehind(
            f"the ledger has no batch of pipeline {pipeline}",
            next_step="name its ledger (--bootstrap-servers, --ledger-path or --ledger-url), and "
            "see that its id is spelt right",
        )
    raise CheckpointReplaced(
        f"the checkpoint {checkpoint} is of query {query_id}, batch {batch_id}, and the ledger's "
        f"newest batch of pipeline {pipeline} is {found[0].batch}",
        next_step="name the checkpoint that the pipeline uses now",
    )


def _must_agree(checkpoint: Folder, record: LedgerRecord) -> None:
    ends = logged_ends(checkpoint, record.batch.batch_id)
    for end, source in zip(ends, record.sources, strict=False):
        if isinstance(source.end, dict) and isinstance(end, dict) and end != source.end:
            raise CheckpointRewound(
                f"the checkpoint {checkpoint.path} has batch {record.batch.batch_id} end at "
                f"{json.dumps(end)[:200]}, and the ledger elsewhere",
                next_step="name the checkpoint that the pipeline uses now, not a copy of it",
            )


def _copy(source: Folder, target: Folder, batch_id: int) -> dict[str, tuple[int, str]]:
    """Copy what belongs to the batch; FileNotFoundError: a file that is needed is gone."""
    names, needed = select(source.names(), batch_id)
    needed |= {f"offsets/{batch_id}", f"commits/{batch_id}", "metadata"}
    if batch_id:
        # Spark compares the two at its start
        needed.add(f"offsets/{batch_id - 1}")
    copied: dict[str, tuple[int, str]] = {}
    # RocksDB's full files first: they name the shared files that are needed.
    for name in sorted(names, key=lambda name: bool(_SHARED.fullmatch(name))):
        try:
            copied[name] = target.write(name, source.chunks(name))
        except FileNotFoundError:
            if name in needed:
                raise
            continue
        state = _STATE.fullmatch(name)
        if state and state[3] == "zip" and name in needed:
            needed.update(_shared(state[1], target.read(name)))
    missing = min(needed - set(copied), default="") or find_gap(copied, batch_id)
    missing = missing or _lacking_partition(target, copied)
    if missing:
        raise FileNotFoundError(missing)
    return copied


def _lacking_partition(checkpoint: Folder, names: Iterable[str]) -> str:
    """Return a partition of an operator of which there is no file at all; empty if all have."""
    every = set(names)
    for operator in stateful_operators(checkpoint, every):
        for partition in range(operator.partitions):
            folder = f"{operator.folder}/{partition}"
            if not any(each.startswith(f"{folder}/") for each in every):
                return folder
    return ""


def _shared(store: str, full: bytes) -> Iterator[str]:
    with zipfile.ZipFile(io.BytesIO(full)) as archive:
        for entry in archive.namelist():
            if entry.rpartition("/")[2] == "metadata":
                for name in _SHARED_NAME.findall(archive.read(entry)):
                    kind = "SSTs" if name.endswith(b".sst") else "logs"
                    yield f"{store}/{kind}/{name.decode()}"


def _document(savepoint: Savepoint) -> bytes:
    names = [name for name in Savepoint.__dataclass_fields__ if name != "path"]
    fields = {name: getattr(savepoint, name) for name in names}
    return json.dumps({"format": _FORMAT, **fields}, indent=1).encode()


def read(path: str) -> Savepoint:
    """Return the savepoint in a folder.

    :raises CheckpointCorrupted: its copy was not finished, or another Onceward wrote it.
    """
    folder = Folder(path)
    try:
        document = json.loads(folder.read(MANIFEST))
        if document.pop("format") != _FORMAT:
            raise KeyError("format")
        files = {
            name: (int(size), str(digest)) for name, (size, digest) in document["files"].items()
        }
        return Savepoint(path=folder.path, **{**document, "files": files})
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointCorrupted(
            f"{path} is no finished savepoint ({MANIFEST}: {type(error).__name__})",
            next_step="name one that `onceward savepoint list …` has",
        ) from error


def is_folder(path: str) -> bool:
    """Return whether there is such a folder; of one that is on no local disk that is not asked."""
    folder = Folder(path)
    return not folder.is_local or os.path.isdir(folder.path)


def saved(folder: str) -> list[Savepoint]:
    """Return the finished savepoints in a folder, oldest first."""
    found = []
    root = Folder(folder)
    for name in root.names(recursive=False):
        with suppress(CheckpointCorrupted):
            found.append(read(root.below(name).path))
    return sorted(found, key=lambda each: each.created_at_ms)


def unfinished(folder: str, finished: Iterable[Savepoint]) -> list[str]:
    """Return the paths of savepoints in a folder that are being written, or were left by one who
    died: all but the ``finished`` ones.
    """
    root, known = Folder(folder), {each.path for each in finished}
    names = (name for name in root.names(recursive=False) if _NAME.fullmatch(name))
    paths = (root.below(name).path for name in names)
    return [path for path in paths if path not in known]


def restore(savepoint: Savepoint, checkpoint: str, ledger: Ledger) -> None:
    """Make a checkpoint of the savepoint, with which the same pipeline goes on.

    :param checkpoint: a path at which nothing is yet.
    :raises CheckpointRewound: more is committed than the savepoint has: it would be written twice.
    :raises LedgerBehind: the ledger has less than the savepoint.
    :raises CheckpointCorrupted: a file of the savepoint is damaged.
    """
    newest = _newest(ledger, pipeline_id(savepoint.pipeline_id))
    have = (
        f"pipeline {savepoint.pipeline_id} has committed {newest.batch if newest else 'nothing'}"
    )
    if newest is None or newest.sequence < savepoint.sequence:
        raise LedgerBehind(
            f"{have}, and the savepoint {savepoint.path} is behind batch {savepoint.batch_id}",
            next_step="name the ledger that the pipeline used, or restore that first; without it, "
            "`onceward savepoint fork … --checkpoint … --pipeline-id …` makes another pipeline",
        )
    # The record of its last batch may have become readable after the savepoint was made
    behind = newest.batch.query_id == savepoint.query_id
    if not behind or newest.batch.batch_id > savepoint.batch_id:
        raise CheckpointRewound(
            f"{have}, and the savepoint {savepoint.path} is behind batch {savepoint.batch_id}: "
            "what was committed since would be written twice",
            next_step="start from the pipeline's own checkpoint; or, to go back on purpose, into "
            "other targets, `onceward savepoint fork … --checkpoint … --pipeline-id …`",
        )
    _unpack(savepoint, checkpoint, {})


def fork(savepoint: Savepoint, checkpoint: str, ledger: Ledger, new_id: str) -> None:
    """Make a checkpoint of the savepoint for another pipeline, which begins behind the same batch.

    :param new_id: its pipeline id, which the ledger does not know yet.
    :raises ConfigurationError: the id has a ledger, or is the old one.
    :raises CheckpointCorrupted: a file of the savepoint is damaged.
    """
    if new_id == savepoint.pipeline_id or _newest(ledger, pipeline_id(new_id)) is not None:
        raise ConfigurationError(
            f"pipeline {new_id} has batches in the ledger already",
            next_step="give the fork an id of its own",
        )
    metadata = json.dumps({"id": str(uuid.uuid4())}, separators=(",", ":")).encode()
    _unpack(savepoint, checkpoint, {"metadata": metadata})


def _newest(ledger: Ledger, pipeline: PipelineId) -> LedgerRecord | None:
    return next(iter(ledger.recent(pipeline, 1)), None)


def _unpack(savepoint: Savepoint, checkpoint: str, replaced: Mapping[str, bytes]) -> None:
    """Copy to a new checkpoint. On a local disk it gets its name when all is there; elsewhere, and
    in a folder that is there, ``metadata`` comes last, without which no pipeline of the ledger
    goes on. A fork, new to the ledger, must not be started there before this has ended well.
    """
    target = Folder(checkpoint)
    is_there = target.is_local and os.path.isdir(target.root)
    begun: list[str] = []
    if is_there:
        # Only root may look into lost+found
        entries = set(os.listdir(target.root)) - {_OF_A_VOLUME}
        begun = [name for name in entries if _BEGUN.fullmatch(name)]
        others = entries - set(begun)
    else:
        others = {*target.names(), *target.names(recursive=False)}
    if others:
        raise ConfigurationError(
            f"{checkpoint} is not empty", next_step="name a path at which nothing is yet"
        )
    for name in begun:
        target.below(name).remove()
    place, name = target, uuid.uuid4().hex[:8]
    if is_there:
        # It may be a volume, which has no other name
        place = target.below(f".{name}.tmp")
    elif target.is_local:
        place = Folder(f"{target.path}.{name}.tmp")
    _write(savepoint, place, target, replaced)
    if is_there:
        found = {name.partition("/")[0] for name in place.names()}
        for name in sorted(found, key=lambda name: (name == "metadata", name)):
            place.below(name).move_to(target.below(name))
        place.remove()
    elif target.is_local:
        place.move_to(target)


def _write(
    savepoint: Savepoint, place: Folder, target: Folder, replaced: Mapping[str, bytes]
) -> None:
    """Write its files to ``place``, which becomes the checkpoint ``target``."""
    source = Folder(savepoint.path).below(_CHECKPOINT)
    # Onceward 0.1 has copied checksums, too
    names = [
        name
        for name in savepoint.files
        if not (name.endswith(_CHECKSUM) or (replaced and name.startswith("onceward/")))
    ]
    for name in sorted(names, key=lambda name: (name == "metadata", name)):
        if name in replaced:
            place.write(name, [replaced[name]])
            continue
        written = None
        with suppress(FileNotFoundError):
            written = place.write(name, source.chunks(name))
        if written != savepoint.files[name]:
            if target.is_local:
                place.remove()
            raise CheckpointCorrupted(
                f"{name} in the savepoint {savepoint.path} is damaged or gone",
                next_step="name an older one that `onceward savepoint list …` has, and fork it",
            )
        if OPERATOR.fullmatch(name):
            place.write(name, [description_in(target, place.read(name))])
