"""The sink for databases in a simulated world: nothing is violated; what is planted on purpose
is.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from typing import Any

import pytest

from onceward.sql.ledger import mysql, table
from onceward.sql.postgresql.statements import PostgreSQLStatements
from onceward.sql.sink import attempt, prepared, prepared_target, run
from simulation import swarm
from simulation.run import Outcome, simulate, simulate_setting
from simulation.swarm import Setting

SEEDS = 120
Plant = Callable[[pytest.MonkeyPatch], None]


def story(kind: str, seed: int, odds: dict[str, float], **options: Any) -> Outcome:
    """Of that seed, with these faults and no others, in the simplest world but for ``options``:
    what others may draw besides changes nothing here.
    """
    simplest = {name: values[0] for name, values in swarm.part_of(kind).options.items()}
    simplest |= {
        "source_partitions": 3,
        "rows": 4,
        "executors": 2,
        "most_faults": 40,
        "trouble_seconds": 400.0,
        **options,
    }
    return simulate_setting(Setting(seed, kind, 8, odds, None, {}, simplest))


@pytest.mark.lengthy("chaos")
@pytest.mark.parametrize("kind", ["database", "prepared"])
def test_nothing_is_violated(kind: str) -> None:
    batches = 0
    for seed in range(SEEDS):
        outcome = simulate(seed, pipeline=kind, change={"batches": 6})
        assert not outcome.violations, (seed, outcome.violations)
        batches += outcome.batches
    assert batches > 4 * SEEDS


@pytest.mark.lengthy("chaos")
def test_a_staging_table_that_was_locked_at_the_last_start_may_be_left() -> None:
    """1. A task's COMMIT is on its way when the start that it belongs to ends. 2. Until it arrives
    its transaction has the table locked, and the next start leaves it for later. 3. That commits
    its last batch before.
    """
    options = {name: values[0] for name, values in swarm.part_of("database").options.items()}
    options |= {"batch_attempts": 1, "driver_records": 0, "in_process": False, "shuffle": True}
    held = "db:commit held"
    told = simulate_setting(
        Setting(1000297, "database", 6, {held: 8.0}, None, {held: "send"}, options)
    )
    assert [kind for kind, _ in told.fired] == [held] * len(told.fired) != []
    assert not told.violations


def changed(owner: Any, name: str, before: str, after: str) -> Plant:
    """``name`` of ``owner`` with other lines."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        original = getattr(owner, name)
        function = inspect.unwrap(original)
        source = textwrap.dedent(inspect.getsource(function))
        assert before in source
        made: dict[str, Any] = {}
        exec(compile(source.replace(before, after), "planted", "exec"), function.__globals__, made)  # noqa: S102
        patch.setattr(owner, name, made[name])

    return plant


def set_to(owner: Any, name: str, value: Any) -> Plant:
    return lambda patch: patch.setattr(owner, name, value)


CHAIN, ATTEMPT, RUN = table.TableChain, attempt.DatabaseAttempt, run.DatabaseRun
HASTY = {"server": "postgresql", "hasty": True}
STAGED = {
    "server": "postgresql",
    "mode": "append",
    "driver_records": 0,
    "shuffle": True,
    "tasks": 4,
    "slots": 1,
}

PLANTED: dict[str, tuple[str, Plant, dict[str, float], dict[str, Any]]] = {
    "a doubt is only looked at": (
        "database",
        changed(
            CHAIN, "settle",
            "connection.execute(self._sql(_TAKE_AGAIN), parameters).rowcount == 1\n",
            "True\n",
        ),
        {"db:commit held": 4},
        {},
    ),
    "anybody appends": (
        "database",
        set_to(table, "_APPEND", table._APPEND.replace("owner = %s", "owner >= %s - 1000000")),
        {"user:second copy": 1},
        {},
    ),
    "a takeover may be undone": (
        "database", changed(CHAIN, "take", "self._durably(connection)", "pass"),
        {"db:crash": 40, "user:second copy": 2},
        HASTY,
    ),
    "every attempt of a task counts": (
        "database",
        changed(PostgreSQLStatements, "staged_by", "{TASK} = ANY", "{TASK} >= 0 OR {TASK} = ANY"),
        {"spark:task fails": 6},
        {**STAGED, "piece_rows": 2, "piece": 2},
    ),
    "staged rows are not counted": (
        "database", changed(ATTEMPT, "_append", "if moved != "
                                                "part.expected", "if moved > part.expected"),
        {"db:crash": 20},
        STAGED,
    ),
    "anybody makes a staging table": (
        "database", changed(RUN, "create_staging", "self.chain.owned()", "self.chain.session()"),
        {"user:second copy": 10, "pause:plan.finished": 6, "crash:send.finished": 6},
        {**STAGED, "in_process": False},
    ),
    "rows come true before the decision": (
        "database", changed(CHAIN, "put", "work(connection)", "connection.commit()\n            "
                                                              "work(connection)"),
        {"crash:commit.started": 5},
        {},
    ),
    "staging is left": (
        "database", changed(RUN, "drop_what_is_left", "in found if", "in [] if"),
        {"crash:send.finished": 5},
        STAGED,
    ),
    "what is unknown was committed": (
        "prepared",
        changed(
            prepared.PreparedTransactions, "commit",
            "if self._marked(session, [name])", "if True",
        ),
        {"db:ended by hand": 8},
        {},
    ),
    "a marker goes with its commit": (
        "prepared",
        changed(
            prepared.PreparedTransactions, "commit", "return CommitResult.DONE",
            "self.remove_markers([name])\n                return CommitResult.DONE",
        ),
        {"db:client dies": 60},
        {},
    ),
    "what an older copy prepared meanwhile stays": (
        "prepared", set_to(prepared_target.PreparedTarget, "_is_older", lambda self, name,
        owner: False),
        {"user:second copy": 3},
        {"once_more": False},  # that start would remove it
    ),
    "who makes a staging table is not waited for": (
        "database", set_to(mysql.MySQL, "hold", lambda *who: None),
        {"db:client stands still": 30},
        {**STAGED, "server": "mysql", "watched": True, "in_process": False},
    ),
    "who looks for staging tables waits for nobody": (
        "database", changed(RUN, "drop_what_is_left", "with self.chain.owned()",
        "with self.chain.session()"),
        {"db:client stands still": 30},
        {**STAGED, "server": "mysql", "watched": True, "in_process": False},
    ),
    "what no report names stays prepared": (
        "prepared",
        changed(prepared_target.PreparedAttempt, "abort", "self._committer.recover()",
        "self._committables()"),
        {"report:lost": 20},
        {},
    ),
}  # fmt: skip


@pytest.mark.lengthy("chaos")
@pytest.mark.parametrize("name", PLANTED)
def test_what_is_planted_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, plant, odds, options = PLANTED[name]
    calm = [story(kind, seed, odds, **options) for seed in range(5)]
    assert not [outcome.violations for outcome in calm if outcome.violations]
    with monkeypatch.context() as patch:
        plant(patch)
        assert any(story(kind, seed, odds, **options).violations for seed in range(150))


def test_the_same_seed_is_the_same_story() -> None:
    def told(seed: int) -> list[tuple[float, str, str]]:
        lines: list[tuple[float, str, str]] = []
        simulate(
            seed, pipeline="database", tell=lambda when, who, what: lines.append((when, who, what))
        )
        return lines

    assert [told(seed) for seed in (2, 5, 7)] == [told(seed) for seed in (2, 5, 7)]
