"""``onceward.UpsertSink``: what the user builds and hands to ``foreachBatch``. Driver, and
executor tasks.

No error repeats the sink's ``url``: it may hold a password. Nothing is connected when the sink is
built.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qs, urlsplit

from pyspark.sql import DataFrame

from onceward.delivery import opensearch_writer, redis_writer
from onceward.delivery.chunks import Chunk
from onceward.delivery.opensearch_writer import OpenSearchWriter
from onceward.delivery.redis_writer import PLACES, TOMBSTONES, RedisWriter
from onceward.delivery.row_files import RowFileWriter
from onceward.delivery.sink import WriteAheadSink
from onceward.delivery.upserts import Upsert, UpsertColumns, UpsertWriter
from onceward.engine.ledger.admission import Resume, SkippedBatches
from onceward.engine.ledger.chain import Ledger
from onceward.engine.policy import Checkpointing, names, whole_number
from onceward.engine.target import SinkPlace, Write
from onceward.engine.task_writer import Task, TaskWriter
from onceward.errors import ConfigurationError, ContradictoryOptions

_REDIS = ("redis://", "rediss://", "unix://")
_OPENSEARCH = ("http://", "https://")
_OTHER_BYTES = {"charset", "decode_responses", "encoding", "encoding_errors", "errors"}
"""Words in a URL, of Redis' client library, by which it writes or reads other bytes."""
_NOT_IN_AN_INDEX = frozenset('\\/*?"<>| ,#:')
_INDEX_BYTES = 255
_MOST_TOMBSTONE_S = 3_155_760_000  # a century


def writer_at(
    url: Any, *, prefix: Any, index: Any, tombstone_s: int, by_column: bool, deletes: bool
) -> UpsertWriter:
    """Return the writer for an address.

    :raises ConfigurationError: it is none, or what it needs is missing or wrong.
    """
    if isinstance(url, str) and url.startswith(_REDIS):
        if index is not None:
            raise ContradictoryOptions(
                "index= is for OpenSearch, and url= leads to Redis",
                next_step="leave it out, and pass prefix=",
            )
        return _redis(url, prefix, tombstone_s)
    if isinstance(url, str) and url.startswith(_OPENSEARCH):
        if prefix is not None:
            raise ContradictoryOptions(
                "prefix= is for keys in Redis, and url= leads to OpenSearch",
                next_step="leave it out, and pass index=",
            )
        return _opensearch(url, index, tombstone_s if deletes else None, by_column)
    raise ConfigurationError(
        "UpsertSink(url=…) is no address of a Redis or OpenSearch server",
        next_step="pass redis://user:password@host:port/database, "
        "https://user:password@host:port, or write= for another target",
    )


def _redis(url: str, prefix: Any, tombstone_s: int) -> RedisWriter:
    is_apart = isinstance(prefix, str) and not (
        # Also where it is empty: keys below one could be those of the other
        any(own.startswith(prefix) or prefix.startswith(own) for own in (TOMBSTONES, PLACES))
    )
    if not is_apart:
        raise ConfigurationError(
            f"prefix={prefix!r} does not set this sink's keys apart",
            next_step='pass what all of them begin with, such as prefix="customer:"',
        )
    library = redis_writer.client_library()
    try:
        # What the client does not take it says when it connects: this does not yet
        library.Redis.from_url(url).connection_pool.make_connection()
    except (ValueError, TypeError, library.exceptions.RedisError):
        raise _unreadable("; behind ? there may be what redis-py takes") from None
    if words := sorted(_OTHER_BYTES & set(parse_qs(urlsplit(url).query, keep_blank_values=True))):
        raise ConfigurationError(
            f"UpsertSink(url=…) has {', '.join(words)} in it: keys, values and versions would be "
            "others than the sink has said",
            next_step="leave that out of the URL: texts are written in UTF-8",
        )
    return RedisWriter(url, prefix, tombstone_s)


