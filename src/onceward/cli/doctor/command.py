"""``onceward doctor``: what is amiss before a pipeline starts, and the rights that it needs.

Registered in :mod:`onceward.cli`; what it looks at is in :mod:`onceward.cli.doctor`.
"""

from __future__ import annotations

import re
import shlex
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onceward.cli.shared import (
    CONFIG_VARIABLE,
    LEDGER_TOPIC,
    SERVERS_VARIABLE,
    LedgerTopic,
    errors_in_options,
    say,
)
from onceward.errors import ConfigurationError, ContradictoryOptions

if TYPE_CHECKING:
    from onceward.cli.doctor.kinds import CheckResult
    from onceward.kafka.wire.acls import Acl

_COLOURS = {"ok": typer.colors.GREEN, "warn": typer.colors.YELLOW, "fail": typer.colors.RED}


class AclFormat(str, Enum):
    """How ``--acls`` prints."""

    KAFKA_ACLS = "kafka-acls"
    TABLE = "table"
    JSON = "json"


_LOOKS = {"acls", "consumers", "mysql", "target", "registry"}
"""Options each of which asks for a look; without one it is at this machine and the brokers."""
_OF_CONSUMERS = {"bootstrap_servers", "topic"}
_OF_BROKERS = {*_OF_CONSUMERS, "source_topic", "ledger_topic", "pipeline_id"}
"""Options that ask for the brokers beside another look, but what ``--consumers`` needs itself."""
_BESIDE = {
    **dict.fromkeys(("source_prefix", "principal", "ledger_exists", "acl_format"), ("acls",)),
    "subject": ("registry",),
    "tables": ("mysql", "target"),
}
"""Options that mean something beside one of these alone."""


def doctor(
    ctx: typer.Context,
    bootstrap_servers: Annotated[
        str | None,
        typer.Option(envvar=SERVERS_VARIABLE, help="Brokers to look at, host:port[,…]."),
    ] = None,
    command_config: Annotated[
        Path | None,
        typer.Option(
            envvar=CONFIG_VARIABLE,
            help="Kafka client settings as a properties file: security.protocol and the like.",
        ),
    ] = None,
    topic: Annotated[
        list[str] | None, typer.Option(help="An output topic; may be repeated.")
    ] = None,
    source_topic: Annotated[
        list[str] | None, typer.Option(help="A source topic; may be repeated.")
    ] = None,
    source_prefix: Annotated[
        list[str] | None,
        typer.Option(
            help="With --acls: how the source topics of a topic_pattern begin; may be repeated."
        ),
    ] = None,
    ledger_topic: LedgerTopic = LEDGER_TOPIC,
    consumers: Annotated[
        bool,
        typer.Option(
            "--consumers", help="Who reads --topic, and is it proved that not with read_committed?"
        ),
    ] = False,
    mysql: Annotated[
        str | None,
        typer.Option(
            help="A MySQL or MariaDB whose changes are to be read, "
            "mysql://user:password@host:port."
        ),
    ] = None,
    tables: Annotated[
        str,
        typer.Option(
            help='With --mysql: which tables, "shop.orders,shop.items"; none: all that the login '
            "sees. With --target: those of the database, or the index of an OpenSearch."
        ),
    ] = "",
    target: Annotated[
        str | None,
        typer.Option(
            help="What a sink writes to: postgresql://…, mysql://…, mariadb://…, redis://…, or "
            "the address of an OpenSearch, https://…, with its index in --tables."
        ),
    ] = None,
    registry: Annotated[
        str | None,
        typer.Option(
            help="A schema registry, https://…; its login and its CA in --command-config, by "
            "names such as schema.registry.basic.auth.user.info and "
            "schema.registry.ssl.ca.location."
        ),
    ] = None,
    subject: Annotated[
        list[str] | None, typer.Option(help="With --registry: a subject; may be repeated.")
    ] = None,
    acls: Annotated[
        bool, typer.Option("--acls", help="Print the least set of ACLs; connects to nothing.")
    ] = False,
    pipeline_id: Annotated[
        str | None, typer.Option(help="The pipeline: with --acls, or to look at its last batches.")
    ] = None,
    principal: Annotated[
        str, typer.Option(help="With --acls: who runs the pipeline.")
    ] = "User:etl",
    ledger_exists: Annotated[
        bool,
        typer.Option(
            "--ledger-exists", help="With --acls: nobody has to create the ledger topic."
        ),
    ] = False,
    acl_format: Annotated[
        AclFormat, typer.Option("--format", help="With --acls: how to print.")
    ] = AclFormat.KAFKA_ACLS,
) -> None:
    """Check Java, Spark, brokers and topics, one line each. With --consumers look for readers of
    uncommitted records, with --mysql at a server whose changes are to be read, with --target and
    --registry at what a pipeline writes to: each that is named, and beside these the first where
    an option names brokers or topics. Or print ACLs with --acls.

    Exit status 1: something is fatal; else 69: a server is away, 77: it refuses the login.
    """
    looks = _looks(ctx)
    topics, sources = topic or [], source_topic or []
    if acls:
        lines = _acls(
            pipeline_id, topics, sources, source_prefix or [], ledger_topic, ledger_exists
        )
        _print_acls(lines, principal, acl_format, bootstrap_servers)
        return
    names = [name.strip() for name in tables.split(",") if name.strip()]
    found: list[CheckResult] = []
    if "brokers" in looks:
        found += _brokers(
            bootstrap_servers, command_config, topics, sources, ledger_topic, pipeline_id
        )
    if consumers:
        found += _print(_consumers(bootstrap_servers, command_config, topics), command_config)
    if target is not None:
        found += _target(target, names)
    if registry is not None:
        found += _print(_registry(registry, command_config, subject or []))
    # Last, because of the statements that it prints
    if mysql is not None:
        found += _mysql(mysql, names)
    _end(found)


