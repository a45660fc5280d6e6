"""Settings of ``ow.mysql_changes``, checked when the query is defined. Pure; pickled to the tasks.

Tables: ``"shop.orders"``, ``"shop.*"``, ``"shop_*.orders"``: ``*`` is any text, in the database
and in the table. Every other sign is itself, for names may have them all (```log[2024]```). A name
is compared as it is written; with ``lower_case_table_names`` servers write lower case into their
binlogs, or ignore it, and so does :meth:`ChangesSettings.for_server`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from functools import cached_property, lru_cache
from typing import Any, Literal, cast, get_args

from onceward.errors import ConfigurationError, ContradictoryOptions
from onceward.mysql.binlog.errors import Skippable
from onceward.mysql.binlog.json_rows import ValueForm
from onceward.mysql.source.position import binlog_number
from onceward.sql.ledger.mysql import connect_parameters

Starting = Literal["initial", "earliest", "latest"] | Mapping[str, Any]

BATCH_BYTES = 64 << 20
HEARTBEAT_SECONDS = 60.0
PART_BYTES = 4 << 20
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
    """Names of events and rows (:class:`~onceward.mysql.binlog.errors.Skippable`), sets of GTIDs,
    ``cascade:database.table``.
    """
    part_bytes: int = PART_BYTES
    """Least size of a task's part of the binlog."""
    ignores_case: bool = False
    """The server compares names of tables without regard to case."""
    user_tables: tuple[tuple[str, str], ...] = ()
    """:attr:`tables` as the user wrote them, once a server is known."""
    cascades_are_logged: bool = False
    """The server writes changes by foreign keys into its binlog."""

    @property
    def where(self) -> str:
        """Host and port, for messages."""
        return f"{self.connect_args['host']}:{self.connect_args['port']}"

    def selects(self, database: str, table: str) -> bool:
        """Check whether a table's changes are read."""
        if database in SYSTEM:
            return False
        return any(self.fits(database, table, pattern) for pattern in self.tables)

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
        tables = (
            tuple((database.lower(), table.lower()) for database, table in user_tables)
            if ignores_case
            else user_tables
        )
        return replace(
            self, user_tables=user_tables, tables=tables, ignores_case=ignores_case,
            cascades_are_logged=cascades_are_logged,
        )  # fmt: skip

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
    if (
        isinstance(max_bytes_per_batch, bool)
        or not isinstance(max_bytes_per_batch, int)
        or max_bytes_per_batch < 1
    ):
        raise _invalid(
            "max_bytes_per_batch",
            max_bytes_per_batch,
            "use a whole number of bytes, for example 64 << 20",
        )
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
            raise _invalid(
                "tables",
                one,
                "the server's own tables have no changes to read; name tables of yours",
            )
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
    raise _invalid(
        "starting",
        {"timestamp": time},
        "use a datetime with a time zone, or milliseconds since 1970",
    )


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
