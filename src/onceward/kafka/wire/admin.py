"""Topics and settings: create a topic, read what a topic or a broker is configured to.

Called by ``kafka.wire.client`` on behalf of preflight checks (driver).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol

from kafka.protocol.admin import CreateTopicsRequest, DescribeConfigsRequest
from kafka.protocol.metadata import MetadataRequest

from onceward.errors import AccessDenied, OncewardError
from onceward.kafka.wire.acls import Kind
from onceward.kafka.wire.conversation import Answered, asked
from onceward.kafka.wire.deadline import Deadline
from onceward.kafka.wire.error_table import Api
from onceward.kafka.wire.options.settings import ClientSettings

# org.apache.kafka.common.config.ConfigResource.Type
_RESOURCE_TYPES = {
    "topic": 2,
    "broker": 4,
    "group": 32,
}
_KINDS = {"topic": Kind.TOPIC, "group": Kind.GROUP}
_TOPIC_ALREADY_EXISTS = 36


class Caller(Protocol):
    """What is needed of :class:`~onceward.kafka.wire.client.KafkaClient`, which has the words."""

    settings: ClientSettings

    def call(self, request: Any, node_id: int | str, timeout_ms: float | None = None) -> Any: ...
    def call_any(self, request: Any, timeout_ms: float | None = None) -> Any: ...
    def forget_leaders(self, topics: Iterable[str]) -> None: ...


def metadata_request(topics: Sequence[str] | None) -> Any:
    """Build a request for ``topics``; None: all of them, an empty list means none."""
    entries = [MetadataRequest.MetadataRequestTopic(name=topic) for topic in topics or ()]
    return MetadataRequest(
        topics=None if topics is None else entries,
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
        min_version=4,
        max_version=12,
    )


def topic_names(client: Caller) -> list[str]:
    """Return the topics that this principal may describe, without Kafka's internal ones. See
    :meth:`KafkaClient.topic_names`.

    A topic without a leader somewhere is listed all the same (``MetadataResponse``: errors stand
    with each topic).
    """
    request_timeout_ms = client.settings.request_timeout_ms
    answer = asked(
        Api.METADATA,
        "the list of topics",
        lambda left_ms: client.call_any(metadata_request(None), left_ms),
        lambda listed: [getattr(listed, "error_code", 0) or 0],
        Deadline(request_timeout_ms),
    )
    return sorted(topic.name for topic in answer.topics if not topic.is_internal)


def create_topic(
    client: Caller,
    name: str,
    partitions: int,
    replication: int,
    configs: Mapping[str, str],
    *,
    validate_only: bool,
) -> bool:
    """Create a topic, as :meth:`KafkaClient.create_topic` says. Brokers forward the request to the
    controller (KIP-590).
    """
    topic = CreateTopicsRequest.CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replication,
        assignments=[],
        configs=[
            CreateTopicsRequest.CreatableTopic.CreatableTopicConfig(name=key, value=value)
            for key, value in configs.items()
        ],
    )
    timeout_ms = client.settings.request_timeout_ms
    answer = asked(
        Api.CREATE_TOPICS,
        f"topic {name}",
        lambda left_ms: client.call_any(
            CreateTopicsRequest(
                topics=[topic], timeout_ms=timeout_ms, validate_only=validate_only, min_version=4
            ),
            left_ms,
        ),
        lambda created: [Answered(t.error_code, t.name, t.error_message) for t in created.topics],
        Deadline(timeout_ms),
        resources={Kind.TOPIC: name},
    )
    client.forget_leaders([name])
    return bool(answer.topics[0].error_code != _TOPIC_ALREADY_EXISTS)


def describe_config(
    client: Caller,
    kind: Literal["topic", "broker", "group"],
    name: str,
    *,
    timeout_ms: int | None = None,
) -> dict[str, str | None]:
    """Return every setting of one topic or broker. A broker's are asked of that broker, which
    alone knows its static ones.
    """

    def send(left_ms: float) -> Any:
        resource = DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=_RESOURCE_TYPES[kind], resource_name=name, configuration_keys=None
        )
        request = DescribeConfigsRequest(resources=[resource], min_version=1)
        return (
            client.call(request, int(name), left_ms)
            if kind == "broker"
            else client.call_any(request, left_ms)
        )

    answer = asked(
        Api.DESCRIBE_CONFIGS,
        f"{kind} {name}",
        send,
        lambda described: [
            Answered(each.error_code, words=each.error_message) for each in described.results
        ],
        Deadline(timeout_ms or client.settings.request_timeout_ms),
        resources={_KINDS[kind]: name} if kind in _KINDS else {},
    )
    return {config.name: config.value for config in answer.results[0].configs}


def broker_config(
    client: Caller, nodes: Sequence[int], *, timeout_ms: int | None = None
) -> dict[str, str | None]:
    """Return every setting of the first of ``nodes`` that answers, since another may be away,
    within ``timeout_ms`` for all of them; None: ``request.timeout.ms``."""
    each_ms = (timeout_ms or client.settings.request_timeout_ms) // len(nodes)
    for node in nodes[:-1]:
        try:
            return describe_config(client, "broker", str(node), timeout_ms=each_ms)
        except OncewardError as error:  # noqa: PERF203
            if isinstance(error, AccessDenied):
                raise
    return describe_config(client, "broker", str(nodes[-1]), timeout_ms=each_ms)
