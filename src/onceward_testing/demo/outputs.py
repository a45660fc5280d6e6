"""Outputs of the demo's job: topics, a table of a database, a folder of files; and the answer of
``onceward verify``.

Runs in the supervisor's process. Each is read by a client that shares no code with the sink.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from onceward_testing.demo.settings import PARTITIONS
from onceward_testing.local_kafka import LocalKafka
from onceward_testing.local_mysql import LocalMySQL
from onceward_testing.local_postgres import LocalPostgres
from onceward_testing.topic_reader import ReadRecord, read_topic, reader_settings

_CREATE_SECONDS = 60
_CHECKER_SECONDS = 300
_STAGING = (
    "SELECT table_name FROM information_schema.tables WHERE table_name LIKE 'onceward\\_staging%'"
)


class VisibleCount:
    """Counts the rows that a reader of the output sees, again and again, in a thread of its own.

    Progress only: the verdict is read afterwards, from the beginning.

    :param count: returns how many there are, once every ``interval_s`` seconds.
    """

    def __init__(
        self, count: Callable[[], int], interval_s: float, close: Callable[[], object]
    ) -> None:
        self.rows = 0
        self._count, self._interval_s, self._close = count, interval_s, close
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="visible-count", daemon=True)

    def start(self) -> None:
        """Begin to count."""
        self._thread.start()

    def stop(self) -> None:
        """Count no longer."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stop.wait(self._interval_s):
                self.rows = self._count()
        finally:
            self._close()


@dataclass(frozen=True)
class CheckerFacts:
    """The answer of ``onceward verify --output json`` about the pipeline."""

    answer: dict[str, Any]

    @property
    def batches(self) -> int:
        """Return the number of batches in the ledger; without violations each is proved to be one
        committed transaction."""
        return int(self.answer["facts"].get("ledger", {}).get("batches", 0))

    @property
    def group_lag(self) -> int | None:
        """Return how far the consumer group is behind its sources, in records; None if a source's
        is unknown."""
        lags = [
            source.get("group_lag") for source in self.answer["facts"].get("sources", {}).values()
        ]
        return None if not lags or None in lags else sum(lags)

    @property
    def violations(self) -> list[str]:
        """List what is wrong; empty when the checker says *exactly once*."""
        if self.answer["verdict"] == "exactly_once":
            return []
        found = [
            f"{one['name']} at {one['where']}: {one['detail']}" for one in self.answer["anomalies"]
        ]
        found += [f"not covered: {what}" for what in self.answer["facts"].get("not_covered", [])]
        return found or [f"onceward verify says {self.answer['verdict']}"]


class DemoOutput(AbstractContextManager["DemoOutput"], ABC):
    """The place that the job writes to, for the length of a ``with`` block.

    :param pipeline_id: of the job.
    :param expectations: more options for ``onceward verify``.
    """

    reader: str
    """Name of the reader that sees what is visible, for people."""
    address: str = ""
    """URL for the job."""

    def __init__(self, pipeline_id: str, expectations: Sequence[str]) -> None:
        self._question = ["--pipeline-id", pipeline_id, *expectations]

    def __exit__(self, *_: object) -> None:
        """Leave it to its owner, unless a subclass has made it."""

    @abstractmethod
    def make(self) -> None:
        """Create the empty topics, table or folder."""

    @abstractmethod
    def count(self) -> VisibleCount:
        """Return a counter of its rows, not started."""

    def left_over(self) -> list[str]:
        """Return the names of what killed attempts have left behind."""
        return []

    @abstractmethod
    def where(self) -> list[str]:
        """Return the options that tell ``onceward verify`` where to look."""

    def check(self) -> CheckerFacts:
        """Return the answer of ``onceward verify``, as a user asks it: a process that shares no
        code with the sinks.

        The model of the input knows which rows must be there. Whether batches are whole, one
        chain, and written under their own epochs is for the checker.
        """
        command = [
            sys.executable,
            "-m",
            "onceward_verify",
            *self._question,
            *self.where(),
            "--output",
            "json",
        ]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_CHECKER_SECONDS, check=False
            )
            return CheckerFacts(json.loads(done.stdout))
        except subprocess.TimeoutExpired:
            why = f"nothing within {_CHECKER_SECONDS} s"
        except ValueError:  # it did not get so far as to answer
            why = f"nothing: {done.stderr[-500:]}"
        return CheckerFacts({"verdict": why, "anomalies": [], "facts": {}})


