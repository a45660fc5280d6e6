"""The checker's command line, ``onceward verify`` and ``python -m onceward_verify``.

``onceward`` finds it in the entry-point group ``onceward.commands``. The fields of
:class:`Options` are the options. Three questions are built of them: about topics, tables or files.
Each imports what it needs when it is asked: librdkafka for topics, psycopg or PyMySQL for tables,
pyarrow for files.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer
from typer.core import TyperCommand

from onceward_verify.client_settings import settings_from_file
from onceward_verify.findings import (
    CHECKER_FAILED,
    EXIT_STATUS,
    STATUS_HELP,
    USAGE,
    CannotTell,
    Findings,
    WrongUsage,
    as_text,
    plain_text,
)
from onceward_verify.ledger import Since, parse_since

if TYPE_CHECKING:
    from onceward_verify.conservation import Conservation

_CLICKS_USAGE = 2


class _Output(str, Enum):
    """Format of the answer."""

    TEXT = "text"
    JSON = "json"


class _Rule(str, Enum):
    """Number of output records that name one record of the source."""

    EXACTLY = "exactly"
    AT_MOST = "at-most"
    AT_LEAST = "at-least"


def _option(help: str, *names: str, metavar: str | None = None, **limits: Any) -> Any:
    return typer.Option(*names, help=help, metavar=metavar, **limits)


# librdkafka's for a request
_LONGEST_S = 3_600


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of the command, by their names there."""

    pipeline_id: Annotated[str, _option("The pipeline to judge.")]
    bootstrap_servers: Annotated[
        str | None,
        _option(
            "The cluster of the output's topics; beside a database the sources'.",
            metavar="HOST:PORT,…",
        ),
    ] = None
    database_url: Annotated[
        str | None,
        _option(
            "The database of the output's tables: postgresql://…, or mysql://… and mariadb://…, "
            "which are judged by totals. The password may stand in PGPASSWORD, or in MYSQL_PWD.",
            metavar="URL",
        ),
    ] = None
    files: Annotated[
        str | None,
        _option(
            "The path of the output's files: a folder, or s3://bucket/path (keys as AWS's own).",
            metavar="PATH",
        ),
    ] = None
    ledger_folder: Annotated[
        Path | None,
        _option("The folder of the files' ledger, where it is not below theirs.", metavar="DIR"),
    ] = None
    ledger_topic: Annotated[str, _option("The ledger, in Kafka.")] = "onceward-ledger"
    ledger_table: Annotated[str, _option("The ledger, in a database.")] = "onceward_ledger"
    topic: Annotated[
        list[str] | None, _option("An output topic; by default all that its batches name.")
    ] = None
    command_config: Annotated[
        Path | None, _option("Client settings, for secured clusters.", metavar="FILE")
    ] = None
    expect_caught_up: Annotated[
        bool,
        _option(
            "Expect a pipeline at rest: lag and open transactions count, too.",
            "--expect-caught-up",
        ),
    ] = False
    shared: Annotated[
        bool,
        _option("Allow others to write to the output, too.", "--shared-topic", "--shared-table"),
    ] = False
    ignore_expired: Annotated[
        bool,
        _option("Do not report records removed by retention or compaction.", "--ignore-expired"),
    ] = False
    since: Annotated[
        str | None,
        _option(
            "Judge from there on: a batch number of the newest checkpoint (12), sequence:40, or "
            "a time with its zone (2030-01-31T06:00Z).",
            metavar="BATCH",
        ),
    ] = None
    conserves: Annotated[
        _Rule | None,
        _option(
            "Compare with the input, where output records name it: each record of the source that "
            "a batch has read is named by one output record of that batch (exactly), by one or "
            "none (at-most, for filters), by one or more (at-least)."
        ),
    ] = None
    each_topic: Annotated[
        bool,
        _option(
            "With --conserves: count each output topic by itself, not all together.",
            "--each-topic",
        ),
    ] = False
    lineage_headers: Annotated[
        str | None,
        _option(
            "Headers with the name, as topic=NAME,partition=NAME,offset=NAME; by default those "
            "of KafkaSink(lineage=True). Without topic= the pipeline reads one topic.",
            metavar="SPEC",
        ),
    ] = None
    lineage_json: Annotated[
        str | None,
        _option("The same, as fields of a JSON value: offset=meta.offset,….", metavar="SPEC"),
    ] = None
    log_dirs: Annotated[
        list[Path] | None,
        _option(
            "A broker's log directory, to judge the epoch of each record batch.", metavar="DIR"
        ),
    ] = None
    settle: Annotated[
        float,
        _option("Wait so long for transactions to end.", metavar="SECONDS", min=0, max=_LONGEST_S),
    ] = 15
    patience: Annotated[
        float,
        _option(
            "Wait so long for an answer of a broker.",
            metavar="SECONDS",
            min=0.001,
            max=_LONGEST_S,
        ),
    ] = 60
    verbose: Annotated[bool, _option("Show librdkafka's own log.", "--verbose")] = False
    output: Annotated[_Output, _option("Format of the answer: for people, or for programs.")] = (
        _Output.TEXT
    )


