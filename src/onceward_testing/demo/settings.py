"""What one run of the demo is: sizes, names, times. Shared by the supervisor and, as JSON, by the
job's process.
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
CHANGES_TOPICS = "town."
"""How the names of topics of changes begin: ``town.test.people``."""
CHANGES_PIPELINE_ID = "town-changes"
PARTITIONS = 4
WATERMARK_DELAY_SECONDS = 5


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """One run. Checked when built.

    ``source``: where it reads: people from Kafka through windows, or the changes of a MySQL's
    tables as they are. ``sink``: where the job writes to. ``plain``: JSON, no registry, and
    nothing spoilt; so are all runs that do not write to Kafka with Onceward's sink.
    ``poison_per_thousand``: so many records are spoilt. ``produce_seconds``: over how long the
    input is spread; it takes longer when the kills do. ``window_seconds``: the tumbling window of
    the ETL. ``mysql_home``: of another MySQL than the usual one to read from, unpacked there.
    ``kills``: so many at random moments, by ``seed``; None: the planned few. ``limit_seconds``:
    after that long, and a tenth more for each such kill, the run has failed.
    """

    records: int = 200_000
    seed: int = 1
    delivery: Delivery = "exactly_once"
    source: SourceName = "kafka"
    sink: SinkName = "kafka"
    plain: bool = False
    poison_per_thousand: int = 10
    nodes: int = 1
    broker_version: str = "4.3.1"
    master: str = "local[2]"
    window_seconds: int = 20
    produce_seconds: float = 90.0
    kills: int | None = None
    mysql_home: str = ""
    limit_seconds: float = 1_200.0

    def __post_init__(self) -> None:
        if self.records < 1_000:
            raise ConfigurationError(
                f"{self.records} records are too few to kill the job in the middle of",
                next_step="use 1000 or more",
            )
        if self.window_seconds < 1 or self.produce_seconds <= 0:
            raise ConfigurationError(
                "window and produce seconds must be positive", next_step="leave them out"
            )
        if self.kills is not None and (self.kills < 1 or not self.exactly_once):
            raise ConfigurationError(
                f"{self.kills} random kills are none, or are asked for with --at-least-once, "
                f"which has its own plan",
                next_step="use --kills 1 or more, and leave out --at-least-once",
            )
        if self.sink != "kafka" and not self.exactly_once:
            raise ConfigurationError(
                "at-least-once is shown with Spark's own Kafka sink alone",
                next_step="leave out --sink, or --at-least-once",
            )
        if self.source == "mysql":
            self._check_changes()
        elif self.mysql_home:
            raise ConfigurationError(
                "no MySQL is read from", next_step="add --source mysql, or leave out --mysql-home"
            )

    def _check_changes(self) -> None:
        if not self.exactly_once or self.sink not in ("kafka", "postgres"):
            raise ConfigurationError(
                "changes of MySQL go to Kafka or PostgreSQL, exactly once",
                next_step="with --source mysql leave out --at-least-once, and leave out --sink or "
                "use --sink postgres",
            )
        if self.plain:
            raise ConfigurationError(
                "changes of MySQL are always JSON, and no registry takes part",
                next_step="leave out --plain",
            )

    @property
    def exactly_once(self) -> bool:
        """Whether Onceward's sink is used, or Spark's own."""
        return self.delivery == "exactly_once"

    @property
    def avro(self) -> bool:
        """Whether people come as Avro, with schemas in a registry, and some of them spoilt."""
        return not self.plain and self.exactly_once and self.source == self.sink == "kafka"


@dataclass(frozen=True, slots=True)
class JobSettings:
    """What the job's process is told, as JSON on its command line. ``address``: of the output,
    where it is not the cluster of the input. ``registry``: of the schema registry; empty: people
    are JSON. ``source_address``: of the database, where the input is not Kafka's.
    """

    bootstrap_servers: str
    checkpoint: str
    folder: str
    delivery: Delivery
    master: str
    window_seconds: int
    sink: SinkName = "kafka"
    address: str = ""
    registry: str = ""
    source: SourceName = "kafka"
    source_address: str = ""

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> JobSettings:
        """What :meth:`to_json` wrote."""
        return JobSettings(**json.loads(text))
