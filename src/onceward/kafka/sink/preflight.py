"""What can be known to go wrong before the first record is sent. Driver only; called by
:mod:`target` once a run.

The transaction timeout is not here: the coordinator checks it against
``transaction.max.timeout.ms`` when the producer id is taken
(``kafka.wire.transactions.transaction``), and the ledger topic looks after itself
(``ledger.topic``).
"""

from __future__ import annotations

import logging

from pyspark import SparkContext

from onceward.errors import TopicMissing
from onceward.kafka.sink.settings import KafkaSinkSettings
from onceward.kafka.wire.client import KafkaClient

log = logging.getLogger(__name__)


def check_topic(client: KafkaClient, settings: KafkaSinkSettings, topic: str | None) -> None:
    """``topic`` exists, or is created if it is one of the sink's own and the sink was told to.
    None: the rows will say.

    :raises TopicMissing: naming the topic and both ways to get it.
    :raises BrokerUnreachable, AuthenticationFailed, AccessDenied: naming servers, mechanism or
        resource.
    """
    if topic is None:
        return
    try:
        client.topic_partitions([topic])
    except TopicMissing:
        own = (settings.topic, settings.dead_letter_topic)
        if settings.create_topic_partitions is None or topic not in own:
            raise TopicMissing(
                f"topic {topic!r} does not exist on "
                f"{', '.join(settings.client.bootstrap_servers)}",
                next_step="create it (kafka-topics --create), or build the sink with "
                "create_topic_partitions=N",
                details={"topic": topic},
            ) from None
        log.info("creating topic %s with %d partitions", topic, settings.create_topic_partitions)
        client.create_topic(topic, settings.create_topic_partitions)


def sequencer_hosts(context: SparkContext, settings: KafkaSinkSettings) -> tuple[str, str]:
    """Where the sequencer listens, and the name under which executors reach it.

    Like Spark's own driver ports: it listens on ``spark.driver.bindAddress`` (default:
    ``spark.driver.host``), and executors connect to ``spark.driver.host`` unless
    ``sequencer_host`` says otherwise. In local mode everything is in one machine, and the loopback
    interface is enough.
    """
    if (context.master or "").startswith("local[") or context.master == "local":
        return "127.0.0.1", settings.sequencer_host or "127.0.0.1"
    conf = context.getConf()
    driver = conf.get("spark.driver.host") or "127.0.0.1"
    bind = conf.get("spark.driver.bindAddress") or driver
    if settings.sequencer_host is not None and conf.get("spark.driver.bindAddress") is None:
        bind = "::" if ":" in driver else "0.0.0.0"  # noqa: S104 — the name given is not ours to bind; every connection must show the token
    return bind, settings.sequencer_host or driver
