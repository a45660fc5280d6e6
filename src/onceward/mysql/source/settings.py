"""Settings of ``ow.mysql_changes``, checked when the query is defined. Pure; pickled to the tasks.

Tables: ``"shop.orders"``, ``"shop.*"``, ``"shop_*.orders"``: ``*`` is any text, in the database
and in the table. Every other sign is itself, for names may have them all (```log[2024]```). A name
is compared as it is written; with ``lower_case_table_names`` servers write lower case into their
binlogs, or ignore it, and so does :meth:`ChangesSettings.for_server`.

A query's position in a server's binlog, which Spark logs before each batch. Pure.

A position lies between two transactions, never inside one. Version 1 had the last transaction of
each of MariaDB's domains alone, and no prepared transactions. It is read as
:class:`~onceward.mysql.binlog.gtid_sets.GtidBinlogState` has it (``..0-1-27``), and is complete
from the next binlog on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta, timezone
from functools import cached_property, lru_cache
from typing import Any, Literal, NamedTuple, cast, get_args

from onceward.errors import ConfigurationError, ContradictoryOptions, SourceContractViolated
from onceward.mysql.binlog.event import Skippable
from onceward.mysql.binlog.framing import file_number
from onceward.mysql.binlog.gtid_sets import Gtids
from onceward.mysql.binlog.json_rows import ValueForm
from onceward.sql.ledger.mysql import connect_parameters

VERSION = 2
# They are in each position
_MOST_KNOWN = 200
FIRST_BYTE = 4
"""Offset of the first event of a binlog, behind its magic number."""


class Coordinates(NamedTuple):
    """File and position in a server's binlogs. Files are compared by their numbers, as the server
    counts them, as long as they have one base name: a server that is started with another
    ``--log-bin`` counts anew.
    """

    file: str
    pos: int

    def __str__(self) -> str:
        return f"{self.file}:{self.pos}"

    @property
    def order(self) -> tuple[int, int]:
        """Sorts coordinates of one server and one base name."""
        return (binlog_number(self.file), self.pos)

    def is_at_or_behind(self, other: Coordinates) -> bool:
        """Compare under one base name; the server's index alone orders several."""
        return base_name(self.file) == base_name(other.file) and self.order >= other.order


@dataclass(frozen=True)
class Position:
    """Coordinates, and what identifies the transactions before them."""

    dialect: Literal["mysql", "mariadb"]
    server: str
    """The server of ``file`` and ``pos``: its ``server_uuid``, or a substitute on MariaDB."""
    era: int
    """How often the query has gone on to another server, or to another base name of a server's
    binlogs: coordinates of a later era come later.
    """
    file: str
    pos: int
    born: int | None
    """When the server created ``file``, in seconds since 1970, by the file itself: after RESET
    MASTER there is another file of that name. None: nothing of it was seen yet.
    """
    gtids: str | None
    """All transactions before, as the server writes sets of them; by these the position is found
    on another server. None: some have no GTID.
    """
    snapshot: Any = None
    """See :mod:`onceward.mysql.snapshot.state`. None once it is over."""
    skips: str | None = None
    """MariaDB, behind a failover: transactions that were read on another server, and whose last
    ones have not come here. None: whatever comes is new, by whatever number.
    """
    unordered: bool = False
    """MariaDB: numbers came out of order, and identify no position on another server."""
    prepared: dict[str, bool] | None = None
    """Prepared XA transactions by XID: True for one with rows of selected tables."""
    tables: list[list[str]] | None = None
    """What is read from here on (:attr:`ChangesSettings.patterns`), so that a range has the same
    changes whatever the query is told to read later. None: a position from before that was kept.
    """
    known: list[list[str]] | None = None
    """The selected tables that were there when the query began, and those of which changes came
    since: of any other it has lost nothing by a DROP. None: not known.
    """

    @property
    def place(self) -> Coordinates:
        return Coordinates(self.file, self.pos)

    def with_known(self, tables: Iterable[tuple[str, str]] | None) -> Position:
        """Return it with these as the tables that are known; of too many, none are."""
        known = None if tables is None else sorted(map(list, tables))
        return replace(self, known=None if known and len(known) > _MOST_KNOWN else known)

    def to_json(self) -> dict[str, Any]:
        """Return JSON: equal positions are equal texts."""
        return {"mysql": VERSION, **asdict(self)}

    @classmethod
    def from_json(cls, value: Any) -> Position:
        """Parse JSON."""
        if isinstance(value, dict) and value.get("mysql") in (1, VERSION):
            try:
                found = cls(**{name: what for name, what in value.items() if name != "mysql"})
            except TypeError:
                pass
            else:
                if value["mysql"] == VERSION or found.dialect == "mysql" or not found.gtids:
                    return found
                return replace(found, gtids=str(Gtids.parse("mariadb", found.gtids).as_start()))
        raise SourceContractViolated(
            f"the checkpoint has {str(value)[:200]}, which is no position of mysql_changes of "
            "this version of Onceward",
            next_step="start this query with a checkpoint of its own, and do not change the order "
            "of its sources",
        )


