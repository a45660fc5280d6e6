"""``onceward transactions``: who holds up readers of committed records, and an end to it. No
Spark.

Registered in :mod:`onceward.cli`; the requests are in
:mod:`onceward.kafka.wire.transactions.listing`.
"""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from onceward.cli.shared import Config, Json, Servers, connect, print_table, say, table
from onceward.errors import ConfigurationError, ContradictoryOptions, ResourceError
from onceward.operate.logs import span

if TYPE_CHECKING:
    from onceward.ids import TopicPartition
    from onceward.kafka.wire.client import KafkaClient
    from onceward.kafka.wire.transactions.coordinator import TransactionDescription
    from onceward.kafka.wire.transactions.listing import Holder

transactions = typer.Typer(
    name="transactions",
    help="Transactions of any client: list them, and end one that readers wait for.",
    no_args_is_help=True,
)
Topics = Annotated[
    list[str] | None,
    typer.Option(
        "--topic", help="Ask the leaders of this topic who holds its readers up; may be repeated."
    ),
]
StartOffset = Annotated[
    int | None, typer.Option(min=0, help="The one that began there, should there be several.")
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


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
    """List what is open. With --topic also by partition: one that no coordinator knows of, and
    that is older than any may be, hangs, and only `abort` ends it, or `commit` where its
    coordinator has committed it.
    """
    from onceward.kafka.wire.transactions import listing

    with _connected(bootstrap_servers, command_config) as client:
        ids_and_states = listing.list_transactions(client)
        selected_ids = [
            name
            for name, _, state in ids_and_states
            if ids or state in (listing.ONGOING, *listing.ENDING)
        ]
        described = [
            found
            for name in selected_ids
            if (found := listing.describe_transaction(client, name)) is not None
        ]
        held, leaderless = _held(client, topic) if topic else ([], [])
    if leaderless:
        names = ", ".join(str(where) for where in leaderless)
        say(f"without a leader, so that nobody knows who is there: {names}", err=True)
    if as_json:
        document = {
            "transactions": [_as_json(each) for each in described],
            "partitions": [_held_as_json(each) for each in held],
            "leaderless": [list(where) for where in leaderless],
        }
        say(json.dumps(document, indent=2))
        return
    print_table(_described(described))
    if topic:
        print_table(_held_table(held))


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
        say(json.dumps(_as_json(found), indent=2))
        return
    print_table(_described([found]))
    for where in found.partitions:
        say(f"  {where}")


@transactions.command("abort")
def abort(
    bootstrap_servers: Servers,
    transactional_id: Annotated[
        str | None, typer.Option(help="Fence its owner, whose transaction the coordinator aborts.")
    ] = None,
    topic: Annotated[
        str | None, typer.Option(help="With --partition: where a transaction hangs.")
    ] = None,
    partition: Annotated[int | None, typer.Option(min=0)] = None,
    start_offset: StartOffset = None,
    yes: Yes = False,
    command_config: Config = None,
) -> None:
    """Abort a transaction, after a list of what it touches. By its transactional id where the
    coordinator has it; else, where it hangs, by a marker in the one partition.
    """
    by_id, by_place = transactional_id is not None, (topic, partition) != (None, None)
    if by_id and by_place:
        raise ContradictoryOptions(
            "two transactions are named, by an id and by a partition",
            next_step="leave out --transactional-id, or --topic and --partition",
        )
    if not by_id and (topic is None or partition is None):
        raise ConfigurationError(
            "it is not said what to abort",
            next_step="add --transactional-id, or --topic and --partition",
        )
    with _connected(bootstrap_servers, command_config) as client:
        if transactional_id is not None:
            _abort_by_id(client, transactional_id, yes)
        else:
            _end_in(client, str(topic), int(partition or 0), start_offset, yes, commit=False)


@transactions.command("commit")
def commit(
    bootstrap_servers: Servers,
    topic: Annotated[str, typer.Option(help="Where a transaction hangs.")],
    partition: Annotated[int, typer.Option(min=0)],
    start_offset: StartOffset = None,
    yes: Yes = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Although no coordinator knows any more that it has committed it."
        ),
    ] = False,
    command_config: Config = None,
) -> None:
    """Write the commit marker that a partition lacks, after a list of what it touches. Only where
    the coordinator has committed the transaction, and passed over this partition.
    """
    with _connected(bootstrap_servers, command_config) as client:
        _end_in(client, topic, partition, start_offset, yes, commit=True, force=force)