class _Command(TyperCommand):
    """The command with a status of its own for usage errors: Click's is 2, which is that of a
    verdict here.
    """

    def make_context(self, *arguments: Any, **more: Any) -> Any:
        with suppress(AttributeError):
            # What the encoding of a terminal lacks must not end in 1
            sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
        try:
            return super().make_context(*arguments, **more)
        except Exception as error:
            # Click's class is not asked for: Typer brings a Click of its own, or takes the
            # installed one.
            if getattr(error, "exit_code", None) == _CLICKS_USAGE and hasattr(
                error, "format_message"
            ):
                error.exit_code = USAGE  # type: ignore[attr-defined]  # it was just looked at
            raise

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, list(_repeat_log_dirs(args)))


def _repeat_log_dirs(args: Iterable[str]) -> Iterable[str]:
    """Write ``--log-dirs A B`` as ``--log-dirs A --log-dirs B``: no other option takes several
    values.
    """
    option = ""
    values = 0
    for arg in args:
        if arg.startswith("-"):
            option, values = arg, 0
        elif option == "--log-dirs":
            if values:
                yield option
            values += 1
        yield arg


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(
    "verify",
    cls=_Command,
    help=f"Prove or refute exactly-once for a pipeline's output.\n\n{STATUS_HELP}",
)
def _verify(**values: Any) -> None:
    options = Options(**values)
    raise typer.Exit(run(lambda: answer(options), options.output.value))


# Typer reads the options off it.
_verify.__signature__ = inspect.signature(Options, eval_str=True)  # type: ignore[attr-defined]


def answer(options: Options) -> Findings:
    """Ask about files or about tables where the options name some, else about topics.

    :raises CannotTell: there is no answer; its subclass WrongUsage: the options do not go
        together.
    """
    client = settings_from_file(options.command_config) if options.command_config else {}
    since = None if options.since is None else parse_since(options.since)
    if options.files is not None:
        return _answer_about_files(options, options.files, since)
    if options.database_url is not None:
        return _answer_about_tables(options, options.database_url, client, since)
    if options.bootstrap_servers:
        return _answer_about_topics(options, options.bootstrap_servers, client, since)
    raise WrongUsage(
        "nothing says where to look",
        next_step="pass --bootstrap-servers for a pipeline that writes to topics, --database-url "
        "for one that writes to tables, --files for one that writes files",
    )


def _answer_about_files(options: Options, root: str, since: Since | None) -> Findings:
    if (
        options.database_url
        or options.bootstrap_servers
        or options.conserves
        or options.log_dirs
        or options.topic
    ):
        raise WrongUsage(
            "--files asks about files alone, and not about topics, tables or sources",
            next_step="leave out what belongs to the others",
        )
    from onceward_verify.files import FilesQuestion, check_files

    return check_files(
        FilesQuestion(
            root=root,
            pipeline_id=options.pipeline_id,
            ledger=options.ledger_folder,
            expect_caught_up=options.expect_caught_up,
            shared=options.shared,
            ignore_expired=options.ignore_expired,
            since=since,
        )
    )


