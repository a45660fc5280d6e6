"""``onceward.kafka_source``: Spark's Kafka source, reading committed records only, from a position
with a name. Called by users when they define a query; runs in the driver. The position matters for
a query with a new checkpoint only: Spark takes every later start from its checkpoint."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing, suppress
from datetime import datetime, timedelta, timezone
from typing import Any, Literal

from pyspark.sql import DataFrame, SparkSession

from onceward.engine.ledger.chain import Ledger
from onceward.engine.ledger.record import LedgerRecord
from onceward.errors import (
    AuthenticationFailed,
    BrokerUnreachable,
    ConfigurationError,
    ContradictoryOptions,
    SourceDataLost,
    TopicMissing,
)
from onceward.ids import TopicPartition, is_kafka_offset
from onceward.ids import pipeline_id as checked_pipeline_id
from onceward.kafka.ledger.topic import DEFAULT_TOPIC, LedgerTopic
from onceward.kafka.source.identity import remember
from onceward.kafka.source.topics_and_positions import (
    SPECIAL,
    Otherwise,
    TopicsRead,
    committed_positions,
    ledger_positions,
    newest_in,
    starting_json,
    topics_in,
    topics_read,
)
from onceward.kafka.wire.client import KafkaClient
from onceward.kafka.wire.options.security import TokenProvider
from onceward.kafka.wire.options.settings import (
    OF_THE_READER,
    ClientSettings,
    decided,
    settings_from_options,
    spark_source_options,
)
from onceward.spark.batch.kafka_reader import is_secret, load, with_hidden_options
from onceward.spark.session.settings import use_the_drivers_python

log = logging.getLogger(__name__)

Starting = Literal["earliest", "latest", "group", "ledger"] | datetime

_NAMES = ("earliest", "latest", "group", "ledger")
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_LOGINS = (
    "kafka.bootstrap.servers", "kafka.security.protocol", "kafka.sasl.mechanism",
    "kafka.sasl.jaas.", "kafka.sasl.client.callback.", "kafka.sasl.login.callback.",
    "kafka.sasl.login.class", "kafka.sasl.oauthbearer.", "kafka.ssl.keystore.", "kafka.ssl.key.",
    "kafka.ssl.truststore.", "kafka.ssl.engine.", "kafka.ssl.endpoint.",
    # of a provider (security.providers), as SPIFFE's: certificate and authorities are its own
    "kafka.ssl.keymanager.", "kafka.ssl.trustmanager.",
)  # fmt: skip
"""Options that say who logs in, or where, or let the reader in where our client would not go."""
_SPLITTING = ("minpartitions", "maxrecordsperpartition")
_OTHERWISE = ("earliest", "latest", "error")

# The Java consumer's defaults are made for many small answers; Spark reads one partition after the
# other, as fast as it can. Larger polls alone took the CPU of reading from 1.44 to 1.18 µs a
# record and the broker's from 0.45 to 0.12; the other three, with another collector
# (spark.java_options), to 1.04 and 0.06.
# no smaller than a partition's share, also where several are asked for
# 64 KiB by default, which an answer of 8 MiB fills 128 times
_DEFAULTS: Mapping[str, str] = {
    "kafka.fetch.max.bytes": str(64 << 20),
    "kafka.receive.buffer.bytes": str(1 << 20),
    # A topic that somebody has deleted would come back empty, under another id, when a task asks
    # for it: brokers and consumers create topics by default
    "kafka.allow.auto.create.topics": "false",
}
# A consumer asks ahead also at the log's end, where the broker waits for more, 500 ms by default;
# a batch that goes on elsewhere has to wait for that answer, one partition of a core after the
# other: the last batch of a burst took 1.2 s where others take 0.2. Brokers before 3.8 would give
# up each read of tiered storage after as long, and begin it anew.
_SHORT_WAIT = {"kafka.fetch.max.wait.ms": "20"}

# Spark asks again after so many records, 500 by default: polls that cost both sides
# a task reads one partition: 1 MiB an answer kept it waiting
_OF_A_PARTITION = {
    "kafka.max.poll.records": (500, 20_000),
    "kafka.max.partition.fetch.bytes": (1 << 20, 8 << 20),
}
"""Kafka's own, and ours for up to so many partitions; more share what these may hold. Spark keeps
what was polled of each partition that a JVM has read within five minutes, not for each task
(``FetchedDataPool``, ``InternalKafkaConsumerPool``)."""
_PARTITIONS_IN_FULL = 16


def kafka_source(
    spark: SparkSession,
    *,
    bootstrap_servers: str | Sequence[str],
    topic: str | Sequence[str] | None = None,
    topic_pattern: str | None = None,
    starting: Starting = "earliest",
    pipeline_id: str | None = None,
    otherwise: Otherwise = "earliest",
    max_offsets_per_trigger: int | None = None,
    options: Mapping[str, Any] | None = None,
    spark_options: Mapping[str, Any] | None = None,
    oauth_token_provider: TokenProvider | None = None,
    ledger_topic: str = DEFAULT_TOPIC,
    ledger: Ledger | None = None,
) -> DataFrame:
    """Return a streaming DataFrame with Spark's Kafka columns: key, value, topic, partition,
    offset, timestamp, headers. Always reads with ``isolation.level=read_committed``: of
    transactional topics it sees committed batches only.

    :param topic: one name, or several; or instead:
    :param topic_pattern: every topic whose whole name matches this regular expression of Java's,
        also topics that are created while the query runs: they are read from their first record,
        whatever ``starting`` says. Kafka lists only what the principal may describe; a topic
        without that right is not read, and nobody says so.
    :param starting: where a query with a new checkpoint begins. ``"earliest"``, ``"latest"``; a
        ``datetime`` (with a time zone): the first record of each partition with at least that
        timestamp, or the end where there is none; ``"group"``: offsets committed by consumer group
        ``pipeline_id``; ``"ledger"``: where the ledger of ``pipeline_id`` ends (together with
        ``KafkaSink(resume="ledger")``).
    :param pipeline_id: names group or ledger key; required for these two.
    :param otherwise: where a partition begins that group or ledger does not know (new partitions
        begin at the earliest offset whenever the ledger knows others of the topic; under a pattern
        new topics, too, whenever ledger or group know any that match), or ``"error"``.
    :param max_offsets_per_trigger: Spark's ``maxOffsetsPerTrigger``: at most so many offsets a
        batch.
    :param options: Kafka client settings by Kafka's own names, as for the sink; producer settings
        are ignored here. Passwords and keys appear in no query plan, page or log of Spark
        (:mod:`onceward.spark.batch.kafka_reader`).
    :param spark_options: further options of Spark's Kafka source, such as ``failOnDataLoss``;
        secrets among them are hidden just so. Not ``minPartitions`` or ``maxRecordsPerPartition``,
        by which several tasks read one partition and its order is lost. Also the way to other
        settings of its consumer: ``kafka.max.poll.records``, ``kafka.max.partition.fetch.bytes``,
        ``kafka.fetch.max.bytes`` and ``kafka.receive.buffer.bytes`` are larger than Kafka's
        defaults, ``kafka.fetch.max.wait.ms`` is 20 with brokers from 3.8 on, and
        ``kafka.allow.auto.create.topics`` is false. A JVM then holds an answer of up to 8 MiB, and
        its records, for each partition that it has read within five minutes, outside Spark's
        memory accounts; of topics with more than 16 partitions the first two are smaller, so that
        all hold as much as 16. Under a pattern they are not counted.
    :param oauth_token_provider: as for the sink; only for looking up positions, Spark's own reader
        takes its login from ``kafka.sasl.jaas.config`` in ``spark_options``.
    :param ledger_topic: for ``starting="ledger"``: the ledger topic of a ``KafkaSink``, on this
        cluster.
    :param ledger: the same for any other sink: its ledger.
    :raises ConfigurationError: a position or option that cannot be.
    :raises ConnectorMissing: this session has no Kafka source, or one of another Spark.
    :raises BrokerUnreachable: no broker answers within ``socket.connection.setup.timeout.max.ms``
        (15 s), or none at the address that it advertises. Not looked at where ``spark_options``
        has a login of its own.
    :raises TopicMissing, AuthenticationFailed: when a position has to be looked up (group,
        ledger).
    :raises SourceDataLost, AccessDenied: a topic in which the ledger ends was created again; or
        one that the pattern matches is gone, or may not be described.
    """
    reads = topics_read(spark, topic, topic_pattern)
    _check(starting, otherwise, pipeline_id)
    client_settings, _ = settings_from_options(
        bootstrap_servers,
        options or {},
        client_id=f"onceward-source-{pipeline_id or reads.short_name}",
        oauth_token_provider=oauth_token_provider,
    )
    own = _own(spark_options or {})
    ours = _ours(client_settings, options or {}, own)
    is_login_known = _knows_the_login(client_settings, ours, own)
    if is_login_known:
        remember(client_settings)
    use_the_drivers_python(spark.sparkContext)
    settings = {
        **ours,
        reads.option[0]: reads.option[1],
        "includeHeaders": "true",
        **_with_defaults(own),
        "kafka.isolation.level": "read_committed",
    }
    if max_offsets_per_trigger is not None:
        settings["maxOffsetsPerTrigger"] = _positive(
            "max_offsets_per_trigger", max_offsets_per_trigger
        )
    if isinstance(starting, datetime):
        settings["startingTimestamp"] = _milliseconds(starting)
        settings["startingOffsetsByTimestampStrategy"] = "latest"
    elif starting in ("earliest", "latest"):
        settings["startingOffsets"] = starting
    with closing(KafkaClient(client_settings)) as client:
        if is_login_known:
            settings |= _defaults(own, *_must_answer(client, reads.names))
        if starting == "group":
            settings["startingOffsets"] = _group_positions(
                client, reads, str(pipeline_id), otherwise
            )
        elif starting == "ledger":
            settings["startingOffsets"] = _ledger_positions(
                client,
                reads,
                str(pipeline_id),
                otherwise,
                ledger_topic,
                ledger,
                _may_lose(settings),
            )
    secrets = {name: value for name, value in settings.items() if is_secret(name)}
    frame = load(spark, {name: value for name, value in settings.items() if name not in secrets})
    return with_hidden_options(spark, frame, secrets) if secrets else frame


def _must_answer(client: KafkaClient, topics: Sequence[str]) -> tuple[int, bool]:
    """Check that a broker answers: Spark's own reader tries for minutes, and then names neither
    the broker nor the setting. Return how many partitions the topics have (0: not known), and
    whether reads of tiered storage end by a limit of the brokers' own. A login that is refused is
    left to the query, of which it is known whether it has ever worked. :raises BrokerUnreachable:
    naming the setting."""
    try:
        return client.reach(topics), client.bounds_remote_reads()
    except AuthenticationFailed as refused:
        log.warning("%s", refused)
        return 0, False
    except BrokerUnreachable as unreachable:
        raise type(unreachable)(
            f"kafka_source(bootstrap_servers=…) reaches no broker: {unreachable.message}",
            next_step=unreachable.next_step,
        ) from unreachable


def _ours(
    client: ClientSettings, options: Mapping[str, Any], own: Mapping[str, str]
) -> dict[str, str]:
    """Return what Spark's reader is told of ``client``; ``own`` comes before it."""
    servers = {"kafka.bootstrap.servers": ",".join(client.bootstrap_servers)}
    return spark_source_options(client, options, own) | servers


