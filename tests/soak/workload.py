"""What goes in and what should come out: the model of the pipelines, shared by feeder, driver and
verdict.

Input record ``number`` of a partition carries its number, so that every count, order and content
can be checked without luck. *copy* (W1) writes each record with where it came from, *counts* (W3)
how often each key has been seen. *scatter* copies, too, but behind a shuffle that is not
repeatable: each time it is computed, a record gets another id and goes to another task by it.
Whatever Spark computes again for a part of a batch must therefore not meet the rest.
"""

from __future__ import annotations

SOURCE, COPIES, COUNTS, SCATTERED = "soak-source", "soak-copies", "soak-counts", "soak-scattered"
LEDGER = "onceward-ledger"
COPY_PIPELINE, COUNT_PIPELINE, SCATTER_PIPELINE = "soak-copy", "soak-count", "soak-scatter"
PIPELINES = (COPY_PIPELINE, COUNT_PIPELINE, SCATTER_PIPELINE)
OUTPUT_OF = {COPY_PIPELINE: COPIES, COUNT_PIPELINE: COUNTS, SCATTER_PIPELINE: SCATTERED}

LINEAGE = "partition=partition,offset=offset"
"""The headers in which a record of *scatter* says where it comes from, as ``onceward verify``
wants to hear it.
"""

SOURCE_PARTITIONS = 4
OUTPUT_PARTITIONS = {COPIES: 6, COUNTS: 3, SCATTERED: 4}
KEYS = 97
_WITHOUT_KEY = 11
_FILLER = b"x" * 24


def key_index(number: int) -> int:
    """Which key record ``number`` has, -1 for none."""
    return -1 if number % _WITHOUT_KEY == 5 else number % KEYS


def key_of(number: int) -> bytes | None:
    index = key_index(number)
    return None if index < 0 else b"key-%d" % index


def value_of(partition: int, number: int) -> bytes:
    return b"%d-%d-%s" % (partition, number, _FILLER)


def number_in(value: bytes) -> int:
    """The number that :func:`value_of` wrote."""
    return int(value.split(b"-", 2)[1])
