"""The demo's pure parts: the people, the pace, the plan, the reading of checkpoint, tools and news."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceward import events
from onceward.cli.demo import job_news
from onceward.cli.demo.audit import (
    OutputFacts,
    Readings,
    TransactionFacts,
    group_lag,
    output_violations,
    transaction_violations,
    transactional_ids,
)
from onceward.cli.demo.checkpoint import QueryProgress, query_progress
from onceward.cli.demo.kill_plan import kill_plan
from onceward.cli.demo.pace import Pace
from onceward.cli.demo.people import VALID_LENGTH, expected_numbers, people
from onceward.cli.demo.settings import PIPELINE_ID, DemoSettings, JobSettings
from onceward.errors import ConfigurationError
from onceward.ids import BatchId, PipelineId, ProducerIdentity, SourceRange, TopicPartition
from onceward.ledger.record import LedgerRecord, PartitionManifest
from onceward.testing.faults import parse_faults
from onceward.testing.topic_reader import ReadRecord
from onceward.testing.verdict import exactly_once


def test_people_are_the_same_for_the_same_seed() -> None:
    assert list(people(500, seed=3)) == list(people(500, seed=3))
    assert list(people(500, seed=3)) != list(people(500, seed=4))


def test_people_hold_every_kind_that_the_job_must_cope_with() -> None:
    everybody = list(people(20_000, seed=1))
    assert len(everybody) == 20_000
    tombstones = [person for person in everybody if person.value is None]
    repeats = [person for person in everybody if person.repeats_previous]
    wrong = [person for person in everybody if person.value is not None and not person.valid]
    assert tombstones
    assert repeats
    assert {len(person.number) for person in wrong if person.number is not None} >= {0, 15, 17, 19}
    assert any(person.number is None for person in wrong)


def test_a_repeated_registration_equals_the_record_before_it() -> None:
    everybody = list(people(20_000, seed=1))
    pairs = [(before, after) for before, after in itertools.pairwise(everybody) if after.repeats_previous]
    assert all((before.key, before.value) == (after.key, after.value) for before, after in pairs)


def test_the_model_is_what_the_values_say() -> None:
    everybody = list(people(5_000, seed=2))
    documents = [json.loads(person.value) for person in everybody if person.value is not None]
    numbers = [document.get("identifyNumber") for document in documents]
    assert expected_numbers(everybody) == {number for number in numbers if number and len(number) == VALID_LENGTH}


def test_only_repeated_registrations_share_a_number() -> None:
    everybody = [person for person in people(20_000, seed=1) if person.valid and not person.repeats_previous]
    assert len(expected_numbers(everybody)) == len(everybody)


@given(records=st.integers(1, 500_000), seconds=st.floats(1, 500), elapsed=st.floats(0, 2_000))
def test_the_pace_never_finishes_while_kills_are_outstanding(records: int, seconds: float, elapsed: float) -> None:
    pace = Pace(records, seconds)
    held, free = (pace.due(elapsed, hold=hold) for hold in (True, False))
    assert held <= records - 1
    assert 0 <= held <= free <= records
    if elapsed >= seconds:
        assert free == records


def test_a_held_pace_trickles_on_so_that_event_time_goes_on() -> None:
    pace = Pace(200_000, 90.0)
    written = [pace.due(elapsed, hold=True) for elapsed in range(0, 900, 10)]
    assert all(before < after for before, after in itertools.pairwise(written))


def test_each_fault_of_the_plan_can_be_armed() -> None:
    plan = kill_plan(DemoSettings())
    assert len(plan) >= 3
    armed = [parse_faults(kill.fault)[0] for kill in plan if kill.trigger == "fault_point"]
    assert len(set(armed)) == len(armed)
    assert any("lease:finished" in str(fault) for fault in armed)
    assert any("commit:finished" in str(fault) for fault in armed)
    assert len(kill_plan(DemoSettings(delivery="at_least_once"))) >= 3


def test_settings_are_checked_and_travel_as_json() -> None:
    with pytest.raises(ConfigurationError, match="10 records"):
        DemoSettings(records=10)
    job = JobSettings("a:1", "/c", "/f", "exactly_once", "local[2]", 20)
    assert JobSettings.from_json(job.to_json()) == job


def test_progress_is_the_newest_batch_in_the_commit_log(tmp_path: Path) -> None:
    assert query_progress(tmp_path) is None
    for log in ("offsets", "commits"):
        (tmp_path / log).mkdir()
    assert query_progress(tmp_path) is None
    for batch in (9, 10, 11):
        metadata = json.dumps({"batchWatermarkMs": batch * 1_000, "batchTimestampMs": 5, "conf": {}})
        (tmp_path / "offsets" / str(batch)).write_text(f'v1\n{metadata}\n{{"people":{{"0":1}}}}')
    for batch in (9, 10):
        (tmp_path / "commits" / str(batch)).write_text("v1\n{}")
        (tmp_path / "commits" / f".{batch}.crc").write_text("")
    assert query_progress(tmp_path) == QueryProgress(batch_id=10, watermark_ms=10_000)


def test_news_are_told_apart_from_what_else_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    job_news.tell_step(events.Event(events.COMMIT, "finished", {"batch_id": 4, "partition": object()}, 0.5))
    job_news.tell_step(events.Event(events.PLAN, "finished", {"batch_id": 4}, 0.5))
    lines = capfd.readouterr().out.encode().splitlines()
    (news,) = [news for line in [b"WARN something", *lines] if (news := job_news.heard(line)) is not None]
    assert news.is_step(events.COMMIT, "finished")
    assert not news.is_step(events.COMMIT, "started")
    assert news.batch_id == 4


_GROUP = """
GROUP           TOPIC       PARTITION  CURRENT-OFFSET  LOG-END-OFFSET  LAG    CONSUMER-ID  HOST  CLIENT-ID
people-etl      people      0          10              {end}           {lag}  -            -     -
people-etl      people      1          12              12              0      -            -     -
"""


def test_group_lag_is_summed_over_partitions_and_unknown_is_not_zero() -> None:
    assert group_lag(_GROUP.format(end=10, lag=0)) == 0
    assert group_lag(_GROUP.format(end=17, lag=7)) == 7
    assert group_lag(_GROUP.format(end="-", lag="-")) is None
    assert group_lag("Consumer group 'people-etl' does not exist.") is None
    assert group_lag(_GROUP.strip().splitlines()[0]) is None


def test_transactional_ids_are_the_first_column() -> None:
    listed = "TransactionalId\tCoordinator\tProducerId\tTransactionState\npeople-etl\t1\t0\tCompleteCommit\n"
    assert transactional_ids(listed) == ["people-etl"]
    assert transactional_ids("") == []


def _read(partition: int, offset: int) -> ReadRecord:
    return ReadRecord(partition, offset, 0, b"k", b"v")


def _ledger_record(sequence: int, first: int, last: int, start: int | None) -> LedgerRecord:
    return LedgerRecord(
        pipeline=PipelineId(PIPELINE_ID),
        sequence=sequence,
        batch=BatchId("q", sequence),
        sources=(SourceRange(start, sequence),),
        manifest={TopicPartition("people-clean", 0): PartitionManifest(last - first + 1, first, last, "")},
        producer=ProducerIdentity(1, sequence),
        committed_at_ms=0,
    )


# Output partition 0: batch 0 at 0-1, an aborted attempt at 3-4, batch 1 at 6; ledger partition 9: two records.
_UNCOMMITTED = [_read(0, offset) for offset in (0, 1, 3, 4, 6)]
_COMMITTED = [_read(0, offset) for offset in (0, 1, 6)]
_LEDGER = [_ledger_record(0, 0, 1, None), _ledger_record(1, 6, 6, 0)]
_LEDGER_READINGS = Readings([_read(9, 0), _read(9, 2)], [_read(9, 0), _read(9, 2)])


def _facts(**changes: object) -> TransactionFacts:
    facts: dict[str, object] = {
        "ledger": _LEDGER,
        "ledger_readings": _LEDGER_READINGS,
        "output": Readings(_COMMITTED, _UNCOMMITTED),
        "group_lag": 0,
        "transactional_ids": [PIPELINE_ID],
    }
    return TransactionFacts(**{**facts, **changes})  # type: ignore[arg-type]


def test_a_clean_run_has_no_violations() -> None:
    assert transaction_violations(_facts()) == []


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"group_lag": 3}, "lag 3"),
        ({"group_lag": None}, "lag None"),
        ({"transactional_ids": [PIPELINE_ID, "other"]}, "transactional ids"),
        ({"ledger": [_LEDGER[0]]}, "2 committed transactions, 1 ledger records"),
        ({"ledger": [_LEDGER[0], _ledger_record(2, 6, 6, 0)]}, "sequence numbers"),
        ({"ledger": [_LEDGER[0], _ledger_record(1, 6, 6, 5)]}, "does not begin where"),
        ({"ledger": [_LEDGER[0], _ledger_record(1, 6, 7, 0)]}, "output partition 0"),
        ({"output": Readings(_UNCOMMITTED, _UNCOMMITTED)}, "3 commit markers for 2 batches"),
        ({"output": Readings(_COMMITTED[1:], _UNCOMMITTED)}, "visible in part"),
    ],
)
def test_each_violation_is_found(changes: dict[str, object], told: str) -> None:
    assert any(told in violation for violation in transaction_violations(_facts(**changes)))


def test_an_open_transaction_and_a_loss_are_violations_of_the_output() -> None:
    readings = Readings(_COMMITTED, _UNCOMMITTED)
    assert output_violations(OutputFacts(exactly_once(["a"], ["a"]), readings, [])) == []
    assert len(output_violations(OutputFacts(exactly_once(["a"], ["a"]), readings, [2]))) == 1
    assert len(output_violations(OutputFacts(exactly_once(["a"], []), readings, [2]))) == 2
