"""The placeholder that Debezium writes for a value which the database did not give it. Driver
only; called by :mod:`onceward.formats.debezium.decoding`.

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
    IntegralType,
    MapType,
    StringType,
    StructType,
    VariantType,
)

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
