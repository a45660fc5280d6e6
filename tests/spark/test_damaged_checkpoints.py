"""Spark's checkpoint with one file missing or cut in half, each in turn: it goes on exactly, or
stops and says why.

One checkpoint is made per kind of query; every case runs on a copy of it, under a pipeline id, a
ledger record and an output topic of its own, so that what one case writes is nobody else's.
"""

from __future__ import annotations

import itertools
import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyspark
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from streaming_pipeline import Pipeline, copy
from topic_operations import commit_ledger_record

import fault_table
import onceward
from onceward.errors import (
    CheckpointCorrupted,
    CheckpointReplaced,
    CheckpointRewound,
    OncewardError,
)
from onceward_testing import LocalKafka

SPARK = tuple(int(number) for number in pyspark.__version__.split(".")[:2])
OURS = {"metadata": CheckpointReplaced, "offsets": CheckpointRewound}
BATCHES = 3
KEYS = 5


def counts(rows: DataFrame) -> DataFrame:
    return (
        rows.selectExpr("CAST(key AS STRING) AS k")
        .groupBy("k")
        .count()
        .selectExpr("k AS key", "CAST(count AS STRING) AS value")
    )


@dataclass
class Ran:
    """A pipeline that has run three batches, with a fourth to come, and what only that one
    writes.
    """

    pipeline: Pipeline
    transform: Callable[[DataFrame], DataFrame]
    mode: str
    expected: Counter[tuple[bytes, bytes]]
    ledger_record: dict[str, Any]
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def run_copy(
        self, damage: Callable[[Path], None]
    ) -> tuple[str, OncewardError | None, str, str]:
        """Damage a copy of the checkpoint and run on it: what it said, its typed error, pipeline
        id and output.
        """
        name = f"{self.pipeline.name}-{next(self.numbers)}"
        checkpoint = self.pipeline.checkpoint.with_name(f"copy-{name}")
        shutil.copytree(self.pipeline.checkpoint, checkpoint)
        damage(checkpoint)
        output = self.pipeline.topic(1)
        writes = [[output, records] for _, records in self.ledger_record["writes"]]
        commit_ledger_record(
            self.pipeline, self.ledger_record | {"pipeline": name, "writes": writes}
        )
        sink = self.pipeline.sink(pipeline_id=name, topic=output)
        frame = self.pipeline.frame(max_offsets_per_trigger=1000)
        try:
            query = self.pipeline.start(
                self.transform, sink=sink, frame=frame, mode=self.mode, checkpoint=checkpoint
            )
            return self.pipeline.ended(query), onceward.error_of(query), name, output
        except (
            PySparkException,
            Py4JJavaError,
        ) as error:  # some files are read before the query starts
            return str(error), None, name, output
        finally:
            sink.close()

    def ledger_of(self, name: str) -> list[int]:
        messages = self.pipeline.visible(self.pipeline.ledger_topic)
        return [json.loads(m.value())["sequence"] for m in messages if m.key() == name.encode()]


STORES = ("HDFSBackedStateStoreProvider", "RocksDBStateStoreProvider")


