"""The settings of a :class:`~onceward.sql.sink.sink.DatabaseSink`, checked and immutable, and what
one run of a query keeps from batch to batch for its attempts. Driver only; made by :mod:`sink`.

The chain with its session, and the staging tables. A staging table belongs to one attempt, whose
name it has: it is made by the owner of the pipeline only, and is dropped once the attempt is
decided or aborted. What a crash leaves, the next start drops, when no older copy can make another.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

from onceward import surroundings
from onceward.engine.driver_rows import DriverTurn
from onceward.engine.ledger.chain import Ledger
from onceward.engine.policy import (
    SinkPolicy,
    bare_deletes,
    check_choice,
    must_be_decided,
    whole_number,
)
from onceward.engine.task_writer import OpenWriter
from onceward.errors import (
    ConfigurationError,
    ContradictoryOptions,
    Fenced,
    LedgerUnreachable,
    OncewardError,
    SendFailed,
)
from onceward.ids import AttemptId
from onceward.spark.batch.shuffles import Shuffles
from onceward.sql.ledger.database import Database, Session
from onceward.sql.ledger.database_ledger import DatabaseLedger
from onceward.sql.ledger.mysql import MySQL
from onceward.sql.sink.columns import Table, must_be_a_key, must_show_all
from onceward.sql.sink.dialect import Dialect
from onceward.sql.sink.pieces import Bare


def dialect_for(database: Database) -> Dialect:
    """Return the dialect of a database. Import only what that kind of server needs."""
    if isinstance(database, MySQL):
        from onceward.sql.mysql.dialect import MySQLDialect

        return MySQLDialect(database)
    from onceward.sql.postgresql.dialect import PostgreSQLDialect

    return PostgreSQLDialect()


Mode = Literal["append", "upsert", "changes"]

TABLE_COLUMN = "table"

MARKERS = "onceward_prepared"
"""A table with the names of committed prepared transactions, until their batch is finished."""


@dataclass(frozen=True, slots=True)
class DatabaseSinkSettings:
    """:class:`onceward.DatabaseSink` has the words on each.

    :raises ConfigurationError: naming the setting and what it takes.
    """

    policy: SinkPolicy
    ledger: DatabaseLedger
    table: str | None
    mode: Mode
    key: tuple[str, ...]
    order_by: tuple[str, ...]
    op_column: str
    driver_records: int
    driver_bytes: int
    xa: bool = False
    another_ledger: Ledger | None = None
    commit_timeout_s: float = 60.0

    def __post_init__(self) -> None:
        check_choice("mode", self.mode, get_args(Mode))
        whole_number("driver_records", self.driver_records, 0)
        whole_number("driver_bytes", self.driver_bytes, 0)
        if self.table is not None and not self.table:
            raise ConfigurationError(
                "table='' names no table",
                next_step="pass table= or schema.table, or leave it out for the column",
            )
        if self.mode == "append" and (self.key or self.order_by):
            raise ContradictoryOptions(
                'mode="append" adds every row, and takes neither key= nor order_by=',
                next_step='leave them out, or use mode="upsert"',
            )
        if self.mode != "append" and not self.key:
            raise ContradictoryOptions(
                f'mode="{self.mode}" needs to know which rows are the same',
                next_step="pass key=, a column or several",
            )
        if set(self.control_columns) & set(self.key):
            raise ContradictoryOptions(
                f"key={list(self.key)} names a column that says what to do with a row, and is not "
                "written",
                next_step="leave it out of the key",
            )
        if self.mode == "changes" and not self.order_by:
            raise ContradictoryOptions(
                'mode="changes" applies the changes of a key in their order, which rows of a '
                "frame have not",
                next_step="pass order_by=, a column or several that grow from change to change of "
                "one key, such as the source's offset",
            )
        if self.xa:
            self._must_be_prepared()
        elif self.another_ledger is not None:
            raise ContradictoryOptions(
                "ledger= is for xa=True; else the ledger is a table of the same database, for it "
                "becomes true with the rows",
                next_step="leave it out, and name the ledger's table by ledger_table= if need be",
            )

    def _must_be_prepared(self) -> None:
        if self.mode != "append":
            raise ContradictoryOptions(
                f'xa=True adds rows, and mode="{self.mode}" replaces some: tasks that meet one '
                "key would wait for each other until the batch is decided, which waits for them",
                next_step='use mode="append" with it, or leave xa= out',
            )
        if self.table is None:
            raise ContradictoryOptions(
                "xa=True writes straight into one table, and table= names none",
                next_step="pass table=, or leave xa= out to write to several tables by the column "
                f"{TABLE_COLUMN!r}; several sinks may be one ow.FanOut",
            )
        must_be_decided(self.decided_in, self.commit_timeout_s)
        longest = self.dialect.prepared.longest_pipeline
        if len(self.policy.pipeline) > longest:
            raise ConfigurationError(
                f"pipeline_id has {len(self.policy.pipeline)} characters; with xa=True it is in "
                f"the names of transactions, where there is room for {longest}",
                next_step="choose a shorter one, or leave xa= out",
            )

    @property
    def dialect(self) -> Dialect:
        """Of the server that the url names."""
        return dialect_for(self.ledger.database)

    @property
    def decided_in(self) -> Ledger:
        """With ``xa``: where decisions are kept."""
        return self.ledger if self.another_ledger is None else self.another_ledger

    @property
    def is_beside_ledger(self) -> bool:
        """With ``xa``: whether the table is known to be in the database of ``decided_in``."""
        ledger = self.decided_in
        here = self.ledger.database.where
        return isinstance(ledger, DatabaseLedger) and ledger.database.where == here

    @property
    def markers(self) -> str:
        """With ``xa``: the table of markers, beside the ledger's table, or where that would be."""
        schema, dot, _ = self.ledger.table.rpartition(".")
        return f"{schema}{dot}{MARKERS}"

    @property
    def control_columns(self) -> tuple[str, ...]:
        """Columns of a frame that say what to do with a row, and are never written."""
        by_table = () if self.table is not None else (TABLE_COLUMN,)
        return (*by_table, self.op_column) if self.mode == "changes" else by_table

    @property
    def bare(self) -> Bare:
        """Of what the server would be asked to hold."""
        op = self.op_column if self.mode == "changes" else None
        read = {*self.key, *self.order_by, *self.control_columns}
        return partial(bare_deletes, op=op, read=read)


