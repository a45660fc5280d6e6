"""MySQL's binary JSON to the text that the server sends to a client, byte for byte but for line
breaks, which it has in long values of base64 and JSON must not. Pure; called by :mod:`values`.

An object or an array begins with the number of its members and bytes; then come, for each, the
offset of its key, and its type with its value or the offset of that; then keys and values. Offsets
count from its own beginning, and have two bytes in a small one and four in a large one. The reader
never reads more in all than the document has, wherever its offsets point: no server writes two of
them to one place.

Source: MySQL ``sql/json_binary.h`` (the format), ``sql/json_dom.cc`` (``wrapper_to_string``),
``strings/dtoa.cc`` (``my_gcvt``).
"""

from __future__ import annotations

import binascii
import struct
from decimal import Context, Decimal
from json.encoder import encode_basestring
from typing import Any

from onceward.mysql.binlog.column_types import MOST_SCALE, decimal_bytes

_MOST_ZEROS = 15
"""Digits before the point, and zeros behind it."""
# A double has no more digits. The thread's own context is the user's, who may have set another
_ALL_DIGITS = Context(prec=17, traps=[])


def double_text(number: float) -> str:
    """Return a double with the fewest digits that mean the same number, as MySQL writes it: whole
    numbers up to 10^15 and fractions from 10^-15 on without an exponent, others with one that has
    neither a plus sign nor a zero before it.
    """
    text = repr(number)
    if "e" not in text and (not text.endswith(".0") or len(text) <= _MOST_ZEROS + len(".0")):
        return text.removesuffix(".0")
    decimal = Decimal(text).normalize(_ALL_DIGITS)
    _, digits, exponent = decimal.as_tuple()
    # The number is 0.DIGITS times ten to this power.
    point = len(digits) + int(exponent)
    if point > -_MOST_ZEROS and (point <= _MOST_ZEROS or len(digits) > point):
        return format(decimal, "f")
    return format(decimal, "e").replace("e+", "e")


DEEPEST = 100
"""The server's limit of levels."""

_SMALL_OBJECT, _LARGE_OBJECT, _SMALL_ARRAY, _LARGE_ARRAY = range(4)
_LITERAL, _INT16, _UINT16, _INT32, _UINT32 = range(4, 9)
_INT64, _UINT64, _DOUBLE, _STRING, _OPAQUE = 9, 10, 11, 12, 15
_LITERALS = {0: "null", 1: "true", 2: "false"}


def _int16_text(entry: int) -> str:
    # A large one has it in four bytes, the upper ones of a negative number set.
    number = entry & 0xFFFF
    return repr(number if number < 1 << 15 else number - (1 << 16))


_NUMBERS = {
    _INT16: struct.Struct("<h"), _UINT16: struct.Struct("<H"), _INT32: struct.Struct("<i"),
    _UINT32: struct.Struct("<I"), _INT64: struct.Struct("<q"), _UINT64: struct.Struct("<Q"),
}  # fmt: skip
_SMALL_INLINE = {
    _INT16: _int16_text,
    _UINT16: repr,
    _LITERAL: lambda entry: _LITERALS[entry & 0xFF],
}
_LARGE_INLINE = _SMALL_INLINE | {
    _INT32: lambda entry: repr(entry if entry < 1 << 31 else entry - (1 << 32)),
    _UINT32: repr,
}
_INLINE = [[table.get(kind) for kind in range(256)] for table in (_SMALL_INLINE, _LARGE_INLINE)]
"""By size and type, the text of a value in its entry; None if the entry is an offset."""
_DOUBLES = struct.Struct("<d")
_SMALL_SIZES, _LARGE_SIZES = struct.Struct("<HH"), struct.Struct("<II")
_OPAQUE_DECIMAL, _OPAQUE_DATE, _OPAQUE_TIME = 246, 10, 11
_OPAQUE_MOMENTS = {_OPAQUE_DATE, _OPAQUE_TIME, 7, 12}
_MOST_DIGITS = 81
"""Nine words of nine digits: the server counts whole words here; a column has 65."""
_TOO_SHORT = "it ends before what it says it has"
_MANY = 64
_SEVEN_BITS = 127
_PLAIN_DOUBLE = 15
"""Up to this length Python and the server write a double without an exponent alike."""

