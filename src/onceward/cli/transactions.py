"""``onceward transactions``: who holds up readers of committed records, and an end to it. No
Spark.

Registered in :mod:`onceward.cli`; the requests are in
:mod:`onceward.kafka.wire.transactions.listing`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from onceward.cli.shared import Config, Json, Servers, connect, print_table, table
from onceward.errors import ConfigurationError, ResourceError
from onceward.operate.status import span

if TYPE_CHECKING:
    from onceward.kafka.wire.client import KafkaClient
    from onceward.kafka.wire.transactions.listing import DescribedTransaction, OpenProducer

transactions = typer.Typer(
    name="transactions",
    help="Transactions of any client: list them, and abort one that readers wait for.",
    no_args_is_help=True,
)
Topics = Annotated[
    list[str] | None,
    typer.Option(
        "--topic", help="Ask the leaders of this topic who holds its readers up; may be repeated."
    ),
]


def _connected(
    bootstrap_servers: str, command_config: Path | None
) -> AbstractContextManager[KafkaClient]:
    return closing(connect(bootstrap_servers, command_config, "onceward-transactions")[0])


@transactions.command("list")
def list_all(
    bootstrap_servers: Servers,
    topic: Topics = None,
    ids: Annotated[
        bool, typer.Option("--ids", help="All transactional ids, also those with nothing open.")
    ] = False,
    as_json: Json = False,
    command_config: Config = None,
) -> None:
    """List what is open. With --topic also by partition: one that no coordinator knows of hangs,
    and only `abort` ends it.
    """
    from onceward.kafka.wire.transactions import listing

    with _connected(bootstrap_servers, command_config) as client:
        ids_and_states = listing.list_transactions(client)
        selected_ids = [
            name for name, _, state in ids_and_states if ids or state == listing.ONGOING
        ]
        described = [
            found
            for name in selected_ids
            if (found := listing.describe_transaction(client, name)) is not None
        ]
        holders = _holders(client, topic) if topic else []
    if as_json:
        typer.echo(json.dumps([_as_json(each) for each in described], indent=2))
        return
    print_table(_described(described))
    if topic:
        coordinated = {found.identity.producer_id for found in described if found.started_at_ms}
        print_table(_held(holders, coordinated))


@transactions.command("describe")
def describe(
    transactional_id: Annotated[str, typer.Option(help="A pipeline's is its pipeline_id.")],
    bootstrap_servers: Servers,
    as_json: Json = False,
    command_config: Config = None,
) -> None:
    """Print what the coordinator knows of one transactional id, and which partitions are in its
    transaction.
    """
    from onceward.kafka.wire.transactions.listing import describe_transaction

    with _connected(bootstrap_servers, command_config) as client:
        found = describe_transaction(client, transactional_id)
    if found is None:
        raise ResourceError(
            f"no coordinator knows the transactional id {transactional_id}",
            next_step="`onceward transactions list --ids` has those that are known; one expires "
            "transactional.id.expiration.ms after its last transaction",
        )
    if as_json:
        typer.echo(json.dumps(_as_json(found), indent=2))
        return
    print_table(_described([found]))
    for where in found.partitions:
        typer.echo(f"  {where}")


@transactions.command("abort")
def abort(
    bootstrap_servers: Servers,
    transactional_id: Annotated[
        str | None,
        typer.Option(help="Fence its owner, whose transaction the coordinator aborts."),
    ] = None,
    topic: Annotated[
        str | None, typer.Option(help="With --partition: where a transaction hangs.")
    ] = None,
    partition: Annotated[int | None, typer.Option(min=0)] = None,
    start_offset: Annotated[
        int | None,
        typer.Option(min=0, help="The one that began there, should there be several."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    command_config: Config = None,
) -> None:
    """Abort a transaction, after a list of what it touches. By its transactional id where the
    coordinator has it; else, where it hangs, by a marker in the one partition.
    """
    if (transactional_id is None) == (topic is None) or (topic is None) != (partition is None):
        raise ConfigurationError(
            "it is not said what to abort",
            next_step="add --transactional-id, or --topic and --partition",
        )
    with _connected(bootstrap_servers, command_config) as client:
        if transactional_id is not None:
            _abort_by_id(client, transactional_id, yes)
        else:
            _abort_in(client, str(topic), int(partition or 0), start_offset, yes)


def _abort_by_id(client: KafkaClient, transactional_id: str, yes: bool) -> None:
    from onceward.kafka.wire.deadline import Deadline
    from onceward.kafka.wire.transactions import listing
    from onceward.kafka.wire.transactions.coordinator import NOBODY, TransactionCoordinator

    found = listing.describe_transaction(client, transactional_id)
    if found is None or found.state != listing.ONGOING:
        state = "unknown" if found is None else found.state
        raise ResourceError(
            f"transactional id {transactional_id} has nothing open (state: {state})",
            next_step="`onceward transactions list --topic …` says who holds a topic's readers up",
        )
    print_table(_described([found]))
    for where in found.partitions:
        typer.echo(f"  aborts what it has written to {where}")
    typer.echo("  fences whoever uses this transactional id: a running pipeline stops as Fenced")
    _must_agree(yes)
    deadline = Deadline(client.settings.request_timeout_ms)
    coordinator = TransactionCoordinator(client, transactional_id)
    from onceward.kafka.wire.conversation import Refused, Unanswered, raise_as_error

    try:
        coordinator.init_producer_id(NOBODY, found.timeout_ms, deadline)
    except (Refused, Unanswered) as outcome:
        raise_as_error(outcome)
    typer.echo(f"aborted; {transactional_id} has nothing open")


def _abort_in(
    client: KafkaClient, topic: str, partition: int, start_offset: int | None, yes: bool
) -> None:
    from onceward.ids import TopicPartition
    from onceward.kafka.wire.transactions import listing

    where = TopicPartition(topic, partition)
    found = [
        each
        for each in listing.open_producers(client, [where])
        if start_offset in (None, each.start_offset)
    ]
    if len(found) != 1:
        offsets = ", ".join(str(each.start_offset) for each in found)
        raise ResourceError(
            f"{where} has {len(found)} open transactions"
            + (f", from offsets {offsets}" if found else ""),
            next_step="add --start-offset with one of them"
            if found
            else "`onceward transactions list --topic …` says which partitions have one",
        )
    producer = found[0]
    owner = _owner(client, producer)
    print_table(_held(found, {producer.identity.producer_id} if owner else set()))
    if owner:
        raise ResourceError(
            f"{owner} has it open, and its coordinator would still commit its other partitions",
            next_step=f"abort it whole: --transactional-id {owner}",
        )
    typer.echo(f"  writes an abort marker for {producer.identity} into {where}")
    _must_agree(yes)
    listing.abort_in_partition(client, producer)
    typer.echo(f"aborted; readers of {where} go on")


def _owner(client: KafkaClient, producer: OpenProducer) -> str | None:
    """Return the transactional id whose coordinator has ``producer``'s transaction open."""
    from onceward.kafka.wire.transactions import listing

    for name, producer_id, _ in listing.list_transactions(client):
        if producer_id == producer.identity.producer_id:
            found = listing.describe_transaction(client, name)
            if (
                found is not None
                and found.started_at_ms is not None
                and producer.partition in found.partitions
            ):
                return name
    return None


