"""The scenario: changes of a MySQL's tables, beginning with the rows that are there, into Kafka or
PostgreSQL.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from onceward_testing.demo.audit import OutputFacts
from onceward_testing.demo.changes.feed import PeopleOfATown, Shown
from onceward_testing.demo.changes.outputs import ChangesInKafka, OutputOfChanges
from onceward_testing.demo.pace import Pace
from onceward_testing.demo.scenario import Scenario
from onceward_testing.demo.settings import JobSettings
from onceward_testing.local_mysql import LocalMySQL

_FIRST_SHARE = 4


class ChangesOfMySQL(Scenario):
    """See the module. The cluster is its caller's; the MySQL is made here, writes binlogs, and is
    never killed.
    """

    feed: PeopleOfATown
    _mysql: LocalMySQL
    _output: OutputOfChanges

    def __enter__(self) -> ChangesOfMySQL:
        with ExitStack() as opened:
            self._screen.say("starting MySQL, with binlogs (the first time it is fetched)")
            home = self._settings.mysql_home
            self._mysql = opened.enter_context(
                LocalMySQL(binlog=True, home=Path(home) if home else None)
            )
            self._output = self._made_output()
            opened.enter_context(self._output)
            self._output.make()
            first = self._settings.records // _FIRST_SHARE
            pace = Pace(
                self._settings.records - first,
                self._settings.produce_seconds,
                self._settings.kills or 0,
            )
            shown: Shown = "changes" if self._settings.sink == "kafka" else "rows"
            self.feed = PeopleOfATown(self._mysql.url, first, pace, self._settings.seed, shown)
            how = (
                "compressed"
                if self.feed.compressed
                else "not compressed, which this server cannot"
            )
            self._screen.say(
                f"people come, before there is a job; the transactions of one of two sessions are "
                f"{how}"
            )
            self.feed.make()
            self.tail = self._output.tail()
            self._open = opened.pop_all()
        return self

    def job(self, folder: Path) -> JobSettings:
        return JobSettings(
            bootstrap_servers=self._kafka.bootstrap_servers,
            checkpoint=str(folder / "checkpoint"),
            folder=str(folder),
            delivery="exactly_once",
            master=self._settings.master,
            window_seconds=0,
            sink=self._settings.sink,
            address=self._output.address,
            source="mysql",
            source_address=self._mysql.url,
        )

    def _read(self) -> OutputFacts:
        return self._output.read(self.feed)

    def _made_output(self) -> OutputOfChanges:
        if self._settings.sink == "postgres":
            from onceward_testing.demo.changes.postgres import RowsInPostgres  # needs its client

            return RowsInPostgres(self._kafka.bootstrap_servers)
        return ChangesInKafka(self._kafka)
