"""What a batch's rows are, and what of a ``DataFrame`` the product asks in the driver.

A row is ``(branch, source partition, source offset)``: the branch names where it goes (a topic, a
table), the others which record it came from, so that a verdict needs no luck. A plan is narrow (a
task for each source partition) or has a shuffle behind it, or two with a stage between them; where
it is *by chance* (uuid, random, a look-up) the route of a row through the shuffles, and the lot
that it draws, change with each computation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

Row = tuple[str, int, int]
Branches = Callable[[int, int, int], list[str]]
"""Of a record (partition, offset) and the computation's lot (0 where nothing is by chance): where
it goes.
"""
Nonces = Sequence[int]
"""Of each source partition the computation that is read."""
Read = Sequence[Nonces]
"""What a task of the last stage reads: of each task of the stage between two shuffles what that
one has read; one only where there is none between.
"""


class Plan(NamedTuple):
    """A query's plan, in what matters here."""

    branches: Branches
    shuffle: bool = False
    by_chance: bool = False
    tasks: int = 2
    """After a shuffle."""
    between: int = 0
    """Tasks of a stage between two shuffles; 0: there is one shuffle at most."""
    stateful: bool = False

    @classmethod
    def of(cls, setting: Any, branches: Branches) -> Plan:
        """Of a query without state, as the setting has it."""
        return cls(
            branches,
            shuffle=setting.shuffle,
            by_chance=setting.by_chance,
            tasks=setting.tasks,
            between=setting.between,
        )


class Rows(list[Row]):
    """Some rows, as an Arrow batch or table is asked about them."""

    __slots__ = ("batch_id", "computation")

    def __init__(self, rows: Any = (), batch_id: int = -1, computation: int = 0) -> None:
        super().__init__(rows)
        self.batch_id = batch_id
        self.computation = computation

    @property
    def num_rows(self) -> int:
        return len(self)

    @property
    def nbytes(self) -> int:
        return 100 * len(self)

    schema = None

    def slice(self, start: int, length: int) -> Rows:
        return Rows(self[start : start + length], self.batch_id, self.computation)

    def to_batches(self) -> list[Rows]:
        return [self] if self else []


KEYS = 5


def key_of(partition: int, offset: int) -> int:
    """Of a record. Each key is of one source partition."""
    return partition * KEYS + offset % KEYS


def lot(partition: int, offset: int, nonce: int) -> int:
    """What a row draws in one computation of its plan."""
    mixed = (partition * 7_919 + offset * 104_729 + nonce * 1_299_709) & 0xFFFFFFFF
    mixed ^= mixed >> 15
    return (mixed * 0x2C1B3C6D & 0xFFFFFFFF) >> 8


class Shuffle:
    """What is there of a shuffle. ``outputs``: of each of its map tasks where its output lies,
    None where that is lost, and what it has read. ``taken_back``: outputs that were lost
    (``ShuffleStatus.mapStatusesDeleted``).
    """

    __slots__ = ("id", "outputs", "taken_back", "tasks")

    def __init__(self, number: int, tasks: int) -> None:
        self.id = number
        self.tasks = tasks
        self.outputs: dict[int, tuple[Any, Nonces]] = {}
        self.taken_back: set[str] = set()

    def take_back(self, task: int) -> None:
        """``ShuffleStatus.removeMapOutput``."""
        _, read = self.outputs.pop(task)
        self.taken_back.add(f"{task}@{'+'.join(map(str, read))}")