def _answer_about_tables(
    options: Options, url: str, client: dict[str, str], since: Since | None
) -> Findings:
    lineage = options.each_topic or options.lineage_headers or options.lineage_json
    if options.topic or options.log_dirs or options.conserves or lineage:
        raise WrongUsage(
            "--topic, --log-dirs, --conserves and what belongs to it ask about topics, "
            "--database-url about tables",
            next_step="leave one of them out",
        )
    if options.expect_caught_up and not options.bootstrap_servers:
        raise WrongUsage(
            "--expect-caught-up asks where the sources end",
            next_step="name their cluster with --bootstrap-servers",
        )
    from onceward_verify.tables import TablesQuestion, check_tables

    return check_tables(
        TablesQuestion(
            url=url,
            pipeline_id=options.pipeline_id,
            ledger_table=options.ledger_table,
            bootstrap_servers=options.bootstrap_servers or "",
            client=client,
            expect_caught_up=options.expect_caught_up,
            shared_tables=options.shared,
            ignore_expired=options.ignore_expired,
            since=since,
            patience_s=options.patience,
            verbose=options.verbose,
        )
    )


def _answer_about_topics(
    options: Options, servers: str, client: dict[str, str], since: Since | None
) -> Findings:
    from onceward_verify.topics import TopicsQuestion, check_topics

    return check_topics(
        TopicsQuestion(
            bootstrap_servers=servers,
            pipeline_id=options.pipeline_id,
            ledger_topic=options.ledger_topic,
            topics=tuple(options.topic or ()),
            client=client,
            expect_caught_up=options.expect_caught_up,
            shared_topic=options.shared,
            ignore_expired=options.ignore_expired,
            log_dirs=tuple(options.log_dirs or ()),
            since=since,
            conserves=_conserves(options),
            settle_s=options.settle,
            patience_s=options.patience,
            verbose=options.verbose,
        )
    )


def _conserves(options: Options) -> Conservation | None:
    """Return the rule that the options ask for, if any.

    :raises WrongUsage: options that say nothing without ``--conserves``, or two places for one
        name.
    """
    from onceward_verify.conservation import Conservation, Lineage, parse_lineage

    headers, fields = options.lineage_headers, options.lineage_json
    if headers is not None and fields is not None:
        raise WrongUsage(
            "--lineage-headers and --lineage-json name two places for one thing",
            next_step="leave one of them out",
        )
    if options.conserves is None:
        if options.each_topic or headers is not None or fields is not None:
            raise WrongUsage(
                "--each-topic, --lineage-headers and --lineage-json say nothing by themselves",
                next_step="add --conserves exactly, at-most or at-least",
            )
        return None
    lineage = Lineage()
    if headers is not None:
        lineage = parse_lineage("headers", headers)
    elif fields is not None:
        lineage = parse_lineage("json", fields)
    return Conservation(options.conserves.value, options.each_topic, lineage)


def run(ask: Callable[[], Findings], output: str, stream: TextIO | None = None) -> int:
    """Ask, write the answer, and return the exit status.

    The status is the verdict's (0, 1, 2) or that of the reason why there is no verdict
    (``findings``: 64, 69, 70).

    :param ask: builds the question and asks it; a setting that cannot be used is found there.
    :param output: ``json`` or ``text``.
    """
    stream = stream or sys.stdout
    status: int | None = None
    try:
        findings = ask()
    except CannotTell as reason:
        findings = Findings()
        findings.cannot_judge(reason.message)
        findings.facts["next_step"] = reason.next_step
        status = reason.exit_status
        text = f"CANNOT TELL: {reason.message}. Next: {reason.next_step}.\n"
        sys.stderr.write(plain_text(text))
    # Python's own exit status would be 1, which accuses the pipeline.
    except Exception as error:  # noqa: BLE001
        findings = Findings()
        findings.cannot_judge(f"the checker itself failed: {type(error).__name__}: {error}")
        status = CHECKER_FAILED
        traceback.print_exc()
    status = EXIT_STATUS[findings.verdict] if status is None else status
    try:
        if output == "json":
            document = {**findings.as_json(), "exit_status": status}
            stream.write(json.dumps(document, indent=1) + "\n")
        elif findings.facts.keys() - {"next_step"}:
            # Else nothing was looked at, and standard error says why
            stream.write(as_text(findings) + "\n")
        stream.flush()
    except Exception as error:  # noqa: BLE001 — as above
        # A full disk, a reader that is gone, a stdout that is closed. Python would try again at
        # its end, and exit with 120.
        why = "stdout is closed" if stream is None else error
        sys.stderr.write(f"CANNOT TELL: the report cannot be written: {why}.\n")
        with suppress(OSError, ValueError, AttributeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return CHECKER_FAILED
    return status
