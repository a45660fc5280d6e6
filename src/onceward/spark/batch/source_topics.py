"""Which Kafka topic does a frame come from? Driver only; asked by :mod:`onceward.formats.avro`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame

from onceward.spark.batch.query import kafka_options_in


def read_topics(frame: DataFrame) -> list[str]:
    """Return the topics that the Kafka sources of ``frame`` subscribe to by name, sorted; none
    where they are not known.
    """
    plan = frame._jdf.queryExecution().analyzed()
    topics: set[str] = set()
    for options in (*kafka_options_in(plan), *_options_of_batches(plan)):
        topics |= {
            name.strip() for name in (options.get("subscribe") or "").split(",") if name.strip()
        }
    return sorted(topics)


def _options_of_batches(plan: Any) -> Iterator[Any]:
    """Yield the options of readers of frames that are no streams, as Java maps."""
    leaves = plan.collectLeaves()
    for index in range(leaves.size()):
        leaf = leaves.apply(index)
        if leaf.getClass().getSimpleName() == "DataSourceV2Relation":
            yield leaf.options()
