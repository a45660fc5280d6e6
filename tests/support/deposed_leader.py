"""A leader of a partition that was deposed and does not know it, as a client of ours meets it: its
log ends too early.

For tests. The client's answers are cut short; the brokers are as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from onceward.kafka.records.reader import read_batches
from onceward.kafka.wire.client import KafkaClient


@contextmanager
def deposed(client: KafkaClient, topic: str, end: int) -> Iterator[list[str]]:
    """Inside, whatever ``client`` reads of ``topic`` ends at ``end``; yields the names of the
    requests that did.
    """
    send = client.send
    cut: list[str] = []

    def outdated(request: Any, node_id: int | str, timeout_ms: float | None = None) -> Future[Any]:
        name = type(request).__name__
        answer = send(request, node_id, timeout_ms)
        if not name.startswith(("FetchRequest", "ListOffsetsRequest")) or topic != _topic_of(
            request
        ):
            return answer
        outcome: Future[Any] = Future()

        def shorten(done: Future[Any]) -> None:
            cut.append(name)
            outcome.set_result(_until(done.result(), end))

        answer.add_done_callback(shorten)
        return outcome

    client.send = outdated  # type: ignore[method-assign]
    try:
        yield cut
    finally:
        client.send = send  # type: ignore[method-assign]


def _until(answer: Any, end: int) -> Any:
    if hasattr(answer, "responses"):
        found = answer.responses[0].partitions[0]
        records = bytes(found.records or b"")
        found.records = records[
            : sum(batch.size for batch in read_batches(records) if batch.last_offset < end)
        ]
        found.high_watermark = min(found.high_watermark, end)
    else:
        found = answer.topics[0].partitions[0]
        found.offset = min(found.offset, end)
    return answer


def _topic_of(request: Any) -> str:
    asked = request.topics[0]
    return str(getattr(asked, "topic", None) or asked.name)
