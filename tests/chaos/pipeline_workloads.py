"""The queries that the pipeline tests run: Spark's side. What goes in, and what must come out:
``pipeline_models``.

Runs in the job (``pipeline_job``). Each row says where it comes from:

* ``copy``: one row per input record.
* ``fanout``: the same, to three topics by the column ``topic``.
* ``counts``: how often each key was seen so far, for the keys of each batch (state, update mode).
* ``windows``: per key and 20 s window of event time how many records and which; late ones are
  dropped.
* ``transfers``: each transfer becomes a debit in one topic and a credit in another, of opposite
  amounts.
* ``scatter``: one row per input record behind a shuffle that is not repeatable: a record's task is
  drawn by chance.
* ``two-frames``: the same rows as ``copy``, for a function that shares them out between two
  topics.
* ``etl``: parse, keep numbers of 18 characters, each once per 20 s window of event time, when the
  window closes.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  as everybody writes it


@dataclass(frozen=True)
class Workload:
    """``transform(input, output topics)`` makes the rows for the sink; with several ``topics`` a
    row names its own.
    """

    transform: Callable[[DataFrame, Sequence[str]], DataFrame]
    mode: str = "append"
    topics: int = 1


def _origin() -> Column:
    return F.concat_ws(":", "partition", "offset")


def copy(records: DataFrame, _topics: Sequence[str]) -> DataFrame:
    return records.select(
        "key", F.concat_ws(":", _origin(), F.col("value").cast("string")).alias("value")
    )


def scatter(records: DataFrame, _topics: Sequence[str]) -> DataFrame:
    """``repartition`` goes by the rows' order, and that by the fresh id; in the headers, so that
    it is not left out.
    """

    @F.udf("string")
    def fresh_id() -> str:
        return uuid.uuid4().hex

    def header(name: str) -> Column:
        return F.struct(
            F.lit(name).alias("key"), F.col(name).cast("string").cast("binary").alias("value")
        )

    value = F.concat_ws(":", _origin(), F.col("value").cast("string"))
    return (
        records.select(
            "key",
            "partition",
            "offset",
            value.alias("value"),
            fresh_id.asNondeterministic()().alias("id"),
        )
        .repartition(4)
        .select(
            "key", "value", F.array(*map(header, ("partition", "offset", "id"))).alias("headers")
        )
    )


def fanout(records: DataFrame, topics: Sequence[str]) -> DataFrame:
    turn = (F.col("offset") % len(topics) + 1).cast("int")
    topic = F.element_at(F.array(*map(F.lit, topics)), turn)
    return records.select(
        topic.alias("topic"),
        "key",
        F.concat_ws(":", _origin(), F.col("value").cast("string")).alias("value"),
    )


def counts(records: DataFrame, _topics: Sequence[str]) -> DataFrame:
    keyed = records.where(F.col("key").isNotNull()).groupBy(
        F.col("key").cast("string").alias("key")
    )
    return keyed.agg(F.count("*").cast("string").alias("value"))


def windows(records: DataFrame, _topics: Sequence[str]) -> DataFrame:
    """Count and sum of positions: together they tell one record too many, too few, or in the wrong
    window.
    """
    key = F.coalesce(F.col("key").cast("string"), F.lit("none"))
    position = F.col("offset") * 4 + F.col("partition")
    window = F.window("timestamp", "20 seconds")
    found = records.withWatermark("timestamp", "20 seconds").groupBy(window, key.alias("key"))
    start = F.unix_millis("window.start")
    return found.agg(F.count("*").alias("count"), F.sum(position).alias("positions")).select(
        "key", F.concat_ws(":", start, "count", "positions").alias("value")
    )


def transfers(records: DataFrame, topics: Sequence[str]) -> DataFrame:
    debits, credits = topics
    transfer = F.from_json(
        F.col("value").cast("string"), "payer STRING, payee STRING, cents BIGINT"
    )

    def posting(topic: str, account: str, cents: Column) -> Column:
        value = F.concat_ws(":", _origin(), cents.cast("string"))
        return F.struct(
            F.lit(topic).alias("topic"), F.col(account).alias("key"), value.alias("value")
        )

    cents = F.col("transfer.cents")
    legs = F.array(
        posting(debits, "transfer.payer", -cents), posting(credits, "transfer.payee", cents)
    )
    named = records.select("partition", "offset", transfer.alias("transfer"))
    return named.select(F.explode(legs).alias("posting")).select("posting.*")


def etl(people: DataFrame, _topics: Sequence[str]) -> DataFrame:
    number = F.col("person.identifyNumber")
    # The condition names the event time, so that Spark does not push it below the watermark:
    # records that are filtered out shall move time on.
    valid = F.when(F.col("timestamp").isNotNull(), F.length(number) == 18)
    person = F.from_json(
        F.col("value").cast("string"), "id BIGINT, name STRING, identifyNumber STRING"
    )
    return (
        people.withWatermark("timestamp", "20 seconds")
        .select("timestamp", person.alias("person"), _origin().alias("origin"))
        .where(valid)
        .groupBy(F.window("timestamp", "20 seconds"), number.alias("key"))
        .agg(F.max("origin").alias("value"))
        .select("key", "value")
    )


WORKLOADS = {
    "copy": Workload(copy),
    "scatter": Workload(scatter),
    "fanout": Workload(fanout, topics=3),
    "counts": Workload(counts, "update"),
    "windows": Workload(windows),
    "transfers": Workload(transfers, topics=2),
    "etl": Workload(etl),
    "two-frames": Workload(copy, topics=2),
}
