"""What a server says of its tables: the questions of the product's ledgers and of its two
catalogues.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from simulation.world.database.results import Result, Understood
from simulation.world.database.tables import Table

Asked = Callable[[Any, Any, Sequence[Any]], Any]


def _answer(
    asked: Callable[[Any, Any, Sequence[Any]], Sequence[Any]],
) -> Callable[[Any, Any], Understood]:
    """What ``asked`` says, for server, transaction and parameters."""

    def make(server: Any, found: re.Match[str]) -> Understood:
        return Understood(
            lambda session, transaction, parameters: Result(asked(server, transaction, parameters))
        )

    return make


def _found(server: Any, transaction: Any, name: str) -> Table | None:
    full = server.name_of(name)
    return server.table(full, transaction) if server.has(full, transaction) else None


def _persistence(server: Any, transaction: Any, parameters: Sequence[Any]) -> Sequence[Any]:
    table = _found(server, transaction, parameters[0])
    return [] if table is None else [("p" if table.logged else "u",)]


def _relation(server: Any, transaction: Any, parameters: Sequence[Any]) -> Sequence[Any]:
    ledger, batches, name = parameters
    table = _found(server, transaction, name)
    if table is None:
        return []
    schema, _, own = table.name.partition(".")
    is_ledger = table.name in (server.name_of(ledger), server.name_of(batches))
    persistence = "p" if table.logged else "u"
    return [
        (
            table.name,
            f'"{schema}"."{own}"',
            "r",
            own,
            persistence,
            False,
            False,
            False,
            is_ledger,
            "UTF8",
            False,
        )
    ]


def _columns(server: Any, transaction: Any, parameters: Sequence[Any]) -> Sequence[Any]:
    table = server.table(parameters[0], transaction)
    types = server.types_of(table)
    return [
        (name, kind, True, False, False, False, False)
        for name, kind in zip(table.columns, types, strict=True)
    ]


def _unique(server: Any, transaction: Any, parameters: Sequence[Any]) -> Sequence[Any]:
    table = server.table(parameters[0], transaction)
    return [([table.columns[place] for place in table.key],)] if table.key else []


def _schema_of(server: Any, transaction: Any, parameters: Sequence[Any]) -> Sequence[Any]:
    table = _found(server, transaction, parameters[0])
    return [] if table is None else [(table.name.partition(".")[0], sum(map(ord, table.name)))]


def _left(server: Any, transaction: Any, parameters: Sequence[Any]) -> Sequence[Any]:
    prefix = f"{parameters[0]}.{parameters[1].replace(chr(92), '')[:-1]}"
    return [(name.partition(".")[2],) for name in server.tables if name.startswith(prefix)]


def _no_references(server: Any, transaction: Any, parameters: Sequence[Any]) -> Sequence[Any]:
    return []


def _shape(server: Any, found: re.Match[str]) -> Understood:
    name = server.name_of(found[1])

    def run(session: Any, transaction: Any, parameters: Sequence[Any]) -> Result:
        table = server.table(name, transaction)
        schema, _, own = name.partition(".")
        return Result([(schema, own, f"shape of {own} {server.types_of(table)}", True)])

    return Understood(run)


def _rules(server: Any, found: re.Match[str]) -> Understood:
    return Understood(lambda session, transaction, parameters: Result())


# ── MySQL ──


def _engine(server: Any, transaction: Any, parameters: Sequence[Any]) -> Sequence[Any]:
    return [("InnoDB",)] if _found(server, transaction, ".".join(parameters)) is not None else []


def _relation_of_mysql(server: Any, transaction: Any, parameters: Sequence[Any]) -> Sequence[Any]:
    schema = parameters[0] or server.default_schema
    table = _found(server, transaction, f"{schema}.{parameters[1]}")
    return (
        []
        if table is None
        else [(schema, parameters[1], "BASE TABLE", "InnoDB", 0, server.default_schema)]
    )


def _columns_of_mysql(server: Any, transaction: Any, parameters: Sequence[Any]) -> Sequence[Any]:
    table = server.table(".".join(parameters), transaction)
    texts = ("utf8mb4", "utf8mb4_bin")
    return [
        (name, kind, "NO", None, "", *(texts if kind.startswith("varchar") else (None, None)))
        for name, kind in zip(table.columns, server.types_of(table), strict=True)
    ]


def _unique_of_mysql(server: Any, transaction: Any, parameters: Sequence[Any]) -> Sequence[Any]:
    table = server.table(".".join(parameters), transaction)
    return [("PRIMARY", table.columns[place], None) for place in table.key]


def _left_of_mysql(server: Any, transaction: Any, parameters: Sequence[Any]) -> Sequence[Any]:
    schema, length, prefix = parameters
    names = [name.partition(".")[2] for name in server.tables if name.startswith(f"{schema}.")]
    return [(name,) for name in names if name[:length] == prefix]


def _shaped(text: str) -> re.Pattern[str]:
    return re.compile(text.replace("(", r"\(").replace(")", r"\)").replace("*", r"\*"))


SHAPES: tuple[tuple[re.Pattern[str], Callable[[Any, Any], Understood]], ...] = (
    (
        _shaped("SELECT relpersistence::text FROM pg_class WHERE oid = to_regclass(%s)$"),
        _answer(_persistence),
    ),
    (_shaped("SELECT c.oid, format("), _answer(_relation)),
    (_shaped("SELECT a.attname, CASE WHEN"), _answer(_columns)),
    (_shaped("SELECT array_agg(a.attname::text)"), _answer(_unique)),
    (_shaped("SELECT n.nspname::text, c.oid FROM pg_class"), _answer(_schema_of)),
    (_shaped("SELECT relname FROM pg_class c JOIN"), _answer(_left)),
    (
        _shaped("SELECT DISTINCT conrelid, confrelid, condeferrable FROM pg_constraint"),
        _answer(_no_references),
    ),
    (_shaped("SELECT unique_constraint_schema, referenced_table_name"), _answer(_no_references)),
    (
        re.compile(
            r"WITH RECURSIVE tree.* SELECT n\.nspname::text, c\.relname::text, md5.* WHERE c\.oid "
            r"= '(.+)'::regclass$"
        ),
        _shape,
    ),
    (re.compile(r"SELECT 1 FROM pg_rewrite WHERE ev_class = "), _rules),
    (_shaped("SELECT engine FROM information_schema.tables WHERE"), _answer(_engine)),
    (_shaped("SELECT table_schema, table_name, table_type, engine,"), _answer(_relation_of_mysql)),
    (_shaped("SELECT column_name, column_type, is_nullable,"), _answer(_columns_of_mysql)),
    (_shaped("SELECT index_name, column_name, sub_part"), _answer(_unique_of_mysql)),
    (
        _shaped(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = %s AND LEFT("
        ),
        _answer(_left_of_mysql),
    ),
)
