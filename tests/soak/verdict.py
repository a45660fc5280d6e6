"""What became of everything that went in: safety and liveness, each by itself.

Read with librdkafka and Kafka's own tools; the client that is judged is not used. Memory and time
grow with a few bytes and a microsecond or two per record, so that a day's soak can be judged as
well.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka.admin import AdminClient

from onceward_testing import LocalKafka
from onceward_testing.topic_reader import end_offsets

from .chains import check_batches, check_chain, ledger_of
from .contents import check_copies, check_counts, check_source
from .findings import Findings
from .log_dump import logged_transactions
from .workload import (
    COPIES,
    COPY_PIPELINE,
    COUNT_PIPELINE,
    LEDGER,
    LINEAGE,
    OUTPUT_OF,
    PIPELINES,
    SCATTER_PIPELINE,
    SCATTERED,
    SOURCE,
)

_STILL_OPEN = ("Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence")


def safety(kafka: LocalKafka, account: Path) -> Findings:
    """I1 to I7 and I9, over everything that was written since the soak began."""
    found = Findings()
    servers = kafka.bootstrap_servers
    numbers = check_source(found, servers, account)
    ledgers = {pipeline: ledger_of(servers, pipeline) for pipeline in PIPELINES}
    for pipeline, ledger in ledgers.items():
        check_chain(found, pipeline, ledger, [len(part) for part in numbers])
    visible = {
        COPY_PIPELINE: check_copies(found, servers, COPIES, numbers, in_order=True),
        SCATTER_PIPELINE: check_copies(found, servers, SCATTERED, numbers, in_order=False),
        COUNT_PIPELINE: check_counts(found, servers, numbers, ledgers[COUNT_PIPELINE]),
    }
    committed = aborted = aborted_records = 0
    for pipeline, ledger in ledgers.items():
        logged = logged_transactions(kafka, OUTPUT_OF[pipeline])
        unseen = check_batches(found, pipeline, ledger, logged, visible[pipeline])
        committed += len(ledger)
        aborted += len({part.identity for part in unseen})
        aborted_records += sum(part.count for part in unseen)
    found.facts["transactions committed"] = committed
    found.facts["transactions aborted"] = aborted
    found.facts["aborted records"] = aborted_records
    return found


def liveness(kafka: LocalKafka, standstill: str | None) -> Findings:
    """I8: it came to the end by itself, with nothing left to do and nothing left open."""
    found = Findings()
    if standstill is not None:
        found.violated("I8", standstill)
    lag = lag_of(kafka.bootstrap_servers)
    found.facts["lag"] = lag
    if lag:
        found.violated("I8", f"{lag} records of the source are not passed")
    open_ones = open_transactions(kafka)
    found.facts["open transactions"] = len(open_ones)
    for line in open_ones:
        found.violated("I8", f"open transaction: {line}")
    return found


def lag_of(servers: str) -> int:
    """Records of the source that the consumer groups of the pipelines have not passed,
    together.
    """
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    ends = end_offsets(servers, SOURCE, "read_uncommitted", timeout_s=60)
    lag = 0
    for pipeline in PIPELINES:
        answer = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(pipeline)])
        known = answer[pipeline].result(60).topic_partitions
        passed = {tp.partition: tp.offset for tp in known if tp.topic == SOURCE}
        lag += sum(end - max(0, passed.get(partition, 0)) for partition, end in ends.items())
    return lag


def open_transactions(kafka: LocalKafka) -> list[str]:
    """What the coordinators list as open, and partitions whose last stable offset is not their
    end.
    """
    listed = kafka.kafka_tool("kafka-transactions", "list").splitlines()
    found = [line for line in listed if any(state in line.split() for state in _STILL_OPEN)]
    for topic in (*OUTPUT_OF.values(), LEDGER):
        stable = end_offsets(kafka.bootstrap_servers, topic, "read_committed", timeout_s=60)
        ends = end_offsets(kafka.bootstrap_servers, topic, "read_uncommitted", timeout_s=60)
        found += [
            f"{topic}-{p}: stable to {stable[p]} of {end}"
            for p, end in ends.items()
            if stable[p] != end
        ]
    return found


def verified(kafka: LocalKafka, pipeline: str, answer_file: Path) -> dict[str, Any] | None:
    """What ``onceward verify`` says of the pipeline's whole topic, in a process of its own; None
    without it.
    """
    if importlib.util.find_spec("onceward_verify") is None:
        return None
    command = [
        sys.executable,
        "-m",
        "onceward_verify",
        "--bootstrap-servers",
        kafka.bootstrap_servers,
    ]
    command += ["--pipeline-id", pipeline, "--expect-caught-up", "--output", "json"]
    command += ["--log-dirs", str(kafka.nodes[0].data_folder)]
    if pipeline == SCATTER_PIPELINE:
        command += ["--conserves", "exactly", "--lineage-headers", LINEAGE]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1_800)
    answer_file.write_text(done.stdout + done.stderr)
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        return {
            "verdict": "inconclusive",
            "anomalies": [],
            "said": (done.stdout + done.stderr)[-2_000:],
        }
    return answer
