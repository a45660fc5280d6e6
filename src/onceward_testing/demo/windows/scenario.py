"""The scenario that the demo shows by default: people through windows, from Kafka into any
sink."""

from __future__ import annotations

import random

from onceward.formats.registry.client import SchemaRegistry
from onceward_testing.demo.input import Pace
from onceward_testing.demo.outputs import (
    DatabaseOutput,
    DemoOutput,
    FilesOutput,
    KafkaOutput,
    create_topic,
)
from onceward_testing.demo.report import OutputFacts
from onceward_testing.demo.scenario import Scenario
from onceward_testing.demo.settings import (
    DEAD_LETTER_TOPIC,
    INPUT_TOPIC,
    OUTPUT_TABLE,
    OUTPUT_TOPIC,
    PIPELINE_ID,
    WATERMARK_DELAY_SECONDS,
)
from onceward_testing.demo.windows.input import PeopleInput
from onceward_testing.demo.windows.people import (
    Encode,
    avro_encoder,
    people,
    to_json,
    with_defects,
)
from onceward_testing.local_mysql import LocalMySQL
from onceward_testing.local_postgres import LocalPostgres
from onceward_testing.local_registry import VERSION, LocalRegistry
from onceward_testing.verdict import exactly_once

# Nothing in the table is unique: a row that comes twice is to be seen, not refused.
_CREATE = (
    f"CREATE TABLE {OUTPUT_TABLE} (number text NOT NULL, id bigint, name text, "
    "from_time {instant} NOT NULL, to_time {instant} NOT NULL)"
)


class WindowsScenario(Scenario):
    """Writes people into a topic; the job writes each valid number once."""

    input: PeopleInput

    def _prepare(self) -> None:
        settings, servers = self._settings, self._kafka.bootstrap_servers
        registry = ""
        if settings.avro:
            self._screen.say(
                f"starting a schema registry, Apicurio {VERSION} (the first time it is fetched)"
            )
            registry = self._stack.enter_context(LocalRegistry()).url
        self.output = self._stack.enter_context(self._open_output())
        create_topic(servers, INPUT_TOPIC)
        self.output.make()
        self.input = self._make_input(registry)
        self._job_options = {"window_seconds": settings.window_seconds, "registry": registry}

    def _make_input(self, registry: str) -> PeopleInput:
        settings = self._settings
        everybody = list(
            people(settings.records - 1, settings.seed)
        )  # the last record closes the windows
        encode: Encode = to_json
        if registry:
            rng = random.Random(settings.seed)  # noqa: S311  which are invalid, no secret
            everybody = with_defects(everybody, settings.invalid_per_thousand, rng.random)
            encode = avro_encoder(SchemaRegistry(registry), evolves_at=len(everybody) // 2)
        pace = Pace(len(everybody), settings.produce_seconds, settings.kills or 0)
        closing_delay_ms = (settings.window_seconds + WATERMARK_DELAY_SECONDS + 1) * 1_000
        return PeopleInput(
            self._kafka.bootstrap_servers, everybody, encode, pace, closing_delay_ms
        )

    def _open_output(self) -> DemoOutput:
        caught_up = "--expect-caught-up"
        if self._settings.sink in ("postgres", "mysql"):
            postgres = self._settings.sink == "postgres"
            server = LocalPostgres() if postgres else LocalMySQL()
            create = _CREATE.format(instant="timestamptz" if postgres else "timestamp(6)")
            return DatabaseOutput(
                server, self._kafka, PIPELINE_ID, OUTPUT_TABLE, create, caught_up
            )
        if self._settings.sink == "files":
            return FilesOutput(PIPELINE_ID, [caught_up])
        topics = [OUTPUT_TOPIC, DEAD_LETTER_TOPIC] if self._settings.avro else [OUTPUT_TOPIC]
        return KafkaOutput(self._kafka, PIPELINE_ID, topics, caught_up, counted=1)

    def _read(self) -> OutputFacts:
        expected, left = self.input.expected, self.output.left_over()
        if isinstance(self.output, DatabaseOutput):
            rows = self.output.select(f"SELECT number FROM {OUTPUT_TABLE}")  # noqa: S608
            return OutputFacts(
                exactly_once(expected, [number for (number,) in rows]), left_over=left
            )
        if isinstance(self.output, FilesOutput):
            return OutputFacts(
                exactly_once(expected, self.output.column("number")), left_over=left
            )
        assert isinstance(self.output, KafkaOutput)  # noqa: S101
        records, hidden = self.output.read(OUTPUT_TOPIC)
        verdict = exactly_once(expected, [(record.key or b"").decode() for record in records])
        if not self._settings.avro:
            return OutputFacts(verdict, hidden)
        letters, _ = self.output.read(DEAD_LETTER_TOPIC)
        contents = [(record.key or b"") + b":" + (record.value or b"") for record in letters]
        return OutputFacts(verdict, hidden, exactly_once(self.input.invalid, contents))
