"""Types that a column of a table can have, by the text that stands for its value. Driver only;
called by :mod:`decoding` and :mod:`images`.

Beside what JSON has (:mod:`onceward.formats.json.types`): DECIMAL, BINARY, days as numbers, times
without a zone. Each is told by the whole of its text, so that nothing is rounded, cut or guessed:

===============  ==================================================================================
type             read from
===============  ==================================================================================
DECIMAL(p,s)     a number, or with ``decimals="string"`` also a text of one, of at most p-s and s
                 digits around the point; one of more than 38 digits in JSON is none that Spark
                 could read. With an exponent where none such in its record has more than 15 digits
BINARY           Base64 (RFC 4648, padded)
DATE             ``"2024-01-31"``, or days since 1970 (``io.debezium.time.Date``)
TIMESTAMP        ``"2024-01-31T10:00:00.123Z"`` (``io.debezium.time.ZonedTimestamp``); with ``utc``
                 also without a zone
TIMESTAMP_NTZ    ``"2024-01-31 10:00:00.123"``
VARIANT          anything; a null of JSON is a null
===============  ==================================================================================

PostgreSQL logs a TOASTed column only in a change of that column, unless the table has ``REPLICA
IDENTITY FULL``; Oracle and SQL Server have the like of large objects. In the column's place
Debezium then writes ``unavailable.value.placeholder`` in a form that the column's type can have
(``io.debezium.connector.postgresql.UnchangedToastedPlaceholder``): the text, or its bytes; a list
of it alone; its bytes as the numbers of a list; an hstore with it as key and value; a UUID made of
it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import uuid

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  as everybody writes it
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    DecimalType,
    IntegralType,
    MapType,
    StringType,
    StructType,
    TimestampType,
    VariantType,
)

from onceward.formats.json.types import TIME, Types, variant_text

PLACEHOLDER = "__debezium_unavailable_value"
"""Debezium's default."""


def why_unavailable(row: Column, kind: StructType, placeholder: str) -> Column:
    """Return which column of ``row`` has the placeholder; null where none has."""
    forms = _Forms(placeholder)
    found = (
        (field.name, forms.is_in(row.getField(field.name), field.dataType))
        for field in kind.fields
    )
    reasons = [
        F.when(condition, F.lit(_WHY.format(name, placeholder)))
        for name, condition in found
        if condition is not None
    ]
    return F.coalesce(F.lit(None).cast("string"), *reasons)


_WHY = (
    "column {!r} of after has Debezium's placeholder {}, in the place of a value that the update "
    "left as it was and the database did not log: give the table REPLICA IDENTITY FULL, or the "
    "connector its ReselectColumnsPostProcessor, or leave the column out of what is read"
)


class _Forms:
    """What stands for a value that is not there."""

    def __init__(self, placeholder: str) -> None:
        raw = placeholder.encode()
        self._numbers = list(raw)
        # As Java's UUID.nameUUIDFromBytes makes it
        digest = hashlib.md5(raw, usedforsecurity=False).digest()
        texts = [
            placeholder,
            base64.b64encode(raw).decode(),
            raw.hex(),
            str(uuid.UUID(bytes=digest, version=3)),
            json.dumps({placeholder: placeholder}, separators=(",", ":")),
        ]
        self._forms = [text.encode() for text in texts]
        lists = [self._numbers, *([text] for text in texts)]
        documents = [*texts, *lists, {placeholder: placeholder}]
        self._documents = [
            json.dumps(one, separators=(",", ":"), ensure_ascii=False) for one in documents
        ]

    def is_in(self, value: Column, kind: DataType) -> Column | None:
        """Return whether it is: true, or else false or null. None: no value of ``kind`` is it."""
        if isinstance(kind, StringType | BinaryType):
            return value.cast("binary").isin([F.lit(form) for form in self._forms])
        if isinstance(kind, VariantType):
            return F.to_json(value).isin(self._documents)
        if isinstance(kind, ArrayType) and isinstance(kind.elementType, IntegralType):
            return value == F.array(*map(F.lit, self._numbers)).cast(kind)
        if isinstance(kind, ArrayType):
            return self._is_in_some(value, kind.elementType)
        if isinstance(kind, MapType):
            return self._is_in_some(F.map_values(value), kind.valueType)
        return None

    def _is_in_some(self, values: Column, kind: DataType) -> Column | None:
        if self.is_in(F.lit(None), kind) is None:
            return None

        def is_it(value: Column) -> Column:
            found = self.is_in(value, kind)
            assert found is not None  # noqa: S101 — asked above
            return F.coalesce(found, F.lit(False))

        return F.exists(values, is_it)


