"""``onceward dead-letters``: what pipelines have set aside, why, and back with it. No Spark.

Registered in :mod:`onceward.cli`; what it does is in :mod:`onceward.kafka.dead_letters`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onceward.cli.shared import LEDGER_TOPIC, Config, Json, LedgerTopic, Servers, connect, say
from onceward.errors import AccessDenied, ConfigurationError

if TYPE_CHECKING:
    from onceward.kafka.dead_letters.replay import Outcome
    from onceward.kafka.wire.client import KafkaClient
    from onceward.kafka.wire.options.settings import ProducerSettings

_TRANSACTION_MS = "60000"
"""Readers wait no longer for a replay that was killed; one transaction takes moments."""

dead_letters = typer.Typer(
    name="dead-letters",
    help="What pipelines have set aside: list it, look at it, feed it back.",
    no_args_is_help=True,
)

Topic = Annotated[str, typer.Option(help="The dead-letter topic.")]
Classes = Annotated[
    list[str] | None, typer.Option("--class", help="Only this kind of error; may be repeated.")
]
Sources = Annotated[
    list[str] | None,
    typer.Option("--source-topic", help="Only letters from this topic; may be repeated."),
]


@contextmanager
def _connected(
    bootstrap_servers: str, command_config: Path | None, **topics: str | None
) -> Iterator[tuple[KafkaClient, ProducerSettings]]:
    from onceward.ids import topic_name

    for name, topic in topics.items():
        if topic is not None:
            topic_name(topic, f"--{name.replace('_', '-')}")
    options = {"transaction.timeout.ms": _TRANSACTION_MS}
    client, producer = connect(bootstrap_servers, command_config, "onceward-dead-letters", options)
    try:
        yield client, producer
    except AccessDenied as denied:
        right = (
            f"{denied.details.get('operation', 'the right')} on "
            f"{denied.details.get('resource', 'it')}"
        )
        raise AccessDenied(
            denied.message,
            next_step=f"grant it {right} (kafka-acls --add); docs/how-to/dead-letters.md lists "
            "all rights",
            details=denied.details,
        ) from denied
    finally:
        client.close()


@dead_letters.command("list")
def list_letters(
    bootstrap_servers: Servers,
    topic: Topic,
    command_config: Config = None,
    ledger_topic: LedgerTopic = LEDGER_TOPIC,
    as_json: Json = False,
) -> None:
    """Count the letters: by pipeline, kind of error and source partition, and which of them have
    been replayed.
    """
    from onceward.kafka.dead_letters.text import count, table

    with _connected(bootstrap_servers, command_config, topic=topic, ledger_topic=ledger_topic) as (
        client,
        _,
    ):
        counts = count(client, topic, ledger_topic)
    say(json.dumps(counts.to_json(), indent=2) if as_json else table(counts))


@dead_letters.command("show")
def show_letters(
    bootstrap_servers: Servers,
    topic: Topic,
    partition: Annotated[
        int | None, typer.Option(min=0, help="Only this partition of the dead-letter topic.")
    ] = None,
    offset: Annotated[
        int | None, typer.Option(min=0, help="With --partition: the letter at this offset.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="So many letters at most.")] = 10,
    classes: Classes = None,
    source_topic: Sources = None,
    most_bytes: Annotated[
        int, typer.Option("--bytes", min=1, help="Of a key, value or header show so many.")
    ] = 400,
    command_config: Config = None,
    ledger_topic: LedgerTopic = LEDGER_TOPIC,
    as_json: Json = False,
) -> None:
    """Print letters, oldest first: where from, when, why, headers, key and value (as hex where
    they are no text).
    """
    from onceward.kafka.dead_letters import text
    from onceward.kafka.dead_letters.topic import LetterFilter, letters

    if offset is not None and partition is None:
        raise ConfigurationError("--offset is one of a partition", next_step="add --partition")
    found = 0
    with _connected(bootstrap_servers, command_config, topic=topic, ledger_topic=ledger_topic) as (
        client,
        _,
    ):
        letter_filter = LetterFilter(classes or (), source_topic or ())
        for letter, replayed in letters(
            client, topic, ledger_topic, letter_filter, partition, offset, limit
        ):
            how: dict[str, Any] = {"replayed": replayed, "most_bytes": most_bytes}
            if as_json:
                say(json.dumps(text.as_json(letter, **how)))
            else:
                say(("\n" if found else "") + text.block(letter, **how))
            found += 1
    if not found:
        say("there is no such letter (any more)", err=True)


@dead_letters.command("replay")
def replay_letters(
    bootstrap_servers: Servers,
    topic: Topic,
    to: Annotated[
        str | None,
        typer.Option(
            help="Feed all back to this topic, by key; else each to the partition it came from."
        ),
    ] = None,
    classes: Classes = None,
    source_topic: Sources = None,
    leave_out: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PARTITION:OFFSET",
            help="Leave this letter for a later replay; may be repeated.",
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="So many letters at most.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be fed back.")
    ] = False,
    command_config: Config = None,
    ledger_topic: LedgerTopic = LEDGER_TOPIC,
) -> None:
    """Feed letters back to where they came from, each exactly once, whatever is killed or run
    twice meanwhile.
    """
    from onceward.kafka.dead_letters.replay import Outcome, Replay
    from onceward.kafka.dead_letters.topic import LetterFilter

    left_out = frozenset(map(_place, leave_out or ()))
    replay = Replay(
        topic, ledger_topic, LetterFilter(classes or (), source_topic or (), left_out), to, limit
    )
    outcome = Outcome()
    with _connected(
        bootstrap_servers, command_config, topic=topic, ledger_topic=ledger_topic, to=to
    ) as (client, producer):
        try:
            if dry_run:
                replay.try_out(client, outcome)
            else:
                replay.run(client, producer, outcome)
        finally:
            # also of a replay that failed: what it had fed back stays fed back
            _print_outcome(outcome, dry_run)


def _place(text: str) -> tuple[int, int]:
    partition, colon, offset = text.partition(":")
    if not (colon and partition.isdecimal() and offset.isdecimal()):
        raise ConfigurationError(
            f"--leave-out {text} is no place of a letter",
            next_step="write the letter's partition and offset in the dead-letter topic: "
            "--leave-out 0:42",
        )
    return int(partition), int(offset)


def _print_outcome(outcome: Outcome, dry_run: bool) -> None:
    verb = "would be fed back" if dry_run else "fed back"
    within = f" in {outcome.transactions} transactions" if outcome.transactions else ""
    say(f"{sum(outcome.fed_back.values())} letters {verb}{within}")
    for topic, letters in sorted(outcome.fed_back.items()):
        say(f"  {letters} to {topic}")
    if outcome.left_out:
        say(f"{outcome.left_out} left, which were not asked for")