@pytest.fixture(
    scope="module",
    params=["no state", *(pytest.param(store, marks=pytest.mark.slow) for store in STORES)],
)
def ran(
    request: pytest.FixtureRequest,
    kafka: LocalKafka,
    spark: Any,
    tmp_path_factory: pytest.TempPathFactory,
    new_topic: Any,
    read_committed: Any,
    read_uncommitted: Any,
) -> Any:
    readers = {"read_committed": read_committed, "read_uncommitted": read_uncommitted}
    pipeline = Pipeline(spark, kafka, tmp_path_factory.mktemp("damaged"), new_topic, readers)
    stateful = request.param in STORES
    if stateful:
        provider = f"org.apache.spark.sql.execution.streaming.state.{request.param}"
        spark.conf.set("spark.sql.streaming.stateStore.providerClass", provider)
    transform, mode = (counts, "update") if stateful else (copy, "append")
    for batch in range(BATCHES):
        pipeline.feed([(b"key-%d" % (n % KEYS), b"%d-%d" % (batch, n)) for n in range(20)])
        pipeline.run(transform, frame=pipeline.frame(max_offsets_per_trigger=1000), mode=mode)
    assert len(pipeline.ledger()) == BATCHES
    pipeline.feed([(b"key-%d" % (n % KEYS), b"last-%d" % n) for n in range(20)])
    if stateful:
        model = Counter(key for key, _ in pipeline.fed)
        expected = Counter((key, b"%d" % count) for key, count in model.items() if key is not None)
    else:
        last = [m for m in pipeline.visible(pipeline.source) if m.value().startswith(b"last-")]
        expected = Counter(
            (m.key(), b"%d:%d:%s" % (m.partition(), m.offset(), m.value())) for m in last
        )
    yield Ran(pipeline, transform, mode, expected, pipeline.ledger()[-1])
    pipeline.close()
    spark.conf.unset("spark.sql.streaming.stateStore.providerClass")


def parts_of(checkpoint: Path, *, folders: bool) -> list[str]:
    """Every file, but for the checksums that Hadoop's local file system keeps beside them; every
    folder if asked.
    """
    found = (
        part.relative_to(checkpoint) for part in checkpoint.rglob("*") if folders or part.is_file()
    )
    return sorted(
        str(part)
        for part in found
        if not part.name.endswith(".crc") and (part.parts[0] != "onceward" or len(part.parts) == 1)
    )


def deleted(part: Path) -> None:
    shutil.rmtree(part) if part.is_dir() else part.unlink()


def cut_in_half(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


@pytest.mark.lengthy("chaos")
@pytest.mark.fault("checkpoint-truncated")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("damage", [deleted, cut_in_half])
def test_one_part_after_the_other(ran: Ran, damage: Callable[[Path], None]):
    outcomes: dict[str, str] = {}
    errors: dict[str, OncewardError | None] = {}
    for part in parts_of(ran.pipeline.checkpoint, folders=damage is deleted):

        def do_it(checkpoint: Path, part: str = part) -> None:
            file = checkpoint / part
            fault_table.fired(file.stat().st_size > 0, f"{part} is empty")
            file.with_name(f".{file.name}.crc").unlink(
                missing_ok=True
            )  # as on storage that keeps none
            damage(file)

        said, errors[part], pipeline_id, output = ran.run_copy(do_it)
        written = Counter((m.key(), m.value()) for m in ran.pipeline.visible(output))
        sequences = ran.ledger_of(pipeline_id)
        if said:
            outcomes[part] = (
                "stopped"
                if (written, sequences) == (Counter(), [BATCHES - 1])
                else "wrote, then stopped"
            )
        elif (written, sequences) == (ran.expected, [BATCHES - 1, BATCHES]):
            outcomes[part] = "exact"
        else:
            outcomes[part] = (
                f"lost {ran.expected - written}, wrote {written - ran.expected}, ledger "
                f"{sequences}"
            )
    assert {part: how for part, how in outcomes.items() if how not in ("exact", "stopped")} == {}
    assert outcomes["offsets/0"] == outcomes["commits/0"] == "exact", (
        "nobody needs the oldest entries"
    )
    if damage is deleted:
        assert outcomes["commits/2"] == "exact", "a replay"
        spark_stops_by_itself: dict[str, bool] = {
            "metadata": SPARK >= (4, 2),
            "offsets": SPARK >= (4, 1),
        }
        for part, by_itself in spark_stops_by_itself.items():
            error = errors[part]
            assert (error and type(error)) in (
                (None, CheckpointCorrupted) if by_itself else (OURS[part],)
            ), part
        assert type(errors["offsets/1"]) is CheckpointCorrupted
        assert type(errors["offsets/2"]) is CheckpointRewound
