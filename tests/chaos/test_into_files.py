"""I17: a job from Kafka into files, killed around the decision and between two renames."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow.dataset as dataset
import pytest
from confluent_kafka import Producer
from file_job import BATCH, DIE_BEFORE_MOVE
from text_file_jobs import TextFileJob

import onceward as ow
from onceward.ids import pipeline_id
from onceward_testing import LocalKafka

BATCHES = 4


class FileJob:
    """The job of one layout, its input, and what readers find of its output."""

    def __init__(self, folder: Path, kafka: LocalKafka, topic: str, layout: str) -> None:
        self.folder, self.out, self.layout = folder, folder / "out", layout
        self.job = TextFileJob(
            Path(__file__).with_name("file_job.py"), folder, kafka.bootstrap_servers, topic, layout
        )
        self.wanted = [f"value {number}" for number in range(BATCHES * BATCH)]
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
        for value in self.wanted:
            producer.produce(topic, value=value)
        assert producer.flush(60) == 0

    def seen(self) -> list[str]:
        if not self.out.exists():
            return []
        if self.layout == "manifest":
            lists = (self.out / "_symlink_format_manifest").glob("[!.]*")
            return self._values(
                [
                    line.removeprefix("file://")
                    for path in lists
                    for line in path.read_text().splitlines()
                ]
            )
        return self._values(
            dataset.dataset(str(self.out), format="parquet", partitioning="hive").files
        )

    @staticmethod
    def _values(files: list[str]) -> list[str]:
        return [
            value
            for file in files
            for value in dataset.dataset(file).to_table().column("value").to_pylist()
        ]

    def assert_whole_batches(self) -> None:
        """Of what is seen nothing twice; and where batches are published at once, nothing by
        halves.
        """
        seen = Counter(self.seen())
        assert set(seen.values()) <= {1}
        if self.layout != "flat":
            assert len(seen) % BATCH == 0
            assert set(seen) == set(self.wanted[: len(seen)])

    def assert_all_is_there(self) -> None:
        assert Counter(self.seen()) == Counter(self.wanted)
        left = (self.out / "_onceward" / "prepared").iterdir()
        assert [path for path in left if path.suffix != ".published"] == []
        newest = (
            ow.FolderLedger(self.out / "_onceward" / "ledger").chain(pipeline_id("files")).peek()
        )
        assert newest is not None
        assert (newest.sequence, newest.state.value) == (BATCHES - 1, "finished")


@pytest.fixture(
    params=[
        "batches",
        pytest.param("flat", marks=pytest.mark.once_more),
        pytest.param("manifest", marks=pytest.mark.once_more),
    ]
)
def file_job(
    request: pytest.FixtureRequest, tmp_path: Path, kafka: LocalKafka, topic: Callable[..., str]
) -> FileJob:
    return FileJob(tmp_path, kafka, topic(1), request.param)


@pytest.mark.fault("files-driver-killed")
def test_killed_between_two_renames_twice(file_job: FileJob):
    """In the second batch, and once more while the next start makes good for it; then before the
    third is decided.
    """
    per_batch = 3 if file_job.layout == "flat" else 1
    for before in (per_batch + per_batch // 2, per_batch // 2):
        (file_job.folder / DIE_BEFORE_MOVE).write_text(str(before))
        killed = file_job.job.live()
        assert killed.status == -signal.SIGKILL, killed.log_tail()
        file_job.assert_whole_batches()
    killed = file_job.job.live("send:finished:1:kill")
    assert killed.status == -signal.SIGKILL, killed.log_tail()
    file_job.assert_whole_batches()
    ended = file_job.job.live()
    assert ended.status == 0, ended.log_tail()
    file_job.assert_all_is_there()


@pytest.mark.fault("files-driver-killed")
@pytest.mark.parametrize(
    "fault",
    [
        "commit:finished:2:kill",
        "commit:started:2:kill",
        "publish:finished:2:kill",
        "open:finished:1:kill",
    ],
)
def test_killed_around_the_decision(file_job: FileJob, fault: str):
    killed = file_job.job.live(fault)
    assert killed.status == -signal.SIGKILL, killed.log_tail()
    file_job.assert_whole_batches()
    ended = file_job.job.live()
    assert ended.status == 0, ended.log_tail()
    file_job.assert_all_is_there()