# a class and a star: groups would recurse, a level for every few bytes
_BASE64 = r"\A[A-Za-z0-9+/]*={0,2}\z"
_DAYS = 2**31
_EXACT = r"\A(BIGINT|DECIMAL.*)\z"
_EXACT_OR_TEXT = r"\A(BIGINT|DECIMAL.*|STRING)\z"
# Of at most 15 digits: 16 characters with a point
_EXPONENT = r"\A-?(?=[\d.]{1,16}[eE])\d{1,15}(\.\d+)?[eE][+-]?\d{1,2}\z"
# A number that may be another one as a double: of more than 15 digits before its exponent, of an
# exponent of three, or of more digits than a DECIMAL has. From where JSON has a number begin, or
# every fourth UUID would have one (3f1e2340-…).
_A_LONG_NUMBER = r"(?<=[\s:,\[]-?)(?:\d{16,}+[eE]|[\d.]{17,}+[eE]|[\d.]{39}|[\d.]++[eE][+-]?\d{3})"


class TableTypes(Types):
    """See the module.

    :param utc: a TIMESTAMP without a zone is in UTC, as in ``ow.mysql_changes(values="text")``.
    :param decimals: numbers in quotes are numbers, too (``decimal.handling.mode=string``). Not by
        default: Debezium's ``precise`` writes Base64 there, some of which looks like digits.
    :param text: of the whole record, where a decimal may be a number with an exponent, as Java
        writes a double from 10,000,000 on (``decimal.handling.mode=double``).
    """

    def __init__(self, *, utc: bool, decimals: bool, text: Column | None = None) -> None:
        self._utc = utc
        self._decimals = decimals
        self._text = text

    def convert(self, read: Column, kind: DataType) -> Column:
        """Convert a value, and a null of JSON to one of SQL.

        A column of JSON is far more often null than it holds the text ``null``.
        """
        if isinstance(kind, VariantType):
            return F.when(~F.is_variant_null(read), read)
        return super().convert(read, kind)

    def _refusal(self, kind: DataType) -> str:
        if isinstance(kind, DecimalType):
            return (
                "numbers in quotes may be Base64 (decimal.handling.mode=precise); have them "
                'written by mode "string" and pass decimals="string", or take STRING'
            )
        return super()._refusal(kind)

    def _is_read_as_variant(self, kind: DataType) -> bool:
        if isinstance(kind, DecimalType):
            return self._utc or self._decimals
        return isinstance(kind, BinaryType) or super()._is_read_as_variant(kind)

    def _from_variant(self, read: Column, kind: DataType) -> Column:
        if isinstance(kind, DecimalType):
            return self._decimal(read, kind)
        if isinstance(kind, BinaryType):
            text = variant_text(read)
            whole = text.rlike(_BASE64) & (F.length(text) % 4 == 0)
            return F.when(whole, F.try_to_binary(text, F.lit("base64")))
        if isinstance(kind, DateType):
            days = F.when(
                F.schema_of_variant(read) == "BIGINT", F.try_variant_get(read, "$", "bigint")
            )
            day = F.when(days.between(-_DAYS, _DAYS - 1), F.date_from_unix_date(days.cast("int")))
            return F.coalesce(super()._from_variant(read, kind), day)
        if isinstance(kind, TimestampType) and self._utc:
            text = variant_text(read)
            local = F.when(text.rlike(rf"\A{TIME}\z"), F.concat(text, F.lit("Z")).try_cast(kind))
            return F.coalesce(local, super()._from_variant(read, kind))
        return super()._from_variant(read, kind)

    def _decimal(self, read: Column, kind: DecimalType) -> Column:
        """Convert by the number's digits: a cast would round.

        A number with an exponent is a double by now, which has its digits if they were 15 at most.
        Which number of the text it was is not known any more, so that all have to be so short. One
        in quotes has its text still.
        """
        found, digits = F.schema_of_variant(read), F.try_variant_get(read, "$", "string")
        whole, part = kind.precision - kind.scale, kind.scale
        form = rf"\A-?(0|0*\d{{1,{whole}}})" if whole else r"\A-?0+"
        form += rf"(\.\d{{1,{part}}}0*)?\z" if part else r"(\.0+)?\z"
        is_exact = found.rlike(_EXACT_OR_TEXT if self._decimals else _EXACT) & digits.rlike(form)
        plain = F.when(is_exact, digits.try_cast(kind))
        if self._text is None:
            return plain
        number = F.try_variant_get(read, "$", "double")
        # Not by its own text, which may have digits too many before Java 19 (JDK-4511638)
        short = F.format_string("%.14e", number).try_cast(kind)
        is_short = F.when(found == "DOUBLE", ~self._text.rlike(_A_LONG_NUMBER)).otherwise(
            digits.rlike(_EXPONENT)
        )
        # Two numbers of up to 15 digits are two doubles: nothing was rounded
        return F.coalesce(plain, F.when(is_short & (short.cast("double") == number), short))


TEXT = TableTypes(utc=True, decimals=True)
"""Of ``ow.mysql_changes``: decimals are numbers with ``values="text"``, and texts with
``values="debezium"``; never Base64.
"""
