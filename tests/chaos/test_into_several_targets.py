"""A job that writes to a topic and into files, killed around the decision and while it
publishes.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow.dataset as dataset
import pytest
from confluent_kafka import Message
from text_file_jobs import TextFileJob

import onceward as ow
from onceward.ids import pipeline_id
from onceward_testing import LocalKafka
from onceward_testing.sink_contract import certain

BATCHES = 3


@pytest.mark.fault("fan-out-driver-killed")
@pytest.mark.parametrize(
    "fault", ["commit:finished:2:kill", "send:finished:3:kill", "publish:finished:2:kill"]
)
def test_killed_around_the_decision(
    kafka: LocalKafka,
    new_topic: Callable[..., str],
    read_committed: Callable[[str, str], list[Message]],
    tmp_path: Path,
    fault: str,
):
    servers = kafka.bootstrap_servers
    topic = new_topic(servers, 3)
    ledger_topic = new_topic(servers, 1, prefix="ledger", cleanup_policy="compact")
    job = TextFileJob(
        Path(__file__).with_name("fan_out_job.py"), tmp_path, servers, topic, ledger_topic
    )
    wanted = Counter(job.write_input(BATCHES))

    def in_the_topic() -> Counter[str]:
        return Counter(message.value().decode() for message in read_committed(servers, topic))

    def in_files() -> Counter[str]:
        files = dataset.dataset(str(tmp_path / "out"), format="parquet", partitioning="hive")
        return Counter(
            files.to_table(columns=["value"]).column("value").to_pylist() if files.files else []
        )

    killed = job.live(fault)
    assert killed.status == -signal.SIGKILL, killed.log_tail()
    assert in_files() <= in_the_topic(), "files show what is not decided"
    ended = job.live()
    assert ended.status == 0, ended.log_tail()
    assert in_the_topic() == wanted
    assert in_files() == wanted
    left = (tmp_path / "out" / "_onceward" / "prepared").iterdir()
    assert [path for path in left if path.suffix != ".published"] == []
    newest = certain(ow.KafkaLedger(servers, ledger_topic).chain(pipeline_id(topic)).peek)
    assert newest is not None
    assert (newest.sequence, newest.state.value) == (BATCHES - 1, "finished")
    asked = (
        f"verify --bootstrap-servers {servers} --pipeline-id {topic} --ledger-topic "
        f"{ledger_topic} --topic {topic} --output json"
    )
    onceward = Path(sys.executable).with_name("onceward")
    judged = subprocess.run(
        [onceward, *asked.split()], capture_output=True, text=True, check=False, timeout=120
    )
    assert judged.returncode == 2, judged.stdout + judged.stderr
    answer = json.loads(judged.stdout)
    (files,) = answer["facts"]["not_covered"]
    assert (answer["anomalies"], "into files" in files) == ([], True), answer
