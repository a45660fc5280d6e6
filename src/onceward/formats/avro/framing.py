"""How a record tells the schema that it was written with: Confluent's frame. Bytes in, bytes out.

Used by the rest of this folder, in the driver. A framed record is one byte 0, the schema's id as
four bytes, most significant first, and the Avro body (Confluent's *wire format*, which Apicurio's
``ccompat`` API shares).
"""

from __future__ import annotations

PREFIX_BYTES = 5
MAGIC = b"\x00"


def prefix(schema_id: int) -> bytes:
    """Return the five bytes with which a record of schema ``schema_id`` begins."""
    return MAGIC + schema_id.to_bytes(4, "big")


def schema_id(framed: bytes) -> int | None:
    """Return the id that ``framed`` (a record, or its first five bytes) names; None: it is not
    framed."""
    if len(framed) < PREFIX_BYTES or framed[:1] != MAGIC:
        return None
    return int.from_bytes(framed[1:PREFIX_BYTES], "big")
