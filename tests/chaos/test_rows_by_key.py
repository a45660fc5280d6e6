"""I16: a job that writes to a real Redis, killed around the decision and around single writes."""

from __future__ import annotations

import signal
import uuid
from contextlib import closing
from pathlib import Path

import pytest
from redis import Redis
from text_file_jobs import TextFileJob

from onceward_testing import LocalRedis

BATCHES = 3
ROWS = 500


@pytest.mark.fault("upsert-driver-killed")
@pytest.mark.parametrize("fault", ["deliver:finished:7:kill", "commit:finished:2:kill"])
def test_killed_around_decision_and_writes(tmp_path: Path, local_redis: LocalRedis, fault: str):
    """Every batch has a new row for each key."""
    prefix = f"chaos-{uuid.uuid4().hex[:10]}:"
    job = TextFileJob(Path(__file__).with_name("upsert_job.py"), tmp_path, local_redis.url, prefix)
    job.write_input(BATCHES, ROWS)
    killed = job.live(fault)
    assert killed.status == -signal.SIGKILL, killed.log_tail()
    ended = job.live()
    assert ended.status == 0, ended.log_tail()
    with closing(Redis.from_url(local_redis.url, decode_responses=True)) as redis:
        found = {
            key.removeprefix(prefix): redis.hgetall(key) for key in redis.scan_iter(f"{prefix}*")
        }
    assert {key: row["value"] for key, row in found.items()} == {
        str(number): f"{BATCHES - 1}-{number}" for number in range(ROWS)
    }
