"""What a task reads: a range of bytes of one binlog, or a chunk of a snapshot. Runs in tasks, again if a task fails.

A part is JSON. Of a range: ``file``, ``from`` and ``to``; ``server`` and ``born``, which tell whether it is still the
same file; ``era``, which goes into the rows' positions; ``names``, whether the server compares names without regard to case; ``maps`` and ``gtid`` where it begins inside a transaction: what
its rows are of; ``snapshot`` while one is under way: rows whose chunk has not come yet are left out. Of a chunk:
``chunk``, and ``as_of``, the position at whose moment its rows are read.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from onceward.binlog.changes import CHANGES, Decoder
from onceward.binlog.event import Event
from onceward.binlog.kinds import FORMAT_DESCRIPTION
from onceward.binlog.packed import PACKED, unpacked
from onceward.binlog.stops import place as place_of
from onceward.errors import ServerUnreachable
from onceward.sources.mysql.connection import Server, connecting, reading
from onceward.sources.mysql.position import Place, Position, number_of
from onceward.sources.mysql.settings import Settings

COLUMNS = (
    "op", "db", "table", "key", "before", "after", "ts_ms", "position", "gtid", "file", "pos", "row", "server_id",
)  # fmt: skip
"""Of the frame, in its order."""

_FLUSH_BYTES = 4 << 20
_POSITION = (("pos", 20), ("inner", 10), ("row", 10))
"""Columns, and how many digits each has in a position: as texts, positions are in the order of the binlog."""


def read(settings: Settings, part: Mapping[str, Any]) -> pa.Table:
    """All changes of one part.

    :raises ServerUnreachable: it does not answer, or it is another server now: the batch has to be planned again.
    :raises BinlogPurged, BinlogDamaged, ChangeUnreadable: …
    """
    if "chunk" in part:
        found, era = _chunk(settings, part), Position.from_json(part["as_of"]).era
    else:
        found, era = _range(settings, part), int(part["era"])
    tables = [framed(table, era) for table in found if table.num_rows]
    return pa.concat_tables(tables) if tables else framed(CHANGES.empty_table(), 0)


def framed(changes: pa.Table, era: int) -> pa.Table:
    """Changes as the frame has them."""
    names = pc.unique(changes["file"]).to_pylist()
    numbers = pa.array([f"{era:06d}-{number_of(name):010d}" for name in names], pa.string())
    begins = numbers.take(pc.index_in(changes["file"].combine_chunks(), value_set=pa.array(names, pa.string())))
    texts = [_digits(changes[name].combine_chunks(), digits) for name, digits in _POSITION]
    return changes.append_column("position", pc.binary_join_element_wise(begins, *texts, "-")).select(COLUMNS)


def _digits(column: pa.Array, digits: int) -> pa.Array:
    return pc.utf8_lpad(pc.cast(column, pa.string()), digits, "0")


def _range(settings: Settings, part: Mapping[str, Any]) -> Iterator[pa.Table]:
    settings = settings.for_server(part["names"])
    server, place = str(part["server"]), Place(part["file"], part["from"])
    maps = [base64.b64decode(one) for one in part.get("maps", ())]
    snapshot, passed = part.get("snapshot"), settings.passed_places
    with reading(settings, server, place) as dump:
        decoder = Decoder(
            dump.reader.dialect, settings.wanted, values=settings.values, maps=maps, gtid=part.get("gtid")
        )  # fmt: skip
        passing = _passing(settings, dump.reader.dialect, snapshot)
        held = 0
        for events in dump.blocks(place.file, part["to"]):
            for event in events:
                if event.kind == FORMAT_DESCRIPTION:
                    _must_be_born(event, part["born"])
                if not passed or place_of(event) not in passed:
                    if event.kind in PACKED:
                        held += _unpack(event, decoder)
                    else:
                        decoder.feed(event)
                held += event.stop - event.start
            if held >= _FLUSH_BYTES:
                yield passing(decoder)
                held = 0
        yield passing(decoder)


def _unpack(event: Event, decoder: Decoder) -> int:
    size = 0
    for inner in unpacked(event):
        decoder.feed(inner)
        size += inner.stop - inner.start
    return size


def _must_be_born(event: Event, born: int) -> None:
    if event.timestamp != born:
        raise ServerUnreachable(
            f"{event.file} was begun at {event.timestamp} (seconds since 1970), and the batch was planned with a file of "
            f"that name that was begun at {born}",
            next_step="start the query again: it looks at once whether the server's binlogs were reset",
            details={"known": born, "found": event.timestamp},
        )


def _passing(settings: Settings, dialect: Any, snapshot: Any) -> Any:
    """What is taken of a decoder: all, or what a snapshot lets through."""
    if snapshot is None:
        return Decoder.flush
    raise NotImplementedError


def _chunk(settings: Settings, part: Mapping[str, Any]) -> Iterator[pa.Table]:
    raise NotImplementedError
