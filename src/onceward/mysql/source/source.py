"""``ow.mysql_changes``: the public function, and the source behind it.

:class:`MySQLChanges` is a :class:`~onceward.PartitionedSource`: :meth:`~MySQLChanges.advance` and
    :meth:`~MySQLChanges.partitions` run in the process that Spark keeps beside the driver, with
    one session to the server; :meth:`~MySQLChanges.read_partition` in tasks. It is pickled to
    both, without its session.

If the process dies: between two of Spark's log entries nothing is kept anywhere but in the
position. A range that was logged and not committed is planned again from its two ends: on the same
server by their coordinates, on another one by their transactions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from onceward.custom.resettable.offsets import position_text
from onceward.custom.resettable.source import DEFAULT_POLL_SECONDS, PartitionedSource
from onceward.engine.ledger.chain import Ledger
from onceward.errors import (
    AccessDenied,
    BinlogCorrupted,
    BinlogPurged,
    OncewardError,
    ServerMisconfigured,
    SourceDataLost,
    SourceReplaced,
)
from onceward.formats.debezium.changes import TABLES, VALUES
from onceward.mysql.binlog.event import START_ANEW
from onceward.mysql.binlog.gtid_sets import Gtids
from onceward.mysql.binlog.json_rows import ValueForm
from onceward.mysql.snapshot.catalogue import list_selected_tables
from onceward.mysql.snapshot.state import advance_snapshot, begin_snapshot, change_tables, is_over
from onceward.mysql.source.connection import Server, follow
from onceward.mysql.source.partitions import COLUMNS, join_pieces, read_partition
from onceward.mysql.source.position_search import (
    check_has_transactions,
    find_after_purge,
    find_position,
    find_renamed_server,
    starting_position,
)
from onceward.mysql.source.ranges import IDLE_BYTES, PlannedRange, RangePlanner
from onceward.mysql.source.requirements import ServerCheck, check_added
from onceward.mysql.source.settings import (
    BATCH_BYTES,
    HEARTBEAT_SECONDS,
    ChangesSettings,
    Position,
    Starting,
    make_settings,
)

_NULLABLE = ("key", "before", "after", "gtid")
_NUMBERS = {"ts_ms": LongType(), "pos": LongType(), "row": IntegerType(), "server_id": LongType()}
SCHEMA = StructType(
    [StructField(name, _NUMBERS.get(name, StringType()), name in _NULLABLE) for name in COLUMNS]
)

_NO_LIMIT = (1 << 31) - 1
# of ranges whose parts Spark may ask for again
_KEPT_PLANS = 2
# Batches in a row: then the snapshot goes on, however far the binlog's end is
_MOST_WITHOUT_CHUNKS = 4


def mysql_changes(
    spark: SparkSession,
    *,
    url: str,
    tables: str | Sequence[str],
    starting: Starting = "initial",
    max_bytes_per_batch: int = BATCH_BYTES,
    heartbeat_seconds: float = HEARTBEAT_SECONDS,
    pass_over: Sequence[str] = (),
    values: ValueForm = "text",
    ledger: Ledger | None = None,
    pipeline_id: str | None = None,
    poll_seconds: float = DEFAULT_POLL_SECONDS,
) -> DataFrame:
    """Return a streaming DataFrame of the changes of a MySQL or MariaDB server's tables, each row
    once, from its binlog.

    Its columns: ``op`` (c, u, d, r: created, updated, deleted, read by the snapshot; t: the table
    was emptied by TRUNCATE), ``db``, ``table``, ``key``, ``before``, ``after`` (JSON objects;
    ``key`` is null where there is no primary key), ``ts_ms``, ``position`` (a text that grows over
    the life of the query, in the order of the binlog), ``gtid``, ``file``, ``pos``, ``row``,
    ``server_id``.

    :param url: ``mysql://user:password@host:port`` or ``mariadb://…``.
    :param tables: ``"shop.orders"``, or several; ``*`` stands for any text: ``"shop.*"``. Tables
        that are created later and match are read, too.
    :param starting: where a query with a new checkpoint begins: ``"initial"`` (all rows that are
        there, then all changes), ``"earliest"``, ``"latest"``, ``{"timestamp": …}`` (a datetime
        with a time zone, or ms since 1970), ``{"gtid": …}`` (behind these transactions),
        ``{"file": …, "position": …}``.
    :param max_bytes_per_batch: of the binlog; a larger transaction is a batch of its own.
    :param heartbeat_seconds: while no selected change comes, the position moves so often, and once
        behind a start, with an empty batch: a server may remove what lies behind it.
    :param pass_over: exceptions that the user has checked: events and rows, as the error named
        them that stopped the query; GTIDs that count as read after a failover;
        ``"cascade:shop.items"`` for a table that a foreign key changes unseen.
    :param values: how values are written in JSON: ``"text"``, as MySQL does, or ``"debezium"``, as
        Debezium does.
    :param ledger: with ``pipeline_id``: a query with a new checkpoint begins where the ledger of
        that pipeline ends.
    :param poll_seconds: a server that had nothing new is asked again after so long.
    :raises ConfigurationError: a setting is invalid.
    """
    settings = make_settings(
        url=url, tables=tables, starting=starting, max_bytes_per_batch=max_bytes_per_batch,
        heartbeat_seconds=heartbeat_seconds, pass_over=pass_over, values=values,
    )  # fmt: skip
    frame = MySQLChanges(settings).stream(
        spark, max_rows_per_batch=_NO_LIMIT, poll_seconds=poll_seconds, ledger=ledger,
        pipeline_id=pipeline_id,
    )  # fmt: skip
    # What ``formats.debezium`` looks for: values in another form would be taken for what they are
    # not, and a table that is not read has no changes, ever.
    form, names = {VALUES: values}, {TABLES: [".".join(one) for one in settings.tables]}
    frame = frame.withMetadata("before", form).withMetadata("after", form)
    return frame.withMetadata("table", names)


@dataclass
class _Progress:
    """How far the binlog was read without a selected change."""

    behind: str
    """The position, as text, that Spark knows."""
    at: Position
    bytes: int
    since: float


class MySQLChanges(PartitionedSource):
    """The source. Positions are :class:`~onceward.mysql.source.settings.Position`."""

    schema = SCHEMA

    def __init__(self, settings: ChangesSettings) -> None:
        self._settings = settings
        self._forget()

    def __getstate__(self) -> dict[str, Any]:
        return {"_settings": self._settings}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    def __repr__(self) -> str:
        return f"MySQLChanges({self._settings.where})"

    def _forget(self) -> None:
        self._session: Server | None = None
        self._server_check = ServerCheck()
        self._ahead: _Progress | None = None
        self._has_logged = False
        """This process has moved the position: one that ends soon does so once at least, or it
        would never move, and the server would remove what lies behind it.
        """
        self._without_chunks = 0
        self._plans: dict[str, list[Any]] = {}
        """By their two ends, as text."""

    # Beside the driver

    def start(self) -> Any:
        """Return the position of ``starting``.

        :raises ServerMisconfigured: the server's settings would lose changes.
        """
        server = self._server(None)
        begins = starting_position(self._settings, server)
        begins = replace(begins, tables=self._settings.patterns)
        if self._settings.starting in ("initial", "latest"):
            # Ahead of the snapshot: one that is renamed between was there
            begins = begins.with_known(list_selected_tables(server, self._settings))
        if self._settings.starting == "initial":
            begins = replace(begins, snapshot=begin_snapshot(server, self._settings, begins))
        return begins.to_json()

    def advance(self, position: Any, limit: int) -> Any:
        """Return the end of the next batch, between two transactions.

        :param limit: events with changes, at most, unless one transaction has more. Each has a row
            at least.
        """
        current = Position.from_json(position)
        server = self._server(current)
        if self._ahead is not None and self._ahead.behind == position_text(position):
            # Up to there no selected change is known to be
            current = self._ahead.at
        begin = _drop_finished_snapshot(self._find_current(server, current))
        if begin.tables is None:
            begin = replace(begin, tables=self._settings.patterns)
        elif begin.tables != self._settings.patterns:
            return self._log(position, self._reading_other_tables(server, begin), [])
        if begin.place == server.end() and begin.snapshot is None:
            return self._log_progress(position, begin, 0)
        begin, planner = self._read(
            begin, lambda at: self._planner(at, max_changes=limit,
            checked_tables=self._server_check.tables)
        )  # fmt: skip
        found = self._check_new_tables(begin, planner)
        if begin.snapshot is not None:
            return self._with_chunks(position, begin, found)
        if found.changes:
            return self._log(position, found.end, self._parts(found, found.end))
        if found.error is not None:
            raise found.error
        return self._log_progress(position, found.end, found.bytes)

    def _reading_other_tables(self, server: Server, at: Position) -> Position:
        """Return ``at`` for the tables that are selected now. Rows of tables that were not
        selected before come as those of a snapshot's other tables do.
        """
        settings = self._settings
        changed = replace(at, tables=settings.patterns)
        before = settings.for_tables(at.tables)
        added = [one for one in settings.tables if not before.selects(*one)]
        if added:
            check_added(server, settings.for_tables(added))
            # Whether a prepared transaction has rows of these nobody has looked
            changed = replace(changed, prepared=None)
        if added and at.known is not None:
            there = list_selected_tables(server, settings.for_tables(added))
            changed = changed.with_known([(name[0], name[1]) for name in [*at.known, *there]])
        if settings.starting != "initial":
            return changed
        return replace(changed, snapshot=change_tables(server, settings, before, at))

    def _check_new_tables(self, begin: Position, planner: RangePlanner) -> PlannedRange:
        """Check the server before an unchecked table is passed on; unfit, the range ends before
        it.
        """
        if planner.unchecked_at is None:
            return planner.range()
        self._server_check.invalidate()
        try:
            self._server_check.run(
                self._connected(), self._settings, read=begin,
                unchecked_tables=planner.unchecked_tables,
            )  # fmt: skip
        except (ServerMisconfigured, SourceDataLost, AccessDenied) as unfit:
            unchecked_at = planner.unchecked_at
            _, before = self._read(begin, lambda at: self._planner(at, upto=unchecked_at))
            before.error = type(unfit)(
                f"{unfit.message}; it was looked at again for what is in the binlog at "
                f"{unchecked_at}, and all changes before are passed on",
                next_step=unfit.next_step,
                details={**unfit.details, "at": str(unchecked_at)},
            )
            return before.range()
        return planner.range()

    def _with_chunks(self, position: Any, begin: Position, found: PlannedRange) -> Any:
        """Return the end of a batch of a snapshot under way: the stream's changes, and chunks as
        of its end, unless that is far from where the binlog ends. But the snapshot of a server
        that is always ahead goes on, too.
        """
        if found.error is not None and not found.changes:
            raise found.error
        is_turn = not found.is_full or self._without_chunks >= _MOST_WITHOUT_CHUNKS
        state = advance_snapshot(
            self._connected(), begin.snapshot, caught_up=found.error is None and is_turn
        )
        self._without_chunks = 0 if state is None or state["chunks"] else self._without_chunks + 1
        end = replace(found.end, snapshot=state)
        return self._log(position, end, self._parts(found, end, begin.snapshot))

    def _log(self, position: Any, end: Position, parts: list[Any]) -> Any:
        self._has_logged = True
        while len(self._plans) >= _KEPT_PLANS:
            del self._plans[next(iter(self._plans))]
        self._plans[position_text([position, end.to_json()])] = parts
        return end.to_json()

    def partitions(self, start: Any, end: Any) -> list[Any]:
        """Return ranges of bytes with changes, one a task."""
        plan = self._plans.get(position_text([start, end]))
        if plan is not None:
            return plan
        return self._planned_again(Position.from_json(start), Position.from_json(end))

    def _find_current(self, server: Server, current: Position) -> Position:
        """Return ``current`` on the server that is there."""
        if current.server != server.identity:
            return find_position(self._settings, server, current)
        check_has_transactions(self._settings, server, current)
        return current

    def _read(
        self, begin: Position, planner_for: Callable[[Position], RangePlanner]
    ) -> tuple[Position, RangePlanner]:
        """Plan from ``begin`` as far as it goes; return the planner, and ``begin``, which is in
        another binlog if its own is gone and all of it was read. An error behind changes is raised
        when they have been passed on.
        """
        planner = planner_for(begin)
        try:
            follow(self._settings, begin, planner.feed)
        except BinlogPurged as gone:
            if planner.place == begin.place:
                return self._read(
                    find_after_purge(self._settings, self._connected(), begin, gone), planner_for
                )
            planner.error = gone
        except (BinlogCorrupted, SourceReplaced) as error:
            planner.error = error
        return begin, planner

    def _planner(self, at: Position, **options: Any) -> RangePlanner:
        server = self._connected()
        return RangePlanner(
            self._settings.for_tables(at.tables),
            at,
            reaches_others=cache(server.reaches_others),
            is_view=cache(server.is_view),
            **options,
        )

    def _log_progress(self, position: Any, at: Position, read: int) -> Any:
        """Return the position to log when no selected change lies before ``at``."""
        behind, now = position_text(position), time.monotonic()
        ahead = self._ahead
        if ahead is None or ahead.behind != behind:
            ahead = self._ahead = _Progress(behind, at, 0, now)
        ahead.at, ahead.bytes = at, ahead.bytes + read
        if at.to_json() == position:
            ahead.since = now
            return position
        is_first = not self._has_logged and (ahead.bytes > 0 or at.file != position["file"])
        due = now - ahead.since >= self._settings.heartbeat_seconds or ahead.bytes >= IDLE_BYTES
        return self._log(position, at, []) if is_first or due else position

    def _parts(self, found: PlannedRange, end: Position, state: Any = None) -> list[Any]:
        """Return the partitions of a range. ``state``: of the snapshot at its start."""
        names = {"names": self._connected().lower_case_table_names, "tables": found.end.tables}
        options = {"server": end.server, **names} | ({"snapshot": state} if state else {})
        ranges = [{**part, **options} for part in found.parts]
        as_of = replace(end, snapshot=None, known=None).to_json()
        chunks = end.snapshot["chunks"] if end.snapshot is not None else []
        return ranges + [{"chunk": chunk, "as_of": as_of, **names} for chunk in chunks]

    def _planned_again(self, start: Position, end: Position) -> list[Any]:
        """Plan a range again that an earlier run has logged."""
        server = self._server(start)
        begin = _drop_finished_snapshot(self._find_current(server, start))
        begin = replace(begin, tables=begin.tables or end.tables)
        check_has_transactions(self._settings, server, end)
        end = find_renamed_server(self._settings, server, end)
        is_here = end.server == server.identity and end.file in server.binlogs()

        def planner_for(at: Position) -> RangePlanner:
            if is_here:
                return self._planner(at, upto=end.place)
            return self._planner(at, only=Gtids.parse(end.dialect, end.gtids or ""))

        begin, planner = self._read(begin, planner_for)
        found = planner.range()
        if not planner.is_done or found.error is not None:
            raise found.error or _short_binlog_error(end, found.end)
        has_chunks = end.snapshot is not None and bool(end.snapshot["chunks"])
        if end.server != server.identity:
            end = find_position(self._settings, server, end, exactly=has_chunks)
        elif not is_here and has_chunks:
            end = find_after_purge(
                self._settings, server, end, _short_binlog_error(end, found.end)
            )
        return self._parts(found, end, begin.snapshot)

    def _server(self, read: Position | None) -> Server:
        """Return the session, after a check of the server where one is due. ``read``: how far."""
        session = self._connected()
        self._server_check.run(session, self._settings, read=read)
        return session

    def _connected(self) -> Server:
        if self._session is not None and not self._session.is_open:
            self._session.close()
            self._session = None
        if self._session is None:
            self._session = Server(self._settings)
            self._settings = self._settings.for_server(
                self._session.lower_case_table_names,
                cascades_are_logged=self._session.cascades_are_logged,
            )
            self._server_check.invalidate()
        return self._session

    # In tasks

    def read_partition(self, partition: Any) -> Any:
        """Return the changes of one partition, as Arrow."""
        return join_pieces(self.read_pieces(partition))

    def read_pieces(self, partition: Any) -> Iterator[Any]:
        """Yield the changes in pieces: MiB of a binlog may become gigabytes of text."""
        return read_partition(self._settings, partition)


def _drop_finished_snapshot(position: Position) -> Position:
    """Return the position without a snapshot whose last chunks came in the batch before."""
    over = position.snapshot is not None and is_over(position.snapshot)
    return replace(position, snapshot=None) if over else position


def _short_binlog_error(end: Position, at: Position) -> OncewardError:
    return BinlogCorrupted(
        f"the server's binlog ends at {at.place}, and a batch was read up to {end.place}",
        next_step="if the server lost what it had written (sync_binlog other than 1), "
        f"{START_ANEW}",
        details={"at": str(at.place)},
    )
