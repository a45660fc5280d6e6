"""How long from ``kill -9`` of the driver to the next committed batch, and what for.

``python tests/chaos/measure_recovery.py [--lives N] [--broker-version V]``: prints a table;
asserts that the run was exactly once, and nothing about times. A job copies a topic, with a
transaction timeout of ten minutes. It is killed in the middle of sending (an open transaction has
to be ended) and after a commit that Spark has not logged (a batch has to be replayed), in turn,
and started again at once.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from confluent_kafka.admin import AdminClient, NewTopic
from pipeline_audit import audit
from pipeline_lives import JobLife
from pipeline_runs import Pipeline

from onceward.ids import TopicPartition
from onceward.kafka.wire.client import KafkaClient
from onceward_testing import LocalKafka
from support.wire_fixtures import Writer, settings

_MID_SEND, _COMMITTED = "mid-send", "committed, not logged"
_KILLS = {_MID_SEND: "lease:finished:12:kill", _COMMITTED: "commit:finished:1:kill"}
_BATCH = 2_000
_LONG_MS = 600_000


def main() -> None:
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--lives", type=int, default=6, help="kills, half of each kind")
    arguments.add_argument("--broker-version", default="4.3.1")
    chosen = arguments.parse_args()
    with (
        LocalKafka(version=chosen.broker_version) as kafka,
        tempfile.TemporaryDirectory(prefix="onceward-recovery-") as folder,
    ):
        recoveries = _recover_again_and_again(kafka, Path(folder), chosen.lives)
        fencing = [_fencing_seconds(kafka) for _ in range(20)]
    sys.stdout.write(_table(chosen.broker_version, recoveries, fencing))


def _recover_again_and_again(
    kafka: LocalKafka, folder: Path, lives: int
) -> dict[str, list[dict[str, float]]]:
    pipeline = Pipeline(
        kafka,
        folder,
        _new_topic,
        seconds=0.2,
        max_offsets=_BATCH,
        options={"transaction.timeout.ms": _LONG_MS},
    )
    recoveries: dict[str, list[dict[str, float]]] = {kind: [] for kind in _KILLS}
    killed: tuple[str, float] | None = None
    for number in range(lives + 1):
        pipeline.produce(4 * _BATCH)
        kind = list(_KILLS)[number % len(_KILLS)]
        fault = (
            f"commit:finished:2>{_KILLS[kind]}" if number < lives else ""
        )  # measured before it dies in turn
        with pipeline.job(fault) as life:
            if number < lives:
                life.wait()
                life.must_have_been_killed()
            else:
                life.until(lambda: pipeline.lag() == 0, "lag 0")
            if killed is not None:
                recoveries[killed[0]].append(_phases(killed[1], life))
            killed = (kind, life.fired[0].fired_at_ms / 1000) if number < lives else None
    audit(pipeline)
    return recoveries


def _phases(killed_at: float, life: JobLife) -> dict[str, float]:
    """Seconds of each phase between the kill and the first commit of the next life."""
    session = next(entry["at"] for entry in life.news if entry["what"] == "session")
    opening, opened = life.steps("open", "started")[0].at, life.steps("open")[0].at
    replayed = life.steps("replay")[0].at if life.steps("replay") else None
    committed = life.steps("commit")[0]
    began = next(
        s for s in life.steps("plan", "started") if s.ids["batch_id"] == committed.ids["batch_id"]
    ).at
    return {
        "death noticed, job started again": life.started_at - killed_at,
        "start of Python, JVM and Spark session": session - life.started_at,
        "session to the first batch's call": opening - session,
        "open: preflight, fencing, ledger read": opened - opening,
        "replay of the committed batch": replayed - opened if replayed else 0.0,
        "to the first new batch": began - (replayed or opened),
        "first batch: plan to EndTxn": committed.at - began,
        "in all": committed.at - killed_at,
    }


def _fencing_seconds(kafka: LocalKafka) -> float:
    """``InitProducerId`` of a new owner while its predecessor's transaction is open, its end
    included.
    """
    client = KafkaClient(settings(kafka.bootstrap_servers)[0])
    try:
        topic = _new_topic(kafka.bootstrap_servers, 8)
        name = f"recovery-{uuid.uuid4().hex[:8]}"
        old, new = (Writer(client, name, timeout_ms=_LONG_MS) for _ in range(2))
        old.transaction.take_over()
        old.transaction.begin()
        old.write({TopicPartition(topic, partition): [b"open"] for partition in range(8)})
        began = time.monotonic()
        new.transaction.take_over()
        return time.monotonic() - began
    finally:
        client.close()


def _new_topic(servers: str, partitions: int = 1, *, prefix: str = "t", **_: Any) -> str:
    name = f"{prefix}-{uuid.uuid4().hex[:12]}"
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(name, partitions)])[name].result(30)
    return name


def _table(
    version: str, recoveries: dict[str, list[dict[str, float]]], fencing: list[float]
) -> str:
    kinds = [kind for kind, found in recoveries.items() if found]
    lines = [f"Kafka {version}; seconds, median (and longest)", ""]
    lines.append(_row("killed", kinds))
    phases = list(recoveries[kinds[0]][0])
    lines += [
        _row(phase, [_cell([found[phase] for found in recoveries[kind]]) for kind in kinds])
        for phase in phases
    ]
    lines += ["", _row("kills", [str(len(recoveries[kind])) for kind in kinds])]
    lines.append(_row("fencing alone: InitProducerId ends an open transaction", [_cell(fencing)]))
    lines.append(_row("transaction.timeout.ms, which nobody waited for", [f"{_LONG_MS / 1000:g}"]))
    return "\n".join(lines) + "\n"


def _row(name: str, cells: list[str]) -> str:
    return f"{name:58}" + "".join(f"{cell:>24}" for cell in cells)


def _cell(seconds: list[float]) -> str:
    return f"{statistics.median(seconds):.2f} ({max(seconds):.2f})"


if __name__ == "__main__":
    main()