# As Admin.fenceProducers: brokers may allow less by now than that of the transaction
_FENCING_TIMEOUT_MS = 1


def _has_changed(what: str) -> ResourceError:
    return ResourceError(f"{what} has changed meanwhile", next_step="list the transactions again")


def _abort_by_id(client: KafkaClient, transactional_id: str, yes: bool) -> None:
    from onceward.kafka.wire.deadline import Deadline
    from onceward.kafka.wire.transactions import listing
    from onceward.kafka.wire.transactions.coordinator import NOBODY, TransactionCoordinator

    found = listing.describe_transaction(client, transactional_id)
    if found is not None and found.state in listing.ENDING:
        raise ResourceError(
            f"the transaction of {transactional_id} is decided (state: {found.state}); its "
            f"coordinator, broker {found.coordinator}, has still to tell partitions of it: "
            + ", ".join(str(where) for where in found.partitions),
            next_step="see that each of them has a leader; then their readers go on by themselves",
        )
    if found is None or found.state != listing.ONGOING:
        state = "unknown" if found is None else found.state
        raise ResourceError(
            f"transactional id {transactional_id} has nothing open (state: {state})",
            next_step="`onceward transactions list --topic …` says who holds a topic's readers up",
        )
    print_table(_described([found]))
    for where in found.partitions:
        say(f"  aborts what it has written to {where}")
    say("  fences whoever uses this transactional id: a running pipeline stops as Fenced")
    _must_agree(yes)
    # It would end what its producer has begun while somebody was reading the question
    again = listing.describe_transaction(client, transactional_id)
    if again is None or (again.identity, again.started_at_ms) != (
        found.identity,
        found.started_at_ms,
    ):
        raise _has_changed(f"the transaction of {transactional_id}")
    deadline = Deadline(client.settings.request_timeout_ms)
    coordinator = TransactionCoordinator(client, transactional_id)
    from onceward.kafka.wire.conversation import raised_as_errors

    with raised_as_errors():
        coordinator.init_producer_id(NOBODY, _FENCING_TIMEOUT_MS, deadline)
    say(f"aborted; {transactional_id} has nothing open")


def _end_in(
    client: KafkaClient,
    topic: str,
    partition: int,
    start_offset: int | None,
    yes: bool,
    *,
    commit: bool,
    force: bool = False,
) -> None:
    from onceward.ids import TopicPartition
    from onceward.kafka.wire.reads.offsets import existing_leader
    from onceward.kafka.wire.transactions.listing import end_in_partition, holders

    where = TopicPartition(topic, partition)
    existing_leader(client, where)
    held = [
        each
        for each in holders(client, [where])
        if start_offset in (None, each.producer.start_offset)
    ]
    if len(held) != 1:
        offsets = ", ".join(str(each.producer.start_offset) for each in held)
        raise ResourceError(
            f"{where} has {len(held)} open transactions"
            + (f", from offsets {offsets}" if held else ""),
            next_step="add --start-offset with one of them"
            if held
            else "`onceward transactions list --topic …` says which partitions have one",
        )
    print_table(_held_table(held))
    producer = held[0].producer
    _must_hang(held[0], commit=commit, force=force)
    kind = "a commit" if commit else "an abort"
    say(f"  writes {kind} marker for {producer.identity} into {where}")
    _must_agree(yes, "Commit" if commit else "Abort")
    # A marker would end what its producer has begun while somebody was reading the question
    again = [each for each in holders(client, [where]) if each.producer == producer]
    if not again:
        raise _has_changed(f"the transaction of {producer.identity} in {where}")
    _must_hang(again[0], commit=commit, force=force)
    end_in_partition(client, producer, commit=commit)
    say(f"{'committed' if commit else 'aborted'}; readers of {where} go on")


