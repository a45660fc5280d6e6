"""Records for the tests of `records`: strategies, and the way from plain records to columns and
back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from onceward.ids import ProducerIdentity
from onceward.kafka.records.batch import Fragment, next_sequence, stamp
from onceward.kafka.records.columns import HEADERS_TYPE, NOW, RecordColumns

IDENTITY = ProducerIdentity(4711, 12)
NOW_MS = 1_700_000_000_000


class Plain(NamedTuple):
    """A record as a test writes it; ``timestamp`` None takes the time of encoding."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp: int | None = None


def short_bytes(most: int = 40) -> st.SearchStrategy[bytes | None]:
    return st.none() | st.binary(max_size=most) | st.integers(0, 300).map(lambda n: b"v" * n)


headers = st.lists(st.tuples(st.text(max_size=6), short_bytes(20)), max_size=4).map(tuple)
timestamps = st.none() | st.integers(NOW_MS - 200, NOW_MS + 200) | st.integers(0, (1 << 54) - 1)
plain_records = st.builds(Plain, short_bytes(), short_bytes(), st.just(()) | headers, timestamps)
record_lists = st.lists(plain_records, min_size=1, max_size=150)


def columns_of(records: Sequence[Plain], *, padded: bool = False) -> RecordColumns:
    """The columns of ``records``; ``padded`` makes them slices of larger arrays."""
    rows = (
        [Plain(b"before", b"x" * 50), *records, Plain(b"after", b"y")] if padded else list(records)
    )
    stamps = [NOW if row.timestamp is None else row.timestamp for row in rows]
    listed = [
        [{"key": name, "value": value} for name, value in row.headers] or None for row in rows
    ]
    columns = RecordColumns(
        key=pa.array([row.key for row in rows], pa.binary())
        if any(row.key is not None for row in rows)
        else None,
        value=pa.array([row.value for row in rows], pa.binary()),
        headers=pa.array(listed, HEADERS_TYPE) if any(row.headers for row in rows) else None,
        timestamp_ms=None
        if all(row.timestamp is None for row in rows)
        else np.array(stamps, np.int64),
    )
    return sliced(columns, 1, len(records)) if padded else columns


def sliced(columns: RecordColumns, start: int, length: int) -> RecordColumns:
    """Return ``length`` rows from ``start``, which share the memory of ``columns``."""
    parts = {field.name: getattr(columns, field.name) for field in fields(columns)}
    return RecordColumns(
        **{
            name: None if part is None else part[start : start + length]
            for name, part in parts.items()
        }
    )


def on_the_wire(
    fragments: Sequence[Fragment], *, base_sequence: int = 0, transactional: bool = True
) -> bytes:
    """The stamped batches of ``fragments`` with consecutive sequences and, as a broker would set
    them, offsets.
    """
    out, sequence, offset = b"", base_sequence, 0
    for fragment in fragments:
        batch = b"".join(stamp(fragment, IDENTITY, sequence, transactional=transactional))
        out += offset.to_bytes(8, "big") + batch[8:]  # the base offset is outside the CRC
        sequence, offset = next_sequence(sequence, fragment.count), offset + fragment.count
    return out


def as_plain(record: Any) -> Plain:
    """A record of `kafka.records.reader` or of kafka-python, whose timestamp is always set."""
    stamped = record.timestamp_ms if hasattr(record, "timestamp_ms") else record.timestamp
    return Plain(
        record.key, record.value, tuple((name, value) for name, value in record.headers), stamped
    )


def expected(records: Sequence[Plain]) -> list[Plain]:
    return [
        row if row.timestamp is not None else row._replace(timestamp=NOW_MS) for row in records
    ]