def _knows_the_login(
    client: ClientSettings, ours: Mapping[str, str], own: Mapping[str, str]
) -> bool:
    """Return whether our client logs in as Spark's reader does, which may be told another way."""
    differs = any(
        name.lower().startswith(_LOGINS) and value != ours.get(name.lower())
        for name, value in own.items()
    )
    # With tokens both are told: the reader's come from Java
    return client.oauth_token_provider is not None or not differs


def _positive(name: str, value: object) -> str:
    text = str(value).strip()
    if isinstance(value, bool) or not (text.isascii() and text.isdigit() and int(text) > 0):
        raise ConfigurationError(
            f"{name}={value!r} is not a whole number above 0", next_step=f"correct {name}="
        )
    return text


def _partitions(
    client: KafkaClient, reads: TopicsRead, known: Collection[str] = ()
) -> dict[str, list[int]]:
    """Return the partitions of the topics that are read.

    :param known: topics that the ledger has offsets of. A pattern that does not find one of
        them finds it from its first record, should it see it later.
    :raises AccessDenied: one of them may not be described, and brokers leave it out of a list of
        all without a word.
    """
    listed = reads.there(client)
    found = dict(client.topic_partitions(listed)) if listed else {}
    for name in set(reads.among(known)) - set(listed):
        with suppress(TopicMissing):
            found |= client.topic_partitions([name])
    return {name: sorted(parts) for name, parts in found.items()}


