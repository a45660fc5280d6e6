"""Which Kafka topic does a frame come from? Driver only; asked by :mod:`onceward.formats.avro`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame

_RELATIONS = ("StreamingRelationV2", "DataSourceV2Relation")


def topics_of(frame: DataFrame) -> list[str]:
    """The topics that the Kafka sources of ``frame`` subscribe to by name, sorted; none where that cannot be told."""
    topics: set[str] = set()
    plan = frame._jdf.queryExecution().analyzed()
    leaves = plan.collectLeaves()
    for index in range(leaves.size()):
        for options in _options(leaves.apply(index)):
            topics |= {name.strip() for name in (options.get("subscribe") or "").split(",") if name.strip()}
    return sorted(topics)


def _options(leaf: Any) -> Iterator[Any]:
    """What its reader was told, as a Java map."""
    kind = leaf.getClass().getSimpleName()
    if kind == "StreamingRelationV2" and leaf.sourceName() == "kafka":
        yield leaf.extraOptions()
    elif kind == "DataSourceV2Relation":
        yield leaf.options()
