"""Topics and settings: create a topic, read what a topic or a broker is configured to. The part of
``kafka.wire.client`` that preflight checks need (driver)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from typing import Any, Literal

from kafka.protocol.admin import CreateTopicsRequest, DescribeConfigsRequest
from kafka.protocol.metadata import MetadataRequest

from onceward.kafka.wire.acls import Kind
from onceward.kafka.wire.conversation import Answered, Code, Resources, asked
from onceward.kafka.wire.deadline import Deadline
from onceward.kafka.wire.error_table import Api
from onceward.kafka.wire.kafka_python import NodeId
from onceward.kafka.wire.options.settings import ClientSettings

# org.apache.kafka.common.config.ConfigResource.Type
_RESOURCE_TYPES = {"topic": 2, "broker": 4, "group": 32}
_TOPIC_ALREADY_EXISTS = 36


def metadata_request(topics: Sequence[str] | None) -> Any:
    """Build a request for ``topics``; None: all of them, an empty list means none."""
    entries = [MetadataRequest.MetadataRequestTopic(name=topic) for topic in topics or ()]
    return MetadataRequest(
        topics=None if topics is None else entries,
        allow_auto_topic_creation=False,
        min_version=4,
        max_version=12,
    )


class TopicAdmin(ABC):
    """Topics and settings of a cluster, by a client that sends."""

    settings: ClientSettings

    @abstractmethod
    def call(self, request: Any, node_id: int | str, timeout_ms: float | None = None) -> Any: ...
    @abstractmethod
    def call_any(self, request: Any, timeout_ms: float | None = None, *, turn: int = 0) -> Any: ...
    @abstractmethod
    def call_one_of(
        self, nodes: Sequence[NodeId], request_to: Callable[[NodeId], Any], timeout_ms: float
    ) -> Any: ...
    @abstractmethod
    def forget_leaders(self, topics: Iterable[str]) -> None: ...
    @abstractmethod
    def brokers(self) -> list[int]: ...

    def ask(
        self,
        api: Api,
        subject: str,
        build: Callable[[], Any],
        codes: Callable[[Any], Iterable[Code]],
        *,
        node_id: int | None = None,
        timeout_ms: float | None = None,
        resources: Resources | None = None,
    ) -> Any:
        """Ask one broker, or whichever answers (None), as :func:`asked` does: each time another
        one first, for a broker that is cut off from the controllers may never do."""
        turns = count()

        def send(left_ms: float) -> Any:
            if node_id is None:
                return self.call_any(build(), left_ms, turn=next(turns))
            return self.call(build(), node_id, left_ms)

        deadline = Deadline(timeout_ms or self.settings.request_timeout_ms)
        return asked(api, subject, send, codes, deadline, resources=resources)

    def topic_names(self) -> list[str]:
        """Return every topic that may be described, but Kafka's own (``__consumer_offsets``). What
        may not is left out silently, as brokers do (``MetadataRequest`` for all topics); one
        without a leader somewhere is listed. :raises BrokerUnreachable: …"""
        # So that a cluster that never answered is named
        self.brokers()
        answer = self.ask(
            Api.METADATA,
            "the list of topics",
            lambda: metadata_request(None),
            lambda listed: [getattr(listed, "error_code", 0) or 0],
        )
        return sorted(topic.name for topic in answer.topics if not topic.is_internal)

    def create_topic(
        self,
        name: str,
        partitions: int,
        replication: int = -1,
        configs: Mapping[str, str] | None = None,
        *,
        validate_only: bool = False,
    ) -> bool:
        """Create a topic (replication -1: the broker's default); False if it was there already,
        perhaps by a broker that was asked first and has not answered. Brokers forward the request
        to the controller (KIP-590).

        :param validate_only: only ask whether it would be created so.
        :raises ConfigurationError, AccessDenied: a setting that the cluster, or its policy,
            refuses; in its words.
        """
        kind = CreateTopicsRequest.CreatableTopic
        topic = kind(
            name=name,
            num_partitions=partitions,
            replication_factor=replication,
            configs=[
                kind.CreatableTopicConfig(name=key, value=value)
                for key, value in (configs or {}).items()
            ],
        )
        answer = self.ask(
            Api.CREATE_TOPICS,
            f"topic {name}",
            lambda: CreateTopicsRequest(
                topics=[topic],
                timeout_ms=self.settings.request_timeout_ms,
                validate_only=validate_only,
                min_version=4,
            ),
            lambda made: [Answered(t.error_code, t.name, t.error_message) for t in made.topics],
            resources={Kind.TOPIC: name},
        )
        self.forget_leaders([name])
        return bool(answer.topics[0].error_code != _TOPIC_ALREADY_EXISTS)

    def topic_config(self, topic: str, *, timeout_ms: int | None = None) -> dict[str, str | None]:
        """Return every setting of ``topic``, defaults included; secrets are None."""
        return self.describe_config("topic", topic, timeout_ms=timeout_ms)

    def describe_config(
        self,
        kind: Literal["topic", "broker", "group"],
        name: str,
        *,
        timeout_ms: int | None = None,
    ) -> dict[str, str | None]:
        """Return every setting of one topic, broker or group. A broker's are asked of that broker,
        which alone knows its static ones."""
        answer = self.ask(
            Api.DESCRIBE_CONFIGS,
            f"{kind} {name}",
            lambda: _configs_request(kind, name),
            _described_codes,
            node_id=int(name) if kind == "broker" else None,
            timeout_ms=timeout_ms,
            resources={} if kind == "broker" else {Kind(kind): name},
        )
        return _configs(answer)

    def broker_config(
        self, node_id: int | None = None, *, timeout_ms: int | None = None
    ) -> dict[str, str | None]:
        """Return every setting of a broker; if none is named, of the first one that answers, since
        another may be away, within ``timeout_ms`` for all of them; None: ``request.timeout.ms``.
        """
        if node_id is not None:
            return self.describe_config("broker", str(node_id), timeout_ms=timeout_ms)
        nodes = self.brokers()
        answer = asked(
            Api.DESCRIBE_CONFIGS,
            "any broker",
            lambda left_ms: self.call_one_of(
                nodes, lambda node: _configs_request("broker", str(node)), left_ms
            ),
            _described_codes,
            Deadline(timeout_ms or self.settings.request_timeout_ms),
        )
        return _configs(answer)


def _configs_request(kind: str, name: str) -> Any:
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=_RESOURCE_TYPES[kind], resource_name=name, configuration_keys=None
    )
    return DescribeConfigsRequest(resources=[resource], min_version=1)


def _described_codes(described: Any) -> list[Code]:
    return [Answered(each.error_code, words=each.error_message) for each in described.results]


def _configs(described: Any) -> dict[str, str | None]:
    return {config.name: config.value for config in described.results[0].configs}
