"""A consistent snapshot in chunks of keys, while others write, without a lock: each chunk is read
**as of one place of the binlog**, whenever it is read.

In reading order: :mod:`catalogue` (what a table looks like, and whether there can be a snapshot of
it), :mod:`keys` (a place between two keys: as JSON, as SQL, and compared with keys in Arrow),
:mod:`state` (what is done, under way and left), :mod:`passing` (which changes of the stream are of
rows that are done), :mod:`as_of` (a chunk), :mod:`results` (rows of a query, as bytes).

The seam with the stream. A batch whose start has the state *s* in ``Position.snapshot``, and whose
end, E, has the state *t*, is made of two things: those changes in [start, E) that :func:`passing`
of *s* lets through, and the chunks that ``t["chunks"]`` names, each as of E (:func:`read`). So a
restart plans it from its two positions alone. E may be the start: then the batch has only chunks,
and the position moves in its ``"snapshot"``.

When to bring chunks: E should be close to the end of the binlog, for what lies between E and the
moment of reading is read again by each chunk. So a driver that is behind lets batches go through
without chunks first.

What is promised: the rows of a chunk are those that the table had at E between two places in the
order of its primary key, each once, with the op ``r`` and E as its place; read again later they
are the same rows, byte for byte, in the same order. Changes of a key come through from the E of
its chunk on: so each key begins with ``r`` or ``c``, and each ``before`` equals the ``after``
before it. What a change of the table's definition does meanwhile stands in :mod:`as_of`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from onceward.errors import ServerUnfit
from onceward.mysql.binlog.changes import Decoder
from onceward.mysql.snapshot.as_of import chunk_as_of
from onceward.mysql.snapshot.catalogue import listed
from onceward.mysql.snapshot.passing import Passing
from onceward.mysql.snapshot.state import Chunk, State, begun, further, is_over, waiting
from onceward.mysql.source.connection import Server, asking, reading
from onceward.mysql.source.position import Position
from onceward.mysql.source.settings import Settings

__all__ = [
    "CHUNKS", "Chunk", "State", "advance", "begin", "begun", "chunks_of", "further", "is_over",
    "passing", "read",
]  # fmt: skip

CHUNKS = 8
"""In a batch: so many tasks have something to read."""


def begin(server: Server, settings: Settings, start: Position) -> State:
    """Beside the driver, once ``start``, where the stream begins, is known: a table that is made
    between the two is there twice, and one that is listed before would be nowhere. What is
    returned becomes ``start.snapshot``.

    :raises ServerUnfit: there can be no snapshot of a table that is wanted, or of this server.
    :raises AccessDenied: a table may not be read, or not all columns of it.
    """
    if server.dialect == "mysql" and (
        start.gtids is None or server.variables("gtid_mode")["gtid_mode"] != "ON"
    ):
        raise ServerUnfit(
            f"{settings.where} has not given each transaction a GTID, so nobody can say which of "
            f"them its tables have",
            next_step="set gtid_mode=ON (by way of OFF_PERMISSIVE and ON_PERMISSIVE, without a "
            "restart), and FLUSH "
            "BINARY LOGS; or use another start than initial",
        )
    return begun(server.ask, server.dialect, listed(server.ask, settings.wanted))


def advance(
    server: Server,
    settings: Settings,
    state: State,
    *,
    caught_up: bool,
    chunks: int = CHUNKS,
    rows: int | None = None,
) -> State | None:
    """Beside the driver, for each batch that starts with ``state``: the state of its end.

    None: the snapshot is over, the batch is of the stream alone, and so are all that follow. May
    take seconds.

    :param caught_up: the batch's end is where the binlog ended just now.
    :raises ChangeUnreadable, ServerUnfit: a table is not as it was, so that the snapshot cannot go
        on.
    """
    if is_over(state):
        return None
    return (
        further(server.ask, server.dialect, state, chunks, rows) if caught_up else waiting(state)
    )


def chunks_of(state: State) -> Sequence[Chunk]:
    """Of the batch at whose end this state is: JSON, one a task."""
    chunks: list[Chunk] = state["chunks"]
    return chunks


def read(settings: Settings, chunk: Chunk, as_of: Position) -> pa.Table:
    """In a task: the rows of one chunk, as :data:`onceward.mysql.binlog.changes.CHANGES`.

    :raises ServerUnreachable: it does not answer, or another one does now. :raises BinlogPurged:
        it has not kept its binlog back to ``as_of``. :raises ChangeUnreadable: see :mod:`as_of`.
    """
    with asking(settings, as_of.server) as server:
        return chunk_as_of(
            server, lambda place: reading(settings, as_of.server, place), chunk, as_of, settings
        )


@contextmanager
def passing(settings: Settings, state: State) -> Iterator[Callable[[Decoder], pa.Table]]:
    """In a task, in the place of ``Decoder.flush``, for a batch that starts with ``state``: only
    changes of rows that are done. What a decoder was fed between two calls must be of one file.
    """
    opened: list[Server] = []

    def ask(statement: str) -> Sequence[tuple[Any, ...]]:
        """Only where a key's order is the server's to say."""
        if not opened:
            opened.append(Server(settings))
        return opened[0].ask(statement)

    filtered = Passing(state, ask)
    try:
        yield lambda decoder: filtered.changes(decoder.blocks(), settings.values)
    finally:
        for server in opened:
            server.close()
