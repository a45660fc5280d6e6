"""Our batches through a real broker, which takes them apart to validate them, to librdkafka and
the Java consumer.
"""

from __future__ import annotations

import json
import socket
import struct
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from record_strategies import Plain, columns_of
from test_golden_bytes import records as golden_records

from onceward.ids import ProducerIdentity
from onceward.kafka.records.batch import encode_fragments, stamp
from onceward.kafka.records.compression import Codec
from onceward.kafka.records.partitioner import partition_of_keys

pytestmark = pytest.mark.broker

WITHOUT_IDEMPOTENCE = ProducerIdentity(-1, -1)
BATCH_BYTES = 900_000  # below message.max.bytes


def produce(bootstrap_server, topic, batch):
    """One Produce request, version 7 (the first that may carry zstd), over a plain socket. Returns
    the error code.
    """
    name = struct.pack(">h", len(topic)) + topic.encode()
    body = struct.pack(">hhi", -1, -1, 30_000) + struct.pack(">i", 1) + name
    body += struct.pack(">iii", 1, 0, len(batch)) + batch
    request = struct.pack(">hhih", 0, 7, 1, -1) + body
    host, port = bootstrap_server.split(",")[0].split(":")
    with (
        socket.create_connection((host, int(port)), timeout=30) as connection,
        connection.makefile("rb") as answers,
    ):
        connection.sendall(struct.pack(">i", len(request)) + request)
        answer = answers.read(*struct.unpack(">i", answers.read(4)))
    error_at = (
        4 + 4 + len(name) + 4 + 4
    )  # correlation id, one topic, its name, one partition, its index
    return struct.unpack_from(">h", answer, error_at)[0]


def produce_all(kafka, topic, records, codec, level=None):
    fragments = encode_fragments(
        columns_of(records),
        codec=codec,
        batch_bytes=BATCH_BYTES,
        now_ms=1_700_000_000_000,
        compression_level=level,
    )
    assert {fragment.codec for fragment in fragments} == {codec}
    for fragment in fragments:
        batch = b"".join(stamp(fragment, WITHOUT_IDEMPOTENCE, -1, transactional=False))
        assert produce(kafka.bootstrap_servers, topic, batch) == 0
    return fragments


@pytest.mark.parametrize("codec", list(Codec))
def test_librdkafka_reads_every_edge_of_the_format(any_kafka, new_topic, read_committed, codec):
    topic = new_topic(any_kafka.bootstrap_servers)
    produce_all(any_kafka, topic, golden_records(), codec)
    read = [
        Plain(
            message.key(), message.value(), tuple(message.headers() or ()), message.timestamp()[1]
        )
        for message in read_committed(any_kafka.bootstrap_servers, topic)
    ]
    assert read == golden_records()


def stored_segment(kafka, topic):
    """The file that holds partition 0."""
    answer = kafka.kafka_tool("kafka-log-dirs", "--describe", "--topic-list", topic)
    folder = json.loads(answer[answer.index("{") :])["brokers"][0]["logDirs"][0]["logDir"]
    return Path(folder, f"{topic}-0", "00000000000000000000.log")


@pytest.mark.parametrize("codec", list(Codec))
def test_the_java_client_reads_batches_of_many_blocks(kafka, topic, codec):
    records = [Plain(b"%d" % (i % 13), b"line %d " % i * (i % 37 + 1)) for i in range(6000)]
    name = topic()
    fragments = produce_all(kafka, name, records, codec)
    # kafka-dump-log reads the stored bytes, which the broker keeps as they came, with the client's
    # own record classes.
    printed = kafka.kafka_tool(
        "kafka-dump-log", "--print-data-log", "--files", str(stored_segment(kafka, name))
    )
    batches = [line for line in printed.splitlines() if line.startswith("baseOffset: ")]
    assert len(batches) == len(fragments)
    assert all(
        f"compresscodec: {codec.name.lower()} " in line and "isvalid: true" in line
        for line in batches
    )
    payloads = [
        line.partition(" payload: ")[2] for line in printed.splitlines() if " payload: " in line
    ]
    assert payloads == [record.value.decode() for record in records]


@pytest.mark.parametrize(
    ("codec", "level"), [(Codec.GZIP, 9), (Codec.LZ4, 17), (Codec.ZSTD, 22), (Codec.ZSTD, -5)]
)
def test_batches_of_the_extreme_levels_are_read(kafka, topic, read_committed, codec, level):
    records = [Plain(None, b"line %d " % i * 30) for i in range(3000)]
    name = topic()
    produce_all(kafka, name, records, codec, level)
    assert [m.value() for m in read_committed(kafka.bootstrap_servers, name)] == [
        record.value for record in records
    ]


def test_the_broker_refuses_a_batch_whose_bytes_were_changed(kafka, topic):
    (fragment,) = encode_fragments(
        columns_of([Plain(b"k", b"v")]), codec=Codec.NONE, batch_bytes=1000, now_ms=1
    )
    batch = bytearray(b"".join(stamp(fragment, WITHOUT_IDEMPOTENCE, -1, transactional=False)))
    batch[-2] ^= 1
    corrupt_message = 2
    assert produce(kafka.bootstrap_servers, topic(), bytes(batch)) == corrupt_message


def test_keys_land_where_librdkafka_puts_them_with_the_java_partitioner(
    kafka, topic, read_committed
):
    name = topic(7)
    keys = [
        *(b"key-%d" % i for i in range(500)),
        *(b"x" * i for i in range(1, 40)),
        "schlüssel".encode(),
        b"",
    ]
    producer = Producer(
        {"bootstrap.servers": kafka.bootstrap_servers, "partitioner": "murmur2_random"}
    )
    for key in keys:
        producer.produce(name, key=key, value=b"v")
    assert producer.flush(30) == 0
    theirs = {
        message.key(): message.partition()
        for message in read_committed(kafka.bootstrap_servers, name)
    }
    # librdkafka takes an empty key for none ("murmur2_random: NULL keys are randomly
    # partitioned"); Java hashes it.
    ours = dict(zip(keys, partition_of_keys(pa.array(keys, pa.binary()), 7).tolist(), strict=True))
    assert len(theirs) == len(keys)
    assert {key: theirs[key] for key in keys if key} == {key: ours[key] for key in keys if key}