def _must_hang(held: Holder, *, commit: bool, force: bool) -> None:
    from onceward.kafka.dead_letters.text import printable

    where, identity = held.producer.partition, held.producer.identity
    # Anybody may have chosen these ids
    owner, committed_by = printable(held.owner or ""), printable(held.committed_by or "")
    if owner:
        raise ResourceError(
            f"{owner} has {where} in its transaction, and its coordinator would still commit the "
            "other partitions",
            next_step=f"abort it whole: --transactional-id {shlex.quote(owner)}",
        )
    if not held.hangs:
        raise ResourceError(
            f"no coordinator has the transaction of {identity} in {where}, but its "
            "last record is younger than the brokers' transaction.max.timeout.ms: a coordinator "
            "that is moving may still commit it",
            next_step=f"ask again in {span(held.young_ms / 1000)}",
        )
    if committed_by and not commit:
        raise ResourceError(
            f"the coordinator of {committed_by} has committed the transaction of {identity}, "
            f"and its marker never came to {where}: an abort would take away what is decided",
            next_step=f"`onceward transactions commit --topic {where.topic} --partition "
            f"{where.partition} --bootstrap-servers …`. Only where you know that these records "
            "came after the commit, as before KIP-890, end them with kafka-transactions.sh abort",
        )
    if commit and not committed_by and not force:
        raise ResourceError(
            f"no coordinator says that it has committed the transaction of {identity} in {where}",
            next_step=f"end it with `onceward transactions abort --topic {where.topic} "
            f"--partition {where.partition} --bootstrap-servers …`",
        )


def _must_agree(yes: bool, verb: str = "Abort") -> None:
    try:
        if yes or typer.confirm(f"{verb} it?"):
            return
    except typer.Abort:
        say("", err=True)  # behind the question
    say("nothing was done; --yes does not ask", err=True)
    raise typer.Exit(1)


def _held(client: KafkaClient, topics: Sequence[str]) -> tuple[list[Holder], list[TopicPartition]]:
    """Return who holds readers of ``topics`` up, and the partitions that nobody could ask."""
    from onceward.ids import TopicPartition
    from onceward.kafka.wire.client import NO_LEADER
    from onceward.kafka.wire.transactions.listing import holders

    found = {
        TopicPartition(name, part): leader
        for name, parts in client.topic_partitions(topics).items()
        for part, leader in parts.items()
    }
    asked = [where for where, leader in found.items() if leader != NO_LEADER]
    return holders(client, asked), sorted(found.keys() - asked)


def _described(found: Sequence[TransactionDescription]) -> object:
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
            len(each.partitions),
            *each.identity,
            each.coordinator,
        )
    return rows


def _held_table(found: Sequence[Holder]) -> object:
    rows = table(
        "PARTITION", "FROM OFFSET>", "LAST TIMESTAMP>", "PRODUCER>", "EPOCH>", "OWNER", "HANGS"
    )
    for each in found:
        producer = each.producer
        soon = "" if each.owner else f"in {span(each.young_ms / 1000)}"
        rows.add_row(
            producer.partition,
            producer.start_offset,
            f"{_age(producer.last_write_ms)} ago",
            *producer.identity,
            each.owner or "",
            ("yes, committed" if each.committed_by else "yes") if each.hangs else soon,
        )
    return rows


def _age(since_ms: int | None) -> str:
    return "" if since_ms is None else span(max(0.0, time.time() - since_ms / 1000))


def _held_as_json(found: Holder) -> dict[str, object]:
    producer = found.producer
    return {
        "topic": producer.partition.topic,
        "partition": producer.partition.partition,
        "start_offset": producer.start_offset,
        "last_write_ms": producer.last_write_ms,
        "producer_id": producer.identity.producer_id,
        "epoch": producer.identity.epoch,
        "owner": found.owner,
        "hangs": found.hangs,
        "committed_by": found.committed_by,
        "young_ms": found.young_ms,
    }


def _as_json(found: TransactionDescription) -> dict[str, object]:
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
