"""What a pipeline must be allowed to do: which ACL a refusal is about, and the least set of them
for a whole pipeline.

Pure values. Called by ``kafka.wire.conversation`` when a broker refuses, and by ``onceward doctor
--acls``. Each line of the set is proven by the tests: without it a pipeline stops, naming the
resource.

Kafka lets who may ``Read`` or ``Write`` a resource ``Describe`` it, too (``AclOperation``), so
that no line says so.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from onceward.kafka.wire.error_table import Api


class Kind(Enum):
    """Types of resources, as options of ``kafka-acls`` name them."""

    TOPIC = "topic"
    GROUP = "group"
    TRANSACTIONAL_ID = "transactional-id"
    CLUSTER = "cluster"


class Need(Enum):
    """When an ACL is needed."""

    ALWAYS = "always"
    FIRST_START = "first start"
    OPTIONAL = "optional"


@dataclass(frozen=True, slots=True)
class Acl:
    """One line. ``name`` is that of the resource, or with ``prefixed`` how its names begin."""

    operation: str
    kind: Kind
    name: str
    need: Need
    why: str
    prefixed: bool = False

    @property
    def pattern_type(self) -> str:
        """The pattern type, as ``kafka-acls`` names it."""
        return "prefixed" if self.prefixed else "literal"

    def arguments(self, principal: str) -> list[str]:
        """Return the arguments of ``kafka-acls`` after ``--add`` or ``--remove``."""
        resource = [f"--{self.kind.value}"] + ([] if self.kind is Kind.CLUSTER else [self.name])
        pattern = ["--resource-pattern-type", self.pattern_type]
        return ["--allow-principal", principal, "--operation", self.operation, *resource, *pattern]

    def command(self, principal: str, connection: str) -> str:
        """Return the line for a shell; ``connection`` says where the cluster is, unquoted."""
        return f"kafka-acls {connection} --add {shlex.join(self.arguments(principal))}"


def minimal_acls(
    *,
    pipeline_id: str,
    topics: Sequence[str],
    source_topics: Sequence[str],
    ledger_topic: str,
    ledger_exists: bool = False,
    source_prefixes: Sequence[str] = (),
) -> list[Acl]:
    """Return all that one pipeline (``kafka_source`` → ``KafkaSink``) needs, and nothing else.

    The same for both transaction versions: the requests differ, the rights they need do not.
    Spark's Kafka source needs no consumer group: it assigns its partitions itself and keeps its
    offsets in the checkpoint.

    :param source_topics: on the sink's cluster; for another cluster grant ``Read`` there.
    :param ledger_exists: the ledger topic is there already, so that nobody has to create it.
    :param source_prefixes: how the names of topics begin that ``topic_pattern=`` finds. Kafka has
        no ACL for a regular expression; topics that may not be described are not found, without an
        error.
    """
    group = source_topics or source_prefixes
    topic = Kind.TOPIC
    rules = (
        ("Read", topic, source_topics, Need.ALWAYS, _SPARK_READS),
        ("Read", topic, source_prefixes, Need.ALWAYS, "the pattern finds only these topics"),
        ("Write", topic, topics, Need.ALWAYS, "the output"),
        ("Read", topic, [ledger_topic], Need.ALWAYS, "how far the pipeline is, read at its start"),
        ("Write", topic, [ledger_topic], Need.ALWAYS, "each batch's record, in its transaction"),
        ("Write", Kind.TRANSACTIONAL_ID, [pipeline_id], Need.ALWAYS, "the batch's transaction"),
        ("Read", Kind.GROUP, [pipeline_id] if group else [], Need.ALWAYS, _OFFSETS),
        ("Create", topic, [] if ledger_exists else [ledger_topic], Need.FIRST_START, _CREATES),
        ("DescribeConfigs", topic, topics, Need.OPTIONAL, _SIZES),
        ("Read", topic, topics, Need.OPTIONAL, "markers that Kafka 4.3 may leave out are seen"),
        ("DescribeConfigs", topic, [ledger_topic], Need.OPTIONAL, _CHECKED),
    )
    return [
        Acl(operation, kind, name, need, why, prefixed=names is source_prefixes)
        for operation, kind, names, need, why in rules
        for name in names
    ]


_SPARK_READS = "Spark reads it, and its offsets are committed with the batch"
_OFFSETS = "the source offsets are committed for this group"
_CREATES = "the pipeline that comes first makes the ledger topic"
_SIZES = "batch.size fits its max.message.bytes; a sink with on_error='dead_letter' needs it"
_CHECKED = "its cleanup.policy and replicas are checked"

_DESCRIBE = "Describe (Read and Write include it)"
_OPERATIONS = {
    Api.CREATE_TOPICS: "Create",
    Api.DESCRIBE_CONFIGS: "DescribeConfigs",
    Api.LIST_GROUPS: "Describe",
    Api.DESCRIBE_GROUPS: "Describe",
}
_WRITES = (Api.PRODUCE, Api.ADD_PARTITIONS_TO_TXN)
_READS = (Api.FETCH, Api.TXN_OFFSET_COMMIT, Api.ADD_OFFSETS_TO_TXN, Api.DESCRIBE_PRODUCERS)
_KINDS = {29: Kind.TOPIC, 30: Kind.GROUP, 31: Kind.CLUSTER, 53: Kind.TRANSACTIONAL_ID}


def denied(api: Api, code: int) -> tuple[Kind, str] | None:
    """Return the resource's type and the operation that ``code`` says are not allowed."""
    kind = _KINDS.get(code)
    if kind is None:
        return None
    if api in _OPERATIONS:
        return kind, _OPERATIONS[api]
    if kind is Kind.CLUSTER:
        return kind, "ClusterAction" if api is Api.WRITE_TXN_MARKERS else "IdempotentWrite"
    if kind is Kind.TRANSACTIONAL_ID or api in _WRITES:
        return kind, "Write"
    return kind, "Read" if api in _READS or kind is Kind.GROUP else _DESCRIBE