def base_name(file: str) -> str:
    """Return the text before the number: ``binlog`` of ``binlog.000007``."""
    return file.rpartition(".")[0]


def binlog_number(file: str) -> int:
    """Return a binlog's number, which is behind its last dot: 7 for ``binlog.000007``."""
    number = file_number(file)
    if number < 0:
        raise SourceContractViolated(
            f"{file!r} is no name of a binlog: it does not end in a number",
            next_step="use what SHOW BINARY LOGS says",
        )
    return number


Starting = Literal["initial", "earliest", "latest"] | Mapping[str, Any]

BATCH_BYTES = 64 << 20
HEARTBEAT_SECONDS = 60.0
PART_BYTES = 4 << 20
_OURS = "onceward_"
"""Tables of a DatabaseSink's begin so: its ledger, and its staging tables, which come and go."""
SYSTEM = ("mysql", "sys", "information_schema", "performance_schema")

_STARTS = ("initial", "earliest", "latest")
_PLACE = re.compile(r"[^:]+\.\d+:\d+(?:#\d+)?(?:/\d+)?")
_UUID = r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}"
_GTID = re.compile(rf"\s*(?:{_UUID}:[0-9a-zA-Z_,:\s-]+|\d+-\d+-\d+(?:\s*,\s*\d+-\d+-\d+)*)\s*")
"""One, or a set as the servers write it."""
_CASCADE = re.compile(r"cascade:[^.]+\..+")


