"""Was a consumer given a record of an aborted transaction? Reads one batch.

Called by ``onceward doctor --consumers``.
"""

from __future__ import annotations

from typing import Any

from onceward.ids import TopicPartition
from onceward.kafka.records.reader import read_batches
from onceward.kafka.wire.acls import Kind
from onceward.kafka.wire.client import KafkaClient
from onceward.kafka.wire.conversation import asked
from onceward.kafka.wire.deadline import Deadline
from onceward.kafka.wire.error_table import Api
from onceward.kafka.wire.reads.fetch import fetch_request

_OFFSET_OUT_OF_RANGE = 1


def is_inside_an_aborted_batch(
    client: KafkaClient, partition: TopicPartition, position: int
) -> bool:
    """Does ``position`` stand behind a record of an aborted batch, and before another one of it?

    Whoever reads committed records passes such batches over whole
    (``CompletedFetch.nextFetchedRecord`` of the Java client), so that it never stands there by
    reading. False as well where the log does not reach any more.

    :raises AccessDenied: Read on the topic is needed. :raises BrokerUnreachable: …
    """

    def send(left_ms: float) -> Any:
        request = fetch_request(
            partition, position, 0, read_committed=True
        )  # which says what was aborted
        return client.call(request, client.leader_of(partition), left_ms)

    def codes(fetched: Any) -> list[int]:
        code = fetched.responses[0].partitions[0].error_code
        return [0 if code == _OFFSET_OUT_OF_RANGE else code]

    answer = asked(
        Api.FETCH,
        str(partition),
        send,
        codes,
        Deadline(client.settings.request_timeout_ms),
        refresh=lambda: client.forget_leaders([partition.topic]),
        resources={Kind.TOPIC: partition.topic},
    )
    told = answer.responses[0].partitions[0]
    aborted = {(each.producer_id, each.first_offset) for each in told.aborted_transactions or ()}
    for batch in read_batches(told.records or b""):
        if batch.base_offset < position <= batch.last_offset:
            return batch.is_transactional and any(
                producer == batch.producer_id and first <= batch.base_offset
                for producer, first in aborted
            )
    return False