def _opensearch(
    url: str, index: Any, tombstone_s: int | None, by_column: bool
) -> OpenSearchWriter:
    if not isinstance(index, str) or not _names_one_index(index):
        raise ConfigurationError(
            f"index={index!r} is no name of an index",
            next_step='pass one in small letters, such as index="customers", or that of an alias',
        )
    try:
        at = urlsplit(url)
        is_address = bool(at.hostname) and at.port != 0
    except ValueError:
        is_address = False
    if not is_address:
        raise _unreadable()
    if at.query or at.fragment:
        raise ConfigurationError(
            "UpsertSink(url=…) has ? or # in it, and an address of OpenSearch has no options",
            next_step="leave them out; in a password write them as %3F and %23",
        )
    opensearch_writer.client_library()
    return OpenSearchWriter(url, index, by_column, tombstone_s)


def _place(url: str | None, prefix: str | None, index: str | None, write: object) -> SinkPlace:
    if url is None:
        return SinkPlace(("a function", write))
    at = urlsplit(url)
    if index is not None:
        port = at.port or (443 if at.scheme == "https" else 80)
        return SinkPlace(("opensearch", at.hostname, port, at.path.rstrip("/"), index))
    [number] = parse_qs(at.query).get("db", [""])[:1]
    if at.scheme == "unix":
        return SinkPlace(("redis", at.path, number or "0"), str(prefix))
    number = number or at.path.strip("/") or "0"
    return SinkPlace(("redis", at.hostname or "localhost", at.port or 6379, number), str(prefix))


def _names_one_index(name: str) -> bool:
    """Return whether it names one index, by the server's rules (OpenSearch, *Create index*, "Index
    naming restrictions")."""
    return (
        bool(name)
        and name.isprintable()
        and name == name.lower()
        and not name.startswith(("_", "-", "+"))
        and name not in (".", "..")
        and not _NOT_IN_AN_INDEX & set(name)
        and len(name.encode()) <= _INDEX_BYTES
    )


def _unreadable(options: str = "") -> ConfigurationError:
    return ConfigurationError(
        "UpsertSink(url=…) cannot be read as an address",
        next_step=f"write special characters as %25 and the like{options}",
    )


WriteUpserts = Callable[[list[Upsert]], object]


