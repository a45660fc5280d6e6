"""Position of the pipeline in its sources: ledger, group offsets, and ends (I8).

Sources that are not Kafka topics of this cluster have no end that could be asked for.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from onceward_verify.chain import BatchChain
from onceward_verify.cluster import COMMITTED, Cluster, Where
from onceward_verify.findings import Findings, place
from onceward_verify.ledger import kafka_position


def check_sources(
    cluster: Cluster,
    chain: BatchChain,
    findings: Findings,
    *,
    expect_caught_up: bool,
) -> None:
    """Add facts for each source topic.

    :param expect_caught_up: everything must be at the sources' ends.
    """
    sources: dict[str, Any] = {}
    findings.facts["sources"] = sources
    if not chain.batches:
        return
    has_group = chain.batches[-1].has_group
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
        ids = dict(span.ids)
        for topic, offsets in sorted(_by_topic(position).items()):
            if ids.get(topic) and ids[topic] != cluster.topic_id(topic, ids[topic]):
                facts = {"position": offsets, "on_this_cluster": False}
                findings.cannot_judge(
                    f"source topic {topic}: the one of that name on this cluster is another one: "
                    "made anew, or a mirror"
                )
            else:
                facts = _check_topic(cluster, topic, offsets, group, findings, expect_caught_up)
            sources[topic] = facts


def _check_topic(
    cluster: Cluster,
    topic: str,
    offsets: dict[int, int],
    group: dict[Where, int] | None,
    findings: Findings,
    expect_caught_up: bool,
) -> dict[str, Any]:
    partitions = cluster.partitions(topic)
    if partitions is None:
        if expect_caught_up:
            findings.cannot_judge(f"source topic {topic}: not on this cluster")
        return {"position": offsets, "on_this_cluster": False}
    starts, ends = cluster.starts(partitions), cluster.ends(partitions)
    # Nobody can read behind a source's own open transaction.
    stable = cluster.ends(partitions, COMMITTED)
    behind = group_behind = 0
    for where in partitions:
        end, position = stable[where], offsets.get(where[1], starts[where])
        group_offset = end if group is None else group.get(where, starts[where])
        behind += max(0, end - position)
        group_behind += max(0, end - group_offset)
        if position > ends[where]:
            findings.cannot_judge(
                f"source {place(*where)}: read up to {position}, but it ends at {ends[where]}: "
                f"made anew, or truncated"
            )
        if expect_caught_up and position < end:
            detail = f"the ledger ends {end - position} records before the source does"
            findings.anomaly("lag", "I8", place(*where, position, end - 1), detail)
        elif expect_caught_up and group_offset < end and where not in (group or ()):
            # Offsets of a group without members expire (offsets.retention.minutes).
            findings.cannot_judge(
                f"the lag of consumer group {cluster.group}: it has no offset of {place(*where)}"
            )
        elif expect_caught_up and group_offset < end:
            detail = f"the group's offset is {group_offset}, the source ends at {end}"
            findings.anomaly("lag", "I8", place(*where, group_offset, end - 1), detail)
    group_lag = None if group is None else group_behind
    return {
        "position": offsets,
        "on_this_cluster": True,
        "records_behind": behind,
        "group_lag": group_lag,
    }


def _by_topic(position: dict[Where, int]) -> dict[str, dict[int, int]]:
    topics: dict[str, dict[int, int]] = defaultdict(dict)
    for (topic, partition), offset in sorted(position.items()):
        topics[topic][partition] = offset
    return dict(topics)
