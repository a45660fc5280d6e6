"""What a chunk means for keys and values: which keys get which rows and versions. Values only.

A version is a text that sorts: of two writes of one key the one with the larger version is the
later one, and a target that never lets a smaller one replace a larger one cannot be taken back by
a write that comes late. It is made of the value of the user's column, if there is one, and of the
row's place in the ledger (the batch's sequence, the row's number in the batch), which is the same
at every try and larger for all that is decided later.

Two things follow it; all three are the *mark* of a write, which the target keeps with the row:

* the attempt that was decided. At one sequence a ledger decides one attempt: another one at the
  same place was decided by another ledger, or by this one before it was lost, and nobody knows
  which of the two is the later;
* what the version counts by: the pipeline, the user's column and its kind. Others do not compare.

Where the user's values differ, they alone decide. Where they do not, the places do, and then a
place behind our own is one that the ledger cannot have given out: a chunk is delivered before the
next batch is decided. (An older copy of the pipeline finds such places, too, when it comes late.
It is told that it is fenced.)

The interface between :class:`onceward.UpsertSink` and its writers, ``redis_writer`` and
``opensearch_writer``, and how both write a value of a row, as text or as JSON: the table in
docs/how-to/upsert.md.
"""

from __future__ import annotations

import base64
import datetime
import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, ClassVar, NamedTuple, TypeVar
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
    VariantType,
)

from onceward import patience
from onceward.delivery.chunks import Chunk
from onceward.engine.policy import DELETES, WRITES, bare_deletes
from onceward.errors import DeliveryRefused, InvalidColumn, RowRefused, summary
from onceward.spark.types import contains_type

USERS_LENGTH = 19
"""Of the part of a version that is the user's."""
PLACE_LENGTH = USERS_LENGTH + 1 + 12
"""Of this part and the batch's sequence."""
VERSION_LENGTH = PLACE_LENGTH + 1 + 12

VERSION_FIELD = "_version"
"""Where Redis keeps the mark; and what OpenSearch calls its version."""

_MARK = re.compile(
    rf"(?P<version>[0-9.]{{{VERSION_LENGTH}}}) (?P<attempt>\S+) (?P<counted_by>.+)", re.DOTALL
)
_INTEGERS = (ByteType, ShortType, IntegerType, LongType)


class Upsert(NamedTuple):
    """One row to write under its key, if it :meth:`replaces` what the target has.

    ``row`` is None where nothing is to be under ``key`` any more. ``version`` sorts as a text;
    ``attempt`` names the attempt that was decided, ``counted_by`` says what the version counts:
    two with different ones cannot be compared. :attr:`mark` is all three.
    """

    key: str
    version: str
    attempt: str
    counted_by: str
    row: Mapping[str, Any] | None

    @property
    def mark(self) -> str:
        """For the target to keep under the key, with the row or in its place."""
        return f"{self.version} {self.attempt} {self.counted_by}"

    def replaces(self, stored: str | None) -> bool:
        """Return whether to write it where the target has ``stored``, the mark of the last write.

        True also for the very same write, which changes nothing but what a crash has left of it.

        :param stored: None: it has none.
        :raises DeliveryRefused: the two cannot be compared, or the ledger is not the one that has
            given out ``stored``.
        """
        if stored is None:
            return True
        found = _MARK.fullmatch(stored)
        if found is None:
            raise refused(
                self.key, f"its version, {stored!r}, is none that this sink has written", MOVE
            )
        version, attempt = found["version"], found["attempt"]
        if found["counted_by"] != self.counted_by:
            raise refused(
                self.key,
                "it was written with versions that count by something else "
                f"({found['counted_by']})",
                f"start the pipeline that has written it, as it was; and for this one {MOVE}",
            )
        if version[:USERS_LENGTH] != self.version[:USERS_LENGTH]:
            return version < self.version
        place, ours = version[:PLACE_LENGTH], self.version[:PLACE_LENGTH]
        if place > ours:
            raise refused(
                self.key,
                f"it has a newer version ({version}) than the ledger can have given out",
                RESTORE,
            )
        if place == ours and attempt != self.attempt:
            raise refused(
                self.key,
                f"another batch ({attempt}) has written it at this one's place in the ledger "
                f"({self.attempt})",
                RESTORE,
            )
        return version <= self.version


