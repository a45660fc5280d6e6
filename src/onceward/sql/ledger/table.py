"""Chains in a table of a database: one row a pipeline, changed by its owner only. Driver only.

``owner`` counts takeovers. Taking the chain is one ``UPDATE`` that raises it; an append is one
``UPDATE`` that asks for the owner and the sequence that it knows, and changes no row if somebody
else has been there. Not obvious is that a ``COMMIT`` without an answer may still be carried out
*after* somebody has looked. So a doubt is settled by an ``UPDATE`` of the same row: it waits for
the row's lock, sees what became of the commit, and fences it for good. A ``SELECT`` does neither.

What the row says lasts as long as the database's own promise. A standby that is promoted and had
not all of it has lost decisions and takeovers. A query that is running then finds out
(``LedgerBehind``, or ``Fenced``); one that starts just then may write its last batch again.

Beside it a table keeps each batch's record, of the same transaction, for ``onceward verify``.

Sessions are used for one transaction at a time and hold nothing in between. Kinds of servers
differ (:mod:`onceward.sql.ledger.database`): what each needs stands in :mod:`postgresql` and
:mod:`mysql`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from onceward import surroundings
from onceward.engine.ledger.chain import (
    Chain,
    cut_off_error,
    new_owner,
    takeover_error,
    takeover_lost_error,
)
from onceward.engine.ledger.record import LedgerRecord, decode, encode
from onceward.errors import (
    AdmissionRefused,
    CommitInDoubt,
    LedgerBehind,
    LedgerUnreachable,
    OncewardError,
    SendFailed,
    TransactionTimedOut,
)
from onceward.ids import AttemptId, PipelineId
from onceward.sql.ledger import database
from onceward.sql.ledger.database import Database, Session

log = logging.getLogger(__name__)

Work = Callable[[Session], None]
Refusal = Callable[[Exception, str], OncewardError]

DEFAULT_TABLE = "onceward_ledger"
BATCHES = "_batches"
"""Ends the name of the table with the records of batches."""
BATCHES_KEPT = 10_000
"""Of each pipeline, the newest."""
_USUAL = (
    "see that the database answers and lets the url's login in (its password; of PostgreSQL "
    "pg_hba.conf, too), and that this may SELECT there (a pipeline's also INSERT, UPDATE, DELETE, "
    "and CREATE where the table is missing)"
)
_IDLE_MS = 30_000
_STATEMENT_MS = 60_000
_LARGE_BYTES = 1 << 20
_NOBODY = -1
_RESTORED = (
    "the database was restored from an older copy, or a standby was promoted that had not all of "
    "it"
)
# Later ones are of a ledger whose row somebody has removed since.
_KEEP_NO_OTHER = "DELETE FROM {batches} WHERE pipeline = %s AND (sequence <= %s OR sequence > %s)"
_KEPT = (
    "SELECT record FROM {batches} WHERE pipeline = %s ORDER BY sequence DESC, state DESC LIMIT %s"
)
_TAKE = (
    "UPDATE {table} SET owner = greatest(owner + 1, %s), changed_at = CURRENT_TIMESTAMP(6) WHERE "
    "pipeline = %s"
)
_TAKE_AGAIN = _TAKE + " AND owner = %s"
_APPEND = (
    "UPDATE {table} SET sequence = %s, state = %s, record = %s, changed_at = CURRENT_TIMESTAMP(6) "
    "WHERE pipeline = %s AND owner = %s AND sequence = %s AND state = %s"
)
_IDENTITY = "SELECT identity FROM {table} WHERE pipeline = %s"
_PIPELINES = "SELECT pipeline FROM {table} ORDER BY pipeline"
_READ = "SELECT owner, sequence, record, state FROM {table} WHERE pipeline = %s"


def _refused(error: Exception, what: str) -> OncewardError:
    """Return the error for a refused COMMIT that changed the ledger's rows only."""
    return SendFailed(
        f"{what}: {error}",
        next_step="the batch runs again; if it repeats, see what the server says",
    )


