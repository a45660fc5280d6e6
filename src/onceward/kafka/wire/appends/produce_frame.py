"""One ``Produce`` request as bytes, with the record batches copied exactly once; and the queue of
the record batches that one ``send`` has for one partition. No I/O, no clock.

kafka-python's own encoder copies records three times, which at hundreds of megabytes a second is a
third of a core. Here the few bytes around the batches are written by hand (Kafka's
``ProduceRequest.json``, versions 3 to 12) and joined with the buffers as they are. Called by
``kafka.wire.appends.producer`` (executors and driver); encoded in the IO thread, once the version
is negotiated.

The broker takes a producer's batches of a partition only in sequence, so when one fails the later
ones, already on their way, are refused too. The rule: after a failure nothing more is sent until
every outstanding request is answered; then everything unacknowledged goes again, in order, under
the same sequences. Batches that had been appended after all are recognised by the broker as
duplicates and acknowledged with their offsets (KIP-98), as long as they are among its last five:
so nothing is sent that lies five or more positions after the first unacknowledged one.

The first batch of an epoch travels alone. A partition that does not know the producer yet takes
any first sequence (``ProducerAppendInfo.checkSequence``; seen on 3.9.1): were the first batch lost
or refused (no leader yet), the second would be appended before it.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

from kafka.protocol.producer import ProduceRequest
from kafka.protocol.schemas.fields.codecs import Int32, String, UnsignedVarInt32

from onceward.ids import TopicPartition

_STRING = String()

WINDOW = 5
"""``ProducerStateEntry.NUM_BATCHES_TO_RETAIN`` of the broker."""


class PartitionQueue:
    """Positions 0 … ``count`` - 1 of one partition's batches, each to be acknowledged exactly
    once. ``first_alone``: position 0 is the producer's first batch of this epoch there."""

    def __init__(self, count: int, *, first_alone: bool = False) -> None:
        self._first_alone = first_alone
        self._acknowledged = [False] * count
        self._first_open = 0
        self._next = 0
        self._outstanding: set[int] = set()
        self._draining = False

    @property
    def done(self) -> bool:
        return self._first_open == len(self._acknowledged)

    @property
    def outstanding(self) -> int:
        return len(self._outstanding)

    def next_to_send(self) -> int | None:
        """Return the position that may be sent now, if any."""
        if self._draining:
            return None
        while self._next < len(self._acknowledged) and self._acknowledged[self._next]:
            self._next += 1
        window = 1 if self._first_alone and self._first_open == 0 else WINDOW
        within = self._next < min(len(self._acknowledged), self._first_open + window)
        return self._next if within else None

    def sent(self, position: int) -> None:
        self._outstanding.add(position)
        self._next = position + 1

    def acknowledged(self, position: int) -> None:
        self._acknowledged[position] = True
        while self._first_open < len(self._acknowledged) and self._acknowledged[self._first_open]:
            self._first_open += 1
        self._answered(position)

    def failed(self, position: int) -> None:
        """Send ``position`` again, and with it whatever was not acknowledged after it."""
        self._draining = True
        self._answered(position)

    def is_first_open(self, position: int) -> bool:
        """Return whether all before is acknowledged, so that none explains a broken sequence."""
        return position <= self._first_open

    def _answered(self, position: int) -> None:
        self._outstanding.discard(position)
        if self._draining and not self._outstanding:
            self._draining = False
            self._next = self._first_open


Buffers = Sequence[Any]
"""A record batch in pieces, each a bytes-like object."""


class ProduceFrame(ProduceRequest, init=False):  # type: ignore[misc,call-arg] # untyped
    """A ``Produce`` request with one record batch a partition (brokers take no more since v3).

    :param fields: those of kafka-python's, but ``topic_data``; between versions 3 and 12.
    """

    def __init__(self, batches: Mapping[TopicPartition, Buffers], **fields: Any) -> None:
        super().__init__(**fields)
        self._batches = batches

    def encode(self, *, header: bool = True, framed: bool = True) -> memoryview:
        """Return size, header and body, as a view, which a socket slices for free."""
        version = self.API_VERSION
        if version is None:
            raise ValueError("no version negotiated")
        # KIP-482: lengths become varints plus one, and every structure ends with tagged fields
        flexible = self.flexible_version_q(version)
        pieces = [
            b"",
            bytes(self.encode_header(flexible=flexible)) if header else b"",
            *self._body(flexible),
        ]
        if framed:
            pieces[0] = struct.pack(">i", sum(_size(piece) for piece in pieces))
        return memoryview(b"".join(pieces))

    def _body(self, flexible: bool) -> list[Any]:
        by_topic: dict[str, list[tuple[int, Buffers]]] = {}
        for partition, buffers in self._batches.items():
            by_topic.setdefault(partition.topic, []).append((partition.partition, buffers))
        end = b"\0" if flexible else b""
        pieces: list[Any] = [
            _STRING.encode(self.transactional_id, flexible),
            struct.pack(">hi", self.acks, self.timeout_ms),
            _length(len(by_topic), flexible),
        ]
        for topic, partitions in by_topic.items():
            pieces += [_STRING.encode(topic, flexible), _length(len(partitions), flexible)]
            for index, buffers in partitions:
                size = sum(_size(buffer) for buffer in buffers)
                pieces += [struct.pack(">i", index), _length(size, flexible), *buffers, end]
            pieces.append(end)
        pieces.append(end)
        return pieces

    def __repr__(self) -> str:
        return f"ProduceFrame({', '.join(map(str, self._batches))})"  # never the records


def _size(buffer: Any) -> int:
    return len(buffer) if isinstance(buffer, bytes) else memoryview(buffer).nbytes


def _length(count: int, flexible: bool) -> bytes:
    length: bytes = UnsignedVarInt32.encode(count + 1) if flexible else Int32.encode(count)
    return length