class Computed:
    """The rows behind the frames of one batch: fixed offsets, and what Spark keeps of their
    computation.

    ``shuffles``: from the source on. ``blocks``: of a persisted frame, by task of the last stage
    where each lies, and what it is computed from. ``number``: that of its RDD.
    """

    __slots__ = (
        "batch_id",
        "blocks",
        "end",
        "number",
        "persisted",
        "plan",
        "query",
        "shuffles",
        "start",
    )

    def __init__(
        self, query: Any, batch_id: int, start: list[int], end: list[int], plan: Plan
    ) -> None:
        self.query = query
        self.batch_id = batch_id
        self.start = start
        self.end = end
        self.plan = plan
        self.number = query.world.next_number()
        stages = [len(start), plan.between] if plan.shuffle else []
        self.shuffles = [Shuffle(query.world.next_number(), tasks) for tasks in stages if tasks]
        self.persisted = False
        self.blocks: dict[int, tuple[Any, Read]] = {}

    def tasks(self) -> int:
        return self.plan.tasks if self.plan.shuffle else len(self.start)

    def counts_of(
        self, task: int, read: Read, known: dict[int, int], only: tuple[str, ...] | None
    ) -> tuple[Rows, dict[int, int]]:
        """Of a query that counts by key: the rows of one task, ``(branch, -1 - key, count)`` for
        each key that the batch has records of, and the state behind it.
        """
        records = Rows()
        for partition in range(len(self.start)):
            records.extend(
                ("", partition, offset)
                for offset in range(self.start[partition], self.end[partition])
            )
        counts = dict(known)
        touched: dict[int, str] = {}
        for _, partition, offset in records:
            key = key_of(partition, offset)
            if key % self.plan.tasks == task:
                counts[key] = counts.get(key, 0) + 1
                touched[key] = self.plan.branches(partition, offset, 0)[0]
        rows = [
            (branch, -1 - key, counts[key])
            for key, branch in sorted(touched.items())
            if only is None or branch in only
        ]
        return Rows(rows, self.batch_id, read[0][0]), counts

    def rows_of(self, task: int, read: Read, only: tuple[str, ...] | None) -> Rows:
        """The rows of one task of the last stage."""
        plan = self.plan
        rows = Rows((), self.batch_id, read[0][0] if read[0] else 0)
        branches, shuffle, tasks, several = plan.branches, plan.shuffle, plan.tasks, len(read)
        for between, nonces in enumerate(read):
            for partition in range(len(self.start)) if shuffle else (task,):
                nonce = nonces[partition] if plan.by_chance else 0
                for offset in range(self.start[partition], self.end[partition]):
                    drawn = lot(partition, offset, nonce)
                    if shuffle and (
                        drawn % several != between or drawn // several % tasks != task
                    ):
                        continue
                    for branch in branches(partition, offset, drawn if plan.by_chance else 0):
                        if only is None or branch in only:
                            rows.append((branch, partition, offset))
        return rows


class Frame:
    """A ``DataFrame`` of a batch: all of its rows, or those of some branches; and how its tasks
    write it.
    """

    __slots__ = ("computed", "half", "only", "open_writer", "returned_errors")

    columns = ("value",)
    schema = None

    def __init__(
        self,
        computed: Computed,
        only: tuple[str, ...] | None = None,
        open_writer: Any = None,
        returned_errors: tuple[type[BaseException], ...] = (),
        half: int | None = None,
    ) -> None:
        self.computed = computed
        self.half = half
        self.only = only
        self.open_writer = open_writer
        self.returned_errors = returned_errors

    @property
    def sparkSession(self) -> Any:  # noqa: N802 — Spark's name
        return self.computed.query.session

    @property
    def _jdf(self) -> Any:
        return self

    def queryExecution(self) -> Any:  # noqa: N802 — Spark's name
        return self

    def toRdd(self) -> Computed:  # noqa: N802 — Spark's name
        return self.computed

    def where(self, *branches: str) -> Frame:
        return Frame(self.computed, branches)

    def in_two(self) -> tuple[Frame, Frame]:
        """The first of each partition's records, and the others."""
        return Frame(self.computed, self.only, half=0), Frame(self.computed, self.only, half=1)

    def of_half(self, rows: Rows) -> Rows:
        """Those of ``rows`` that are in this frame."""
        if self.half is None:
            return rows
        middle = [
            (start + end) // 2
            for start, end in zip(self.computed.start, self.computed.end, strict=True)
        ]
        first = self.half == 0
        mine = [
            row
            for row in rows
            if (row[2] < middle[row[1]] if row[1] >= 0 else row[1] % 2 == 0) == first
        ]
        return Rows(mine, rows.batch_id, rows.computation)

    def written(self, open_writer: Any, returned_errors: Any) -> Frame:
        return Frame(self.computed, self.only, open_writer, returned_errors, self.half)

    def persist(self) -> Frame:
        self.computed.persisted = True
        return self

    def count(self) -> int:
        """By a job of its own, as any action."""
        query = self.computed.query
        rows, _ = query.world.jobs.collect(
            Frame(self.computed, self.only, half=self.half), lambda: None
        )
        return sum(rows)

    def isEmpty(self) -> bool:  # noqa: N802 — Spark's name
        return self.count() == 0
