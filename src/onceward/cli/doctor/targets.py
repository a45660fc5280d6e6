"""Checks of what a sink writes to besides Kafka, and of a schema registry. Called by ``onceward
doctor --target`` and ``--registry``.

They read settings and change nothing; what is amiss is told by the rows of
:mod:`onceward.cli.doctor.kinds`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any, cast
from urllib.parse import quote, urlsplit

from onceward.cli.doctor.checks import run_checks
from onceward.cli.doctor.kinds import CheckResult, diagnose, ok, warn
from onceward.cli.shared import renamed
from onceward.delivery import opensearch_writer, redis_writer
from onceward.delivery.opensearch_answers import NotTaken
from onceward.delivery.opensearch_writer import OpenSearchWriter
from onceward.delivery.upsert_sink import writer_at
from onceward.delivery.upserts import UpsertWriter
from onceward.errors import ConfigurationError, RegistryRefused, TargetUnreachable
from onceward.formats.registry.client import SchemaRegistry
from onceward.formats.registry.conversation import NO_RIGHT
from onceward.formats.registry.settings import TLS_OPTIONS
from onceward.sql.ledger.database import Database, Session, server_step
from onceward.sql.ledger.mysql import MySQL, connected
from onceward.sql.ledger.postgresql import PostgreSQL
from onceward.sql.ledger.table import DEFAULT_TABLE
from onceward.sql.mysql import catalogue as mysql_catalogue
from onceward.sql.postgresql import catalogue as postgresql_catalogue
from onceward.sql.sink.columns import Table

_SECONDS = 10
_USUAL = "correct the address or the login, and see that the server runs"
_COMPATIBILITY = "let the login read the subject's compatibility, which no pipeline needs"
_REDIS = ("appendonly", "appendfsync", "maxmemory-policy")


def check_target(url: str, names: Sequence[str]) -> list[CheckResult]:
    """Check a database, a Redis or an OpenSearch by its address.

    :param names: tables of a database, or the index.
    """
    try:
        scheme = urlsplit(url).scheme
    except ValueError:
        scheme = ""
    if scheme in ("http", "https") and not names:
        raise ConfigurationError(
            "--target=… is an OpenSearch, and no index is named", next_step="add --tables=INDEX"
        )
    if scheme in ("postgresql", "postgres"):
        return run_checks(lambda: _postgresql(url, names))
    if scheme in ("mysql", "mariadb"):
        return run_checks(lambda: _mysql(url, names))
    if scheme in ("redis", "rediss", "unix"):
        return [*run_checks(lambda: _redis(url)), *_not_looked_at(names)]
    if scheme in ("http", "https"):
        return [each for name in names for each in run_checks(partial(_opensearch, url, name))]
    raise ConfigurationError(
        "--target=… is no address of a database, a Redis or an OpenSearch",
        next_step="pass postgresql://…, mysql://…, mariadb://…, redis://… or https://…",
    )


def _not_looked_at(names: Sequence[str]) -> list[CheckResult]:
    what = f"not checked: {', '.join(names)}; of this target no table is looked at by itself"
    return [warn(what, "leave out --tables")] if names else []


def in_options(found: Sequence[CheckResult], option: str) -> list[CheckResult]:
    """Return the results with settings of a job, as errors name them, as options of the command.

    :param option: by which the command was given the address.
    """
    names = settings_of(option)
    return [
        replace(one, what=renamed(one.what, names), next_step=renamed(one.next_step, names))
        for one in found
    ]


def settings_of(option: str) -> dict[str, str]:
    """Return options by what errors of sinks, ledgers, sources and registries call them.

    :param option: by which the command was given the address.
    """
    return {r"\w+\(url=…\)": f"{option}=…", r"url=": option, **_SETTINGS}


_SETTINGS = {
    r"(?:tables?|index)=(?=['\"])": "--tables=",
    r"(?:tables?|index)=": "--tables",
    # The command has its own patience
    r"; a slow one wants a larger timeout_s=": "",
    # As text of the properties file, which has Kafka's own ssl.… as well
    r'options=\{"([\w.]+)": "([^"]+)"\}': r"\1=\2 in options=",
    rf"({'|'.join(map(re.escape, TLS_OPTIONS))})": r"schema.registry.\1",
    r"options=": "the file of --command-config",
}
"""Those that are the same for each address."""


def _sound(what: str, found: list[CheckResult]) -> list[CheckResult]:
    return found or [ok(f"{what}: nothing is amiss")]


def _asked(
    database: Database,
    connect: Callable[[], Session],
    ask: Callable[[Session], list[CheckResult]],
) -> list[CheckResult]:
    """Ask in one session, which reads only."""
    try:
        with closing(connect()) as session:
            return ask(session)
    except database.errors as error:
        raise TargetUnreachable(
            f"the database at {database.host} does not answer: {error}",
            next_step=server_step(error, _USUAL),
        ) from None


def _postgresql(url: str, tables: Sequence[str]) -> list[CheckResult]:
    # Of a standby, too, whatever the sink asks for
    database = PostgreSQL(f"{url}{'&' if '?' in url else '?'}target_session_attrs=any")

    def ask(session: Any) -> list[CheckResult]:
        names = ("fsync", "transaction_read_only", "max_prepared_transactions")
        settings = ", ".join(f"current_setting('{name}')" for name in names)
        row = session.execute(
            f"SELECT pg_backend_pid(), quote_ident(current_user), {settings}"
        ).fetchone()
        # A pooler makes up the process number that a session begins with.
        is_pooled = session.connection.info.backend_pid != row[0]
        facts = dict(zip(names, map(str, row[2:]), strict=True))
        found = diagnose(
            "PostgreSQL",
            f"PostgreSQL at {database.host}",
            facts | {"pooler": "yes" if is_pooled else "no"},
        )
        for table in tables:
            look = partial(_table, postgresql_catalogue.table_named, session, table, str(row[1]))
            found += run_checks(look)
        return _sound(f"PostgreSQL at {database.host}", found)

    return _asked(
        database, lambda: database.connect("onceward doctor", 60_000, 1000 * _SECONDS), ask
    )


def _table(
    table_named: Callable[[Session, str, str], Table], session: Session, name: str, login: str
) -> list[CheckResult]:
    # As the sink looks at it, which refuses what it cannot write to
    table = table_named(session, name, DEFAULT_TABLE)
    seen = {"row_security": "yes" if table.hides_rows else "no"}
    return diagnose("target table", f"table {name}", seen, table=table.sql, login=login)


def _mysql(url: str, tables: Sequence[str]) -> list[CheckResult]:
    database = MySQL(url)

    def ask(session: Any) -> list[CheckResult]:
        # A proxy that splits reads asks a replica outside of a transaction
        database.begin(session)
        names = ("local_infile", "innodb_flush_log_at_trx_commit", "read_only", "sync_binlog")
        *asked, read_only, binlog = (f"@@{name}" for name in names)
        # Aurora's readers are known by InnoDB's
        asked.append(f"IF(@@innodb_read_only, 1, {read_only})")
        asked.append(f"IF(@@log_bin, {binlog}, 1)")
        row = session.execute(f"SELECT {', '.join(asked)}").fetchone()
        facts = dict(zip(names, map(str, row), strict=True))
        what = f"database at {database.host}"
        found = diagnose("MySQL", what, facts)
        for table in tables:
            found += run_checks(partial(_table, mysql_catalogue.table_named, session, table, ""))
        return _sound(what, found)

    # Of a replica, too, which a sink refuses
    return _asked(
        database, lambda: connected(database.parameters, "onceward doctor", patient=False), ask
    )


def _writer(url: str, prefix: str | None = None, index: str | None = None) -> UpsertWriter:
    """Return what the sink would write with. :raises ConfigurationError: it would refuse it."""
    return writer_at(
        url, prefix=prefix, index=index, tombstone_s=0, by_column=False, deletes=False
    )


def _redis(url: str) -> list[CheckResult]:
    library = redis_writer.client_library()
    _writer(url, prefix="doctor:")
    at = urlsplit(url)
    where = f"Redis at {at.hostname or at.path}"
    refused: object = "nothing is answered"
    made = library.Redis.from_url(
        url, decode_responses=True, socket_timeout=_SECONDS, socket_connect_timeout=_SECONDS
    )
    try:
        with closing(made) as client:
            facts = _redis_facts(client.info())
            try:
                for name in _REDIS:
                    # Some services answer with nothing, and what INFO has stays
                    facts[name] = client.config_get(name).get(name) or facts.get(name)
            except library.exceptions.ResponseError as error:
                refused = error
    except (library.exceptions.RedisError, ValueError) as error:
        raise TargetUnreachable(
            f"{where} does not say its settings: {error}", next_step=_USUAL
        ) from None
    hidden = [name for name in _REDIS if facts.get(name) is None]
    found = [_hidden(where, hidden, refused)] if hidden else []
    return _sound(where, [*found, *diagnose("Redis", where, facts)])


def _redis_facts(info: Mapping[str, Any]) -> dict[str, str | None]:
    """Return what INFO has, which a sink's login may read: also of settings, because managed
    services know no CONFIG.
    """
    kept = info.get("aof_enabled")
    return {
        "appendonly": None if kept is None else "yes" if int(kept) else "no",
        "maxmemory-policy": info.get("maxmemory_policy"),
        "role": info.get("role"),
        "cluster_enabled": str(info.get("cluster_enabled", 0)),
    }


def _hidden(where: str, names: Sequence[str], refused: object) -> CheckResult:
    return warn(
        f"not checked: {', '.join(names)} of {where}, which refuses CONFIG GET: {refused}",
        "look at the service's pages, or grant the login CONFIG GET (ACL SETUSER … +config|get)",
    )


def _opensearch(url: str, index: str) -> list[CheckResult]:
    what = f"index {index} of OpenSearch"
    with closing(cast(OpenSearchWriter, _writer(url, index=index))) as writer:
        try:
            there, replicas = writer.describe("index.number_of_replicas")
        except ConfigurationError as error:
            return [CheckResult("fail", error.message, error.next_step, "opensearch-rollover")]
        except (NotTaken, opensearch_writer.client_library().exceptions.HTTPError) as error:
            raise TargetUnreachable(
                f"OpenSearch at {urlsplit(url).hostname} does not answer: {error}",
                next_step=_USUAL,
            ) from None
    return _sound(
        what, diagnose("OpenSearch", what, {"index.number_of_replicas": replicas}, name=there)
    )


def check_registry(
    url: str, subjects: Sequence[str], options: Mapping[str, str] | None = None
) -> list[CheckResult]:
    """Check that a registry has ``subjects``, and that it compares their versions.

    :param options: as of ``ow.SchemaRegistry``.
    """
    return run_checks(
        lambda: _registry(SchemaRegistry(url, options=options, timeout_s=_SECONDS), subjects)
    )


def _registry(registry: SchemaRegistry, subjects: Sequence[str]) -> list[CheckResult]:
    all_subjects = registry.subjects()
    found: list[CheckResult] = []
    for subject in subjects:
        alike = [
            name for name in all_subjects if name.rpartition(":")[2] == subject.rpartition(":")[2]
        ]
        facts = {"subject": "there" if subject in all_subjects else "missing"}
        if subject in all_subjects:
            try:
                facts["compatibility"] = registry.compatibility(subject)
            except RegistryRefused as refused:
                if refused.details.get("status") != NO_RIGHT:
                    raise
                found.append(warn(f"not checked: {refused.message}", _COMPATIBILITY))
        found += diagnose(
            "schema registry",
            f"subject {subject}",
            facts,
            name=quote(subject, safe=":."),
            alike=", ".join(alike) or "none is alike",
        )
    return _sound(f"schema registry at {registry.url}, {len(all_subjects)} subjects", found)
