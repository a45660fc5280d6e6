"""Tools to test pipelines with: a real broker, fault points and verdicts.

:class:`LocalKafka` starts an Apache Kafka for the length of a test; with pytest the fixture
``local_kafka`` is there as soon as Onceward is installed (:mod:`onceward_testing.pytest_plugin`).
:class:`LocalPostgres` is a real PostgreSQL, :class:`LocalMySQL` a real MySQL or MariaDB,
:class:`LocalRedis` a real Redis (fixture ``local_redis``), :class:`LocalOpenSearch` a real
OpenSearch, :class:`LocalS3` a real S3 store, :class:`LocalRegistry` a real schema registry.
:mod:`onceward_testing.sink_contract` is the suite for a sink of your own.
:func:`arm_from_environment` lets a test kill a job at an exact step
(:mod:`onceward_testing.faults`); :class:`KafkaProxy` (``LocalKafka(proxied=True)``) loses, delays
and holds single requests between clients and brokers. :func:`read_topic` and :func:`exactly_once`
tell the outcome.
"""

from onceward_testing.faults import arm_from_environment, fired_faults
from onceward_testing.kafka_node import KafkaNode
from onceward_testing.local_kafka import LocalKafka
from onceward_testing.local_mysql import LocalMySQL
from onceward_testing.local_opensearch import LocalOpenSearch
from onceward_testing.local_postgres import LocalPostgres
from onceward_testing.local_redis import LocalRedis
from onceward_testing.local_registry import LocalRegistry
from onceward_testing.local_s3 import LocalS3, s3a_jars
from onceward_testing.proxy import KafkaProxy, ProxyFault
from onceward_testing.topic_reader import ReadRecord, read_topic
from onceward_testing.verdict import Verdict, exactly_once

__all__ = [
    "KafkaNode",
    "KafkaProxy",
    "LocalKafka",
    "LocalMySQL",
    "LocalOpenSearch",
    "LocalPostgres",
    "LocalRedis",
    "LocalRegistry",
    "LocalS3",
    "ProxyFault",
    "ReadRecord",
    "Verdict",
    "arm_from_environment",
    "exactly_once",
    "fired_faults",
    "read_topic",
    "s3a_jars",
]
