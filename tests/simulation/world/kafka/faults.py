"""What else a broker may answer, and what may befall the cluster: the faults that the model does
not come to by itself.

Every row of Onceward's error table is in one of three lists: :data:`ANSWERS` (given at the odds of
the story), ``GIVEN`` (the state machine comes to it by itself; some are in both, because the
chance that it does so is small), ``NEVER`` (no broker can answer so to Onceward, and why).
"""

from __future__ import annotations

from collections.abc import Mapping

FAULTS: dict[str, str] = {
    "kafka:follower lags": "a follower misses a round of fetches: in sync still, and behind",
    "kafka:expired id lingers": "a transactional id has expired, and the hourly look has not come "
    "round yet",
    "kafka:state log slow": "a coordinator's append is acknowledged when its time is over: "
    "COORDINATOR_NOT_AVAILABLE, "
    "and all the same in the log, for whoever reads it next",
    "kafka:partitions added": "somebody adds partitions to the ledger's topic, and keys are at "
    "home elsewhere now",
    "kafka:short fetch": "a Fetch ends after one batch: a segment of the log does, or there was a "
    "limit",
}
"""Kinds of faults inside the cluster; those of :data:`ANSWERS` are added below."""

_Answers = dict[int, tuple[bool, str]]
"""Error code → is the request carried out all the same?, and when a broker answers so."""

_SERVER: _Answers = {
    -1: (False, "an exception that has no code of its own (KafkaApis.handleError)"),
}
_COORDINATOR: _Answers = {
    14: (
        False,
        "it reads its log first (loadTransactionsForTxnTopicPartition, CoordinatorRuntime)",
    ),
    15: (
        False,
        "its log cannot be appended to: too few replicas, or no answer from them "
        "(appendTransactionToLog)",
    ),
    16: (False, "another node leads the partition of the internal topic"),
}
_TRANSACTION: _Answers = {
    **_COORDINATOR,
    **_SERVER,
    51: (False, "a transition of the coordinator is pending (pendingTransitionInProgress)"),
    53: (False, "Write on the transactional id was taken away"),
}
_GROUP: _Answers = {30: (False, "Read on the group was taken away")}
_TOPIC: _Answers = {29: (False, "the right to the topic was taken away")}
_LEADER: _Answers = {
    3: (False, "the broker has not heard of a new topic (getPartitionOrError)"),
    6: (False, "the leader has moved, and the client's metadata have not"),
    9: (False, "a replica that is being assigned (getPartitionOrException)"),
    56: (
        False,
        "the disk of this log has failed, and another replica leads (KAFKA_STORAGE_ERROR)",
    ),
    **_SERVER,
    **_TOPIC,
}
_EPOCHS: _Answers = {
    74: (False, "FENCED_LEADER_EPOCH (Partition.checkCurrentLeaderEpoch)"),
    75: (False, "UNKNOWN_LEADER_EPOCH: the broker has not heard of the election"),
}

