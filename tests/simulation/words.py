"""Requests and answers in words, for the timeline: who asks what of which broker, under which
epoch, and what it says.

Only where somebody listens; it changes nothing of what it tells of.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Any

from kafka.errors import for_code

_STAMP = struct.Struct(
    ">qhii"
)  # producer id, epoch, base sequence, count: at byte 43 of a record batch (KIP-98)
_STAMP_AT = 43
_MOST = 4


def listen(world: Any) -> None:
    """What brokers are asked, and answer, is told from now on."""
    receive = world.cluster_receives
    sim = world.sim

    def told(node: int, client: str, request: Any, reply: Callable[[Any], None]) -> None:
        asked = words_of(request)
        who = who_is(client)
        sim.tell(sim.now, who, f"→ broker {node}: {asked}")

        def answered(answer: Any) -> None:
            if sim.tell is not None:
                sim.tell(sim.now, f"broker {node}", f"→ {who}: {answer_of(request, answer)}")
            reply(answer)

        receive(node, client, request, answered)

    world.cluster_receives = told


def who_is(client: str) -> str:
    """The process of a client id."""
    return client.rpartition("@")[2] or client


def name_of(request: Any) -> str:
    return type(request).__name__.removesuffix("Request").removesuffix("Frame")


def words_of(request: Any) -> str:
    """A request: what it is about, and under which producer id and epoch."""
    name = name_of(request)
    describe = _REQUESTS.get(name)
    return f"{name} {describe(request)}" if describe else name


def answer_of(request: Any, answer: Any) -> str:
    """An answer: its error codes by name, and what it gives."""
    name = name_of(request)
    if answer is None:
        return f"{name}: the connection is closed"
    codes = [code for code in codes_of(answer) if code]
    if codes:
        return f"{name}: " + ", ".join(dict.fromkeys(error_name(code) for code in codes))
    describe = _ANSWERS.get(name)
    return f"{name}: {describe(answer) if describe else 'done'}"


def codes_of(answer: Any, depth: int = 4) -> Iterable[int]:
    """Every error code in an answer, wherever it is."""
    if isinstance(answer, (list, tuple)):
        for part in answer:
            yield from codes_of(part, depth)
    elif depth and not isinstance(answer, (str, bytes, int, float, dict, type(None))):
        for attribute in _attributes(answer):
            value = getattr(answer, attribute, None)
            if attribute.endswith("error_code") and isinstance(value, int):
                yield value
            elif isinstance(value, (list, tuple)):
                yield from codes_of(value, depth - 1)


def error_name(code: int) -> str:
    return f"{getattr(for_code(code), 'message', '?')} ({code})"


def _attributes(answer: Any) -> list[str]:
    return [*getattr(type(answer), "__slots__", ()), *getattr(answer, "__dict__", ())]


def _identity(request: Any, prefix: str = "") -> str:
    return (
        f"{getattr(request, f'{prefix}producer_id')}/{getattr(request, f'{prefix}producer_epoch')}"
    )


def _several(parts: Iterable[str]) -> str:
    found = list(parts)
    return ", ".join(found[:_MOST]) + (
        f" and {len(found) - _MOST} more" if len(found) > _MOST else ""
    )


def _produce(request: Any) -> str:
    return "to " + _several(
        f"{where.topic}-{where.partition} {_stamp(pieces)}"
        for where, pieces in request._batches.items()
    )


def _stamp(pieces: Any) -> str:
    head = b"".join(bytes(piece) for piece in pieces)[: _STAMP_AT + _STAMP.size]
    if len(head) < _STAMP_AT + _STAMP.size:
        return ""
    producer_id, epoch, sequence, count = _STAMP.unpack_from(head, _STAMP_AT)
    return f"{count} record(s) as {producer_id}/{epoch} from sequence {sequence}"


def _init(request: Any) -> str:
    if request.producer_id < 0:
        return f"of {request.transactional_id}: take it over"
    return f"of {request.transactional_id}: the epoch after {_identity(request)}"


def _end(request: Any) -> str:
    return f"{'COMMIT' if request.committed else 'ABORT'} as {_identity(request)}"


def _partitions(topics: Iterable[Any]) -> str:
    return _several(
        f"{topic.name}-{partition}" for topic in topics for partition in topic.partitions
    )


def _offsets(request: Any) -> str:
    where = _several(
        f"{topic.name}-{part.partition_index}={part.committed_offset}"
        for topic in request.topics
        for part in topic.partitions
    )
    return f"of group {request.group_id} as {_identity(request)}: {where}"


def _fetch(request: Any) -> str:
    level = "committed" if request.isolation_level else "all"
    return f"({level}) " + _several(
        f"{topic.topic}-{part.partition} from {part.fetch_offset}"
        for topic in request.topics
        for part in topic.partitions
    )


def _listed(request: Any) -> str:
    return _several(
        f"{topic.name}-{part.partition_index}"
        for topic in request.topics
        for part in topic.partitions
    )


_REQUESTS: dict[str, Callable[[Any], str]] = {
    "Produce": _produce,
    "InitProducerId": _init,
    "EndTxn": _end,
    "AddPartitionsToTxn": lambda request: (
        f"as {_identity(request, 'v3_and_below_')}: {_partitions(request.v3_and_below_topics)}"
    ),
    "AddOffsetsToTxn": lambda request: f"as {_identity(request)}: group {request.group_id}",
    "TxnOffsetCommit": _offsets,
    "FindCoordinator": lambda request: f"of {request.key}",
    "Fetch": _fetch,
    "ListOffsets": _listed,
}

_ANSWERS: dict[str, Callable[[Any], str]] = {
    "Produce": lambda answer: (
        "appended at "
        + _several(
            f"{topic.name}-{part.index}@{part.base_offset}"
            for topic in answer.responses
            for part in topic.partition_responses
        )
    ),
    "InitProducerId": lambda answer: f"you are {_identity(answer)}",
    "EndTxn": lambda answer: (
        f"done, you are {_identity(answer)} now"
        if getattr(answer, "producer_id", -1) >= 0
        else "done"
    ),
    "ListOffsets": lambda answer: _several(
        f"{topic.name}-{part.partition_index} at {part.offset}"
        for topic in answer.topics
        for part in topic.partitions
    ),
    "Fetch": lambda answer: _several(
        f"{topic.topic}-{part.partition_index}: {len(part.records or b'')} bytes, "
        f"high watermark {part.high_watermark}, stable to {part.last_stable_offset}"
        for topic in answer.responses
        for part in topic.partitions
    ),
    "DescribeTransactions": lambda answer: _several(
        f"{state.transaction_state}, {state.producer_id}/{state.producer_epoch}"
        for state in answer.transaction_states
    ),
}
