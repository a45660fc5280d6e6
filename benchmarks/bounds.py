"""What the driver pays for each pair of a task and an output partition that it writes to, measured
over sockets; and what follows for a pipeline of any size. Called by :mod:`__main__`.

A task leases each partition that it writes to, reports what it wrote there, and the driver checks
the reports against the leases. Nothing else that the driver does in a batch grows with tasks times
partitions.
"""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from onceward.ids import ProducerIdentity, TaskAttempt, TopicPartition
from onceward.kafka.records.checksum import ContentChecksum, Stretch
from onceward.kafka.sink.sequencer.client import SequencerClient
from onceward.kafka.sink.sequencer.frames import EpochCredentials
from onceward.kafka.sink.sequencer.leases import EpochLeases
from onceward.kafka.sink.sequencer.listener import Sequencer
from onceward.kafka.sink.task_reports import Segment, TaskReport, check, kafka_output
from onceward.kafka.sink.tasks import SHARES

PARTITIONS, TASKS = 1_000, 200
_LIMIT_S = 600.0
_CHECKSUM = ContentChecksum(*(Stretch(1_234_567 + number, 100) for number in range(4)))

Sizes = Sequence[tuple[int, int]]

SIZES: Sizes = ((100, 100), (1_000, 1_000), (1_000, 10_000), (4_000, 10_000))
"""Tasks of a batch, and output partitions that each of them writes to."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Of one pair: CPU of the driver in µs, its memory and what a task reports in bytes. Of one
    partition: bytes of the ledger's record.
    """

    lease_us: float
    report_us: float
    check_us: float
    driver_bytes: float
    report_bytes: float
    ledger_bytes: float

    def driver_s(self, pairs: int) -> float:
        """Return the driver's CPU seconds of a batch; Python's, so that they are one core's."""
        return pairs * (self.lease_us + self.report_us + self.check_us) / 1e6


def measured_costs(partitions: int = PARTITIONS, tasks: int = TASKS) -> Costs:
    """Measure with tasks of another process, one after the other."""
    places = [TopicPartition("output", number) for number in range(partitions)]
    attempts = [TaskAttempt(number, 0, number) for number in range(tasks)]
    pairs, before = partitions * tasks, _resident_bytes()
    leases, lease_s = _leased(places, attempts)
    written = [
        TaskReport.of(
            task.partition_id,
            task.task_attempt_id,
            {place: [Segment(number, 1, number, number, _CHECKSUM)] for place in places},
        ).to_json()
        for number, task in enumerate(attempts)
    ]
    began = time.process_time()
    reports = [TaskReport.from_json(one) for one in written]
    read = time.process_time()
    output = kafka_output(check(reports, leases.returned, tasks))
    checked = time.process_time()
    return Costs(
        lease_us=lease_s / pairs * 1e6,
        report_us=(read - began) / pairs * 1e6,
        check_us=(checked - read) / pairs * 1e6,
        driver_bytes=(_resident_bytes() - before) / pairs,
        report_bytes=len(json.dumps(written)) / pairs,
        ledger_bytes=len(json.dumps(dict(output.data))) / partitions,
    )


def _leased(
    places: Sequence[TopicPartition], attempts: Sequence[TaskAttempt]
) -> tuple[EpochLeases, float]:
    """Return the leases of tasks that wrote a record to each place, and the CPU of serving them."""
    sequencer = Sequencer("127.0.0.1", "127.0.0.1")
    try:
        credentials = sequencer.open_epoch(ProducerIdentity(7, 3), lease_limit_seconds=_LIMIT_S)
        began = time.process_time()
        subprocess.run(
            [sys.executable, "-m", __spec__.name],
            input=pickle.dumps((credentials, places, attempts)),
            cwd=Path(__file__).parents[1],
            check=True,
        )
        used = time.process_time() - began
        leases = sequencer.close_epoch()
    finally:
        sequencer.close()
    if leases is None or leases.error is not None:
        raise RuntimeError(f"the sequencer failed: {leases and leases.error}")
    return leases, used


def _write_in_turns(
    credentials: EpochCredentials,
    places: Sequence[TopicPartition],
    attempts: Sequence[TaskAttempt],
) -> None:
    """Lease as a task does (``KafkaWriter.flush``), and append one record wherever it may."""
    for attempt in attempts:
        with closing(SequencerClient(credentials, attempt)) as sequencer:
            waiting, share = list(places), max(1, -(-len(places) // SHARES))
            while waiting:
                leases = sequencer.lease_some(waiting, limit=share)
                sequencer.release({place: base + 1 for place, base in leases.items()})
                waiting = [place for place in waiting if place not in leases]
            sequencer.finish()


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


if __name__ == "__main__":
    _write_in_turns(*pickle.load(sys.stdin.buffer))  # noqa: S301 — from the process above
