"""Conversation with the brokers, by librdkafka: metadata, ends, group offsets, records.

The only module of the checker that imports ``confluent_kafka``. Joins no group and commits
nothing.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from onceward_verify.findings import CannotTell, Unavailable, WrongUsage

try:
    import confluent_kafka as kafka
    from confluent_kafka import admin
except ImportError as missing:
    raise Unavailable(
        "the checker reads with confluent-kafka, which is not installed",
        next_step='pip install "onceward[demo]"',
    ) from missing

kafka_admin: Any = admin  # much of it has no types

Where = tuple[str, int]
"""Topic and partition."""

COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"

_POLL_RECORDS = 10_000
# librdkafka waits all of it where fewer records than asked for come: at the end of every read.
_POLL_SECONDS = 0.02
_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
_LOOK_SECONDS = 0.1
# Partitions read at the same time
_AT_ONCE = 64
# For the first answer of any broker, over TLS and a slow network.
_CONTACT_SECONDS = 10.0
# The same once every address refuses or cannot be resolved: a broker may just be starting.
_REFUSED_SECONDS = 3.0
_LEADER_MOVES = (
    kafka.KafkaError.NOT_LEADER_FOR_PARTITION,
    kafka.KafkaError.LEADER_NOT_AVAILABLE,
    kafka.KafkaError.FENCED_LEADER_EPOCH,
    kafka.KafkaError.UNKNOWN_LEADER_EPOCH,
)
"""Pass, and librdkafka does not ask again by itself."""
_PAUSE_S = 0.2
_NO_LOGS, _ALL_LOGS = 0, 7  # syslog's levels
_READER = {
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",  # a reader that silently starts elsewhere proves nothing
    "check.crcs": True,
    "fetch.queue.backoff.ms": 5,  # the default of one second makes bulk reads slow
}
# The end of a partition is an empty answer, for which the broker waits so long. Before KIP-1018
# (3.8) it gives up a read of tiered storage after as long: where nothing comes, it may take more.
_WAIT_MS, _REMOTE_WAIT_MS = 50, 10_000
_REMOTE_AFTER_S = 5.0


class Cluster:
    """One Kafka cluster, which is read and never changed.

    :param settings: librdkafka's names, ``bootstrap.servers`` among them.
    :param patience_s: how long to wait for the next answer, in seconds.
    :param verbose: let librdkafka write its own log to standard error. It repeats itself twenty
        times a second while a broker is away, and our errors have what matters of it.
    :raises WrongUsage: librdkafka does not take ``settings``.
    :raises Unavailable: no broker answers within ten seconds, or each one refuses.
    """

    def __init__(
        self, settings: Mapping[str, Any], group: str, patience_s: float, *, verbose: bool = False
    ) -> None:
        self._settings = {
            "log_level": _ALL_LOGS if verbose else _NO_LOGS,
            **settings,
            "error_cb": self._hear,
        }
        self.group = group
        self._patience_s = patience_s
        self._trouble: dict[int, str] = {}
        """What librdkafka tells of connections by its own errors' codes, newest text each."""
        try:
            self._admin: Any = kafka_admin.AdminClient(dict(self._settings))
        # Bytes of a shell that are no UTF-8 come as the latter, behind another
        except (kafka.KafkaException, SystemError) as error:
            raise WrongUsage(
                f"librdkafka does not take these settings: {_text(error)}",
                next_step="correct --bootstrap-servers, or the --command-config file "
                "(librdkafka's names, or Kafka's client properties)",
            ) from error
        self._reach(settings["bootstrap.servers"])

    def _hear(self, error: Any) -> None:
        self._trouble[error.code()] = error.str()

    def _reach(self, servers: str) -> None:
        """Describe the cluster.

        A wrong address then costs seconds, and not the patience of every later question.
        """
        contact_s = min(_CONTACT_SECONDS, self._patience_s)
        answer = self._admin.describe_cluster(request_timeout=contact_s)
        began = time.monotonic()
        while not answer.done():
            self._admin.poll(_LOOK_SECONDS)  # serves _hear
            all_refuse = kafka.KafkaError._ALL_BROKERS_DOWN in self._trouble
            seconds = time.monotonic() - began
            if seconds > contact_s or (all_refuse and seconds > _REFUSED_SECONDS):
                raise self._unreachable(servers)
        try:
            answer.result()
        except kafka.KafkaException as error:
            if error.args[0].code() in _NOBODY_THERE:
                raise self._unreachable(servers) from error
            # Somebody answered. A missing right comes up, with its name, where it is needed.

    def _unreachable(self, servers: str) -> Unavailable:
        reasons = {**self._trouble}
        reasons.pop(kafka.KafkaError._ALL_BROKERS_DOWN, None)
        reason = next(iter(reasons.values()), "nothing listens, or it does not speak Kafka")
        return Unavailable(
            f"no broker answers at {servers}: {reason}",
            next_step="check --bootstrap-servers and --command-config, and that the cluster is "
            "up; --verbose shows librdkafka's own log",
        )

    def topic_id(self, topic: str, default: str) -> str:
        """Return the id of ``topic``, spelt as Kafka's tools do; ``default`` where there is none:
        no such topic, or brokers before 2.8.
        """
        found = self._described(topic)
        if found is None or not found.topic_id:
            return default
        # Base64 of librdkafka's; Kafka spells it for URLs (org.apache.kafka.common.Uuid)
        known = str(found.topic_id).translate(str.maketrans("+/", "-_")).rstrip("=")
        return default if known == _NO_ID else known

    def leaders(self, topic: str) -> dict[Where, int] | None:
        """Return the partitions of ``topic`` with their leaders; None if there is no such
        topic.
        """
        found = self._described(topic)
        if found is None:
            return None
        return {(topic, one.id): one.leader.id if one.leader else -1 for one in found.partitions}

    def _described(self, topic: str) -> Any:
        # A metadata request would create the topic where auto.create.topics.enable is on.
        topics = kafka.TopicCollection([topic])
        try:
            answers = self._admin.describe_topics(topics, request_timeout=self._patience_s)
            return answers[topic].result()
        except kafka.KafkaException as error:
            code = error.args[0].code()
            if code == kafka.KafkaError.UNKNOWN_TOPIC_OR_PART:
                return None
            if code == kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED:
                raise CannotTell(
                    f"topic {topic} may not be looked at",
                    next_step=f"grant DESCRIBE and READ on topic {topic}",
                ) from error
            raise Unavailable(
                f"no broker answers: {_text(error)}",
                next_step="check --bootstrap-servers and --command-config",
            ) from error

    def partitions(self, topic: str) -> list[Where] | None:
        """Return the partitions of ``topic``; None if there is no such topic."""
        leaders = self.leaders(topic)
        return None if leaders is None else sorted(leaders)

    def ends(self, partitions: Iterable[Where], isolation: str = UNCOMMITTED) -> dict[Where, int]:
        """Return the high watermarks; or, with ``COMMITTED``, the last stable offsets."""
        levels = kafka.IsolationLevel
        level = levels.READ_COMMITTED if isolation == COMMITTED else levels.READ_UNCOMMITTED
        return self._offsets(partitions, kafka_admin.OffsetSpec.latest(), level)

    def starts(self, partitions: Iterable[Where]) -> dict[Where, int]:
        """Return the first offsets that retention has left."""
        spec = kafka_admin.OffsetSpec.earliest()
        return self._offsets(partitions, spec, kafka.IsolationLevel.READ_UNCOMMITTED)

    def _offsets(self, partitions: Iterable[Where], spec: Any, level: Any) -> dict[Where, int]:
        specs = {kafka.TopicPartition(*where): spec for where in partitions}
        if not specs:
            return {}
        try:
            return self._offsets_told(specs, level)
        except kafka.KafkaException as error:
            topics = ", ".join(sorted({where.topic for where in specs}))
            raise CannotTell(
                f"the offsets of {topics} cannot be asked for: {_text(error)}",
                next_step="check that its partitions have leaders, and grant DESCRIBE",
            ) from error

    def _offsets_told(self, specs: dict[Any, Any], level: Any) -> dict[Where, int]:
        until = time.monotonic() + self._patience_s
        while True:
            answers = self._admin.list_offsets(
                specs, isolation_level=level, request_timeout=self._patience_s
            )
            try:
                return {
                    (p.topic, p.partition): answer.result().offset for p, answer in answers.items()
                }
            except kafka.KafkaException as error:
                if error.args[0].code() not in _LEADER_MOVES or time.monotonic() > until:
                    raise
                time.sleep(_PAUSE_S)

    def is_compacted(self, topic: str) -> bool | None:
        """Return whether ``topic`` is compacted; None if the broker does not say (ACL)."""
        resource = kafka_admin.ConfigResource(kafka_admin.ConfigResource.Type.TOPIC, topic)
        try:
            configs = self._admin.describe_configs([resource])[resource].result(self._patience_s)
        except kafka.KafkaException:
            return None
        return "compact" in (configs["cleanup.policy"].value or "")

    def group_offsets(self) -> dict[Where, int] | None:
        """Return the offsets of the pipeline's group; None if the broker does not say (ACL)."""
        group = kafka.ConsumerGroupTopicPartitions(self.group)
        try:
            answers = self._admin.list_consumer_group_offsets(
                [group], request_timeout=self._patience_s
            )
            entries = answers[self.group].result(self._patience_s).topic_partitions
        except kafka.KafkaException:
            return None
        return {(one.topic, one.partition): one.offset for one in entries if one.offset >= 0}

    def wait_until_stable(
        self, offsets: Mapping[Where, int], patience_s: float
    ) -> dict[Where, int]:
        """Return the last stable offsets once they have reached ``offsets``.

        :param patience_s: after so many seconds they are returned as they are.
        """
        deadline = time.monotonic() + patience_s
        while True:
            stable = self.ends(offsets, COMMITTED)
            is_stable = all(stable[where] >= offset for where, offset in offsets.items())
            if is_stable or time.monotonic() > deadline:
                return stable
            time.sleep(_LOOK_SECONDS)

    def read(
        self, ranges: Mapping[Where, tuple[int, int]], isolation: str = COMMITTED
    ) -> Iterator[tuple[Where, list[Any], Any]]:
        """Yield the records of ``ranges`` (first offset, end exclusive).

        Partition, messages, and their offsets as a numpy array; of each partition in offset order,
        while partitions come in turns. The ends must be decided already.
        """
        waiting = [where for where, (start, end) in ranges.items() if start < end]
        for begin in range(0, len(waiting), _AT_ONCE):
            some = waiting[begin : begin + _AT_ONCE]
            yield from self._read({where: ranges[where] for where in some}, isolation)

    def _read(
        self, ranges: Mapping[Where, tuple[int, int]], isolation: str
    ) -> Iterator[tuple[Where, list[Any], Any]]:
        unread = dict(ranges)
        silence_s = min(_REMOTE_AFTER_S, self._patience_s)
        yield from self._read_some(unread, isolation, _WAIT_MS, silence_s)
        if unread:
            yield from self._read_some(unread, isolation, _REMOTE_WAIT_MS, self._patience_s)
        if unread:
            raise CannotTell(
                f"no more records for {self._patience_s:g} s, with {sorted(unread)} not "
                f"read to the end",
                next_step="check the brokers, or give --patience more seconds",
            )

    def _read_some(
        self, unread: dict[Where, tuple[int, int]], isolation: str, wait_ms: int, silence_s: float
    ) -> Iterator[tuple[Where, list[Any], Any]]:
        """Read until nothing comes for so long; ``unread`` is what is left then."""
        reader = {
            **_READER, "fetch.wait.max.ms": wait_ms, "group.id": self.group,
            "isolation.level": isolation,
        }  # fmt: skip
        consumer = kafka.Consumer({**self._settings, **reader})
        try:
            starts = [kafka.TopicPartition(*where, start) for where, (start, _) in unread.items()]
            consumer.assign(starts)
            last_answer = time.monotonic()
            while unread:
                messages = consumer.consume(_POLL_RECORDS, _POLL_SECONDS)
                if messages:
                    last_answer = time.monotonic()
                elif time.monotonic() - last_answer > silence_s:
                    return
                for where, part, read_to in _by_partition(messages):
                    if where in unread:
                        end = unread[where][1]
                        offsets = np.array([message.offset() for message in part], np.int64)
                        number = int(np.searchsorted(offsets, end))
                        if number:
                            yield where, part[:number], offsets[:number]
                        unread[where] = max(read_to, unread[where][0]), end
                        if read_to >= end:
                            del unread[where]
                            consumer.pause([kafka.TopicPartition(*where)])
        finally:
            consumer.close()


