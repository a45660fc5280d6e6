"""Avro's binary encoding, by the specification and nothing else: what tests compare Spark's
reading with.

A schema is JSON already parsed, without references to names. Values: a record is a dict, a union's
value ``(index, value)``, a fixed and bytes are bytes, an enum is its index. :func:`read` is
strict: whatever is wrong is :class:`Malformed`.
"""

from __future__ import annotations

import struct
from typing import Any


class Malformed(Exception):
    """These bytes are no value of the schema."""


def varint(number: int) -> bytes:
    left, out = (number << 1) ^ (number >> 63), bytearray()
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*out, left])


def write(schema: Any, value: Any) -> bytes:
    kind = _kind(schema)
    if kind == "null":
        return b""
    if kind == "boolean":
        return bytes([value])
    if kind in ("int", "long", "enum"):
        return varint(value)
    if kind in ("float", "double"):
        return struct.pack("<f" if kind == "float" else "<d", value)
    if kind in ("bytes", "string"):
        content = value.encode() if isinstance(value, str) else value
        return varint(len(content)) + content
    if kind == "fixed":
        return bytes(value)
    if kind == "union":
        return varint(value[0]) + write(schema[value[0]], value[1])
    if kind == "record":
        return b"".join(write(field["type"], value[field["name"]]) for field in schema["fields"])
    items = value.items() if kind == "map" else value
    each = [write("string", item[0]) + write(schema["values"],
        item[1]) for item in items] if kind == "map" else [
        write(schema["items"], item) for item in items
    ]  # fmt: skip
    return (varint(len(each)) + b"".join(each) if each else b"") + b"\x00"


def read(schema: Any, content: bytes) -> Any:
    """The value that all of ``content`` is. :raises Malformed: it is none."""
    reader = _Reader(content)
    value = reader.value(schema)
    if reader.at != len(content):
        raise Malformed("it goes on")
    return value


def unfold(schema: Any, known: dict[str, Any] | None = None) -> Any:
    """Replace references by what they name: of types that are referred to as they are named."""
    known = {} if known is None else known
    if isinstance(schema, str):
        return known.get(schema, schema)
    if isinstance(schema, list):
        return [unfold(member, known) for member in schema]
    parts = ("items", "values")
    found = schema | {name: unfold(schema[name], known) for name in parts if name in schema}
    if "fields" in schema:
        found["fields"] = [f | {"type": unfold(f["type"], known)} for f in schema["fields"]]
    known[schema.get("name", "")] = found
    return found


def _kind(schema: Any) -> str:
    if isinstance(schema, list):
        return "union"
    return _kind(schema["type"]) if isinstance(schema, dict) else schema


class _Reader:
    def __init__(self, content: bytes) -> None:
        self._content = content
        self.at = 0

    def take(self, size: int) -> bytes:
        if size < 0 or self.at + size > len(self._content):
            raise Malformed("it ends")
        self.at += size
        return self._content[self.at - size : self.at]

    def varint(self, bits: int = 64) -> int:
        number, shift = 0, 0
        while True:
            byte = self.take(1)[0]
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
            if shift >= (70 if bits == 64 else 35):
                raise Malformed("a number without an end")
        number &= (
            1 << bits
        ) - 1  # as every implementation does, whose registers have so many bits
        return (number >> 1) ^ -(number & 1)

    def value(self, schema: Any) -> Any:
        kind = _kind(schema)
        if kind == "null":
            return None
        if kind == "boolean":
            return self.take(1)[0] == 1
        if kind in ("int", "long"):
            number = self.varint()
            if kind == "int" and not -(2**31) <= number < 2**31:
                raise Malformed("more than 32 bits")
            return number
        if kind == "enum":
            index = self.varint(32)
            if not 0 <= index < len(schema["symbols"]):
                raise Malformed("no such symbol")
            return index
        if kind in ("float", "double"):
            return struct.unpack(
                "<f" if kind == "float" else "<d", self.take(4 if kind == "float" else 8)
            )[0]
        if kind in ("bytes", "string"):
            return self.text(kind)
        if kind == "fixed":
            return self.take(schema["size"])
        if kind == "union":
            index = self.varint(32)
            if not 0 <= index < len(schema):
                raise Malformed("no such member")
            return index, self.value(schema[index])
        if kind == "record":
            return {field["name"]: self.value(field["type"]) for field in schema["fields"]}
        return self.blocks(schema, kind)

    def text(self, kind: str) -> Any:
        content = self.take(self.varint())
        if kind == "bytes":
            return content
        try:
            return content.decode()
        except UnicodeDecodeError:
            raise Malformed("no UTF-8") from None

    def blocks(self, schema: Any, kind: str) -> Any:
        found: list[Any] = []
        while (count := self.varint()) != 0:
            if count < 0:
                self.varint()  # the block's size, for those who skip it
            for _ in range(abs(count)):
                key = self.text("string") if kind == "map" else None
                item = self.value(schema["values" if kind == "map" else "items"])
                found.append((key, item) if kind == "map" else item)
        return dict(found) if kind == "map" else found
