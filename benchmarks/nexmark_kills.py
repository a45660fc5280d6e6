"""Nexmark under ``kill -9``: each query through Onceward, whose driver and JVM are killed in the
middle of it again and again. Called by :mod:`__main__`.

A life of a query is a process of its own on one checkpoint. All lives but the last are killed at a
random moment after a batch of theirs has begun; the last one finishes what is left. The answer is
compared with SQLite's, row by row, as in :mod:`nexmark`.
"""

from __future__ import annotations

import random
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.contender_process import ContenderProcess
from benchmarks.contenders import Contender
from benchmarks.local_broker import LocalBroker
from benchmarks.nexmark import OUTPUT_PARTITIONS, TOPIC, Events, spark_order
from benchmarks.nexmark_queries import QUERIES
from benchmarks.plan import SOURCE_PARTITIONS
from benchmarks.topics import Topics

_BATCHES = 24


@dataclass(frozen=True, slots=True)
class KilledQuery:
    """A query that was killed and finished: batches that its lives had begun when they were
    killed, as Spark's log of offsets has them, and all that it took.
    """

    query: str
    begun_at_kills: Sequence[int]
    batches: int

    def __str__(self) -> str:
        kills = ", ".join(str(number) for number in self.begun_at_kills)
        return (
            f"{self.query}: answered as SQLite answers it, in {self.batches} batches; "
            f"killed in batch {kills}"
        )


def run_under_kills(
    contender: Contender,
    broker: LocalBroker,
    events: Events,
    kills: int,
    seed: int,
    say: Callable[[str], None],
    queries: Sequence[str] = tuple(QUERIES),
) -> list[KilledQuery]:
    """Run each of ``queries`` in ``kills`` lives that are killed and one that is not.

    :raises OutputWrong: an answer is not SQLite's.
    :raises ContenderFailed: a query failed, or began no batch.
    """
    topics, chance = Topics(broker.bootstrap_servers), random.Random(seed)  # noqa: S311
    topics.create(TOPIC, SOURCE_PARTITIONS)
    topics.fill_in_turn(TOPIC, events.lines, SOURCE_PARTITIONS)
    done = []
    for name in queries:
        done.append(_killed(contender, topics, broker, events, name, kills, chance))
        say(str(done[-1]))
    return done


def _killed(
    contender: Contender,
    topics: Topics,
    broker: LocalBroker,
    events: Events,
    name: str,
    kills: int,
    chance: random.Random,
) -> KilledQuery:
    output = f"nexmark-{name}-{uuid.uuid4().hex[:8]}"  # checkpoint and pipeline are called so, too
    topics.create(output, OUTPUT_PARTITIONS)
    order = {
        "name": output,
        "bootstrap_servers": broker.bootstrap_servers,
        **spark_order(QUERIES[name], events, _BATCHES),
    }
    with tempfile.TemporaryDirectory(
        prefix="onceward-bench-", ignore_cleanup_errors=True
    ) as folder:
        checkpoint = Path(folder) / output
        begun = [
            _one_life(contender, Path(folder), order, checkpoint, chance) for _ in range(kills)
        ]
        process = ContenderProcess(contender, Path(folder))
        try:
            process.wait_until_ready()
            process.tell("copy", **order)
        finally:
            process.close()
        batches = _newest_batch(checkpoint) + 1
    results = topics.values(output, OUTPUT_PARTITIONS)
    events.must_be_answered(QUERIES[name], results, f"{name}, killed {kills} times,")
    topics.delete(output)
    return KilledQuery(name, begun, batches)


def _one_life(
    contender: Contender,
    folder: Path,
    order: dict[str, object],
    checkpoint: Path,
    chance: random.Random,
) -> int:
    """Kill a life once it has begun one to four batches; return the newest it had begun."""
    before = _newest_batch(checkpoint)
    process = ContenderProcess(contender, folder)
    try:
        process.wait_until_ready()
        process.tell("start", **order)
        wanted = before + chance.randint(1, 4)
        process.wait_until(lambda: _newest_batch(checkpoint) >= wanted, f"began no batch {wanted}")
        time.sleep(chance.random())
    finally:
        process.close(at_once=True)
    return _newest_batch(checkpoint)


def _newest_batch(checkpoint: Path) -> int:
    """Return the newest batch that was begun, as Spark's log of offsets names it; -1: none."""
    folder = checkpoint / "offsets"
    names = [each.name for each in folder.iterdir()] if folder.is_dir() else []
    return max((int(name) for name in names if name.isdigit()), default=-1)