def _must_agree(yes: bool) -> None:
    if not yes and not typer.confirm("Abort it?"):
        raise typer.Exit(1)


def _holders(client: KafkaClient, topics: Sequence[str]) -> list[OpenProducer]:
    from onceward.ids import TopicPartition
    from onceward.kafka.wire.transactions.listing import open_producers

    found = client.topic_partitions(topics)
    return open_producers(
        client, [TopicPartition(name, part) for name, parts in found.items() for part in parts]
    )


def _described(found: Sequence[DescribedTransaction]) -> object:
    rows = table(
        "TRANSACTIONAL ID", "STATE", "OPEN>", "TIMEOUT>", "PARTITIONS>", "PRODUCER>", "EPOCH>",
        "COORDINATOR>",
    )  # fmt: skip
    for each in found:
        rows.add_row(
            each.transactional_id,
            each.state,
            _age(each.started_at_ms),
            span(each.timeout_ms / 1000),
            str(len(each.partitions)),
            str(each.identity.producer_id),
            str(each.identity.epoch),
            str(each.coordinator),
        )
    return rows


def _held(found: Sequence[OpenProducer], coordinated: set[int]) -> object:
    rows = table("PARTITION", "FROM OFFSET>", "LAST WRITE>", "PRODUCER>", "EPOCH>", "HANGS")
    for each in found:
        hangs = each.identity.producer_id not in coordinated
        rows.add_row(
            str(each.partition),
            str(each.start_offset),
            f"{_age(each.last_write_ms)} ago",
            str(each.identity.producer_id),
            str(each.identity.epoch),
            "yes" if hangs else "",
        )
    return rows


def _age(since_ms: int | None) -> str:
    return "" if since_ms is None else span(max(0.0, time.time() - since_ms / 1000))


def _as_json(found: DescribedTransaction) -> dict[str, object]:
    return {
        "transactional_id": found.transactional_id,
        "producer_id": found.identity.producer_id,
        "epoch": found.identity.epoch,
        "state": found.state,
        "timeout_ms": found.timeout_ms,
        "started_at_ms": found.started_at_ms,
        "partitions": [list(where) for where in found.partitions],
        "coordinator": found.coordinator,
    }
