"""The ledger in a database, as users build it. Driver only."""

from __future__ import annotations

import re
import shlex
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from onceward.engine.ledger.chain import Ledger, LedgerPlace
from onceward.engine.ledger.record import LedgerRecord
from onceward.errors import ConfigurationError
from onceward.ids import PipelineId
from onceward.sql.ledger.database import Database
from onceward.sql.ledger.mysql import MySQL
from onceward.sql.ledger.postgresql import PostgreSQL
from onceward.sql.ledger.table import DEFAULT_TABLE, TableChain

# "_batches" is added
_TABLE = re.compile(r"[a-z_][a-z0-9_]{0,62}(\.[a-z_][a-z0-9_]{0,54})?|[a-z_][a-z0-9_]{0,54}")
_KINDS: dict[str, type[PostgreSQL] | type[MySQL]] = {
    "postgresql": PostgreSQL, "postgres": PostgreSQL, "mysql": MySQL, "mariadb": MySQL,
}  # fmt: skip
"""By the scheme of an address."""


@dataclass(frozen=True)
class DatabaseLedger(Ledger):
    """Chains in a table of a database, which is created when it is missing: PostgreSQL (12 or
    later), MySQL (8.0 or later) or MariaDB (10.6 or later).

    Beside it is a second one, ``…_batches``, with the records of the last 10,000 batches of each
    pipeline.

    Needs the extra ``onceward[postgresql]`` or ``onceward[mysql]``, and for the login the rights
    to SELECT, INSERT, UPDATE and DELETE; CREATE in the schema (MySQL: the database) where the
    tables are missing.

    :param url: ``postgresql://user:password@host:port/database?sslmode=…``, as libpq takes it.
        What is not in it comes from libpq's own variables and files (``PGPASSWORD``,
        ``~/.pgpass``), and ``target_session_attrs`` is ``read-write`` unless it says otherwise, so
        that several hosts may be named. Or ``mysql://user:password@host:port/database?ssl_ca=…``
        or ``mariadb://…``; behind the ``?`` PyMySQL's words. A server that is ``read_only`` for
        the login is not taken either.
    :param table: its name, also ``schema.table``: lower case letters, digits and ``_``.
    :raises ConfigurationError: no such URL or name, or the extra is not installed.
    """

    url: str = field(repr=False)
    table: str = DEFAULT_TABLE
    database: Database = field(init=False, repr=False, compare=False)
    """The server that ``url`` names."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "database", _database_at(self.url))
        is_name = isinstance(self.table, str) and _TABLE.fullmatch(self.table)
        if not is_name or self.database.is_reserved(self.table):
            raise ConfigurationError(
                f"table={self.table!r} is not a usable name",
                next_step="use up to 55 lower case letters, digits and '_', a letter or '_' "
                "first, no word that SQL reserves, and a schema and '.' before it if need be",
            )

    def chain(self, pipeline: PipelineId) -> TableChain:
        return TableChain(self.database, self.table, pipeline)

    def pipelines(self) -> list[PipelineId]:
        """Return the pipelines that have a row in the table; none where it is missing."""
        return self.reader().pipelines()

    def recent(self, pipeline: PipelineId, limit: int = 100) -> list[LedgerRecord]:
        return self.reader().recent(pipeline, limit)

    def reader(self) -> TableReader:
        return TableReader(self.chain(PipelineId("")))

    @property
    def where(self) -> LedgerPlace:
        table = [] if self.table == DEFAULT_TABLE else ["--ledger-table", self.table]
        options = shlex.join(["--ledger-url", self.database.address, *table])
        return LedgerPlace((self.database.where, self.table), options)


class TableReader:
    """A reader of all chains of a table, over one connection for each look. Any thread may ask;
    one at a time is answered.

    :param chain: of no pipeline.
    """

    def __init__(self, chain: TableChain) -> None:
        self._chain = chain
        self._lock = threading.Lock()
        self._looks = 0

    def pipelines(self) -> list[PipelineId]:
        """Return the pipelines that have a row in the table; none where it is missing."""
        with self.looking(), self._lock:
            return self._chain.pipelines()

    def recent(self, pipeline: PipelineId, limit: int = 100) -> list[LedgerRecord]:
        """Return the last records that are kept, newest first."""
        with self.looking(), self._lock:
            return list(self._chain.history_for(pipeline, limit))

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Keep the connection in the block."""
        with self._lock:
            self._looks += 1
        try:
            yield
        finally:
            with self._lock:
                self._looks -= 1
                # Not beyond the look: a server that is no longer the primary may keep it
                if not self._looks:
                    self._chain.close()


def _database_at(url: object) -> Database:
    scheme, _, rest = url.partition("://") if isinstance(url, str) else ("", "", "")
    if scheme in _KINDS and rest:
        return _KINDS[scheme](str(url))
    raise ConfigurationError(
        "DatabaseLedger(url=…) is no address of a database",
        next_step="pass postgresql://user@host:port/database, mysql://user@host:port/database or "
        "mariadb://…; in a password write % as %25, and other special characters in the same way",
    )
