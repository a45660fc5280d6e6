"""Our `Produce` bytes against kafka-python's own encoder, for every version that we speak."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.producer import ProduceRequest

from onceward.ids import TopicPartition
from onceward.kafka.wire.appends.produce_frame import ProduceFrame

TOPICS = st.text("abcä-_.", min_size=1, max_size=200)
BATCHES = st.dictionaries(
    st.builds(TopicPartition, TOPICS, st.integers(0, 2**31 - 1)),
    st.binary(max_size=400),
    min_size=1,
    max_size=6,
)


def theirs(
    batches: dict[TopicPartition, bytes], version: int, transactional_id: str | None
) -> bytes:
    by_topic: dict[str, list[object]] = {}
    for partition, records in batches.items():
        data = ProduceRequest.TopicProduceData.PartitionProduceData(
            index=partition.partition, records=records
        )
        by_topic.setdefault(partition.topic, []).append(data)
    request = ProduceRequest(
        transactional_id=transactional_id,
        acks=-1,
        timeout_ms=1234,
        topic_data=[
            ProduceRequest.TopicProduceData(name=t, partition_data=p) for t, p in by_topic.items()
        ],
    )
    request.API_VERSION = version
    request.with_header(correlation_id=77, client_id="me")
    return bytes(request.encode(header=True, framed=True))


def ours(
    batches: dict[TopicPartition, bytes], version: int, transactional_id: str | None
) -> bytes:
    split = {
        partition: [records[:61], memoryview(records)[61:]]
        for partition, records in batches.items()
    }
    frame = ProduceFrame(
        split,
        transactional_id=transactional_id,
        acks=-1,
        timeout_ms=1234,
        min_version=3,
        max_version=12,
    )
    frame.API_VERSION = version
    frame.with_header(correlation_id=77, client_id="me")
    return bytes(frame.encode())


@pytest.mark.parametrize("version", range(3, 13))
@given(batches=BATCHES, transactional_id=st.none() | st.text("xy", max_size=130))
def test_the_bytes_are_those_of_kafka_python(
    version: int, batches: dict[TopicPartition, bytes], transactional_id: str | None
) -> None:
    assert ours(batches, version, transactional_id) == theirs(batches, version, transactional_id)


def test_records_never_show_in_a_repr() -> None:
    frame = ProduceFrame(
        {TopicPartition("t", 1): [b"secret"]},
        transactional_id=None,
        acks=-1,
        timeout_ms=1,
        min_version=3,
        max_version=12,
    )
    assert "secret" not in repr(frame)
    assert "t-1" in repr(frame)
