"""Feeds the source topic at a steady rate, with an idempotent producer, and keeps account of what
was acknowledged.

``python -m soak.feeder '<FeederSettings as JSON>'``, as a process of its own until SIGTERM; ends
with status 0 when everything it sent is acknowledged. Each partition's records are numbered from 0
without a gap, in order; a later feeder goes on where the partition ends.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaError, Producer

from onceward_testing.topic_reader import end_offsets

from .workload import SOURCE, SOURCE_PARTITIONS, key_of, value_of

_TICK_SECONDS = 0.1
_ACCOUNT_SECONDS = 1.0
_MOST_BEHIND_SECONDS = 5.0  # after a standstill: catch up with so much, not with all of it


@dataclass(frozen=True)
class FeederSettings:
    """``account``: the file that says how many records of each partition are acknowledged."""

    bootstrap_servers: str
    records_per_second: int
    account: str

    def to_json(self) -> str:
        return json.dumps(asdict(self))


class Feeder:
    """One life of the feeder."""

    def __init__(self, settings: FeederSettings) -> None:
        self._settings = settings
        ends = end_offsets(settings.bootstrap_servers, SOURCE, "read_uncommitted", timeout_s=60)
        self._next = [ends[partition] for partition in range(SOURCE_PARTITIONS)]
        self._acknowledged = list(self._next)
        self._failure: Any = None
        self._producer = Producer(
            {
                "bootstrap.servers": settings.bootstrap_servers,
                "enable.idempotence": True,
                "linger.ms": 50,
                # as long as it takes: a record that is given up would be a hole
                "message.timeout.ms": 0,
                "log_level": 3,
            }
        )

    def run(self, until_told: list[bool]) -> None:
        """Feed until ``until_told`` says so; then wait for the last acknowledgement."""
        rate = self._settings.records_per_second
        owed, before, accounted = 0.0, time.monotonic(), 0.0
        while not until_told and self._failure is None:
            now = time.monotonic()
            owed = min(owed + (now - before) * rate, rate * _MOST_BEHIND_SECONDS)
            before = now
            for _ in range(int(owed)):
                self._send()
            owed -= int(owed)
            self._producer.poll(0)
            if now - accounted > _ACCOUNT_SECONDS:
                accounted = now
                self._write_account(ended=False)
            time.sleep(_TICK_SECONDS)
        while self._failure is None and self._producer.flush(1):
            pass
        if self._failure is not None:
            raise RuntimeError(f"the feeder lost a record: {self._failure}")
        self._write_account(ended=True)

    def _send(self) -> None:
        partition = min(range(SOURCE_PARTITIONS), key=self._next.__getitem__)
        number = self._next[partition]
        while True:
            try:
                self._producer.produce(
                    SOURCE,
                    value_of(partition, number),
                    key_of(number),
                    partition,
                    on_delivery=self._delivered,
                )
                break
            except BufferError:
                self._producer.poll(0.2)
        self._next[partition] += 1

    def _delivered(self, error: KafkaError | None, message: Any) -> None:
        if error is not None:
            self._failure = error
        else:
            self._acknowledged[message.partition()] += 1

    def _write_account(self, *, ended: bool) -> None:
        path = Path(self._settings.account)
        unfinished = path.with_suffix(".new")
        unfinished.write_text(json.dumps({"acknowledged": self._acknowledged, "ended": ended}))
        unfinished.replace(path)


if __name__ == "__main__":
    told: list[bool] = []
    signal.signal(signal.SIGTERM, lambda *_: told.append(True))
    Feeder(FeederSettings(**json.loads(sys.argv[1]))).run(told)