def _group_positions(
    client: KafkaClient, reads: TopicsRead, group: str, otherwise: Otherwise
) -> str:
    # Of topics that may not be described brokers do not tell a group's offsets either
    partitions = _partitions(client, reads)
    positions = committed_positions(client, group, partitions)
    return starting_json(
        partitions,
        positions,
        otherwise,
        where=f"consumer group {group}",
        new_topics=reads.new_topics,
    )


def _ledger_positions(
    client: KafkaClient,
    reads: TopicsRead,
    pipeline: str,
    otherwise: Otherwise,
    ledger_topic: str,
    ledger: Ledger | None,
    may_lose: bool,
) -> str:
    name = checked_pipeline_id(pipeline)
    newest = (
        LedgerTopic(client, ledger_topic, name).newest()
        if ledger is None
        else newest_in(ledger, name)
    )
    partitions = _partitions(client, reads, topics_in(newest))
    where = f"ledger {ledger_topic if ledger is None else ledger.where}, key {pipeline}"
    positions = ledger_positions(newest, name, reads.among(topics_in(newest)), str(reads))
    ended_in = {partition.topic for partition in positions}
    gone = set(reads.among(ended_in)) - set(partitions)
    replaced = _created_again(client, newest, ended_in & set(partitions))
    if (gone or replaced) and not may_lose:
        raise _lost(sorted(gone | replaced), where)
    if gone or replaced:
        log.warning(
            "%s: left out, being gone: %s; begun at their first record, being others of that "
            "name: %s", where, sorted(gone), sorted(replaced),
        )  # fmt: skip
    for topic in replaced:
        positions |= {
            TopicPartition(topic, number): SPECIAL["earliest"] for number in partitions[topic]
        }
    return starting_json(
        partitions,
        positions,
        otherwise,
        where=where,
        new_partitions="earliest",
        new_topics=reads.new_topics,
    )


