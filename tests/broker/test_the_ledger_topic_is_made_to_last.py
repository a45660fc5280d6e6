"""The topic that the first pipeline creates for the ledger: as many replicas as make sense, whatever the default."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from onceward.ids import PipelineId
from onceward.ledger.kafka_topic import LedgerTopic
from onceward.testing import LocalKafka
from onceward.wire.client import KafkaClient
from wire_fixtures import settings

pytestmark = pytest.mark.broker


@pytest.mark.parametrize(("cluster", "replicas", "in_sync"), [("kafka", 1, "1"), ("three_nodes", 3, "2")])
def test_replicas_do_not_depend_on_defaults(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, cluster: str, replicas: int, in_sync: str
) -> None:
    kafka: LocalKafka = request.getfixturevalue(cluster)
    client = KafkaClient(settings(kafka.bootstrap_servers)[0])
    topic = f"ledger-{uuid.uuid4().hex[:10]}"
    asked: list[dict[str, Any]] = []
    create: Callable[..., bool] = client.create_topic

    def noting(*args: Any, **named: Any) -> bool:
        asked.append(named)
        return create(*args, **named)

    monkeypatch.setattr(client, "create_topic", noting)
    LedgerTopic(client, topic, PipelineId("p")).ensure_topic()
    client.close()
    assert [named["replication"] for named in asked] == [replicas], "named, not left to default.replication.factor"
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    partitions = admin.list_topics(topic, timeout=30).topics[topic].partitions
    assert {len(p.replicas) for p in partitions.values()} == {replicas}
    wanted = ConfigResource(ResourceType.TOPIC, topic)
    config = admin.describe_configs([wanted])[wanted].result(30)
    assert config["min.insync.replicas"].value == in_sync
    assert not config["min.insync.replicas"].is_default
