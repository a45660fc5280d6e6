"""The input of the windows: written with librdkafka's idempotent producer, in a thread of the
supervisor.

Event time is the record's Kafka timestamp, set here. Each portion is acknowledged before the next
gets its timestamp, so that no partition lags behind the others in event time: a record that came
later than the watermark allows would be dropped by any windowed query, rightly, and the count
would no longer tell anything about the sink.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable
from pathlib import Path

from confluent_kafka import KafkaError, Message, Producer

from onceward.errors import BrokerUnreachable
from onceward_testing.demo.input import DemoInput, Pace
from onceward_testing.demo.settings import INPUT_TOPIC, WATERMARK_DELAY_SECONDS
from onceward_testing.demo.supervisor import query_progress
from onceward_testing.demo.windows.people import Encode, Person, expected_numbers

_PORTION_SECONDS = 0.2
_FLUSH_SECONDS = 60
_IN_FLIGHT_RECORDS = 50_000  # librdkafka holds 100,000 by default


class PeopleInput(DemoInput):
    """The people, then one closing tombstone whose event time is late enough to end every window.

    :param encode: makes their values.
    :param closing_delay_ms: how much later than the last person the closing tombstone is.
    """

    begins = "people begin to come in"
    unit_written = "people written"
    unit_visible = "numbers visible"

    def __init__(
        self,
        bootstrap_servers: str,
        everybody: list[Person],
        encode: Encode,
        pace: Pace,
        closing_delay_ms: int,
    ) -> None:
        super().__init__()
        self._bootstrap_servers = bootstrap_servers
        self._producer: Producer  # begins and ends with the thread
        self._everybody = everybody
        self.planned = len(everybody) + 1
        self.expected = expected_numbers(everybody)
        """The model of the output."""
        self.invalid: list[bytes] = []
        """Key and value of each invalid record written so far, with a colon between them."""
        self._encode = encode
        self._pace = pace
        self._closing_delay_ms = closing_delay_ms
        self._closing_ms: int | None = None

    @property
    def to_be_visible(self) -> int:
        return len(self.expected)

    def is_through(self, checkpoint: Path) -> bool:
        """Return whether a batch is finished that ran with the watermark at which every window is
        closed.

        That is the closing tombstone's event time, before which everything is written.
        """
        progress = query_progress(checkpoint) if self._closing_ms is not None else None
        if self._closing_ms is None or progress is None:
            return False
        return progress.watermark_ms >= self._closing_ms - WATERMARK_DELAY_SECONDS * 1_000

    def _write_all(self) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": self._bootstrap_servers,
                "enable.idempotence": True,
                "partitioner": "murmur2_random",  # where the Java client would put them
                "linger.ms": 5,
                "log_level": 3,  # errors; its warnings are about what it retries by itself
            }
        )
        try:
            self._write_everybody()
        finally:
            del (
                self._producer
            )  # closes its connections: the brokers may go away now without a word from it

    def _write_everybody(self) -> None:
        waiting = iter(self._everybody)
        began = time.monotonic()
        timestamp_ms = 0
        while self._written < len(self._everybody) and not self._stop.wait(_PORTION_SECONDS):
            due = self._pace.due(time.monotonic() - began, hold=self._hold)
            count = max(0, due - self._written)
            timestamp_ms = self._write(itertools.islice(waiting, count), timestamp_ms)
            self._written += count
        if self._written == len(self._everybody):
            closing_ms = timestamp_ms + self._closing_delay_ms
            self._send(Person(key=b"closing", document=None, number=None), closing_ms)
            self._flush()
            self._written += 1
            self._closing_ms = closing_ms

    def _write(self, portion: Iterable[Person], previous_ms: int) -> int:
        """Write ``portion``; return the last event time used, which never runs backwards."""
        timestamp_ms = previous_ms
        for person in portion:
            if not person.repeats_previous:
                timestamp_ms = max(previous_ms, time.time_ns() // 1_000_000)
            self._send(person, timestamp_ms)
        self._flush()
        return timestamp_ms

    def _send(self, person: Person, timestamp_ms: int) -> None:
        if len(self._producer) >= _IN_FLIGHT_RECORDS:
            self._flush()
        value = self._encode(person)
        if person.defect and value is not None:
            self.invalid.append(person.key + b":" + value)
        self._producer.produce(
            INPUT_TOPIC, value, person.key, timestamp=timestamp_ms, on_delivery=self._on_delivery
        )

    def _on_delivery(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            self._error = _not_written(str(error))

    def _flush(self) -> None:
        left = self._producer.flush(_FLUSH_SECONDS)
        if self._error is None and left:
            self._error = _not_written(f"{left} records unacknowledged after {_FLUSH_SECONDS} s")
        if self._error is not None:
            raise self._error


def _not_written(reason: str) -> BrokerUnreachable:
    return BrokerUnreachable(
        f"the demo's input could not be written: {reason}", next_step="look at the broker's log"
    )
