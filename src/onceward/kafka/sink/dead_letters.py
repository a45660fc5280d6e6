"""Dead letters as records of a topic: what could not be read, and what the output's topic would
not take. Driver only.

Called by :mod:`sink` for what the formats of a query cannot read (``engine.decoding``), and by
:mod:`columns` for what is too large. Key and value stay as they came; the timestamp is the time of
writing, or a topic's retention would take old ones at once. After the headers that a record has
come, of some name the last one counting:

========================  =========================================================================
header                    value, UTF-8
========================  =========================================================================
onceward.error.class      ``BadFraming``, ``UnknownSchemaId``, ``DoesNotFit``, ``RecordTooLarge`` …
onceward.error.message    what is wrong, a sentence
onceward.pipeline         the pipeline id
onceward.timestamp        the source record's timestamp, milliseconds since 1970; of a record that
                          is too large the one that it would have had, if it had one
onceward.topic            where the record stood: topic,
onceward.partition        partition and
onceward.offset           offset; the names that ``KafkaSink(lineage=True)`` gives to output
                          records, so that ``onceward verify --conserves`` accounts for dead
                          letters, too
========================  =========================================================================

Numbers are ASCII decimals. What is not known is left out: a record that is too large is one of the
output, and says where it came from with ``lineage=True`` only.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame

from onceward.ids import PipelineId
from onceward.kafka.source import lineage as source

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
of its source."""


HEADERS = "array<struct<key: string, value: binary>>"
LINEAGE = {
    TOPIC: f"CAST({source.TOPIC} AS BINARY)",
    PARTITION: f"CAST(CAST({source.PARTITION} AS STRING) AS BINARY)",
    OFFSET: f"CAST(CAST({source.OFFSET} AS STRING) AS BINARY)",
}

_RECORD_OVERHEAD = 128
"""More than a record batch of one record has besides key, value and headers: 61 bytes of the
batch's header, 6 varints of at most 5 and 10 bytes (``kafka.records.layout``)."""
_HEADER_OVERHEAD = 10


def source_letters(letters: DataFrame, pipeline: PipelineId, *, lineage: bool) -> DataFrame:
    """Return columns of the engine's dead letters as a sink writes them (:mod:`columns`);
    with ``lineage`` it adds those headers by itself."""
    own = {
        ERROR_CLASS: "CAST(error_class AS BINARY)",
        ERROR_MESSAGE: "CAST(error_message AS BINARY)",
        PIPELINE: _text(pipeline),
        TIMESTAMP: "CAST(CAST(unix_millis(source_timestamp) AS STRING) AS BINARY)",
    }
    where = source.COLUMNS if lineage else ()
    headers = with_headers("headers", own if lineage else {**own, **LINEAGE})
    return letters.selectExpr("key", "value", f"{headers} AS headers", *where)


def with_headers(before: str, added: Mapping[str, str]) -> str:
    """Return SQL: headers ``before`` (may be null), then ``added``, SQL by names, but nulls."""
    each = ", ".join(
        f"named_struct('key', '{name}', 'value', {value})" for name, value in added.items()
    )
    return (
        f"concat(coalesce({before}, CAST(array() AS {HEADERS})), filter(array({each}), header -> "
        "header.value IS NOT NULL))"
    )


def too_large(limit_bytes: int, *, has_key: bool, headers: str | None) -> str:
    """Return SQL: a record that brokers would refuse, by its size before compression; ``headers``
    are SQL."""
    size = " + ".join(
        f"coalesce(octet_length(CAST({name} AS BINARY)), 0)"
        for name in ["value", "key"][: 1 + has_key]
    )
    if headers is not None:
        each = (
            f"total + {_HEADER_OVERHEAD} + octet_length(header.key) + "
            "coalesce(octet_length(header.value), 0)"
        )
        size += (
            f" + aggregate(coalesce({headers}, CAST(array() AS {HEADERS})), 0, (total, header) -> "
            f"{each})"
        )
    return f"{size} + {_RECORD_OVERHEAD} > {limit_bytes}"


def output_headers(
    limit_bytes: int, topic: str, pipeline: PipelineId, *, has_timestamp: bool
) -> dict[str, str]:
    """Return the headers of a record of the output that ``topic`` would not take; its own
    timestamp, if it has one, would be lost."""
    message = (
        f"the record is larger than max.message.bytes={limit_bytes} of topic {topic}, counted "
        "before compression"
    )
    headers = {
        ERROR_CLASS: _text(TOO_LARGE),
        ERROR_MESSAGE: _text(message),
        PIPELINE: _text(pipeline),
    }
    return headers | (
        {TIMESTAMP: "CAST(CAST(unix_millis(timestamp) AS STRING) AS BINARY)"}
        if has_timestamp
        else {}
    )


def _text(value: str) -> str:
    """Return SQL of the bytes of a text that is ours: nothing to quote can be in it."""
    return f"X'{value.encode().hex()}'"
