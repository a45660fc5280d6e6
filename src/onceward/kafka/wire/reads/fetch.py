"""The one Fetch request that is sent here: of one partition, from one offset on.

Called by ``kafka.wire.reads.key_reader`` (all up to the high watermark),
``kafka.wire.reads.committed`` (what is decided) and ``kafka.wire.reads.aborted`` (what was
aborted).
"""

from __future__ import annotations

from typing import Any

from kafka.protocol.consumer import FetchRequest

from onceward.ids import TopicPartition

_FETCH_BYTES = 4 * 1024 * 1024
_CONSUMER = -1  # replica id of a client that is no broker


def fetch_request(
    partition: TopicPartition, offset: int, wait_ms: int, *, read_committed: bool
) -> Any:
    """Whole record batches, of about 4 MiB; the first one comes whole, however large it is
    (KIP-74).

    :param read_committed: nothing beyond the last stable offset, and with it the transactions that
        were aborted (KIP-98); else all up to the high watermark, and nothing is said of
        transactions.
    """
    wanted = FetchRequest.FetchTopic.FetchPartition(
        partition=partition.partition,
        current_leader_epoch=-1,
        fetch_offset=offset,
        last_fetched_epoch=-1,
        log_start_offset=-1,
        partition_max_bytes=_FETCH_BYTES,
    )
    return FetchRequest(
        replica_id=_CONSUMER,
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=_FETCH_BYTES,
        isolation_level=int(read_committed),
        session_id=0,
        session_epoch=-1,
        topics=[FetchRequest.FetchTopic(topic=partition.topic, partitions=[wanted])],
        forgotten_topics_data=[],
        rack_id="",
        min_version=4,
        max_version=12,
    )
