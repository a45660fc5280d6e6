"""The throughput turns, one after the other on one broker, and what each cost. Called by
:mod:`__main__`.

Everything that is not the query itself (filling, checking, deleting topics) happens between the
measurements.
"""

from __future__ import annotations

import math
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median

from benchmarks.contender_process import ContenderProcess, ContenderProcesses
from benchmarks.contenders import Contender
from benchmarks.cpu import CpuMeter
from benchmarks.figures import Run
from benchmarks.local_broker import LocalBroker
from benchmarks.plan import SOURCE_PARTITIONS, SinkPlan, Turn
from benchmarks.topics import Topics

_SETTLE_SECONDS = 1.0

Say = Callable[[str], None]


def run_sinks(
    plan: SinkPlan, contenders: Sequence[Contender], broker: LocalBroker, say: Say
) -> list[Run]:
    """All runs that count, in the order in which they ran.

    :param contenders: those that ``plan`` names.
    :raises OutputWrong: a contender lost or repeated a record.
    :raises ContenderFailed: a contender's query failed, or its process ended.
    """
    say(f"sink: starting {len(contenders)} contenders …")
    with (
        tempfile.TemporaryDirectory(prefix="onceward-bench-") as folder,
        ContenderProcesses(contenders, Path(folder)) as processes,
    ):
        rounds = _Rounds(plan, broker.bootstrap_servers, broker.pid, processes, say)
        return [run for turn in plan.turns() if (run := rounds.run(turn)).round]


class _Rounds:
    def __init__(
        self,
        plan: SinkPlan,
        bootstrap_servers: str,
        broker_pid: int,
        processes: Mapping[str, ContenderProcess],
        say: Say,
    ) -> None:
        self._plan = plan
        self._bootstrap_servers = bootstrap_servers
        self._processes = processes
        self._meters = {
            name: CpuMeter(process.pid, process.jvm_pid, broker_pid)
            for name, process in processes.items()
        }
        self._say = say
        self._topics = Topics(bootstrap_servers)
        self._filled: dict[int, str] = {}
        self._run_id = uuid.uuid4().hex[:8]
        self._turns = 0

    def run(self, turn: Turn) -> Run:
        shape = turn.shape
        process, meter = self._processes[turn.contender], self._meters[turn.contender]
        source = self._source(shape.records)
        self._turns += 1
        # checkpoint, pipeline and output topic are called so
        name = f"bench-{self._run_id}-{self._turns}"
        self._topics.create(name, shape.output_partitions)
        time.sleep(_SETTLE_SECONDS)
        cpu, wall = meter.read(), time.perf_counter()
        answer = process.tell(
            "copy",
            name=name,
            bootstrap_servers=self._bootstrap_servers,
            source=source,
            batch_records=shape.batch_records,
            compression=self._plan.compression,
        )
        wall_s = time.perf_counter() - wall
        used = meter.read().since(cpu)
        process.tell("collect_garbage")
        if process.contender.sink != "noop":
            self._topics.audit(name, shape.output_partitions, shape.records).require(name)
        self._topics.delete(name)
        run = Run(
            contender=turn.contender,
            shape=shape,
            round=turn.round,
            wall_s=wall_s,
            driver_cpu_s=used.driver,
            jvm_cpu_s=used.jvm,
            workers_cpu_s=used.workers,
            broker_cpu_s=used.broker,
            # Who is not Spark has none
            batch_s=median(answer["batch_s"] or [math.nan]),
        )
        self._tell(run)
        return run

    def _source(self, records: int) -> str:
        """The topic with so many records."""
        if records not in self._filled:
            name = f"bench-{self._run_id}-input-{records}"
            self._say(f"writing {records:,} records to topic {name} …")
            self._topics.create(name, SOURCE_PARTITIONS)
            self._topics.fill(name, records, value_bytes=self._plan.value_bytes)
            self._filled[records] = name
        return self._filled[records]

    def _tell(self, run: Run) -> None:
        shape = run.shape
        self._say(
            f"{'round ' + str(run.round) if run.round else 'warm-up'}: {run.contender}: "
            f"{shape.records:,} records, "
            f"{shape.batch_records:,} a batch, to {shape.output_partitions} partitions: "
            f"{run.records / run.wall_s / 1e6:.2f} M records/s, "
            f"{run.cpu_s / run.records * 1e6:.2f} µs of CPU a record"
        )
