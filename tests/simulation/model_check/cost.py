"""What a batch costs the model: ``python -m simulation.model_check.cost``. It shall be 80 µs at
most.

A batch of transaction version 2: two records' batches to two partitions, offsets, a ledger record,
``EndTxn``, and the markers of the four partitions; the building of the requests is not counted.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from typing import Any

from kafka.protocol.producer import EndTxnRequest, InitProducerIdRequest, TxnOffsetCommitRequest

from onceward.ids import ProducerIdentity, TopicPartition
from onceward.kafka.records.batch import Fragment, stamp
from onceward.kafka.records.compression import Codec
from onceward.kafka.wire.appends.produce_frame import ProduceFrame
from simulation.model_check.sides import PlainSurroundings
from simulation.world.kafka.cluster import Cluster

_ROUNDS = 3_000
_NAME = "pipeline"


def microseconds() -> float:
    """CPU time of one batch."""
    around = PlainSurroundings()
    around.lags.clear()
    cluster = Cluster(around)
    for topic, partitions in (("in", 1), ("out", 2), ("ledger", 1)):
        cluster.create_topic(topic, partitions)
    me = _identity(cluster)
    fragment = Fragment(b"x" * 100, 3, Codec.NONE, 0, 0, None)  # type: ignore[arg-type]
    gc.collect()
    gc.disable()
    try:
        began = time.process_time()
        for _ in range(_ROUNDS):
            me = _batch(cluster.receive, cluster, fragment, me)
        whole = time.process_time() - began
        began = time.process_time()
        for _ in range(_ROUNDS):
            _batch(_nobody, cluster, fragment, me)
        building = time.process_time() - began
    finally:
        gc.enable()
    assert cluster.open_transactions() == []
    assert cluster.log("out", 1).high_watermark == _ROUNDS * 4
    return (whole - building) / _ROUNDS * 1e6


def _identity(cluster: Cluster) -> ProducerIdentity:
    request = InitProducerIdRequest(
        transactional_id=_NAME, transaction_timeout_ms=60_000, producer_id=-1, producer_epoch=-1,
        min_version=3,
        max_version=5,
    )  # fmt: skip
    given: list[Any] = []
    cluster.receive(cluster.home_of(_NAME).leader, "cost", request, given.append)
    return ProducerIdentity(given[0].producer_id, given[0].producer_epoch)


def _batch(
    receive: Callable[..., Any], cluster: Cluster, fragment: Fragment, me: ProducerIdentity
) -> ProducerIdentity:
    answers: list[Any] = []
    kind = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
    for topic, partition in (("out", 0), ("out", 1), ("ledger", 0)):
        where = TopicPartition(topic, partition)
        frame = ProduceFrame(
            {where: stamp(fragment, me, 0, transactional=True)}, transactional_id=_NAME, acks=-1,
            timeout_ms=30_000,
            min_version=12, max_version=12,
        )  # fmt: skip
        receive(cluster.partitions[where].leader, "cost", frame, answers.append)
    offsets = kind(
        name="in",
        partitions=[
            kind.TxnOffsetCommitRequestPartition(
                partition_index=0,
                committed_offset=5,
                committed_leader_epoch=-1,
                committed_metadata="",
            )
        ],
    )
    commit = TxnOffsetCommitRequest(
        transactional_id=_NAME, group_id=_NAME, producer_id=me.producer_id,
        producer_epoch=me.epoch, generation_id=-1,
        member_id="", group_instance_id=None, topics=[offsets], min_version=5, max_version=5,
    )  # fmt: skip
    receive(cluster.group_home_of(_NAME).leader, "cost", commit, answers.append)
    end = EndTxnRequest(
        transactional_id=_NAME, producer_id=me.producer_id, producer_epoch=me.epoch,
        committed=True, min_version=5,
        max_version=5,
    )  # fmt: skip
    receive(cluster.home_of(_NAME).leader, "cost", end, answers.append)
    if not answers:
        return me
    assert answers[-1].error_code == 0
    return ProducerIdentity(answers[-1].producer_id, answers[-1].producer_epoch)


def _nobody(*_: Any) -> None:
    """Requests that are built, and go nowhere."""


if __name__ == "__main__":
    sys.stdout.write(f"{min(microseconds() for _ in range(3)):.0f} µs a batch\n")
