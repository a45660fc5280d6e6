"""The scenario of ``--source mysql``: changes of its tables, beginning with the rows that are
there."""

from __future__ import annotations

import datetime
from collections import defaultdict
from pathlib import Path

from onceward_testing.demo.changes.comparison import ChangeRecord, compare, read_change
from onceward_testing.demo.changes.input import ChangesInput
from onceward_testing.demo.changes.tables import (
    DATABASE,
    PEOPLE,
    TABLES,
    Row,
    RowId,
    moment_text,
    normal_json,
)
from onceward_testing.demo.input import Pace
from onceward_testing.demo.outputs import DatabaseOutput, DemoOutput, KafkaOutput
from onceward_testing.demo.report import OutputFacts
from onceward_testing.demo.scenario import Scenario
from onceward_testing.demo.settings import CHANGES_PIPELINE_ID, CHANGES_PREFIX
from onceward_testing.local_mysql import LocalMySQL
from onceward_testing.local_postgres import LocalPostgres
from onceward_testing.verdict import exactly_once

_FIRST_SHARE = 4
_TOPICS = {table: f"{CHANGES_PREFIX}{DATABASE}.{table.name}" for table in TABLES}
_CREATE = """
CREATE TABLE people (
    id bigint PRIMARY KEY, version int NOT NULL, name text NOT NULL, number text, born date,
    balance numeric(12,2) NOT NULL, kind text NOT NULL, notes jsonb, photo bytea,
    registered timestamp NOT NULL, seen timestamptz NOT NULL, email text NOT NULL
)
"""
_SELECT = """
SELECT id, version, name, number, born::text, balance::text, kind, notes::text,
       encode(photo, 'hex'), registered, seen AT TIME ZONE 'UTC', email FROM people
"""


class ChangesScenario(Scenario):
    """Makes a MySQL that writes binlogs and is never killed; the job copies its changes."""

    input: ChangesInput

    def _prepare(self) -> None:
        settings = self._settings
        self._screen.say("starting MySQL, with binlogs (the first time it is fetched)")
        home = Path(settings.mysql_home) if settings.mysql_home else None
        mysql = self._stack.enter_context(LocalMySQL(binlog=True, home=home))
        self.output = self._stack.enter_context(self._open_output())
        self.output.make()
        first = settings.records // _FIRST_SHARE
        pace = Pace(settings.records - first, settings.produce_seconds, settings.kills or 0)
        self.input = ChangesInput(
            mysql.url, first, pace, settings.seed, rows_only=settings.sink != "kafka"
        )
        how = "compressed" if self.input.compressed else "not compressed, which this server cannot"
        self._screen.say(
            f"people come, before there is a job; the transactions of one of two sessions are "
            f"{how}"
        )
        self.input.make()
        self._job_options = {"source_address": mysql.url}

    def _open_output(self) -> DemoOutput:
        if self._settings.sink == "postgres":
            options = (LocalPostgres(), self._kafka, CHANGES_PIPELINE_ID, PEOPLE.name, _CREATE)
            return DatabaseOutput(*options, "--ignore-expired")
        # The broker's clock says when each record came: it is the verdict's, and not the job's.
        config, topics = {"message.timestamp.type": "LogAppendTime"}, list(_TOPICS.values())
        return KafkaOutput(
            self._kafka, CHANGES_PIPELINE_ID, topics, counted=len(topics), config=config
        )

    def _read(self) -> OutputFacts:
        if isinstance(self.output, DatabaseOutput):
            rows = self.input.select_rows()
            source = [repr(row) for (table, _), row in rows.items() if table == PEOPLE.name]
            target = [repr(_plain_row(row)) for row in self.output.select(_SELECT)]
            return OutputFacts(exactly_once(source, target), left_over=self.output.left_over())
        assert isinstance(self.output, KafkaOutput)  # noqa: S101
        records: defaultdict[RowId, list[ChangeRecord]] = defaultdict(list)
        hidden = 0
        unreadable: list[str] = []
        for table, topic in _TOPICS.items():
            committed, more = self.output.read(topic)
            hidden += more
            for record in committed:
                try:
                    row_id, change = read_change(table, record)
                except (ValueError, KeyError, TypeError) as error:
                    unreadable.append(
                        f"{topic}-{record.partition}@{record.offset}: {error!r}: {record.value!r}"
                    )
                    continue
                records[row_id].append(change)
        found = compare(self.input.histories, records, self.input.select_rows())
        broken = [*found.broken, *unreadable[:3]]
        return OutputFacts(found.verdict, hidden, snapshot_rows=found.snapshot_rows, broken=broken)


def _plain_row(values: Row) -> Row:
    """Return the row with the plain values of :mod:`onceward_testing.demo.changes.tables`."""
    return tuple(
        moment_text(value)
        if isinstance(value, datetime.datetime)
        else normal_json(value)
        if place == 7 and value
        else value
        for place, value in enumerate(values)
    )
