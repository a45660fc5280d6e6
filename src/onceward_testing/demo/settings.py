"""Settings of one run of the demo: sizes, names, times.

Shared by the supervisor and, as JSON, by the job's process.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Literal

from onceward.errors import ConfigurationError

Delivery = Literal["exactly_once", "at_least_once"]
SourceName = Literal["kafka", "mysql"]
SinkName = Literal["kafka", "postgres", "mysql", "files"]

INPUT_TOPIC = "people"
OUTPUT_TOPIC = "people-clean"
DEAD_LETTER_TOPIC = "people-dead-letters"
OUTPUT_TABLE = "people_clean"
PIPELINE_ID = "people-etl"
CHANGES_PREFIX = "demo."
"""Prefix of the topics of changes: ``demo.test.people``."""
CHANGES_PIPELINE_ID = "people-changes"
PARTITIONS = 4
WATERMARK_DELAY_SECONDS = 5


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """Settings of one run, checked when built.

    ``source``: people from Kafka through windows, or the changes of a MySQL's tables as they are.
    ``sink``: where the job writes to. ``plain``: JSON, no registry, and no invalid records; so are
    all runs that do not write to Kafka with Onceward's sink. ``invalid_per_thousand``: so many
    records are no Avro of a known schema. ``produce_seconds``: over how long the input is spread;
    it takes longer when the kills do. ``window_seconds``: the tumbling window. ``kills``: so many
    at random moments, by ``seed``; None: the planned few. ``mysql_home``: of another MySQL than
    the usual one to read from, unpacked there. ``limit_seconds``: so long beyond
    ``produce_seconds``, and a tenth more for each of ``kills``, the run has failed.
    """

    records: int = 200_000
    seed: int = 1
    delivery: Delivery = "exactly_once"
    source: SourceName = "kafka"
    sink: SinkName = "kafka"
    plain: bool = False
    invalid_per_thousand: int = 10
    nodes: int = 1
    broker_version: str = "4.3.1"
    master: str = "local[2]"
    window_seconds: int = 20
    produce_seconds: float = 90.0
    kills: int | None = None
    mysql_home: str = ""
    limit_seconds: float = 1_200.0

    @property
    def longest_seconds(self) -> float:
        """How long the run may take."""
        return (self.produce_seconds + self.limit_seconds) * (1 + (self.kills or 0) / 10)

    def __post_init__(self) -> None:
        changes = self.source == "mysql"
        for refused, message, next_step in (
            (
                self.records < 1_000,
                f"{self.records} records are too few to kill the job in the middle of",
                "use 1000 or more",
            ),
            (
                self.window_seconds < 1 or self.produce_seconds <= 0,
                "window and produce seconds must be positive",
                "leave them out",
            ),
            (
                self.kills is not None and (self.kills < 1 or not self.exactly_once),
                f"{self.kills} random kills are none, or not for --at-least-once with its own "
                f"plan",
                "use --kills 1 or more, and leave out --at-least-once",
            ),
            (
                self.sink != "kafka" and not self.exactly_once,
                "at-least-once is shown with Spark's own Kafka sink alone",
                "leave out --sink, or --at-least-once",
            ),
            (
                changes and not (self.exactly_once and self.sink in ("kafka", "postgres")),
                "changes of MySQL go to Kafka or PostgreSQL, exactly once",
                "leave out --at-least-once, and leave out --sink or use --sink postgres",
            ),
            (
                changes and self.plain,
                "changes of MySQL are always JSON, and no registry takes part",
                "leave out --plain",
            ),
            (
                bool(self.mysql_home) and not changes,
                "no MySQL is read from",
                "add --source mysql, or leave out --mysql-home",
            ),
        ):
            if refused:
                raise ConfigurationError(message, next_step=next_step)

    @property
    def exactly_once(self) -> bool:
        """Return whether Onceward's sink is used, or Spark's own."""
        return self.delivery == "exactly_once"

    @property
    def avro(self) -> bool:
        """Return whether records are Avro, with schemas in a registry, and some of them
        invalid."""
        return not self.plain and self.exactly_once and self.source == self.sink == "kafka"


@dataclass(frozen=True, slots=True)
class DemoJobSettings:
    """Settings of the job's process, as JSON on its command line.

    ``folder``: for all that it writes. ``address``: of the output, where it is not the cluster of
    the input. ``registry``: of the schema registry; empty: records are JSON. ``source_address``:
    of the MySQL that it reads.
    """

    bootstrap_servers: str
    folder: str
    delivery: Delivery = "exactly_once"
    master: str = "local[2]"
    window_seconds: int = 0
    source: SourceName = "kafka"
    sink: SinkName = "kafka"
    address: str = ""
    registry: str = ""
    source_address: str = ""

    @property
    def checkpoint(self) -> str:
        """Return Spark's checkpoint folder."""
        return f"{self.folder}/checkpoint"

    @property
    def messages(self) -> str:
        """Return the file in which the job tells what it does
        (:mod:`onceward_testing.job_messages`)."""
        return f"{self.folder}/messages.jsonl"

    def to_json(self) -> str:
        """Return one line of JSON."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> DemoJobSettings:
        """Read what :meth:`to_json` wrote."""
        return DemoJobSettings(**json.loads(text))
