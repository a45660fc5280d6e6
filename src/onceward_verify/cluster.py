"""The conversation with the brokers, by librdkafka: metadata, ends, group offsets, and records as
they stream by.

The only module of ``onceward_verify`` that imports ``confluent_kafka``. Joins no group and commits
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
# all of which librdkafka waits where fewer records than asked for come: at the end of every read
_POLL_SECONDS = 0.02
_LOOK_SECONDS = 0.1
_AT_ONCE = 64  # partitions read at the same time
_CONTACT_SECONDS = 10.0
"""For the first answer of any broker: login, TLS and a slow network included."""
_REFUSED_SECONDS = 3.0
"""… once every address has refused or cannot be resolved: a broker that is just starting gets a
second chance.
"""
_NO_LOGS, _ALL_LOGS = 0, 7  # syslog's levels
_READER = {
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",  # a reader that silently starts elsewhere proves nothing
    "check.crcs": True,
    "fetch.queue.backoff.ms": 5,  # the default of one second makes bulk reads slow
    "fetch.wait.max.ms": 50,
}


class Cluster:
    """One Kafka cluster, looked at and never touched.

    :param settings: librdkafka's names, ``bootstrap.servers`` among them.
    :param patience_s: how long to wait for the next answer, in seconds.
    :param verbose: librdkafka writes its own log to standard error. Else it writes nothing: while
        a broker is away it would repeat itself twenty times a second, and what matters of it is in
        our errors.
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
        except kafka.KafkaException as error:
            raise WrongUsage(
                f"librdkafka does not take these settings: {_text(error)}",
                next_step="correct the --command-config file (librdkafka's names, or Kafka's "
                "client properties)",
            ) from error
        self._reach(settings["bootstrap.servers"])

    def _hear(self, error: Any) -> None:
        self._trouble[error.code()] = error.str()

    def _reach(self, servers: str) -> None:
        """Ask for the cluster, so that a wrong address costs seconds and not the patience of every
        later question.
        """
        contact_s = min(_CONTACT_SECONDS, self._patience_s)
        answer = self._admin.describe_cluster(request_timeout=contact_s)
        began = time.monotonic()
        while not answer.done():
            self._admin.poll(_LOOK_SECONDS)  # serves _hear
            all_refuse = kafka.KafkaError._ALL_BROKERS_DOWN in self._trouble
            waited = time.monotonic() - began
            if waited > contact_s or (all_refuse and waited > _REFUSED_SECONDS):
                raise self._unreachable(servers)
        try:
            answer.result()
        except kafka.KafkaException as error:
            if error.args[0].code() in _NOBODY_THERE:
                raise self._unreachable(servers) from error
            # Somebody answered. What may not be asked for comes up, with its name, where it is
            # needed.

    def _unreachable(self, servers: str) -> Unavailable:
        reasons = (
            text
            for code, text in self._trouble.items()
            if code != kafka.KafkaError._ALL_BROKERS_DOWN
        )
        return Unavailable(
            f"no broker answers at {servers}: "
            f"{next(reasons, 'nothing listens, or it does not speak Kafka')}",
            next_step="check --bootstrap-servers and --command-config, and that the cluster is "
            "up; --verbose shows "
            "librdkafka's own log",
        )

    def leaders(self, topic: str) -> dict[Where, int] | None:
        """The partitions of ``topic`` with the node that leads each; None when there is no such
        topic.
        """
        asked = kafka.TopicCollection(
            [topic]
        )  # other ways to ask would create it, if brokers are so inclined
        try:
            described = self._admin.describe_topics(asked, request_timeout=self._patience_s)[
                topic
            ].result()
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
        return {
            (topic, info.id): info.leader.id if info.leader else -1
            for info in described.partitions
        }

    def partitions(self, topic: str) -> list[Where] | None:
        """The partitions of ``topic``; None when there is no such topic."""
        leaders = self.leaders(topic)
        return None if leaders is None else sorted(leaders)

    def ends(self, partitions: Iterable[Where], isolation: str = UNCOMMITTED) -> dict[Where, int]:
        """Where partitions end: the high watermark, or the last stable offset of
        ``read_committed`` readers.
        """
        level = (
            kafka.IsolationLevel.READ_COMMITTED
            if isolation == COMMITTED
            else kafka.IsolationLevel.READ_UNCOMMITTED
        )
        return self._offsets(partitions, kafka_admin.OffsetSpec.latest(), level)

    def starts(self, partitions: Iterable[Where]) -> dict[Where, int]:
        """The first offset that retention has left."""
        spec = kafka_admin.OffsetSpec.earliest()
        return self._offsets(partitions, spec, kafka.IsolationLevel.READ_UNCOMMITTED)

    def _offsets(self, partitions: Iterable[Where], spec: Any, level: Any) -> dict[Where, int]:
        asked = {kafka.TopicPartition(*where): spec for where in partitions}
        if not asked:
            return {}
        try:
            answers = self._admin.list_offsets(
                asked, isolation_level=level, request_timeout=self._patience_s
            )
            return {
                (p.topic, p.partition): answer.result().offset for p, answer in answers.items()
            }
        except kafka.KafkaException as error:
            topics = ", ".join(sorted({where.topic for where in asked}))
            raise CannotTell(
                f"the offsets of {topics} cannot be asked for: {_text(error)}",
                next_step="check that its partitions have leaders, and grant DESCRIBE",
            ) from error

    def is_compacted(self, topic: str) -> bool | None:
        """Does ``topic`` forget records whose key comes again? None: the broker does not say
        (ACL).
        """
        resource = kafka_admin.ConfigResource(kafka_admin.ConfigResource.Type.TOPIC, topic)
        try:
            configs = self._admin.describe_configs([resource])[resource].result(self._patience_s)
        except kafka.KafkaException:
            return None
        return "compact" in (configs["cleanup.policy"].value or "")

    def group_offsets(self) -> dict[Where, int] | None:
        """What the pipeline's consumer group has committed; None: the broker does not say
        (ACL).
        """
        asked = kafka.ConsumerGroupTopicPartitions(self.group)
        try:
            answer = self._admin.list_consumer_group_offsets(
                [asked], request_timeout=self._patience_s
            )
            listed = answer[self.group].result(self._patience_s).topic_partitions
        except kafka.KafkaException:
            return None
        return {
            (entry.topic, entry.partition): entry.offset for entry in listed if entry.offset >= 0
        }

    def wait_until_stable(
        self, wanted: Mapping[Where, int], patience_s: float
    ) -> dict[Where, int]:
        """The last stable offsets, as soon as they have reached ``wanted``, or after
        ``patience_s`` as they are.
        """
        deadline = time.monotonic() + patience_s
        while True:
            stable = self.ends(wanted, COMMITTED)
            if (
                all(stable[where] >= offset for where, offset in wanted.items())
                or time.monotonic() > deadline
            ):
                return stable
            time.sleep(_LOOK_SECONDS)

    def read(
        self, ranges: Mapping[Where, tuple[int, int]], isolation: str = COMMITTED
    ) -> Iterator[tuple[Where, list[Any], Any]]:
        """The records of ``ranges`` (first offset, end exclusive): partition, messages, offsets as
        a numpy array.

        Of each partition in offset order; partitions come in turns. The ends must be decided
        already.
        """
        waiting = [where for where, (start, end) in ranges.items() if start < end]
        for begin in range(0, len(waiting), _AT_ONCE):
            yield from self._read(
                {where: ranges[where] for where in waiting[begin : begin + _AT_ONCE]}, isolation
            )

    def _read(
        self, ranges: Mapping[Where, tuple[int, int]], isolation: str
    ) -> Iterator[tuple[Where, list[Any], Any]]:
        settings = {
            **self._settings,
            **_READER,
            "group.id": self.group,
            "isolation.level": isolation,
        }
        consumer = kafka.Consumer(settings)
        try:
            consumer.assign(
                [kafka.TopicPartition(*where, start) for where, (start, _) in ranges.items()]
            )
            unread = set(ranges)
            heard = time.monotonic()
            while unread:
                messages = consumer.consume(_POLL_RECORDS, _POLL_SECONDS)
                if messages:
                    heard = time.monotonic()
                elif time.monotonic() - heard > self._patience_s:
                    raise CannotTell(
                        f"no more records for {self._patience_s:g} s, with {sorted(unread)} not "
                        f"read to the end",
                        next_step="check the brokers, or give --patience more seconds",
                    )
                for where, part, reached in _by_partition(messages):
                    if where in unread:
                        end = ranges[where][1]
                        offsets = np.fromiter(
                            [message.offset() for message in part], np.int64, len(part)
                        )
                        wanted = int(np.searchsorted(offsets, end))
                        if wanted:
                            yield where, part[:wanted], offsets[:wanted]
                        if reached >= end:
                            unread.discard(where)
                            consumer.pause([kafka.TopicPartition(*where)])
        finally:
            consumer.close()


