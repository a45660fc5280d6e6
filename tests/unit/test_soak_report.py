"""What the soak reads off its journal, the drivers' news and ``kafka-dump-log``, and the table it
makes of it.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from soak.chains import check_batches, check_chain
from soak.findings import Findings
from soak.log_dump import LoggedTransaction, parsed
from soak.report import (
    Report,
    ends_row,
    failure_row,
    fault_rows,
    recoveries,
    recovery_rows,
    step_error_row,
)
from soak.state import SoakFolder, State
from soak.workload import (
    COPIES,
    COPY_PIPELINE,
    COUNT_PIPELINE,
    SCATTER_PIPELINE,
    SOURCE,
    key_index,
    key_of,
    number_in,
    value_of,
)


def commit(pipeline: str, at: float) -> dict[str, Any]:
    return {"what": "step", "step": "commit", "phase": "finished", "pipeline": pipeline, "at": at}


def killed(kind: str, at: float) -> dict[str, Any]:
    return {"what": "fault", "kind": kind, "began": at}


def test_recovery_is_the_time_until_every_pipeline_has_committed_again():
    news = [
        commit(COPY_PIPELINE, 9),
        commit(COPY_PIPELINE, 12),
        commit(COUNT_PIPELINE, 17),
        commit(COPY_PIPELINE, 18),
    ]
    news += [commit(SCATTER_PIPELINE, 13)]
    journal = [killed("kill-broker", 10), killed("none", 11), killed("kill-driver", 17.5)]
    (only,) = recoveries(journal, news)  # after the second kill one of them has not come back
    assert (only.kind, only.seconds) == ("kill-broker", 7)
    assert recovery_rows([only]) == [
        ("recovery after kill-broker", "min 7.0 s, median 7.0 s, max 7.0 s (of 1)")
    ]


def test_faults_are_told_as_planned_and_as_fired():
    rows = dict(
        fault_rows(
            [killed("kill-driver", 1), killed("kill-broker", 2)], Counter({"kill-driver": 2})
        )
    )
    assert rows["fault kill-driver"] == "planned 2, fired 1"
    assert rows["kills"] == "2: driver 1, executor 0, executor-behind-shuffle 0, broker 1"


def test_step_errors_and_ends_are_counted_by_name():
    fired = [{"fault": "commit:started:3:error"}, {"fault": "commit:started:9:error=SendFailed"}]
    assert step_error_row(fired) == ("errors injected in steps", "2: commit:started 2")
    ends = [{"what": "driver-ended", "status": 3, "end": [{"error": "CommitInDoubt"}]}]
    assert ends_row(ends)[1] == "1: CommitInDoubt 1"
    assert ends_row([])[1] == "0"


def test_failures_are_counted_by_error():
    told = {
        "what": "step",
        "step": "send",
        "phase": "failed",
        "pipeline": "p",
        "error": "SendFailed",
    }
    news = [told, {**told, "phase": "finished"}, told, {**told, "error": "EpochPoisoned"}]
    assert failure_row(news)[1] == "3: p EpochPoisoned 1, p SendFailed 2"
    assert failure_row([])[1] == "0"


def test_a_report_with_a_violation_has_not_passed_and_says_which():
    report = Report([("seed", "1"), ("safety", "VIOLATED: I2 1")], ["I2: repeated"], [])
    assert not report.passed
    assert "I2: repeated" in report.text()
    assert "| seed | 1 |" in report.markdown("Soak")
    assert Report([("seed", "1")], [], []).passed


DUMP = """\
Dumping /data/soak-copies-2/00000000000000000000.log
Log starting offset: 0
baseOffset: 0 lastOffset: 4 count: 5 baseSequence: 0 lastSequence: 4 producerId: 7 producerEpoch: 1 \
partitionLeaderEpoch: 0 isTransactional: true isControl: false deleteHorizonMs: OptionalLong.empty
baseOffset: 5 lastOffset: 6 count: 2 baseSequence: 5 lastSequence: 6 producerId: 7 producerEpoch: 1 \
partitionLeaderEpoch: 0 isTransactional: true isControl: false deleteHorizonMs: OptionalLong.empty
baseOffset: 7 lastOffset: 7 count: 1 baseSequence: -1 lastSequence: -1 producerId: 7 producerEpoch: 2 \
partitionLeaderEpoch: 0 isTransactional: true isControl: true deleteHorizonMs: OptionalLong.empty
baseOffset: 8 lastOffset: 8 count: 1 baseSequence: 0 lastSequence: 0 producerId: 7 producerEpoch: 2 \
partitionLeaderEpoch: 0 isTransactional: true isControl: false deleteHorizonMs: OptionalLong.empty
Dumping /data/soak-copies-2/00000000000000000009.log
baseOffset: 9 lastOffset: 9 count: 1 baseSequence: -1 lastSequence: -1 producerId: 7 producerEpoch: 3 \
partitionLeaderEpoch: 0 isTransactional: true isControl: true deleteHorizonMs: OptionalLong.empty
baseOffset: 10 lastOffset: 10 count: 1 baseSequence: 0 lastSequence: 0 producerId: 7 producerEpoch: 4 \
partitionLeaderEpoch: 0 isTransactional: true isControl: false deleteHorizonMs: OptionalLong.empty
"""


def test_transactions_are_read_off_a_dump_over_segments():
    assert list(parsed(DUMP.splitlines())) == [
        LoggedTransaction(COPIES, 2, 7, 1, 0, 6, 7, True),
        LoggedTransaction(COPIES, 2, 7, 2, 8, 8, 1, True),
        LoggedTransaction(COPIES, 2, 7, 4, 10, 10, 1, False),
    ]


def ledger_record(
    sequence: int, start: int, end: int, epoch: int, manifest: dict[str, Any]
) -> dict[str, Any]:
    span = {
        side: {SOURCE: {str(p): offset for p in range(4)}}
        for side, offset in (("start", start), ("end", end))
    }
    return {
        "sequence": sequence,
        "sources": [span],
        "attempt": [7, epoch],
        "outputs": {"kafka": {"data": {COPIES: manifest}}},
    }


def test_a_ledger_that_is_one_chain_to_the_end_holds():
    found = Findings()
    check_chain(
        found, "p", [ledger_record(0, 0, 3, 1, {}), ledger_record(1, 3, 5, 2, {})], [5] * 4
    )
    assert found.holds


@pytest.mark.parametrize(
    ("ledger", "ends", "promise"),
    [
        ([(0, 0, 3, 1), (2, 3, 5, 2)], 5, "I6"),
        ([(0, 0, 3, 1), (1, 4, 5, 2)], 5, "I6"),
        ([(0, 0, 3, 1), (1, 3, 2, 2)], 2, "I6"),
        ([(0, 0, 3, 1)], 5, "I6"),
        ([(0, 0, 3, 1), (1, 3, 5, 1)], 5, "I7"),
    ],
    ids=["a sequence is missing", "a hole", "back", "not to the end", "one epoch twice"],
)
def test_a_broken_chain_is_found(ledger: list[tuple[int, int, int, int]], ends: int, promise: str):
    found = Findings()
    check_chain(found, "p", [ledger_record(*record, {}) for record in ledger], [ends] * 4)
    assert set(found.how_many) == {promise}


TOLD = [ledger_record(0, 0, 1, 2, {"2": [1, 8, 8, "sum"]})]


def judged(
    ledger: list[dict[str, Any]], logged: list[LoggedTransaction], visible: list[int]
) -> tuple[Findings, list[LoggedTransaction]]:
    found, seen = Findings(), np.zeros(11, dtype=np.bool_)
    seen[visible] = True
    return found, check_batches(found, COPY_PIPELINE, ledger, logged, {2: seen})


def test_what_the_log_shows_must_be_what_the_ledger_tells():
    logged = list(parsed(DUMP.splitlines()))[:2]
    good, aborted = judged(TOLD, logged, [8])
    assert good.holds
    assert aborted == logged[:1]
    assert judged([ledger_record(0, 0, 1, 2, {"2": [2, 8, 9, "sum"]})], logged, [8])[
        0
    ].how_many == {"I4": 1}
    assert judged([], logged, [8])[0].how_many == {"I4": 1}
    assert judged(TOLD, logged, [])[0].how_many == {"I4": 1, "I7": 1}, "told, and not visible"
    assert judged(TOLD, logged, [3, 8])[0].how_many == {"I4": 1, "I5": 1}, (
        "a part of an aborted attempt"
    )
    assert judged(TOLD, logged, [8, 10])[0].how_many == {"I5": 1}, "out of no transaction"
    assert judged(TOLD, list(parsed(DUMP.splitlines())), [8])[0].how_many == {"I8": 1}, (
        "one is open"
    )


def test_an_epoch_that_is_aborted_and_committed_is_found():
    logged = list(parsed(DUMP.splitlines()))[:2]
    logged[0].epoch = 2
    assert judged(TOLD, logged, [8])[0].how_many == {"I7": 1}


def test_the_model_of_the_input():
    assert number_in(value_of(3, 12_345)) == 12_345
    assert key_of(5) is None
    assert key_of(98) == b"key-1" == b"key-%d" % key_index(98)


def test_a_soaks_folder_remembers(tmp_path: Path):
    folder = SoakFolder(tmp_path / "soak")
    assert folder.load() is None
    folder.save(State(7, "abc", position=3, elapsed_s=1.5))
    folder.note("fault", kind="none")
    (folder.life(0) / "news.jsonl").write_text('{"what": "running"}\n{"what": "cut off')
    again = SoakFolder(tmp_path / "soak")
    assert again.load() == State(7, "abc", position=3, elapsed_s=1.5)
    assert [entry["kind"] for entry in again.journal()] == ["none"]
    assert list(again.news()) == [{"what": "running"}]
