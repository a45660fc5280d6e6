"""Why Spark ended a query by itself, as one of our errors: what its own Kafka source was refused,
what workers lack.

Called by :func:`onceward.engine.calls.foreach_batch.error_of`; runs in the driver, after a query
has ended. Spark's source reads through Kafka's Java client, whose refusals reach the user as a
``StreamingQueryException``, often without the name of the topic ("Topic authorization failed.").
"""

from __future__ import annotations

from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

from onceward.errors import (
    OncewardError,
    PartitionsAdded,
    TopicMissing,
)
from onceward.spark.batch.causes import has_kind, thrown_from
from onceward.spark.batch.failures import known_failure, refused_reader
from onceward.spark.batch.query import kafka_options

# KafkaOffsetReader, of startingOffsets, at batch 0: a Scala assertion, which has no class or
# condition of its own.
_OTHER_PARTITIONS = (
    "assertion failed: If startingOffsets contains specific offsets, you must specify all"
)
_REFUSALS = (
    "TopicAuthorizationException",
    "SaslAuthenticationException",
    "SslAuthenticationException",
)


def source_refusal(query: StreamingQuery) -> OncewardError | None:
    """Return why a query ended, if by its Kafka source or its Python workers; else None."""
    # None in Spark Connect, which the sink refuses anyway
    wrapper = getattr(query, "_jsq", None)
    if wrapper is None:
        return None
    execution = wrapper.streamingQuery()
    exception = execution.exception()
    if exception.isEmpty():
        return None
    causes = thrown_from(exception.get())
    if has_kind(causes, "UnknownTopicOrPartitionException"):
        topics, servers = _read_by(execution)
        return TopicMissing(
            f"Spark's Kafka source reads topic {topics}, which {servers} does not have (or not "
            "all of it)",
            next_step="create the topic, or correct topic= and bootstrap_servers= of "
            "kafka_source, and start the query again; `onceward doctor --bootstrap-servers … "
            "--source-topic …` looks for it",
            details={"topics": topics, "bootstrap_servers": servers},
        )
    if any(
        one.is_a("AssertionError") and one.message.startswith(_OTHER_PARTITIONS) for one in causes
    ):
        topics, servers = _read_by(execution)
        return PartitionsAdded(
            f"topic {topics} on {servers} has other partitions than when kafka_source looked its "
            "start positions up: some were added, or topics that the pattern finds, or they are "
            "gone",
            next_step="call kafka_source anew, and start the query with that frame (under "
            "supervise, call it inside the function that starts the query); nothing was read yet",
            details={"topics": topics, "bootstrap_servers": servers},
        )
    if has_kind(causes, *_REFUSALS):
        return refused_reader(causes, *_read_by(execution))
    return known_failure(causes)


def _read_by(execution: Any) -> tuple[str, str]:
    """Return topics and servers of the query's Kafka relations."""
    topics: list[str] = []
    servers: list[str] = []
    for options in kafka_options(execution):
        topics += [
            str(options.get(key))
            for key in ("subscribe", "subscribePattern", "assign")
            if options.get(key)
        ]
        servers.append(str(options.get("kafka.bootstrap.servers")))
    return ", ".join(topics), ",".join(dict.fromkeys(servers))
