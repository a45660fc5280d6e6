"""What goes in and what should come out: the model of both pipelines, shared by feeder, driver and verdict.

Input record ``number`` of a partition carries its number, so that every count, order and content can be checked without
luck. *copy* (W1) writes each record with where it came from, *counts* (W3) how often each key has been seen.
"""

from __future__ import annotations

SOURCE, COPIES, COUNTS = "soak-source", "soak-copies", "soak-counts"
LEDGER = "onceward-ledger"
COPY_PIPELINE, COUNT_PIPELINE = "soak-copy", "soak-count"
PIPELINES = (COPY_PIPELINE, COUNT_PIPELINE)
OUTPUT_OF = {COPY_PIPELINE: COPIES, COUNT_PIPELINE: COUNTS}

SOURCE_PARTITIONS = 4
OUTPUT_PARTITIONS = {COPIES: 6, COUNTS: 3}
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
