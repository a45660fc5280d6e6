"""The options as a question, for both command lines. What a question needs is imported when it is
asked: librdkafka for topics, psycopg or PyMySQL for tables.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from onceward_verify.client_settings import settings_from_file
from onceward_verify.findings import Findings, WrongUsage
from onceward_verify.since import since_of

if TYPE_CHECKING:
    from onceward_verify.conserves import Conserves

Rule = Literal["exactly", "at-most", "at-least"]


def answer(
    *,
    pipeline_id: str,
    bootstrap_servers: str | None,
    database_url: str | None,
    files: str | None,
    ledger_folder: Path | None,
    ledger_topic: str,
    ledger_table: str,
    topic: list[str],
    command_config: Path | None,
    expect_caught_up: bool,
    shared: bool,
    what_is_left: bool,
    since: str | None,
    conserves: Rule | None,
    each_topic: bool,
    lineage_headers: str | None,
    lineage_json: str | None,
    log_dirs: list[Path],
    settle_s: float,
    patience_s: float,
    verbose: bool,
) -> Findings:
    """Of the options' question, about a database or a folder where they name one.

    :raises CannotTell: there is none; its subclass WrongUsage: the options do not go together.
    """
    client = settings_from_file(command_config) if command_config else {}
    begin = None if since is None else since_of(since)
    if files is not None:
        if database_url or bootstrap_servers or conserves or log_dirs or topic:
            raise WrongUsage(
                "--files asks about files alone, and not about topics, tables or sources",
                next_step="leave out what belongs to the others",
            )
        from onceward_verify.files import FilesQuestion, check_files

        return check_files(
            FilesQuestion(
                root=files,
                pipeline_id=pipeline_id,
                ledger=ledger_folder,
                expect_caught_up=expect_caught_up,
                shared=shared,
                what_is_left=what_is_left,
                since=begin,
            )
        )
    if database_url is not None:
        if topic or log_dirs or conserves or each_topic or lineage_headers or lineage_json:
            raise WrongUsage(
                "--topic, --log-dirs, --conserves and what belongs to it ask about topics, "
                "--database-url about tables",
                next_step="leave one of them out",
            )
        if expect_caught_up and not bootstrap_servers:
            raise WrongUsage(
                "--expect-caught-up asks where the sources end",
                next_step="name their cluster with --bootstrap-servers",
            )
        from onceward_verify.tables import TablesQuestion, check_tables

        return check_tables(
            TablesQuestion(
                url=database_url,
                pipeline_id=pipeline_id,
                ledger_table=ledger_table,
                bootstrap_servers=bootstrap_servers or "",
                client=client,
                expect_caught_up=expect_caught_up,
                shared_tables=shared,
                what_is_left=what_is_left,
                since=begin,
                patience_s=patience_s,
                verbose=verbose,
            )
        )
    if not bootstrap_servers:
        raise WrongUsage(
            "nothing says where to look",
            next_step="pass --bootstrap-servers for a pipeline that writes to topics, "
            "--database-url for one that "
            "writes to tables, --files for one that writes files",
        )
    from onceward_verify.checker import Question, check

    return check(
        Question(
            bootstrap_servers=bootstrap_servers,
            pipeline_id=pipeline_id,
            ledger_topic=ledger_topic,
            topics=tuple(topic),
            client=client,
            expect_caught_up=expect_caught_up,
            shared_topic=shared,
            what_is_left=what_is_left,
            log_dirs=tuple(log_dirs),
            since=begin,
            conserves=conserves_of(
                conserves, lineage_headers, lineage_json, each_topic=each_topic
            ),
            settle_s=settle_s,
            patience_s=patience_s,
            verbose=verbose,
        )
    )


def conserves_of(
    rule: Rule | None, headers: str | None, fields: str | None, *, each_topic: bool
) -> Conserves | None:
    """The rule that the options ask for; None: none.

    :raises WrongUsage: options that say nothing without ``--conserves``, or two places for one
        name.
    """
    from onceward_verify.conserves import Conserves
    from onceward_verify.lineage import Lineage, lineage_of

    if headers is not None and fields is not None:
        raise WrongUsage(
            "--lineage-headers and --lineage-json name two places for one thing",
            next_step="leave one of them out",
        )
    if rule is None:
        if each_topic or headers is not None or fields is not None:
            raise WrongUsage(
                "--each-topic, --lineage-headers and --lineage-json say nothing by themselves",
                next_step="add --conserves exactly, at-most or at-least",
            )
        return None
    if headers is not None:
        return Conserves(rule, each_topic, lineage_of("headers", headers))
    if fields is not None:
        return Conserves(rule, each_topic, lineage_of("json", fields))
    return Conserves(rule, each_topic, Lineage())
