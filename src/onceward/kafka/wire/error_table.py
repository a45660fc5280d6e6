"""Meaning of each error code of each request: one table, read by every conversation and by the
test over all rows. Pure values, no I/O. The reason of a row says what the broker does, by class
and method of Apache Kafka 4.x where that is what a reader would want to check."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

import kafka.errors as kafka_errors

from onceward.errors import (
    AccessDenied,
    BatchFailed,
    BrokerUnreachable,
    ConfigurationError,
    Fenced,
    InvalidTopicName,
    OncewardError,
    RecordTooLarge,
    ResourceError,
    SendFailed,
    ServerMisconfigured,
    TopicMissing,
    TransactionTimeoutTooLarge,
    UnsupportedBroker,
)


class Api(Enum):
    """The requests whose answers have rows here."""

    METADATA = "Metadata"
    FIND_COORDINATOR = "FindCoordinator"
    INIT_PRODUCER_ID = "InitProducerId"
    ADD_PARTITIONS_TO_TXN = "AddPartitionsToTxn"
    ADD_OFFSETS_TO_TXN = "AddOffsetsToTxn"
    TXN_OFFSET_COMMIT = "TxnOffsetCommit"
    END_TXN = "EndTxn"
    PRODUCE = "Produce"
    DESCRIBE_TRANSACTIONS = "DescribeTransactions"
    LIST_OFFSETS = "ListOffsets"
    OFFSET_FETCH = "OffsetFetch"
    FETCH = "Fetch"
    CREATE_TOPICS = "CreateTopics"
    DESCRIBE_CONFIGS = "DescribeConfigs"
    LIST_GROUPS = "ListGroups"
    DESCRIBE_GROUPS = "DescribeGroups"
    LIST_TRANSACTIONS = "ListTransactions"
    DESCRIBE_PRODUCERS = "DescribeProducers"
    WRITE_TXN_MARKERS = "WriteTxnMarkers"


class Meaning(Enum):
    """Ways to go on after an answer."""

    DONE = "done"
    RETRY = "ask the same node again after a pause"
    REFRESH = "ask for the leader or coordinator again, then repeat the request"
    ABORT = "give this transaction up; the batch may run again under a new epoch"
    FENCED = "another owner, or the transaction timeout, has moved the epoch on: find out which"
    STOP = "repeating cannot help"


@dataclass(frozen=True, slots=True)
class Rule:
    """One row. ``error`` is raised when the meaning is final, or when time runs out on a repeated
    one; ``next_step`` is what the user does then, where the class of the error does not say it."""

    meaning: Meaning
    reason: str
    error: type[OncewardError] = ResourceError
    next_step: str = ""


PENDING_OFFSETS = "a transaction is about to change it (KIP-447)"
"""Why offsets of a group are not told yet; in the details of the error once time is over."""
_V = Meaning
_ANOTHER_ID = (
    "choose another pipeline_id, of letters, digits, dots and dashes; if the brokers take none, "
    "they have no transactions: use Apache Kafka, or a service that has them"
)
_TRANSACTIONAL = (
    Api.INIT_PRODUCER_ID,
    Api.ADD_PARTITIONS_TO_TXN,
    Api.ADD_OFFSETS_TO_TXN,
    Api.TXN_OFFSET_COMMIT,
    Api.END_TXN,
)

_ANY: Mapping[int, Rule] = {
    0: Rule(_V.DONE, "no error"),
    -1: Rule(_V.RETRY, "the broker failed in a way that it has no code for", BrokerUnreachable),
    3: Rule(_V.REFRESH, "a broker that has not heard of a new topic says so", TopicMissing),
    5: Rule(_V.REFRESH, "an election is under way", BrokerUnreachable),
    6: Rule(_V.REFRESH, "the leader has moved", BrokerUnreachable),
    7: Rule(_V.RETRY, "replicas were too slow; it may have been carried out", BrokerUnreachable),
    8: Rule(_V.REFRESH, "BROKER_NOT_AVAILABLE", BrokerUnreachable),
    9: Rule(_V.REFRESH, "REPLICA_NOT_AVAILABLE", BrokerUnreachable),
    13: Rule(
        _V.REFRESH,
        "NETWORK_EXCEPTION between brokers (AddPartitionsToTxnManager)",
        BrokerUnreachable,
    ),
    14: Rule(_V.RETRY, "it reads its log first", BrokerUnreachable),
    15: Rule(
        _V.REFRESH,
        "none elected, or its log below min ISR",
        BrokerUnreachable,
        "run again once all brokers are up; if it stays, see with kafka-topics --describe whether "
        "__transaction_state (of a group: __consumer_offsets) is there and has its replicas: with "
        "fewer brokers than transaction.state.log.replication.factor and .min.isr (of a group: "
        "offsets.topic.replication.factor) set these to the number of brokers",
    ),
    16: Rule(_V.REFRESH, "the coordinator has moved", BrokerUnreachable),
    17: Rule(
        _V.STOP,
        "INVALID_TOPIC_EXCEPTION",
        InvalidTopicName,
        "use a name of at most 249 letters, digits, dots, dashes and underscores, and none of "
        "Kafka's own topics",
    ),
    29: Rule(_V.STOP, "TOPIC_AUTHORIZATION_FAILED", AccessDenied),
    30: Rule(_V.STOP, "GROUP_AUTHORIZATION_FAILED", AccessDenied),
    31: Rule(_V.STOP, "CLUSTER_AUTHORIZATION_FAILED", AccessDenied),
    33: Rule(
        _V.STOP,
        "UNSUPPORTED_SASL_MECHANISM",
        ServerMisconfigured,
        "set sasl.mechanism to one that the listener has (sasl.enabled.mechanisms)",
    ),
    35: Rule(_V.STOP, "UNSUPPORTED_VERSION", UnsupportedBroker),
    41: Rule(_V.REFRESH, "NOT_CONTROLLER", BrokerUnreachable),
    53: Rule(_V.STOP, "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", AccessDenied),
    56: Rule(_V.REFRESH, "a log directory went offline, another replica leads", BrokerUnreachable),
    72: Rule(_V.REFRESH, "the leader is starting", BrokerUnreachable),
    74: Rule(_V.REFRESH, "our metadata is old", BrokerUnreachable),
    75: Rule(_V.REFRESH, "the broker's metadata is old", BrokerUnreachable),
    78: Rule(_V.RETRY, "the high watermark catches up after an election", BrokerUnreachable),
    89: Rule(_V.RETRY, "THROTTLING_QUOTA_EXCEEDED", BrokerUnreachable),
    100: Rule(_V.REFRESH, "deleted and created again, or not heard of yet", TopicMissing),
    # KIP-1102, KIP-1242: also what a broker answers that was not meant, since it has another id or
    # cluster by now.
    129: Rule(
        _V.REFRESH,
        "REBOOTSTRAP_REQUIRED: our metadata leads to the wrong broker",
        BrokerUnreachable,
    ),
}

_CONCURRENT = Rule(
    _V.RETRY,
    "markers of the previous transaction are still being written, or a transition of the "
    "coordinator is pending",
    BrokerUnreachable,
)
_FENCED_BY_EPOCH = Rule(_V.FENCED, "the coordinator knows a newer epoch", Fenced)
_INVALID_EPOCH = Rule(_V.FENCED, "how versions before PRODUCER_FENCED (KIP-588) say it", Fenced)
_MAPPING_GONE = Rule(
    _V.ABORT,
    "the transactional id expired (transactional.id.expiration.ms) or belongs to another producer "
    "id; InitProducerId with our identity tells which (KIP-360)",
    BatchFailed,
)
_ABORTABLE = Rule(
    _V.ABORT,
    "TRANSACTION_ABORTABLE (KIP-890): this transaction must be aborted, the next can succeed",
    BatchFailed,
)
_UNKNOWN_PRODUCER = Rule(
    _V.ABORT, "the producer's state was removed; a new epoch starts it again", BatchFailed
)


def _transactional_rows(api: Api) -> dict[int, Rule]:
    return {
        47: _INVALID_EPOCH,
        48: Rule(
            _V.ABORT,
            f"{api.value} does not fit the coordinator's state of this epoch",
            BatchFailed,
        ),
        49: _MAPPING_GONE,
        51: _CONCURRENT,
        52: Rule(_V.REFRESH, "a newer coordinator took over", BrokerUnreachable),
        59: _UNKNOWN_PRODUCER,
        90: _FENCED_BY_EPOCH,
        120: _ABORTABLE,
    }


_SPECIFIC: Mapping[Api, Mapping[int, Rule]] = {
    **{api: _transactional_rows(api) for api in _TRANSACTIONAL},
    Api.INIT_PRODUCER_ID: {
        **_transactional_rows(Api.INIT_PRODUCER_ID),
        42: Rule(
            _V.STOP,
            "the transactional id is empty or not allowed",
            ConfigurationError,
            _ANOTHER_ID,
        ),
        50: Rule(_V.STOP, "above transaction.max.timeout.ms", TransactionTimeoutTooLarge),
    },
    Api.ADD_PARTITIONS_TO_TXN: {
        **_transactional_rows(Api.ADD_PARTITIONS_TO_TXN),
        55: Rule(_V.RETRY, "another partition of the request was refused", BrokerUnreachable),
    },
    Api.TXN_OFFSET_COMMIT: {
        **_transactional_rows(Api.TXN_OFFSET_COMMIT),
        # The two are settings of the cluster: what was lowered can be raised again
        12: Rule(
            _V.STOP,
            "the note beside an offset is above offset.metadata.max.bytes",
            next_step="raise offset.metadata.max.bytes of the brokers; Kafka's default of 4096 "
            "will do",
        ),
        22: Rule(_V.ABORT, "a consumer joined the group of this pipeline", BatchFailed),
        24: Rule(_V.STOP, "INVALID_GROUP_ID", ConfigurationError, _ANOTHER_ID),
        25: Rule(_V.ABORT, "a consumer joined the group of this pipeline", BatchFailed),
        28: Rule(
            _V.STOP,
            "the offsets are above max.message.bytes of __consumer_offsets",
            next_step="raise max.message.bytes of topic __consumer_offsets; Kafka's default of "
            "1048588 will do",
        ),
        69: Rule(
            _V.ABORT,
            "GROUP_ID_NOT_FOUND: the group with the pipeline's id is none of consumers, but a "
            "share group, say (KIP-932)",
            BatchFailed,
            "delete that group (kafka-groups --list names its type), or take another pipeline_id",
        ),
        113: Rule(_V.ABORT, "the group uses the consumer protocol of KIP-848", BatchFailed),
    },
    Api.PRODUCE: {
        2: Rule(_V.RETRY, "damaged on the way (CRC); the bytes here are intact", SendFailed),
        10: Rule(_V.STOP, "above max.message.bytes of the topic", RecordTooLarge),
        18: Rule(_V.STOP, "above segment.bytes of the topic", RecordTooLarge),
        19: Rule(
            _V.RETRY,
            "below min.insync.replicas, or (KIP-890) a failed check with the transaction "
            "coordinator, which the leader maps to it; nothing was appended",
            SendFailed,
        ),
        20: Rule(_V.RETRY, "appended; the repeat is a duplicate", SendFailed),
        21: Rule(
            _V.STOP, "INVALID_REQUIRED_ACKS", ConfigurationError, "leave acks out of the options"
        ),
        # It passes with a clock that is set right, and with time
        32: Rule(
            _V.ABORT,
            "outside message.timestamp.before.max.ms / after.max.ms of the topic",
            SendFailed,
            "the batch runs again; if it repeats, and the rows have a column `timestamp`: filter "
            "or correct such rows, or raise that limit of the topic; if they have none, set the "
            "clocks of driver, executors and brokers right",
        ),
        43: Rule(_V.STOP, "the topic keeps an old message format", UnsupportedBroker),
        45: Rule(_V.ABORT, "the log lacks a batch before this one", SendFailed),
        46: Rule(
            _V.ABORT,
            "appended before, but so long ago that the broker no longer knows where (it keeps "
            "five batches), so that the report could not name offsets",
            SendFailed,
        ),
        47: Rule(_V.FENCED, "the partition has seen a newer epoch (ProducerAppendInfo)", Fenced),
        48: Rule(
            _V.ABORT, "the partition is not part of an open transaction (KIP-890)", SendFailed
        ),
        49: _MAPPING_GONE,
        51: _CONCURRENT,
        59: _UNKNOWN_PRODUCER,
        76: Rule(
            _V.STOP,
            "the broker cannot read this codec",
            ServerMisconfigured,
            "set compression.type to one that all brokers read; none is read by all",
        ),
        # The topic may have been changed, and may be changed back
        87: Rule(
            _V.STOP,
            "the topic does not take such a record, as where it is compacted and the record has "
            "no key",
            next_step="if cleanup.policy of the topic has compact: give each row a `key`, or "
            "filter those that have none; or set cleanup.policy back to delete; else see to what "
            "the broker says of the record",
        ),
        90: _FENCED_BY_EPOCH,
        120: _ABORTABLE,
    },
    Api.WRITE_TXN_MARKERS: {
        # TransactionMarkerRequestCompletionHandler repeats both
        19: Rule(_V.RETRY, "below min.insync.replicas: a replica is away", BrokerUnreachable),
        20: Rule(_V.RETRY, "written; not by all replicas yet", BrokerUnreachable),
    },
    Api.FIND_COORDINATOR: {
        120: _ABORTABLE,
        42: Rule(_V.STOP, "INVALID_REQUEST", ConfigurationError, _ANOTHER_ID),
    },
    Api.DESCRIBE_TRANSACTIONS: {105: Rule(_V.STOP, "TRANSACTIONAL_ID_NOT_FOUND", ResourceError)},
    Api.FETCH: {
        1: Rule(_V.STOP, "retention removed the offset, or the topic was created again"),
        2: Rule(_V.STOP, "the log on the broker is damaged"),
    },
    Api.OFFSET_FETCH: {
        88: Rule(
            _V.RETRY,
            PENDING_OFFSETS,
            BrokerUnreachable,
            "run again when that transaction has ended: a driver that died leaves one open for "
            "transaction.timeout.ms at most, unless its pipeline is started again; `onceward "
            "transactions list --ids` has its state",
        ),
        69: Rule(_V.DONE, "nothing committed yet"),
    },
    Api.CREATE_TOPICS: {
        36: Rule(_V.DONE, "another pipeline was faster"),
        37: Rule(
            _V.STOP,
            "INVALID_PARTITIONS",
            ConfigurationError,
            "correct create_topic_partitions, or create the topic by hand",
        ),
        # ReplicationControlManager: of those that are not fenced; ours asks for no more than were
        # up a moment ago.
        38: Rule(
            _V.RETRY,
            "more replicas than brokers that are up: one may be starting again",
            BrokerUnreachable,
        ),
        40: Rule(
            _V.STOP,
            "INVALID_CONFIG",
            ConfigurationError,
            "create the topic by hand (kafka-topics --create), with settings that the cluster "
            "takes",
        ),
        44: Rule(_V.STOP, "the cluster's create.topic.policy refuses it", AccessDenied),
    },
}


def find_rule(api: Api, code: int) -> Rule:
    """Return the row for ``code`` in an answer to ``api``; one that nobody foresaw stops."""
    rule = _SPECIFIC.get(api, {}).get(code) or _ANY.get(code)
    if rule is not None:
        return rule
    return Rule(
        _V.STOP, f"{code_name(code)} is not expected in an answer to {api.value}", ResourceError
    )


def code_name(code: int) -> str:
    """Return Kafka's name of an error code, like ``NOT_COORDINATOR``, with its number."""
    error_class = kafka_errors.for_code(code)
    name = (
        getattr(error_class, "message", None)
        if getattr(error_class, "errno", None) == code
        else None
    )
    return f"{name or 'error'} ({code})"