def _by_partition(messages: Iterable[Any]) -> Iterator[tuple[Where, list[Any], int]]:
    """Messages by partition, and up to where each partition is read with them (exclusive)."""
    parts: dict[Where, list[Any]] = defaultdict(list)
    reached: dict[Where, int] = {}
    for message in messages:
        error = message.error()
        where = message.topic(), message.partition()
        if error is None:
            parts[where].append(message)
        elif error.code() == kafka.KafkaError._PARTITION_EOF:
            reached[where] = message.offset()
        elif not error.retriable() and error.code() not in _PASSING:
            topic = where[0] or "the cluster"
            raise CannotTell(
                f"{topic} cannot be read: {error.str()}", next_step=f"grant READ on {topic}"
            )
    for where in parts.keys() | reached.keys():
        part = parts.get(where, [])
        read_to = part[-1].offset() + 1 if part else 0
        yield where, part, max(read_to, reached.get(where, 0))


_PASSING = frozenset(
    {
        kafka.KafkaError._TRANSPORT,
        kafka.KafkaError._ALL_BROKERS_DOWN,
        kafka.KafkaError._RESOLVE,
        # a reader that joins no group needs no right to one
        kafka.KafkaError.GROUP_AUTHORIZATION_FAILED,
    }
)
"""What librdkafka tells of and goes on."""


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
