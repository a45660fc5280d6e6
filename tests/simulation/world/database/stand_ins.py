"""Where the simulated database goes: names in the product's modules, and what stands there while a
simulation runs.

Sessions of tasks are kept for each Python worker, of which there is one for each task that runs at
a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from onceward.sql.ledger.mysql import MySQLSession
from onceward.sql.postgresql import staging as postgresql_staging
from onceward.sql.sink.attempt import HeldFrame
from onceward.sql.sink.pieces import SessionCache
from simulation.kernel import current
from simulation.world.database import mysql, postgresql
from simulation.world.database.arrow import Arrow, Columns, RowsTable


def _columns() -> Columns:
    found: Columns = current().world.database.frame_columns
    return found


class _Workers:
    """A worker's :class:`SessionCache`, whichever worker asks: each process has as many as tasks
    ran at a time.
    """

    def __init__(self, kind: str, new: Callable[[], SessionCache[Any]]) -> None:
        self._kind = kind
        self._new = new

    def _kept(self) -> SessionCache[Any]:
        sim = current()
        workers = sim.world.database.workers.setdefault((self._kind, sim.here), [])
        for place, (task, kept) in enumerate(workers):
            if task is sim.current or task.done:
                workers[place] = (sim.current, kept)
                found: SessionCache[Any] = kept
                return found
        workers.append((sim.current, self._new()))
        return workers[-1][1]  # type: ignore[no-any-return]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kept(), name)


class _HeldFrame(HeldFrame):
    """The product's, of rows of the simulation."""

    def __init__(self, dialect: Any, staged: Any, table: Any, name: str, rows: Any) -> None:
        super().__init__(dialect, staged, table, name, RowsTable(rows, _columns()))  # type: ignore[arg-type]


class _PieceBytes:
    """How much a task sends at a time: so many rows of 100 bytes as the setting says."""

    def __le__(self, held: int) -> bool:
        return bool(held >= 100 * current().world.setting.piece_rows)


class _Compute:
    """``pyarrow.compute``, of such columns."""

    @staticmethod
    def equal(column: list[Any], value: Any) -> list[bool]:
        return [one == value for one in column]


@contextmanager
def _readable(rows: RowsTable) -> Iterator[RowsTable]:
    """What LOAD DATA LOCAL asks the client for."""
    yield rows


def _staged_columns(schema: Any, staged: Any) -> dict[str, str]:
    columns = _columns()
    return dict(zip(columns.names, columns.types, strict=True))


_ARROW = Arrow(_columns)
_DATABASE = "onceward.sql.sink"

STAND_INS: list[tuple[str, str, Any]] = [
    ("onceward.sql.ledger.postgresql", "_driver", lambda: postgresql.DRIVER),
    ("onceward.sql.ledger.postgresql", "has_spoken", postgresql.has_spoken),
    ("onceward.sql.ledger.postgresql", "in_time", lambda call, *_, **__: call()),
    ("onceward.sql.ledger.mysql", "connected", mysql.connected),
    ("onceward.sql.mysql.staging", "connected", mysql.connected),
    ("onceward.sql.mysql.prepared", "connected", mysql.connected),
    ("onceward.sql.postgresql.staging", "_driver", lambda: postgresql.TASKS_DRIVER),
    (
        "onceward.sql.postgresql.dialect",
        "connection_words",
        lambda connection: "host=database dbname=app",
    ),
    (
        "onceward.sql.postgresql.staging",
        "sessions",
        _Workers(
            "postgresql",
            lambda: SessionCache(postgresql_staging._answers, postgresql_staging._give_up),
        ),
    ),
    (
        "onceward.sql.mysql.staging",
        "sessions",
        _Workers(
            "mysql",
            lambda: SessionCache(lambda session: session.is_usable, MySQLSession.give_up),
        ),
    ),
    # rows, without Arrow
    (f"{_DATABASE}.pieces", "_PIECE_BYTES", _PieceBytes()),
    (f"{_DATABASE}.run", "bare_deletes", lambda rows, op, read: rows),
    (f"{_DATABASE}.sink", "must_be_a_frame", lambda frame, more="": None),
    (f"{_DATABASE}.sink", "staged_columns", _staged_columns),
    (f"{_DATABASE}.attempt", "staged_columns", _staged_columns),
    (f"{_DATABASE}.prepared", "staged_columns", _staged_columns),
    (f"{_DATABASE}.attempt", "_row_bytes", lambda staged, wide: ""),
    (f"{_DATABASE}.attempt", "HeldFrame", _HeldFrame),
    (f"{_DATABASE}.attempt", "python_values", lambda column, name: column),
    ("onceward.sql.postgresql.dialect", "python_values", lambda column, name: column),
    ("onceward.sql.postgresql.dialect", "pc", _Compute),
    ("onceward.sql.postgresql.staging", "pa", _ARROW),
    ("onceward.sql.postgresql.staging", "storable", lambda rows: rows),
    ("onceward.sql.postgresql.staging", "in_time", lambda connection, call, seconds, what: call()),
    ("onceward.sql.postgresql.prepared", "storable", lambda rows: rows),
    ("onceward.sql.postgresql.dialect", "must_be_storable", lambda rows: None),
    ("onceward.sql.postgresql.dialect", "_without_limits", lambda column: column),
    ("onceward.sql.postgresql.prepared", "pa", _ARROW),
    (
        "onceward.sql.postgresql.prepared",
        "must_stay_as_they_are",
        lambda rows, written, table: None,
    ),
    ("onceward.sql.mysql.staging", "pa", _ARROW),
    ("onceward.sql.mysql.staging", "lines", lambda rows: rows),
    ("onceward.sql.mysql.staging", "readable_file", _readable),
    ("onceward.sql.mysql.prepared", "pa", _ARROW),
    ("onceward.sql.mysql.prepared", "must_stay_as_they_are", lambda rows, written, table: None),
]
"""Modules, names in them, and what these mean in the simulation."""
