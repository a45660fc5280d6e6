"""Offsets of partitions (earliest, latest, by time) and those that a consumer group committed.
Runs in the driver. Called by ``kafka.wire.reads.key_reader`` and by sources."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import suppress
from itertools import groupby
from typing import Any, TypeVar

from kafka.protocol.consumer import ListOffsetsRequest, OffsetFetchRequest

from onceward.errors import (
    AccessDenied,
    AuthenticationFailed,
    BrokerUnreachable,
    OncewardError,
    PartitionMissing,
    TopicMissing,
)
from onceward.ids import TopicPartition
from onceward.kafka.wire.acls import Kind
from onceward.kafka.wire.admin import metadata_request
from onceward.kafka.wire.client import NO_LEADER, KafkaClient
from onceward.kafka.wire.conversation import Refused, asked
from onceward.kafka.wire.deadline import Backoff, Deadline
from onceward.kafka.wire.error_table import Api, Meaning, code_name, find_rule

EARLIEST = -2
LATEST = -1
EARLIEST_LOCAL = -4
"""``ListOffsetsRequest.EARLIEST_TIMESTAMP``, ``LATEST_TIMESTAMP``, and that of the first offset
that the leader has itself (``EARLIEST_LOCAL_TIMESTAMP``, brokers from 3.4 on); other values are
milliseconds since 1970."""

_NOTHING_COMMITTED = -1
_ONE_BROKER_MS = 5_000

T = TypeVar("T")
L = TypeVar("L")
Who = TypeVar("Who", bound=Hashable)


def logins_for(logins: Sequence[L], last: L | None) -> list[L]:
    """Return the logins in the order in which to ask: first the one that ``last`` could, also if
    it is not among them any more, for only so many are remembered of a cluster."""
    if last is None or not logins:
        return list(logins)
    return [last, *(each for each in logins if each is not last)]


def ask_who_may(
    logins: Sequence[L], ask: Callable[[L], T], could: dict[Who, L], who: Who
) -> T | None:
    """Ask by a login that may see the topics: the one that last could for ``who``, or the newest
    that can; whose they are nobody can tell. None: there is none.

    :raises OncewardError: what the first was refused with, if all were.
    """
    refused: OncewardError | None = None
    for login in logins_for(logins, could.get(who)):
        try:
            answer = ask(login)
        except (AccessDenied, AuthenticationFailed, TopicMissing) as error:  # noqa: PERF203
            refused = refused or error
        else:
            could[who] = login
            return answer
    if refused is not None:
        raise refused
    return None


def list_offsets(
    client: KafkaClient,
    partitions: Iterable[TopicPartition],
    time_ms: int,
    *,
    read_committed: bool = False,
    timeout_ms: int | None = None,
) -> dict[TopicPartition, int]:
    """Return per partition the offset at :data:`EARLIEST`, :data:`LATEST` or of the first record
    at ``time_ms`` or later.

    :data:`LATEST` is the high watermark, with ``read_committed`` the last stable offset
    (transaction markers count as offsets). -1 for a time after the last record.

    :raises TopicMissing, PartitionMissing, AccessDenied, BrokerUnreachable: naming the partition.
    """
    open_ones = set(partitions)
    offsets: dict[TopicPartition, int] = {}
    deadline = Deadline(timeout_ms or client.settings.request_timeout_ms)
    backoff = Backoff()
    while open_ones:
        reasons = []
        for partition, code, offset in _ask_leaders(
            client, open_ones, time_ms, read_committed, deadline
        ):
            rule = find_rule(Api.LIST_OFFSETS, code)
            if rule.meaning is Meaning.DONE:
                offsets[partition] = offset
                open_ones.discard(partition)
            elif rule.meaning in (Meaning.RETRY, Meaning.REFRESH):
                reasons.append(f"{partition}: {code_name(code)}")
            else:
                topic = {Kind.TOPIC: partition.topic}
                raise Refused(
                    Api.LIST_OFFSETS, code, rule, str(partition), resources=topic
                ).as_error()
        if open_ones:
            client.forget_leaders({p.topic for p in open_ones})
            if deadline.passed:
                raise BrokerUnreachable(
                    f"no offsets of {', '.join(map(str, sorted(open_ones)))} within "
                    f"{deadline.timeout_ms:.0f} ms ({'; '.join(reasons) or 'no answer'})",
                    next_step="check that the leaders of these partitions are up",
                )
            backoff.wait(deadline)
    return offsets


def bounds_at_newest_leaders(
    client: KafkaClient, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, tuple[int, int] | None]:
    """Return earliest offset and high watermark of each partition, as the leader with the highest
    leader epoch has them that any broker tells of (KIP-320): one that is cut off from the
    controllers goes on answering for what it led. None: that leader does not answer. Partitions
    that nobody knows are left out."""
    with suppress(OncewardError):
        client.topic_partitions({partition.topic for partition in partitions})  # and new brokers
    request = metadata_request(sorted({partition.topic for partition in partitions}))
    leaders: dict[TopicPartition, tuple[int, int]] = {}
    for broker in client.brokers():
        for topic in _topics_in_answer(client, request, broker):
            for found in topic.partitions:
                place = TopicPartition(topic.name, found.partition_index)
                newest = found.leader_epoch, found.leader_id
                leaders[place] = max(newest, leaders.get(place, newest))
    ends: dict[int, dict[TopicPartition, int]] = {EARLIEST: {}, LATEST: {}}
    for time_ms, offsets in ends.items():
        for leader in {leaders[each][1] for each in partitions if each in leaders}:
            led = sorted(each for each in partitions if leaders.get(each, (0, -1))[1] == leader)
            asked_for = _list_offsets_request(led, time_ms, read_committed=False)
            for topic in _topics_in_answer(client, asked_for, leader):
                for found in topic.partitions:
                    if found.error_code == 0:
                        offsets[TopicPartition(topic.name, found.partition_index)] = found.offset
    first, last = ends[EARLIEST], ends[LATEST]
    return {
        each: (first[each], last[each]) if each in first and each in last else None
        for each in partitions
        if each in leaders
    }


def _topics_in_answer(client: KafkaClient, request: Any, node: int) -> Sequence[Any]:
    try:
        return list(client.call(request, node, _ONE_BROKER_MS).topics)
    except OncewardError:
        return ()


def existing_leader(client: KafkaClient, partition: TopicPartition) -> int:
    """Return the node id of the leader of a partition that is there, or ``NO_LEADER``.
    :raises TopicMissing, PartitionMissing, AccessDenied, BrokerUnreachable: …"""
    leaders = client.known_leaders(partition.topic)
    if partition.partition not in leaders:
        # It may have been added since
        leaders = client.topic_partitions([partition.topic])[partition.topic]
    if partition.partition not in leaders:
        raise PartitionMissing(
            f"there is no {partition}: the topic has partitions 0 to {len(leaders) - 1}",
            next_step="correct the number of the partition",
        )
    return leaders[partition.partition]


def _ask_leaders(
    client: KafkaClient,
    partitions: Iterable[TopicPartition],
    time_ms: int,
    read_committed: bool,
    deadline: Deadline,
) -> list[tuple[TopicPartition, int, int]]:
    """Return ``(partition, error code, offset)`` of those whose leaders answered."""
    led: dict[int, list[TopicPartition]] = {}
    for partition in sorted(partitions):
        leader = existing_leader(client, partition)
        if leader != NO_LEADER:
            led.setdefault(leader, []).append(partition)
    requests = (
        (_list_offsets_request(group, time_ms, read_committed), node)
        for node, group in led.items()
    )
    answers = client.call_many(requests, max(1.0, deadline.remaining_ms))
    return [
        (TopicPartition(topic.name, found.partition_index), found.error_code, found.offset)
        for answer in answers
        for topic in answer.topics
        for found in topic.partitions
    ]


def _list_offsets_request(
    partitions: Iterable[TopicPartition], time_ms: int, read_committed: bool
) -> Any:
    kind = ListOffsetsRequest.ListOffsetsTopic
    topics = [
        kind(
            name=topic,
            partitions=[
                kind.ListOffsetsPartition(partition_index=p.partition, timestamp=time_ms)
                for p in group
            ],
        )
        for topic, group in groupby(partitions, key=lambda p: p.topic)
    ]
    return ListOffsetsRequest(
        isolation_level=int(read_committed),
        topics=topics,
        min_version=8 if time_ms == EARLIEST_LOCAL else 2,
        max_version=8 if time_ms == EARLIEST_LOCAL else 7,
    )


def committed_offsets(
    client: KafkaClient,
    group: str,
    *,
    partitions: Iterable[TopicPartition] | None = None,
    note: str = "",
    require_stable: bool = True,
    timeout_ms: int | None = None,
) -> dict[TopicPartition, int]:
    """Return every offset that ``group`` has committed; empty for a group that nobody knows.

    :param partitions: of these only. Whoever has to know of offsets that a transaction is about to
        commit names them: asked for all, brokers leave out what is pending for a partition that
        has none yet (``OffsetMetadataManager.fetchAllOffsets``; seen on 3.9.1 and 4.3.1), and
        there is nothing to wait for.
    :param note: only offsets whose metadata begin with it.
    :param require_stable: wait while a transaction is about to change them (KIP-447).
    :raises AccessDenied, BrokerUnreachable: the first names the group.
    """
    in_order = None if partitions is None else sorted(partitions)

    def send(left_ms: float) -> Any:
        kind = OffsetFetchRequest.OffsetFetchRequestGroup
        request = OffsetFetchRequest(
            group_id=group,
            topics=named(OffsetFetchRequest.OffsetFetchRequestTopic, in_order),
            groups=[kind(group_id=group, topics=named(kind.OffsetFetchRequestTopics, in_order))],
            require_stable=require_stable,
            min_version=7,
            max_version=8,
        )
        return client.call(
            request, client.coordinator(group, "group", timeout_ms=left_ms), left_ms
        )

    answer = asked(
        Api.OFFSET_FETCH,
        f"group {group}",
        send,
        lambda fetched: [
            _one_group(fetched).error_code,
            *(p.error_code for _, p in _offsets_in(fetched)),
        ],
        Deadline(timeout_ms or client.settings.request_timeout_ms),
        refresh=lambda: client.forget_coordinator(group, "group"),
        resources={Kind.GROUP: group},
    )
    return {
        partition: found.committed_offset
        for partition, found in _offsets_in(answer)
        if found.committed_offset != _NOTHING_COMMITTED and (found.metadata or "").startswith(note)
    }


def named(kind: Any, partitions: Sequence[TopicPartition] | None) -> list[Any] | None:
    """Return partitions as a request names them, by topic; None: all there are."""
    if partitions is None:
        return None
    return [
        kind(name=topic, partition_indexes=[p.partition for p in group])
        for topic, group in groupby(partitions, key=lambda p: p.topic)
    ]


def _one_group(answer: Any) -> Any:
    """Return the one group of an answer: versions from 8 on have a list of them (KIP-709)."""
    return answer.groups[0] if answer.groups else answer


def _offsets_in(answer: Any) -> list[tuple[TopicPartition, Any]]:
    return [
        (TopicPartition(topic.name, found.partition_index), found)
        for topic in _one_group(answer).topics
        for found in topic.partitions
    ]
