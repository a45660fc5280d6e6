"""Where the changes of the demo go, and what is there in the end: topics, or a table of
PostgreSQL.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections import defaultdict

from onceward_testing.demo.audit import CheckerFacts, OutputFacts
from onceward_testing.demo.changes.feed import PeopleOfATown
from onceward_testing.demo.changes.rows import DATABASE, TABLES, Key, Table
from onceward_testing.demo.changes.verdict import Told, Where, compare
from onceward_testing.demo.outputs.kafka import ask_about_topics, create_topic
from onceward_testing.demo.outputs.kafka_tail import KafkaTail
from onceward_testing.demo.outputs.output import Output
from onceward_testing.demo.settings import CHANGES_PIPELINE_ID, CHANGES_TOPICS
from onceward_testing.local_kafka import LocalKafka
from onceward_testing.topic_reader import ReadRecord, read_topic


class OutputOfChanges(Output):
    """Where a town's changes go."""

    @abstractmethod
    def read(self, town: PeopleOfATown) -> OutputFacts:
        """All that a reader sees, beside what the town did."""


class ChangesInKafka(OutputOfChanges):
    """A topic for each table. The cluster is its caller's."""

    reader = "a read_committed reader"

    def __init__(self, kafka: LocalKafka) -> None:
        self._kafka = kafka
        self._servers = kafka.bootstrap_servers
        self._topics = {table: f"{CHANGES_TOPICS}{DATABASE}.{table.name}" for table in TABLES}

    def __exit__(self, *_: object) -> None:
        """The cluster lives on."""

    def make(self) -> None:
        """The broker's clock says when each record came: it is the verdict's, and not the
        job's.
        """
        for topic in self._topics.values():
            create_topic(self._servers, topic, {"message.timestamp.type": "LogAppendTime"})

    def tail(self) -> KafkaTail:
        return KafkaTail(self._servers, [*self._topics.values()])

    def read(self, town: PeopleOfATown) -> OutputFacts:
        told: defaultdict[Where, list[Told]] = defaultdict(list)
        hidden = 0
        unreadable: list[str] = []
        for table, topic in self._topics.items():
            records = read_topic(self._servers, topic, "read_committed")
            hidden += len(read_topic(self._servers, topic, "read_uncommitted")) - len(records)
            for record in records:
                try:
                    key, change = told_by(table, record)
                except (ValueError, KeyError, TypeError) as error:
                    unreadable.append(
                        f"{topic}-{record.partition}@{record.offset}: {error!r}: {record.value!r}"
                    )
                    continue
                told[table.name, key].append(change)
        found = compare(town.histories, told, town.rows())
        broken = [*found.broken, *unreadable[:3]]
        return OutputFacts(found.verdict, hidden, snapshot_rows=found.snapshot_rows, broken=broken)

    def ask_the_checker(self) -> CheckerFacts:
        return ask_about_topics(self._kafka, CHANGES_PIPELINE_ID, [*self._topics.values()])


def told_by(table: Table, record: ReadRecord) -> tuple[Key, Told]:
    """Key and change of a record in Debezium's form.

    :raises ValueError: it has another one, or says of itself what is not so. (Also KeyError,
        TypeError.)
    """
    key_document = json.loads(record.key or b"null")
    columns = [column.name for column in table.columns[: table.key]]
    key = tuple(key_document[name] for name in columns)
    if record.value is None:
        return key, Told("tombstone", None, None, record.partition, record.timestamp_ms)
    value = json.loads(record.value)
    before, after = (value[name] and table.row_told(value[name]) for name in ("before", "after"))
    if key_document.keys() != set(columns) or any(
        table.key_of(row) != key for row in (before, after) if row
    ):
        raise ValueError(f"key {key_document} is not that of the row")
    if (value["source"]["db"], value["source"]["table"]) != (DATABASE, table.name):
        raise ValueError(f"source {value['source']} is not this topic's table")
    return key, Told(value["op"], before, after, record.partition, record.timestamp_ms)
