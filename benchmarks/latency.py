"""The latency turns: each contender in turn under the same steady load, on one broker. Called by
:mod:`__main__`.

A turn: a trickle until the pipeline lets something through, full rate to warm up, full rate
measured, and then no more load until everything has arrived. The query triggers again as soon as a
batch has ended, which is Spark's default.
"""

from __future__ import annotations

import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.contender_process import ContenderFailed, ContenderProcess, ContenderProcesses
from benchmarks.contenders import Contender
from benchmarks.cpu import CpuMeter
from benchmarks.latency_figures import LatencyTurn, percentile
from benchmarks.load import Arrivals, Sender, arrivals
from benchmarks.local_broker import LocalBroker
from benchmarks.plan import SOURCE_PARTITIONS, LatencyPlan
from benchmarks.topics import Topics

_TRICKLE_RATE = 20.0
_FIRST_SECONDS = 180.0
_DRAIN_SECONDS = 60.0
_LOOK_SECONDS = 0.1
_BATCH_RECORDS = 500_000

Say = Callable[[str], None]


def run_latency(
    plan: LatencyPlan, contenders: Sequence[Contender], broker: LocalBroker, say: Say
) -> list[LatencyTurn]:
    """All turns, in the order in which they ran. What was lost or repeated is in their audits.

    :param contenders: those that ``plan`` names.
    :raises ContenderFailed: a contender's query failed, or nothing came through it.
    """
    say(f"latency: starting {len(contenders)} contenders …")
    with (
        tempfile.TemporaryDirectory(prefix="onceward-bench-") as folder,
        ContenderProcesses(contenders, Path(folder)) as processes,
    ):
        turns = _Turns(plan, broker.bootstrap_servers, broker.pid, processes, say)
        return [turns.run(number, name, warm_up) for number, name, warm_up in plan.turns()]


class _Turns:
    def __init__(
        self,
        plan: LatencyPlan,
        bootstrap_servers: str,
        broker_pid: int,
        processes: Mapping[str, ContenderProcess],
        say: Say,
    ) -> None:
        self._plan = plan
        self._bootstrap_servers = bootstrap_servers
        self._broker_pid = broker_pid
        self._processes = processes
        self._say = say
        self._topics = Topics(bootstrap_servers)

    def run(self, number: int, name: str, warm_up_s: float) -> LatencyTurn:
        plan = self._plan
        process = self._processes[name]
        output = f"latency-{uuid.uuid4().hex[:8]}"  # checkpoint and pipeline are called so, too
        source = f"{output}-input"
        self._topics.create(source, SOURCE_PARTITIONS)
        self._topics.create(output, plan.output_partitions)
        process.tell(
            "start",
            name=output,
            bootstrap_servers=self._bootstrap_servers,
            source=source,
            batch_records=_BATCH_RECORDS,
        )
        meter = CpuMeter(process.pid, process.jvm_pid, self._broker_pid)
        with arrivals(self._bootstrap_servers, output, plan.output_partitions) as arrived:
            sender = Sender(self._bootstrap_servers, source, _TRICKLE_RATE)
            try:
                self._until_something_came(arrived, process)
                sender.rate = plan.rate
                _for(warm_up_s, arrived)
                process.tell("mark")
                sender.late_s = 0.0
                began, first, before = time.monotonic(), sender.sent, meter.read()
                _for(plan.turn_seconds, arrived)
                seconds, last, used = (
                    time.monotonic() - began,
                    sender.sent,
                    meter.read().since(before),
                )
                late_s = sender.late_s
            finally:
                sent = sender.finish()
            _until(lambda: len(arrived.latency_ms) >= sent, _DRAIN_SECONDS, arrived)
        told = process.tell("stop")
        turn = LatencyTurn(
            contender=name,
            round=number,
            latencies_ms=[
                arrived.latency_ms[n] for n in range(first, last) if n in arrived.latency_ms
            ],
            # Once more from the beginning, by a reader that has no other work: what came twice
            # came after all.
            audit=self._topics.audit(output, plan.output_partitions, sent),
            batches=told["batches"],
            phases_ms=told["phases_ms"],
            steps_ms=told["steps_ms"],
            pipeline_cores=used.pipeline / seconds,
            broker_cores=used.broker / seconds,
            sender_late_ms=late_s * 1e3,
        )
        process.tell("collect_garbage")
        self._topics.delete(source)
        self._topics.delete(output)
        self._tell(turn)
        return turn

    def _until_something_came(self, arrived: Arrivals, process: ContenderProcess) -> None:
        if not _until(lambda: bool(arrived.latency_ms), _FIRST_SECONDS, arrived):
            process.tell("stop")  # which tells why, if the query has failed
            raise ContenderFailed(
                f"{process.contender.name}: nothing came through within {_FIRST_SECONDS:.0f} s",
                next_step="see whether the machine is busy with other work, and run again",
            )

    def _tell(self, turn: LatencyTurn) -> None:
        p50, p99 = (percentile(turn.latencies_ms, percent) for percent in (50, 99))
        self._say(
            f"round {turn.round}: {turn.contender}: p50 {p50:.0f} ms, p99 {p99:.0f} ms, "
            f"{turn.batches} batches, "
            f"{turn.audit.records:,} records, lost {turn.audit.lost}, duplicates "
            f"{turn.audit.repeated}"
        )


def _for(seconds: float, arrived: Arrivals) -> None:
    _until(lambda: False, seconds, arrived)


def _until(enough: Callable[[], bool], seconds: float, arrived: Arrivals) -> bool:
    """Take in what arrives until ``enough``; returns whether that was within ``seconds``."""
    deadline = time.monotonic() + seconds
    while not enough():
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        arrived.look(min(left, _LOOK_SECONDS))
    return True