_entry_layouts: dict[tuple[int, int], struct.Struct] = {}
"""Layouts of objects and arrays with few members, by type and number."""


class InvalidJson(ValueError):
    """The bytes are no document."""


def json_text(document: bytes) -> str:
    """Return the text of a document."""
    if not document:
        # What an UPDATE IGNORE or an old server left
        return "null"
    try:
        return _Document(document).value(document[0], 1, 0)
    except (struct.error, IndexError, UnicodeDecodeError, KeyError) as error:
        raise InvalidJson(f"{type(error).__name__}: {error}") from None


class _Document:
    """A document and how many of its bytes are not read yet."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._left = self._size = len(data)

    def value(self, kind: int, at: int, depth: int) -> str:
        """Return the text of a value. :param at: its offset in the document."""
        if kind <= _LARGE_ARRAY:
            return self._members(kind, at, depth + 1)
        if kind == _DOUBLE:
            number = _DOUBLES.unpack_from(self._data, at)[0]
            text = repr(number)
            if len(text) > _PLAIN_DOUBLE or "e" in text:
                text = double_text(number)
            return text if "." in text or "e" in text else text + ".0"
        if kind == _STRING:
            length, at = self._length(at)
            return encode_basestring(self._take(at, length).decode())
        if kind in _NUMBERS:
            return repr(_NUMBERS[kind].unpack_from(self._data, at)[0])
        if kind == _LITERAL:
            return _LITERALS[self._data[at]]
        if kind == _OPAQUE:
            return self._opaque(at)
        raise InvalidJson(f"there is no type {kind}")

    def _members(self, kind: int, start: int, depth: int) -> str:
        """Return the text of an object or array that begins at ``start``."""
        if depth > DEEPEST:
            raise InvalidJson(f"it has more than {DEEPEST} levels")
        large, is_object, data = kind & 1, kind <= _LARGE_OBJECT, self._data
        offset = 4 if large else 2
        count, _ = (_LARGE_SIZES if large else _SMALL_SIZES).unpack_from(data, start)
        self._left -= count * ((offset + 2 if is_object else 0) + offset + 1)
        if self._left < 0:
            raise InvalidJson("it says that it has more than it has")
        layout = _entry_layouts.get((kind, count)) or _entry_layout(kind, count)
        entries = layout.unpack_from(data, start + 2 * offset)
        keys = 2 * count if is_object else 0
        inline, size, texts = _INLINE[large], self._size, []
        # Short strings and keys are read in place: a call for each costs a tenth of the time.
        for member, number in zip(entries[keys::2], entries[keys + 1 :: 2], strict=True):
            if member == _STRING and data[start + number] <= _SEVEN_BITS:
                at = start + number + 1
                end = at + data[at - 1]
                self._left -= end - at
                if self._left < 0 or end > size:
                    raise InvalidJson(_TOO_SHORT)
                texts.append(encode_basestring(data[at:end].decode()))
            elif as_text := inline[member]:
                texts.append(as_text(number))
            else:
                texts.append(self.value(member, start + number, depth))
        if not is_object:
            return f"[{', '.join(texts)}]"
        for n in range(count):
            at = start + entries[2 * n]
            end = at + entries[2 * n + 1]
            self._left -= end - at
            if self._left < 0 or end > size:
                raise InvalidJson(_TOO_SHORT)
            key = data[at:end]
            texts[n] = (_key_texts.get(key) or _key_text(key)) + texts[n]
        return f"{{{', '.join(texts)}}}"

    def _length(self, at: int) -> tuple[int, int]:
        """Read a length of seven bits a byte, the least first; return it and where it ends."""
        data = self._data
        first = data[at]
        if first < 128:
            return first, at + 1
        length = shift = 0
        for place in range(at, at + 5):
            length |= (data[place] & 127) << shift
            shift += 7
            if data[place] < 128:
                return length, place + 1
        raise InvalidJson("a length has more than five bytes")

    def _take(self, at: int, length: int) -> bytes:
        self._left -= length
        if self._left < 0 or at + length > self._size:
            raise InvalidJson(_TOO_SHORT)
        return self._data[at : at + length]

    def _opaque(self, at: int) -> str:
        """Return the text of a value of a column's type that JSON has not."""
        kind = self._data[at]
        length, at = self._length(at + 1)
        raw = self._take(at, length)
        if kind == _OPAQUE_DECIMAL:
            return _decimal_text(raw)
        if kind in _OPAQUE_MOMENTS:
            if len(raw) != 8:
                raise InvalidJson(f"a time has {len(raw)} bytes")
            return f'"{_temporal_text(kind, int.from_bytes(raw, "little", signed=True))}"'
        # Whatever the type: bytes of 5.7's functions have 253, and are no text for the server
        # either. It breaks its lines, and JSON texts have none in them.
        return f'"base64:type{kind}:{binascii.b2a_base64(raw, newline=False).decode()}"'


