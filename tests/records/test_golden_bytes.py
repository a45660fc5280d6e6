"""Bytes that real clients wrote: the Java client's builder of Kafka 4.3.1, and librdkafka by way
of a broker's log.

`golden/make_golden.py` says how they were made.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pyarrow as pa
import pytest
from record_strategies import IDENTITY, Plain, as_plain, columns_of

from onceward.ids import ProducerIdentity
from onceward.kafka.records.batch import encode_fragments, stamp
from onceward.kafka.records.compression import Codec
from onceward.kafka.records.partitioner import murmur2
from onceward.kafka.records.reader import ControlType, read_batches

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


@functools.cache
def golden():
    return json.loads(Path(__file__).with_name("golden").joinpath("golden.json").read_text())


def unhex(text):
    return None if text is None else bytes.fromhex(text)


@functools.cache
def records():
    return [
        Plain(
            unhex(row["key"]),
            unhex(row["value"]),
            tuple((name, unhex(value)) for name, value in row["headers"]),
            row["timestamp"],
        )
        for row in golden()["records"]
    ]


def test_an_uncompressed_batch_is_the_java_clients_byte_for_byte():
    (fragment,) = encode_fragments(
        columns_of(records()), codec=Codec.NONE, batch_bytes=1_000_000, now_ms=0
    )
    assert (
        b"".join(stamp(fragment, IDENTITY, 345, transactional=True)).hex()
        == golden()["java"]["none"]
    )


def test_a_batch_is_librdkafkas_byte_for_byte_but_for_what_the_broker_and_the_producer_set():
    (theirs,) = read_batches(unhex(golden()["librdkafka"]["none"]))
    (fragment,) = encode_fragments(
        columns_of(records()), codec=Codec.NONE, batch_bytes=1_000_000, now_ms=0
    )
    nobody = ProducerIdentity(theirs.producer_id, theirs.producer_epoch)
    ours = b"".join(stamp(fragment, nobody, theirs.base_sequence, transactional=False))
    leader_epoch = slice(12, 16)
    wanted = unhex(golden()["librdkafka"]["none"])
    assert ours[: leader_epoch.start] + ours[leader_epoch.stop :] == wanted[:12] + wanted[16:]


@pytest.mark.parametrize("client", ["java", "librdkafka"])
@pytest.mark.parametrize("codec", CODECS)
def test_batches_of_real_clients_are_read(client, codec):
    (batch,) = read_batches(unhex(golden()[client][codec]))
    assert batch.codec is Codec[codec.upper()]
    assert [as_plain(record) for record in batch.records] == records()
    if client == "java":
        assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (4711, 12, 345)
        assert batch.is_transactional


@pytest.mark.parametrize(
    ("name", "kind"), [("commit", ControlType.COMMIT), ("abort", ControlType.ABORT)]
)
def test_transaction_markers_are_read(name, kind):
    (marker,) = read_batches(unhex(golden()["java"][name]))
    assert marker.is_control
    assert marker.is_transactional
    assert marker.control_type is kind
    assert (marker.base_offset, marker.producer_id, marker.producer_epoch) == (77, 4711, 12)


def test_murmur2_is_the_java_clients():
    vectors = golden()["java"]["murmur2"]
    keys = pa.array([bytes.fromhex(key) for key, _ in vectors], pa.binary())
    assert murmur2(keys).astype("int32").tolist() == [signed for _, signed in vectors]