def refused(key: str, why: str, next_step: str) -> DeliveryRefused:
    """Return the error for the row of ``key``, which can never be written as it is."""
    return DeliveryRefused(
        f"key {key!r} cannot be written: {why}", next_step=next_step, details={"key": key}
    )


MOVE = (
    "delete what is stored under such keys, and start the query again: it begins with this chunk; "
    "or begin anew under another pipeline_id, in a place of its own (in Redis: prefix=; in "
    "OpenSearch: index=)"
)
RESTORE = (
    f"restore the ledger, if it was lost, replaced, or restored from an older copy; or {MOVE}"
)


class NeverTaken(NamedTuple):
    """What a target refuses whatever happens. Each returns what that is; None: nothing."""

    in_frame: Callable[[StructType], str | None]
    in_column: Callable[[pa.Array], str | None]
    """Called in tasks."""


@dataclass(frozen=True)
class UpsertColumns:
    """Which columns say what: of a frame, of the rows of a task, and of a chunk's."""

    pipeline: str
    key: tuple[str, ...]
    version: str | None
    op: str | None
    reserved: frozenset[str] = frozenset({VERSION_FIELD})
    """What no column may be called."""
    key_bytes: int | None = None
    """As many as the target takes, and then none that is empty. None: any."""
    never_taken: NeverTaken | None = None

    def check(self, schema: StructType) -> None:
        """Check the types of a frame's columns.

        :raises InvalidColumn: it lacks them, or they cannot be used.
        """
        for name in self.key:
            self._must_be(schema, "key", name, (*_INTEGERS, StringType))
        if self.version is not None:
            self._must_be(schema, "version", self.version, (*_INTEGERS, TimestampType))
        if self.op is not None:
            self._must_be(schema, "op_column", self.op, (StringType,))
        for field in schema.fields:
            if contains_type(field.dataType, VariantType):
                raise InvalidColumn(
                    f"column {field.name!r} has a VARIANT, of which only its bytes would be "
                    "written",
                    next_step=f"make a text of it: to_json(`{field.name}`)",
                )
        if self.never_taken is not None and (why := self.never_taken.in_frame(schema)):
            raise InvalidColumn(f"the frame has {why}", next_step="give it another name")
        if own := sorted(self.reserved & set(schema.names)):
            raise InvalidColumn(
                f"the frame has a column {own[0]!r}, which is the sink's own, or the server's",
                next_step="give it another name",
            )

    def _must_be(
        self, schema: StructType, setting: str, name: str, kinds: tuple[type[DataType], ...]
    ) -> None:
        found = next((field for field in schema.fields if field.name == name), None)
        types = ", ".join(sorted({kind.typeName() for kind in kinds}))
        if found is None or not isinstance(found.dataType, kinds):
            has = (
                "no such column"
                if found is None
                else f"it of type {found.dataType.simpleString()}"
            )
            raise InvalidColumn(
                f"{setting}= names column {name!r}, and the frame has {has}",
                next_step=f"add it, or cast it to one of {types}",
            )

    def storable(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows as a task stores them, of deletes no more than is read of them. Before the
        decision: later they could neither be written nor left out.

        :raises RowRefused: of these rows one has no key or version, an operation that is none, or
            a value that cannot be taken out of Arrow.
        """
        for name in self.key:
            if rows.column(name).null_count:
                raise _row_refused(
                    f"a row has no value in column {name!r}, which is part of its key"
                )
        if self.key_bytes is not None:
            self._must_fit(rows, self.key_bytes)
        if self.version is not None:
            counted = _counted(rows.column(self.version))
            if counted.null_count or pc.any(pc.less(counted, 0)).as_py():
                raise _row_refused(
                    f"a row has none or a negative value in column {self.version!r}, its version"
                )
        if self.op is not None:
            is_operation = pc.is_in(rows.column(self.op), pa.array([*WRITES, *DELETES]))
            if not pc.all(is_operation).as_py():
                raise _row_refused(
                    f"a row has an operation in column {self.op!r} that is none of "
                    f"{', '.join([*WRITES, *DELETES])}"
                )
        rows = bare_deletes(rows, self.op, {*self.key, self.version, self.op})
        for name, column in zip(rows.schema.names, rows.columns, strict=True):
            _must_come_out(name, column)
            if self.never_taken is not None and (why := self.never_taken.in_column(column)):
                raise _row_refused(f"a row has in column {name!r} {why}")
        return rows

    def _must_fit(self, rows: pa.RecordBatch, key_bytes: int) -> None:
        for values in zip(
            *(_must_come_out(name, rows.column(name)) for name in self.key), strict=True
        ):
            key = self.joined_key(values)
            if not 0 < len(key.encode()) <= key_bytes:
                raise _row_refused(
                    f"a row has a key of 0, or more than {key_bytes}, bytes: {key[:100]!r}"
                )

    def upserts(self, chunk: Chunk) -> list[Upsert]:
        """Return the last write of each key in ``chunk``, in the order of the rows."""
        counted, by = None, self.pipeline
        if self.version is not None:
            column = chunk.rows.column(self.version)
            counted = _counted(column).to_pylist()
            # No pipeline's name has a space. A column may hold numbers now, timestamps later.
            by += (
                f" {'timestamp' if pa.types.is_timestamp(column.type) else 'integer'} "
                f"{self.version}"
            )
        last: dict[str, Upsert] = {}
        for number, row in enumerate(row_dicts(chunk.rows)):
            users = 0 if counted is None else counted[number]
            version = f"{users:019d}.{chunk.sequence:012d}.{chunk.first_row + number:012d}"
            key = self.joined_key([row[name] for name in self.key])
            if key not in last or last[key].version < version:
                deleted = self.op is not None and row.pop(self.op) in DELETES
                last.pop(key, None)
                last[key] = Upsert(key, version, chunk.attempt, by, None if deleted else row)
        return list(last.values())

    def joined_key(self, values: Sequence[Any]) -> str:
        """Return one value as it is; several joined by ``:``, with ``%`` as in a URL: different
        values never come to one key."""
        texts = [str(value) for value in values]
        return texts[0] if len(texts) == 1 else ":".join(quote(text, safe="") for text in texts)


def row_dicts(rows: pa.RecordBatch) -> list[dict[str, Any]]:
    """Return rows as dicts by the names of columns; maps with texts as keys are dicts, too."""
    columns = [_values(column) for column in rows.columns]
    return [
        dict(zip(rows.schema.names, values, strict=True)) for values in zip(*columns, strict=True)
    ]


def _values(column: pa.Array) -> list[Any]:
    found: list[Any] = column.to_pylist(
        maps_as_pydicts="strict" if _has_texts_for_keys(column.type) else None
    )
    return found


def _must_come_out(name: str, column: pa.Array) -> list[Any]:
    """Convert all values of a column, to see that it can be done: 0.3 µs a value, in a task."""
    try:
        return _values(column)
    except (ArithmeticError, LookupError, NotImplementedError, TypeError, ValueError) as error:
        raise RowRefused(
            f"a row has a value in column {name!r} that Python cannot hold: {summary(error)}",
            next_step="mend or filter such rows in the query, and start it again; nothing of the "
            "batch was written. Texts are UTF-8, years 1 to 9999, the keys of a map different "
            "ones, and spark.sql.session.timeZone a name such as UTC or Europe/Berlin",
        ) from error


def _has_texts_for_keys(kind: pa.DataType) -> bool:
    """Return whether all maps within ``kind`` have texts as keys; others are lists of pairs."""
    if pa.types.is_map(kind) and not (
        pa.types.is_string(kind.key_type) or pa.types.is_large_string(kind.key_type)
    ):
        return False
    return all(_has_texts_for_keys(kind.field(number).type) for number in range(kind.num_fields))


def _counted(values: pa.Array) -> pa.Array:
    """Convert values to whole numbers: a timestamp to its microseconds since the epoch."""
    if pa.types.is_timestamp(values.type):
        values = values.cast(pa.timestamp("us", values.type.tz))
    return values.cast(pa.int64())


def _row_refused(what: str) -> RowRefused:
    return RowRefused(
        what,
        next_step="mend or filter such rows in the query, and start it again; nothing of the "
        "batch was written",
    )


T = TypeVar("T")


def text(value: Any) -> str | bytes:
    """Convert a value for a field of a hash in Redis."""
    if isinstance(value, (str, bytes)):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, (list, dict)):
        return as_json(value)
    return str(value)


def as_json(value: Any) -> str:
    """Convert a value to JSON on one line, without spaces."""
    return json.dumps(_within(value), ensure_ascii=False, separators=(",", ":"))


def _within(value: Any) -> Any:
    """Convert a nested value to what JSON has.

    Bytes become Base64, as in Spark's ``to_json``, and all else its text. JSON's numbers are read
    as doubles by many, in which a decimal is another one.
    """
    if isinstance(value, dict):
        return {name: _within(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_within(part) for part in value]
    if (
        value is None
        or isinstance(value, (bool, int))
        or (isinstance(value, float) and math.isfinite(value))
    ):
        return value
    key = text(value)
    return base64.b64encode(key).decode() if isinstance(key, bytes) else key


def place_called(name: str, then: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return ``then``, a writer's place of an earlier time; None: not known, or the sink was
    pointed at one of another name since."""
    return then if then is not None and then.get("called") == name else None


class UpsertWriter(ABC):
    """Called in the driver with what is to be written, as often as it takes; keeps no rows."""

    reserved: ClassVar[frozenset[str]]
    """Names of columns that no row may have."""
    key_bytes: ClassVar[int | None] = None
    """What a key may have at most, in UTF-8."""
    never_taken: ClassVar[NeverTaken | None] = None
    """What it refuses whatever happens."""
    answer_s: ClassVar[float] = 120.0
    """How long a server may take for a whole answer, beside what is sent to it."""
    slowest_bytes_s: ClassVar[int] = 50_000
    """What a line carries in a second at least."""

    @abstractmethod
    def __call__(self, upserts: Iterable[Upsert]) -> None:
        """Write upserts.

        :raises DeliveryRefused: keys that cannot be written, ever; the others are written.

        :raises Exception: the server does not answer, or not now; some may be written.
        """

    @abstractmethod
    def check(self, then: Mapping[str, Any] | None) -> None:
        """Look, before a batch is decided, whether the place is one to which a key can be written
        for ever, and has what was written to it.

        :param then: what :meth:`place` was when the pipeline last wrote to it; None: not known.
        :raises ConfigurationError: it is not.
        :raises PreparedDataLost: it is another one than then. The writer says so before it writes,
            too, where the place could not be asked now.
        :raises Exception: it cannot be asked now.
        """

    @abstractmethod
    def place(self) -> dict[str, Any] | None:
        """Return as JSON what tells the place from any other of its name, as far as known."""

    def _in_time(self, ask: Callable[[], T], sent_bytes: int = 0) -> T:
        """Return what a server answers. The time limit of its client is one for each piece, and a
        proxy that sends a byte now and then keeps to that for hours.

        :raises TimeoutError: there is no whole answer in time. The connection is left to it.
        """
        seconds = self.answer_s + sent_bytes // self.slowest_bytes_s
        late = TimeoutError(f"no whole answer within {seconds:g} s")
        return patience.in_time(ask, seconds, "onceward-upserts", late=late, abandon=self._abandon)

    @abstractmethod
    def _abandon(self) -> None:
        """Forget connections without a word to them; the next call opens others."""

    @abstractmethod
    def close(self) -> None:
        """Give back connections; the next call opens them again."""
