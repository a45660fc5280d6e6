"""What is started again after each error of the tree: a query of a pipeline that has worked, and
of one that never has.

The lists stand here once more, by name, and not by what the classes say of themselves.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

import onceward as ow
from onceward import errors, surroundings
from onceward.errors import OncewardError, Recovery
from onceward.lake.delta import Delta
from onceward.operate import supervise as supervising
from onceward.operate import waiting
from onceward.spark.files.file_system import LocalFiles
from onceward.spark.tables.delta_table import DeltaTable
from onceward.spark.tables.iceberg_table import IcebergTable
from onceward.sql.ledger.mysql import MySQL, MySQLSession
from onceward.sql.ledger.postgresql import PostgreSQL
from onceward.sql.mysql import prepared as mysql_prepared
from onceward.sql.mysql.catalogue import _relation as mysql_relation
from onceward.sql.mysql.dialect import MySQLDialect
from onceward.sql.mysql.refusals import refusal
from onceward.sql.postgresql import prepared as postgresql_prepared
from onceward.sql.postgresql.dialect import PostgreSQLDialect
from onceward.sql.sink.columns import Table, must_show_all

WILL_NEVER_PASS = {
    # a setting that is wrong now
    "ConfigurationError", "UnknownOption", "ContradictoryOptions", "UnsupportedQuery",
    "ConnectorMissing",
    "SourceContractViolated",
    # data that a target never takes, or that cannot be read
    "InputError", "InvalidColumn", "InvalidTopicName", "InvalidRecord", "RecordTooLarge", "RowRefused",
    "UnencodableValue",
    "UnsupportedSchema", "SourceNotNamed", "ChangeUnreadable", "InvalidRow", "DeliveryRefused",
    # records that are gone
    "SourceDataLost", "BinlogPurged", "PreparedDataLost",
    # refused admission, and a newer copy
    "AdmissionRefused", "LedgerBehind", "LedgerUnreadable", "CheckpointReplaced",
    "CheckpointCorrupted",
    "CheckpointRewound", "BatchChanged", "BatchNotWritten", "SourceTopicReplaced",
    "SourceReplaced",
    "SourceRangeChanged", "Fenced",
}  # fmt: skip

WRONG_OR_AWAY = {
    "FileUnreadable", "LibraryMissing",
    "WorkerPythonMismatch", "ServerMisconfigured", "TransactionTimeoutTooLarge", "TransactionTimeoutTooShort",
    "ResourceError",
    "TopicMissing", "PartitionMissing", "TableMissing", "AuthenticationFailed", "AccessDenied",
    "UnsupportedBroker",
    "LimitLowered", "ForeignKeyViolation", "ColumnMismatch", "RegistryRefused", "RegistryReplaced", "SchemaUnknown",
}  # fmt: skip
"""Of a setting that was wrong from the beginning, or of an outage: the error alone does not
tell.
"""


PAGE = Path(__file__).parents[2] / "docs" / "reference" / "recovery.md"
AFTERWARDS = dict(
    re.findall(
        r"^\|[^|]*`(\w+)`[^|]*\|[^|]*\| ([^|]*) \| [^|]* \|$", PAGE.read_text(), re.MULTILINE
    )
)
"""What docs/reference/recovery.md says of ``ow.supervise`` after each error."""

STARTS = {
    "**stops**": {None: 1, 7: 1},
    "starts again if the pipeline has worked, else **stops**": {None: 1, 7: 3},
}
STARTS_AGAIN = {None: 3, 7: 3}


def kinds_below(kind: type[OncewardError]) -> set[type[OncewardError]]:
    return {kind}.union(*(kinds_below(child) for child in kind.__subclasses__()))


KINDS = sorted(
    (kind for kind in kinds_below(OncewardError) if kind.__module__ == errors.__name__),
    key=lambda kind: kind.__name__,
)


class Query:
    """Fails with ``error`` once it was started; ends well where there is none."""

    id = runId = name = "query"  # noqa: N815 — Spark's name
    isActive = False  # noqa: N815 — Spark's name

    def __init__(self, error: OncewardError | None) -> None:
        self.error = error

    def awaitTermination(self, timeout: float) -> bool:  # noqa: N802 — Spark's name
        if self.error is not None:
            raise StreamingQueryException("text only")
        return True


@pytest.fixture
def supervised(monkeypatch: pytest.MonkeyPatch) -> Any:
    """``supervised(error, committed=…)``: how often a query was started that fails twice with
    ``error``.
    """
    monkeypatch.setattr(waiting, "error_of", lambda query: query.error)
    monkeypatch.setattr(surroundings, "Event", lambda: Instant())

    def play(error: OncewardError, *, committed: int | None) -> int:
        monkeypatch.setattr(supervising, "newest_committed", lambda query: committed)
        left = [Query(error), Query(error), Query(None)]

        def start() -> Any:
            return left.pop(0)

        with suppress(type(error)):
            ow.supervise(start)
        return 3 - len(left)

    return play


class Instant:
    """An event for which nobody waits."""

    def is_set(self) -> bool:
        return False

    def wait(self, seconds: float) -> bool:
        return False


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("committed", [None, 7], ids=["never-worked", "has-worked"])
def test_each_error_restarts_or_stops_as_its_situation_says(
    supervised: Any, kind: type[OncewardError], committed: int | None
):
    name = kind.__name__
    stops = name in WILL_NEVER_PASS or (name in WRONG_OR_AWAY and committed is None)
    started = supervised(kind("once"), committed=committed)
    assert started == (1 if stops else 3)
    assert started == STARTS.get(AFTERWARDS[name], STARTS_AGAIN)[committed], (
        "docs/reference/recovery.md says otherwise"
    )


def test_the_lists_name_errors_that_there_are():
    assert not WILL_NEVER_PASS & WRONG_OR_AWAY
    assert {kind.__name__ for kind in KINDS} >= WILL_NEVER_PASS | WRONG_OR_AWAY


@pytest.mark.parametrize("named", [True, False], ids=["checkpoint-named", "not-named"])
@pytest.mark.parametrize(
    ("said", "worked"), [(None, False), (3, True), (OSError("away"), None)], ids=str
)
def test_a_start_that_fails_knows_what_its_checkpoint_has_said(
    monkeypatch: pytest.MonkeyPatch, said: Any, worked: bool | None, named: bool
):
    """What it does not know is for whoever counts the job's lives."""

    def asked(checkpoint: str) -> int | None:
        if isinstance(said, OSError):
            raise said
        return said

    monkeypatch.setattr(supervising, "newest_committed_at", asked)

    def start() -> Any:
        raise errors.TopicMissing("no topic")

    with pytest.raises(errors.TopicMissing) as ended:
        ow.supervise(start, ow.restart.NoRestart(), checkpoint="/cp" if named else None)
    assert ended.value.worked_before is (worked if named else None)


