"""What a task reads: a range of bytes of one binlog, or a chunk of a snapshot. Runs in tasks,
again if a task fails.

A part is JSON. Of a range: ``file``, ``from`` and ``to``; ``server`` and ``born``, which tell
whether it is still the same file; ``era``, which goes into the rows' positions; ``maps`` and
``gtid`` where it begins inside a transaction: what its rows are of; ``snapshot`` while one is
under way: rows whose chunk has not come yet are left out. Of a chunk: ``chunk``, and ``as_of``,
the position at whose moment its rows are read. Of both ``names``: does the server compare names
without regard to case?
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from onceward.errors import ServerUnreachable
from onceward.mysql import snapshot as snapshots
from onceward.mysql.binlog.changes import CHANGES, Decoder, opened
from onceward.mysql.binlog.event import Event
from onceward.mysql.binlog.kinds import FORMAT_DESCRIPTION
from onceward.mysql.binlog.packed import PACKED
from onceward.mysql.source.connection import reading
from onceward.mysql.source.position import Place, Position, number_of
from onceward.mysql.source.settings import Settings

COLUMNS = (
    "op", "db", "table", "key", "before", "after", "ts_ms", "position", "gtid", "file", "pos",
    "row", "server_id",
)  # fmt: skip
"""Of the frame, in its order."""

_FLUSH_BYTES = 4 << 20
_POSITION = (("pos", 20), ("inner", 10), ("row", 10))
"""Columns, and how many digits each has in a position: as texts, positions are in the order of the
binlog.
"""


def read(settings: Settings, part: Mapping[str, Any]) -> Iterator[pa.Table]:
    """All changes of one part, in pieces of bounded size.

    :raises ServerUnreachable: it does not answer, or it is another server now: the batch has to be
        planned again.
    :raises BinlogPurged, BinlogDamaged, ChangeUnreadable: …
    """
    settings = settings.for_server(part["names"])
    if "chunk" in part:
        as_of = Position.from_json(part["as_of"])
        yield framed(snapshots.read(settings, part["chunk"], as_of), as_of.era)
        return
    for table in _range(settings, part):
        if table.num_rows:
            yield framed(table, int(part["era"]))


def joined(pieces: Iterable[pa.Table]) -> pa.Table:
    """All of them as one."""
    return pa.concat_tables([framed(CHANGES.empty_table(), 0), *pieces])


def framed(changes: pa.Table, era: int) -> pa.Table:
    """Changes as the frame has them."""
    names = pc.unique(changes["file"]).to_pylist()
    numbers = pa.array([f"{era:06d}-{number_of(name):010d}" for name in names], pa.string())
    begins = numbers.take(
        pc.index_in(changes["file"].combine_chunks(), value_set=pa.array(names, pa.string()))
    )
    texts = [_digits(changes[name].combine_chunks(), digits) for name, digits in _POSITION]
    return changes.append_column(
        "position", pc.binary_join_element_wise(begins, *texts, "-")
    ).select(COLUMNS)


def _digits(column: pa.Array, digits: int) -> pa.Array:
    return pc.utf8_lpad(pc.cast(column, pa.string()), digits, "0")


def _range(settings: Settings, part: Mapping[str, Any]) -> Iterator[pa.Table]:
    server, place = str(part["server"]), Place(part["file"], part["from"])
    maps = [base64.b64decode(one) for one in part.get("maps", ())]
    snapshot, passes = part.get("snapshot"), settings.passes
    with reading(settings, server, place) as dump, _flushing(settings, snapshot) as flush:
        decoder = Decoder(
            dump.reader.dialect, settings.wanted, values=settings.values, maps=maps,
            gtid=part.get("gtid"),
            lower_case_names=settings.any_case, passes=passes,
        )  # fmt: skip
        held = 0
        for events in dump.blocks(place.file, part["to"]):
            for event in events:
                if event.kind == FORMAT_DESCRIPTION:
                    _must_be_born(event, part["born"])
                for one in opened(event, passes) if event.kind in PACKED else (event,):
                    decoder.feed(one)
                    held += one.stop - one.start
                    if held >= _FLUSH_BYTES or decoder.is_full:
                        held = 0
                        while decoder.holds:
                            yield flush(decoder)
        while decoder.holds:
            yield flush(decoder)


def _flushing(
    settings: Settings, state: Any
) -> AbstractContextManager[Callable[[Decoder], pa.Table]]:
    """What is taken of a decoder: all, or what a snapshot lets through."""
    return nullcontext(Decoder.flush) if state is None else snapshots.passing(settings, state)


def _must_be_born(event: Event, born: int) -> None:
    if event.timestamp != born:
        raise ServerUnreachable(
            f"{event.file} was begun at {event.timestamp} (seconds since 1970), and the batch was "
            f"planned with a file "
            f"of that name that was begun at {born}",
            next_step="start the query again: it looks at once whether the server's binlogs were "
            "reset",
            details={"known": born, "found": event.timestamp},
        )
