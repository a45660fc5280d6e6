"""``python -m soak``: see ``--help``. Exit status 0: both verdicts hold; 1: one does not; 2: it
could not be run.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from .cluster import Cluster
from .findings import Findings
from .plan import plan
from .report import (
    Report,
    attempt_row,
    ends_row,
    failure_row,
    fault_rows,
    recoveries,
    recovery_rows,
    step_error_row,
    today,
)
from .run import Soak, SoakSettings
from .state import SoakFolder, State, commit_under_test
from .verdict import liveness, safety, verified
from .workload import PIPELINES


def main() -> int:
    arguments = _arguments()
    path = arguments.dir or Path(tempfile.mkdtemp(prefix="onceward-soak-"))
    folder = SoakFolder(path)
    state = folder.load()
    if state is None:
        seed = (
            arguments.seed
            if arguments.seed is not None
            else random.SystemRandom().randrange(1 << 31)
        )
        state = State(seed, commit_under_test(Path(__file__).parent))
    elif arguments.seed not in (None, state.seed):
        sys.stderr.write(
            f"{path} holds a soak of seed {state.seed}; name another folder, or leave --seed out\n"
        )
        return 2
    settings = SoakSettings(state.seed, arguments.minutes, arguments.rate)
    _say(
        state,
        f"seed {state.seed}, {arguments.minutes:g} min; to go on after an interruption: --dir "
        f"{path}",
    )
    with Cluster(folder.brokers) as cluster:
        _say(state, "three brokers serve")
        standstill = Soak(settings, folder, state, lambda what: _say(state, what)).run(cluster)
        _say(state, "reading everything for the verdict")
        report = _report(cluster, folder, state, standstill)
    sys.stdout.write(f"\n{report.text()}\n")
    if arguments.report is not None:
        arguments.report.parent.mkdir(parents=True, exist_ok=True)
        arguments.report.write_text(report.markdown("Soak: random faults on three brokers"))
    if arguments.dir is None and report.passed:
        shutil.rmtree(path)
    return 0 if report.passed else 1


def _report(cluster: Cluster, folder: SoakFolder, state: State, standstill: str | None) -> Report:
    alive = liveness(cluster.kafka, standstill)
    safe = safety(cluster.kafka, folder.account)
    verify_rows = [_verify_row(cluster, folder, pipeline, safe) for pipeline in PIPELINES]
    journal, news = folder.journal(), list(folder.news())
    planned: Counter[str] = Counter(
        fault.kind for fault in itertools.islice(plan(state.seed), state.position)
    )
    committed, aborted = safe.facts["transactions committed"], safe.facts["transactions aborted"]
    rows: list[tuple[str, Any]] = [
        ("date", today()),
        ("seed", state.seed),
        ("commit", state.commit),
        ("minutes under faults", f"{state.elapsed_s / 60:.1f}, in {state.starts} start(s)"),
        ("brokers", f"3, Kafka {cluster.kafka.version}, min.insync.replicas 2"),
        (
            "pipelines",
            "three queries of one driver with two executors: a copy, a count per key (RocksDB), "
            "and a copy behind a "
            "shuffle that is not repeatable, which in two lives of three is counted or persisted "
            "first",
        ),
        ("machine", f"{os.cpu_count()} cores"),
        ("records in", f"{safe.facts['records in']:,}"),
        ("records out", f"{safe.facts['records out']:,}"),
        (
            "transactions",
            f"{committed + aborted:,}: {committed:,} committed, {aborted:,} aborted with records "
            f"in the log",
        ),
        ("aborted share", f"{aborted / max(1, committed + aborted):.1%}"),
        attempt_row(news),
        failure_row(news),
        step_error_row(folder.fired()),
        *fault_rows(journal, planned),
        ("driver lives", state.lives),
        ends_row(journal),
        ("brokers that ended by themselves", cluster.ended_by_themselves),
        ("broker starts of more than two minutes", cluster.late_starts),
        *recovery_rows(recoveries(journal, news)),
        ("healing and catching up", f"{state.healing_s:.0f} s"),
        ("lag", alive.facts["lag"]),
        ("open transactions", alive.facts["open transactions"]),
        *[row for row in verify_rows if row is not None],
        ("safety", _verdict(safe)),
        ("liveness", _verdict(alive)),
    ]
    return Report([(name, str(value)) for name, value in rows], safe.violations, alive.violations)


def _verify_row(
    cluster: Cluster, folder: SoakFolder, pipeline: str, safe: Findings
) -> tuple[str, str] | None:
    answer = verified(cluster.kafka, pipeline, folder.path / f"verify-{pipeline}.json")
    if answer is None:
        return None
    if answer["verdict"] != "exactly_once":
        safe.violated("verify", f"{pipeline}: {answer['verdict']}: {str(answer)[:2_000]}")
    told = f"{answer['verdict']}, {len(answer['anomalies'])} anomalies"
    conserved = answer.get("facts", {}).get("conservation")
    if conserved is not None:
        told += (
            f"; {conserved['input_records']:,} input records, each named {conserved['rule']} once?"
        )
    return f"onceward verify, {pipeline}", told


def _verdict(found: Findings) -> str:
    if found.holds:
        return "holds: 0 violations"
    return "VIOLATED: " + ", ".join(
        f"{promise} {times}" for promise, times in sorted(found.how_many.items())
    )


def _say(state: State, what: str) -> None:
    sys.stdout.write(f"{time.strftime('%H:%M:%S')} {state.elapsed_s / 60:5.1f} min  {what}\n")
    sys.stdout.flush()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="soak", description=__doc__)
    parser.add_argument(
        "--seed", type=int, help="of the plan of faults; by default a new one, which is printed"
    )
    parser.add_argument(
        "--minutes", type=float, default=60, help="how long things are broken (60)"
    )
    parser.add_argument(
        "--rate",
        type=int,
        default=SoakSettings.records_per_second,
        help="records a second fed (%(default)s)",
    )
    parser.add_argument(
        "--dir",
        type=Path,
        help="where everything lies; an interrupted soak is continued from there",
    )
    parser.add_argument("--report", type=Path, help="write the table there, too, as Markdown")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
