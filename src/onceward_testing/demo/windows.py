"""The scenario of the demo as it comes: people through windows, from Kafka into any sink."""

from __future__ import annotations

import random
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path

from onceward.formats.registry.client import SchemaRegistry
from onceward_testing.demo.audit import OutputFacts
from onceward_testing.demo.encodings import AsAvro, AsJson, Encoding, poisoned
from onceward_testing.demo.input_stream import InputStream
from onceward_testing.demo.outputs.kafka import KafkaOutput, create_topic
from onceward_testing.demo.outputs.output import OutputOfNumbers
from onceward_testing.demo.pace import Pace
from onceward_testing.demo.people import people
from onceward_testing.demo.scenario import Scenario
from onceward_testing.demo.screen import Screen
from onceward_testing.demo.settings import (
    INPUT_TOPIC,
    WATERMARK_DELAY_SECONDS,
    DemoSettings,
    JobSettings,
)
from onceward_testing.local_kafka import LocalKafka
from onceward_testing.local_registry import VERSION, LocalRegistry


class PeopleThroughWindows(Scenario):
    """See the module. The cluster is its caller's."""

    feed: InputStream
    _output: OutputOfNumbers
    _registry = ""

    def __enter__(self) -> PeopleThroughWindows:
        with ExitStack() as opened:
            registry = opened.enter_context(_registry(self._settings, self._screen))
            self._output = _output(self._settings, self._kafka)
            opened.enter_context(self._output)
            self._registry = "" if registry is None else registry.url
            create_topic(self._kafka.bootstrap_servers, INPUT_TOPIC)
            self._output.make()
            self.tail = self._output.tail()
            self.feed = _input_stream(
                self._settings, self._kafka.bootstrap_servers, self._registry
            )
            self._open = opened.pop_all()
        return self

    def job(self, folder: Path) -> JobSettings:
        return JobSettings(
            bootstrap_servers=self._kafka.bootstrap_servers,
            checkpoint=str(folder / "checkpoint"),
            folder=str(folder),
            delivery=self._settings.delivery,
            master=self._settings.master,
            window_seconds=self._settings.window_seconds,
            sink=self._settings.sink,
            address=self._output.address,
            registry=self._registry,
        )

    def _read(self) -> OutputFacts:
        return self._output.read(self.feed.expected, self.feed.poison)


def _registry(
    settings: DemoSettings, screen: Screen
) -> AbstractContextManager[LocalRegistry | None]:
    if not settings.avro:
        return nullcontext()
    screen.say(f"starting a schema registry, Apicurio {VERSION} (the first time it is fetched)")
    return LocalRegistry()


def _output(settings: DemoSettings, kafka: LocalKafka) -> OutputOfNumbers:
    if settings.sink == "postgres":
        from onceward_testing.demo.outputs.postgres import PostgresOutput  # needs its client

        return PostgresOutput(kafka.bootstrap_servers)
    if settings.sink == "mysql":
        from onceward_testing.demo.outputs.mysql import MySQLOutput  # needs its client

        return MySQLOutput(kafka.bootstrap_servers)
    if settings.sink == "files":
        from onceward_testing.demo.outputs.files import (
            FilesOutput,  # needs pyarrow, which a demo into Kafka does not read with
        )

        return FilesOutput()
    return KafkaOutput(kafka, dead_letters=settings.avro)


def _input_stream(settings: DemoSettings, servers: str, registry: str) -> InputStream:
    everybody = list(
        people(settings.records - 1, settings.seed)
    )  # the last record closes the windows
    encoding: Encoding = AsJson()
    if registry:
        chance = random.Random(settings.seed)  # noqa: S311  which are spoilt, no secret
        everybody = poisoned(everybody, settings.poison_per_thousand, chance.random)
        encoding = AsAvro(SchemaRegistry(registry), evolves_at=len(everybody) // 2)
    pace = Pace(len(everybody), settings.produce_seconds, settings.kills or 0)
    closing_delay_ms = (settings.window_seconds + WATERMARK_DELAY_SECONDS + 1) * 1_000
    return InputStream(servers, everybody, encoding, pace, closing_delay_ms)