_key_texts: dict[bytes, str] = {}
"""Texts of keys, which are few in a table and many in its rows."""
_MOST_KEYS, _LONGEST_KEY = 4096, 128


def _key_text(raw: bytes) -> str:
    text = encode_basestring(raw.decode()) + ": "
    if len(raw) <= _LONGEST_KEY:
        if len(_key_texts) >= _MOST_KEYS:
            _key_texts.clear()
        _key_texts[raw] = text
    return text


def _entry_layout(kind: int, count: int) -> struct.Struct:
    key, value = ("IH", "BI") if kind & 1 else ("HH", "BH")
    layout = struct.Struct("<" + key * count * (kind <= _LARGE_OBJECT) + value * count)
    if count <= _MANY:
        _entry_layouts[kind, count] = layout
    return layout


def _decimal_text(raw: bytes) -> str:
    precision, scale = raw[0], raw[1]
    whole = precision - scale
    if not 1 <= precision <= _MOST_DIGITS or scale > min(precision, MOST_SCALE):
        raise InvalidJson(f"a decimal has {precision} digits, {scale} behind the point")
    data = bytearray(raw[2:])
    if len(data) != decimal_bytes(whole) + decimal_bytes(scale):
        raise InvalidJson(f"a decimal of {precision} digits has {len(data)} bytes")
    negative = not data[0] & 128
    data[0] ^= 128
    if negative:
        data = bytearray(byte ^ 255 for byte in data)
    number = place = 0
    for digits in (whole % 9, *[9] * (whole // 9), *[9] * (scale // 9), scale % 9):
        width = decimal_bytes(digits)
        number = number * 10**digits + int.from_bytes(data[place : place + width], "big")
        place += width
    sign: Any = int(negative)
    return format(Decimal((sign, tuple(map(int, str(number))), -scale)), "f")


def _temporal_text(kind: int, value: int) -> str:
    """Return the text of a packed date or time, whose last 24 bits are the fraction."""
    sign, value = ("-", -value) if value < 0 else ("", value)
    millionths, value = value & 0xFFFFFF, value >> 24
    clock = f"{value & 63:02d}.{millionths:06d}"
    if kind == _OPAQUE_TIME:
        return f"{sign}{value >> 12 & 0x3FF:02d}:{value >> 6 & 63:02d}:{clock}"
    months, day = value >> 22, value >> 17 & 31
    date = f"{months // 13:04d}-{months % 13:02d}-{day:02d}"
    if kind == _OPAQUE_DATE:
        return date
    return f"{date} {value >> 12 & 31:02d}:{value >> 6 & 63:02d}:{clock}"
