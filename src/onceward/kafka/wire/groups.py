"""Consumer groups as brokers know them: which there are, who is in them, and what of. Called by
``onceward doctor``. Reads only. Committed offsets are in :mod:`onceward.kafka.wire.reads.offsets`.
Members of the newer kinds of groups (KIP-848, share groups) have requests of their own, which this
client does not speak."""

from __future__ import annotations

from dataclasses import dataclass

from kafka.protocol.admin import DescribeClusterRequest, DescribeGroupsRequest, ListGroupsRequest
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment

from onceward.errors import AccessDenied, UnsupportedBroker
from onceward.kafka.wire.acls import Kind
from onceward.kafka.wire.client import KafkaClient
from onceward.kafka.wire.conversation import Answered, asked
from onceward.kafka.wire.deadline import Deadline
from onceward.kafka.wire.error_table import Api

CLASSIC, CONSUMER, SHARE, STREAMS = "classic", "consumer", "share", "streams"
"""``Group.GroupType`` (KIP-848, KIP-932, KIP-1071); brokers before 3.8 have the first alone and do
not say so."""
_CONSUMERS = ("", "consumer")
_GROUP_ID_NOT_FOUND = 69
_DESCRIBE = 8  # AclOperation.DESCRIBE


@dataclass(frozen=True, slots=True)
class ListedGroup:
    """``kind`` is one of the names above."""

    name: str
    kind: str
    protocol: str

    @property
    def has_offsets(self) -> bool:
        """Return whether it can have committed offsets, as consumers do. Connect's groups and
        those of share consumers have none."""
        return self.kind in (CONSUMER, STREAMS) or (
            self.kind == CLASSIC and self.protocol in _CONSUMERS
        )


@dataclass(frozen=True, slots=True)
class Member:
    """One consumer: what it calls itself, from where, and the topics of its partitions."""

    client_id: str
    host: str
    topics: frozenset[str]


def list_groups(client: KafkaClient) -> list[ListedGroup]:
    """Return every group that this principal may describe; each broker lists those it coordinates.
    :raises BrokerUnreachable: a broker does not answer, so that its groups are not known."""
    found: dict[str, ListedGroup] = {}
    for node in client.brokers():
        answer = client.ask(
            Api.LIST_GROUPS,
            f"broker {node}",
            lambda: ListGroupsRequest(min_version=0, max_version=5),
            lambda listed: [listed.error_code],
            node_id=node,
        )
        for group in answer.groups:
            kind = (getattr(group, "group_type", None) or CLASSIC).lower()
            found[group.group_id] = ListedGroup(group.group_id, kind, group.protocol_type)
    return [found[name] for name in sorted(found)]


def sees_all_groups(client: KafkaClient) -> bool:
    """Return whether this principal may ``Describe`` the cluster, and is therefore shown every
    group. Others are left out silently (``KafkaApis.handleListGroupsRequest``)."""
    try:
        answer = client.ask(
            Api.METADATA,
            "the cluster",
            lambda: DescribeClusterRequest(
                include_cluster_authorized_operations=True, min_version=0
            ),
            lambda answer: [Answered(answer.error_code, words=answer.error_message)],
        )
    except (AccessDenied, UnsupportedBroker):
        # The request is Kafka's since 2.8 (KIP-700)
        return False
    return _DESCRIBE in (answer.authorized_operations or ())


def group_members(client: KafkaClient, group: ListedGroup) -> list[Member]:
    """Return the members of a classic group of consumers; none of a group that has just gone.
    :raises AccessDenied, BrokerUnreachable: the first names the group."""
    name = group.name
    answer = asked(
        Api.DESCRIBE_GROUPS,
        f"group {name}",
        lambda left_ms: client.call(
            DescribeGroupsRequest(groups=[name], min_version=0, max_version=5),
            client.coordinator(name, "group", timeout_ms=left_ms),
            left_ms,
        ),
        lambda answer: [
            g.error_code for g in answer.groups if g.error_code != _GROUP_ID_NOT_FOUND
        ],
        Deadline(client.settings.request_timeout_ms),
        refresh=lambda: client.forget_coordinator(name, "group"),
        resources={Kind.GROUP: name},
    )
    return [
        Member(
            member.client_id, member.client_host.lstrip("/"), _assigned(member.member_assignment)
        )
        for described in answer.groups
        for member in described.members
    ]


def _assigned(assignment: bytes) -> frozenset[str]:
    """Return topics of ``ConsumerProtocolAssignment``; of none while the group is rebalancing."""
    if not assignment:
        return frozenset()
    decoded = ConsumerProtocolAssignment.decode(assignment)
    return frozenset(topic.topic for topic in decoded.assigned_partitions)
