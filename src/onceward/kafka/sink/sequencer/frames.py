"""The sequencer's wire format: small frames of a fixed header (operation, length) and a bounded
payload. Used by ``sequencer.listener`` and ``sequencer.epoch`` (driver) and ``sequencer.client``
(executor). Bytes only, no I/O.

::

    executor → driver                              driver → executor
    HELLO    token, task attempt                   WELCOME   the attempt may ask for leases
    LEASE    partitions, how many of them at most  GRANT     partitions with their base sequences
    RELEASE  partitions, next sequences (unanswered)
    FINISH                                         DONE
    FAIL     an error as JSON                      DONE
                                                   PATIENCE  an answer is still to come
                                                   STOP      an error as JSON; no GRANT follows

PATIENCE comes about once a second while the answer does not. All numbers are big-endian. Both ends
are of the same build, so there is no version in here.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import groupby

from onceward.errors import BatchFailed, OncewardError, from_json, to_json
from onceward.ids import ProducerIdentity, TaskAttempt, TopicPartition

TOKEN_BYTES = 32
MAX_PARTITIONS = 4096
"""The most partitions in one frame; a task that wants more asks for the first of them."""

_HEADER = struct.Struct(">BI")  # operation, payload length
_HELLO = struct.Struct(f">{TOKEN_BYTES}siiq")
_TOPIC = struct.Struct(">HI")  # length of its name, number of partitions
_NUMBERS = struct.Struct(">ii")  # partition, sequence
# Kafka: Topic.MAX_NAME_LENGTH; legal names are ASCII
_LONGEST_TOPIC = 249

MAX_PAYLOAD_BYTES = MAX_PARTITIONS * (_TOPIC.size + _LONGEST_TOPIC + _NUMBERS.size)
"""About one megabyte: the most that a peer can make us hold."""

HELLO_FRAME_BYTES = _HEADER.size + _HELLO.size


class Op(IntEnum):
    """Operation of a frame, as in the module's table."""

    HELLO = 1
    LEASE = 2
    RELEASE = 3
    FINISH = 4
    FAIL = 5
    WELCOME = 17
    GRANT = 18
    DONE = 19
    PATIENCE = 20
    STOP = 21


_KNOWN = frozenset(Op)


class BadFrame(BatchFailed):
    """Bytes on a sequencer connection that the other end would never write."""


@dataclass(frozen=True, slots=True)
class EpochCredentials:
    """The sequencer's address, and the random token that opens it for one epoch. Made by the
    driver; travels pickled in the task's closure.

    The token is a secret of the query: it is not shown by ``repr``. It crosses the network in the
    clear, like Spark's own task closures unless Spark's network encryption is on; it lets its
    bearer spoil this epoch, and nothing else, since the broker and the report check do not rely on
    it.
    """

    host: str
    port: int
    token: bytes = field(repr=False)
    identity: ProducerIdentity


def plain_host(host: str) -> str:
    """Return ``host`` as sockets take it: IPv6 without the brackets that Spark writes."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def frame(op: Op, payload: bytes = b"") -> bytes:
    """Encode one frame."""
    return _HEADER.pack(op, len(payload)) + payload


class FrameBuffer:
    """Decoder from bytes to whole frames; lengths are checked before their payload is awaited."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, received: bytes) -> None:
        """Add what a socket gave."""
        self._bytes += received

    def next_frame(self) -> tuple[Op, bytes] | None:
        """Return the next frame; None: feed more. :raises BadFrame: unknown, or too long."""
        if len(self._bytes) < _HEADER.size:
            return None
        op, length = _HEADER.unpack_from(self._bytes)
        if op not in _KNOWN:
            raise BadFrame(f"unknown operation {op}")
        if length > MAX_PAYLOAD_BYTES:
            raise BadFrame(f"a payload of {length} bytes is over the limit of {MAX_PAYLOAD_BYTES}")
        end = _HEADER.size + length
        if len(self._bytes) < end:
            return None
        payload = bytes(self._bytes[_HEADER.size : end])
        del self._bytes[:end]
        return Op(op), payload