def _by_partition(messages: Iterable[Any]) -> Iterator[tuple[Where, list[Any], int]]:
    """Yield messages by partition, with the offset (exclusive) up to which each partition is
    read.
    """
    parts: dict[Where, list[Any]] = defaultdict(list)
    ends: dict[Where, int] = {}
    for message in messages:
        error = message.error()
        where = message.topic(), message.partition()
        if error is None:
            parts[where].append(message)
        elif error.code() == kafka.KafkaError._PARTITION_EOF:
            ends[where] = message.offset()
        elif not error.retriable() and error.code() not in _PASSING:
            topic = where[0] or "the cluster"
            raise CannotTell(
                f"{topic} cannot be read: {error.str()}", next_step=f"grant READ on {topic}"
            )
    for where in parts.keys() | ends.keys():
        part = parts.get(where, [])
        read_to = part[-1].offset() + 1 if part else 0
        yield where, part, max(read_to, ends.get(where, 0))


_PASSING = frozenset(
    {
        kafka.KafkaError._TRANSPORT,
        kafka.KafkaError._ALL_BROKERS_DOWN,
        kafka.KafkaError._RESOLVE,
        # A reader that joins no group needs no right to one.
        kafka.KafkaError.GROUP_AUTHORIZATION_FAILED,
    }
)
"""Errors that librdkafka reports and recovers from."""


_NOBODY_THERE = frozenset(
    {
        kafka.KafkaError._TIMED_OUT,
        kafka.KafkaError._TRANSPORT,
        kafka.KafkaError._ALL_BROKERS_DOWN,
        kafka.KafkaError._RESOLVE,
        kafka.KafkaError._AUTHENTICATION,
    }
)


def _text(error: BaseException) -> str:
    return str(error.args[0].str()) if error.args and hasattr(error.args[0], "str") else str(error)
