"""The settings of a :class:`~onceward.sql.sink.sink.DatabaseSink`, checked and immutable. Driver
only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from onceward.engine.ledger.chain import Ledger
from onceward.engine.policy import SinkPolicy, check_choice, must_be_decided, whole_number
from onceward.errors import ConfigurationError, ContradictoryOptions
from onceward.sql.ledger.database import Database
from onceward.sql.ledger.database_ledger import DatabaseLedger
from onceward.sql.ledger.mysql import MySQL
from onceward.sql.sink.dialect import Dialect


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
"""A table with the name of each prepared transaction that was committed, until its batch is
finished.
"""


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
    def markers(self) -> str:
        """With ``xa``: the table of markers, beside the ledger's table, or where that would be."""
        schema, dot, _ = self.ledger.table.rpartition(".")
        return f"{schema}{dot}{MARKERS}"

    @property
    def control_columns(self) -> tuple[str, ...]:
        """Columns of a frame that say what to do with a row, and are never written."""
        by_table = () if self.table is not None else (TABLE_COLUMN,)
        return (*by_table, self.op_column) if self.mode == "changes" else by_table
