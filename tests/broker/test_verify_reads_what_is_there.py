"""The checker's readers, against real brokers and their files: every kind of record, every kind of
record batch.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from onceward.kafka.records.batch import Fragment, encode_fragments
from onceward.kafka.records.columns import HEADERS_TYPE, RecordColumns
from onceward.kafka.records.compression import Codec
from onceward_testing import LocalKafka
from onceward_verify.fencing import BatchHeader, record_batches, replica_folder
from onceward_verify.findings import CannotTell
from support.handmade_pipeline import HandmadePipeline
from support.verify_process import verify

ROWS = [
    (None, b"no key", None),
    (b"", b"an empty key", []),
    (b"key", None, [{"key": "name", "value": b"value"}]),
    (b"key", b"", [{"key": "", "value": None}, {"key": "ü", "value": b""}]),
    *((b"key-%d" % number, b"value " * number, None) for number in range(40)),
]


@pytest.fixture
def handmade(any_kafka: LocalKafka, new_topic: Callable[..., str]) -> Iterator[HandmadePipeline]:
    pipeline = HandmadePipeline(
        any_kafka.bootstrap_servers, f"by-hand-{uuid.uuid4().hex[:10]}", new_topic
    )
    yield pipeline
    pipeline.close()


def every_kind(codec: Codec, batch_bytes: int = 1_000_000) -> list[Fragment]:
    keys, values, headers = zip(*ROWS, strict=True)
    columns = RecordColumns.of(
        pa.array(values, pa.binary()),
        key=pa.array(keys, pa.binary()),
        headers=pa.array(headers, HEADERS_TYPE),
    )
    return encode_fragments(
        columns, codec=codec, batch_bytes=batch_bytes, now_ms=int(time.time() * 1000)
    )


def test_nulls_headers_and_every_compression_have_the_checksum_that_the_writer_gave_them(
    handmade: HandmadePipeline,
):
    for codec in Codec:
        handmade.batch(
            {
                handmade.out(0): every_kind(codec),
                handmade.out(1): every_kind(codec, batch_bytes=1_000),
            }
        )
    answer = verify(handmade)
    assert (answer["verdict"], answer["anomalies"]) == ("exactly_once", []), answer
    topic = answer["facts"]["topics"][handmade.output]
    assert topic["records"] == 2 * len(Codec) * len(ROWS)


def test_record_batches_and_markers_are_read_off_the_disk_as_kafka_itself_does(
    any_kafka: LocalKafka, handmade: HandmadePipeline
):
    handmade.batch({handmade.out(0): every_kind(Codec.ZSTD)})
    handmade.batch({handmade.out(0): every_kind(Codec.NONE, batch_bytes=1_000)}, commit=False)
    handmade.batch({handmade.out(0): every_kind(Codec.NONE)})
    assert verify(handmade)["verdict"] == "exactly_once"  # the markers are there, too
    (node,) = any_kafka.nodes
    folder = replica_folder([node.data_folder], handmade.output, 0, node.node_id)
    assert folder is not None
    ours = [
        (b.first, b.last, b.records, *b.identity, b.transactional, b.marker)
        for b in record_batches(folder)
    ]
    assert ours == kafkas_own_reading(any_kafka, folder)
    assert [batch[-1] for batch in ours if batch[-1]] == ["commit", "abort", "commit"]


def kafkas_own_reading(kafka: LocalKafka, folder: Path) -> list[tuple[object, ...]]:
    files = ",".join(map(str, sorted(folder.glob("*.log"))))
    found: list[tuple[object, ...]] = []
    for line in kafka.kafka_tool(
        "kafka-dump-log", "--files", files, "--deep-iteration"
    ).splitlines():
        if line.startswith("baseOffset:"):
            fields = dict(re.findall(r"(\w+): ([\w-]+)", line))
            names = ("baseOffset", "lastOffset", "count", "producerId", "producerEpoch")
            found.append(
                (*(int(fields[name]) for name in names), fields["isTransactional"] == "true", None)
            )
        elif marker := re.search(r"endTxnMarker: (\w+)", line):
            found[-1] = (*found[-1][:-1], marker[1].lower())
    return found


def test_a_segment_that_is_still_being_written_ends_with_its_last_whole_batch(
    any_kafka: LocalKafka, handmade: HandmadePipeline, tmp_path: Path
):
    handmade.batch({handmade.out(0): every_kind(Codec.NONE, batch_bytes=1_000)})
    assert verify(handmade)["verdict"] == "exactly_once"
    folder = any_kafka.nodes[0].data_folder / f"{handmade.output}-0"
    whole = (folder / f"{0:020d}.log").read_bytes()
    segment = tmp_path / f"{0:020d}.log"

    def batches_of(data: bytes) -> list[BatchHeader]:
        segment.write_bytes(data)
        return list(record_batches(tmp_path))

    everything = batches_of(whole)
    assert batches_of(whole[:-1]) == everything[:-1]
    assert batches_of(whole + bytes(5_000)) == everything
    assert batches_of(whole + whole[:30]) == everything
    with pytest.raises(CannotTell, match="checksum"):
        batches_of(whole[:200] + bytes([whole[200] ^ 1]) + whole[201:])