@pytest.mark.parametrize(
    ("said", "named", "starts", "words"),
    [
        (LookupError("no session yet"), True, 3, "not known, for its checkpoint could not be"),
        (OSError("away"), True, 3, "not known, for its checkpoint could not be"),
        (None, True, 1, "it has never committed a batch"),
        (None, False, 1, "not known without checkpoint="),
    ],
    ids=["no-session-yet", "checkpoint-away", "never-worked", "not-named"],
)
def test_a_checkpoint_that_cannot_be_looked_at_does_not_say_never(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    said: Exception | None,
    named: bool,
    starts: int,
    words: str,
):
    """A new process of a pipeline of years, whose certificate comes a moment late."""

    def asked(checkpoint: str) -> None:
        if said is not None:
            raise said

    monkeypatch.setattr(supervising, "newest_committed_at", asked)
    monkeypatch.setattr(supervising, "newest_committed", lambda query: None)
    monkeypatch.setattr(surroundings, "Event", lambda: Instant())
    started: list[int] = []

    def start() -> Any:
        started.append(1)
        if len(started) < 3:
            raise errors.FileUnreadable("no certificate yet")
        return Query(None)

    with suppress(errors.FileUnreadable):
        ow.supervise(start, checkpoint="/cp" if named else None)
    assert len(started) == starts
    assert words in caplog.text


def test_a_query_whose_commits_cannot_be_read_is_started_again(
    supervised: Any, monkeypatch: pytest.MonkeyPatch
):
    """The store goes away while the query runs."""
    looked_at = set()

    def newest(query: Any) -> None:
        if id(query) in looked_at:
            raise OSError("away")
        looked_at.add(id(query))

    assert supervised(errors.AccessDenied("no Read on orders"), committed=None) == 1
    refused = errors.AccessDenied("no Read on orders")
    queries = [Query(refused), Query(refused), Query(None)]
    left = list(queries)
    for module in (supervising, waiting):
        monkeypatch.setattr(module, "newest_committed", newest)
    ow.supervise(lambda: left.pop(0))  # type: ignore[arg-type, return-value]
    assert not left


def test_what_an_earlier_life_has_committed_counts(
    supervised: Any, monkeypatch: pytest.MonkeyPatch
):
    """A first life of this supervisor commits a batch; later the login is refused, even before
    there is a query.
    """
    committed: list[int | None] = [None, 0]
    monkeypatch.setattr(
        supervising, "newest_committed", lambda query: committed.pop(0) if committed[1:] else 0
    )
    refused = errors.AuthenticationFailed("the identity provider is away")
    left: list[Any] = [Query(errors.SendFailed("late")), refused, refused, Query(None)]

    def start() -> Any:
        life = left.pop(0)
        if isinstance(life, Exception):
            raise life
        return life

    ow.supervise(start)
    assert not left


