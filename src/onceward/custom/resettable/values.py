"""Does a Python value fit a column? For each of Spark's types a function that takes values as they
are, or refuses. Pure.

Called by :mod:`onceward.custom.resettable.fitting`. Arrow alone would not do: it cuts the time off
where a column is a date, takes what a struct lacks for null, and what it has too much for nothing.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import date, datetime, timedelta
from decimal import Decimal
from numbers import Integral
from typing import Any

from pyspark.sql import types as t

Check = Callable[[Any], Any]
"""The value for Arrow. Raises :class:`Unfit`."""


class Unfit(Exception):
    """A value does not fit: why, and where in the column: ``.street``, ``[2]``."""

    def __init__(self, why: str, path: str = "") -> None:
        super().__init__(why)
        self.why, self.path = why, path

    def inside(self, step: str) -> Unfit:
        """Return the error as seen from one level further out."""
        return Unfit(self.why, step + self.path)


def value_check(kind: t.DataType) -> Check | None:
    """Return the check for values of ``kind`` but null; None: a source cannot have it."""
    if isinstance(kind, t.ArrayType):
        return _nullable_array(kind)
    if isinstance(kind, t.MapType):
        return _nullable_map(kind)
    if isinstance(kind, t.StructType):
        return struct_check(kind)
    if isinstance(kind, t.DecimalType):
        return _decimal
    if type(kind) in _INTEGERS:
        return _integer(_INTEGERS[type(kind)])
    return _PLAIN.get(type(kind))


def field_check(field: t.StructField) -> Check | None:
    """Return the check for a column or a field, nulls included."""
    return _nullable(value_check(field.dataType), field.nullable)


def _nullable(check: Check | None, nullable: bool) -> Check | None:
    if check is None:
        return None

    def checked(value: Any) -> Any:
        if value is not None:
            return check(value)
        if not nullable:
            raise Unfit("is null, and the schema says NOT NULL")
        return None

    return checked


def struct_check(kind: t.StructType) -> Check | None:
    """Return the check for rows, and for structs in them: a dict with exactly these names, or a
    tuple or list with a value for each."""
    found = {field.name: field_check(field) for field in kind.fields}
    checks = {name: check for name, check in found.items() if check is not None}
    if len(checks) != len(kind.fields):
        return None

    def checked(value: Any) -> dict[str, Any]:
        fields = _as_mapping(value, list(checks))
        return {name: _at(check, fields[name], f".{name}") for name, check in checks.items()}

    return checked


def _as_mapping(value: Any, names: list[str]) -> Mapping[str, Any]:
    if isinstance(value, t.Row) and hasattr(value, "__fields__"):
        value = value.asDict()
    if isinstance(value, Mapping):
        missing, unknown = (
            [n for n in names if n not in value],
            [str(n) for n in value if n not in names],
        )
        if missing or unknown:
            parts = [f"lacks {', '.join(missing)}"] * bool(missing) + [
                f"has {', '.join(unknown)}"
            ] * bool(unknown)
            raise Unfit(
                f"{' and '.join(parts)}; its names must be exactly {', '.join(names)} (write null "
                "as None)"
            )
        return value
    if isinstance(value, tuple | list):
        if len(value) != len(names):
            raise Unfit(f"has {len(value)} values for {len(names)} columns ({', '.join(names)})")
        return dict(zip(names, value, strict=True))
    raise Unfit(f"is {_kind(value)}, and neither a dict nor a tuple")


def _nullable_array(kind: t.ArrayType) -> Check | None:
    check = _nullable(value_check(kind.elementType), kind.containsNull)
    if check is None:
        return None

    def checked(value: Any) -> list[Any]:
        if not isinstance(value, list | tuple):
            raise Unfit(f"is {_kind(value)}, and no list")
        return [_at(check, element, f"[{index}]") for index, element in enumerate(value)]

    return checked


def _nullable_map(kind: t.MapType) -> Check | None:
    of_key, of_value = (
        _nullable(value_check(kind.keyType), False),
        _nullable(value_check(kind.valueType), kind.valueContainsNull),
    )
    if of_key is None or of_value is None:
        return None

    def checked(value: Any) -> list[tuple[Any, Any]]:
        pairs = value.items() if isinstance(value, Mapping) else value
        # Arrow's own maps come as lists of pairs
        if not isinstance(value, Mapping) and not _are_pairs(value):
            raise Unfit(f"is {_kind(value)}, and no dict")
        fitting = [
            (_at(of_key, key, f"[key {key!r}]"), _at(of_value, inner, f"[{key!r}]"))
            for key, inner in pairs
        ]
        _must_be_different(key for key, _ in fitting)
        return fitting

    return checked


def _must_be_different(keys: Iterable[Any]) -> None:
    """Refuse a key that is there twice: by Spark's settings one of its values would go."""
    seen = set[Any]()
    for key in keys:
        hashable = _hashable(key)
        if hashable in seen:
            raise Unfit(f"has the key {_excerpt(key)} twice")
        seen.add(hashable)