class TableChain(Chain):
    """See the module."""

    owners_grow = True

    def __init__(self, database: Database, table: str, pipeline: PipelineId) -> None:
        self._database = database
        self._named = table
        self._pipeline = pipeline
        self._place = f"table {table} of {database.host}"
        self._connection: Session | None = None
        self._owner = _NOBODY
        self._attempts = 0
        self._put: LedgerRecord | None = None
        self._refusal: Refusal = _refused
        self.connections = 0
        """So often a session was opened: settings of the server are looked at again."""

    def peek(self) -> LedgerRecord | None:
        if not self._is_there(self._named):
            return None
        found = self._read_row(_READ, (self._pipeline,))
        return None if found is None else self._decoded(found[2])

    def take(self) -> LedgerRecord | None:
        if not self._is_there(self._named):
            self._create(self._database.create)
        if not self._is_there(self._named + BATCHES):
            self._create(self._database.create_batches)
        with self._talking() as connection:
            self._durably(connection)
            connection.execute(
                self._sql(self._database.be_there),
                (self._pipeline, surroundings.random_bytes(16).hex()),
            )
            connection.execute(self._sql(_TAKE), (new_owner(), self._pipeline))
            found = connection.execute(self._sql(_READ), (self._pipeline,)).fetchone()
            connection.commit()
        return self._now_ours(found)

    def _create(self, statement: str) -> None:
        # Of two who create it at once one may be told that it is there
        with self._talking() as connection:
            try:
                connection.execute(self._sql(statement))
                connection.commit()
            except self._database.errors as error:
                if not self._database.was_there(error):
                    raise
                connection.rollback()

    def _is_there(self, table: str) -> bool:
        """Return whether the ledger's table exists; one that a crash may empty is refused."""
        found = self._read_row(*self._database.asked_for(table))
        if found is not None:
            self._database.must_last(found, table, self._place)
        elif self._database.hides_tables:
            self._must_not_be_hidden(table)
        return found is not None

    def _must_not_be_hidden(self, table: str) -> None:
        """Let the server say what it has against a table that it does not list. Taken for one that
        is not there, a ledger would seem empty, and a pipeline a new one.
        """
        with (
            self._talking() as connection,
            connection.patience.of(database.READ_SECONDS, "a look at the ledger"),
        ):
            self._database.begin(connection)
            quoted = self._database.quoted(table)
            try:
                connection.execute(f"SELECT 1 FROM {quoted} LIMIT 0")  # noqa: S608
            except self._database.errors as error:
                if not database.is_missing(error):
                    raise
            connection.commit()

    def _now_ours(self, found: Any) -> LedgerRecord | None:
        if found is None:
            raise self._without_its_row()
        if int(found[1]) < self._known[0]:
            raise self._lost(found)
        self._owner, self._attempts = int(found[0]), 0
        self.last = self._decoded(found[2])
        return self.last

    @property
    def _known(self) -> tuple[int, str]:
        """Sequence and state of the row, as far as known."""
        return (-1, "") if self.last is None else (self.last.sequence, self.last.state.value)

    def newest(self) -> LedgerRecord | None:
        return self._decoded(self._ours()[2])

    def identity(self) -> str:
        found = self._read_row(_IDENTITY, (self._pipeline,))
        if found is None:
            raise self._without_its_row()
        return str(found[0])

    def begin(self, newest: LedgerRecord | None) -> AttemptId:
        found = self._ours()
        if (int(found[1]), found[3]) != self._known:
            raise self._lost(found)
        self._attempts += 1
        return AttemptId(self._owner, self._attempts)

    def append(self, record: LedgerRecord) -> None:
        self.put(record)
        self.commit()

    def put(
        self,
        record: LedgerRecord,
        work: Work = lambda connection: None,
        before: Work = lambda connection: None,
        refusal: Refusal = _refused,
    ) -> None:
        """Make the decision up to its COMMIT. The row is updated first: from then on a newer owner
        that takes the chain waits.

        :param before: what is done in the same session, ahead of the transaction.
        :param work: what becomes true with ``record``, done in the same transaction. What it
            raises undoes all of it.
        :param refusal: the error for one of the server's at the COMMIT, should it be none.
        """
        self._refusal = refusal
        row = (record.sequence, record.state.value, encode(record).decode())
        # an older copy shall not wait for the lock of its heir's decision only to be refused
        self._ours()
        try:
            with self._talking(len(row[2])) as connection:
                before(connection)
                self._durably(connection)
                parameters = (*row, self._pipeline, self._owner, *self._known)
                if connection.execute(self._sql(_APPEND), parameters).rowcount != 1:
                    found = connection.execute(self._sql(_READ), (self._pipeline,)).fetchone()
                    raise self._lost(self._must_be_ours(found))
                connection.execute(self._sql(self._database.keep), (self._pipeline, *row))
                keys = (self._pipeline, record.sequence - BATCHES_KEPT, record.sequence)
                connection.execute(self._sql(_KEEP_NO_OTHER), keys)
                work(connection)
        except BaseException:
            self.abort()
            raise
        self._put = record

    def commit(self) -> None:
        """Commit what was :meth:`put`: the commit point; after an error, :meth:`settle`."""
        record, self._put = self._put, None
        assert record is not None  # noqa: S101 — put
        assert self._connection is not None  # noqa: S101 — or it would have failed
        try:
            # No statement_timeout ends a COMMIT that waits for a standby, and a server that stands
            # still answers keepalives: so this side counts the time. An overdue COMMIT is not
            # cancelled: PostgreSQL takes a cancel for the end of its wait for standbys, and
            # reports the COMMIT as carried out.
            with self._connection.patience.of(
                database.COMMIT_SECONDS, f"the COMMIT of {record.batch}"
            ):
                self._connection.commit()
        except self._database.errors as error:
            self._forget_connection()
            # it is rolled back
            if self._database.ended_before(error):
                # Whoever waited for the row has it now
                self._ours()
                raise TransactionTimedOut(
                    f"{record.batch} was not committed: this process stood still for {_IDLE_MS} "
                    "ms before its COMMIT",
                    next_step="nothing; the batch runs again",
                ) from error
            # Whatever it says: a member that its group has cut off answers with an error of its
            # own, and the others have the transaction.
            doubt = CommitInDoubt(
                f"whether {record.batch} was written to {self._place} is not known: {error}",
                next_step="see that the database answers; the next start of the query asks it",
            )
            doubt.refused = self._refusal(error, f"committing {record.batch} to {self._place}")
            raise doubt from error
        except BaseException:
            # nobody waits for the answer, which would pass for that of the next statement
            self._forget_connection()
            raise
        self.last = record

    def abort(self) -> None:
        self._put = None
        if self._connection is not None:
            try:
                self._connection.rollback()
            except self._database.errors:
                # The server has rolled it back, or does when it sees that nobody is there
                self._forget_connection()

    @contextmanager
    def owned(self) -> Iterator[Session]:
        """Run a transaction that commits only if this process owns the chain until its end. Where
        CREATE and DROP are not transactional, no other caller of this gets in before the end.
        """
        # As in put(): without waiting, where it is not
        self._ours()
        with self._talking() as connection:
            try:
                self._database.hold(connection, self._named, self._pipeline)
                # Anew: in a group of servers it sees what was committed before it began
                self._database.begin(connection)
                found = connection.execute(
                    self._sql(_READ + self._database.for_share), (self._pipeline,)
                ).fetchone()
                self._must_be_ours(found)
                yield connection
                connection.commit()
                self._database.let_go(connection, self._named, self._pipeline)
            except BaseException:
                # and all that it holds
                self._forget_connection()
                raise

    @contextmanager
    def session(self) -> Iterator[Session]:
        """Run a transaction of its own that does not check who owns the chain."""
        with self._talking() as connection:
            self._database.begin(connection)
            yield connection
            connection.commit()

    def settle(self) -> LedgerRecord | None:
        # its own transaction may still be under way: the update below waits for it
        self._forget_connection()
        # A newer owner is one for good: and shall not wait for its decision
        self._ours()
        with self._talking() as connection:
            self._durably(connection)
            parameters = (new_owner(), self._pipeline, self._owner)
            # An update, not a SELECT:
            # 1. the COMMIT of our append gets no answer;
            # 2. a SELECT sees the row as it was, because the server has not carried the COMMIT out
            #    yet;
            # 3. the server carries it out: a batch that counted as lost is decided.
            # An update of the same row waits for its lock, sees what became of the COMMIT, and
            # fences it.
            taken = connection.execute(self._sql(_TAKE_AGAIN), parameters).rowcount == 1
            found = connection.execute(self._sql(_READ), (self._pipeline,)).fetchone()
            if not taken:
                raise self._lost(self._must_be_ours(found))
            connection.commit()
        return self._now_ours(found)

    def history(self, limit: int = 100) -> Iterator[LedgerRecord]:
        return self.history_for(self._pipeline, limit)

    def history_for(self, pipeline: PipelineId, limit: int) -> Iterator[LedgerRecord]:
        """Return the records that are kept of any pipeline of the table, newest first."""
        if not self._is_there(self._named + BATCHES):
            return iter(())
        with self.session() as connection:
            found = connection.execute(self._sql(_KEPT), (pipeline, limit)).fetchall()
        return (
            record for (text,) in found if (record := self._decoded(text, pipeline)) is not None
        )

    def pipelines(self) -> list[PipelineId]:
        """Return every pipeline of the table, this one or another."""
        if not self._is_there(self._named):
            return []
        with self.session() as connection:
            found = connection.execute(self._sql(_PIPELINES)).fetchall()
        return [PipelineId(name) for (name,) in found]

    def close(self) -> None:
        self._forget_connection()

    # the database

    def _ours(self) -> Any:
        return self._must_be_ours(self._read_row(_READ, (self._pipeline,)))

    def _must_be_ours(self, found: Any) -> Any:
        """Check the chain's row.

        :raises Fenced: it has a newer owner: they grow.
        :raises LedgerBehind: it ends before what this owner has seen.
        :raises LedgerOutdated: it has an older owner, and all batches.
        """
        if found is None:
            raise self._without_its_row()
        owner, sequence = int(found[0]), int(found[1])
        if owner > self._owner:
            raise takeover_error(self._pipeline, self._place)
        if sequence < self._known[0]:
            raise self._lost(found)
        if owner < self._owner:
            raise takeover_lost_error(self, self._pipeline, self._place, _RESTORED)
        return found

    def _without_its_row(self) -> LedgerBehind:
        return cut_off_error(self._pipeline, self._place, "has lost its row")

    def _lost(self, found: Any) -> AdmissionRefused:
        """Return the error for a row that is not as this owner has left it."""
        if int(found[1]) == self._known[0]:
            return takeover_lost_error(self, self._pipeline, self._place, _RESTORED)
        what = (
            f"ended with sequence {self._known[0]} ({self._known[1] or 'empty'}) and now ends "
            f"with {found[1]} ({found[3] or 'empty'}): {_RESTORED}"
        )
        return cut_off_error(self._pipeline, self._place, what)

    def _read_row(self, statement: str, parameters: tuple[object, ...]) -> Any:
        """Read one row. A connection that broke since the last batch is replaced once."""
        had_connection = self._connection is not None
        try:
            return self._read(statement, parameters)
        except LedgerUnreachable:
            if not had_connection:
                raise
        return self._read(statement, parameters)

    def _read(self, statement: str, parameters: tuple[object, ...]) -> Any:
        with (
            self._talking() as connection,
            connection.patience.of(database.READ_SECONDS, "a look at the ledger"),
        ):
            self._database.begin(connection)
            found = connection.execute(self._sql(statement), parameters).fetchone()
            connection.commit()
        return found

    def _sql(self, statement: str) -> Any:
        # names that were checked
        quoted = self._database.quoted
        return statement.replace("{table}", quoted(self._named)).replace(
            "{batches}", quoted(self._named + BATCHES)
        )

    def _durably(self, connection: Session) -> None:
        self._database.begin(connection)
        for statement in self._database.durably:
            connection.execute(statement)
        self._database.must_be_one_session(connection)

    def _decoded(self, text: str | None, pipeline: str = "") -> LedgerRecord | None:
        if text is None:
            return None
        return decode(text.encode(), where=f"{self._place}, row {pipeline or self._pipeline!r}")

    @contextmanager
    def _talking(self, record_bytes: int = 0) -> Iterator[Session]:
        """Lend the connection; what fails before a COMMIT was sent has not happened."""
        try:
            yield self._connected()
        except self._database.errors as error:
            self._forget_connection()
            # A server often ends the session without the reason
            large = (
                f"; that it takes the record's {record_bytes} bytes in one statement (MySQL and "
                "MariaDB: SET GLOBAL max_allowed_packet to twice that, and the same in the "
                "server's configuration file)"
            )
            raise LedgerUnreachable(
                f"the ledger in {self._place} cannot be used: {error}",
                next_step=f"{database.server_step(error, _USUAL)}"
                f"{large if record_bytes > _LARGE_BYTES else ''}; then start the query, or look, "
                "again",
            ) from error
        except BaseException as error:
            # No half of it becomes part of what is done next
            self.abort()
            # It may be this session's fault: of a server that is another's standby
            if isinstance(error, SendFailed):
                self._forget_connection()
            raise

    def _connected(self) -> Session:
        if self._connection is None or not self._connection.is_usable:
            self._forget_connection()
            name, began = f"onceward-{self._pipeline}", surroundings.monotonic()
            connection = self._database.connect(name, _IDLE_MS, _STATEMENT_MS)
            self._connection = connection
            self.connections += 1
            took_ms = 1000 * (surroundings.monotonic() - began)
            log.debug("connected to %s in %.0f ms", self._place, took_ms)
            # This may be another server, or what it keeps may have been changed
            if self._owner != _NOBODY:
                self._database.begin(connection)
                for table in (self._named, self._named + BATCHES):
                    found = connection.execute(*self._database.asked_for(table)).fetchone()
                    if found is not None:
                        self._database.must_last(found, table, self._place)
                connection.commit()
        return self._connection

    def _forget_connection(self) -> None:
        connection, self._connection, self._put = self._connection, None, None
        if connection is not None:
            # it is being given up
            with suppress(Exception):
                connection.close()