ANSWERS: Mapping[str, _Answers] = {
    "Metadata": {
        3: (False, "the broker has not heard of a new topic"),
        5: (False, "no leader is elected: of the whole topic, as brokers before 1.0 say it"),
        **_SERVER, **_TOPIC,
    },
    "FindCoordinator": {
        15: (False, "the internal topic is not created yet, or has no leader "
                    "(handleFindCoordinatorRequest)"),
        30: (False, "Describe on the group was taken away"),
        53: (False, "Describe on the transactional id was taken away"),
        120: (False, "from version 5 on it may say so (KIP-890); no release does"),
        **_SERVER,
    },
    "InitProducerId": {
        **_TRANSACTION,
        31: (False, "IdempotentWrite on the cluster was taken away, of a producer without "
                    "transactional id"),
        120: (False, "from version 5 on it may say so (KIP-890)"),
    },
    "AddPartitionsToTxn": {
        **_TRANSACTION, **_TOPIC,
        52: (False, "TRANSACTION_COORDINATOR_FENCED: a newer coordinator has written "
                    "(ProducerAppendInfo)"),
        120: (False, "from version 5 on it may say so (KIP-890)"),
    },
    "AddOffsetsToTxn": {
        **_TRANSACTION, **_GROUP,
        120: (False, "from version 4 on it may say so (KIP-890)"),
    },
    "TxnOffsetCommit": {
        **_TRANSACTION, **_GROUP, **_TOPIC,
        3: (False, "the broker has not heard of a new topic"),
        22: (False, "a group that is gone, of a commit that names a generation "
                    "(validateTransactionalOffsetCommit)"),
        25: (False, "a member that the group does not have (validateMember)"),
        28: (False, "INVALID_COMMIT_OFFSET_SIZE: above max.message.bytes of the offsets' topic"),
        59: (False, "the producer's state is gone: brokers before 2.4"),
        120: (False, "the group's partition could not be added (KIP-890)"),
    },
    "EndTxn": {
        **_TRANSACTION,
        52: (False, "TRANSACTION_COORDINATOR_FENCED"),
        120: (False, "this transaction can only be aborted (KIP-890 lets it say so)"),
    },
    "Produce": {
        **_LEADER,
        2: (False, "damaged on the way (LogValidator)"),
        5: (False, "LEADER_NOT_AVAILABLE: an election is under way"),
        7: (True, "followers were too slow; it is in the log (DelayedProduce.onExpiration)"),
        10: (False, "above max.message.bytes, which somebody has just lowered"),
        18: (False, "RECORD_LIST_TOO_LARGE: above segment.bytes"),
        19: (False, "below min.insync.replicas, or the transaction coordinator cannot be asked"),
        20: (True, "the in-sync replicas became too few after it was appended"),
        32: (False, "INVALID_TIMESTAMP: the broker's clock is far from ours (LogValidator)"),
        43: (False, "the topic keeps a format that has no room for this (brokers before 4.0)"),
        51: (False, "markers of the transaction before are still being written"),
        53: (False, "Write on the transactional id was taken away"),
        59: (False, "UNKNOWN_PRODUCER_ID: brokers before 2.4, and those that speak for Kafka"),
        76: (False, "the broker cannot read this codec"),
        87: (False, "a compacted topic is given a record without key (LogValidator)"),
        89: (False, "a quota is exceeded (THROTTLING_QUOTA_EXCEEDED)"),
        120: (False, "the partition could not be added, and the transaction can only be aborted"),
    },
    "DescribeTransactions": {
        **_COORDINATOR, **_SERVER,
        53: (False, "Describe on the transactional id was taken away"),
    },
    "ListOffsets": {
        **_LEADER, **_EPOCHS,
        5: (False, "a new leader's high watermark lags, to clients before version 5"),
        78: (False, "a new leader's high watermark lags (fetchOffsetForTimestamp)"),
    },
    "OffsetFetch": {
        **_COORDINATOR, **_SERVER, **_GROUP,
        88: (False, "a transaction is about to change it (KIP-447)"),
    },
    "Fetch": {
        **_LEADER, **_EPOCHS,
        2: (False, "the log on the broker is damaged"),
        78: (False, "OFFSET_NOT_AVAILABLE, to a reader of a follower that is behind"),
        100: (False, "UNKNOWN_TOPIC_ID: deleted, and created again under its name"),
    },
    "CreateTopics": {
        7: (True, "created, and not yet known everywhere when the time was up"),
        29: (False, "Create on the topic is denied"),
        31: (False, "Create on the cluster is denied"),
        41: (False, "NOT_CONTROLLER: it has just moved (EnvelopeUtils)"),
        44: (False, "the cluster's create.topic.policy refuses it"),
        89: (False, "the quota of mutations is exceeded (KIP-599)"),
        **_SERVER,
    },
    "DescribeConfigs": {
        29: (False, "DescribeConfigs on the topic is denied"),
        31: (False, "DescribeConfigs on the cluster is denied"),
        **_SERVER,
    },
}  # fmt: skip

GIVEN: Mapping[str, frozenset[int]] = {
    "Metadata": frozenset((3, 5, 17)),
    "FindCoordinator": frozenset((15,)),
    "InitProducerId": frozenset((-1, 14, 15, 16, 42, 50, 51, 90)),
    "AddPartitionsToTxn": frozenset((3, 14, 15, 16, 49, 51, 55, 90)),
    "AddOffsetsToTxn": frozenset((14, 15, 16, 49, 51, 90)),
    "TxnOffsetCommit": frozenset((3, 12, 14, 15, 16, 24, 47, 48, 49, 51, 120)),
    "EndTxn": frozenset((14, 15, 16, 48, 49, 51, 90)),
    "Produce": frozenset((3, 6, 7, 10, 19, 20, 21, 45, 47, 48, 49, 51, 87, 120)),
    "DescribeTransactions": frozenset((14, 16, 105)),
    "ListOffsets": frozenset((3, 6, 78)),
    "OffsetFetch": frozenset((14, 16, 88)),
    "Fetch": frozenset((1, 3, 6)),
    "CreateTopics": frozenset((17, 36, 37, 38, 40)),
    "DescribeConfigs": frozenset((3,)),
}