def _hashable(value: Any) -> Any:
    """Return an equal value for equal ones, as Spark compares keys."""
    if isinstance(value, Mapping):
        return tuple(_hashable(inner) for inner in value.values())
    if isinstance(value, list):
        return tuple(map(_hashable, value))
    return "NaN" if isinstance(value, float) and math.isnan(value) else value


def _are_pairs(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(pair, tuple) and len(pair) == 2 for pair in value
    )


def _at(check: Check, value: Any, step: str) -> Any:
    try:
        return check(value)
    except Unfit as unfit:
        raise unfit.inside(step) from None


def _integer(bits: int) -> Check:
    smallest, largest = -(1 << bits - 1), (1 << bits - 1) - 1

    def checked(value: Any) -> int:
        if not _is_whole(value):
            raise Unfit(f"is {_kind(value)}, and no whole number")
        if not smallest <= int(value) <= largest:
            raise Unfit(f"is {_excerpt(value)}, which has no room in {bits} bits")
        return int(value)

    return checked


def _is_whole(value: Any) -> bool:
    """Return whether it is a whole number, also of numpy, but not True and False."""
    return isinstance(value, Integral) and value is not True and value is not False


def _floating(bits: int) -> Check:
    """Return the check for numbers of ``bits`` bits: a float is rounded, as in a program; a whole
    number is exact, or refused."""

    def checked(value: Any) -> float:
        if isinstance(value, float):
            return value if bits == 64 else _single(value)
        if not _is_whole(value):
            raise Unfit(f"is {_kind(value)}, and no number")
        found = math.inf
        with suppress(OverflowError):
            found = float(int(value)) if bits == 64 else _single(float(int(value)))
        if found != int(value):
            raise Unfit(
                f"is {_excerpt(value)}, which a floating-point number of {bits} bits cannot hold "
                "exactly"
            )
        return found

    return checked


def _single(value: float) -> float:
    """Round to 32 bits, but not to zero or to infinity."""
    rounded = math.inf
    with suppress(OverflowError):
        (rounded,) = struct.unpack("f", struct.pack("f", value))
    if math.isinf(rounded) > math.isinf(value) or (value and not rounded):
        raise Unfit(f"is {_excerpt(value)}, which has no room in 32 bits")
    return rounded


def _decimal(value: Any) -> Decimal:
    if _is_whole(value):
        return Decimal(int(value))
    if not isinstance(value, Decimal):
        raise Unfit(f"is {_kind(value)}, and no Decimal")
    if not math.isfinite(value):
        raise Unfit(f"is {value}, which a decimal column cannot hold")
    return value


def _timestamp(*, has_zone: bool) -> Check:
    def checked(value: Any) -> Any:
        # pandas' NaT is a datetime, and equal to nothing; Arrow would take it for null
        if not isinstance(value, datetime) or value != value:
            raise Unfit(f"is {_kind(value)}, and no datetime")
        # and its Timestamp is one that has more than Python's
        if getattr(value, "nanosecond", 0):
            raise Unfit(f"is {value}: a timestamp column has no nanoseconds")
        if has_zone and value.tzinfo is None:
            raise Unfit(
                "is a datetime without a time zone: say which, or make the column TIMESTAMP_NTZ"
            )
        if value.tzinfo is not None and not has_zone:
            raise Unfit("is a datetime with a time zone, for a column of TIMESTAMP_NTZ")
        return value

    return checked


def _interval(value: Any) -> timedelta:
    if not isinstance(value, timedelta):
        raise Unfit(f"is {_kind(value)}, and no timedelta")
    if getattr(value, "nanoseconds", 0):
        raise Unfit(f"is {value}: an interval column has no nanoseconds")
    return value


def _date(value: Any) -> date:
    # A datetime is a date to Python: its time would go
    if not isinstance(value, date) or isinstance(value, datetime):
        raise Unfit(f"is {_kind(value)}, and no date")
    return value


def _is_instance(kind: type | tuple[type, ...], name: str) -> Check:
    def checked(value: Any) -> Any:
        if not isinstance(value, kind):
            raise Unfit(f"is {_kind(value)}, and no {name}")
        return value

    return checked


def _bytes(value: Any) -> bytes:
    if not isinstance(value, bytes | bytearray):
        raise Unfit(f"is {_kind(value)}, and no bytes")
    # A buffer may be filled again for the next row
    return bytes(value)


def _null(value: Any) -> Any:
    raise Unfit(f"is {_kind(value)}, for a column of VOID")


def _kind(value: Any) -> str:
    """Describe a value for a refusal: its type, and how it begins."""
    return f"{_excerpt(value)} ({type(value).__name__})"


def _excerpt(value: Any, limit: int = 40) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"


_INTEGERS: dict[type, int] = {t.ByteType: 8, t.ShortType: 16, t.IntegerType: 32, t.LongType: 64}
_PLAIN: dict[type, Check] = {
    t.BooleanType: _is_instance(bool, "bool"),
    t.FloatType: _floating(32),
    t.DoubleType: _floating(64),
    t.StringType: _is_instance(str, "str"),
    t.BinaryType: _bytes,
    t.DateType: _date,
    t.TimestampType: _timestamp(has_zone=True),
    t.TimestampNTZType: _timestamp(has_zone=False),
    t.DayTimeIntervalType: _interval,
    t.NullType: _null,
}
