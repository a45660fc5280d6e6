"""How a story has ended: all is closed and caught up, or a stop has a name (I8); and who was
fenced when (I7).
"""

from __future__ import annotations

from typing import Any

from simulation.judge.chain import Chain, positions
from simulation.judge.facts import Facts
from simulation.judge.verdict import Violation

_LATE_SECONDS = 3.0
"""The sequencer looks at the clock once a second."""


def judge_ending(facts: Facts) -> list[Violation]:
    """I8: the query has caught up, or was stopped by a named error; nothing is open."""
    world = facts.world
    said: list[Violation] = []
    if not facts.caught_up and facts.stopped_by is None:
        last = world.starts[-1]
        how = (
            f"ended with {type(last.error).__name__}: {last.error}"
            if last.error is not None
            else "did not end"
        )
        sentence = (
            f"it never caught up, though all faults are over; start {last.number}, the "
            f"last one, {how}"
        )
        said.append(Violation("I8", sentence))
    if (
        world.once_more
        and facts.stopped_by is not None
        and not facts.user_is("twice", "two sinks")
    ):
        name = type(facts.stopped_by).__name__
        sentence = f"it had caught up, and nobody may start it again: {name}: {facts.stopped_by}"
        said.append(Violation("I8", sentence))
    seconds, who = world.longest_lease
    if seconds > lease_limit_seconds(facts.setting) + _LATE_SECONDS:
        said.append(Violation("I8", f"{who} for {seconds:.1f} s, and nobody has ended the epoch"))
    left = world.cluster.open_transactions()
    return said + [
        Violation("I8", f"a transaction is open when all is over: {what}") for what in left
    ]


def lease_limit_seconds(setting: Any) -> float:
    """How long a task may hold a partition: twice as long as it may take to deliver, for its own
    error says more, and no longer than a transaction; and a moment more.
    """
    delivery_ms = max(setting.delivery_timeout_ms, setting.request_timeout_ms)
    return min(2 * delivery_ms, setting.transaction_timeout_ms) / 1000 + 5


def judge_lag(facts: Facts, chain: Chain, source: str) -> list[Violation]:
    """I8: who has caught up has told the ledger so. (Batches that a function leaves out are in no
    ledger.)
    """
    if not facts.caught_up or facts.swallowed or facts.user_is("skips", "leaves out"):
        return []
    ends, counted = chain.ends(), facts.world.source
    said = []
    for partition in range(counted.partitions):
        end, produced = ends.get((source, str(partition)), 0), counted.produced(partition)
        if end != produced:
            sentence = (
                f"the ledger ends at {end} of {source}-{partition}, which has {produced} records"
            )
            said.append(Violation("I8", sentence))
    return said


def judge_returns(facts: Facts, chain: Chain) -> list[Violation]:
    """I1: a batch of which the sink has told Spark that it is committed, is: by this run, or by
    one before it.

    Spark may forget such a batch at once; that somebody else writes it a moment later is luck.
    """
    world = facts.world
    zero_ms = world.cluster.around.now_ms() - world.sim.now * 1000
    known: dict[tuple[str, int], list[tuple[str, float]]] = {}
    for record in chain.written:
        known.setdefault((record.query_id, record.batch_id), []).append(
            (record.run_id, record.ended_ms - zero_ms)
        )
    said = []
    for start, batch_id, when in world.returned:
        records = known.get((start.query.checkpoint.query_id, batch_id), ())
        run_id = start.query.run_id
        if not any(run == run_id or ended <= when * 1000 + 1 for run, ended in records):
            later = (
                f"{records[0][0]} committed it later, at {records[0][1] / 1000:.3f} s"
                if records
                else "nobody did"
            )
            sentence = (
                f"at {when:.3f} s {run_id} had Spark told that batch {batch_id} is "
                f"committed: {later}"
            )
            said.append(Violation("I1", sentence))
    return said


def judge_group(facts: Facts, chain: Chain, group: str) -> list[Violation]:
    """I6: the group's offsets are committed with the ledger's records, so they are where one of
    them ends; where the newest does, unless a broker was away when it was written (a source is
    known by its addresses).
    """
    committed = {
        (topic, str(partition)): offset
        for (topic, partition), offset in facts.world.cluster.group_offsets(group).items()
    }
    if not facts.setting.at_home or not chain.records:
        return (
            [Violation("I6", f"group {group} has offsets, and nothing has committed any")]
            if committed
            else []
        )
    if committed == positions(chain.records[-1].ends):
        return []
    where = (
        f"group {group} is at {committed}, the ledger ends at {positions(chain.records[-1].ends)}"
    )
    if not facts.any_of("broker:", "kafka:", "net:", "answer:"):
        return [Violation("I6", where)]
    known = [positions(record.ends) for record in chain.records]
    if committed and committed not in known:
        return [Violation("I6", f"{where}, and no record ends where the group is")]
    return []


def judge_takeovers(facts: Facts, chain: Chain) -> list[Violation]:
    """I7: once a copy has opened, nothing of whoever had the id before becomes visible.

    ``opened_at`` is when a start had the id, and knew what the ledger says; ``identities`` are
    those under which it tried to commit, the first of them not older than what it was given.
    Whoever commits under an older epoch of the same producer had the id before: the marker must
    have been written by then.
    """
    world = facts.world
    heirs = [
        (start.identities[0], start.opened_at, start.number)
        for start in world.starts
        if start.opened_at >= 0 and start.identities
    ]
    if len(heirs) < 2:
        return []
    said = []
    zero_ms = world.cluster.around.now_ms() - world.sim.now * 1000
    for (producer, epoch), opened, number in heirs:
        until_ms = zero_ms + opened * 1000 + 1
        for record in chain.written:
            if (
                record.identity[0] == producer
                and record.identity[1] < epoch
                and record.ended_ms > until_ms
            ):
                if record.run_id == world.starts[number].query.run_id:
                    continue
                sentence = (
                    f"{record.said} of {record.run_id} became visible at "
                    f"{(record.ended_ms - zero_ms) / 1000:.3f} s; "
                    f"start {number}, whose first epoch is {epoch}, had opened at {opened:.3f} s"
                )
                said.append(Violation("I7", sentence))
    return said


def judge_heirs(facts: Facts, chain: Chain) -> list[Violation]:
    """I7: what becomes visible is of the copy that took the pipeline over last. Under whatever
    epoch: one that was overtaken may have taken the id back.

    Of two that opened at the same time nobody can tell here which was the last. And once a
    coordinator has forgotten the id, only the ledger tells who is newer: not that somebody has
    opened and written nothing.
    """
    world = facts.world
    if world.cluster.ids_forgotten:
        return []
    runs = {start.query.run_id: start for start in world.starts}
    zero_ms = world.cluster.around.now_ms() - world.sim.now * 1000
    said = []
    for record in chain.written:
        writer = runs.get(record.run_id)
        when = (record.ended_ms - zero_ms) / 1000
        opened = [at for _, at in writer.opens if at <= when] if writer is not None else []
        if not opened:
            continue
        for heir in world.starts:
            since = [at for began, at in heir.opens if began > opened[-1] and at + 0.001 < when]
            if heir is not writer and since:
                sentence = (
                    f"{record.said} of {record.run_id}, which had opened at {opened[-1]:.3f} s, "
                    f"became visible at "
                    f"{when:.3f} s; start {heir.number} had opened since, at {since[0]:.3f} s"
                )
                said.append(Violation("I7", sentence))
                break
    return said
