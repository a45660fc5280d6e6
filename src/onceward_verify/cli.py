"""``onceward verify``: was it exactly once? Recomputes every batch of a pipeline from the logs.

Registered in :mod:`onceward.cli`. The checker itself is :mod:`onceward_verify`, which shares
nothing with the library.
"""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from onceward_verify.findings import STATUS_HELP, Findings


class Output(str, Enum):
    """How the answer is written."""

    text = "text"
    json = "json"


class Rule(str, Enum):
    """How many output records name each record of the source."""

    EXACTLY = "exactly"
    AT_MOST = "at-most"
    AT_LEAST = "at-least"


_PURPOSE = f"Prove or refute exactly-once for a pipeline's topics.\n\n{STATUS_HELP}"


def verify(
    pipeline_id: Annotated[str, typer.Option(help="The pipeline to judge.")],
    bootstrap_servers: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT,…",
            help="The cluster of the output's topics; beside a database the sources'.",
        ),
    ] = None,
    database_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="The database of the output's tables: postgresql://…, or mysql://… and "
            "mariadb://…, which are judged "
            "by totals. The password may stand in PGPASSWORD, or in MYSQL_PWD.",
        ),
    ] = None,
    files: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="Of the output's files: a folder, or s3://bucket/path (keys as AWS's own).",
        ),
    ] = None,
    ledger_folder: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Of files: the ledger's folder, where it is not below theirs."
        ),
    ] = None,
    ledger_topic: Annotated[
        str, typer.Option(help="Where its batches are told of.")
    ] = "onceward-ledger",
    ledger_table: Annotated[
        str, typer.Option(help="The same, in a database.")
    ] = "onceward_ledger",
    topic: Annotated[
        list[str] | None,
        typer.Option(help="An output topic; by default all that its batches name."),
    ] = None,
    command_config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Client settings, for secured clusters.")
    ] = None,
    expect_caught_up: Annotated[
        bool,
        typer.Option(
            "--expect-caught-up",
            help="The pipeline is at rest: lag and open transactions count, too.",
        ),
    ] = False,
    shared_topic: Annotated[
        bool,
        typer.Option("--shared-topic", "--shared-table", help="Others write to the output, too."),
    ] = False,
    what_is_left: Annotated[
        bool,
        typer.Option(
            "--what-is-left", help="Do not ask for what compaction and retention have removed."
        ),
    ] = False,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="BATCH",
            help="Judge from there on: a batch number of the newest checkpoint (12), sequence:40, "
            "or a time with its "
            "zone (2030-01-31T06:00Z).",
        ),
    ] = None,
    conserves: Annotated[
        Rule | None,
        typer.Option(
            help="Where output records name their input: each record of the source that a batch "
            "has read is named by "
            "one output record of that batch (exactly), by one or none (at-most, for filters), by "
            "one or more "
            "(at-least)."
        ),
    ] = None,
    each_topic: Annotated[
        bool,
        typer.Option(
            "--each-topic",
            help="With --conserves: so for each output topic by itself, not for all together.",
        ),
    ] = False,
    lineage_headers: Annotated[
        str | None,
        typer.Option(
            metavar="SPEC",
            help="Headers with the name, as topic=NAME,partition=NAME,offset=NAME; by default "
            "those of "
            "KafkaSink(lineage=True). Without topic= the pipeline reads one topic.",
        ),
    ] = None,
    lineage_json: Annotated[
        str | None,
        typer.Option(
            metavar="SPEC", help="The same, as fields of a JSON value: offset=meta.offset,…."
        ),
    ] = None,
    log_dirs: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="DIR",
            help="A broker's log directory, to judge the epoch of each record batch.",
        ),
    ] = None,
    settle: Annotated[
        float, typer.Option(metavar="SECONDS", help="How long transactions may take to end.")
    ] = 15,
    patience: Annotated[
        float, typer.Option(metavar="SECONDS", help="How long a broker may take to answer.")
    ] = 60,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show librdkafka's own log.")] = False,
    output: Annotated[Output, typer.Option(help="For people, or for programs.")] = Output.text,
) -> None:
    from onceward_verify.command import run

    def ask() -> Findings:
        from onceward_verify.options import answer

        return answer(
            pipeline_id=pipeline_id,
            bootstrap_servers=bootstrap_servers,
            database_url=database_url,
            files=files,
            ledger_folder=ledger_folder,
            ledger_topic=ledger_topic,
            ledger_table=ledger_table,
            topic=topic or [],
            command_config=command_config,
            expect_caught_up=expect_caught_up,
            shared=shared_topic,
            what_is_left=what_is_left,
            since=since,
            conserves=conserves.value if conserves else None,
            each_topic=each_topic,
            lineage_headers=lineage_headers,
            lineage_json=lineage_json,
            log_dirs=log_dirs or [],
            settle_s=settle,
            patience_s=patience,
            verbose=verbose,
        )

    raise typer.Exit(run(ask, output.value))


verify.__doc__ = _PURPOSE
