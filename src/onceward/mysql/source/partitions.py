"""Reads one partition of a batch: a range of bytes of one binlog, or a chunk of a snapshot. Runs
in tasks, again if a task fails.

A partition is JSON. Of a range: ``file``, ``from`` and ``to``; ``server`` and ``born``, which
identify the file; ``era``, which goes into the rows' positions; ``maps`` and ``gtid`` where it
begins inside a transaction; ``snapshot`` while one is under way: rows whose chunk has not come yet
are left out. Of a chunk: ``chunk``, and ``as_of``, the position as of which its rows are read. Of
both ``names``: the server's ``lower_case_table_names``.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from onceward.errors import ServerUnreachable
from onceward.mysql.binlog.blocks import CHANGES
from onceward.mysql.binlog.compression import COMPRESSED_EVENTS
from onceward.mysql.binlog.decoder import Decoder, inner_events
from onceward.mysql.binlog.event import FORMAT_DESCRIPTION, BinlogEvent
from onceward.mysql.snapshot.chunks import read_chunk
from onceward.mysql.snapshot.filtering import snapshot_filter
from onceward.mysql.source.connection import open_dump
from onceward.mysql.source.settings import ChangesSettings, Coordinates, Position, binlog_number

COLUMNS = (
    "op", "db", "table", "key", "before", "after", "ts_ms", "position", "gtid", "file", "pos",
    "row", "server_id",
)  # fmt: skip
"""Columns of the frame, in order."""

_FLUSH_BYTES = 4 << 20
_POSITION = (("pos", 20), ("inner", 10), ("row", 10))
"""Columns with their digits in a position, whose texts are in the binlog's order."""


def read_partition(settings: ChangesSettings, part: Mapping[str, Any]) -> Iterator[pa.Table]:
    """Yield all changes of one partition, in pieces of bounded size.

    :raises ServerUnreachable: it does not answer, or it is another server now: the batch has to be
        planned again.
    :raises BinlogPurged, BinlogCorrupted, ChangeUnreadable: as
        :func:`~onceward.mysql.source.connection.open_dump` and
        :class:`~onceward.mysql.binlog.decoder.Decoder`.
    """
    settings = settings.for_server(part["names"]).for_tables(part.get("tables"))
    if "chunk" in part:
        as_of = Position.from_json(part["as_of"])
        era, tables = as_of.era, read_chunk(settings, part["chunk"], as_of)
    else:
        era, tables = int(part["era"]), _read_range(settings, part)
    for table in tables:
        if table.num_rows:
            yield to_frame(table, era)


def join_pieces(pieces: Iterable[pa.Table]) -> pa.Table:
    """Return all pieces as one table."""
    return pa.concat_tables([to_frame(CHANGES.empty_table(), 0), *pieces])


def to_frame(changes: pa.Table, era: int) -> pa.Table:
    """Return changes with the frame's columns."""
    names = pc.unique(changes["file"]).to_pylist()
    numbers = pa.array([f"{era:06d}-{binlog_number(name):010d}" for name in names], pa.string())
    begins = numbers.take(
        pc.index_in(changes["file"].combine_chunks(), value_set=pa.array(names, pa.string()))
    )
    texts = [
        pc.utf8_lpad(changes[name].combine_chunks().cast(pa.string()), digits, "0")
        for name, digits in _POSITION
    ]
    return changes.append_column(
        "position", pc.binary_join_element_wise(begins, *texts, "-")
    ).select(COLUMNS)


def _read_range(settings: ChangesSettings, part: Mapping[str, Any]) -> Iterator[pa.Table]:
    server, place = str(part["server"]), Coordinates(part["file"], part["from"])
    maps = [base64.b64decode(one) for one in part.get("maps", ())]
    snapshot, skippable = part.get("snapshot"), settings.skippable
    # Changes are all that come, or those that a snapshot lets through
    flushing: AbstractContextManager[Callable[[Decoder], pa.Table]] = (
        nullcontext(Decoder.flush) if snapshot is None else snapshot_filter(settings, snapshot)
    )
    with open_dump(settings, server, place) as dump, flushing as flush:
        decoder = Decoder(
            dump.reader.dialect, settings.selects, values=settings.values, maps=maps,
            gtid=part.get("gtid"),
            lower_case_names=settings.ignores_case, skippable=skippable,
        )  # fmt: skip
        fed_bytes = 0
        for events in dump.blocks(place.file, part["to"]):
            for event in events:
                if event.kind == FORMAT_DESCRIPTION:
                    _check_file_creation_time(event, part["born"])
                for one in (
                    inner_events(event, skippable) if event.kind in COMPRESSED_EVENTS else (event,)
                ):
                    decoder.feed(one)
                    fed_bytes += one.stop - one.start
                    if fed_bytes >= _FLUSH_BYTES or decoder.is_full:
                        fed_bytes = 0
                        while decoder.has_changes:
                            yield flush(decoder)
        while decoder.has_changes:
            yield flush(decoder)


def _check_file_creation_time(event: BinlogEvent, created_at: int) -> None:
    if event.timestamp != created_at:
        raise ServerUnreachable(
            f"{event.file} was begun at {event.timestamp} (seconds since 1970), and the batch was "
            f"planned with a file of that name that was begun at {created_at}",
            next_step="start the query again: it looks at once whether the server's binlogs were "
            "reset",
            details={"known": created_at, "found": event.timestamp},
        )
