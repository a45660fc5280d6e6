"""Transactions that tasks have prepared, as the driver ends them. Driver only; a ``Committer`` of
the engine's.

What if an answer is lost, or the process dies before it notes that a transaction is committed? It
is asked to commit again, and the server does not know the transaction any more: because it was
committed, or because somebody has rolled it back. Each transaction therefore adds a row with its
own name to a table beside the ledger's, its *marker*, which is seen once it is committed. Neither
prepared nor marked is lost. It is first looked whether it is prepared, and then for the marker:
what is committed in between is marked.

Markers of the newest finished batch stay, until the next one is finished: without them a server
that was failed over could not be asked whether it has that batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, ClassVar

from pyspark.sql.types import StructType

from onceward import patience
from onceward.engine.task_writer import Beginner, Task, TaskWriter
from onceward.engine.two_phase import CommitResult
from onceward.errors import LedgerUnreadable, TargetUnreachable
from onceward.sql.ledger.database import Session, server_step
from onceward.sql.sink.columns import Table, fit, staged_columns
from onceward.sql.sink.dialect import Beside
from onceward.sql.sink.run import MARKERS, DatabaseSinkSettings

_IDLE_MS = 30_000
_STATEMENT_MS = 60_000
_PAUSE_SECONDS = 0.01
_COMMIT_PAUSES = 20
_ABORT_PAUSES = 500
"""MySQL and MariaDB notice a moment later that the session that prepared it is gone."""
_USUAL = "see that the database answers and lets the url's login in, and what this may do there"


class PreparedTransactions:
    """Of one pipeline, in one database."""

    committable_version: ClassVar[int] = 1

    def __init__(self, settings: DatabaseSinkSettings) -> None:
        self._settings = settings
        self._pipeline = settings.policy.pipeline
        self._database = settings.ledger.database
        self._dialect = settings.dialect
        self._words = self._dialect.prepared
        self._markers = self._database.quoted(settings.markers)
        self._session: Session | None = None
        self.sessions = 0
        """How many there were: another one may lead to another server."""

    # what the engine asks for

    def begin(self, task: Task) -> TaskWriter:
        """Raise: each frame opens its writers itself
        (:class:`onceward.sql.sink.prepared_target.PreparedAttempt`).
        """
        raise AssertionError("a transaction belongs to a frame")

    def commit(self, name: str) -> CommitResult:
        for _ in range(_COMMIT_PAUSES):
            with self.talking(f"committing {name}") as session:
                if self._words.end(session, "COMMIT", name):
                    return CommitResult.DONE
                # The list first, then the marker. The other way round:
                # 1. no marker is found, because the transaction is still prepared;
                # 2. an older copy commits it;
                # 3. it is not listed any more, and would be reported as lost although its rows are
                #    visible.
                # MySQL and MariaDB also list transactions that they refuse to commit (XAER_NOTA)
                # until the session that prepared them has ended: hence the loop.
                if name not in self._words.listed(session, name):
                    return (
                        CommitResult.ALREADY_DONE
                        if self._marked(session, [name])
                        else CommitResult.LOST
                    )
            patience.pause(_PAUSE_SECONDS)
        return CommitResult.RETRY_LATER

    def abort(self, name: str) -> None:
        """Roll back a prepared transaction."""
        for _ in range(_ABORT_PAUSES):
            with self.talking(f"rolling back {name}") as session:
                if self._words.end(session, "ROLLBACK", name):
                    return
                if name not in self._words.listed(session, name):
                    return
            patience.pause(_PAUSE_SECONDS)
        raise TargetUnreachable(
            f"{name} is prepared, and the session that prepared it has not ended",
            next_step="nothing; the next start of the query rolls it back",
        )

    def recover(self) -> list[str]:
        with self.talking("listing prepared transactions") as session:
            # So begin the names of all its transactions, and of no other's
            return sorted(self._words.listed(session, f"{self._pipeline}@"))

    def upgrade(self, committable: Any, version: int) -> Any:
        raise LedgerUnreadable(
            f"the ledger has a prepared transaction of version {version}, which nobody has ever "
            "written",
            next_step="start with the version of Onceward that wrote it",
        )

    # what the target asks for besides

    def table(self) -> Table:
        """Read the sink's table as it is now; it may change.

        :raises TableMissing, ServerMisconfigured: …
        """
        name = str(self._settings.table)
        with (
            self.talking(f"looking at table {name}") as session,
            self._dialect.translate_errors(f"looking at table {name}"),
        ):
            return self._dialect.catalogue.table_named(session, name, self._settings.ledger.table)

    def landing(self, schema: StructType, mark: str) -> Beginner:
        """Return what opens the writers of a frame's tasks.

        :raises InvalidColumn: the frame does not fit the table.
        """
        staged = staged_columns(schema, self._dialect.catalogue.staged)
        table = self.table()
        written = fit(staged, table, (), (), (), self._dialect.catalogue.fitting)
        what = f"preparing to write to table {table.name}"
        with self.talking(what) as session, self._dialect.translate_errors(what):
            home, _ = self._dialect.catalogue.find_schema(session, self._settings.markers)
            markers = self._dialect.statements.quoted_pair(home, MARKERS)
            beside = Beside(self._settings.ledger.table, markers, home, mark)
            return self._dialect.open_transactions(session, beside, staged, table, written)

    def make_markers(self) -> None:
        """Create the table of markers if it is missing."""
        table = self._settings.markers
        with self.talking(f"making table {table}") as session:
            if self._looked_at(session) is None:
                try:
                    session.execute(self._words.create_markers.replace("{table}", self._markers))
                except self._database.errors as error:
                    if not self._database.was_there(error):
                        raise
                self._looked_at(session)

    def _looked_at(self, session: Session) -> Any:
        """Check the table of markers: a crash must not empty it."""
        table = self._settings.markers
        found = session.execute(*self._database.asked_for(table)).fetchone()
        if found is not None:
            self._database.must_last(found, table, f"table {table} of {self._database.host}")
        return found

    def remove_markers(self, finished: Sequence[str]) -> None:
        """Remove the markers of transactions that will never be committed again."""
        these = f"name IN ({', '.join(['%s'] * len(finished))})"
        with self.talking("removing markers of finished transactions") as session:
            session.execute(
                # Quoted.
                f"DELETE FROM {self._markers} WHERE pipeline = %s AND {these}",  # noqa: S608
                (self._pipeline, *finished),
            )

    def unmarked(self, committed: Sequence[str]) -> list[str]:
        """Return those of transactions that were committed of which the server knows nothing."""
        with self.talking("looking for markers of committed transactions") as session:
            marked = self._marked(session, committed)
        return [name for name in committed if name not in marked]

    def _marked(self, session: Session, committed: Sequence[str]) -> set[str]:
        these = f"name IN ({', '.join(['%s'] * len(committed))})"
        self._database.begin(session)
        found = session.execute(
            # Quoted.
            f"SELECT name FROM {self._markers} WHERE pipeline = %s AND {these}",  # noqa: S608
            (self._pipeline, *committed),
        ).fetchall()
        session.commit()
        return {name for (name,) in found}

    @contextmanager
    def talking(self, what: str) -> Iterator[Session]:
        """Lend a session with autocommit, of a server that keeps prepared transactions. Each new
        session is checked: it may lead to another server.

        :raises TargetUnreachable: the server's error.
        :raises ServerMisconfigured, AccessDenied: the server keeps no prepared transactions, or
            not for this login.
        """
        try:
            yield self._connected()
        except self._database.errors as error:
            # whatever state it is in
            self.close()
            raise TargetUnreachable(
                f"{what} in the database at {self._database.host}: {error}",
                next_step=f"{server_step(error, _USUAL)}; then start the query again",
            ) from error

    def _connected(self) -> Session:
        if self._session is None or not self._session.is_usable:
            self.close()
            session = self._database.connect(f"onceward-{self._pipeline}", _IDLE_MS, _STATEMENT_MS)
            try:
                self._words.each_by_itself(session)
                self._dialect.must_serve(session)
                self._words.must_keep(session)
            except BaseException:
                session.close()
                raise
            self._session = session
            self.sessions += 1
        return self._session

    def close(self) -> None:
        """Give back the session; another one is opened when it is needed."""
        session, self._session = self._session, None
        if session is not None:
            # it is being given up
            with suppress(Exception):
                session.close()
