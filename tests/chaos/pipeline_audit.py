"""The verdict on a pipeline's run, by clients that share no code with what is judged.

I4 to I8 are for the checker, ``python -m onceward_verify``, a process of its own that recomputes
every batch from the logs, down to the epoch in each record batch on the brokers' disks. What
should be visible at all (I1, I2, I3, I9) only a model of the workload can say: ``pipeline_models``
has one a workload, which is compared here with what librdkafka reads. To add one, write it there.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pipeline_models import Row, expected
from pipeline_runs import Pipeline

from onceward_testing.topic_reader import ReadRecord, read_topic
from onceward_testing.verdict import exactly_once

LEDGER = "onceward-ledger"
_SETTLE_SECONDS, _PATIENCE_SECONDS = "60", "120"
_IN_ORDER = ("copy", "fanout")


@dataclass
class Audit:
    """All that was found."""

    ledger: list[dict[str, Any]]
    """The pipeline's ledger records as they are in the topic."""
    source: list[ReadRecord]
    committed: list[ReadRecord] = field(default_factory=list)
    """What is visible in the outputs."""
    checker: dict[str, Any] = field(default_factory=dict)
    """The checker's facts."""

    @property
    def batches(self) -> int:
        return len(self.ledger)

    @property
    def aborted_records(self) -> int:
        """Output records of aborted attempts, which no reader is to see."""
        return sum(topic["aborted_records"] for topic in self.checker["topics"].values())

    @property
    def identities(self) -> list[tuple[int, int]]:
        """Producer id and epoch of each committed batch."""
        return [tuple(record["attempt"]) for record in self.ledger]


def audit(pipeline: Pipeline) -> Audit:
    """Everything that is promised of a run that has come to its end.

    :returns: the facts, for what a test has to say beside.
    """
    answer = ask_the_checker(pipeline)
    assert (answer["verdict"], answer["anomalies"]) == ("exactly_once", []), json.dumps(
        answer, indent=1
    )
    servers = pipeline.kafka.bootstrap_servers
    source = read_topic(servers, pipeline.source)
    ledger = [
        json.loads(r.value or b"")
        for r in read_topic(servers, LEDGER)
        if r.key == pipeline.pipeline_id.encode()
    ]
    found = Audit(ledger, source, checker=answer["facts"])
    assert found.checker["ledger"]["batches"] == found.batches
    model = expected(pipeline.settings.query, source, ledger, pipeline.source, pipeline.outputs)
    for topic in pipeline.outputs:
        visible = read_topic(servers, topic)
        verdict = exactly_once(model[topic], _rows(visible))
        assert verdict.holds, f"{topic}: {verdict}"  # I1, I2, I9
        assert found.checker["topics"][topic]["records"] == len(visible)
        if pipeline.settings.query in _IN_ORDER:
            _order_is_kept(visible)  # I3
        found.committed += visible
    return found


def audit_epochs(pipeline: Pipeline, found: Audit) -> None:
    """I7, in figures: the checker saw the epoch of every batch that wrote something, and of
    aborted attempts if any.
    """
    writers = [
        record
        for record in found.ledger
        if any(record["outputs"]["kafka"]["data"].get(topic) for topic in pipeline.outputs)
    ]
    seen = found.checker["epochs"]
    assert seen["committed_identities"] == len(writers), seen
    assert (seen["aborted_identities"] > 0) == (found.aborted_records > 0), seen


def ask_the_checker(pipeline: Pipeline, *options: str) -> dict[str, Any]:
    """The checker's answer, of a process of its own, with the brokers' files at hand."""
    command = [
        sys.executable,
        "-m",
        "onceward_verify",
        "--bootstrap-servers",
        pipeline.kafka.bootstrap_servers,
    ]
    command += [
        "--pipeline-id",
        pipeline.pipeline_id,
        "--ledger-topic",
        LEDGER,
        "--expect-caught-up",
    ]
    command += ["--settle", _SETTLE_SECONDS, "--patience", _PATIENCE_SECONDS, "--output", "json"]
    command += [part for topic in pipeline.outputs for part in ("--topic", topic)]
    command += [
        part for node in pipeline.kafka.nodes for part in ("--log-dirs", str(node.data_folder))
    ]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1, 2), f"the checker failed: {done.stderr}"
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def output_rows(pipeline: Pipeline) -> list[Row]:
    """What is visible now, in all outputs."""
    servers = pipeline.kafka.bootstrap_servers
    return [row for topic in pipeline.outputs for row in _rows(read_topic(servers, topic))]


def _order_is_kept(visible: Sequence[ReadRecord]) -> None:
    reached: dict[tuple[int, int], int] = {}
    for record in visible:  # by output partition and offset
        source, offset = map(int, (record.value or b"").split(b":", 2)[:2])
        assert offset > reached.get((source, record.partition), -1), f"out of order: {record}"
        reached[source, record.partition] = offset


def _rows(records: Sequence[ReadRecord]) -> list[Row]:
    return [(record.key, record.value) for record in records]
