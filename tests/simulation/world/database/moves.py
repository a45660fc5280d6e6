"""Rows on their way: what is said of them, how they get into a table, and how rows of one key
become one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from simulation.world.database.expressions import Row, Unknown, column_names, parts, unquoted
from simulation.world.database.locks import SHARED
from simulation.world.database.merging import Merge
from simulation.world.database.results import Result, Understood
from simulation.world.database.rows_from import Source
from simulation.world.database.tables import Table
from simulation.world.database.trouble import Trouble


def _count(server: Any, found: re.Match[str]) -> Understood:
    source = Source(found["rows"], server.name_of)
    by = found["by"] and unquoted(found["by"])

    def run(session: Any, transaction: Any, parameters: Sequence[Any]) -> Result:
        rows = source.find(session, transaction, parameters)
        if not by:
            return Result([(len(rows),)])
        place, numbers = source.columns.index(by), {}
        for row in rows:
            numbers[row[place]] = numbers.get(row[place], 0) + 1
        return Result(list(numbers.items()))

    return Understood(run)


def _longest(server: Any, found: re.Match[str]) -> Understood:
    source = Source(found["rows"], server.name_of)
    asked = [
        unquoted(name)
        for name in re.findall(r"LENGTH\(([\"`]\w+[\"`])\)", found["asked"], re.IGNORECASE)
    ]

    def run(session: Any, transaction: Any, parameters: Sequence[Any]) -> Result:
        rows = source.find(session, transaction, parameters)
        places = [source.columns.index(name) for name in asked]
        return Result(
            [tuple([max((len(row[place]) for row in rows), default=None) for place in places])]
        )

    return Understood(run)


def _append(server: Any, found: re.Match[str]) -> Understood:
    source, target = Source(found["rows"], server.name_of), server.name_of(found["table"])
    names = column_names(found["columns"])
    if names != tuple(unquoted(part.partition("::")[0]) for part in parts(found["values"])):
        raise Unknown(found.string)

    def run(session: Any, transaction: Any, parameters: Sequence[Any]) -> Result:
        table = server.table(target, transaction)
        session.lock(table.lock, transaction, SHARED)
        rows = source.find(session, transaction, parameters)
        written = projected(rows, source.columns, names, table)
        transaction.appended.append((table, written))
        return Result([(len(written),)] if found["counted"] else (), len(written))

    return Understood(run, writes=True)


def projected(
    rows: Sequence[Row], given: Sequence[str], names: Sequence[str], table: Table
) -> list[Row]:
    """``rows`` with columns ``given``: of them ``names``, as rows of ``table``."""
    if tuple(given) == tuple(names) == table.columns:
        return list(rows)
    places = [given.index(column) if column in names else -1 for column in table.columns]
    return [tuple([None if place < 0 else row[place] for place in places]) for row in rows]


def _merged(server: Any, found: re.Match[str]) -> Understood:
    sql = found.string
    merge = Merge(sql, server.name_of)
    target = re.search(
        r"(?:INSERT INTO|DELETE FROM|DELETE target FROM|JOIN|UPDATE) ([\"`][^ (]+[\"`])", sql
    )
    insert = re.search(r"INSERT INTO \S+ \((.+?)\) SELECT", sql)
    update = sql.startswith("UPDATE ")
    if target is None:
        return Understood(lambda s, t, p: Result([merge.looked_at(merge.source.find(s, t, p))]))
    name, names = server.name_of(target[1]), column_names(insert[1]) if insert else ()
    anew = "ON CONFLICT" not in sql

    def run(session: Any, transaction: Any, parameters: Sequence[Any]) -> Result:
        table = server.table(name, transaction)
        session.lock(table.lock, transaction, SHARED)
        last, deletes = merge.ranked(merge.source.find(session, transaction, parameters))
        columns = merge.source.columns
        there = table.visible(transaction)
        keys = [tuple([row[columns.index(column)] for column in merge.key]) for row in last]
        if "DELETE " in sql[: sql.find(target[1])]:
            gone = [
                key for key, deleted in zip(keys, deletes, strict=True) if deleted and key in there
            ]
            for key in gone:
                transaction.set(table, key, None)
            return Result(touched=len(gone))
        if not insert and not update:
            found_there = [
                deleted for key, deleted in zip(keys, deletes, strict=True) if key in there
            ]
            return Result([(sum(found_there), len(found_there) - sum(found_there))])
        kept = [
            (key, row) for key, row, deleted in zip(keys, last, deletes, strict=True)
            if not deleted and (not anew or (key in there) == update)
        ]  # fmt: skip
        if len({key for key, _ in kept}) != len(kept):
            raise Trouble("unique", "a row of the table would be affected a second time")
        for key, row in kept:
            (made,) = projected([row], columns, names or table.columns, table)
            transaction.set(table, key, made)
        return Result(touched=len(kept))

    return Understood(run, writes=bool(insert or update or "DELETE " in sql))


SHAPES: tuple[tuple[re.Pattern[str], Callable[[Any, Any], Understood]], ...] = (
    (re.compile(r"WITH rows AS .* onceward_late"), _merged),
    (re.compile(r"SELECT .*\bFROM \(SELECT .*onceward_(?:late|place)"), _merged),
    (re.compile(r"(?:UPDATE|DELETE target FROM|INSERT INTO) \S+ .*onceward_late"), _merged),
    (
        re.compile(
            r"(?P<counted>WITH taken AS \()?INSERT INTO (?P<table>\S+) \((?P<columns>.+?)\) "
            r"SELECT (?P<values>.+?) "
            r"FROM \((?P<rows>SELECT .+)\) AS (?:rows|staged)(?: RETURNING 1\) SELECT count\(\*\) "
            r"FROM taken)?$"
        ),
        _append,
    ),
    (
        re.compile(
            r"SELECT (?:(?:MIN\()?(?P<by>[\"`]\w+[\"`])\)?, )?(?:count|COUNT)\(\*\) FROM "
            r"\((?P<rows>SELECT .+)\) AS "
            r"(?:rows|staged)(?: GROUP BY .+)?$"
        ),
        _count,
    ),
    (
        re.compile(
            r"SELECT (?P<asked>(?:max|MAX)\((?:char_length|CHAR_LENGTH)\(.+?) FROM "
            r"\((?P<rows>SELECT .+)\) AS (?:rows|staged)$"
        ),
        _longest,
    ),
)
