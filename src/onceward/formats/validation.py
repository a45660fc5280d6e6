"""What steps that read a format have in common: rows are read once, judged, and what is bad is a
dead letter or stops the job by name. Driver only; called by the formats beside it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, Protocol, TypeVar

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  as everybody writes it
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from onceward.engine.decoding import DecodingStep, register
from onceward.errors import ConfigurationError, InvalidColumn, UnsupportedQuery
from onceward.spark.batch.failures import RAISED
from onceward.spark.types import column_named

DOES_NOT_FIT = "DoesNotFit"
_WAYS = ("stop", "dead_letter")
_PLACE = ("topic", "partition", "offset")
_HEADERS = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())])
)
_FROM_THE_SOURCE: tuple[tuple[str, str, DataType], ...] = (
    ("key", "key", BinaryType()),
    ("value", "value", BinaryType()),
    ("headers", "headers", _HEADERS),
    ("topic", "source_topic", StringType()),
    ("partition", "source_partition", IntegerType()),
    ("offset", "source_offset", LongType()),
    ("timestamp", "source_timestamp", TimestampType()),
)


def refuse_other_than_a_frame(given: object) -> None:
    """Check that ``decode(…)`` was given a DataFrame."""
    if not isinstance(given, DataFrame):
        raise ConfigurationError(
            f"decode(…) was given {type(given).__name__} instead of a DataFrame",
            next_step="pass the frame that has the records, that of kafka_source(…) for one",
        )


def refuse_frame(frame: DataFrame, column: str, on_error: str) -> None:
    """Check the arguments of ``decode(frame, column=…, on_error=…)``.

    :raises InvalidColumn: there is no such column, it is not binary, or the records are not as
        they came any more.
    :raises ConfigurationError: ``on_error`` is no word that is known.
    :raises UnsupportedQuery: dead letters of a frame that is no stream.
    """
    refuse_other_than_a_frame(frame)
    kinds = {field.name: field.dataType for field in frame.schema.fields}
    kind = kinds.get(column) if isinstance(column, str) else None
    if not isinstance(kind, BinaryType):
        what = (
            f"is {kind.simpleString()}" if kind is not None else f"is none of {', '.join(kinds)}"
        )
        raise InvalidColumn(
            f"column={column!r} {what}, and records to decode are binary",
            next_step="name the column that has the records as they came, column= of decode(…)",
        )
    if on_error not in _WAYS:
        raise ConfigurationError(
            f"on_error={on_error!r}", next_step=f"set on_error to one of {', '.join(_WAYS)}"
        )
    if on_error == "dead_letter":
        _refuse_dead_letters(frame, kinds.get("key"), kinds.get("value"))


def _refuse_dead_letters(frame: DataFrame, key: object, value: object) -> None:
    """Check that the frame is a stream that still has the source's records as they came."""
    if not frame.isStreaming:
        raise UnsupportedQuery(
            'on_error="dead_letter" of a frame that is no stream: there is no batch whose '
            "transaction takes them",
            next_step='use on_error="stop", or call decode(…) where the streaming query is '
            "defined",
        )
    # Without its value a dead letter would be a deletion.
    if not isinstance(value, BinaryType) or not (key is None or isinstance(key, BinaryType)):
        raise InvalidColumn(
            "dead letters are records as they came, and key or value of this frame is gone, or "
            "not binary any more",
            next_step="keep the source's columns key and value under their names; decode one of "
            "the two with "
            'on_error="dead_letter", directly on the source\'s frame, and then the other one with '
            'on_error="stop"',
        )


def in_place(rows: DataFrame, column: str, value: Column) -> list[Column]:
    """Return the columns of ``rows``, in their order, with ``value`` in the place of one."""
    return [value if name == column else column_named(name) for name in rows.columns]


def conjunction(conditions: Iterable[Column | None]) -> Column | None:
    """Return one condition that is true where all of ``conditions`` are that are there; None of
    none.

    As a balanced tree: a chain of 500 is 500 deep, and Spark's visitors of expressions recurse.
    """
    level = [condition for condition in conditions if condition is not None]
    while len(level) > 1:
        pairs = [left & right for left, right in zip(level[::2], level[1::2], strict=False)]
        level = pairs + level[len(pairs) * 2 :]
    return level[0] if level else None


def with_one(rows: DataFrame, value: Column, name: str) -> DataFrame:
    """Add ``value``, which is evaluated once a row, whatever is done with it and with the other
    columns.

    Spark pushes a predicate below a projection, with a copy of what is projected, and leaves out
    what nobody looks at. With a *generator* it does neither, so the value comes out of
    ``explode(array(…))``, an array of one.
    """
    return rows.select("*", F.explode(F.array(value)).alias(name))


def error_text(tag: str, kind: str, *more: Column) -> Column:
    """Return the text of which :mod:`onceward.spark.batch.failures` makes an error."""
    fields = F.struct(F.lit(kind).alias("raised"), F.lit(tag).alias("tag"), *more)
    return F.concat(F.lit(RAISED), F.to_json(fields))


def poison(
    tag: str, rows: DataFrame, error_class: Column, message: Column, *more: Column
) -> Column:
    """Return the text for a record that cannot be read, with its place as far as ``rows`` has
    it.
    """
    return error_text(
        tag, "poison", *more, error_class.alias("class"), message.alias("message"), *places(rows)
    )


def places(rows: DataFrame) -> list[Column]:
    """Return the columns that say where a record stands, as far as ``rows`` has them."""
    return [column_named(name).alias(name) for name in _PLACE if name in rows.columns]


def as_dead_letters(bad: DataFrame) -> DataFrame:
    """Select the columns of the engine's dead letters: rows as they came, ``error_class`` and
    ``error_message``."""
    columns = [_if_there(bad, name, kind).alias(alias) for name, alias, kind in _FROM_THE_SOURCE]
    return bad.select(*columns, "error_class", "error_message")


def _if_there(rows: DataFrame, name: str, kind: DataType) -> Column:
    fields = {field.name: field.dataType for field in rows.schema.fields}
    # Only as a source of Kafka's has it: a column of that name and another type means something
    # else.
    there = name in fields and fields[name].simpleString() == kind.simpleString()
    return column_named(name) if there else F.lit(None).cast(kind)


class Verdicts(Protocol):
    """What a format tells Spark: each record is good or bad, the same each time it is asked."""

    def good(self, rows: DataFrame) -> DataFrame:
        """Return the rows that can be read, with the column decoded."""

    def good_or_raise(self, rows: DataFrame) -> DataFrame:
        """Return all rows, with the column decoded; a record that cannot be read fails the job
        that meets it."""

    def bad(self, rows: DataFrame) -> DataFrame:
        """Return the rows that :meth:`good` leaves out, with ``error_class`` and ``error_message``
        added."""


P = TypeVar("P", bound=Verdicts)


class ValidatingStep(DecodingStep, Generic[P]):
    """One call of a format's ``decode``."""

    def __init__(self, tag: str, plan: P, *, sets_aside: bool) -> None:
        self.tag = tag
        self.plan = plan
        self.sets_aside = sets_aside

    def dead_letters(self, rows: DataFrame) -> DataFrame:
        return as_dead_letters(self.plan.bad(rows))

    def apply(self, frame: DataFrame) -> DataFrame:
        """Register the step with the engine, and return ``frame`` with the column decoded."""
        register(self)
        tagged = frame.alias(self.tag)
        return self.plan.good(tagged) if self.sets_aside else self.plan.good_or_raise(tagged)
