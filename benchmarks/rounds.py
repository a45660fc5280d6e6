"""The throughput turns, one after the other on one broker, and what each cost. Called by
:mod:`__main__`.

Everything that is not the query itself (filling, checking, deleting topics) happens between the
measurements.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import median

from benchmarks.contenders import Contender
from benchmarks.figures import Run
from benchmarks.local_broker import LocalBroker
from benchmarks.measuring import Measuring, measured
from benchmarks.plan import SOURCE, SinkPlan, Turn

Say = Callable[[str], None]


def run_sinks(
    plan: SinkPlan, contenders: Sequence[Contender], broker: LocalBroker, say: Say
) -> list[Run]:
    """All runs that count, in the order in which they ran.

    :param contenders: those that ``plan`` names.
    :raises OutputWrong: a contender lost or repeated a record.
    :raises ContenderFailed: a contender's query failed, or its process ended.
    """
    with measured(contenders, broker, say) as measuring:
        rounds = _Rounds(plan, measuring, say)
        return [run for turn in plan.turns() if (run := rounds.run(turn)).round]


class _Rounds:
    def __init__(self, plan: SinkPlan, measuring: Measuring, say: Say) -> None:
        self._plan = plan
        self._measuring = measuring
        self._say = say

    def run(self, turn: Turn) -> Run:
        shape, topics = turn.shape, self._measuring.topics
        source = self._measuring.source(shape.records, self._plan.value_bytes)
        with self._measuring.output(shape.output_partitions) as name:
            answer, wall_s, used = self._measuring.copy(
                turn.contender,
                name=name,
                source=source,
                batch_records=shape.batch_records,
                compression=self._plan.compression,
            )
            if turn.contender != SOURCE:
                topics.audit(name, shape.output_partitions, shape.records).require(name)
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

    def _tell(self, run: Run) -> None:
        shape = run.shape
        self._say(
            f"{'round ' + str(run.round) if run.round else 'warm-up'}: {run.contender}: "
            f"{shape.records:,} records, "
            f"{shape.batch_records:,} a batch, to {shape.output_partitions} partitions: "
            f"{run.records / run.wall_s / 1e6:.2f} M records/s, "
            f"{run.cpu_s / run.records * 1e6:.2f} µs of CPU a record"
        )
