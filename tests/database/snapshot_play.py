"""A snapshot and its stream, batch by batch, while others write; and what must be true of what
came. Without Spark.
"""

from __future__ import annotations

import random
import threading
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pymysql

from onceward.mysql.binlog.decoder import Decoder
from onceward.mysql.binlog.json_rows import ValueForm
from onceward.mysql.snapshot.chunks import read_chunk
from onceward.mysql.snapshot.filtering import snapshot_filter
from onceward.mysql.snapshot.state import (
    Chunk,
    advance_snapshot,
    begin_snapshot,
    new_state,
)
from onceward.mysql.source.connection import Server, open_dump
from onceward.mysql.source.position_search import starting_position
from onceward.mysql.source.settings import ChangesSettings, Coordinates, Position, make_settings
from onceward.mysql.source.transactions import TransactionWalk
from onceward_testing import LocalMySQL
from support.mysql_client import sql_at

Row = dict[str, Any]


def settings_for(url: str, tables: str, values: ValueForm = "text") -> ChangesSettings:
    return make_settings(
        url=url, tables=tables, starting="latest", max_bytes_per_batch=1 << 30,
        heartbeat_seconds=60.0, pass_over=(),
        values=values,
    )  # fmt: skip


class SnapshotPlay:
    """A query on a schema of its own.

    :param rows: of a chunk. :param chunks: of a batch.
    """

    def __init__(
        self, server: LocalMySQL, *, rows: int = 50, chunks: int = 3, values: ValueForm = "text"
    ) -> None:
        self.url = server.url
        self.schema = f"snap_{uuid.uuid4().hex[:10]}"
        sql_at(self.url, f"CREATE DATABASE {self.schema} CHARACTER SET utf8mb4")
        self.settings = settings_for(self.url, f"{self.schema}.*", values)
        self.rows, self.chunks = rows, chunks
        self.server = Server(self.settings)
        self.changes: list[Row] = []
        """All that came, in order."""
        self.read: list[tuple[Any, Position, pa.Table]] = []
        """Chunks as they were read."""
        self.position: Position

    def close(self) -> None:
        self.server.close()

    def sql(self, *statements: str) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = []
        for statement in statements:
            found = sql_at(self.url, statement.replace("{s}", self.schema))
        return found

    def begin(self) -> SnapshotPlay:
        start = starting_position(self.settings, self.server)
        self.position = replace(start, snapshot=begin_snapshot(self.server, self.settings, start))
        return self

    def batch(self, *, before_reading: Callable[[], object] = lambda: None) -> None:
        """The stream to where the binlog ends now, and the next chunks as of there."""
        start = self.position
        walk = TransactionWalk(start)
        decoder = Decoder(self.server.dialect, self.settings.selects, values=self.settings.values)
        with open_dump(self.settings, start.server, start.place) as dump:
            events = [event for block in dump.blocks() for event in block]
        walk.feed(events)
        assert walk.error is None, walk.error
        end = walk.position()
        tables: list[pa.Table] = []
        with self._flushing(start.snapshot) as flush:
            file = start.file
            for event in events:
                if event.file != file:
                    tables += self._pieces(flush, decoder)
                    file = event.file
                if Coordinates(event.file, event.position).order < end.place.order:
                    decoder.feed(event)
            tables += self._pieces(flush, decoder)
        after = start.snapshot and advance_snapshot(
            self.server,
            start.snapshot,
            caught_up=True,
            chunks=self.chunks,
            rows=self.rows,
        )
        self.position = replace(end, snapshot=after)
        before_reading()
        for chunk in after["chunks"] if after else ():
            rows = whole_chunk(self.settings, chunk, end)
            self.read.append((chunk, end, rows))
            tables.append(rows)
        for table in tables:
            self.changes += table.to_pylist()

    def all(self) -> SnapshotPlay:
        """Until the snapshot is over, and the stream as far as it goes."""
        while self.position.snapshot is not None:
            self.batch()
        self.batch()
        return self

    def _pieces(
        self, flush: Callable[[Decoder], pa.Table], decoder: Decoder
    ) -> Iterator[pa.Table]:
        """At least one, so that there is a table if nothing came."""
        yield flush(decoder)
        while decoder.has_changes:
            yield flush(decoder)

    @contextmanager
    def _flushing(self, state: Any) -> Iterator[Callable[[Decoder], pa.Table]]:
        if state is None:
            yield Decoder.flush
        else:
            with snapshot_filter(self.settings, state) as flush:
                yield flush

    def rows_now(self, table: str) -> dict[str, str]:
        """By key, the table as a snapshot without a writer has it: as JSON."""
        start = starting_position(self.settings, self.server)
        state = advance_snapshot(
            self.server, new_state(self.server, [(self.schema, table)]), caught_up=True, chunks=1,
            rows=1 << 30,
        )  # fmt: skip
        assert state is not None
        chunk = state["chunks"][0]
        found = whole_chunk(self.settings, chunk, start)
        return dict(zip(found["key"].to_pylist(), found["after"].to_pylist(), strict=True))