def test_what_is_not_ours_may_pass():
    assert supervising.may_pass(OSError("somewhere"), worked_before=False)


@pytest.mark.parametrize("recovery", list(Recovery))
def test_only_two_recoveries_ask_for_a_change(recovery: Recovery):
    assert recovery.needs_a_change == (recovery in (Recovery.STOP, Recovery.RESTART_IF_WORKED))


class Answers:
    """A server's session, a table of a lake: it has one answer, whatever it is asked."""

    is_mariadb, version, mark, name, path, host = False, (8, 0, 12), "ours", "t", "/t", "host"
    is_galera = False
    _session = SimpleNamespace(conf=SimpleNamespace(get=lambda *asked: None))

    def __init__(self, *row: Any) -> None:
        self.row, self.connection = row, self

    def execute(self, *asked: Any) -> Answers:
        return self

    def fetchone(self) -> Any:
        return self.row

    def __iter__(self) -> Any:
        return iter([self.row])

    def properties(self) -> dict[str, str]:
        return {}

    def begin(self) -> Any:
        return SimpleNamespace(shape=self.row[0], features=set(self.row[1:]))

    def quoted(self, table: str) -> str:
        return table

    def get_server_info(self) -> str:
        return "5.7.44"


FORGETS = {"delta.setTransactionRetentionDuration": "interval 7 days"}
UNIFORM = {"delta.universalFormat.enabledFormats": "iceberg"}
GENERATED = {"day": {"metadata": {"delta.generationExpression": "CAST(t AS DATE)"}}}
REFUSALS: dict[str, Callable[[], object]] = {
    "local_infile": lambda: MySQLDialect.must_serve(Any, Answers(0)),
    "local_infile while it loads": lambda: raise_(refusal(3948, "disabled", "loading rows")),
    "binlog_format": lambda: raise_(refusal(1665, "cannot execute", "writing rows")),
    "MySQL, version for xa": lambda: mysql_prepared.must_keep(Answers()),
    "MySQL, version": lambda: MySQLSession(Answers()),
    "MySQL, engine of the ledger": lambda: MySQL.must_last(Answers(), ["MyISAM"], "l", "place"),
    "MySQL, a proxy": lambda: MySQL.must_be_one_session(Answers(), Answers("another")),
    "MySQL, engine": lambda: mysql_relation(
        Answers("s", "t", "BASE TABLE", "MyISAM", 1, "s"), "t", "ledger"
    ),
    "quote_all_identifiers": lambda: PostgreSQLDialect.must_serve(Any, Answers("on")),
    "max_prepared_transactions": lambda: postgresql_prepared.must_keep(Answers(0)),
    "PostgreSQL, an unlogged ledger": lambda: PostgreSQL.must_last(Answers(), "u", "l", "place"),
    "row-level security": lambda: must_show_all(
        Table("t", "t", (), (), 1, False, hides_rows=True)
    ),
    "Iceberg stages nothing": lambda: IcebergTable.must_stage(Answers()),
    "Delta forgets": lambda: DeltaTable.must_be_plain(
        Answers(SimpleNamespace(columns={}, settings=FORGETS))
    ),
    "Delta, read as Iceberg": lambda: DeltaTable.must_be_plain(
        Answers(SimpleNamespace(columns={}, settings=UNIFORM))
    ),
    "Delta, of a catalog": lambda: DeltaTable.must_be_plain(
        Answers(SimpleNamespace(columns={}, settings={}), "appendOnly", "catalogManaged")
    ),
    "Delta, a generated column": lambda: DeltaTable.must_be_plain(
        Answers(SimpleNamespace(columns=GENERATED, settings={}))
    ),
    "Delta, a new constraint": lambda: Delta._must_have_kept(
        Answers(), {"small": "DROP CONSTRAINT small"}, {"rules": {}, "attempt": "a"}
    ),
}


def raise_(error: Exception) -> None:
    raise error


@pytest.mark.parametrize("what", REFUSALS)
def test_what_a_server_or_a_table_is_set_to_may_be_put_right(what: str):
    with pytest.raises(errors.ConfigurationError) as refused:
        REFUSALS[what]()
    assert refused.value.recovery is Recovery.RESTART_IF_WORKED


def test_a_folder_that_went_to_another_disk_may_be_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def rename(source: str, target: str) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "rename", rename)
    with pytest.raises(errors.ConfigurationError) as refused:
        LocalFiles(str(tmp_path)).move("a", "b")
    assert refused.value.recovery is Recovery.RESTART_IF_WORKED
