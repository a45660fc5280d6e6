"""The topic that the first pipeline creates for the ledger: as many replicas as make sense,
whatever the default.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from onceward.errors import ConfigurationError
from onceward.ids import PipelineId
from onceward.kafka.ledger import topic as kafka_topic
from onceward.kafka.ledger.topic import LedgerTopic
from onceward.kafka.wire.client import KafkaClient
from onceward_testing import LocalKafka
from support.wire_fixtures import settings

pytestmark = pytest.mark.broker


@pytest.mark.parametrize(
    ("cluster", "replicas", "in_sync"), [("kafka", 1, "1"), ("three_nodes", 3, "2")]
)
def test_replicas_do_not_depend_on_defaults(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    cluster: str,
    replicas: int,
    in_sync: str,
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
    assert [named["replication"] for named in asked] == [replicas], (
        "named, not left to default.replication.factor"
    )
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    partitions = admin.list_topics(topic, timeout=30).topics[topic].partitions
    assert {len(p.replicas) for p in partitions.values()} == {replicas}
    wanted = ConfigResource(ResourceType.TOPIC, topic)
    config = admin.describe_configs([wanted])[wanted].result(30)
    assert config["min.insync.replicas"].value == in_sync
    assert not config["min.insync.replicas"].is_default


def test_a_cluster_that_refuses_a_wish_gets_the_topic_without_it(
    kafka: LocalKafka, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As Confluent Cloud does with small segments. What only saves time is not worth a pipeline
    that cannot start.
    """
    monkeypatch.setitem(kafka_topic._WISHES, "segment.bytes", ("1", str(50 << 20)))  # type: ignore[arg-type]
    monkeypatch.setitem(kafka_topic._WISHES, "min.cleanable.dirty.ratio", ("7",))  # type: ignore[arg-type]
    client = KafkaClient(settings(kafka.bootstrap_servers)[0])
    topic = f"ledger-{uuid.uuid4().hex[:10]}"
    LedgerTopic(client, topic, PipelineId("p")).ensure_topic()
    made = client.topic_config(topic)
    untouched = client.topic_config(f"{topic}-2") if client.create_topic(f"{topic}-2", 1) else {}
    client.close()
    ours = ("cleanup.policy", "segment.bytes", "max.message.bytes")
    assert [made[name] for name in ours] == ["compact", str(50 << 20), str(8 << 20)]
    assert made["min.cleanable.dirty.ratio"] == untouched["min.cleanable.dirty.ratio"]
    assert "segment.bytes: Value must be at least" in caplog.text, "the broker's own words"


def test_a_setting_that_is_refused_is_named_in_the_brokers_words(kafka: LocalKafka) -> None:
    client = KafkaClient(settings(kafka.bootstrap_servers)[0])
    with pytest.raises(ConfigurationError, match=r"INVALID_CONFIG.*retention\.ms.*at least -1"):
        client.create_topic(f"never-{uuid.uuid4().hex[:10]}", 1, configs={"retention.ms": "-7"})
    client.close()
