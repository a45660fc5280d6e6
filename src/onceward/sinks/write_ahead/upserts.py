"""What a chunk means for a target of keys and values: which keys get which rows, each with a version. Values only.

A version is a text that sorts: of two writes of one key the one with the larger version is the later one, and a target
that never lets a smaller one replace a larger one cannot be taken back by a write that comes late. It is made of the
value of the user's column, if there is one, and of the row's place in the ledger (the batch's sequence, the row's
number in the batch), which is the same at every try and larger for all that is decided later. What it counts by follows
behind it: two versions that count by different things cannot be compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ByteType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from onceward.engine.change_words import DELETES, WRITES
from onceward.engine.task_writer import TaskWriter
from onceward.errors import BadColumn, RowRefused
from onceward.sinks.write_ahead.chunks import Chunk

VERSION_LENGTH = 19 + 1 + 12 + 1 + 12
"""Of the part of a version that is compared."""

_INTEGERS = (ByteType, ShortType, IntegerType, LongType)


class Upsert(NamedTuple):
    """``row`` under ``key``, or nothing any more (None), unless the target knows a larger ``version`` of the key.

    ``version`` sorts as a text, ``counted_by`` says what it counts: two with different ones cannot be compared.
    """

    key: str
    version: str
    counted_by: str
    row: Mapping[str, Any] | None


@dataclass(frozen=True)
class UpsertColumns:
    """Which columns say what: of a frame, of the rows of a task, and of a chunk's."""

    pipeline: str
    key: tuple[str, ...]
    version: str | None
    op: str | None

    def check(self, schema: StructType) -> None:
        """:raises BadColumn: a frame with ``schema`` has not got them, in types that can be used."""
        for name in self.key:
            self._must_be(schema, "key", name, (*_INTEGERS, StringType))
        if self.version is not None:
            self._must_be(schema, "version", self.version, (*_INTEGERS, TimestampType))
        if self.op is not None:
            self._must_be(schema, "op_column", self.op, (StringType,))

    def _must_be(self, schema: StructType, setting: str, name: str, kinds: tuple[type[DataType], ...]) -> None:
        found = next((field for field in schema.fields if field.name == name), None)
        wanted = ", ".join(sorted({kind.typeName() for kind in kinds}))
        if found is None or not isinstance(found.dataType, kinds):
            has = "no such column" if found is None else f"it of type {found.dataType.simpleString()}"
            raise BadColumn(
                f"{setting}= names column {name!r}, and the frame has {has}",
                next_step=f"add it, or cast it to one of {wanted}",
            )

    def refuse(self, rows: pa.RecordBatch) -> None:
        """In a task, before the decision: later they could neither be written nor left out.

        :raises RowRefused: of these rows one has no key or version, or an operation that is none.
        """
        for name in self.key:
            if rows.column(name).null_count:
                raise _row_refused(f"a row has no value in column {name!r}, which is part of its key")
        if self.version is not None:
            counted = _counted(rows.column(self.version))
            if counted.null_count or pc.any(pc.less(counted, 0)).as_py():
                raise _row_refused(f"a row has none or a negative value in column {self.version!r}, its version")
        if self.op is not None:
            known = pc.is_in(rows.column(self.op), pa.array([*WRITES, *DELETES]))
            if not pc.all(known).as_py():
                raise _row_refused(
                    f"a row has an operation in column {self.op!r} that is none of {', '.join([*WRITES, *DELETES])}"
                )

    def upserts(self, chunk: Chunk) -> list[Upsert]:
        """Of each key in ``chunk`` the last write, in the order of the rows."""
        counted = None if self.version is None else _counted(chunk.rows.column(self.version)).to_pylist()
        by = f"c.{self.version}" if self.version is not None else f"s.{self.pipeline}"
        last: dict[str, Upsert] = {}
        for number, row in enumerate(chunk.to_pylist()):
            users = 0 if counted is None else counted[number]
            version = f"{users:019d}.{chunk.sequence:012d}.{chunk.first_row + number:012d}"
            key = self.key_of([row[name] for name in self.key])
            if key not in last or last[key].version < version:
                deleted = self.op is not None and row.pop(self.op) in DELETES
                last.pop(key, None)
                last[key] = Upsert(key, version, by, None if deleted else row)
        return list(last.values())

    def key_of(self, values: Sequence[Any]) -> str:
        """One value as it is; several joined by ``:``, in which they and ``%`` are written as in a URL: no two rows
        with different values come to one key."""
        texts = [str(value) for value in values]
        return texts[0] if len(texts) == 1 else ":".join(quote(text, safe="") for text in texts)


@dataclass
class CheckedRows(TaskWriter):
    """In a task: hands on to ``writer`` what can be written."""

    columns: UpsertColumns
    writer: TaskWriter

    def write(self, rows: pa.RecordBatch) -> None:
        self.columns.refuse(rows)
        self.writer.write(rows)

    def pre_commit(self) -> Any:
        return self.writer.pre_commit()

    def close(self) -> None:
        self.writer.close()


def _counted(values: pa.Array) -> pa.Array:
    """As whole numbers: a timestamp's microseconds since the epoch."""
    if pa.types.is_timestamp(values.type):
        values = values.cast(pa.timestamp("us", values.type.tz))
    return values.cast(pa.int64())


def _row_refused(what: str) -> RowRefused:
    return RowRefused(
        what,
        next_step="mend or filter such rows in the query, and start it again; nothing of the batch was written",
    )
