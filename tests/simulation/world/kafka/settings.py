"""How the brokers are configured, and which versions of each request they speak.

Defaults are Kafka's own (``TransactionStateManagerConfigs``, ``TransactionLogConfig``,
``AddPartitionsToTxnConfig``, ``ServerLogConfigs``), but for the number of partitions of internal
topics, which is ``LocalKafka``'s.
"""

from __future__ import annotations

from dataclasses import dataclass

OLD, NEW = "3.9.1", "4.3.1"
STATE_TOPIC, OFFSETS_TOPIC = "__transaction_state", "__consumer_offsets"


@dataclass
class ClusterSettings:
    """Named as the brokers' own settings, dots as underscores."""

    version: str = NEW
    transaction_max_timeout_ms: int = 900_000
    transactional_id_expiration_ms: int = 604_800_000
    producer_id_expiration_ms: int = 86_400_000
    request_timeout_ms: int = 30_000
    add_partitions_to_txn_retry_backoff_ms: int = 20
    add_partitions_to_txn_retry_backoff_max_ms: int = 100
    transaction_state_partitions: int = 4
    offsets_partitions: int = 4
    internal_min_isr: int | None = None
    """``transaction.state.log.min.isr``, and of the group offsets: 2 of 3 replicas unless it is
    said.
    """
    message_max_bytes: int = 1_048_588
    offset_metadata_max_bytes: int = 4_096


TOPIC_DEFAULTS = {
    "cleanup.policy": "delete",
    "compression.gzip.level": "-1",
    "compression.lz4.level": "9",
    "compression.type": "producer",
    "compression.zstd.level": "3",
    "delete.retention.ms": "86400000",
    "file.delete.delay.ms": "60000",
    "flush.messages": "9223372036854775807",
    "flush.ms": "9223372036854775807",
    "follower.replication.throttled.replicas": "",
    "index.interval.bytes": "4096",
    "leader.replication.throttled.replicas": "",
    "local.retention.bytes": "-2",
    "local.retention.ms": "-2",
    "max.compaction.lag.ms": "9223372036854775807",
    "message.timestamp.after.max.ms": "3600000",
    "message.timestamp.before.max.ms": "9223372036854775807",
    "message.timestamp.type": "CreateTime",
    "min.cleanable.dirty.ratio": "0.5",
    "min.compaction.lag.ms": "0",
    "preallocate": "false",
    "remote.log.copy.disable": "false",
    "remote.log.delete.on.disable": "false",
    "remote.storage.enable": "false",
    "retention.bytes": "-1",
    "retention.ms": "604800000",
    "segment.bytes": "1073741824",
    "segment.index.bytes": "10485760",
    "segment.jitter.ms": "0",
    "segment.ms": "604800000",
    "unclean.leader.election.enable": "false",
}
"""Settings of a topic that nobody has configured, as 4.3.1 tells them, without those that follow
the brokers' own (``min.insync.replicas``, ``max.message.bytes``).
"""

_NEWEST = {
    "Produce": (12, 11),  # 13 names topics by id (KIP-516), which Onceward does not
    "Fetch": (12, 12),
    "ListOffsets": (7, 7),
    "Metadata": (12, 12),
    "OffsetFetch": (8, 8),
    "FindCoordinator": (5, 5),
    "InitProducerId": (5, 5),
    "AddPartitionsToTxn": (5, 5),
    "AddOffsetsToTxn": (4, 4),
    "EndTxn": (5, 4),
    "TxnOffsetCommit": (5, 4),
    "ApiVersions": (4, 4),
    "CreateTopics": (7, 7),
    "DescribeConfigs": (4, 4),
    "DescribeProducers": (0, 0),
    "DescribeTransactions": (0, 0),
}
API_KEYS = {
    "Produce": 0, "Fetch": 1, "ListOffsets": 2, "Metadata": 3, "OffsetFetch": 9,
    "FindCoordinator": 10,
    "ApiVersions": 18, "CreateTopics": 19, "InitProducerId": 22, "AddPartitionsToTxn": 24,
    "AddOffsetsToTxn": 25,
    "EndTxn": 26, "TxnOffsetCommit": 28, "DescribeConfigs": 32, "DescribeProducers": 61,
    "DescribeTransactions": 65,
}  # fmt: skip


def newest_versions(version: str) -> dict[str, int]:
    """Of each request the newest version that brokers of ``version`` speak, as far as Onceward
    goes.
    """
    return {api: newest[version == OLD] for api, newest in _NEWEST.items()}
