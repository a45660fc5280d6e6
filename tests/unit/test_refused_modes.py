"""Modes of Spark under which output and progress could part: each is refused by name, whatever
Spark says to them.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from onceward.errors import UnsupportedQuery
from onceward.spark.batch.refused_modes import (
    BY_FILE_SYSTEM,
    refuse_made_up_checkpoint,
    refuse_renames_that_keep_a_file,
    refuse_source_evolution,
    refuse_unsupported,
)
from support.errors import raises


class Named:
    """Answers ``getClass().getSimpleName()`` like a Java object."""

    def __init__(self, name: str) -> None:
        self._name = name

    def getClass(self) -> Named:  # noqa: N802 — Java's name
        return self

    def getSimpleName(self) -> str:  # noqa: N802 — Java's name
        return self._name


class Execution(Named):
    """As much of Spark's ``StreamExecution`` as the check looks at."""

    def __init__(
        self, name: str = "MicroBatchExecution", trigger: str = "ProcessingTimeTrigger"
    ) -> None:
        super().__init__(name)
        self._trigger = trigger

    def trigger(self) -> Named:
        return Named(self._trigger)


@pytest.mark.parametrize(
    "trigger", ["ProcessingTimeTrigger", "AvailableNowTrigger$", "OneTimeTrigger$"]
)
@pytest.mark.parametrize("speculation", ["false", "False", ""])
def test_micro_batches_are_welcome(speculation: str, trigger: str):
    refuse_unsupported(speculation, Execution(trigger=trigger))


@pytest.mark.fault("speculative-copy")
@pytest.mark.parametrize("speculation", ["true", "TRUE", " true "])
def test_speculation_is_refused(speculation: str):
    with raises(UnsupportedQuery, "spark.speculation") as caught:
        refuse_unsupported(speculation, Execution())
    assert caught.value.next_step == "set spark.speculation=false"


def test_asynchronous_progress_tracking_is_refused():
    with raises(UnsupportedQuery, "asyncProgressTrackingEnabled"):
        refuse_unsupported("false", Execution("AsyncProgressTrackingMicroBatchExecution"))


@pytest.mark.parametrize(
    "execution",
    [
        Execution("ContinuousExecution", "ContinuousTrigger"),
        Execution(trigger="ContinuousTrigger"),
        Execution(trigger="RealTimeTrigger"),
    ],
    ids=lambda execution: execution.getSimpleName(),
)
def test_modes_without_a_batch_boundary_are_refused(execution: Execution):
    with raises(UnsupportedQuery) as caught:
        refuse_unsupported("false", execution)
    assert "trigger(processingTime" in caught.value.next_step


def test_sources_that_may_come_and_go_are_refused():
    refuse_source_evolution("false")
    with raises(UnsupportedQuery, "enableSourceEvolution"):
        refuse_source_evolution("true")


@pytest.mark.parametrize("checkpoint", ["file:/mnt/c", "file:///mnt/c", "/mnt/c"])
def test_a_checkpoint_on_a_local_disk_may_be_written_by_the_file_system(checkpoint: str):
    refuse_renames_that_keep_a_file(BY_FILE_SYSTEM, checkpoint)


def test_one_elsewhere_may_not():
    refuse_renames_that_keep_a_file("", "hdfs://nodes/c")
    refuse_renames_that_keep_a_file("org.example.AFileManagerOfOnesOwn", "hdfs://nodes/c")
    with raises(UnsupportedQuery, "hdfs://nodes/c", "checkpointFileManagerClass"):
        refuse_renames_that_keep_a_file(f"org.apache.{BY_FILE_SYSTEM}", "hdfs://nodes/c")


class Started(Execution):
    """A query that was started, by or without a name, on a folder that Spark may delete."""

    def __init__(
        self, checkpoint: str, name: str | None = None, temporary: bool = False, batch: int = 0
    ) -> None:
        super().__init__("StreamExecution")
        newest = SimpleNamespace(currentBatchId=lambda: batch)
        self.lastExecution = lambda: newest
        self.name = lambda: name
        self.resolvedCheckpointRoot = lambda: checkpoint
        self._temporary = temporary

    def getDeclaredField(self, name: str) -> Any:  # noqa: N802 — Java's name
        assert name == "deleteCheckpointOnStop"
        return SimpleNamespace(setAccessible=bool, get=lambda _: self._temporary)


DRAWN = "3ad8b5ca-76b9-47bb-aefc-bf435fd3c9df"


@pytest.mark.parametrize("root", ["/mnt/c", "/mnt/c/", "file:/mnt/c", "file:///mnt/c"])
def test_a_folder_that_spark_makes_up_is_no_checkpoint_location(root: str):
    """With a root for all queries and without a name it is another one at each start."""
    refuse_made_up_checkpoint(Started(f"file:/mnt/c/{DRAWN}", name="q"), root)
    refuse_made_up_checkpoint(Started("file:/mnt/c/people"), root)
    refuse_made_up_checkpoint(Started(f"file:/mnt/other/{DRAWN}"), root)
    refuse_made_up_checkpoint(Started(f"file:/mnt/c/{DRAWN}"), "")
    refuse_made_up_checkpoint(Started(f"s3a://bucket/mnt/{DRAWN}"), "t")
    # Found again: somebody has named it so
    refuse_made_up_checkpoint(Started(f"file:/mnt/c/{DRAWN}", batch=7), root)
    for made_up in (
        Started("file:/mnt/temporary-1", temporary=True),
        Started(f"file:/mnt/c/{DRAWN}"),
    ):
        with raises(UnsupportedQuery, "file:/", "checkpointLocation") as refused:
            refuse_made_up_checkpoint(made_up, root)
        # It may have been given, named as Spark would name it
        assert ("no UUID" in refused.value.next_step) is made_up.resolvedCheckpointRoot().endswith(
            DRAWN
        )


def test_a_root_of_object_storage_is_one():
    with raises(UnsupportedQuery, "s3a://bucket/"):
        refuse_made_up_checkpoint(Started(f"s3a://bucket/{DRAWN}"), "s3a://bucket")
