"""What Spark is told: one expression that reads a framed record, and one verdict on what came out.
Driver only.

Called by :mod:`onceward.formats.avro.step`. For each schema id that is known when the query is
defined the plan has one branch: the record's first five bytes are compared with what such a record
begins with, and Spark's ``from_avro`` reads the whole value, with sixteen random bytes appended to
it, by a schema of three fields: the five bytes, the record, the sixteen bytes; or, where that is
cheaper, by the record's own fields with ours beside them. Ours come out as they went in if, and
only if, the record ended where its bytes end: cut off, it takes some of them for its own, and then
some are missing; too long, something else is read in their place. They are drawn anew for each
plan, so that nobody can write a record that holds them.

``from_avro`` is costly and must be evaluated once a record:
:func:`onceward.formats.validation.with_one`.
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Callable, Mapping
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  as everybody writes it
from pyspark.sql.avro.functions import from_avro
from pyspark.sql.types import DataType, DoubleType, StructField, StructType

from onceward.formats.avro.memory import Schemas
from onceward.formats.avro.resolution import with_one_name
from onceward.formats.avro.schemas import (
    FIRST,
    GUID_PREFIX_BYTES,
    MAGIC,
    PREFIX_BYTES,
    SECOND,
    VALUE,
    adjacent_fields,
    around_reader,
    around_writer,
    parse_json,
    prefix,
    same_with_bytes,
    texts_as_bytes,
)
from onceward.formats.avro.values import (
    narrow,
    narrow_enough,
    texts_are_valid,
    why_not_narrow,
    widen,
)
from onceward.formats.validation import (
    DOES_NOT_FIT,
    error_text,
    in_place,
    places,
    poison,
    with_one,
)
from onceward.spark.types import column_named, quoted

BAD_FRAMING, UNKNOWN_SCHEMA_ID = "BadFraming", "UnknownSchemaId"
DECODED = "onceward_decoded"
_CHECKED = "onceward_checked"
_NO_GUID = (
    ", which is not read: let producers write the schema's id before the record (Confluent's "
    "PrefixSchemaIdSerializer)"
)
# Whatever cannot be read gives nulls, and no error; a day is what its number says, whatever
# calendar spark.sql.avro.datetimeRebaseModeInRead has for old files
_MODE = {"mode": "PERMISSIVE", "datetimeRebaseMode": "CORRECTED"}


Whole = Callable[[Column, DataType], Column]
"""Why fields that fit each by itself do not so together, null where they do: from the column that
has a record's fields, and its type, texts as bytes.
"""


class AvroPlan:
    """Fixed when it is made.

    :param tag: what the errors that it raises name.
    :param column: where the framed records are; binary.
    :param schemas: the ids that it reads; :param reader: as which schema; :param kind: as which
        type of Spark.
    :param unfit: of ids that ``reader`` cannot be read from, or not always: what is wrong with
        them, for messages.
    :param whole: asked of each record.
    :param id_header: the header in which a record without a frame has its schema; None: rows have
        no headers.
    """

    def __init__(
        self,
        tag: str,
        column: str,
        schemas: Schemas,
        reader: str,
        kind: DataType,
        unfit: Mapping[int, str],
        whole: Whole | None = None,
        id_header: str | None = None,
    ) -> None:
        self._tag = tag
        self._id_header = id_header
        self._value = column_named(column)
        self._column = column
        self._schemas = schemas
        self._kind = kind
        self._reader, self._texts = texts_as_bytes(json.dumps(widen(parse_json(reader))))
        # Nothing is read, and the column is a null of its type
        if not schemas.texts:
            self._texts = frozenset()
        self._beside = (
            adjacent_fields(self._reader, schemas.texts.values()) if self._texts else None
        )
        ours = (self._beside.first, self._beside.second) if self._beside else (FIRST, SECOND)
        self._first, self._second = (F.col(f"{DECODED}.{name}") for name in ours)
        # Once: a batch that has dead letters is planned anew
        self._pairs = {number: self._pair(text) for number, text in schemas.texts.items()}
        self._unfit = unfit
        self._whole = whole
        self._mark, self._end = _new_mark()

    @property
    def ids(self) -> list[int]:
        """The ids that the registry has said something of."""
        return sorted({*self._schemas.texts, *self._schemas.unreadable})

    @property
    def missing(self) -> frozenset[int]:
        """The ids whose records are invalid, because the registry does not have them."""
        return self._schemas.missing

    def good(self, rows: DataFrame) -> DataFrame:
        read = self._decode(rows)
        return self._with_value(rows, read.where(self._is_good(read)), DECODED)

    def good_or_raise(self, rows: DataFrame) -> DataFrame:
        read = self._decode(rows)
        invalid = poison(self._tag, read, self._class(), self._message(read), self._long_id())
        # In a second generator, not in a filter: Spark infers `IS NOT NULL` from the user's own
        # condition (InferFiltersFromConstraints), combines it with our filter and evaluates it
        # first, so that `value.id > 5` would drop an invalid record before it is validated.
        # Predicates do not pass a generator, which also keeps `from_avro` from being copied and
        # evaluated twice.
        checked = F.when(self._is_good(read), F.col(DECODED)).otherwise(F.raise_error(invalid))
        return self._with_value(rows, with_one(read, checked, _CHECKED), _CHECKED)

    def bad(self, rows: DataFrame) -> DataFrame:
        read = self._decode(rows)
        return read.where(~self._is_good(read)).select(
            *(column_named(name) for name in rows.columns),
            self._class().alias("error_class"),
            self._message(read).alias("error_message"),
        )

    def unseen(self, rows: DataFrame, most: int) -> list[int]:
        """Run a Spark job for the ids in ``rows`` that the plan does not know, and return ``most``
        of them at most."""
        expected = self._begins_with_any([*self._schemas.texts, *self._unreadable_ids()])
        first = F.substring(self._value, 1, PREFIX_BYTES).alias("first")
        found = rows.where(self._is_framed() & ~expected).select(first).distinct().limit(most)
        return [int.from_bytes(row["first"][1:], "big") for row in found.collect()]

    def first_with_id(self, rows: DataFrame, ids: list[int]) -> dict[str, object] | None:
        """Run a Spark job for a record of one of ``ids``: return its id, and where it stands as
        far as ``rows`` says."""
        found = rows.where(self._is_framed() & self._begins_with_any(ids))
        row = found.select(self._long_id(), *places(rows)).first()
        return None if row is None else row.asDict()

    # below

    def _decode(self, rows: DataFrame) -> DataFrame:
        """Add :data:`DECODED`: the record and its end, or nulls. A schema id that is not known
        raises."""
        nothing = F.lit(None) if self._schemas.texts else F.lit(None).cast(self._nothing())
        branches = [] if self._id_header is None else [(self._has_id_header(), nothing)]
        # Known ids first: what comes behind them costs them nothing.
        branches += [
            (self._begins_with(number), self._read_by(*pair))
            for number, pair in self._pairs.items()
        ]
        if unreadable := self._unreadable_ids():
            branches.append((self._begins_with_any(unreadable), nothing))
        branches.append((self._value.isNull() | ~self._is_framed(), nothing))
        decoded = _case(branches).otherwise(
            F.raise_error(error_text(self._tag, "unseen", self._long_id()))
        )
        return with_one(rows, decoded, DECODED)

    def _nothing(self) -> StructType:
        """Return the type of :data:`DECODED` where no schema says it: the reader's, with ours
        around it."""
        ours = [StructField(name, DoubleType()) for name in (FIRST, SECOND)]
        return StructType([StructField(VALUE, self._kind), *ours])

    def _unreadable_ids(self) -> list[int]:
        """List the ids whose records cannot be read, whatever is in them."""
        return sorted({*self._schemas.missing, *self._schemas.unreadable})

    def _pair(self, writer: str) -> tuple[str, str]:
        """Return the schemas that framed records of ``writer`` are written and read by."""
        writer = same_with_bytes(writer, self._texts)
        if self._beside is None:
            return with_one_name(around_writer(writer), around_reader(self._reader, writer))
        return with_one_name(self._beside.writer(writer), self._beside.reader(self._reader))

    def _read_by(self, writer: str, reader: str) -> Column:
        framed = F.concat(self._value, F.lit(self._mark))
        return from_avro(framed, writer, {**_MODE, "avroSchema": reader})

    def _is_framed(self) -> Column:
        begins = F.substring(self._value, 1, len(MAGIC)) == F.lit(MAGIC)
        return (F.octet_length(self._value) >= PREFIX_BYTES) & begins & ~self._has_id_header()

    def _has_id_header(self) -> Column:
        name = self._id_header
        if name is None:
            return F.lit(False)
        # No function of a lambda, which no stage is compiled with; and no field of a column's by
        # itself, which Spark takes out below one explode, and does not find above the next one.
        keys = F.coalesce(F.col("headers"), F.array()).getField("key")
        return F.coalesce(F.array_contains(keys, name), F.lit(False))

    def _begins_with(self, number: int) -> Column:
        # Which copies nothing, unlike a comparison of substrings
        return F.startswith(self._value, F.lit(prefix(number)))

    def _begins_with_any(self, ids: list[int]) -> Column:
        """One text of SQL, however many ids: in Python each would be a call into the JVM."""
        prefixes = ", ".join(f"X'{prefix(number).hex()}'" for number in ids)
        if not prefixes:
            return F.lit(False)
        return F.expr(f"substring({quoted(self._column)}, 1, {PREFIX_BYTES}) IN ({prefixes})")

    def _is_good(self, read: DataFrame) -> Column:
        """Return the verdict, never null. A null value is no record (a deletion, in Kafka), and
        passes.
        """
        return self._value.isNull() | F.coalesce(
            self._ends()
            & self._texts_are_valid(read)
            & self._numbers_fit(read)
            & self._misfit(read).isNull(),
            F.lit(False),
        )

    def _ends(self) -> Column:
        first, second = self._end
        return (self._first == first) & (self._second == second)

    def _record(self, read: DataFrame, decoded: str) -> tuple[Column, DataType | None]:
        """Return the column in ``decoded`` with the record's fields, or with its value if it is no
        record; and its type.

        No type: no schema is known, so nothing is decoded.
        """
        kind = read.schema[decoded].dataType
        if not isinstance(kind, StructType):
            return F.col(f"{decoded}.{VALUE}"), None
        if self._beside is None:
            return F.col(f"{decoded}.{VALUE}"), kind[VALUE].dataType
        ours = (self._beside.first, self._beside.second)
        return F.col(decoded), StructType(
            [field for field in kind.fields if field.name not in ours]
        )

    def _texts_are_valid(self, read: DataFrame) -> Column:
        value, kind = self._record(read, DECODED)
        valid = None if kind is None else texts_are_valid(value, kind, self._texts)
        return F.lit(True) if valid is None else F.coalesce(valid, F.lit(True))

    def _numbers_fit(self, read: DataFrame) -> Column:
        value, kind = self._numbers(read)
        fit = None if kind is None else narrow_enough(value, kind, self._kind)
        return F.lit(True) if fit is None else fit

    def _numbers(self, read: DataFrame) -> tuple[Column, DataType | None]:
        value, kind = self._record(read, DECODED)
        # With ours, which are its last, where they are beside its fields
        return value, read.schema[DECODED].dataType if kind and self._beside else kind

    def _misfit(self, read: DataFrame) -> Column:
        value, kind = self._record(read, DECODED)
        if kind is None or self._whole is None:
            return F.lit(None).cast("string")
        return self._whole(value, kind)

    def _with_value(self, rows: DataFrame, read: DataFrame, decoded: str) -> DataFrame:
        """Return the columns of ``rows``, in their order, with the record in the place of its
        bytes."""
        value = self._as_texts(*self._record(read, decoded)).alias(self._column)
        return read.select(*in_place(rows, self._column, value))

    def _as_texts(self, value: Column, record: DataType | None) -> Column:
        """Cast the record's texts back, which were read as bytes, and its numbers to those of its
        schema.

        A text is its bytes, so nothing is copied.
        """
        if record is None:
            return value
        if not self._texts:
            return narrow(value, record, self._kind)
        assert isinstance(record, StructType)  # noqa: S101 — it has fields that are texts
        assert isinstance(self._kind, StructType)  # noqa: S101 — the same
        fields = [
            self._as_text(value.getField(read.name), read, target).alias(read.name)
            for read, target in zip(record.fields, self._kind.fields, strict=True)
        ]
        return F.when(value.isNotNull(), F.struct(*fields))

    def _as_text(self, part: Column, read: StructField, target: StructField) -> Column:
        return (
            part.cast("string")
            if read.name in self._texts
            else narrow(part, read.dataType, target.dataType)
        )

    # what is said of records that are no good

    def _id(self) -> Column:
        return F.conv(F.hex(F.substring(self._value, 2, PREFIX_BYTES - 1)), 16, 10)

    def _class(self) -> Column:
        missing = self._begins_with_any(sorted(self._schemas.missing))
        otherwise = F.when(missing, F.lit(UNKNOWN_SCHEMA_ID)).otherwise(F.lit(DOES_NOT_FIT))
        return F.when(~self._is_framed(), F.lit(BAD_FRAMING)).otherwise(otherwise)

    def _message(self, read: DataFrame) -> Column:
        """Return why a record cannot be read, as far as can be told."""
        size = F.octet_length(self._value)
        by_id = F.concat(F.lit("by schema id "), self._id())
        ends, kind = F.coalesce(self._ends(), F.lit(False)), self._numbers(read)[1]
        wide = "" if kind is None else why_not_narrow(kind, self._kind)
        needed = F.lit(f" bytes, and a framed record has {PREFIX_BYTES} or more")
        short = F.concat(F.lit("it has "), size, needed)
        first = F.hex(F.substring(self._value, 1, 1))
        other = F.concat(
            F.lit("it begins with byte "),
            first,
            F.lit(", not 00 and the id of a schema as Confluent's serializers write it"),
        )
        branches = [
            (self._has_id_header(), F.lit(f"its schema is in header {self._id_header}{_NO_GUID}")),
            (
                (first == "01") & (size >= GUID_PREFIX_BYTES),
                F.lit(f"it begins with byte 01 and a schema's GUID{_NO_GUID}"),
            ),
            (size < PREFIX_BYTES, short),
            (~self._is_framed(), other),
            (
                self._class() == UNKNOWN_SCHEMA_ID,
                F.concat(F.lit("the registry knows no schema id "), self._id()),
            ),
            *(
                (self._begins_with(number), F.lit(f"schema id {number}: {why}"))
                for number, why in self._schemas.unreadable.items()
            ),
            (ends & ~self._numbers_fit(read), F.concat(by_id, F.lit(f" {wide}"))),
            (
                ends & self._misfit(read).isNotNull(),
                F.concat(by_id, F.lit(" "), self._misfit(read)),
            ),
            (ends, F.concat(by_id, F.lit(" a text in it is not UTF-8"))),
            (
                self._first.isNotNull(),
                F.concat(by_id, F.lit(" it is longer than its schema says, or damaged")),
            ),
            *self._doubtful(),
        ]
        otherwise = (
            " it cannot be read: it is cut off or damaged, or a number in it is out of range"
        )
        return _case(branches).otherwise(F.concat(by_id, F.lit(otherwise)))

    def _doubtful(self) -> list[tuple[Column, Column]]:
        return [
            (
                self._begins_with(number),
                F.lit(
                    f"by schema id {number} it cannot be read: it is cut off or damaged, or holds "
                    f"what the reader's schema does not take ({why})"
                ),
            )
            for number, why in self._unfit.items()
        ]

    def _long_id(self) -> Column:
        return self._id().cast("long").alias("id")


def _new_mark() -> tuple[bytes, tuple[float, float]]:
    """Draw sixteen random bytes, and return them with the two numbers as which Avro reads them.

    As numbers they are compared without a copy. Numbers that are equal to none, or to one with
    other bytes, are left out: NaN, and zero.
    """
    while True:
        mark = os.urandom(16)
        # Avro's double: eight bytes, the least significant first
        first, second = struct.unpack("<dd", mark)
        if all(math.isfinite(number) and number != 0 for number in (first, second)):
            return mark, (first, second)


def _case(branches: list[tuple[Column, Column]]) -> Column:
    (condition, value), *rest = branches
    return reduce(lambda case, branch: case.when(*branch), rest, F.when(condition, value))
