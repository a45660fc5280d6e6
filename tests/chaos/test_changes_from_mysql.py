"""I24: changes of a MySQL server into a topic, in a job killed in every phase under load."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from changes_audit import Change, amiss, never_came
from changes_load import Load, client, end_of_binlog, rows_of, streamed, witnessed
from text_file_jobs import TextFileJob

from onceward_testing import LocalKafka, LocalMySQL
from onceward_testing.job_process import JobProcess
from support.verify_process import verify_at

JOB = Path(__file__).with_name("changes_job.py")
CHANGES = int(os.environ.get("CHANGES", "30000"))
"""One million with ``CHANGES=1000000``, which takes half an hour."""
PATIENCE = 300 + CHANGES / 200


@pytest.fixture(params=["mysql", pytest.param("mariadb", marks=pytest.mark.once_more)])
def server(request: pytest.FixtureRequest) -> Iterator[LocalMySQL]:
    """With binlogs, and for this test alone: it is killed."""
    with LocalMySQL(request.param, binlog=True) as started:
        yield started


class Job:
    """The job's lives, and what its checkpoint says of where it is."""

    def __init__(
        self, folder: Path, server: LocalMySQL, kafka: LocalKafka, topic: str, tables: list[str]
    ) -> None:
        said = {
            "url": server.url,
            "tables": tables,
            "servers": kafka.bootstrap_servers,
            "topic": topic,
        }
        said["source"] = {"starting": "initial", "max_bytes_per_batch": max(1 << 20, CHANGES * 8)}
        self.folder, self._job = folder, TextFileJob(JOB, folder, json.dumps(said))

    def killed(self, when: Callable[[], bool], fault: str | None = None) -> None:
        """A life that ends by SIGKILL as soon as ``when`` says so, or by its fault."""
        process = self._job.start(fault)
        try:
            end = time.monotonic() + PATIENCE
            while process.status is None and not when():
                assert time.monotonic() < end, process.log_tail()
                time.sleep(0.02)
            if fault is None:
                assert process.status is None, process.log_tail()
                process.kill()
            process.wait(PATIENCE)
        finally:
            process.end_all()
        assert process.status == -signal.SIGKILL, process.log_tail()
        assert fault is None or fault in self._job.fired(), f"INVALID: {fault} never fired"

    def running(self) -> JobProcess:
        """A life that the caller ends."""
        return self._job.start()

    def to_the_end(self, process: JobProcess) -> None:
        (self.folder / "complete").touch()
        try:
            process.wait(PATIENCE)
        finally:
            process.end_all()
        assert process.status == 0, process.log_tail()

    @property
    def position(self) -> dict[str, Any] | None:
        """Where the newest batch that Spark has logged ends."""
        folder = self.folder / "checkpoint" / "offsets"
        numbers = (
            [int(file.name) for file in folder.glob("*") if file.name.isdecimal()]
            if folder.exists()
            else []
        )
        if not numbers:
            return None
        try:
            found: dict[str, Any] = json.loads(
                (folder / str(max(numbers))).read_text().splitlines()[-1]
            )["position"]
        except (OSError, ValueError, IndexError):
            return None  # it is being written
        return found

    @property
    def in_the_snapshot(self) -> bool:
        return self.position is not None and self.position["snapshot"] is not None

    @property
    def behind_the_snapshot(self) -> bool:
        return self.position is not None and self.position["snapshot"] is None


@pytest.mark.timeout(900 + int(PATIENCE) * 4)
@pytest.mark.fault("changes-driver-killed")
def test_killed_in_every_phase(
    tmp_path: Path,
    server: LocalMySQL,
    kafka: LocalKafka,
    topic: Callable[..., str],
    read_committed: Callable[..., list[Any]],
):
    chance = random.Random(7)
    begin = end_of_binlog(server.url)
    load = Load(server.url, rows=2_000, per_second=max(1_000, CHANGES // 300))
    load.make()
    load.start(writers=2)
    output = topic(4)
    job = Job(tmp_path, server, kafka, output, load.tables)

    job.killed(
        lambda: job.in_the_snapshot
    )  # a chunk has been logged, and not committed, most likely
    job.killed(lambda: False, "commit:finished:2:kill")
    job.killed(lambda: False, "send:started:2:kill")
    job.killed(lambda: job.behind_the_snapshot)  # the hand-over
    with closing(client(server.url)) as connection, connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {load.tables[0]} VALUES (-1, 0, 'marks the end of snapshots', 0, NOW(3))"  # noqa: S608
        )
    job.killed(lambda: False, "ledger:finished:2:kill")
    one_long_transaction(server.url, load)
    job.killed(after(chance.uniform(8, 16)))
    process = job.running()
    time.sleep(chance.uniform(8, 16))
    server.kill()
    server.start()
    load.wait_for(CHANGES, PATIENCE)
    load.stop()
    job.to_the_end(process)

    happened = list(witnessed(server.url, *begin))
    came = [
        streamed(message.key(), message.value())
        for message in sorted(
            read_committed(kafka.bootstrap_servers, output), key=lambda one: one.offset()
        )
    ]
    assert len(happened) > CHANGES
    assert amiss(happened, came, rows_of(server.url, load.tables))[:5] == []
    assert never_came(happened, came, since=marked(happened))[:5] == []
    answer = verify_at(kafka.bootstrap_servers, output, "onceward-ledger")
    assert answer["verdict"] == "exactly_once", answer["anomalies"]


def one_long_transaction(url: str, load: Load) -> None:
    """Some megabytes in one transaction, which several tasks will read."""
    with closing(client(url)) as connection, connection.cursor() as cursor:
        connection.begin()
        for table in load.tables[:3]:
            cursor.execute(f"UPDATE {table} SET w = REPEAT('x', 20), v = v + 1")  # noqa: S608
        connection.commit()


def after(seconds: float) -> Callable[[], bool]:
    end = time.monotonic() + seconds
    return lambda: time.monotonic() > end


def marked(happened: list[Change]) -> int:
    """How many changes came before the snapshots were done."""
    return next(number for number, change in enumerate(happened) if change.key[1] == "-1")