def _created_again(
    client: KafkaClient, newest: LedgerRecord | None, topics: Collection[str]
) -> set[str]:
    """Return those of ``topics`` that have another id than in each source of the record."""
    known: dict[str, set[str]] = {}
    for source in newest.sources if newest else ():
        if is_kafka_offset(source.end) and isinstance(source.identity, Mapping):
            for topic in source.identity.keys() & topics:
                known.setdefault(topic, set()).add(source.identity[topic])
    now = client.topic_ids(known) if known else {}
    return {topic for topic, topic_id in now.items() if topic_id not in known[topic]}


def _lost(gone: Sequence[str], where: str) -> SourceDataLost:
    """Return the error of topics that were created again, or are gone, under a pattern: a named
    one is found to be missing before."""
    return SourceDataLost(
        f"{where} ends in topic {', '.join(gone)}, which was deleted since, or is another "
        "cluster's, whether or not there is one of that name here: what was in it and is not in "
        "the ledger cannot be read",
        next_step="where bootstrap_servers= leads to another cluster by mistake, correct it; to "
        "go on without, on purpose, give the sink a new pipeline_id and start it "
        'once with kafka_source(starting="ledger", pipeline_id=<the old one>, '
        'spark_options={"failOnDataLoss": False}) on a new checkpoint: all other topics go on '
        "where the ledger ends, and one that was created again begins at its first record",
        details={"topics": list(gone)},
    )


