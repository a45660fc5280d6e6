"""Who reads an output topic, and with which isolation level, as far as brokers can know.

Called by ``onceward doctor --consumers``.

``isolation.level`` is a field of each ``Fetch``, and no group, member or offset tells of it.
Offsets that nobody who reads committed records comes to prove the opposite. It changes nothing.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from onceward.cli.doctor.checks import connected, reach, run_check
from onceward.cli.doctor.kinds import CheckResult, ok, warn
from onceward.ids import TopicPartition, topic_name
from onceward.kafka.wire.client import KafkaClient
from onceward.kafka.wire.groups import (
    CLASSIC,
    SHARE,
    ListedGroup,
    Member,
    group_members,
    list_groups,
    sees_all_groups,
)
from onceward.kafka.wire.reads.committed import is_inside_an_aborted_batch
from onceward.kafka.wire.reads.offsets import LATEST, committed_offsets, list_offsets

_SET_IT = "set isolation.level=read_committed in its consumers"
_BY_HAND = (
    "if its offsets were set by hand (kafka-consumer-groups --reset-offsets), look again once it "
    "has committed"
)
_LOOK = (
    "look at isolation.level in its consumers' configuration: where it is not set, the Java "
    "client, kafka-python and most others read uncommitted records, librdkafka (confluent-kafka) "
    "committed ones"
)
_SHARE_LEVEL = "share.isolation.level"


@dataclass(frozen=True)
class Reader:
    """One group, and what it has to do with the topics that are asked about."""

    group: ListedGroup
    offsets: Mapping[TopicPartition, int]
    members: Sequence[Member]

    def reads(self, topic: str) -> bool:
        """Return whether it has offsets of ``topic``, or a member with a partition of it."""
        return any(p.topic == topic for p in self.offsets) or any(
            topic in member.topics for member in self.members
        )


def check_consumers(
    servers: str, command_config: Path | None, topics: Sequence[str]
) -> list[CheckResult]:
    """Return a finding for each group that reads ``topics``, and for what could not be looked at.

    Fails only where reading of uncommitted records is proved. Needs Describe on the cluster or on
    each group, and Describe and Read on the topics; what is denied becomes a warning.

    :raises ConfigurationError: the settings themselves are wrong.
    """
    names = [topic_name(name, "--topic") for name in topics]
    client, _ = connected(servers, command_config)
    with closing(client):
        reached = reach(client)
        return [reached] if reached.status != "ok" else [reached, *_findings(client, names)]


def _findings(client: KafkaClient, topics: Sequence[str]) -> list[CheckResult]:
    groups: list[ListedGroup] = []
    found: list[CheckResult] = []

    def listed() -> CheckResult:
        groups.extend(list_groups(client))
        if sees_all_groups(client):
            return ok(
                f"{len(groups)} groups; who reads without a group (as Spark does) is not known to "
                "brokers"
            )
        return warn(
            f"{len(groups)} groups that this principal may describe; brokers do not tell of "
            "others",
            "grant it Describe on the cluster to be shown every group",
        )

    found.append(run_check(listed))
    readers: list[Reader] = []
    for group in groups:
        if group.kind == SHARE:
            found.append(run_check(partial(_share_group, client, group)))
        elif group.has_offsets:
            result = run_check(partial(_reader, client, group, readers))
            found += [result] if result.status != "ok" else []
    for topic in topics:
        there = run_check(partial(_is_there, client, topic))
        if there.status != "ok":
            found.append(there)
            continue
        reading = [reader for reader in readers if reader.reads(topic)]
        if not reading:
            found.append(
                ok(
                    f"topic {topic}: no consumer group with offsets of it, or members assigned to "
                    "it"
                )
            )
        found += [run_check(partial(_offsets_result, client, r, topic)) for r in reading]
    return found


def _is_there(client: KafkaClient, topic: str) -> CheckResult:
    return ok(f"topic {topic}: {len(client.topic_partitions([topic])[topic])} partitions")


def _reader(client: KafkaClient, group: ListedGroup, readers: list[Reader]) -> CheckResult:
    offsets = committed_offsets(client, group.name, require_stable=False)
    members = group_members(client, group) if group.kind == CLASSIC else ()
    readers.append(Reader(group, offsets, members))
    return ok(f"consumer group {group.name}")


def _offsets_result(client: KafkaClient, reader: Reader, topic: str) -> CheckResult:
    """Return what offsets prove: asked for before, and the last stable offset only grows."""
    here = {
        partition: offset
        for partition, offset in reader.offsets.items()
        if partition.topic == topic
    }
    name = f"consumer group {reader.group.name}"
    stable = list_offsets(client, here, LATEST, read_committed=True) if here else {}
    beyond = [
        f"{offset} of {p} (stable up to {stable[p]})"
        for p, offset in sorted(here.items())
        if offset > stable[p]
    ]
    if beyond:
        return CheckResult(
            "fail",
            f"{name} reads uncommitted records of {topic}: it has committed offsets beyond the "
            f"last stable one, {', '.join(beyond)}, while a transaction is open there that nobody "
            "with read_committed is shown",
            f"{_SET_IT}; {_BY_HAND}",
        )
    inside = [
        f"{offset} of {p}"
        for p, offset in sorted(here.items())
        if is_inside_an_aborted_batch(client, p, offset)
    ]
    if inside:
        return warn(
            f"{name} seems to read uncommitted records of {topic}: its offset {', '.join(inside)} "
            "stands between two records of an aborted transaction, which nobody with "
            "read_committed is given",
            f"{_SET_IT}; {_BY_HAND}",
        )
    return warn(
        f"{name} reads {topic} ({_who(reader, topic, here)}): its isolation level cannot be told",
        _LOOK,
    )


def _who(reader: Reader, topic: str, here: Mapping[TopicPartition, int]) -> str:
    offsets = f"offsets of {len(here)} partitions"
    if reader.group.kind != CLASSIC:
        return f"{offsets}; members of groups of type {reader.group.kind!r} are not looked at"
    mine = sorted(
        f"{member.client_id} at {member.host}"
        for member in reader.members
        if topic in member.topics
    )
    return f"{offsets}; {', '.join(mine) or 'no member now'}"


def _share_group(client: KafkaClient, group: ListedGroup) -> CheckResult:
    """Report a share group, whose level brokers keep (KIP-932); topics are not looked at."""
    level = client.describe_config("group", group.name).get(_SHARE_LEVEL) or "read_uncommitted"
    text = (
        f"share group {group.name} has {_SHARE_LEVEL}={level}; which topics it reads is not "
        "looked at"
    )
    if level == "read_committed":
        return ok(text)
    return warn(
        text,
        "if it reads one of these topics: kafka-configs --bootstrap-server "
        f"{','.join(client.settings.bootstrap_servers)} --alter --entity-type groups "
        f"--entity-name {shlex.quote(group.name)} --add-config {_SHARE_LEVEL}=read_committed",
    )
