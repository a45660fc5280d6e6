"""Types that a field of JSON can have: as what Spark reads it, when that fits, and the value of
it. Driver only.

Used by :mod:`onceward.formats.json.decoding`. Where Spark's ``from_json`` takes what is not there,
something stricter is read in its place:

* For a string it takes a number, and writes it in its own way (``1.10`` becomes ``1.1``, ``1e400``
  becomes ``"Infinity"``). So texts are read as VARIANT, which knows what it is; as binary only a
  text can be had of it.
* A day or a time it reads leniently (``2024`` is New Year's Day, in the session's time zone). They
  are texts of one form.
* Doubles may be infinite: ``1e400``. Keys of a map may come twice. Both are looked at, and so is
  what must not be null.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import cast

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  as everybody writes it
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from onceward.formats.validation import conjunction
from onceward.spark.types import contains_type

# In Java's way of writing them: \A and \z, because $ is also before a line's end.
_DAY = r"\d{4}-\d\d-\d\d"
TIME = _DAY + r"[T ]\d\d:\d\d:\d\d(\.\d{1,6})?"
_FORMS: dict[type[DataType], str] = {
    DateType: rf"\A{_DAY}\z",
    TimestampType: rf"\A{TIME}(Z|[+-]\d\d:\d\d)\z",
    TimestampNTZType: rf"\A{TIME}\z",
}
_AS_THEY_ARE = (BooleanType, ShortType, IntegerType, LongType, FloatType, DoubleType, VariantType)
_INSTEAD = {
    "tinyint": "Spark reads 200 as -56; take SMALLINT",
    "decimal": "Spark rounds it silently; take VARIANT, and try_variant_get(…, 'decimal(10,2)') "
    "in the query",
    "binary": "JSON has none; take STRING, and unbase64(…) in the query",
}


class Types:
    """How fields are read; a format whose texts stand for more types says so in a subclass
    (:meth:`_refusal`, :meth:`_is_read_as_variant`, :meth:`_from_variant`).
    """

    def misfit(self, record: Column) -> Column:
        """Return why fields that fit each by itself do not so together; null where they do."""
        return F.lit(None).cast("string")

    def hint(self, field: str) -> str:
        """Return what else may be the matter where this field of a record does not fit."""
        return ""

    def why_not(self, kind: DataType, at: str = "") -> str | None:
        """Return why JSON cannot be read as ``kind``; None: it can."""
        if isinstance(kind, StructType):
            times = Counter(name.lower() for name in kind.names)
            twice = [name for name in times if times[name] > 1]
            if twice or not kind.names:
                what = f"two fields {twice[0]!r}" if twice else "no fields"
                return f"{at or 'it'} has {what}"
            inside = (
                self.why_not(field.dataType, f"{at}.{field.name}".lstrip("."))
                for field in kind.fields
            )
            return next((why for why in inside if why is not None), None)
        if isinstance(kind, ArrayType):
            return self.why_not(kind.elementType, f"{at}[]")
        if isinstance(kind, MapType):
            return (
                self.why_not(kind.valueType, f"{at}{{}}")
                if is_text(kind.keyType)
                else f"keys of {at} are no STRING"
            )
        if self._is_read_as_variant(kind) or type(kind) in _AS_THEY_ARE:
            return None
        return f"{at} is {kind.simpleString()}: {self._refusal(kind)}"

    def read_as(self, kind: DataType) -> DataType:
        """Return the type that ``from_json`` is told."""
        return _nullable(
            kind, lambda leaf: VariantType() if self._is_read_as_variant(leaf) else leaf
        )

    def convert(self, read: Column, kind: DataType) -> Column:
        """Convert ``read``, of type :meth:`read_as`, to ``kind``."""
        if self.read_as(kind) == _nullable(kind, lambda leaf: leaf):
            return read
        if isinstance(kind, StructType):
            return F.when(read.isNotNull(), F.struct(*self.convert_fields(read, kind)))
        if isinstance(kind, ArrayType):
            return F.transform(read, lambda element: self.convert(element, kind.elementType))
        if isinstance(kind, MapType):
            return F.transform_values(read, lambda _, value: self.convert(value, kind.valueType))
        return self._from_variant(read, kind)

    def convert_fields(self, read: Column, kind: StructType) -> list[Column]:
        """Convert the fields of a struct."""
        return [
            self.convert(read.getField(field.name), field.dataType).alias(field.name)
            for field in kind.fields
        ]

    def fits(self, read: Column, kind: DataType, nullable: bool) -> Column | None:
        """Return whether what was read is what the schema says: true or false, never null. None:
        it always is."""
        if isinstance(kind, VariantType):
            return None if nullable else read.isNotNull() & ~F.is_variant_null(read)
        if self.read_as(kind) == VariantType():
            there = self.convert(read, kind).isNotNull()
            return there | read.isNull() | F.is_variant_null(read) if nullable else there
        inside = self._fits_inside(read, kind)
        if inside is None:
            return None if nullable else read.isNotNull()
        return read.isNull() | inside if nullable else read.isNotNull() & inside

    # what a subclass may read otherwise

    def _refusal(self, kind: DataType) -> str:
        """Return why a type is not read, and what to take in its place."""
        return _INSTEAD.get(kind.simpleString().partition("(")[0], "this type is not read")

    def _is_read_as_variant(self, kind: DataType) -> bool:
        """Return whether it is read as VARIANT, of which :meth:`_from_variant` makes it."""
        return is_text(kind) or type(kind) in _FORMS

    def _from_variant(self, read: Column, kind: DataType) -> Column:
        """Convert a VARIANT to ``kind``; null where it is none."""
        text = variant_text(read)
        if is_text(kind):
            return text
        return F.when(text.rlike(_FORMS[type(kind)]), text.try_cast(kind))

    # below

    def _fits_inside(self, read: Column, kind: DataType) -> Column | None:
        """Return whether what is not null is what the schema says."""
        if isinstance(kind, FloatType | DoubleType):
            # For Spark, NaN is larger than all others
            return F.abs(read) < float("inf")
        if isinstance(kind, StructType):
            return conjunction(
                self.fits(read.getField(field.name), field.dataType, field.nullable)
                for field in kind.fields
            )
        if isinstance(kind, ArrayType):
            return self._each_fits(read, kind.elementType, kind.containsNull)
        if isinstance(kind, MapType):
            once = F.size(F.array_distinct(F.map_keys(read))) == F.size(read)
            return conjunction(
                (once, self._each_fits(F.map_values(read), kind.valueType, kind.valueContainsNull))
            )
        return None

    def _each_fits(self, array: Column, kind: DataType, nullable: bool) -> Column | None:
        if self.fits(F.lit(None), kind, nullable) is None:
            return None
        # Asked above
        return F.forall(array, lambda one: cast(Column, self.fits(one, kind, nullable)))


JSON = Types()


def is_text(kind: DataType) -> bool:
    """Return whether it is a string without a collation."""
    return type(kind) is StringType and kind.simpleString() == "string"


def variant_text(read: Column) -> Column:
    """Return the text that a variant is; null if it is something else."""
    return F.try_variant_get(read, "$", "binary").cast("string")


def only_variants(kind: DataType) -> DataType:
    """Return ``kind``, of the same type, without the fields that have no VARIANT."""
    if isinstance(kind, StructType):
        fields = [field for field in kind.fields if contains_type(field.dataType, VariantType)]
        return StructType([StructField(one.name, only_variants(one.dataType)) for one in fields])
    if isinstance(kind, ArrayType):
        return ArrayType(only_variants(kind.elementType))
    if isinstance(kind, MapType):
        return MapType(StringType(), only_variants(kind.valueType))
    return kind


def _nullable(kind: DataType, leaf: Callable[[DataType], DataType]) -> DataType:
    """Return ``kind`` with all that is inside nullable, and what has no inside by ``leaf``."""
    if isinstance(kind, StructType):
        fields = [StructField(one.name, _nullable(one.dataType, leaf)) for one in kind.fields]
        return StructType(fields)
    if isinstance(kind, ArrayType):
        return ArrayType(_nullable(kind.elementType, leaf))
    if isinstance(kind, MapType):
        return MapType(kind.keyType, _nullable(kind.valueType, leaf))
    return leaf(kind)
