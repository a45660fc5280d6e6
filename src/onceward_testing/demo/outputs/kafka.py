"""A topic, on the cluster that the input comes from."""

from __future__ import annotations

from collections.abc import Sequence

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from onceward_testing.demo.audit import CheckerFacts, OutputFacts, ask
from onceward_testing.demo.outputs.kafka_tail import KafkaTail
from onceward_testing.demo.outputs.output import OutputOfNumbers
from onceward_testing.demo.settings import DEAD_LETTER_TOPIC, OUTPUT_TOPIC, PARTITIONS, PIPELINE_ID
from onceward_testing.local_kafka import LocalKafka
from onceward_testing.topic_reader import read_topic
from onceward_testing.verdict import Verdict, exactly_once

_CREATE_SECONDS = 60


class KafkaOutput(OutputOfNumbers):
    """See the module. The cluster is its caller's. ``dead_letters``: there is a topic for them."""

    reader = "a read_committed reader"

    def __init__(self, kafka: LocalKafka, *, dead_letters: bool) -> None:
        self._kafka = kafka
        self._topics = [OUTPUT_TOPIC, DEAD_LETTER_TOPIC] if dead_letters else [OUTPUT_TOPIC]

    def __exit__(self, *_: object) -> None:
        """The cluster lives on."""

    def make(self) -> None:
        for topic in self._topics:
            create_topic(self._kafka.bootstrap_servers, topic)

    def tail(self) -> KafkaTail:
        return KafkaTail(self._kafka.bootstrap_servers)

    def read(self, expected: set[str], poison: Sequence[bytes]) -> OutputFacts:
        """Read twice, committed and uncommitted."""
        committed = read_topic(self._kafka.bootstrap_servers, OUTPUT_TOPIC, "read_committed")
        uncommitted = read_topic(self._kafka.bootstrap_servers, OUTPUT_TOPIC, "read_uncommitted")
        verdict = exactly_once(expected, [(record.key or b"").decode() for record in committed])
        letters: Verdict[bytes] | None = None
        if DEAD_LETTER_TOPIC in self._topics:
            read = read_topic(self._kafka.bootstrap_servers, DEAD_LETTER_TOPIC, "read_committed")
            letters = exactly_once(
                set(poison),
                [(record.key or b"") + b":" + (record.value or b"") for record in read],
            )
        return OutputFacts(verdict, len(uncommitted) - len(committed), letters)

    def ask_the_checker(self) -> CheckerFacts:
        return ask_about_topics(self._kafka, PIPELINE_ID, self._topics, "--expect-caught-up")


def ask_about_topics(
    kafka: LocalKafka, pipeline_id: str, topics: Sequence[str], *expectations: str
) -> CheckerFacts:
    """Is it exactly once, as far as is expected, and does every record on the brokers' disks say
    so?
    """
    folders = [part for node in kafka.nodes for part in ("--log-dirs", str(node.data_folder))]
    options = [part for topic in topics for part in ("--topic", topic)]
    where = ["--bootstrap-servers", kafka.bootstrap_servers, *options]
    return ask("--pipeline-id", pipeline_id, *where, *expectations, *folders)


def create_topic(bootstrap_servers: str, topic: str, config: dict[str, str] | None = None) -> None:
    """A new topic with the demo's number of partitions; returns when it is there."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 3})
    created = admin.create_topics(
        [NewTopic(topic, PARTITIONS, config=config or {})], request_timeout=_CREATE_SECONDS
    )
    for answer in created.values():
        answer.result(_CREATE_SECONDS)