def hello_frame(token: bytes, task: TaskAttempt) -> bytes:
    """Encode the first frame of a connection."""
    return frame(
        Op.HELLO, _HELLO.pack(token, task.partition_id, task.attempt_number, task.task_attempt_id)
    )


def is_hello_header(received: bytes | bytearray) -> bool:
    """Return whether these bytes, perhaps not all of a header, can begin a HELLO frame."""
    return _HEADER.pack(Op.HELLO, _HELLO.size).startswith(bytes(received[: _HEADER.size]))


def parse_hello(received: bytes | bytearray) -> tuple[bytes, TaskAttempt]:
    """Return token and task of a whole HELLO frame, whose header the caller has checked."""
    token, *numbers = _HELLO.unpack_from(received, _HEADER.size)
    return token, TaskAttempt(*numbers)


def encode_partitions(numbered: Iterable[tuple[TopicPartition, int]]) -> bytes:
    """Encode the payload of GRANT (base sequences) or RELEASE (next sequences): for each topic in
    a row its name, and its partitions with their numbers."""
    parts = []
    for topic, run in groupby(numbered, key=lambda each: each[0].topic):
        name = topic.encode()
        numbers = [_NUMBERS.pack(where.partition, number) for where, number in run]
        parts += [_TOPIC.pack(len(name), len(numbers)), name, *numbers]
    return b"".join(parts)


def decode_partitions(payload: bytes) -> list[tuple[TopicPartition, int]]:
    """Decode the payload of GRANT or RELEASE. :raises BadFrame: uneven, or a name no text."""
    numbered: list[tuple[TopicPartition, int]] = []
    at, topic = 0, None
    try:
        while at < len(payload):
            length, count = _TOPIC.unpack_from(payload, at)
            begin = at + _TOPIC.size + length
            before, topic = topic, payload[at + _TOPIC.size : begin].decode()
            at = begin + count * _NUMBERS.size
            if topic == before or not count or at > len(payload):
                raise BadFrame(f"{count} partitions of {topic}, after {before}")
            numbered += [
                (TopicPartition(topic, partition), number)
                for partition, number in _NUMBERS.iter_unpack(payload[begin:at])
            ]
    except (struct.error, UnicodeDecodeError) as error:
        raise BadFrame(f"a list of partitions is cut or damaged: {error}") from error
    if any(where.partition < 0 for where, _ in numbered):
        raise BadFrame("a partition below 0")
    return numbered


def encode_lease_request(partitions: Iterable[TopicPartition], limit: int) -> bytes:
    """Encode the payload of LEASE: the limit stands at every partition."""
    return encode_partitions((partition, limit) for partition in partitions)


def decode_lease_request(payload: bytes) -> tuple[list[TopicPartition], int]:
    """Decode the payload of LEASE. :raises BadFrame: damaged, or a limit below 0."""
    numbered = decode_partitions(payload)
    limit = numbered[0][1] if numbered else 0
    if limit < 0:
        raise BadFrame(f"a limit of {limit} leases")
    return [partition for partition, _ in numbered], limit


def encode_error(error: OncewardError) -> bytes:
    """Encode the payload of FAIL or STOP. A very long error is cut, and loses its details."""
    encoded = to_json(error).encode()
    if len(encoded) <= MAX_PAYLOAD_BYTES:
        return encoded
    # Characters, of which JSON escapes none into more than twelve bytes
    short = MAX_PAYLOAD_BYTES // 32
    return json.dumps(
        [type(error).__name__, error.message[:short], error.next_step[:short], {}]
    ).encode()


def decode_error(payload: bytes) -> OncewardError:
    """Decode the payload of FAIL or STOP. :raises BadFrame: not an error as JSON."""
    try:
        return from_json(payload.decode())
    except (ValueError, TypeError, RecursionError) as error:
        raise BadFrame(f"not an error as JSON: {error}") from error