def _looks(ctx: typer.Context) -> set[str]:
    """Return the looks that a command line asks for. The shell's variables ask for none.

    :raises ContradictoryOptions: an option is for none of them, or for two.
    """
    given = {
        str(option.name): option.opts[0]
        for option in ctx.command.params
        if (at := ctx.get_parameter_source(str(option.name))) and at.name == "COMMANDLINE"
    }
    looks = given.keys() & _LOOKS
    if "acls" in looks and len(looks) > 1:
        others = " and ".join(sorted(given[name] for name in looks - {"acls"}))
        raise ContradictoryOptions(
            f"--acls prints lines and connects to nothing, and {others} would be looked at",
            next_step=f"leave out --acls, or {others}",
        )
    for name, partners in _BESIDE.items():
        if name in given and not looks.intersection(partners):
            others = " or ".join(f"--{partner}" for partner in partners)
            raise ContradictoryOptions(
                f"{given[name]} is for {others} alone",
                next_step=f"add {others}, or leave out {given[name]}",
            )
    if "tables" in given and {"mysql", "target"} <= looks:
        raise ContradictoryOptions(
            "--tables is for --mysql and for --target, and both are here",
            next_step="leave out --target or --mysql, and look at that by a second command",
        )
    of_brokers = _OF_BROKERS - (_OF_CONSUMERS if "consumers" in looks else set())
    if not looks or ("acls" not in looks and given.keys() & of_brokers):
        looks.add("brokers")
    return looks


def _end(findings: list[CheckResult]) -> None:
    statuses = {finding.exit_status for finding in findings if finding.status == "fail"}
    if statuses:
        # What is fatal counts before all that could not be asked
        raise typer.Exit(1 if 1 in statuses else max(statuses))


def _brokers(
    bootstrap_servers: str | None, command_config: Path | None, *more: Any
) -> list[CheckResult]:
    """Look at this machine, and at the brokers if they are known."""
    from onceward.cli.doctor.checks import check_brokers, check_machine

    found = _print(check_machine())
    if bootstrap_servers is None:
        say("brokers are not looked at: name them with --bootstrap-servers", err=True)
        return found
    return found + _print(check_brokers(bootstrap_servers, command_config, *more), command_config)


