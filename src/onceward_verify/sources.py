"""Where the pipeline stands in its sources: the ledger's last positions, the group's offsets, the
ends (I8).

Called by ``checker``. Sources that are not Kafka topics of this cluster have no end that could be
asked for.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from onceward_verify.chain import Chain
from onceward_verify.cluster import COMMITTED, Cluster, Where
from onceward_verify.findings import Findings, place
from onceward_verify.ledger import kafka_position


def look_at_sources(
    cluster: Cluster,
    chain: Chain,
    findings: Findings,
    *,
    expect_caught_up: bool,
    has_group: bool = True,
) -> None:
    """Facts per source topic; with ``expect_caught_up`` everything must be at the sources' ends.

    :param has_group: the pipeline commits offsets to a consumer group of its own.
    """
    sources: dict[str, Any] = {}
    findings.facts["sources"] = sources
    if not chain.batches:
        return
    group = cluster.group_offsets() if has_group else None
    if group is None and expect_caught_up and has_group:
        findings.cannot_judge(
            f"the lag of consumer group {cluster.group}: DESCRIBE on it is not granted"
        )
    for number, span in enumerate(chain.batches[-1].spans):
        position = kafka_position(span.end)
        if position is None:
            sources[f"source {number}"] = {"position": span.end}
            if expect_caught_up:
                findings.cannot_judge(f"source {number}: not of Kafka, its end is not known here")
            continue
        for topic, reached in sorted(_by_topic(position).items()):
            sources[topic] = _look_at(cluster, topic, reached, group, findings, expect_caught_up)


def _look_at(
    cluster: Cluster,
    topic: str,
    reached: dict[int, int],
    group: dict[Where, int] | None,
    findings: Findings,
    expect_caught_up: bool,
) -> dict[str, Any]:
    partitions = cluster.partitions(topic)
    if partitions is None:
        if expect_caught_up:
            findings.cannot_judge(f"source topic {topic}: not on this cluster")
        return {"position": reached, "on_this_cluster": False}
    starts, ends = cluster.starts(partitions), cluster.ends(partitions)
    stable = cluster.ends(
        partitions, COMMITTED
    )  # nobody can read behind a source's own open transaction
    behind = group_behind = 0
    for where in partitions:
        end, position = stable[where], reached.get(where[1], starts[where])
        of_group = end if group is None else group.get(where, starts[where])
        behind += max(0, end - position)
        group_behind += max(0, end - of_group)
        if position > ends[where]:
            findings.cannot_judge(
                f"source {place(*where)}: read up to {position}, but it ends at {ends[where]}: "
                f"made anew, or truncated"
            )
        if expect_caught_up and position < end:
            detail = f"the ledger ends {end - position} records before the source does"
            findings.anomaly("lag", "I8", place(*where, position, end - 1), detail)
        elif expect_caught_up and of_group < end and group is not None and where not in group:
            # Offsets of a group that nobody is a member of expire (offsets.retention.minutes).
            findings.cannot_judge(
                f"the lag of consumer group {cluster.group}: it has no offset of {place(*where)}"
            )
        elif expect_caught_up and of_group < end:
            detail = f"the group's offset is {of_group}, the source ends at {end}"
            findings.anomaly("lag", "I8", place(*where, of_group, end - 1), detail)
    group_lag = None if group is None else group_behind
    return {
        "position": reached,
        "on_this_cluster": True,
        "records_behind": behind,
        "group_lag": group_lag,
    }


def _by_topic(position: dict[Where, int]) -> dict[str, dict[int, int]]:
    topics: dict[str, dict[int, int]] = defaultdict(dict)
    for (topic, partition), offset in sorted(position.items()):
        topics[topic][partition] = offset
    return dict(topics)
