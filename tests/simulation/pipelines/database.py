"""Into tables of a database: the real ``ow.DatabaseSink`` in the simulated world, as one
transaction a batch, and with ``xa=True``, where each task prepares its own.

A row of the source becomes one of a table: where it came from (``p``, ``o``), and where rows
replace each other a key (``p``, ``k``) that comes again and again, in change streams with a word
``op``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import onceward as ow
from onceward import events
from simulation.judge.facts import Facts
from simulation.judge.verdict import Violation, differences
from simulation.kernel.scheduler import Process
from simulation.spark.frames import Frame, Plan
from simulation.spark.query import SOURCE
from simulation.world.database import FAULTS, Server
from simulation.world.database.arrow import Columns
from simulation.world.database.tables import Table

PIPELINE_ID = "rows"
KEYS = 3
STEPS = (
    "open",
    "admit",
    "replay",
    "plan",
    "send",
    "ledger",
    "move",
    "commit",
    "publish",
    "abort",
    "finish",
)
_TYPES = {
    "postgresql": ("text", "bigint"),
    "mysql": ("longtext", "bigint"),
    "mariadb": ("longtext", "bigint"),
}
_DELETES = 5
"""Every so many offsets a change of a change stream deletes its key."""

OPTIONS: dict[str, Sequence[Any]] = {
    "server": ("postgresql", "mysql", "mariadb"),
    "mode": ("append", "append", "upsert", "changes"),
    "user": ("sink", "frames", "built in the function", "tries again"),
    "driver_records": (10_000, 0),
    "hasty": (False, True),
    "casts": (False, True),
    "room": (100, 8),
    "piece_rows": (1_000, 2),
}
"""``hasty``: the server does not wait for its disk, unless it is asked to. ``casts``: the table
has other types than the frame. ``room``: ``max_prepared_transactions``. ``piece_rows``: how many a
task sends at a time.
"""

_FIXED = {
    "brokers": 1, "transaction_version": 2, "output_partitions": 1, "stateful": False,
    "at_home": False,
    "transaction_timeout_ms": 60_000, "request_timeout_ms": 5_000, "delivery_timeout_ms": 30_000,
    "row_bytes": 100,
}  # fmt: skip


class Pipeline:
    """Atomic: rows and ledger by one transaction."""

    kind = "database"
    pipeline_id = PIPELINE_ID
    faults = ("db:", "crash:", "pause:", "spark:", "report:", "user:", "clock:")
    steps = tuple(step for step in STEPS if step != "publish")
    fixed: ClassVar = {**_FIXED, "casts": False, "room": 100}
    xa = False

    # ── what users have ──

    def tables(self, setting: Any) -> list[str]:
        several = setting.topics if not self.xa else 1
        return [f"written_{number}" for number in range(several)]

    def plan(self, setting: Any) -> Plan:
        tables = self.tables(setting)
        several = len(tables)

        def branches(partition: int, offset: int, drawn: int) -> list[str]:
            if several == 1:
                return tables
            return tables if offset % 7 == 0 else [tables[(partition + offset) % several]]

        return Plan.of(setting, branches)

    def set_up(self, world: Any) -> None:
        setting = world.setting
        world.cluster.create_topic(SOURCE, setting.source_partitions)
        kind = setting.server
        room = (
            setting.room if kind == "postgresql" else sys.maxsize
        )  # max_prepared_transactions is PostgreSQL's
        server = world.database = Server(
            world.sim, kind, hasty=setting.hasty and kind == "postgresql", room=room, kinds=FAULTS
        )
        mode, text, number = self._mode(setting), *_TYPES[kind]
        names = [
            *(["table"] if self._by_rows(setting) else []),
            "p",
            *(["k"] if mode != "append" else []),
            "o",
        ]
        names += ["op"] if mode == "changes" else []
        types = [text if name in ("table", "op") else number for name in names]
        server.frame_columns = Columns(names, types, _made_by(names))
        kept = tuple(name for name in names if name not in ("op", "table"))
        for name in self.tables(setting):
            table = Table(
                server.name_of(name), "target", kept, () if mode == "append" else ("p", "k")
            )
            table.types = (
                *(["bigint"] * (len(kept) - 1)),
                "numeric(20,0)" if self._casts(setting) else "bigint",
            )
            server.tables[table.name] = table

    def _casts(self, setting: Any) -> bool:
        return bool(setting.casts) and setting.server == "postgresql"

    def _mode(self, setting: Any) -> str:
        return "append" if self.xa else str(setting.mode)

    def _by_rows(self, setting: Any) -> bool:
        """Do the rows say where they go?"""
        return len(self.tables(setting)) > 1 and setting.user != "frames"

    def ledger(self, world: Any) -> Any:
        """Where the rows are."""
        return ow.DatabaseLedger(f"{world.setting.server}://app@database/app")

    def sink(self, world: Any) -> Any:
        setting = world.setting
        tables, mode = self.tables(setting), self._mode(setting)
        told = {} if mode == "append" else {"key": ("p", "k"), "order_by": "o"}
        scheme = setting.server
        return ow.DatabaseSink(
            url=f"{scheme}://app@database/app",
            pipeline_id=PIPELINE_ID,
            table=None if self._by_rows(setting) else tables[0],
            mode=mode,  # type: ignore[arg-type]
            resume=world.operator.resume or "checkpoint",
            batch_attempts=setting.batch_attempts,
            driver_records=setting.driver_records,
            xa=self.xa,
            **told,  # type: ignore[arg-type]
        )

    def function(self, world: Any, sink: Any) -> Callable[[Frame, int], None]:
        user, tables = world.setting.user, self.tables(world.setting)

        def frames(frame: Frame, batch_id: int) -> None:
            with sink.batch(frame, batch_id) as batch:
                for table in tables:
                    batch.write(frame.where(table), table=table)

        def built(frame: Frame, batch_id: int) -> None:
            self.sink(world)(frame, batch_id)

        def again(frame: Frame, batch_id: int) -> None:
            try:
                sink(frame, batch_id)
            except ow.OncewardError:
                sink(frame, batch_id)

        found: Callable[[Frame, int], None] = {
            "sink": sink, "frames": frames, "built in the function": built, "tries again": again,
        }[user]  # fmt: skip
        return found

    # ── what must come of it ──

    def judge(self, world: Any) -> list[str]:
        return [str(violation) for violation in self._judged(world)]

    def _judged(self, world: Any) -> Iterator[Violation]:
        server: Server = world.database
        surely, ends = yield from self._chain(world, server)
        caught_up = Facts(world).caught_up
        produced = world.source.ends()
        if caught_up and ends != produced:
            yield Violation("I8", f"it has caught up, and the ledger ends at {ends} of {produced}")
        for name in self.tables(world.setting):
            yield from self._rows(world, server.tables[server.name_of(name)], name, surely, ends)
        for what in (*server.overruled, *server.too_late):
            yield Violation("I7", what)
        left = server.left()
        if caught_up and left:
            yield Violation(
                "I13", f"left over from before the last start: {', '.join(sorted(left))}"
            )

    def _chain(self, world: Any, server: Server) -> Any:
        """The ledger's row, and the records of all batches: one behind the other. Gives up to
        where rows must be there, and where the ledger ends: a batch that is decided may be there
        in part, and will be as a whole.
        """
        nothing = [0] * world.source.partitions
        rows = _rows_of(server, "onceward_ledger")
        if not rows or rows[0][4] is None:
            return nothing, nothing
        newest = json.loads(rows[0][4])
        kept = sorted(
            (
                (row[1], row[2], json.loads(row[3]))
                for row in _rows_of(server, "onceward_ledger_batches")
            ),
            key=lambda row: (row[0], row[1]),
        )
        sequences = sorted({row[0] for row in kept})
        if sequences != list(range(newest["sequence"] + 1)):
            yield Violation(
                "I6", f"the ledger has batches {sequences}, and ends with {newest['sequence']}"
            )
        before = nothing
        for sequence, state, record in kept:
            if state == "finished" and any(row[:2] == (sequence, "decided") for row in kept):
                continue
            start, end = (
                _ends(record["sources"][0][side], len(nothing)) for side in ("start", "end")
            )
            if start != before:
                yield Violation(
                    "I6",
                    f"batch {sequence} begins at {start}, and the one before it ends at {before}",
                )
            before = end
        if before != _ends(newest["sources"][0]["end"], len(nothing)):
            yield Violation(
                "I6",
                f"the ledger's row ends at {newest['sources']}, and its last batch at {before}",
            )
        surely = (
            before
            if newest["state"] == "finished"
            else _ends(newest["sources"][0]["start"], len(nothing))
        )
        return surely, before

    def _rows(
        self, world: Any, table: Table, name: str, surely: list[int], ends: list[int]
    ) -> Iterator[Violation]:
        mode = self._mode(world.setting)
        came = [
            (name, partition, offset)
            for partition, end in enumerate(ends)
            for offset in range(end)
            if name in world.expected(partition, offset)
        ]
        place = table.place
        if mode == "append":
            found = [(name, row[place["p"]], row[place["o"]]) for row in table.rows]
            if surely != ends:
                there = set(found)
                came = [row for row in came if row[2] < surely[row[1]] or row in there]
            yield from differences(came, found, "append")
            return
        last: dict[tuple[int, int], tuple[str, int, int]] = {}
        for row in came:
            last[row[1], row[2] % KEYS] = row
        if mode == "changes":
            last = {key: row for key, row in last.items() if row[2] % _DELETES}
        there = [(name, row[place["p"]], row[place["o"]]) for row in table.rows.values()]
        yield from differences(last.values(), there, mode)


class Prepared(Pipeline):
    """With ``xa=True``: the ledger decides, and then each transaction is committed."""

    kind = "prepared"
    steps = tuple(step for step in STEPS if step not in ("ledger", "move"))
    fixed: ClassVar = {**_FIXED, "mode": "append", "driver_records": 0, "topics": 1}
    xa = True

    def set_up(self, world: Any) -> None:
        super().set_up(world)
        world.aborts = Aborts(world)
        events.probe(world.aborts)

    def _judged(self, world: Any) -> Iterator[Violation]:
        yield from super()._judged(world)
        for what in world.aborts.left:
            yield Violation("I14", what)


class Aborts:
    """Hears of each attempt that a driver gives up: what its tasks had prepared by then is gone
    when that is over, whether a report named it or not. It would hold its locks for as long as
    nobody comes back. Nothing is said once something befell the server or a driver: a session may
    be over since, and then the next attempt does it.
    """

    def __init__(self, world: Any) -> None:
        self._world = world
        self._attempts: dict[Process, str] = {}
        self._before: dict[Process, list[str]] = {}
        self.left: list[str] = []

    def __call__(self, event: events.Event) -> None:
        here = self._world.sim.here
        if event.phase == "started" and "attempt" in event.ids:
            self._attempts[here] = event.ids["attempt"].removeprefix("attempt ").replace("-", ".")
        if event.step != events.ABORT:
            return
        if event.phase == "started":
            self._before[here] = self._prepared(self._attempts.get(here))
        elif event.phase == "finished":
            still = [
                name
                for name in self._before.pop(here, [])
                if name in self._world.database.prepared
            ]
            if still and not any(
                kind.startswith(("db:", "pause:")) for kind, _ in self._world.lots.fired
            ):
                self.left.append(
                    f"attempt {self._attempts[here]} was aborted, and {', '.join(still)} is "
                    f"prepared"
                )

    def _prepared(self, attempt: str | None) -> list[str]:
        """By tasks of that attempt; where the server has let go of their sessions, so that others
        may end it.
        """
        return [
            name for name, prepared in self._world.database.prepared.items()
            if prepared.session is None and f"-{attempt}-" in name.replace("\n", "-")
        ]  # fmt: skip


PIPELINES = (Pipeline, Prepared)


def _made_by(names: Sequence[str]) -> Callable[[Any], tuple[Any, ...]]:
    values = {
        "table": "r[0]", "p": "r[1]", "k": f"r[2] % {KEYS}", "o": "r[2]", "op": f"'u' if r[2] % "
                                                                                f"{_DELETES} else 'd'"
    }  # fmt: skip
    made: Callable[[Any], tuple[Any, ...]] = eval(  # noqa: S307
        f"lambda r: ({', '.join(values[name] for name in names)},)"
    )
    return made


def _rows_of(server: Server, name: str) -> list[Any]:
    table = server.tables.get(server.name_of(name))
    return [] if table is None else list(table.rows.values())


def _ends(told: Any, partitions: int) -> list[int]:
    """Of each partition of the source; None: there was nothing yet."""
    offsets = told["source"] if told else {}
    return [int(offsets.get(str(partition), 0)) for partition in range(partitions)]
