"""A store with transactions that outlive whoever has prepared them, as XA has them: begin, write,
prepare, then commit or abort by name. What was not prepared is gone with its session. A name that
was ended once is never prepared again.
"""

from __future__ import annotations

from typing import Any

from onceward import CommitResult, TaskWriter, TwoPhaseCommitSink
from onceward.custom import Task
from simulation.kernel import current
from simulation.kernel.scheduler import Sim
from simulation.spark.frames import Row, Rows
from simulation.world.targets.calls import Server, faults_of

FAULTS = {
    **faults_of("target", "the target"),
    "target:retry later": "the target asks to be asked again, to commit",
    "target:forgets": "the target loses what is prepared",
}


class Prepared:
    """Rows that nobody sees yet. ``at``: since when."""

    __slots__ = ("at", "batch_id", "computation", "rows")

    def __init__(self, rows: list[Row], batch_id: int, computation: int, at: float) -> None:
        self.rows = rows
        self.batch_id = batch_id
        self.computation = computation
        self.at = at


class Store:
    """See the module."""

    __slots__ = (
        "_server",
        "_sim",
        "committed",
        "ended",
        "forgotten",
        "misused",
        "prepared",
        "too_early",
        "visible",
    )

    def __init__(self, sim: Sim) -> None:
        self._sim = sim
        self._server = Server(sim, "target")
        self.prepared: dict[str, Prepared] = {}
        self.committed: set[str] = set()
        self.ended: set[str] = set()
        self.visible: list[tuple[str, Prepared]] = []
        """What readers see, in the order in which they came to see it."""
        self.forgotten: list[str] = []
        self.misused: list[str] = []
        self.too_early: list[str] = []
        """What was to be dropped by a start that was not admitted, and might have been refused."""

    def prepare(self, name: str, rows: Rows) -> None:
        self._server.ask("prepare", self._prepare, name, rows)

    def _prepare(self, name: str, rows: Rows) -> None:
        if name in self.ended or name in self.prepared:
            raise ValueError(f"{name} is known")
        self.prepared[name] = Prepared(list(rows), rows.batch_id, rows.computation, self._sim.now)

    def commit(self, name: str) -> CommitResult:
        if self._sim.lots.fires("target:retry later"):
            return CommitResult.RETRY_LATER
        if name in self.prepared and self._sim.lots.fires("target:forgets"):
            del self.prepared[name]
            self.forgotten.append(name)
        return self._server.ask("commit", self._commit, name)

    def _commit(self, name: str) -> CommitResult:
        if name in self.committed:
            return CommitResult.ALREADY_DONE
        prepared = self.prepared.pop(name, None)
        if prepared is None:
            return CommitResult.LOST
        self.ended.add(name)
        self.committed.add(name)
        self.visible.append((name, prepared))
        return CommitResult.DONE

    def abort(self, name: str) -> None:
        ours = [start for start in self._sim.world.starts if start.process is self._sim.here]
        if ours and not ours[-1].admitted:
            self.too_early.append(
                f"start {ours[-1].number} was to drop {name}, and was not admitted yet"
            )
        self._server.ask("abort", self._abort, name)

    def _abort(self, name: str) -> None:
        self.prepared.pop(name, None)
        if name in self.committed:
            self.misused.append(f"{name} was to be aborted after it had been committed")
        else:
            self.ended.add(name)

    def listed(self, prefix: str) -> list[str]:
        return self._server.ask(
            "list", lambda: [name for name in self.prepared if name.startswith(prefix)]
        )


def store() -> Store:
    """Of the world that runs."""
    found: Store = current().world.store
    return found


class StoreWriter(TaskWriter):
    """One task's transaction."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._rows: Rows | None = None
        self._prepared = False

    def write(self, rows: Rows) -> None:
        current().alive()
        if self._rows is None:
            self._rows = Rows((), rows.batch_id, rows.computation)
        self._rows.extend(rows)

    def pre_commit(self) -> Any:
        if self._rows is None:
            return None
        store().prepare(self._name, self._rows)
        self._prepared = True
        return self._name

    def close(self) -> None:
        """The session ends, and with it what is not prepared."""


class StoreSink(TwoPhaseCommitSink):
    """As a user writes one."""

    def begin(self, task: Task) -> TaskWriter:
        return StoreWriter(task.name)

    def commit(self, committable: Any) -> CommitResult:
        return store().commit(committable)

    def abort(self, committable: Any) -> None:
        store().abort(committable)

    def recover(self) -> list[Any]:
        return store().listed(f"{self.pipeline_id}@")


class NewerStoreSink(StoreSink):
    """The same a release later, with committables of another form."""

    committable_version = 2

    def begin(self, task: Task) -> TaskWriter:
        return _NewerWriter(task.name)

    def commit(self, committable: Any) -> CommitResult:
        return store().commit(committable["name"])

    def abort(self, committable: Any) -> None:
        store().abort(committable["name"])

    def recover(self) -> list[Any]:
        return [{"name": name} for name in super().recover()]

    def upgrade(self, committable: Any, version: int) -> Any:
        return {"name": committable}


class _NewerWriter(StoreWriter):
    def pre_commit(self) -> Any:
        name = super().pre_commit()
        return None if name is None else {"name": name}
