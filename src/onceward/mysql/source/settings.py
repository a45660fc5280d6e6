"""What users say to ``ow.mysql_changes``, checked when the query is defined. Pure; pickled to
where it is read.

Which tables: ``"shop.orders"``, ``"shop.*"``, ``"shop_*.orders"``: ``*`` is any text, in the
database and in the table. Every other sign is itself, for names may have them all
(```log[2024]```). A name is compared as it is written; with ``lower_case_table_names`` servers
write small letters into their binlogs, or compare without them, and so do we
(:meth:`Settings.for_server`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property, lru_cache
from typing import Any, Literal, cast, get_args

from onceward.errors import ConfigurationError, ContradictoryOptions
from onceward.mysql.binlog.stops import Passes
from onceward.mysql.source.position import number_of
from onceward.sql.ledger.mysql import said_in

Values = Literal["text", "debezium"]
Starting = Literal["initial", "earliest", "latest"] | Mapping[str, Any]

BATCH_BYTES = 64 << 20
HEARTBEAT_SECONDS = 60.0
PART_BYTES = 4 << 20
SYSTEM = ("mysql", "sys", "information_schema", "performance_schema")

_STARTS = ("initial", "earliest", "latest")
_PLACE = re.compile(r"[^:]+\.\d+:\d+(?:#\d+)?(?:/\d+)?")
_GTID = re.compile(r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}:.+|\d+-\d+-\d+")
_CASCADE = re.compile(r"cascade:[^.]+\..+")


@dataclass(frozen=True)
class Settings:
    """Of one source."""

    said: Mapping[str, Any] = field(repr=False)
    """What PyMySQL needs to connect; it may hold a password."""
    tables: tuple[tuple[str, str], ...]
    """Patterns: of a database, and of a table in it."""
    starting: Any = "initial"
    values: Values = "text"
    max_bytes: int = BATCH_BYTES
    heartbeat_seconds: float = HEARTBEAT_SECONDS
    pass_over: tuple[str, ...] = ()
    """What a person has dealt with: events and rows by their names
    (:class:`~onceward.mysql.binlog.stops.Passes`), sets of GTIDs, ``cascade:database.table``.
    """
    part_bytes: int = PART_BYTES
    """A task reads so much of the binlog, at least."""
    any_case: bool = False
    """Does the server compare names of tables without regard to case? It says so."""
    named: tuple[tuple[str, str], ...] = ()
    """:attr:`tables` as the user wrote them, once a server has said how it compares names."""
    cascades_are_logged: bool = False
    """Does the server write what a foreign key changes into its binlog? It says so."""

    @property
    def where(self) -> str:
        """For messages."""
        return f"{self.said['host']}:{self.said['port']}"

    def wanted(self, database: str, table: str) -> bool:
        """Are this table's changes read?"""
        if database in SYSTEM:
            return False
        return any(self.fits(database, table, pattern) for pattern in self.tables)

    def fits(self, database: str, table: str, pattern: tuple[str, str]) -> bool:
        """Does that table fit one of :attr:`tables`?"""
        return all(map(_fits, self.as_compared(database, table), pattern))

    def as_compared(self, database: str, table: str) -> tuple[str, str]:
        """The name as it is equal to itself, however it is spelled."""
        return (database.lower(), table.lower()) if self.any_case else (database, table)

    def passes_cascade(self, database: str, table: str) -> bool:
        """May a foreign key change its rows?"""
        return (
            self.cascades_are_logged
            or ".".join(self.as_compared(database, table)) in self.passed_cascades
        )

    def wanted_database(self, database: str) -> bool:
        """Is any table of it read?"""
        database = database.lower() if self.any_case else database
        return database not in SYSTEM and any(_fits(database, one) for one, _ in self.tables)

    def for_server(
        self, lower_case_table_names: int, *, cascades_are_logged: bool = False
    ) -> Settings:
        """As this server compares names."""
        named = self.named or self.tables  # whatever another server had made of them
        any_case = bool(lower_case_table_names)
        tables = (
            tuple((database.lower(), table.lower()) for database, table in named)
            if any_case
            else named
        )
        return replace(
            self,
            named=named,
            tables=tables,
            any_case=any_case,
            cascades_are_logged=cascades_are_logged,
        )

    @cached_property
    def passes(self) -> Passes:
        """Events and rows that are left out if they cannot be read."""
        return Passes(frozenset(one for one in self.pass_over if _PLACE.fullmatch(one)))

    @property
    def passed_gtids(self) -> tuple[str, ...]:
        """Of transactions that count as read."""
        return tuple(one for one in self.pass_over if _GTID.fullmatch(one))

    @property
    def passed_cascades(self) -> frozenset[str]:
        """Tables whose rows may be changed by a cascade, which the binlog does not have; as the
        server compares.
        """
        said = (one.removeprefix("cascade:") for one in self.pass_over if _CASCADE.fullmatch(one))
        return frozenset(one.lower() if self.any_case else one for one in said)