def whole_chunk(settings: ChangesSettings, chunk: Chunk, as_of: Position) -> pa.Table:
    """Return all pieces of a chunk in the order of their numbers, of which none is missing."""
    rows = pa.concat_tables(read_chunk(settings, chunk, as_of)).combine_chunks().sort_by("row")
    assert rows["row"].to_pylist() == list(range(rows.num_rows))
    return rows


def assert_chained(play: SnapshotPlay, tables: Sequence[str]) -> None:
    """Each key begins with r or c, each before is the after before it, and the end is what is in
    the tables.
    """
    state: dict[tuple[str, str], str] = {}
    for change in play.changes:
        key, op = (change["table"], change["key"]), change["op"]
        if op == "t":
            state = {each: row for each, row in state.items() if each[0] != change["table"]}
        elif op in "rc":
            assert key not in state, (change, state[key])
            assert change["before"] is None
            state[key] = change["after"]
        else:
            assert state.get(key) == change["before"], (change, state.get(key))
            del state[key]
            if op == "u":
                state[key] = change["after"]
            else:
                assert change["after"] is None
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for (table, key), row in state.items():
        found[table][key] = row
    for table in tables:
        assert found[table] == play.rows_now(table), table


def assert_the_same_again(play: SnapshotPlay, every: int = 1) -> int:
    """Each chunk, or some of them, read now, is what it was when it was read first."""
    for chunk, as_of, rows in play.read[::every]:
        again = whole_chunk(play.settings, chunk, as_of)
        assert again.equals(rows), (chunk, as_of.place, again.num_rows, rows.num_rows)
    return len(play.read)


@contextmanager
def writers(
    play: SnapshotPlay,
    statements: Callable[[random.Random], list[str]],
    count: int = 4,
    pause: float = 0.01,
) -> Iterator[None]:
    """Inside, so many sessions carry out what ``statements`` says, a transaction each time."""
    over = threading.Event()
    said = urlsplit(play.url)
    failed: list[BaseException] = []

    def write(seed: int) -> None:
        chosen = random.Random(seed)
        connection = pymysql.connect(
            host=said.hostname, port=said.port or 3306, user=said.username,
            password=said.password or "",
            database=play.schema, charset="utf8mb4", ssl_disabled=True,
            init_command="SET sql_mode = ''",
        )  # fmt: skip
        with connection, connection.cursor() as cursor:
            while not over.wait(pause):
                failure = carried_out(connection, cursor, chosen)
                if failure is not None:
                    failed.append(failure)
                    return

    def carried_out(connection: Any, cursor: Any, chosen: random.Random) -> BaseException | None:
        try:
            for statement in statements(chosen):
                cursor.execute(statement)
            connection.rollback() if chosen.random() < 0.05 else connection.commit()
        except (pymysql.err.OperationalError, pymysql.err.IntegrityError) as error:
            connection.rollback()
            # A deadlock, a lock that is waited for, a key twice.
            return None if error.args[0] in (1213, 1205, 1062) else error
        return None

    threads = [threading.Thread(target=write, args=(seed,)) for seed in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert not failed, failed
