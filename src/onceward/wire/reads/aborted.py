"""Was a consumer given a record of an aborted transaction? Reads one batch.

Called by ``onceward doctor --consumers``.
"""

from __future__ import annotations

from typing import Any

from kafka.protocol.consumer import FetchRequest

from onceward.ids import TopicPartition
from onceward.records.reader import read_batches
from onceward.wire.acls import Kind
from onceward.wire.client import KafkaClient
from onceward.wire.conversation import Refused, Unanswered, converse, raise_as_error
from onceward.wire.deadline import Deadline
from onceward.wire.error_table import Api

_FETCH_BYTES = 1 << 20  # of a batch that is larger the broker sends all the same (KIP-74)
_OFFSET_OUT_OF_RANGE = 1


def is_inside_an_aborted_batch(client: KafkaClient, partition: TopicPartition, position: int) -> bool:
    """Does ``position`` stand behind a record of an aborted batch, and before another one of it?

    Whoever reads committed records passes such batches over whole (``CompletedFetch.nextFetchedRecord`` of the Java
    client), so that it never stands there by reading. False as well where the log does not reach any more.

    :raises AccessDenied: Read on the topic is needed. :raises BrokerUnreachable: …
    """
    wanted = FetchRequest.FetchTopic.FetchPartition(
        partition=partition.partition,
        current_leader_epoch=-1,
        fetch_offset=position,
        last_fetched_epoch=-1,
        log_start_offset=-1,
        partition_max_bytes=_FETCH_BYTES,
    )

    def send(left_ms: float) -> Any:
        request = FetchRequest(
            replica_id=-1,
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=_FETCH_BYTES,
            isolation_level=1,  # then the answer says which transactions were aborted
            session_id=0,
            session_epoch=-1,
            topics=[FetchRequest.FetchTopic(topic=partition.topic, partitions=[wanted])],
            forgotten_topics_data=[],
            rack_id="",
            min_version=4,
            max_version=12,
        )
        return client.call(request, client.leader_of(partition), left_ms)

    def codes(fetched: Any) -> list[int]:
        code = fetched.responses[0].partitions[0].error_code
        return [0 if code == _OFFSET_OUT_OF_RANGE else code]

    try:
        answer = converse(
            Api.FETCH,
            str(partition),
            send,
            codes,
            Deadline(client.settings.request_timeout_ms),
            refresh=lambda: client.forget_leaders([partition.topic]),
            resources={Kind.TOPIC: partition.topic},
        )
    except (Refused, Unanswered) as outcome:
        raise_as_error(outcome)
    told = answer.responses[0].partitions[0]
    aborted = {(each.producer_id, each.first_offset) for each in told.aborted_transactions or ()}
    for batch in read_batches(told.records or b""):
        if batch.base_offset < position <= batch.last_offset:
            return batch.is_transactional and any(
                producer == batch.producer_id and first <= batch.base_offset for producer, first in aborted
            )
    return False
