"""What users test their own pipelines with: a real broker, fault points and verdicts.

:class:`LocalKafka` starts an Apache Kafka for the length of a test; with pytest the fixture ``local_kafka`` is there
as soon as Onceward is installed (:mod:`onceward.testing.pytest_plugin`).
"""

from onceward.testing.kafka_node import KafkaNode
from onceward.testing.local_kafka import LocalKafka

__all__ = ["KafkaNode", "LocalKafka"]