@dataclass(frozen=True)
class ChangesSettings:
    """Settings of one source."""

    connect_args: Mapping[str, Any] = field(repr=False)
    """PyMySQL's arguments; they may hold a password."""
    tables: tuple[tuple[str, str], ...]
    """Patterns: of a database, and of a table in it."""
    starting: Any = "initial"
    values: ValueForm = "text"
    max_bytes: int = BATCH_BYTES
    heartbeat_seconds: float = HEARTBEAT_SECONDS
    pass_over: tuple[str, ...] = ()
    """Names of events and rows (:class:`~onceward.mysql.binlog.event.Skippable`), sets of GTIDs,
    ``cascade:database.table``.
    """
    part_bytes: int = PART_BYTES
    """Least size of a task's part of the binlog."""
    ignores_case: bool = False
    """The server compares names of tables without regard to case."""
    user_tables: tuple[tuple[str, str], ...] = ()
    """:attr:`tables` as the user wrote them, once a server is known."""
    cascades_are_logged: bool = False

    @property
    def where(self) -> str:
        """Host and port, for messages."""
        return f"{self.connect_args['host']}:{self.connect_args['port']}"

    def selects(self, database: str, table: str) -> bool:
        """Check whether a table's changes are read."""
        if database in SYSTEM:
            return False
        is_ours = table.lower().startswith(_OURS)
        return any(
            self.fits(database, table, pattern)
            for pattern in self.tables
            if not is_ours or "*" not in pattern[1]
        )

    def fits(self, database: str, table: str, pattern: tuple[str, str]) -> bool:
        """Check whether a table matches one of :attr:`tables`."""
        return all(map(_matches, self.normalize(database, table), pattern))

    def normalize(self, database: str, table: str) -> tuple[str, str]:
        """Return the name in the form in which equal names are equal."""
        return (database.lower(), table.lower()) if self.ignores_case else (database, table)

    def allows_cascade(self, database: str, table: str) -> bool:
        """Check whether a foreign key may change the table's rows."""
        return (
            self.cascades_are_logged
            or ".".join(self.normalize(database, table)) in self.allowed_cascades
        )

    def selects_database(self, database: str) -> bool:
        """Check whether any table of a database is read."""
        database = database.lower() if self.ignores_case else database
        return database not in SYSTEM and any(_matches(database, one) for one, _ in self.tables)

    def for_server(
        self, lower_case_table_names: int, *, cascades_are_logged: bool = False
    ) -> ChangesSettings:
        """Return the settings for a server that compares names like this."""
        # Whatever another server had made of them
        user_tables = self.user_tables or self.tables
        ignores_case = bool(lower_case_table_names)
        tables = user_tables
        if ignores_case:
            tables = tuple((database.lower(), table.lower()) for database, table in user_tables)
        return replace(
            self, user_tables=user_tables, tables=tables, ignores_case=ignores_case,
            cascades_are_logged=cascades_are_logged,
        )  # fmt: skip

    @property
    def patterns(self) -> list[list[str]]:
        """:attr:`tables` as the user wrote them, as JSON for a position."""
        return [list(one) for one in sorted(set(self.user_tables or self.tables))]

    def for_tables(self, patterns: Sequence[Sequence[str]] | None) -> ChangesSettings:
        """Return the settings for what a position says is read from it on."""
        if patterns is None:
            return self
        tables = tuple((database, table) for database, table in patterns)
        return replace(self, user_tables=tables).for_server(
            int(self.ignores_case), cascades_are_logged=self.cascades_are_logged
        )

    @cached_property
    def skippable(self) -> Skippable:
        """Events and rows that are skipped if they cannot be read."""
        return Skippable(frozenset(one for one in self.pass_over if _PLACE.fullmatch(one)))

    @property
    def skippable_gtids(self) -> tuple[str, ...]:
        """GTIDs of transactions that count as read."""
        return tuple(one for one in self.pass_over if _GTID.fullmatch(one))

    @property
    def allowed_cascades(self) -> frozenset[str]:
        """Normalized names of tables that an unlogged cascade may change."""
        cascades = (
            one.removeprefix("cascade:") for one in self.pass_over if _CASCADE.fullmatch(one)
        )
        return frozenset(one.lower() if self.ignores_case else one for one in cascades)


def make_settings(
    *,
    url: str,
    tables: str | Sequence[str],
    starting: Any,
    max_bytes_per_batch: int,
    heartbeat_seconds: float,
    pass_over: Sequence[str],
    values: str,
) -> ChangesSettings:
    """Check the arguments of ``mysql_changes``.

    :raises ConfigurationError: one of them is invalid.
    """
    connect_args = connect_parameters(
        url, "mysql_changes(url=…) is no address of a MySQL or MariaDB server", database=False
    )
    if type(max_bytes_per_batch) is not int or max_bytes_per_batch < 1:
        step = "use a whole number of bytes, for example 64 << 20"
        raise _invalid("max_bytes_per_batch", max_bytes_per_batch, step)
    if not isinstance(heartbeat_seconds, int | float) or not 0 < heartbeat_seconds <= 86_400:
        raise _invalid(
            "heartbeat_seconds", heartbeat_seconds, "use seconds, more than 0 and at most a day"
        )
    if values not in get_args(ValueForm):
        raise _invalid("values", values, f"use one of {', '.join(get_args(ValueForm))}")
    return ChangesSettings(
        connect_args={name: value for name, value in connect_args.items() if name != "database"},
        tables=_parse_patterns(tables),
        starting=_parse_starting(starting),
        values=cast(ValueForm, values),
        max_bytes=max_bytes_per_batch,
        heartbeat_seconds=float(heartbeat_seconds),
        pass_over=_parse_pass_over(pass_over, _parse_patterns(tables)),
    )