class KafkaOutput(DemoOutput):
    """Topics, on the cluster that the ledger is on.

    :param config: of each topic.
    """

    reader = "a read_committed reader"

    def __init__(
        self,
        kafka: LocalKafka,
        pipeline_id: str,
        topics: Sequence[str],
        *expectations: str,
        counted: int,
        config: dict[str, str] | None = None,
    ) -> None:
        super().__init__(pipeline_id, expectations)
        self._kafka, self._topics, self._config = kafka, topics, config
        self._counted = topics[:counted]

    def make(self) -> None:
        for topic in self._topics:
            create_topic(self._kafka.bootstrap_servers, topic, self._config)

    def count(self) -> VisibleCount:
        settings = reader_settings(self._kafka.bootstrap_servers, "read_committed") | {
            "fetch.wait.max.ms": 100
        }
        consumer = Consumer(settings)
        parts = [(topic, number) for topic in self._counted for number in range(PARTITIONS)]
        consumer.assign(
            [TopicPartition(topic, number, OFFSET_BEGINNING) for topic, number in parts]
        )
        seen = 0

        def count() -> int:
            nonlocal seen
            seen += sum(message.error() is None for message in consumer.consume(5_000, 0.05))
            return seen

        return VisibleCount(count, 0.01, consumer.close)

    def read(self, topic: str) -> tuple[list[ReadRecord], int]:
        """Return the committed records, and how many more a ``read_uncommitted`` reader sees."""
        committed = read_topic(self._kafka.bootstrap_servers, topic, "read_committed")
        uncommitted = read_topic(self._kafka.bootstrap_servers, topic, "read_uncommitted")
        return committed, len(uncommitted) - len(committed)

    def where(self) -> list[str]:
        folders = [
            part for node in self._kafka.nodes for part in ("--log-dirs", str(node.data_folder))
        ]
        topics = [part for topic in self._topics for part in ("--topic", topic)]
        return ["--bootstrap-servers", self._kafka.bootstrap_servers, *topics, *folders]


class DatabaseOutput(DemoOutput):
    """A table of a server that is started for the demo.

    :param kafka: the demo's cluster, which the checker asks about the source.
    :param create: the statement that makes the table.
    """

    reader = "a SELECT"

    def __init__(
        self,
        server: LocalPostgres | LocalMySQL,
        kafka: LocalKafka,
        pipeline_id: str,
        table: str,
        create: str,
        *expectations: str,
    ) -> None:
        super().__init__(pipeline_id, expectations)
        self._server, self._kafka, self._table, self._create = server, kafka, table, create

    def __enter__(self) -> DatabaseOutput:
        self._server.__enter__()
        self.address = self._server.url
        return self

    def __exit__(self, *_: object) -> None:
        self._server.__exit__(None, None, None)

    def make(self) -> None:
        with closing(self._connect()) as connection:
            connection.cursor().execute(self._create)

    def count(self) -> VisibleCount:
        connection = self._connect()
        statement = f"SELECT count(*) FROM {self._table}"  # noqa: S608
        return VisibleCount(
            lambda: int(_select(connection, statement)[0][0]), 0.3, connection.close
        )

    def select(self, statement: str) -> list[tuple[Any, ...]]:
        """Return the rows that ``statement`` finds."""
        with closing(self._connect()) as connection:
            return _select(connection, statement)

    def left_over(self) -> list[str]:
        return [f"staging table {name}" for (name,) in self.select(_STAGING)]

    def where(self) -> list[str]:
        return [
            "--database-url",
            self.address,
            "--bootstrap-servers",
            self._kafka.bootstrap_servers,
        ]

    def _connect(self) -> Any:
        """Return a new connection, by the server's own client, in which each statement is a
        transaction."""
        if isinstance(self._server, LocalPostgres):
            import psycopg

            return psycopg.connect(self.address, autocommit=True)
        return connect_to_mysql(self.address, autocommit=True)


class FilesOutput(DemoOutput):
    """A folder of Parquet files, read by pyarrow."""

    reader = "a reader of Parquet"

    def __enter__(self) -> FilesOutput:
        self._parent = Path(tempfile.mkdtemp(prefix="onceward-files-"))
        self._folder = self._parent / "people"
        self.address = self._folder.as_uri()
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._parent, ignore_errors=True)

    def make(self) -> None:
        self._folder.mkdir()

    def count(self) -> VisibleCount:
        return VisibleCount(lambda: int(self._dataset().count_rows()), 0.3, lambda: None)

    def column(self, name: str) -> list[Any]:
        """Return a column of all rows."""
        rows = self._dataset()
        return list(rows.to_table(columns=[name]).column(name).to_pylist()) if rows.files else []

    def left_over(self) -> list[str]:
        prepared = self._folder / "_onceward" / "prepared"
        return (
            [
                f"prepared folder {path.name}"
                for path in sorted(prepared.iterdir())
                # The mark of the last batch, which the next one removes
                if path.suffix != ".published"
            ]
            if prepared.is_dir()
            else []
        )

    def where(self) -> list[str]:
        return ["--files", str(self._folder)]

    def _dataset(self) -> Any:
        """Read what a reader lists: names that begin with ``_`` or ``.`` are passed over, as by
        all readers."""
        import pyarrow.dataset as dataset

        return dataset.dataset(self._folder, format="parquet", partitioning="hive")


def _select(connection: Any, statement: str) -> list[tuple[Any, ...]]:
    cursor = connection.cursor()
    cursor.execute(statement)
    return list(cursor.fetchall())


def connect_to_mysql(url: str, *, autocommit: bool) -> Any:
    """Return a session by PyMySQL."""
    from urllib.parse import urlsplit

    import pymysql

    parts = urlsplit(url)
    return pymysql.connect(
        host=parts.hostname,
        port=parts.port or 0,
        user=parts.username,
        password=parts.password or "",
        database=parts.path.strip("/"),
        charset="utf8mb4",
        ssl_disabled=True,
        autocommit=autocommit,
    )


def create_topic(bootstrap_servers: str, topic: str, config: dict[str, str] | None = None) -> None:
    """Create a topic with the demo's number of partitions; return when it is there."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 3})
    created = admin.create_topics(
        [NewTopic(topic, PARTITIONS, config=config or {})], request_timeout=_CREATE_SECONDS
    )
    for answer in created.values():
        answer.result(_CREATE_SECONDS)