UNASKED = (
    "ListGroups",
    "DescribeGroups",
    "ListTransactions",
    "DescribeProducers",
    "WriteTxnMarkers",
)
"""Requests of the command line, which are not in the model. A pipeline sends two of them where a
leader has moved: ``DescribeProducers``, which the model answers and never refuses, and
``WriteTxnMarkers``, never, because its coordinators wait for leaders.
"""

_LEADERS = ("Produce", "Fetch", "ListOffsets")
_OF_TRANSACTIONS = (
    "InitProducerId",
    "AddPartitionsToTxn",
    "AddOffsetsToTxn",
    "TxnOffsetCommit",
    "EndTxn",
)
_COORDINATED = (*_OF_TRANSACTIONS, "OffsetFetch", "DescribeTransactions")

NEVER: Mapping[int, str] = {
    3: "only of requests that name topics; Kafka does not look whether a topic of the group's "
    "offsets is there still",
    5: "of topics and partitions, by Metadata, and by leaders to old clients",
    6: "of requests to the leader of a partition",
    7: "of requests that wait for replicas or for the controller; coordinators say 15 instead "
    "(appendTransactionToLog)",
    8: "BROKER_NOT_AVAILABLE: of brokers with ZooKeeper; no request of ours is answered so since "
    "2.5",
    9: "of requests to the leader of a partition",
    13: "between brokers only: leaders tell 19 instead (postVerificationCallback), group "
    "coordinators 14",
    14: "of requests to a coordinator",
    15: "of requests to a coordinator, or for one",
    16: "of requests to a coordinator",
    17: "a topic's name is judged by Metadata and CreateTopics; elsewhere an unknown topic is "
    "simply unknown",
    22: "a generation, which Onceward's commits do not name",
    24: "of the group of TxnOffsetCommit",
    29: "of requests that name topics",
    30: "of requests that name groups",
    31: "of requests that need a right on the cluster",
    33: "in SaslHandshake, before any of these",
    35: "versions are negotiated before a request is sent (ApiVersions)",
    41: "of requests that the controller carries out",
    42: "of an empty transactional id, which options refuse, or of half an identity",
    46: "DUPLICATE_SEQUENCE_NUMBER: neither 3.9.1 nor 4.3.1 has a place that says so; beyond five "
    "batches it is 45",
    47: "since 2.7 coordinators say 90 to these versions (KIP-588); of leaders and group "
    "coordinators it is given",
    48: "coordinators say so of EndTxn alone",
    49: "InitProducerId makes a mapping where there is none, and refuses another's with 90",
    52: "of appends by an old coordinator, which learns of it itself; clients are told by "
    "AddPartitionsToTxn at most",
    53: "of requests that name transactional ids",
    55: "of several partitions in AddPartitionsToTxn",
    56: "of requests to the leader of a partition",
    59: "UNKNOWN_PRODUCER_ID: no longer said since 2.4, but by leaders of brokers that speak for "
    "Kafka",
    69: "GROUP_ID_NOT_FOUND: a commit without a generation makes the group; OffsetFetch answers "
    "with nothing committed",
    72: "LISTENER_NOT_FOUND: in Metadata, of brokers without the listener that is asked; there is "
    "one in the model",
    74: "of requests that name a leader epoch",
    75: "of requests that name a leader epoch",
    78: "of requests for offsets and records",
    89: "KIP-599: of CreateTopics and the like; other quotas are told as throttle_time_ms",
    90: "of coordinators; leaders say 47 (AddPartitionsToTxnHandler)",
    100: "of requests that name topics by id; of ours only Fetch could, at a version that it does "
    "not speak",
    113: "STALE_MEMBER_EPOCH: of a member's commit, and ours are nobody's "
    "(ConsumerGroup.validateOffsetCommit)",
    120: "of requests in a transaction",
    129: "of Metadata from version 13 on, and of ApiVersions with a node's id (KIP-1102, "
    "KIP-1242): ours ask neither",
}
"""Why a code that is in neither list of a request is no answer to it."""


def kind(api: str, code: int) -> str:
    """The name of the fault in which ``api`` is answered ``code``."""
    return f"answer:{api}:{code}"


FAULTS |= {
    kind(api, code): sentence
    for api, codes in ANSWERS.items()
    for code, (_, sentence) in codes.items()
}
