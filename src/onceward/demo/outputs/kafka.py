"""A topic, on the cluster that the input comes from."""

from __future__ import annotations

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from onceward.demo.audit import CheckerFacts, OutputFacts, ask
from onceward.demo.outputs.kafka_tail import KafkaTail
from onceward.demo.outputs.output import Output
from onceward.demo.settings import OUTPUT_TOPIC, PARTITIONS, PIPELINE_ID
from onceward.testing.local_kafka import LocalKafka
from onceward.testing.topic_reader import read_topic
from onceward.testing.verdict import exactly_once

_CREATE_SECONDS = 60


class KafkaOutput(Output):
    """See the module. The cluster is its caller's."""

    reader = "a read_committed reader"

    def __init__(self, kafka: LocalKafka) -> None:
        self._kafka = kafka

    def __exit__(self, *_: object) -> None:
        """The cluster lives on."""

    def make(self) -> None:
        create_topic(self._kafka.bootstrap_servers, OUTPUT_TOPIC)

    def tail(self) -> KafkaTail:
        return KafkaTail(self._kafka.bootstrap_servers)

    def read(self, expected: set[str]) -> OutputFacts:
        """Read twice, committed and uncommitted."""
        committed = read_topic(self._kafka.bootstrap_servers, OUTPUT_TOPIC, "read_committed")
        uncommitted = read_topic(self._kafka.bootstrap_servers, OUTPUT_TOPIC, "read_uncommitted")
        verdict = exactly_once(expected, [(record.key or b"").decode() for record in committed])
        return OutputFacts(verdict, aborted_records_hidden=len(uncommitted) - len(committed))

    def ask_the_checker(self) -> CheckerFacts:
        """Is it exactly once, at the end of its source, and does every record on the brokers' disks say so?"""
        folders = [part for node in self._kafka.nodes for part in ("--log-dirs", str(node.data_folder))]
        where = ["--bootstrap-servers", self._kafka.bootstrap_servers, "--topic", OUTPUT_TOPIC]
        return ask("--pipeline-id", PIPELINE_ID, *where, "--expect-caught-up", *folders)


def create_topic(bootstrap_servers: str, topic: str) -> None:
    """A new topic with the demo's number of partitions; returns when it is there."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 3})
    created = admin.create_topics([NewTopic(topic, PARTITIONS)], request_timeout=_CREATE_SECONDS)
    for answer in created.values():
        answer.result(_CREATE_SECONDS)
