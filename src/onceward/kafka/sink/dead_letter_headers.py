"""The headers that say of a dead letter why it was set aside. Names only: who reads letters needs
no Spark.

Written by :mod:`onceward.kafka.sink.dead_letters`, where their values are told, and read by
:mod:`onceward.kafka.dead_letters`. The last three are the names that ``KafkaSink(lineage=True)``
gives to output records.
"""

from __future__ import annotations

ERROR_CLASS, ERROR_MESSAGE, PIPELINE = (
    "onceward.error.class",
    "onceward.error.message",
    "onceward.pipeline",
)
TIMESTAMP, TOPIC, PARTITION, OFFSET = (
    "onceward.timestamp",
    "onceward.topic",
    "onceward.partition",
    "onceward.offset",
)
ABOUT = (ERROR_CLASS, ERROR_MESSAGE, PIPELINE, TIMESTAMP, TOPIC, PARTITION, OFFSET)
"""In this order, behind the record's own headers; what is not known is left out."""

TOO_LARGE = "RecordTooLarge"
"""The class of letters that are records of a pipeline's output, as it would have written them, not
of its source.
"""