log = logging.getLogger(__name__)

_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 2.5, 600.0


class DatabaseRun:
    """See the module."""

    def __init__(self, settings: DatabaseSinkSettings) -> None:
        self.settings = settings
        self.dialect = settings.dialect
        self.chain = settings.ledger.chain(settings.policy.pipeline)
        self.shuffles = Shuffles()
        self.driver_turn = DriverTurn(settings.driver_records, settings.driver_bytes)
        self._prefix = ""
        self.schema = ""
        """Of the ledger's table, and so of staging tables, as it is."""
        # Tables whose attempts are over
        self._over: set[str] = set()
        # Of these such as could not be dropped
        self._left: set[str] = set()
        # So many sessions there were when the server was looked at
        self._looked_at = 0
        self._drop_at = 0.0
        self._pause = _FIRST_PAUSE_SECONDS

    def check_table(self) -> None:
        """Check the table before another owner is fenced, as far as it goes without a frame.

        :raises TableMissing, InvalidColumn: the sink's table is not there, or has no such key.
        """
        name = self.settings.table
        self._must_serve()
        if name is not None:
            try:
                table = self.table_named(name)
            except SendFailed as error:
                # Nothing is sent yet, and nothing runs again by itself
                raise LedgerUnreachable(
                    error.message, next_step="see that the database answers"
                ) from error
            must_be_a_key(self.settings.key, table)
            if self.settings.mode == "changes":
                must_show_all(table)

    def look_again(self) -> None:
        """Check the server again in another session: it may be another one, or was reinstalled."""
        if self.chain.connections != self._looked_at:
            self._must_serve()

    def _must_serve(self) -> None:
        with self.chain.session() as connection:
            self.dialect.must_serve(connection)
        self._looked_at = self.chain.connections

    def table_named(self, name: str) -> Table:
        """Read a table as it is now; it may change.

        :raises TableMissing: there is none.
        """
        with (
            self.chain.session() as connection,
            self.dialect.translate_errors(f"looking at table {name}"),
        ):
            return self.dialect.catalogue.table_named(connection, name, self.settings.ledger.table)

    def staging_name(self, attempt: AttemptId, frame: int) -> str:
        """Return the unique name of the staging table for one frame of a batch attempt."""
        return f"{self._prefix}{attempt.owner}_{attempt.number}_{frame}"

    def in_schema(self, name: str) -> str:
        """Qualify ``name`` with the ledger's schema, where this login may create tables; for
        statements with parameters.
        """
        return self.dialect.statements.quoted_pair(self.schema, name)

    def create_staging(self, name: str, staged: Mapping[str, str]) -> OpenWriter:
        """Create a staging table, owning the chain until it exists; return what opens it in tasks.

        :raises Fenced: somebody newer has the pipeline, and drops what they find.
        """
        with (
            self.chain.owned() as connection,
            self.dialect.translate_errors(f"creating the staging table {name}"),
        ):
            connection.execute(
                self.dialect.statements.staging_table(self.in_schema(name), staged), ()
            )
            return self.dialect.open_staging(connection, self.schema, name, self.settings.bare)

    def drop_later(self, names: Iterable[str]) -> None:
        """Note tables of ended attempts for :meth:`drop_staging`."""
        self._over |= set(names)

    def drop_staging(self) -> None:
        """Drop staging tables of ended attempts. Locked ones are tried again with growing pauses,
        or left to the next start: no batch waits for a dump of the database to end.
        """
        now, over = surroundings.monotonic(), self._over
        self._over = set()
        if self._left and now >= self._drop_at:
            over, self._left = over | self._left, set()
        left = {name for name in sorted(over) if not self._dropped(name, self.chain.session())}
        self._left |= left
        if left:
            self._pause = min(2 * self._pause, _LONGEST_PAUSE_SECONDS)
            self._drop_at = now + self._pause
        elif not self._left:
            self._pause = _FIRST_PAUSE_SECONDS

    def _dropped(self, name: str, session: AbstractContextManager[Session]) -> bool:
        try:
            with session as connection:
                self.dialect.drop_in_a_hurry(connection, self.in_schema(name))
        except Fenced:
            raise
        except OncewardError as error:
            why = error.__cause__ or error
            log.warning(
                "%s: the staging table %s is left for now: %s",
                self.settings.policy.pipeline,
                name,
                why,
            )
            return False
        return True

    def drop_what_is_left(self) -> None:
        """Drop staging tables left over at the start: none was decided. Runs as the owner
        throughout: tables that appear later may be a newer owner's. An earlier owner may be
        creating one just now, and is waited for.
        """
        with self.chain.owned() as connection:
            self.schema, ledger = self.dialect.catalogue.find_schema(
                connection, self.settings.ledger.table
            )
            # Of a ledger, however spelled, and a pipeline in it: others may be in the same schema.
            named_by = f"{ledger}/{self.settings.policy.pipeline}".encode()
            self._prefix = f"onceward_staging_{hashlib.sha256(named_by).hexdigest()[:16]}_"
            found = self.dialect.catalogue.staging_left(connection, self.schema, self._prefix)
        self._left = {name for name in found if not self._dropped(name, self.chain.owned())}