def _consumers(
    bootstrap_servers: str | None, command_config: Path | None, topics: list[str]
) -> list[CheckResult]:
    from onceward.cli.doctor.consumers import check_consumers

    if bootstrap_servers is None or not topics:
        raise ConfigurationError(
            "--consumers needs to know where to look, and whose readers to look for",
            next_step="add --bootstrap-servers and --topic",
        )
    return check_consumers(bootstrap_servers, command_config, topics)


def _registry(
    registry: str, command_config: Path | None, subjects: list[str]
) -> list[CheckResult]:
    from onceward.cli.doctor.targets import check_registry, in_options
    from onceward.kafka.wire.options.settings import read_properties

    properties = {} if command_config is None else read_properties(command_config)
    # In one file with Kafka's options, as of Confluent's clients; where it is, --registry says.
    options = {
        name: value
        for name, value in properties.items()
        if name.startswith(("schema.registry.", "basic.auth.", "bearer.auth."))
        and name != "schema.registry.url"
    }
    return in_options(check_registry(registry, subjects, options), "--registry")


def _mysql(url: str, tables: list[str]) -> list[CheckResult]:
    from onceward.cli.doctor.mysql_changes import check_mysql
    from onceward.cli.doctor.targets import in_options, settings_of

    with errors_in_options(settings_of("--mysql")):
        found, lines = check_mysql(url, tables)
    _print(in_options(found, "--mysql"))
    if lines:
        say("\n-- To be run by an administrator:")
        say("\n".join(lines))
    return found


def _target(url: str, names: list[str]) -> list[CheckResult]:
    from onceward.cli.doctor.targets import check_target, in_options

    return _print(in_options(check_target(url, names), "--target"))


def _print(findings: list[CheckResult], command_config: Path | None = None) -> list[CheckResult]:
    servers = "--bootstrap-server "
    # Kafka's own commands log in by the same file
    login = (
        "" if command_config is None else f"--command-config {shlex.quote(f'{command_config}')} "
    )
    for finding in findings:
        step = finding.next_step.replace(servers, f"{login}{servers}")
        say(f"{finding.status:5}", colour=_COLOURS[finding.status], nl=False)
        say(finding.what + (f". Next: {step}." if step else ""))
    return findings


def _acls(
    pipeline_id: str | None,
    topics: list[str],
    sources: list[str],
    prefixes: list[str],
    ledger_topic: str,
    ledger_exists: bool,
) -> list[Acl]:
    from onceward.ids import pipeline_id as checked_pipeline_id
    from onceward.ids import topic_name
    from onceward.kafka.wire.acls import minimal_acls

    if pipeline_id is None or not topics:
        raise ConfigurationError(
            "--acls needs to know what the pipeline is called and where it writes",
            next_step="add --pipeline-id and --topic, and --source-topic for Kafka sources on the "
            "same cluster",
        )
    with errors_in_options({"pipeline_id=": "--pipeline-id="}):
        pipeline = checked_pipeline_id(pipeline_id)
    return minimal_acls(
        pipeline_id=pipeline,
        topics=[topic_name(name, "--topic") for name in topics],
        source_topics=[topic_name(name, "--source-topic") for name in sources],
        source_prefixes=[topic_name(name, "--source-prefix") for name in prefixes],
        ledger_topic=topic_name(ledger_topic, "--ledger-topic"),
        ledger_exists=ledger_exists,
    )


def _print_acls(
    lines: list[Acl], principal: str, acl_format: AclFormat, bootstrap_servers: str | None
) -> None:
    if not re.fullmatch(r"\w+:.+", principal):
        raise ConfigurationError(
            f"--principal {principal} has no type, which ACLs need",
            next_step=f"name it with one: --principal {shlex.quote(f'User:{principal}')}",
        )
    from onceward.cli.doctor.acl_lines import as_commands, as_json, as_table

    if acl_format is AclFormat.JSON:
        say(as_json(lines, principal))
    elif acl_format is AclFormat.TABLE:
        say(as_table(lines, principal))
    else:
        say(as_commands(lines, principal, bootstrap_servers))
