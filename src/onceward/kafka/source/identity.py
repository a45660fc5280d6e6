"""Identity of Kafka topics: a topic that was deleted and created again has another id. Driver
only. Loaded by :func:`onceward.engine.target.source_identity`, called for every batch. In a topic
that was created again the checkpoint's offsets name other records: Spark would read on there, or
take the missing ones for lost."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

from onceward.engine.ledger.record import LedgerRecord
from onceward.engine.target import ClientFor, SourceIdentity
from onceward.errors import (
    AccessDenied,
    AuthenticationFailed,
    BrokerUnreachable,
    OncewardError,
    PartitionsAdded,
    SourceDataLost,
    TopicMissing,
)
from onceward.ids import (
    BatchId,
    TopicPartition,
    kafka_ranges,
    kafka_spans,
)
from onceward.kafka.source.topics_and_positions import (
    committed_with,
    cut_off,
    goes_back,
    hidden,
    in_another_order,
    no_leader,
    not_heard_of,
    planned_otherwise,
    planned_with,
    replaced,
    source_topics,
    unwanted,
)
from onceward.kafka.wire.client import KafkaClient
from onceward.kafka.wire.options.settings import ClientSettings
from onceward.kafka.wire.reads.offsets import ask_who_may, bounds_at_newest_leaders, logins_for
from onceward.spark.batch.failures import (
    DATA_LOSS,
    OF_PARTITIONS,
    PARTITIONS_DELETED,
    loss,
)
from onceward.spark.batch.query import KafkaSource, RunningBatch

_known: dict[frozenset[str], list[ClientSettings]] = {}
"""Of each cluster the settings that it was read with in this process, newest first."""
_sinks: dict[frozenset[str], ClientSettings] = {}

_MOST_LOGINS = 8


def remember(settings: ClientSettings) -> None:
    """Remember ``settings`` for the cluster that they name, ahead of others that it was read with:
    a password may have been renewed, and another source may have another login."""
    servers = frozenset(settings.bootstrap_servers)
    others = [
        each
        for each in _known.get(servers, ())
        if replace(each, client_id=settings.client_id) != settings
    ]
    _known[servers] = [settings, *others][:_MOST_LOGINS]


def known_clients(source: KafkaSource) -> list[KafkaClient]:
    """Return clients of the cluster that ``source`` reads from, shared by all who ask: one for
    each login, for which of them is this source's nobody can tell."""
    return [KafkaClient.shared(each) for each in _known.get(source.bootstrap_servers, ())]


def known_logins(servers: frozenset[str]) -> list[ClientSettings]:
    """Return a cluster's settings: those of ``kafka_source``, newest first, else a sink's."""
    of_sink = _sinks.get(servers)
    return [*_known.get(servers, ())] or ([of_sink] if of_sink else [])


def remember_sink(servers: frozenset[str], settings: ClientSettings) -> None:
    """Remember that a sink with ``settings`` writes to the cluster that ``servers`` name."""
    _sinks[servers] = settings


def has_the_same(topics: set[str], source: KafkaSource, client: KafkaClient) -> bool:
    """Return whether the cluster that ``source`` reads from is that of ``client``, whatever its
    brokers are called there (another listener, an alias): it has these topics, with the same ids,
    which are random, unlike a cluster's. False where one of the two logins may not see them, no
    login is known for the source, or brokers have no ids (before 2.8).

    :raises BrokerUnreachable: one of the two does not answer.
    """
    for login in known_clients(source):
        # Another source of this process may have a login of its own, which is outdated
        with suppress(AccessDenied, AuthenticationFailed, TopicMissing):
            ids = login.topic_ids(topics)
            return ids.keys() == topics and all(ids.values()) and client.topic_ids(topics) == ids
    return False


class _Question(NamedTuple):
    """Who is asked for topic ids: several sources at once where there is one login."""

    clients: tuple[KafkaClient, ...]
    source: int | None