class UpsertSink(WriteAheadSink):
    """Writes each row under its key, in Redis, in OpenSearch or by a function of yours, and never
    an older one over a newer one.

    A :class:`onceward.WriteAheadSink`: rows are stored, the batch is decided, and then they are
    written, chunk by chunk. Nothing that is not decided is ever written. What is written again
    after a crash, or late by an older copy of the pipeline, carries the version that it had, and
    changes nothing.

    Guarantee: after any crash each key has its row of the newest decided batch that has one, or
    none if that one deletes it; of several rows of one key in a batch the last, by ``version`` or
    else by their order. Readers see a batch key by key while it is written, and never a part of a
    row.

    :param key: the column, or columns, by which rows are the same: strings or whole numbers, not
        null.
    :param url: ``redis://user:password@host:port/database``, ``rediss://…`` for TLS: a server that
        is no cluster. Needs ``onceward[redis]``. Each row is a hash ``<prefix><key>``, a field a
        column, and ``_version``. Or ``https://user:password@host:port`` (``http://…``) of
        OpenSearch or Elasticsearch, which needs ``onceward[opensearch]``: each row is a document
        whose ``_id`` is the key, with an external version.
    :param prefix: of the keys in Redis, such as ``"customer:"``.
    :param index: in OpenSearch: its name, or that of an alias.
    :param write: instead of ``url``: called as ``deliver`` of a write-ahead sink, with a list of
        ``ow.delivery.Upsert``, one a key. It owes what Redis does here: it keeps the mark of each
        write, also of what is deleted, and writes what :meth:`ow.delivery.Upsert.replaces` says,
        both in one step.
    :param version: a column of whole numbers from 0, or timestamps from 1970, that grows with each
        change of a key; the larger one stays, whatever comes first. None: what is decided later is
        newer, as it is of equal ones.
    :param op_column: a column that says what a row is: ``c``, ``r``, ``u``, ``insert``,
        ``update``, ``upsert``; or ``d``, ``delete``. It is not written. None: nothing is deleted.
    :param tombstone_s: how long the version of what is deleted is kept, in seconds. A write that
        comes later than that from an older copy would be taken for a new row. In OpenSearch it
        becomes the index's ``gc_deletes``, where that is less, and a restart of the server may
        forget versions sooner.

    ``key``, ``version``, ``op_column``, ``prefix`` and ``index`` are in the ledger with each
    batch: a batch that is decided is not written by others. The other parameters, and what is
    raised, are those of :class:`onceward.WriteAheadSink`.
    """

    def __init__(
        self,
        *,
        key: str | Sequence[str],
        pipeline_id: str,
        ledger: Ledger,
        store: str | os.PathLike[str],
        url: str | None = None,
        prefix: str | None = None,
        index: str | None = None,
        write: WriteUpserts | None = None,
        version: str | None = None,
        op_column: str | None = None,
        tombstone_s: int = 604_800,
        chunk_rows: int = 1_000,
        resume: Resume = "checkpoint",
        skipped_batches: SkippedBatches = "refuse",
        batch_attempts: int = 3,
        batch_timeout_s: float | None = None,
        checkpointing: Checkpointing | None = None,
        commit_timeout_s: float = 60.0,
    ) -> None:
        whole_number("tombstone_s", tombstone_s, 1, _MOST_TOMBSTONE_S)
        if (url is None) == (write is None):
            raise ContradictoryOptions(
                "an upsert sink writes to one place", next_step="pass either url= or write="
            )
        if write is None:
            write = writer_at(
                url, prefix=prefix, index=index, tombstone_s=tombstone_s,
                by_column=version is not None,
                deletes=op_column is not None,
            )  # fmt: skip
        elif prefix is not None:
            raise ContradictoryOptions(
                "prefix= is for keys in Redis", next_step="leave it out, or pass url="
            )
        elif index is not None:
            raise ContradictoryOptions(
                "index= is for OpenSearch", next_step="leave it out, or pass url="
            )
        if not callable(write):
            raise ConfigurationError(
                f"write={write!r} cannot be called",
                next_step="pass a function that takes a list of ow.delivery.Upsert",
            )
        columns = UpsertColumns(
            pipeline_id, names("key", () if key is None else key), version, op_column
        )
        if isinstance(write, UpsertWriter):
            limits = ("reserved", "key_bytes", "never_taken")
            columns = replace(columns, **{name: getattr(write, name) for name in limits})
        super().__init__(
            deliver=_UpsertChunk(columns, write),
            pipeline_id=pipeline_id,
            ledger=ledger,
            store=store,
            chunk_rows=chunk_rows,
            resume=resume,
            skipped_batches=skipped_batches,
            batch_attempts=batch_attempts,
            batch_timeout_s=batch_timeout_s,
            checkpointing=checkpointing,
            commit_timeout_s=commit_timeout_s,
        )
        self.columns = columns
        self._prefix, self._index, self._write_to = prefix, index, write
        self.writes_to = _place(url, prefix, index, write)

    def begin(self, task: Task) -> TaskWriter:
        """Open a file for the task's rows, and refuse before the decision what can never be
        written. Runs in the task."""
        return RowFileWriter(self.folder, task, self.columns.storable)

    def _what_rows_become(self) -> dict[str, Any]:
        columns = self.columns
        place = {"prefix": self._prefix} if self._index is None else {"index": self._index}
        return {
            "key": list(columns.key),
            "version": columns.version,
            "op_column": columns.op,
            **place,
        }

    def _written_to(self) -> Mapping[str, Any] | None:
        return self._write_to.place() if isinstance(self._write_to, UpsertWriter) else None

    def _check_place(self, then: Mapping[str, Any] | None) -> None:
        if isinstance(self._write_to, UpsertWriter):
            self._write_to.check(then)

    def _checked(self, frame: DataFrame, where: str | None) -> Write:
        write = super()._checked(frame, where)
        self.columns.check(frame.schema)
        return write

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "columns": self.columns}


@dataclass(frozen=True)
class _UpsertChunk:
    """A ``deliver``. Equal for sinks that write the same to the same place."""

    columns: UpsertColumns
    write: WriteUpserts

    def __call__(self, chunk: Chunk) -> object:
        return self.write(self.columns.upserts(chunk))

    def close(self) -> None:
        if isinstance(self.write, UpsertWriter):
            self.write.close()
