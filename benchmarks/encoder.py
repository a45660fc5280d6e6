"""How fast columns become record batches on one core, beside what else a Python program could use.

Called by :mod:`__main__`. All contenders get the same records in the shape that suits them best:
we Arrow columns, kafka-python and librdkafka lists of ``bytes``. What each does:

* onceward: ``encode_fragments`` and ``stamp``: batches ready for the wire, with CRC-32C and
  content checksum.
* kafka-python: ``DefaultRecordBatchBuilder``: the same batches, without the content checksum.
* librdkafka: ``produce()`` of confluent-kafka to a broker that never answers: records are queued
  only. Encoding, CRC and sending would come on top, so this is what its Python side costs at
  least.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from benchmarks.records import Sample, sample
from onceward.ids import ProducerIdentity
from onceward.kafka.records.batch import encode_fragments, stamp
from onceward.kafka.records.compression import Codec

_BATCH_BYTES = 1_000_000
_NOBODY = "127.0.0.1:1"  # the port of tcpmux, long out of use
_CASES = ((100, 200_000), (1_000, 40_000))  # value bytes, records: about 20 and 40 MB
_REPEATS = {"onceward": 25, "kafka-python": 3, "librdkafka produce()": 3}


@dataclass(frozen=True, slots=True)
class EncoderFigures:
    """One contender at one value size: medians over repeats. MB are millions of bytes of keys and
    values.
    """

    contender: str
    value_bytes: int
    records_per_cpu_s: float
    mb_per_cpu_s: float
    records_per_s: float


def measure() -> list[EncoderFigures]:
    """Every contender at every size, each after a warm-up of its own."""
    figures = []
    for value_bytes, count in _CASES:
        rows = sample(count, value_bytes)
        for contender, run in (
            ("onceward", _onceward),
            ("kafka-python", _kafka_python),
            ("librdkafka produce()", _librdkafka),
        ):
            figures.append(_measured(contender, run, rows, value_bytes))
    return figures


def _measured(
    contender: str, run: Callable[[Sample], None], rows: Sample, value_bytes: int
) -> EncoderFigures:
    run(rows)
    cpu_s, wall_s = [], []
    for _ in range(_REPEATS[contender]):
        gc.collect()
        cpu, wall = time.process_time(), time.perf_counter()
        run(rows)
        cpu_s.append(time.process_time() - cpu)
        wall_s.append(time.perf_counter() - wall)
    count, cpu_median = len(rows.values), median(cpu_s)
    return EncoderFigures(
        contender=contender,
        value_bytes=value_bytes,
        records_per_cpu_s=count / cpu_median,
        mb_per_cpu_s=rows.payload_bytes / cpu_median / 1e6,
        records_per_s=count / median(wall_s),
    )


def _onceward(rows: Sample) -> None:
    identity = ProducerIdentity(1, 0)
    sequence = 0
    for fragment in encode_fragments(
        rows.columns, codec=Codec.NONE, batch_bytes=_BATCH_BYTES, now_ms=rows.now_ms
    ):
        stamp(fragment, identity, sequence, transactional=True)
        sequence += fragment.count


def _kafka_python(rows: Sample) -> None:
    from kafka.record.default_records import DefaultRecordBatchBuilder

    def fresh(sequence: int) -> DefaultRecordBatchBuilder:
        return DefaultRecordBatchBuilder(2, 0, True, 1, 0, sequence, _BATCH_BYTES)

    builder, offset = fresh(0), 0
    for number, (key, value) in enumerate(zip(rows.keys, rows.values, strict=True)):
        if builder.append(offset, rows.now_ms, key, value, []) is None:  # full
            builder.build()
            builder, offset = fresh(number), 0
            builder.append(offset, rows.now_ms, key, value, [])
        offset += 1
    builder.build()


def _librdkafka(rows: Sample) -> None:
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": _NOBODY,
            "queue.buffering.max.messages": 10_000_000,
            "queue.buffering.max.kbytes": 2_000_000,
            "log_level": 0,
        }
    )
    produce = producer.produce
    for key, value in zip(rows.keys, rows.values, strict=True):
        produce("nowhere", value, key)
    producer.purge()
    producer.flush(1)
