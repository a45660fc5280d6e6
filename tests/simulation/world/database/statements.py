"""What statements mean: those that the product's dialects write, by their shape. Any other raises.

Each is understood once, as a function of session, transaction and parameters. What a catalogue
says is :mod:`catalogue`, what is peculiar to a kind of server :mod:`own_words`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from simulation.world.database import catalogue, moves, own_words
from simulation.world.database.expressions import (
    Expression,
    Unknown,
    column_names,
    parts,
    unquoted,
)
from simulation.world.database.locks import EXCLUSIVE, SHARED, Lock
from simulation.world.database.results import DONE, Result, Understood
from simulation.world.database.tables import Table
from simulation.world.database.trouble import Trouble


def understand(server: Any, sql: str) -> Understood:
    """:raises Unknown: the model has not learnt it."""
    text = " ".join(sql.split())
    for shapes in (own_words.SHAPES, catalogue.SHAPES, moves.SHAPES, _SHAPES):
        for shape, make in shapes:
            found = shape.match(text)
            if found is not None:
                made: Understood = make(server, found)
                return made
    raise Unknown(text)


# ── the ledger's tables, and markers ──


def _create(server: Any, found: re.Match[str]) -> Understood:
    called = name = server.name_of(found["name"])
    columns, key = [], ()
    for part in parts(found["body"]):
        if part.startswith("PRIMARY KEY"):
            key = column_names(part[part.index("(") + 1 : part.rindex(")")])
            continue
        columns.append(unquoted(part.split()[0]))
        if "PRIMARY KEY" in part:
            key = (columns[-1],)
    own = name.rpartition(".")[2]
    is_staging = name == "onceward_staging"
    made_for = (
        "staging" if is_staging or own.startswith(("onceward_rows_", "onceward_held_"))
        else "markers" if own == "onceward_prepared" else "batches" if own.endswith("_batches") else "ledger"
    )  # fmt: skip
    if_missing, logged = bool(found["if"]), found["kind"] != "UNLOGGED "

    def run(session: Any, transaction: Any, parameters: Sequence[Any]) -> Result:
        name = session.meant if is_staging else called
        made = Table(
            name, made_for, tuple(columns), () if made_for == "staging" else key, logged=logged
        )
        if found["kind"] == "TEMPORARY ":
            session.own_tables[name] = made
            return DONE
        if if_missing and server.has(name, transaction):
            return DONE
        session.lock(server.making.setdefault(name, Lock()), transaction, EXCLUSIVE)
        if server.has(
            name, transaction
        ):  # made while we waited: PostgreSQL says so although IF NOT EXISTS is asked
            if if_missing and server.is_mysql:
                return DONE
            raise Trouble("unique", f'relation "{name}" already exists')
        transaction.made[name] = made
        return DONE

    return Understood(run, commits=server.is_mysql and found["kind"] != "TEMPORARY ")


def _drop(server: Any, found: re.Match[str]) -> Understood:
    called, if_there = server.name_of(found["name"]), bool(found["if"])

    def run(session: Any, transaction: Any, parameters: Sequence[Any]) -> Result:
        name = session.meant if called == "onceward_staging" else called
        if found["kind"]:
            session.own_tables.pop(name, None)
            return DONE
        if not server.has(name, transaction):
            if if_there:
                return DONE
            raise Trouble("no table", f'table "{name}" does not exist')
        table = server.table(name, transaction)
        try:
            session.lock(table.lock, transaction, EXCLUSIVE)
        except Trouble:
            table.kept_at = server.sim.now
            raise
        if not server.has(name, transaction):  # somebody else was first
            if if_there:
                return DONE
            raise Trouble("no table", f'table "{name}" does not exist')
        if transaction.made.pop(name, None) is None:
            transaction.dropped[name] = table
        return DONE

    return Understood(run, commits=server.is_mysql and not found["kind"])


def _insert_values(server: Any, found: re.Match[str]) -> Understood:
    name, columns = server.name_of(found["table"]), column_names(found["columns"])
    first, values = 0, []
    for part in parts(found["values"]):
        expression = Expression(part, {}, first)
        first += expression.parameters
        values.append(expression.function())
    then = found["then"] or ""
    replace = found["verb"] == "REPLACE"
    update = (
        column_names(re.sub(r" = excluded\.\w+", "", then.partition(" DO UPDATE SET ")[2]))
        if "excluded" in then
        else ()
    )
    looks = "DO NOTHING" in then or "pipeline = pipeline" in then

    def run(session: Any, transaction: Any, parameters: Sequence[Any]) -> Result:
        table = server.table(name, transaction)
        given = {
            column: value((), parameters) for column, value in zip(columns, values, strict=True)
        }
        row = tuple(
            [
                given.get(c, transaction.number if c == "transaction" else None)
                for c in table.columns
            ]
        )
        key = table.key_of(row)
        if looks and not server.is_mysql and key in table.rows:
            return Result(touched=0)
        session.lock_row(table, key, transaction, EXCLUSIVE)
        there = table.visible(transaction).get(key)
        if there is not None and not replace:
            if looks:
                return Result(touched=0)
            if not update:
                raise Trouble(
                    "unique", f"duplicate key value violates unique constraint of {name}"
                )
            news = dict(zip(table.columns, there, strict=True)) | {
                column: row[table.place[column]] for column in update
            }
            row = tuple([news[column] for column in table.columns])
        transaction.set(table, key, row)
        return Result(touched=1)

    return Understood(run, writes=True)


def _update(server: Any, found: re.Match[str]) -> Understood:
    name = server.name_of(found["table"])
    compiled: list[Any] = []

    def compiled_for(table: Table) -> tuple[Any, Any]:
        if not compiled:
            first, news = 0, dict.fromkeys(range(len(table.columns)))
            texts = [f"r[{number}]" for number in news]
            for part in parts(found["assignments"]):
                column, _, value = part.partition(" = ")
                expression = Expression(value, table.place, first)
                first += expression.parameters
                texts[table.place[unquoted(column.strip())]] = expression.source
            condition = Expression(found["condition"], table.place, first)
            made = eval(f"lambda r, p: ({', '.join(texts)},)", {"max": max})  # noqa: S307 — of tokens that are known
            compiled.extend((condition.function(), made))
        return compiled[0], compiled[1]

    def run(session: Any, transaction: Any, parameters: Sequence[Any]) -> Result:
        table = server.table(name, transaction)
        condition, made = compiled_for(table)
        touched = 0
        for key in [
            key for key, row in table.visible(transaction).items() if condition(row, parameters)
        ]:
            session.lock_row(table, key, transaction, EXCLUSIVE)
            row = table.visible(transaction).get(key)
            if row is not None and condition(
                row, parameters
            ):  # it may have had to wait, and is another one now
                transaction.set(table, key, made(row, parameters))
                touched += 1
        return Result(touched=touched)

    return Understood(run, writes=True)


def _delete(server: Any, found: re.Match[str]) -> Understood:
    name = server.name_of(found["table"])
    compiled: list[Any] = []

    def run(session: Any, transaction: Any, parameters: Sequence[Any]) -> Result:
        table = server.table(name, transaction)
        if not compiled:
            compiled.append(Expression(found["condition"], table.place).function())
        condition = compiled[0]
        keys = [
            key for key, row in table.visible(transaction).items() if condition(row, parameters)
        ]
        for key in keys:
            session.lock_row(table, key, transaction, EXCLUSIVE)
            transaction.set(table, key, None)
        return Result(touched=len(keys))

    return Understood(run, writes=True)


def _select(server: Any, found: re.Match[str]) -> Understood:
    name, share, newest_first = (
        server.name_of(found["table"]),
        bool(found["share"]),
        bool(found["order"]),
    )
    compiled: list[Any] = []

    def run(session: Any, transaction: Any, parameters: Sequence[Any]) -> Result:
        table = server.table(name, transaction)
        if not compiled:
            condition = Expression(found["condition"], table.place)
            texts = [
                Expression(part, table.place, condition.parameters).source
                for part in parts(found["columns"])
            ]
            compiled.append(condition.function())
            compiled.append(eval(f"lambda r: ({', '.join(texts)},)", {}))  # noqa: S307 — of tokens that are known
        condition, chosen = compiled
        rows = [row for row in table.visible(transaction).values() if condition(row, parameters)]
        if share:
            for key in [table.key_of(row) for row in rows]:
                session.lock_row(table, key, transaction, SHARED)
            rows = [
                row for row in table.visible(transaction).values() if condition(row, parameters)
            ]
        if newest_first:  # ORDER BY sequence DESC, state DESC LIMIT %s
            by = (table.place["sequence"], table.place["state"])
            rows = sorted(rows, key=lambda row: (row[by[0]], row[by[1]]), reverse=True)[
                : parameters[-1]
            ]
        return Result([chosen(row) for row in rows])

    return Understood(run)


_SHAPES: tuple[tuple[re.Pattern[str], Callable[[Any, Any], Understood]], ...] = (
    (
        re.compile(
            r"CREATE (?P<kind>UNLOGGED |TEMPORARY )?TABLE (?P<if>IF NOT EXISTS )?(?P<name>\S+) "
            r"\((?P<body>.+)\)(?: ENGINE = InnoDB)?$"
        ),
        _create,
    ),
    (re.compile(r"DROP (?P<kind>TEMPORARY )?TABLE (?P<if>IF EXISTS )?(?P<name>\S+)$"), _drop),
    (
        re.compile(
            r"(?P<verb>INSERT|REPLACE) INTO (?P<table>\S+) \((?P<columns>.+?)\) VALUES "
            r"\((?P<values>.+?)\)"
            r"(?P<then> ON .+)?$"
        ),
        _insert_values,
    ),
    (
        re.compile(r"UPDATE (?P<table>\S+) SET (?P<assignments>.+) WHERE (?P<condition>.+)$"),
        _update,
    ),
    (re.compile(r"DELETE FROM (?P<table>\S+) WHERE (?P<condition>.+)$"), _delete),
    (
        re.compile(
            r"SELECT (?P<columns>.+?) FROM (?P<table>[^ (]+) WHERE (?P<condition>.+?)"
            r"(?P<order> ORDER BY sequence DESC, state DESC LIMIT %s)?(?P<share> FOR SHARE)?$"
        ),
        _select,
    ),
)