def settings_of(
    *,
    url: str,
    tables: str | Sequence[str],
    starting: Any,
    max_bytes_per_batch: int,
    heartbeat_seconds: float,
    pass_over: Sequence[str],
    values: str,
) -> Settings:
    """
    :raises ConfigurationError: one of them cannot be; the error says which.
    """
    said = said_in(
        url, "mysql_changes(url=…) is no address of a MySQL or MariaDB server", database=False
    )
    if (
        isinstance(max_bytes_per_batch, bool)
        or not isinstance(max_bytes_per_batch, int)
        or max_bytes_per_batch < 1
    ):
        raise _no(
            "max_bytes_per_batch",
            max_bytes_per_batch,
            "use a whole number of bytes, for example 64 << 20",
        )
    if not isinstance(heartbeat_seconds, int | float) or not 0 < heartbeat_seconds <= 86_400:
        raise _no(
            "heartbeat_seconds", heartbeat_seconds, "use seconds, more than 0 and at most a day"
        )
    if values not in get_args(Values):
        raise _no("values", values, f"use one of {', '.join(get_args(Values))}")
    return Settings(
        said={name: what for name, what in said.items() if name != "database"},
        tables=_patterns(tables),
        starting=_starting(starting),
        values=cast(Values, values),
        max_bytes=max_bytes_per_batch,
        heartbeat_seconds=float(heartbeat_seconds),
        pass_over=_passed(pass_over, _patterns(tables)),
    )


@lru_cache(1024)
def _pattern(said: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, said.split("*"))), re.DOTALL)


def _fits(name: str, said: str) -> bool:
    return _pattern(said).fullmatch(name) is not None


def _patterns(tables: str | Sequence[str]) -> tuple[tuple[str, str], ...]:
    said = [tables] if isinstance(tables, str) else list(tables)
    for one in said:
        if not isinstance(one, str) or not re.fullmatch(r"[^.]+\.[^.]+", one):
            raise _no(
                "tables", one, 'name each as "database.table"; * stands for any text: "shop.*"'
            )
        if one.split(".")[0] in SYSTEM:
            raise _no(
                "tables",
                one,
                "the server's own tables have no changes to read; name tables of yours",
            )
    if not said:
        raise _no("tables", tables, 'name one at least: "shop.orders"')
    return tuple(cast("tuple[str, str]", tuple(one.split("."))) for one in said)


def _starting(starting: Any) -> Any:
    if isinstance(starting, str) and starting in _STARTS:
        return starting
    if isinstance(starting, Mapping):
        names = sorted(starting)
        if names == ["timestamp"]:
            return {"timestamp": _milliseconds(starting["timestamp"])}
        if names == ["gtid"] and isinstance(starting["gtid"], str):
            return {"gtid": starting["gtid"]}
        place = names == ["file", "position"]
        if place and isinstance(starting["file"], str) and isinstance(starting["position"], int):
            number_of(starting["file"])
            return dict(starting)
    raise _no(
        "starting",
        starting,
        'use "initial", "earliest", "latest", {"timestamp": a datetime with a time zone, or '
        "milliseconds since 1970}, "
        '{"gtid": "…"} or {"file": "binlog.000003", "position": 4}',
    )


def _milliseconds(said: Any) -> int:
    if isinstance(said, datetime):
        if said.tzinfo is None:
            raise ContradictoryOptions(
                f"starting at {said} says no time zone",
                next_step="use datetime(…, tzinfo=timezone.utc), for example",
            )
        return round(said.timestamp() * 1000)
    if isinstance(said, int) and not isinstance(said, bool):
        return said
    raise _no(
        "starting",
        {"timestamp": said},
        "use a datetime with a time zone, or milliseconds since 1970",
    )


def _passed(said: Sequence[str], tables: tuple[tuple[str, str], ...]) -> tuple[str, ...]:
    each = [said] if isinstance(said, str) else list(said)
    for one in each:
        known = isinstance(one, str) and any(
            kind.fullmatch(one) for kind in (_PLACE, _GTID, _CASCADE)
        )
        if not known:
            raise _no(
                "pass_over",
                one,
                "name single events and rows as the error did that stopped the query, "
                '"binlog.000003:1234" or '
                '"binlog.000003:1234/5"; transactions by their GTIDs; or "cascade:shop.items"',
            )
        if _CASCADE.fullmatch(one) and not _may_be_wanted(one.removeprefix("cascade:"), tables):
            raise _no("pass_over", one, "name a table that tables= names, as it is spelled there")
    return tuple(each)


def _may_be_wanted(name: str, tables: tuple[tuple[str, str], ...]) -> bool:
    """On any server: some compare names without regard to case."""
    database, _, table = name.lower().partition(".")
    return any(
        _fits(database, one.lower()) and _fits(table, other.lower()) for one, other in tables
    )


def _no(name: str, said: object, next_step: str) -> ConfigurationError:
    return ConfigurationError(f"{name}={said!r}", next_step=next_step)
