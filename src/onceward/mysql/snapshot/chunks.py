"""A chunk of a table as it was at one place of the binlog, E, which lies between two transactions.
Tasks.

1. A view: one transaction that sees all that was committed before E, and maybe more. MySQL commits
   a transaction to its tables after it is in the binlog, and adds it to ``gtid_executed`` only
   then: so the view is opened when E's set is in there. MariaDB returns the binlog place of a
   view, so views are opened until one is at E or later.
2. H, a place at which all that the view sees is in the binlog: asked for after the view is there
   (on MariaDB: its own).
3. The binlog from E to H, of this table and of the chunk's keys. The before-image of a key's
   *first* change is the row at E; if that change inserted the row, there was none.
4. The rows, a block at a time: those that 3 has no change of are as they were at E. The others are
   left out. Their keys, with those of 3, say which number each row has, in an order that does not
   depend on changes.
5. The rows once more, where they were too many to be held.
6. At last, the rows of 3.

So whenever and however often it is read, E's rows come out. A transaction between 1 and 2 is in 3
whether the view sees it or not, and either is right.

If the definition changes between E and H, rows come in the columns that they have when they are
read, and those of 6 in the columns of their change: each as its next change in the stream has it
before. After a TRUNCATE, or a DROP, the rows without changes are gone, and only 6 comes; the
truncation, or the error of the DROP, follows in the stream. A row that is read again after a
change of the definition may so be another one than the first time.

Source of 1: MySQL ``sql/binlog.cc`` (``MYSQL_BIN_LOG::process_commit_stage_queue``: engines
commit, then ``Gtid_state::update_commit_group``); MariaDB, *Enhancements for START TRANSACTION
WITH CONSISTENT SNAPSHOT*.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing

import pyarrow as pa
import pyarrow.compute as pc

from onceward.errors import OncewardError, ServerMisconfigured, ServerUnreachable
from onceward.mysql.binlog.blocks import CHANGES, snapshot_changes, snapshot_table
from onceward.mysql.binlog.compression import COMPRESSED_EVENTS
from onceward.mysql.binlog.decoder import Decoder, inner_events
from onceward.mysql.binlog.event import SET_GTIDS, START_ANEW, BinlogEvent, InvalidCell
from onceward.mysql.binlog.json_rows import ValueForm
from onceward.mysql.binlog.table_map import TableMap
from onceward.mysql.binlog.values import columns_from_text
from onceward.mysql.snapshot.catalogue import TableDescription
from onceward.mysql.snapshot.filtering import range_filter, select_changes
from onceward.mysql.snapshot.keys import Query, range_condition
from onceward.mysql.snapshot.result_set import fetch_columns
from onceward.mysql.snapshot.state import Chunk, describe_if_there, parse_key
from onceward.mysql.source.connection import (
    Server,
    driver,
    driver_errors,
    error_number,
    open_dump,
    open_session,
)
from onceward.mysql.source.settings import ChangesSettings, Coordinates, Position

SESSION_SETTINGS = (
    "SET SESSION time_zone = '+00:00', sql_mode = '', net_write_timeout = 3600, lock_wait_timeout "
    "= 240, transaction_isolation = 'REPEATABLE-READ'"
)
"""Meaning of values, timeout of a slow reader, and of an ALTER TABLE at its end."""
_OLDER_MARIADB = SESSION_SETTINGS.replace("transaction_isolation", "tx_isolation")
_SECONDS = 60.0
_PAUSE = 0.02
_TRIES = 100
_FLUSH_BYTES = 8 << 20
HELD_BYTES = 64 << 20
"""Of a chunk, in a task. A larger one is read twice, for the server's statistics say nothing of a
few large rows among many.
"""
# ER_TABLE_DEF_CHANGED: the table is younger than the view
_DEFINITION_CHANGED = 1412


class ConsistentView:
    """Step 1 and 2: the session's transaction, which sees E and lies before H."""

    def __init__(self, server: Server, as_of: Position, seconds: float = _SECONDS) -> None:
        self._server = server
        self._as_of = as_of
        self._ends = time.monotonic() + seconds
        server.query(
            SESSION_SETTINGS
            if as_of.dialect == "mysql" or server.version >= (11, 1)
            else _OLDER_MARIADB
        )
        if as_of.dialect == "mysql":
            self._wait()

    def open(self) -> Coordinates:
        """Open a new view, and return H."""
        while True:
            self._server.query("ROLLBACK")
            self._server.query("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
            high = self._high()
            if not self._as_of.place.is_at_or_behind(high) or high == self._as_of.place:
                return high
            self.check_deadline(f"its newest view is of {high}")
            time.sleep(0.005)

    def _high(self) -> Coordinates:
        if self._as_of.dialect == "mysql":
            return self._server.end()
        values = self._server.query("SHOW STATUS LIKE 'binlog_snapshot_%'")
        status = {str(name).lower(): value for name, value in values}
        return Coordinates(
            str(status["binlog_snapshot_file"]), int(status["binlog_snapshot_position"])
        )

    def _wait(self) -> None:
        gtids = self._as_of.gtids
        if gtids is None:
            raise ServerMisconfigured(
                f"before {self._as_of.place} there are transactions without a GTID, so nobody can "
                "say when all of them are committed",
                next_step=f"{SET_GTIDS}, and {START_ANEW}; or use another start than initial",
            )
        while gtids:
            ((answer,),) = self._server.query("SELECT WAIT_FOR_EXECUTED_GTID_SET(%s, 1)", (gtids,))
            if answer == 0:
                return
            self.check_deadline("it is not in gtid_executed")

    def check_deadline(self, why: str) -> None:
        """Raise :class:`ServerUnreachable` if no view could be opened for a minute."""
        if time.monotonic() > self._ends:
            raise ServerUnreachable(
                "the server did not show for a minute what its binlog has before "
                f"{self._as_of.place}: {why}",
                next_step="see in SHOW PROCESSLIST what its commits wait for (a semi-synchronous "
                "replica, a full disk)",
            )


def _read_rows(
    server: Server, chunk: Chunk, as_of: Position, settings: ChangesSettings
) -> Iterator[pa.Table]:
    """Read a chunk in a session for this alone; dumps are on others, of the same server."""
    query = server.query
    view, tries = ConsistentView(server, as_of), 0
    while True:
        high = view.open()
        # The transaction holds the definition from here on
        query("SET character_set_results = 'utf8mb4'")
        table = describe_if_there(query, as_of.dialect, chunk["table"], chunk["key"])
        first = _rows_at_first_change(query, chunk, as_of, high, settings)
        untouched = _Untouched(server, table, chunk, as_of, settings.values, first)
        try:
            keys = untouched.keys()
            break
        except driver().MySQLError as error:
            if error_number(error) != _DEFINITION_CHANGED:
                with driver_errors(server.where):
                    raise
            tries += 1
            if tries > _TRIES:
                raise ServerUnreachable(
                    f"the definition of {'.'.join(chunk['table'])} changes again and again while "
                    f"it is read: {error}",
                    next_step="see in SHOW PROCESSLIST who alters it; the query tries again when "
                    "it is started again",
                ) from error
            time.sleep(0.05)
    # The rows of step 6
    there = {key: row for key, row in first.items() if row is not None}
    keys_changed, images = (pa.array(each, pa.string()) for each in (there, there.values()))
    database, name = chunk["table"]
    changed = snapshot_table(
        database, name, keys_changed, images, pa.repeat(pa.scalar(0, pa.int32()), len(there)),
        ts_ms=chunk["ts_ms"], file=as_of.file, pos=as_of.pos,
    )  # fmt: skip
    every = pa.chunked_array([*keys, *changed["key"].chunks], pa.string()).combine_chunks()
    in_order = every.take(pc.sort_indices(every))
    # The transaction holds the table's definition by now
    with driver_errors(server.where):
        for rows in untouched.rows():
            yield _numbered(rows, in_order)
    yield _numbered(changed, in_order)


def _events_before(events: list[BinlogEvent], high: Coordinates) -> list[BinlogEvent]:
    """Return those of a block that are before ``high``: mostly all."""
    if not Coordinates(events[-1].file, events[-1].position).is_at_or_behind(high):
        return events
    return [
        event
        for event in events
        if not Coordinates(event.file, event.position).is_at_or_behind(high)
    ]


def _numbered(rows: pa.Table, in_order: pa.Array) -> pa.Table:
    """Return ``rows``, each with the place of its key in the chunk as its number."""
    place = CHANGES.get_field_index("row")
    numbers = pc.index_in(rows["key"], value_set=in_order)
    return rows.set_column(place, CHANGES.field(place), numbers)


def _rows_at_first_change(
    query: Query,
    chunk: Chunk,
    as_of: Position,
    high: Coordinates,
    settings: ChangesSettings,
) -> dict[str, str | None]:
    """Return, for step 3, the row at E by its key, both as JSON; None where there was none."""
    if as_of.place.is_at_or_behind(high):
        return {}
    table_name, values, skippable = tuple(chunk["table"]), settings.values, settings.skippable
    found: dict[str, str | None] = {}
    filter_range = range_filter(parse_key(chunk["key"]), chunk["after"], chunk["up_to"], query)
    decoder = Decoder(
        as_of.dialect, lambda database, table: (database, table) == table_name, values=values,
        skippable=skippable
    )  # fmt: skip

    def flush() -> None:
        while decoder.has_changes:
            changes = select_changes(decoder.blocks(), filter_range, values)
            for key, op, before in zip(
                *(changes[name].to_pylist() for name in ("key", "op", "before")), strict=True
            ):
                if op != "t":
                    found.setdefault(key, None if op == "c" else before)

    with closing(_read_blocks(settings, as_of, high)) as blocks:
        fed_bytes, file = 0, as_of.file
        for events in blocks:
            for event in events:
                if event.file != file:
                    flush()
                    fed_bytes, file = 0, event.file
                for one in (
                    inner_events(event, skippable) if event.kind in COMPRESSED_EVENTS else (event,)
                ):
                    decoder.feed(one)
                    fed_bytes += one.stop - one.start
                    if fed_bytes >= _FLUSH_BYTES or decoder.is_full:
                        flush()
                        fed_bytes = 0
        flush()
    return found


def _read_blocks(
    settings: ChangesSettings, as_of: Position, high: Coordinates
) -> Generator[list[BinlogEvent], None, None]:
    """Yield all events between ``as_of`` and ``high``.

    A dump that is over before ``high`` continues in another one: the newest events may not be sent
    yet (``sync_binlog``), and a dump that is ended by KILL QUERY sends EOF in the middle.

    Source: MySQL, ``sql/rpl_binlog_sender.cc`` (``Binlog_sender::run``: EOF once the thread is
    killed); MariaDB, ``sql/sql_repl.cc`` (``should_stop``).
    """
    place, ends = as_of.place, time.monotonic() + _SECONDS
    while not place.is_at_or_behind(high):
        start = place
        with open_dump(settings, as_of.server, place) as dump:
            for events in dump.blocks():
                yield _events_before(events, high)
                place = Coordinates(dump.reader.file, dump.reader.position)
                if place.is_at_or_behind(high):
                    return
            place = Coordinates(dump.reader.file, dump.reader.position)
        if place != start:
            ends = time.monotonic() + _SECONDS
        elif time.monotonic() > ends:
            raise ServerUnreachable(
                f"the server did not send for a minute what its binlog has between {place} and "
                f"{high}",
                next_step="see in SHOW PROCESSLIST what its commits wait for, and who ends its "
                "binlog dumps",
                details={"at": str(place)},
            )
        else:
            time.sleep(_PAUSE)


class _Untouched:
    """The rows of a chunk that step 3 (``changed``) has no change of; none without a ``table``."""

    def __init__(
        self,
        server: Server,
        table: TableDescription | None,
        chunk: Chunk,
        as_of: Position,
        values: ValueForm,
        changed: Mapping[str, object],
    ) -> None:
        self._server = server
        self._table = table
        self._chunk = chunk
        self._as_of = as_of
        self._values = values
        self._changed = pa.array(changed, pa.string())
        self._held: list[pa.Table] = []
        self._are_all_held = False

    def keys(self) -> list[pa.Array]:
        """Read all rows for their keys: step 4. As many as there is room for are held."""
        keys: list[pa.Array] = []
        held_bytes = 0
        for changes in self._read():
            keys += changes["key"].chunks
            held_bytes += changes.nbytes
            if held_bytes <= HELD_BYTES:
                self._held.append(changes)
            else:
                self._held = []
        self._are_all_held = held_bytes <= HELD_BYTES
        return keys

    def rows(self) -> Iterator[pa.Table]:
        """Yield them: step 5. Those that are not held are read again."""
        yield from self._held if self._are_all_held else self._read()

    def _read(self) -> Iterator[pa.Table]:
        table = self._table
        if table is None:
            return
        # Texts in their own charsets, as the binlog has them.
        self._server.query("SET character_set_results = NULL")
        statement = (
            f"SELECT {', '.join(table.expressions)} "  # noqa: S608
            f"FROM {table.quoted} FORCE INDEX (PRIMARY) WHERE "
            f"{range_condition(table.key, self._chunk['after'], self._chunk['up_to'])}"
        )
        for columns in fetch_columns(self._server.connection, statement):
            try:
                changes = snapshot_changes(
                    table.map, columns_from_text(table.map, columns), self._values,
                    ts_ms=self._chunk["ts_ms"], file=self._as_of.file, pos=self._as_of.pos,
                )  # fmt: skip
            except InvalidCell as invalid:
                raise _row_error(table.map, columns, invalid) from None
            if len(self._changed):
                is_changed = pc.is_in(changes["key"], value_set=self._changed)
                changes = changes.filter(pc.invert(is_changed))
            yield changes


def _row_error(map: TableMap, columns: Sequence[pa.Array], invalid: InvalidCell) -> OncewardError:
    """Return the error of a row, with its key."""
    error = invalid.error
    key = ", ".join(
        f"{map.columns[place].name} = "
        f"{columns[place][invalid.row].as_py().decode(errors='backslashreplace')[:100]}"
        for place in map.key
    )
    return type(error)(
        f"in the row of {map.name} with {key}: {error.message}",
        next_step=f"{error.next_step}; after a correction start the query again: it reads the row "
        "as it was before, stops once more, at the correction, and says what to put into "
        "pass_over",
        details={**error.details, "key": key},
    )


def read_chunk(settings: ChangesSettings, chunk: Chunk, as_of: Position) -> Iterator[pa.Table]:
    """Yield the rows of one chunk, in a task, as :data:`onceward.mysql.binlog.blocks.CHANGES` with
    the op ``r``, in pieces of some MiB: a table's rows may be much larger than the server's
    statistics say.

    :raises ServerUnreachable: it does not answer, or another one does now.
    :raises BinlogPurged: it has not kept its binlog back to ``as_of``.
    :raises ChangeUnreadable: the table's primary key is another one, or its changes cannot be
        read.
    """
    with open_session(settings, as_of.server) as server:
        yield from _read_rows(server, chunk, as_of, settings)
