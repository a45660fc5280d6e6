"""What else a broker may answer, and what may befall the cluster: the faults that the model does not come to by itself.

``ANSWERS`` has, for each request and error code, whether the request is carried out all the same, and when a broker
answers so. The state machine gives the other codes where the real one does; ``NEVER`` says why some cannot be given.
"""

from __future__ import annotations

from collections.abc import Mapping

FAULTS: dict[str, str] = {
    "kafka:follower lags": "a follower misses a round of fetches: in sync still, and behind",
    "kafka:expired id lingers": "a transactional id has expired, and the hourly look has not come round yet",
}
"""Kinds of faults inside the cluster; those of :data:`ANSWERS` are added below."""

_ELECTION = {
    6: (False, "the leader has moved, and the client's metadata have not"),
}
_COORDINATOR = {
    14: (False, "it reads its log first (loadTransactionsForTxnTopicPartition, CoordinatorRuntime)"),
    15: (False, "its log cannot be appended to: too few replicas, or no answer from them (appendTransactionToLog)"),
    16: (False, "another node leads the partition of the internal topic"),
}
_CONCURRENT = {51: (False, "a transition of the coordinator is pending (pendingTransitionInProgress)")}
_SERVER = {-1: (False, "an exception that has no code of its own (KafkaApis.handleError)")}

ANSWERS: Mapping[str, Mapping[int, tuple[bool, str]]] = {
    "Metadata": {
        3: (False, "the broker has not heard of a new topic"),
        5: (False, "no leader is elected: an error code of the partition, which Onceward reads as no leader"),
    },
    "FindCoordinator": {
        15: (False, "the internal topic is not created yet, or has no leader (handleFindCoordinatorRequest)"),
        **_SERVER,
    },
    "InitProducerId": {
        **_COORDINATOR, **_CONCURRENT, **_SERVER,
        52: (False, "TRANSACTION_COORDINATOR_FENCED: a newer coordinator has written (ProducerAppendInfo)"),
    },
    "AddPartitionsToTxn": {**_COORDINATOR, **_CONCURRENT, **_SERVER},
    "AddOffsetsToTxn": {**_COORDINATOR, **_CONCURRENT, **_SERVER},
    "TxnOffsetCommit": {
        **_COORDINATOR, **_CONCURRENT, **_SERVER,
        3: (False, "the broker has not heard of a new topic"),
    },
    "EndTxn": {
        **_COORDINATOR, **_CONCURRENT, **_SERVER,
        120: (False, "this transaction can only be aborted (KIP-1050 lets any of its requests say so)"),
    },
    "Produce": {
        **_ELECTION, **_CONCURRENT, **_SERVER,
        2: (False, "damaged on the way (LogValidator)"),
        3: (False, "the broker has not heard of a new topic"),
        5: (False, "an election is under way"),
        7: (True, "followers were too slow; it is in the log (DelayedProduce.onExpiration)"),
        9: (False, "the replica is not there yet (getPartitionOrException)"),
        10: (False, "above max.message.bytes, which somebody has just lowered"),
        18: (False, "RECORD_LIST_TOO_LARGE: above segment.bytes"),
        19: (False, "below min.insync.replicas, or the transaction coordinator cannot be asked"),
        20: (True, "the in-sync replicas became too few after it was appended"),
        56: (False, "the disk of this log has failed, and another replica leads"),
        59: (False, "UNKNOWN_PRODUCER_ID: brokers before 2.4, and those that speak for Kafka"),
        87: (False, "a compacted topic is given a record without key (LogValidator)"),
        89: (False, "a quota is exceeded (THROTTLING_QUOTA_EXCEEDED)"),
        120: (False, "the partition could not be added, and the transaction can only be aborted"),
    },
    "DescribeTransactions": {**_COORDINATOR},
    "ListOffsets": {
        **_ELECTION, **_SERVER,
        3: (False, "the broker has not heard of a new topic"),
        56: (False, "the disk of this log has failed"),
        74: (False, "FENCED_LEADER_EPOCH"),
        75: (False, "UNKNOWN_LEADER_EPOCH: the broker has not heard of the election"),
        78: (False, "the new leader's high watermark lags (fetchOffsetForTimestamp)"),
    },
    "OffsetFetch": {**_COORDINATOR, **_SERVER},
    "Fetch": {
        **_ELECTION, **_SERVER,
        3: (False, "the broker has not heard of a new topic"),
        56: (False, "the disk of this log has failed"),
        74: (False, "FENCED_LEADER_EPOCH"),
        75: (False, "UNKNOWN_LEADER_EPOCH"),
        78: (False, "OFFSET_NOT_AVAILABLE"),
        100: (False, "UNKNOWN_TOPIC_ID"),
    },
    "CreateTopics": {
        7: (True, "created, and not yet known everywhere when the time was up"),
        41: (False, "NOT_CONTROLLER"),
        **_SERVER,
    },
    "DescribeConfigs": {**_SERVER},
}  # fmt: skip


def kind(api: str, code: int) -> str:
    """The name of the fault in which ``api`` is answered ``code``."""
    return f"answer:{api}:{code}"


FAULTS |= {kind(api, code): sentence for api, codes in ANSWERS.items() for code, (_, sentence) in codes.items()}
