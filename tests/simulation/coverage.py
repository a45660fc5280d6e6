"""What the seeds have met: (step, fault) pairs of the engine, rows of the error table, errors that
stopped a query, states of the coordinator. And what none of them has.

Rows of the error table are counted where they are looked up: ``install`` puts tables in the place
of those in ``onceward.kafka.wire.error_table`` that note who asks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from onceward.events import STEPS
from onceward.kafka.wire import error_table
from onceward.kafka.wire.error_table import Api, Rule
from simulation import swarm
from simulation.steps import BETWEEN

if TYPE_CHECKING:
    from simulation.run import Outcome

Row = tuple[str, int]
"""Of the error table: an API and a code."""
Pair = tuple[str, str]
"""A step of the engine, and a kind of fault that happened in it."""

_met: set[Row] = set()


class _Rows(dict[int, Rule]):
    """The rows of one API, its own before those of all; notes which are looked up."""

    def __init__(self, api: Api, rows: dict[int, Rule]) -> None:
        super().__init__(rows)
        self._names = {code: (api.value, code) for code in rows}

    def get(self, code: int, default: Any = None) -> Any:
        row = self._names.get(code)
        if row is None:
            return default
        _met.add(row)
        return self[code]


_plain = error_table._SPECIFIC


def install() -> None:
    """From now on this OS process counts."""
    tables = {api: _Rows(api, {**error_table._ANY, **_plain.get(api, {})}) for api in Api}
    error_table._SPECIFIC = tables  # type: ignore[assignment]


def uninstall() -> None:
    """It counts no more."""
    error_table._SPECIFIC = _plain


def begin() -> set[Row]:
    """A story begins: the rows that it meets go into what is returned."""
    global _met
    _met = set()
    return _met


class Tally:
    """What became of many seeds."""

    __slots__ = (
        "batches",
        "by_pipeline",
        "calm",
        "fired",
        "longest",
        "met",
        "pairs",
        "rows",
        "seconds",
        "seeds",
        "steps",
        "stops",
        "violations",
    )

    def __init__(self) -> None:
        self.seeds = self.batches = self.steps = self.calm = 0
        self.seconds = 0.0
        self.by_pipeline: Counter[str] = Counter()
        """Batches."""
        self.fired: Counter[str] = Counter()
        self.pairs: Counter[tuple[str, str]] = Counter()
        """Step and kind of fault."""
        self.rows: Counter[Row] = Counter()
        """Seeds that met it."""
        self.stops: Counter[str] = Counter()
        self.met: Counter[tuple[str, ...]] = Counter()
        self.violations: list[tuple[int, str, list[str]]] = []
        """Seed, the command that tells its story, and what is wrong."""
        self.longest: tuple[int, int] = (0, 0)
        """The most steps that a story took, and its seed."""

    def add(self, outcome: Outcome) -> None:
        self.seeds += 1
        self.batches += outcome.batches
        self.steps += outcome.steps
        self.seconds += outcome.seconds
        self.calm += not outcome.fired
        self.by_pipeline[outcome.setting.pipeline] += outcome.batches
        for pair in outcome.pairs:
            self.pairs[pair] += 1
            self.fired[pair[1]] += 1
        for row in outcome.rows:
            self.rows[row] += 1
        for stop in outcome.stops:
            self.stops[stop] += 1
        for one in outcome.met:
            self.met[one] += 1
        if outcome.violations:
            self.violations.append((outcome.seed, outcome.command(), outcome.violations))
        self.longest = max(self.longest, (outcome.steps, outcome.seed))

    def merge(self, other: Tally) -> None:
        for name in ("seeds", "batches", "steps", "calm", "seconds"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in ("by_pipeline", "fired", "pairs", "rows", "stops", "met"):
            getattr(self, name).update(getattr(other, name))
        self.violations += other.violations
        self.longest = max(self.longest, other.longest)


def all_pairs() -> list[tuple[str, str]]:
    """Every step of the engine with every kind of fault that may happen in it. A broker's refusals
    are counted by the rows of the error table instead, and a driver that ends at a step is no pair
    with any other.
    """
    pairs = {
        (step, kind) for kind in swarm.faults() for step in swarm.steps_of(kind,
        (*STEPS, BETWEEN)) if step
    }  # fmt: skip
    return sorted(pairs)


def answered_rows() -> list[Row]:
    """The rows that some broker can come to give us, as the model of Kafka has it; of the others
    it says why not.
    """
    from simulation.world.kafka.faults import ANSWERS, GIVEN

    return sorted(
        {
            (api, code)
            for listed in (ANSWERS, GIVEN)
            for api, codes in listed.items()
            for code in codes
        }
    )


def all_rows() -> list[Row]:
    """Every row of the error table."""
    return [(api.value, code) for api, code, _ in error_table.rows()]


CANNOT: tuple[tuple[str, str, str], ...] = (
    ("crash:spark.*", "!between", "Spark dies there, before or behind the engine's steps"),
    (
        "*:timed",
        "!between",
        "drawn when Spark hands the batch over; the time that it then takes may lie in any step",
    ),
    ("user:checkpoint restored", "*", "somebody does it while no copy runs"),
    ("user:commit log lost", "*", "somebody does it while no copy runs"),
    (
        "*:check.failed",
        "check",
        "reports and book differ only where the engine is wrong: two that meet end the job",
    ),
    ("*:finish.failed", "finish", "nothing is asked of anybody in it"),
    ("spark:output lost", "!send replay between", "drawn when a job begins"),
    ("spark:task slow", "!send lease", "of tasks that write"),
    ("spark:*", "!send replay lease between abort", "no task of the query runs"),
    ("report:*", "!send", "results are there when a job has ended"),
    ("db:ended by hand", "!publish", "of what is about to be committed"),
    ("target:file lost", "!publish", "of what is prepared and decided"),
    ("line:refused", "abort", "no task begins any more"),
    ("line:slow", "abort", "the lines are hung up before anything is said on them"),
    (
        "line:*",
        "!send lease abort",
        "tasks and the sequencer speak while rows are sent, and a little longer",
    ),
    ("net:*", "admit replay check finish deliver", "no broker is asked"),
    ("kafka:follower lags", "admit plan check finish", "nothing is appended"),
    ("kafka:short fetch", "!open ledger", "nothing is fetched"),
    ("kafka:state log slow", "admit replay check finish deliver", "no coordinator appends"),
    (
        "kafka:expired id lingers",
        "!between",
        "an id is idle between batches, and asked about when the next one begins",
    ),
    ("fs:torn listing", "send", "folders are listed by the driver"),
    ("fs:no space", "admit", "nothing is written"),
    (
        "fs:power failure",
        "admit",
        "the ledger is in memory by then, and the disk that may lose something is its own",
    ),
    ("fs:*", "replay plan lease check offsets ledger deliver abort finish", "no file is touched"),
    (
        "db:lingers",
        "!send",
        "a driver's session lingers when the driver is gone, and its step with it",
    ),
    ("db:*", "admit replay finish", "the database is not asked"),
    (
        "db:refused",
        "plan ledger move commit publish abort between",
        "connections are there already",
    ),
    ("db:commit *", "move", "the transaction goes on behind it"),
    ("db:commit held", "abort", "what is taken back is not committed"),
    ("db:commit lost", "abort", "what is taken back is not committed"),
    ("db:deadlock", "plan abort", "staging of an attempt of its own is made and dropped"),
    ("db:full", "plan abort", "no row is written"),
    ("db:table locked", "plan abort", "nobody else knows of an attempt's staging"),
    ("target:answer*", "abort", "answers to a commit or a delivery"),
    ("target:re[ft]*", "abort", "the same"),
    ("target:forgets", "abort", "of what is decided"),
    ("target:rot", "abort", "of what is delivered"),
    ("target:*", "admit replay commit finish between", "the target is not asked"),
    ("target:*", "plan lease check offsets ledger", "steps of sinks that have no such target"),
    ("kafka:follower lags", "deliver", "nothing is appended"),
    ("kafka:state log slow", "plan", "no coordinator appends"),
    ("target:forgets", "open send deliver", "of what is prepared and decided"),
    ("target:retry later", "open send deliver", "an answer to a commit"),
    ("target:answers", "open send publish", "an answer to a delivery, which is a step of its own"),
    ("target:refuses", "open send publish", "an answer to a delivery"),
    ("target:rot", "open send publish", "of what is delivered"),
)
"""Pairs that no story can meet: kinds, steps (``!``: all but these), and why. ``*`` stands for
anything.
"""

ROWS_THAT_CANNOT: tuple[tuple[str, tuple[int, ...], str], ...] = (
    (
        "*",
        (17, 37, 38, 40, 42, 50, 12, 24, 21),
        "of settings that no seed draws; tests on real brokers ask each",
    ),
    ("Fetch", (1,), "of a ledger that retention has cut off"),
    ("DescribeConfigs", (3,), "a topic is there before it is described, and none is deleted"),
    (
        "AddPartitionsToTxn",
        (3, 55),
        "topics are known by then, and none is deleted; 55 comes beside another refusal",
    ),
    (
        "TxnOffsetCommit",
        (47, 48, 49),
        "rare, and met by long runs only: an owner is replaced between two requests",
    ),
    (
        "AddOffsetsToTxn",
        (49,),
        "rare likewise: an id expires between two requests of a transaction",
    ),
    ("Produce", (45, 48, 49), "rare likewise"),
)
"""Rows of the error table that no story can meet, though a broker could answer so: APIs, codes,
and why.
"""


def why_not(kind: str, step: str) -> str | None:
    """The reason that no story can meet this pair; None: one can."""
    for kinds, steps, why in CANNOT:
        named = steps.lstrip("!").split()
        there = steps == "*" or (step in named) != steps.startswith("!")
        if there and fnmatchcase(kind, kinds):
            return why
    return None


def row_why_not(api: str, code: int) -> str | None:
    """The same of a row of the error table."""
    for apis, codes, why in ROWS_THAT_CANNOT:
        if code in codes and apis in ("*", api):
            return why
    return None


def never(met: Iterable[Any], everything: Iterable[Any]) -> list[Any]:
    """What of ``everything`` was not met, in its order."""
    seen = set(met)
    return [one for one in everything if one not in seen]
