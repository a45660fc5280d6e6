"""Meaning of each error code of each request: one table, read by every conversation and by the
test over all rows. Pure values, no I/O. The reason of a row says what the broker does, by class
and method of Apache Kafka 4.x where that is what a reader would want to check."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial

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

# A row of each meaning, with the error that most of its rows have
_done = partial(Rule, Meaning.DONE)
_retry = partial(Rule, Meaning.RETRY, error=BrokerUnreachable)
_refresh = partial(Rule, Meaning.REFRESH, error=BrokerUnreachable)
_abort = partial(Rule, Meaning.ABORT, error=BatchFailed)
_fenced = partial(Rule, Meaning.FENCED, error=Fenced)
_stop = partial(Rule, Meaning.STOP, error=ResourceError)

_ANOTHER_ID = (
    "choose another pipeline_id, of letters, digits, dots and dashes; if the brokers take none, "
    "they have no transactions: use Apache Kafka, or a service that has them"
)

_ANY: Mapping[int, Rule] = {
    0: _done("no error"),
    -1: _retry("the broker failed in a way that it has no code for"),
    3: _refresh("a broker that has not heard of a new topic says so", error=TopicMissing),
    5: _refresh("an election is under way"),
    6: _refresh("the leader has moved"),
    7: _retry("replicas were too slow; it may have been carried out"),
    8: _refresh("BROKER_NOT_AVAILABLE"),
    9: _refresh("REPLICA_NOT_AVAILABLE"),
    13: _refresh("NETWORK_EXCEPTION between brokers (AddPartitionsToTxnManager)"),
    14: _retry("it reads its log first"),
    15: _refresh(
        "none elected, or its log below min ISR",
        next_step="run again once all brokers are up; if it stays, see with kafka-topics "
        "--describe whether __transaction_state (of a group: __consumer_offsets) is there and has "
        "its replicas: with fewer brokers than transaction.state.log.replication.factor and "
        ".min.isr (of a group: offsets.topic.replication.factor) set these to the number of "
        "brokers",
    ),
    16: _refresh("the coordinator has moved"),
    17: _stop(
        "INVALID_TOPIC_EXCEPTION",
        error=InvalidTopicName,
        next_step="use a name of at most 249 letters, digits, dots, dashes and underscores, and "
        "none of Kafka's own topics",
    ),
    29: _stop("TOPIC_AUTHORIZATION_FAILED", error=AccessDenied),
    30: _stop("GROUP_AUTHORIZATION_FAILED", error=AccessDenied),
    31: _stop("CLUSTER_AUTHORIZATION_FAILED", error=AccessDenied),
    33: _stop(
        "UNSUPPORTED_SASL_MECHANISM",
        error=ServerMisconfigured,
        next_step="set sasl.mechanism to one that the listener has (sasl.enabled.mechanisms)",
    ),
    35: _stop("UNSUPPORTED_VERSION", error=UnsupportedBroker),
    41: _refresh("NOT_CONTROLLER"),
    53: _stop("TRANSACTIONAL_ID_AUTHORIZATION_FAILED", error=AccessDenied),
    56: _refresh("a log directory went offline, another replica leads"),
    72: _refresh("the leader is starting"),
    74: _refresh("our metadata is old"),
    75: _refresh("the broker's metadata is old"),
    78: _retry("the high watermark catches up after an election"),
    89: _retry("THROTTLING_QUOTA_EXCEEDED"),
    100: _refresh("deleted and created again, or not heard of yet", error=TopicMissing),
    # KIP-1102, KIP-1242: also what a broker answers that was not meant, since it has another id or
    # cluster by now.
    129: _refresh("REBOOTSTRAP_REQUIRED: our metadata leads to the wrong broker"),
}

_CONCURRENT = _retry(
    "markers of the previous transaction are still being written, or a transition of the "
    "coordinator is pending"
)
_FENCED_BY_EPOCH = _fenced("the coordinator knows a newer epoch")
_INVALID_EPOCH = _fenced("how versions before PRODUCER_FENCED (KIP-588) say it")
_MAPPING_GONE = _abort(
    "the transactional id expired (transactional.id.expiration.ms) or belongs to another producer "
    "id; InitProducerId with our identity tells which (KIP-360)"
)
_ABORTABLE = _abort(
    "TRANSACTION_ABORTABLE (KIP-890): this transaction must be aborted, the next can succeed"
)
_UNKNOWN_PRODUCER = _abort("the producer's state was removed; a new epoch starts it again")


def _transactional_rows(api: Api) -> dict[int, Rule]:
    return {
        47: _INVALID_EPOCH,
        48: _abort(f"{api.value} does not fit the coordinator's state of this epoch"),
        49: _MAPPING_GONE,
        51: _CONCURRENT,
        52: _refresh("a newer coordinator took over"),
        59: _UNKNOWN_PRODUCER,
        90: _FENCED_BY_EPOCH,
        120: _ABORTABLE,
    }


_SPECIFIC: Mapping[Api, Mapping[int, Rule]] = {
    Api.INIT_PRODUCER_ID: {
        **_transactional_rows(Api.INIT_PRODUCER_ID),
        42: _stop(
            "the transactional id is empty or not allowed",
            error=ConfigurationError,
            next_step=_ANOTHER_ID,
        ),
        50: _stop("above transaction.max.timeout.ms", error=TransactionTimeoutTooLarge),
    },
    Api.ADD_PARTITIONS_TO_TXN: {
        **_transactional_rows(Api.ADD_PARTITIONS_TO_TXN),
        55: _retry("another partition of the request was refused"),
    },
    Api.ADD_OFFSETS_TO_TXN: _transactional_rows(Api.ADD_OFFSETS_TO_TXN),
    Api.END_TXN: _transactional_rows(Api.END_TXN),
    Api.TXN_OFFSET_COMMIT: {
        **_transactional_rows(Api.TXN_OFFSET_COMMIT),
        # The two are settings of the cluster: what was lowered can be raised again
        12: _stop(
            "the note beside an offset is above offset.metadata.max.bytes",
            next_step="raise offset.metadata.max.bytes of the brokers; Kafka's default of 4096 "
            "will do",
        ),
        22: _abort("a consumer joined the group of this pipeline"),
        24: _stop("INVALID_GROUP_ID", error=ConfigurationError, next_step=_ANOTHER_ID),
        25: _abort("a consumer joined the group of this pipeline"),
        28: _stop(
            "the offsets are above max.message.bytes of __consumer_offsets",
            next_step="raise max.message.bytes of topic __consumer_offsets; Kafka's default of "
            "1048588 will do",
        ),
        69: _abort(
            "GROUP_ID_NOT_FOUND: the group with the pipeline's id is none of consumers, but a "
            "share group, say (KIP-932)",
            next_step="delete that group (kafka-groups --list names its type), or take another "
            "pipeline_id",
        ),
        113: _abort("the group uses the consumer protocol of KIP-848"),
    },
    Api.PRODUCE: {
        2: _retry("damaged on the way (CRC); the bytes here are intact", error=SendFailed),
        10: _stop("above max.message.bytes of the topic", error=RecordTooLarge),
        18: _stop("above segment.bytes of the topic", error=RecordTooLarge),
        19: _retry(
            "below min.insync.replicas, or (KIP-890) a failed check with the transaction "
            "coordinator, which the leader maps to it; nothing was appended",
            error=SendFailed,
        ),
        20: _retry("appended; the repeat is a duplicate", error=SendFailed),
        21: _stop(
            "INVALID_REQUIRED_ACKS",
            error=ConfigurationError,
            next_step="leave acks out of the options",
        ),
        # It passes with a clock that is set right, and with time
        32: _abort(
            "outside message.timestamp.before.max.ms / after.max.ms of the topic",
            error=SendFailed,
            next_step="the batch runs again; if it repeats, and the rows have a column "
            "`timestamp`: filter or correct such rows, or raise that limit of the topic; if they "
            "have none, set the clocks of driver, executors and brokers right",
        ),
        43: _stop("the topic keeps an old message format", error=UnsupportedBroker),
        45: _abort("the log lacks a batch before this one", error=SendFailed),
        46: _abort(
            "appended before, but so long ago that the broker no longer knows where (it keeps "
            "five batches), so that the report could not name offsets",
            error=SendFailed,
        ),
        47: _fenced("the partition has seen a newer epoch (ProducerAppendInfo)"),
        48: _abort("the partition is not part of an open transaction (KIP-890)", error=SendFailed),
        49: _MAPPING_GONE,
        51: _CONCURRENT,
        59: _UNKNOWN_PRODUCER,
        76: _stop(
            "the broker cannot read this codec",
            error=ServerMisconfigured,
            next_step="set compression.type to one that all brokers read; none is read by all",
        ),
        # The topic may have been changed, and may be changed back
        87: _stop(
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
        19: _retry("below min.insync.replicas: a replica is away"),
        20: _retry("written; not by all replicas yet"),
    },
    Api.FIND_COORDINATOR: {
        120: _ABORTABLE,
        42: _stop("INVALID_REQUEST", error=ConfigurationError, next_step=_ANOTHER_ID),
    },
    Api.DESCRIBE_TRANSACTIONS: {105: _stop("TRANSACTIONAL_ID_NOT_FOUND")},
    Api.FETCH: {
        1: _stop("retention removed the offset, or the topic was created again"),
        2: _stop("the log on the broker is damaged"),
    },
    Api.OFFSET_FETCH: {
        88: _retry(
            PENDING_OFFSETS,
            next_step="run again when that transaction has ended: a driver that died leaves one "
            "open for transaction.timeout.ms at most, unless its pipeline is started again; "
            "`onceward transactions list --ids` has its state",
        ),
        69: _done("nothing committed yet"),
    },
    Api.CREATE_TOPICS: {
        36: _done("another pipeline was faster"),
        37: _stop(
            "INVALID_PARTITIONS",
            error=ConfigurationError,
            next_step="correct create_topic_partitions, or create the topic by hand",
        ),
        # ReplicationControlManager: of those that are not fenced; ours asks for no more than were
        # up a moment ago.
        38: _retry("more replicas than brokers that are up: one may be starting again"),
        40: _stop(
            "INVALID_CONFIG",
            error=ConfigurationError,
            next_step="create the topic by hand (kafka-topics --create), with settings that the "
            "cluster takes",
        ),
        44: _stop("the cluster's create.topic.policy refuses it", error=AccessDenied),
    },
}


def find_rule(api: Api, code: int) -> Rule:
    """Return the row for ``code`` in an answer to ``api``; one that nobody foresaw stops."""
    rule = _SPECIFIC.get(api, {}).get(code) or _ANY.get(code)
    if rule is not None:
        return rule
    return _stop(f"{code_name(code)} is not expected in an answer to {api.value}")


def code_name(code: int) -> str:
    """Return Kafka's name of an error code, like ``NOT_COORDINATOR``, with its number."""
    return f"{kafka_errors.for_code(code).message} ({code})"
