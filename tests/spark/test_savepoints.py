"""Savepoints of a query with state, taken while it runs: a fork goes on in another topic as the
pipeline does in its own, each exactly once; and a checkpoint is moved.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame
from streaming_pipeline import Pipeline, copy, source_records, use_state_store
from topic_operations import until
from typer.testing import CliRunner

from onceward.cli import app
from onceward.operate import savepoint as savepoints

CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
KEYS = 320


def once(frame: DataFrame) -> DataFrame:
    """Only the first record of each key, in all of the stream: state tells which was."""
    return copy(frame.dropDuplicates(["key"]))


def savepoint(pipeline: Pipeline, command: str, *arguments: str) -> Any:
    return CliRunner().invoke(
        app, ["savepoint", command, *arguments, "--bootstrap-servers", pipeline.bootstrap,
        "--ledger-topic", pipeline.ledger_topic],
    )  # fmt: skip


def take(pipeline: Pipeline, checkpoint: Path, folder: Path) -> savepoints.Savepoint:
    done = savepoint(
        pipeline, "create", "--pipeline-id", pipeline.name, "--checkpoint", str(checkpoint),
        "--to", str(folder),
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    return savepoints.read(done.stdout.strip())


def keys(pipeline: Pipeline, topic: str | None = None) -> list[bytes]:
    return sorted(key for key, _ in source_records(pipeline.visible(topic)) if key is not None)


@pytest.mark.lengthy("ci")
@pytest.mark.parametrize(
    "store",
    [
        "RocksDBStateStoreProvider",
        pytest.param("HDFSBackedStateStoreProvider", marks=pytest.mark.slow),
    ],
)
def test_a_fork_under_load_and_a_move_are_exact(
    pipeline: Pipeline, tmp_path: Path, request: pytest.FixtureRequest, store: str
) -> None:
    use_state_store(pipeline, request, store)
    pipeline.spark.conf.set(CHANGELOG, "true")
    request.addfinalizer(lambda: pipeline.spark.conf.unset(CHANGELOG))
    every = [b"key-%04d" % number for number in range(KEYS)]
    pipeline.feed([(key, b"first") for key in every])
    # What the state is for: each key comes again, most of them behind the savepoint.
    pipeline.feed([(key, b"again") for key in every])
    query = pipeline.start(once, trigger={"processingTime": "0 seconds"})
    until((pipeline.checkpoint / "commits" / "2").exists, query, "three batches")
    made = take(pipeline, pipeline.checkpoint, tmp_path / "saved")
    assert query.isActive
    query.stop()
    pipeline.run(once)
    assert keys(pipeline) == every

    new, fork = f"{pipeline.name}-fork", tmp_path / "fork"
    done = savepoint(pipeline, "fork", made.path, "--checkpoint", str(fork), "--pipeline-id", new)
    assert done.exit_code == 0, done.output
    output = pipeline.topic(2, prefix="fork")
    settings: dict[str, Any] = {"checkpoint": fork, "pipeline_id": new, "topic": output}
    pipeline.run(once, resume="adopt", **settings)
    pipeline.run(once, **settings)
    record = next(each for each in pipeline.ledger() if each["sequence"] == made.sequence)
    read = sum(record["sources"][0]["end"][pipeline.source].values())
    assert 0 < read < KEYS
    assert keys(pipeline, output) == every[read:]

    # It is far behind by now; one that is taken at rest moves the checkpoint.
    refused = savepoint(pipeline, "restore", made.path, "--checkpoint", str(tmp_path / "old"))
    assert refused.exit_code != 0
    assert "would be written twice" in refused.output
    moved = tmp_path / "moved"
    made = take(pipeline, pipeline.checkpoint, tmp_path / "saved")
    assert savepoint(pipeline, "restore", made.path, "--checkpoint", str(moved)).exit_code == 0
    pipeline.lose_checkpoint()
    pipeline.feed([(key, b"once more") for key in [*every, b"new-0", b"new-1"]])
    pipeline.run(once, checkpoint=moved)
    assert keys(pipeline) == [*every, b"new-0", b"new-1"]