class KafkaSourceIdentity(SourceIdentity):
    """One for each run of a query. The identity of a source is ``{topic: topic id}``, of the
    topics that it reads. :param client_for: the target's own clients, which are asked first; other
    clusters by the logins of ``kafka_source``."""

    def __init__(self, client_for: ClientFor | None = None) -> None:
        self._client_for = client_for
        self._could: dict[int, KafkaClient] = {}
        self._known: dict[int, dict[str, str]] = {}
        self._first: BatchId | None = None
        # The ledger's newest when the run began
        self._committed: BatchId | None = None

    def start(self, running: RunningBatch, newest: LedgerRecord | None) -> None:
        """Compare, before a run's first batch, the topics with those of the ledger's newest
        record. :raises SourceTopicReplaced, TopicMissing, PartitionsAdded: as :meth:`identify`."""
        self._first = running.batch
        self._committed = newest.batch if newest else None
        identities = [source.identity for source in newest.sources] if newest else []
        known = {i: dict(each) for i, each in enumerate(identities) if isinstance(each, Mapping)}
        self._known = dict(known)
        try:
            self.identify(running)
        except SourceDataLost:
            # What is committed need not be read again
            if running.batch != self._committed:
                raise
        # Also topics that this batch leaves out, which :meth:`check_parts` looks for
        self._known |= {i: ids | self._known.get(i, {}) for i, ids in known.items()}

    def check_parts(self, running: RunningBatch) -> None:
        # They would be read from their first record once they are back
        if misplanned := self._misplanned(running):
            raise misplanned
        # 1. A topic appears in mid-run, and this batch reads it.
        # 2. It is deleted and created again while the batch reads.
        # 3. Identified only now, the ledger would name the second topic, with the offsets of the
        #    first.
        for source in running.kafka_sources:
            if (
                source_topics(running.sources[source.index])
                - self._known.get(source.index, {}).keys()
            ):
                self.identify(running)
                return

    def identify(self, running: RunningBatch) -> tuple[Any, ...]:
        """Return the ids of the topics. Ids never come back: those that are still the ledger's
        were so during the read.

        :raises SourceTopicReplaced: a topic is not the one that the ledger speaks of.
        :raises TopicMissing, PartitionsAdded, SourceDataLost: a topic is gone. The batch is to be
            planned anew: by a person, or by itself; or it is committed.
        """
        questions = {source: self._question(source) for source in running.kafka_sources}
        topics_of: dict[_Question, set[str]] = {}
        for source, question in questions.items():
            topics_of.setdefault(question, set()).update(
                source_topics(running.sources[source.index])
            )
        try:
            ids = {each: self._topic_ids(each, names) for each, names in topics_of.items()}
        except TopicMissing as missing:
            if self._first is None:
                raise
            if running.batch != self._committed:
                raise planned_with(missing, running) from missing
            # Spark makes no task for what it reads nothing of
            for source, question in questions.items():
                read = {each.topic for each in kafka_ranges(running.sources[source.index])}
                try:
                    self._topic_ids(question, read)
                except TopicMissing as gone:
                    raise committed_with(gone, running) from gone
            return tuple(map(self._known.get, range(len(running.sources))))
        found: list[Any] = [None] * len(running.sources)
        known = dict(self._known)
        for source, question in questions.items():
            topics = source_topics(running.sources[source.index])
            # Only what the batch reads: a topic that a pattern no longer finds may come back as
            # another one.
            topic_ids = _only(topics, self._known.get(source.index, {}))
            if question.clients and topics:
                now = _only(topics, ids[question])
                self._refuse_others(source, now, running)
                known[source.index] = dict(sorted((topic_ids | now).items()))
                found[source.index] = known[source.index]
            elif topic_ids:
                # Nobody here knows how to log in: the next process that does compares
                found[source.index] = topic_ids
        # Only now: by the old ones it is told whether a topic is another source's
        self._known = known
        return tuple(found)

    def explain(self, lost: OncewardError, running: RunningBatch) -> OncewardError:
        """Return ``lost`` where it is no loss of these sources, or a log begins behind the batch;
        else what its leaders say: its end was cut off, or all is there and Spark asked a broker
        that no longer leads; or that the batch is planned with other topics than the query has.

        :raises SourceTopicReplaced: a topic was created again.
        :raises AccessDenied: a topic that is left out may not be described.
        """
        is_lost = str(lost.details.get("condition", "")).startswith(DATA_LOSS)
        if not is_lost and not isinstance(lost, PartitionsAdded):
            return lost
        if misplanned := self._misplanned(running):
            return misplanned
        if not is_lost or lost.details["condition"].startswith(OF_PARTITIONS):
            asked_in_vain = str(lost.details.get("condition")).startswith(OF_PARTITIONS[1])
            if asked_in_vain and self._has_new_ones(running):
                return not_heard_of(lost, running)
            return lost
        # Of all partitions Spark tells of those first that are new
        if gone := [topic for source, topic in _dropped(running) if not source.may_lose]:
            return loss(PARTITIONS_DELETED, f"all or some of {', '.join(gone)}")
        read: dict[TopicPartition, tuple[int, int]] = {}
        for source in running.kafka_sources:
            ranges = kafka_ranges(running.sources[source.index])
            # Of a static frame, say, that is read beside it
            if not any(
                re.search(rf"(?<![\w.-]){re.escape(str(each))}(?!\d|[\w.-]*-\d)", lost.message)
                for each in ranges
            ):
                continue
            read |= ranges
            bounds = self._bounds(source, ranges)
            for each, (start, end) in ranges.items():
                if each not in bounds or end < start:
                    return lost
                log = bounds[each]
                if log is None:
                    return no_leader(each, running, lost.message)
                if start < log[0]:
                    return lost
                if log[1] < end:
                    self.identify(running)
                    return cut_off(each, running, (start, end, log[1]))
        if not read:
            return lost
        self.identify(running)
        # 1. The leader of a partition is cut off from the controllers, and not from Spark;
        # 2. another one is elected, and takes records;
        # 3. Spark hears of its end, and asks the old one, whose log ends before.
        return BrokerUnreachable(
            "Spark asked a broker that no longer leads a partition for records that its log does "
            f"not have; their leaders have all records of {running.batch}: {lost.message}",
            next_step="nothing; the batch runs again. If it repeats, look for a broker that is "
            "cut off from the controllers",
        )

    def _has_new_ones(self, running: RunningBatch) -> bool:
        """Return whether partitions are new in the batch, and wanted, and brokers know all."""
        known = [not _dropped(running)]
        for source in running.kafka_sources:
            starts, ends = kafka_spans(running.sources[source.index])
            new = {
                TopicPartition(topic, int(number))
                for topic, numbers in ends.items()
                for number in numbers.keys() - starts.get(topic, {}).keys()
            }
            if new:
                wanted = all(source.reads(each.topic) for each in new)
                known.append(wanted and self._bounds(source, new).keys() == new)
        return len(known) > 1 and all(known)

    def must_not_go_back(self, running: RunningBatch) -> None:
        """Refuse a batch that ends before it starts, unless the log ends there as well; and, where
        records that are gone are passed over, one that the run begins with and that ends behind
        its log.

        Spark logs such an end when a broker that no longer leads has told it, and with
        ``failOnDataLoss=false`` it goes on from there: records would be written once more. An end
        that the log has lost since the batch was planned is gone on from as well: what comes
        before it would be skipped.

        :raises SourceDataLost: it may be so.
        """
        for source in running.kafka_sources:
            planned_before = source.may_lose and running.batch == self._first
            ranges = {
                each: (start, end)
                for each, (start, end) in kafka_ranges(running.sources[source.index]).items()
                if end < start or planned_before
            }
            if ranges:
                self.identify(running)
            for each, log in self._bounds(source, ranges).items() if ranges else ():
                start, end = ranges[each]
                if log is None:
                    raise no_leader(each, running, f"it goes from offset {start} to {end}")
                if end < start <= log[1]:
                    raise goes_back(each, running, (start, end, log[1]))
                if start < end and log[1] < end:
                    raise cut_off(each, running, (start, end, log[1]))

    def _misplanned(self, running: RunningBatch) -> OncewardError | None:
        """Return the error for a batch that starts with partitions that it does not end with,
        though their topic is the same and there, or is another source's now; or that has a topic
        which nobody has read and nobody names any more. None also where nobody can be asked.

        :raises AccessDenied: the topic may not be described, so that brokers, asked for all topics
            (``topic_pattern``), leave it out without a word.
        """
        # What is committed cannot be planned anew
        if running.batch == self._committed:
            return None
        more = {topic for each in running.kafka_sources for topic in unwanted(each, running)}
        less: set[str] = set()
        dropped = _dropped(running)
        for source, topic in dropped:
            # Taken out of the list, or a pattern that was changed no longer means it
            if source.reads(topic):
                found = self._found(source, topic, running)
                known = self._id(source, topic, "")
                if found is not None and (
                    found == known if known else self._has_parts(source, topic, running)
                ):
                    less.add(topic)
        if less or more:
            return planned_otherwise(sorted(less), sorted(more), running)
        for source, topic in dropped:
            for other in () if source.reads(topic) else running.kafka_sources:
                starts, ends = kafka_spans(running.sources[other.index])
                comes, its_id = topic in ends.keys() - starts.keys(), self._id(other, topic, "")
                # One of that name on another cluster has nothing to do with it
                if comes and (not its_id or its_id == self._id(source, topic, its_id)):
                    return in_another_order([topic], source, running)
        return None

    def _id(self, source: KafkaSource, topic: str, unknown: str) -> str:
        return self._known.get(source.index, {}).get(topic, unknown)

    def _refuse_others(
        self, source: KafkaSource, found: Mapping[str, str], running: RunningBatch
    ) -> None:
        known = self._known.get(source.index, {})
        others = [name for name in sorted(found) if known.get(name, found[name]) != found[name]]
        of_others = [ids.values() for i, ids in self._known.items() if i != source.index]
        is_committed = running.batch == self._committed
        if others and all(any(found[name] in ids for ids in of_others) for name in others):
            raise in_another_order(others, source, running, is_committed=is_committed)
        if others:
            ids = [", ".join(each[name] for name in others) for each in (found, known)]
            raise replaced(others, ids, running, is_committed=is_committed)

    def _found(self, source: KafkaSource, topic: str, running: RunningBatch) -> str | None:
        """Return the topic's id (old brokers: empty); None: none, or nobody can be asked."""
        refused: OncewardError | None = None
        for client in self._question(source).clients:
            try:
                return client.topic_ids({topic}).get(topic, "")
            except TopicMissing:  # noqa: PERF203
                # It is: who may not describe a topic is told that instead
                return None
            except (AccessDenied, AuthenticationFailed) as error:
                refused = refused or error
        if isinstance(refused, AccessDenied):
            raise hidden(topic, running, refused) from refused
        if refused is not None:
            raise refused
        return None

    def _has_parts(self, source: KafkaSource, topic: str, running: RunningBatch) -> bool:
        """Return whether the topic has the partitions with which the batch starts, or nobody can
        be asked. One that was created again with fewer is the same only by its name: each new plan
        would lack them, too."""
        starts, _ = kafka_spans(running.sources[source.index])
        there: set[str] = set()
        for client in self._question(source).clients:
            # One that lags behind does not tell of all
            for turn in range(len(client.brokers())):
                with suppress(OncewardError):
                    there |= set(map(str, client.topic_partitions({topic}, turn=turn)[topic]))
        return not there or starts[topic].keys() <= there

    def _bounds(
        self, source: KafkaSource, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, tuple[int, int] | None]:
        bounds: dict[TopicPartition, tuple[int, int] | None] = {}
        for client in self._question(source).clients:
            bounds = bounds or bounds_at_newest_leaders(client, sorted(partitions))
        return bounds

    def _question(self, source: KafkaSource) -> _Question:
        client = None if self._client_for is None else self._client_for(source)
        if client is not None:
            return _Question((client,), None)
        clients = known_clients(source)
        if len(clients) == 1:
            # Sources by logins of their own may come, more than are remembered
            self._could.setdefault(source.index, clients[0])
        clients = logins_for(clients, self._could.get(source.index))
        # One login may see what another one may not
        return _Question(tuple(clients), source.index if len(clients) > 1 else None)

    def _topic_ids(self, question: _Question, topics: set[str]) -> dict[str, str]:
        clients = question.clients if topics else ()
        if question.source is None:
            return clients[0].topic_ids(topics) if clients else {}
        ids = ask_who_may(clients, lambda one: one.topic_ids(topics), self._could, question.source)
        return ids or {}


def _dropped(running: RunningBatch) -> list[tuple[KafkaSource, str]]:
    """Return the topics that the batch starts with and, in part or as a whole, does not end
    with."""
    return [
        (source, topic)
        for source in running.kafka_sources
        for starts, ends in [kafka_spans(running.sources[source.index])]
        for topic, partitions in starts.items()
        if not partitions.keys() <= ends.get(topic, {}).keys()
    ]


def _only(topics: set[str], ids: Mapping[str, str]) -> dict[str, str]:
    return {name: topic_id for name, topic_id in ids.items() if name in topics}