def _may_lose(settings: Mapping[str, str]) -> bool:
    """Return whether the user has set ``failOnDataLoss=false``."""
    return any(
        name.lower() == "failondataloss" and value.lower() == "false"
        for name, value in settings.items()
    )


def _milliseconds(time: datetime) -> str:
    """Return the first millisecond that is not before ``time``, as Kafka has no finer ones."""
    return str(-((_EPOCH - time) // timedelta(milliseconds=1)))


def _check(starting: object, otherwise: object, pipeline: str | None) -> None:
    if isinstance(starting, datetime):
        if starting.utcoffset() is None:
            raise ConfigurationError(
                f"starting={starting!r} has no time zone",
                next_step="pass datetime(..., tzinfo=timezone.utc)",
            )
        if starting < _EPOCH:
            raise ConfigurationError(
                f"starting={starting!r} is before 1970, where Kafka's time begins",
                next_step='use "earliest", which begins with the first record of each partition',
            )
    elif starting not in _NAMES:
        raise ConfigurationError(
            f"starting={starting!r} is unknown",
            next_step=f"use one of {', '.join(_NAMES)}, or a datetime",
        )
    if otherwise not in _OTHERWISE:
        raise ConfigurationError(
            f"otherwise={otherwise!r} is unknown", next_step=f"use one of {', '.join(_OTHERWISE)}"
        )
    if starting in ("group", "ledger") and pipeline is None:
        raise ConfigurationError(
            f"starting={starting!r} needs a pipeline_id",
            next_step="pass the pipeline_id of the sink",
        )


def _with_defaults(own: Mapping[str, str]) -> dict[str, str]:
    """Return ``own``, and our defaults where it leaves them alone; Spark ignores case."""
    return {**_defaults(own), **own}


def _defaults(
    own: Mapping[str, str], partitions: int = 0, bounds_remote_reads: bool = False
) -> dict[str, str]:
    """Return our defaults for a source of so many partitions, without those in ``own``."""
    sharing = max(partitions, _PARTITIONS_IN_FULL)
    polls = {
        name: str(max(least, ours * _PARTITIONS_IN_FULL // sharing))
        for name, (least, ours) in _OF_A_PARTITION.items()
    }
    lower_names = {name.lower() for name in own}
    ours = {**polls, **_DEFAULTS, **(_SHORT_WAIT if bounds_remote_reads else {})}
    return {name: text for name, text in ours.items() if name not in lower_names}


def _own(spark_options: Mapping[str, Any]) -> dict[str, str]:
    """Return options for Spark itself, without those that this function decides."""
    if not isinstance(spark_options, Mapping):
        raise ConfigurationError(
            f"spark_options= is {type(spark_options).__name__}, no dict",
            next_step='pass Spark\'s options by their names: {"failOnDataLoss": "false"}',
        )
    texts = {
        str(name): str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in spark_options.items()
    }
    for name, value in texts.items():
        low = name.lower()
        why = OF_THE_READER.get(low.removeprefix("kafka."))
        if why is not None and value != "read_committed":
            raise decided(name, why)
        if low in _SPLITTING:
            raise ContradictoryOptions(
                f"spark_options has {name}, with which several tasks read one partition at once: "
                "its records would be written in any order",
                next_step="leave it out; for more tasks than partitions use frame.repartition(…), "
                'and for KafkaSink order_by="offset" where the order of each key matters',
            )
        if low.startswith(("starting", "subscribe", "assign")):
            raise ContradictoryOptions(
                f"spark_options has {name}",
                next_step="use the parameters topic=, topic_pattern= and starting= instead",
            )
    return texts