@lru_cache(1024)
def _pattern(pattern: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, pattern.split("*"))), re.DOTALL)


def _matches(name: str, pattern: str) -> bool:
    return _pattern(pattern).fullmatch(name) is not None


def _parse_patterns(tables: str | Sequence[str]) -> tuple[tuple[str, str], ...]:
    patterns = _each(tables)
    for one in patterns:
        if not isinstance(one, str) or not re.fullmatch(r"[^.]+\.[^.]+", one):
            raise _invalid(
                "tables", one, 'name each as "database.table"; * stands for any text: "shop.*"'
            )
        if one.split(".")[0] in SYSTEM:
            step = "the server's own tables have no changes to read; name tables of yours"
            raise _invalid("tables", one, step)
    if not patterns:
        raise _invalid("tables", tables, 'name one at least: "shop.orders"')
    return tuple(cast("tuple[str, str]", tuple(one.split("."))) for one in patterns)


def _each(given: object) -> list[Any]:
    """Return what was given as a list: one name, or several."""
    several = isinstance(given, Iterable) and not isinstance(given, str)
    return list(cast("Iterable[Any]", given)) if several else [given]


def _parse_starting(starting: Any) -> Any:
    if isinstance(starting, str) and starting in _STARTS:
        return starting
    if isinstance(starting, Mapping):
        names = sorted(starting)
        if names == ["timestamp"]:
            return {"timestamp": _microseconds(starting["timestamp"])}
        if names == ["gtid"] and isinstance(starting["gtid"], str):
            return {"gtid": starting["gtid"]}
        place = names == ["file", "position"]
        if place and isinstance(starting["file"], str) and isinstance(starting["position"], int):
            binlog_number(starting["file"])
            return dict(starting)
    raise _invalid(
        "starting",
        starting,
        'use "initial", "earliest", "latest", {"timestamp": a datetime with a time zone, or '
        'milliseconds since 1970}, {"gtid": "…"} or {"file": "binlog.000003", "position": 4}',
    )


def _microseconds(time: Any) -> int:
    """Return ``time`` as exactly as servers note commits: rounded, it would leave some out."""
    if isinstance(time, datetime):
        if time.utcoffset() is None:
            raise ContradictoryOptions(
                f"starting at {time} says no time zone",
                next_step="use datetime(…, tzinfo=timezone.utc), for example",
            )
        return (time - datetime(1970, 1, 1, tzinfo=timezone.utc)) // timedelta(microseconds=1)
    if isinstance(time, int) and not isinstance(time, bool):
        return time * 1000
    step = "use a datetime with a time zone, or milliseconds since 1970"
    raise _invalid("starting", {"timestamp": time}, step)


def _parse_pass_over(names: Sequence[str], tables: tuple[tuple[str, str], ...]) -> tuple[str, ...]:
    each = _each(names)
    for one in each:
        is_valid = isinstance(one, str) and any(
            kind.fullmatch(one) for kind in (_PLACE, _GTID, _CASCADE)
        )
        if not is_valid:
            raise _invalid(
                "pass_over",
                one,
                "name single events and rows as the error did that stopped the query, "
                '"binlog.000003:1234" or "binlog.000003:1234/5"; transactions by their GTIDs; or '
                '"cascade:shop.items"',
            )
        table = one.removeprefix("cascade:")
        if _CASCADE.fullmatch(one) and (set(table) & set("*?") or not _may_match(table, tables)):
            raise _invalid("pass_over", one, "name one table, without a pattern, that tables= has")
    return tuple(each)


def _may_match(name: str, tables: tuple[tuple[str, str], ...]) -> bool:
    """Check whether a table may match on any server: some compare names without regard to case."""
    database, _, table = name.lower().partition(".")
    return any(
        _matches(database, one.lower()) and _matches(table, other.lower()) for one, other in tables
    )


def _invalid(name: str, value: object, next_step: str) -> ConfigurationError:
    return ConfigurationError(f"{name}={value!r}", next_step=next_step)
