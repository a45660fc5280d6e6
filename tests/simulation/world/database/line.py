"""Between a client and the server: how long it takes, what gets lost, and in which order it
happens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from simulation.world.database.results import DONE, Result, Understood
from simulation.world.database.server import Server
from simulation.world.database.session import COMMITTED, Session
from simulation.world.database.trouble import Trouble

FAULTS = {
    "db:refused": "a client cannot connect to the database",
    "db:broken": "a connection breaks before a statement gets to the server, which rolls back",
    "db:lingers": "the server does not notice for up to a minute that a client is gone, and its "
    "locks stay",
    "db:answer lost": "a statement is carried out, and its answer is lost with the connection",
    "db:slow": "a statement takes seconds",
    "db:commit lost": "a COMMIT never gets to the server, and has no answer",
    "db:commit held": "a COMMIT gets to the server late, when its client has given it up",
    "db:commit unanswered": "a COMMIT is carried out, and its answer is lost",
    "db:crash": "the server crashes: sessions end, unlogged tables are empty, what is prepared "
    "stays",
    "db:read only": "the server crashes, and takes no writes for a while when it is there again",
    "db:session ended": "the server ends a session (pg_terminate_backend, KILL, a pooler)",
    "db:deadlock": "a statement is refused for a deadlock with somebody else",
    "db:full": "a statement that writes rows is refused: the disk is full",
    "db:table locked": "somebody else locks the table for up to two minutes",
    "db:ended by hand": "somebody rolls back a prepared transaction that is about to be committed",
    "db:client dies": "a process dies between two statements",
    "db:client stands still": "a process stands still for up to a minute between two statements",
}
_LATENCY = 0.0004
_STEPS = 0.3
"""How many of the statements of a client that is alone take any time at all: who is alone is in
nobody's way.
"""
_SLOW, _HELD, _STILL, _LOCKED = 8.0, 40.0, 60.0, 120.0


def connect(server: Server, name: str) -> Session:
    """:raises Trouble: refused."""
    sim, lots = server.sim, server.sim.lots
    sim.alive()
    sim.park(_LATENCY * 5)
    if not server.up or lots.fires("db:refused"):
        raise Trouble("refused", "connection refused")
    if not server.is_mysql and sim.now < server.read_only_until and not lots.calm:
        raise Trouble("refused", "session is read-only")  # target_session_attrs=read-write
    return Session(server, sim.here, f"{name}@{sim.here.name}")


def arrives(session: Session, what: str, *, writes: bool = False) -> None:
    """A statement of the client's gets to the server; afterwards it is carried out, unless this
    raises.

    :raises Trouble: it does not.
    """
    server = session.server
    sim = server.sim
    sim.alive()
    if session.faults:
        _befall(session, what, writes)
    if len(server.sessions) > 1 or sim.lots.time.random() < _STEPS:
        sim.park(_LATENCY)
    session.look()
    if session.ended:
        raise Trouble(session.ended, "the connection is closed")


def _befall(session: Session, what: str, writes: bool) -> None:
    server = session.server
    sim, lots = server.sim, server.sim.lots
    if lots.fires("db:client dies"):
        sim.kill(sim.here, f"before {what[:40]}")
    if lots.fires("db:client stands still"):
        sim.pause(sim.here, lots.below("db:client stands still", 1000) / 1000 * _STILL)
        sim.park(_LATENCY)
    if lots.fires("db:crash"):
        _crash_soon(server, "db:crash")
    if lots.fires("db:read only"):
        _crash_soon(server, "db:read only")
    if lots.fires("db:session ended"):
        _tell(session, what, "its session was ended")
        session.end("ended")
    if lots.fires("db:broken"):
        _tell(session, what, "the connection breaks before it")
        session.client_is_gone()
        raise Trouble("gone", "server closed the connection unexpectedly")
    if lots.fires("db:slow"):
        late = lots.below("db:slow", 1000) / 1000 * _SLOW
        _tell(session, what, f"takes {late:.1f} s")
        sim.park(late)
    if writes and lots.fires("db:full"):
        raise Trouble("full", "could not extend file: No space left on device")
    if writes and lots.fires("db:deadlock"):
        raise Trouble("deadlock", "deadlock detected")
    if writes and lots.fires("db:table locked"):
        targets = [table for table in server.tables.values() if table.made_for == "target"]
        seconds = lots.below("db:table locked", 1000) / 1000 * _LOCKED
        _tell(session, what, f"somebody else locks {targets[0]} for {seconds:.1f} s")
        server.lock_for_others(targets[0], seconds)


def _crash_soon(server: Server, kind: str) -> None:
    """Often it is back so soon that somebody who was busy elsewhere has not noticed."""
    lots = server.sim.lots
    soon, away = lots.below(kind, 1000) / 1000, lots.below(kind, 1000) / 1000
    server.sim.after(soon * 0.02, server.crash, away**3 * 5, kind == "db:read only")


def answered(session: Session, what: str) -> None:
    """The statement was carried out. :raises Trouble: its client does not hear of it."""
    if session.ended:
        raise Trouble(session.ended, "the connection is closed")
    if session.server.sim.lots.fires("db:answer lost"):
        _tell(session, what, "its answer is lost")
        session.client_is_gone()
        raise Trouble("gone", "server closed the connection unexpectedly")


def execute(session: Session, sql: str, parameters: Any) -> Any:
    """A statement, and its answer.

    :raises Trouble: the server's, or there is no answer.
    """
    understood, parameters = session.server.understood(session, sql, parameters)
    if understood.act is not None:
        act = understood.act
        outcome = end(session, sql, lambda: act(session))
        if outcome is not None:
            raise outcome
        return DONE
    arrives(session, sql, writes=understood.writes)
    result = session.run(understood, parameters)
    if session.faults:
        answered(session, sql)
    return result


def end(session: Session, what: str, carry_out: Callable[[], Any]) -> Any:
    """A message that makes something true: it is carried out by the server itself, whatever
    becomes of its client.

    :param carry_out: what the server does; what it answers.
    :raises Trouble: there is no answer.
    """
    arrives(session, what)
    server = session.server
    sim, lots, transaction = server.sim, server.sim.lots, session.transaction
    if session.faults:
        if (
            server.prepared
            and what.startswith(("COMMIT PREPARED", "XA COMMIT"))
            and lots.fires("db:ended by hand")
        ):
            _tell(session, what, "somebody rolls it back before")
            for prepared in [one for one in server.prepared.values() if one.session is None]:
                server.roll_back(prepared)
        if lots.fires("db:commit lost"):
            _tell(session, what, "never arrives")
            sim.park(_LATENCY * 3)
            session.client_is_gone()
            raise Trouble("gone", "server closed the connection unexpectedly")
        if lots.fires("db:commit held"):
            late = lots.below("db:commit held", 1000) / 1000 * _HELD
            _tell(session, what, f"arrives {late:.1f} s late")
            if transaction is not None:
                transaction.in_flight = True
            sim.after(late, _carried_out_late, session, carry_out)
            sim.park(lots.below("db:commit held", 100) / 100 * late)
            session.closed = True
            raise Trouble("gone", "could not receive data from server: Connection timed out")
        if lots.fires("db:commit unanswered"):
            _tell(session, what, "is carried out, and not answered")
            sim.after(_LATENCY / 2, _carried_out_late, session, carry_out)
            if transaction is not None:
                transaction.in_flight = True
            sim.park(_LATENCY * 2)
            session.client_is_gone()
            raise Trouble("gone", "server closed the connection unexpectedly")
    if transaction is not None:
        transaction.in_flight = True
    outcome: list[Any] = []
    sim.after(_LATENCY / 2, _carried_out, session, carry_out, outcome)
    sim.park(_LATENCY)
    if session.ended or not outcome:
        raise Trouble(session.ended or "gone", "the connection is closed")
    return outcome[0]


def _carried_out(session: Session, carry_out: Callable[[], Any], outcome: list[Any]) -> None:
    if session.ended:
        return
    outcome.append(carry_out())
    if not session.process.alive:
        session.end("gone")


def _carried_out_late(session: Session, carry_out: Callable[[], Any]) -> None:
    session.look()
    if not session.ended:
        carry_out()
        session.end("gone")


def commit(session: Session) -> None:
    """Of the session's transaction, if it has one.

    :raises Trouble: no answer, or the session was over before.
    """
    transaction = session.transaction
    if transaction is None:
        if session.ended:
            raise Trouble(session.ended, "the connection is closed")
        return

    def carry_out() -> bool:
        session.server.carry_out(transaction)
        return transaction.state == COMMITTED

    end(session, "COMMIT", carry_out)
    session.transaction = None


def roll_back(session: Session) -> None:
    """:raises Trouble: the connection is gone, and with it the transaction."""
    if session.ended:
        raise Trouble(session.ended, "the connection is closed")
    transaction = session.transaction
    if transaction is not None:
        arrives(session, "ROLLBACK")
        session.server.roll_back(transaction)
        session.transaction = None


def _tell(session: Session, what: str, fate: str) -> None:
    sim = session.server.sim
    if sim.tell is not None:
        sim.tell(sim.now, session.name, f"⚡ {' '.join(what.split())[:60]}: {fate}")


def tell(session: Session, what: str, fate: Any) -> None:
    """For the timeline, if there is one."""
    _tell(session, what, str(fate))


def copy(session: Session, name: str, rows: Any, mode: int) -> None:
    """Rows into a table, sent as they go: who stands still, or dies, in the middle has done
    nothing, and holds the lock of the table for so long.

    :raises Trouble: …
    """
    arrives(session, f"COPY {name}", writes=True)
    session.run(Understood(lambda s, t, p: _copied(s, t, name, rows, mode), writes=True), ())
    session.server.sim.park(_LATENCY)  # the answer is on its way, and the rows are there
    if session.faults:
        answered(session, f"COPY {name}")


def _copied(session: Session, transaction: Any, name: str, rows: Any, mode: int) -> Result:
    server = session.server
    table = server.table(name, transaction)
    session.lock(table.lock, transaction, mode)
    table = server.table(name, transaction)  # it may have been dropped meanwhile
    server.sim.park(_LATENCY)
    if session.ended:
        raise Trouble(session.ended, "the connection is closed")
    transaction.appended.append((table, rows.rows_of(table)))
    return DONE
