"""The demo's pure parts: the people, the pace, the plan, the reading of checkpoint, tools and
news.
"""

from __future__ import annotations

import io
import itertools
import json
import random
import struct
from pathlib import Path
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceward import events
from onceward.errors import ConfigurationError
from onceward_testing.demo import job_news
from onceward_testing.demo.audit import CheckerFacts, OutputFacts
from onceward_testing.demo.checkpoint import QueryProgress, query_progress
from onceward_testing.demo.encodings import POISON, AsAvro, AsJson, poisoned
from onceward_testing.demo.kill_plan import kill_plan
from onceward_testing.demo.pace import Pace
from onceward_testing.demo.people import VALID_LENGTH, expected_numbers, people
from onceward_testing.demo.report import DemoResult, judge
from onceward_testing.demo.settings import DemoSettings, JobSettings, SinkName, SourceName
from onceward_testing.faults import parse_faults
from onceward_testing.verdict import exactly_once


def test_people_are_the_same_for_the_same_seed() -> None:
    assert list(people(500, seed=3)) == list(people(500, seed=3))
    assert list(people(500, seed=3)) != list(people(500, seed=4))


def test_people_hold_every_kind_that_the_job_must_cope_with() -> None:
    everybody = list(people(20_000, seed=1))
    assert len(everybody) == 20_000
    tombstones = [person for person in everybody if person.document is None]
    repeats = [person for person in everybody if person.repeats_previous]
    wrong = [person for person in everybody if person.document is not None and not person.valid]
    assert tombstones
    assert repeats
    assert {len(person.number) for person in wrong if person.number is not None} >= {0, 15, 17, 19}
    assert any(person.number is None for person in wrong)


def test_a_repeated_registration_equals_the_record_before_it() -> None:
    everybody = list(people(20_000, seed=1))
    pairs = [
        (before, after)
        for before, after in itertools.pairwise(everybody)
        if after.repeats_previous
    ]
    assert all(
        (before.key, before.document) == (after.key, after.document) for before, after in pairs
    )


def test_the_model_is_what_the_values_say() -> None:
    everybody = list(people(5_000, seed=2))
    values = [AsJson().value(person) for person in everybody]
    documents = [json.loads(value) for value in values if value is not None]
    numbers = [document.get("identifyNumber") for document in documents]
    assert expected_numbers(everybody) == {
        number for number in numbers if number and len(number) == VALID_LENGTH
    }


def test_only_repeated_registrations_share_a_number() -> None:
    everybody = [
        person for person in people(20_000, seed=1) if person.valid and not person.repeats_previous
    ]
    assert len(expected_numbers(everybody)) == len(everybody)


class Ids:
    """A registry that counts."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def register(self, _subject: str, text: str) -> int:
        self.texts.append(text)
        return 100 + len(self.texts)


def test_spoilt_people_are_no_avro_and_expected_nowhere() -> None:
    everybody = poisoned(list(people(20_000, seed=1)), 10, random.Random(1).random)
    spoilt = [person for person in everybody if person.poison]
    assert 100 < len(spoilt) < 300
    assert {person.poison for person in spoilt} == set(POISON)
    assert all(person.document is not None and person.number is None for person in spoilt)
    registry: Any = Ids()
    encoding = AsAvro(registry, evolves_at=10_000)
    sound = 0
    for number, person in enumerate(everybody):
        assert (
            len(registry.texts) == 1 + (number > 10_000)
            or number == 10_000
            or everybody[10_000].document is None
        )
        value = encoding.value(person)
        if value is None:
            assert person.document is None
            continue
        read = _read(value, registry.texts)
        if person.poison:
            assert read is None, person
        else:
            assert read is not None
            assert (read["id"], read["identifyNumber"]) == (int(person.key), person.number)
            sound += 1
    assert sound > 19_000


def _read(value: bytes, texts: list[str]) -> dict[str, Any] | None:
    """By fastavro, if it is a whole record of one of the schemas."""
    number = int.from_bytes(value[1:5], "big") - 101
    if len(value) < 5 or value[0] != 0 or not 0 <= number < len(texts):
        return None
    body = io.BytesIO(value[5:])
    try:
        read: Any = fastavro.schemaless_reader(body, json.loads(texts[number]), None)
    except (ValueError, EOFError, IndexError, StopIteration, struct.error):
        return None
    return None if body.read(1) else read


@given(records=st.integers(1, 500_000), seconds=st.floats(1, 500), elapsed=st.floats(0, 2_000))
def test_the_pace_never_finishes_while_kills_are_outstanding(
    records: int, seconds: float, elapsed: float
) -> None:
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


def test_a_hundred_kills_do_not_outlast_the_input() -> None:
    """Some take a minute each, on a slow machine."""
    pace = Pace(200_000, 90.0, kills=100)
    written = [pace.due(elapsed, hold=True) for elapsed in range(0, 6_000, 10)]
    assert all(before < after for before, after in itertools.pairwise(written))


@pytest.mark.parametrize(
    ("source", "sink", "step"),
    [
        ("kafka", "kafka", "lease[people-clean-]:finished"),
        ("kafka", "postgres", "move:started"),
        ("kafka", "mysql", "move:started"),
        ("kafka", "files", "publish:started"),
        ("mysql", "kafka", "lease[town.]:finished"),
        ("mysql", "postgres", "move:started"),
    ],
)
def test_each_fault_of_the_plan_can_be_armed(
    source: SourceName, sink: SinkName, step: str
) -> None:
    plan = kill_plan(DemoSettings(source=source, sink=sink))
    assert len(plan) >= 3
    armed = [parse_faults(kill.fault)[0] for kill in plan if kill.trigger == "fault_point"]
    assert len(set(armed)) == len(armed)
    assert any(step in str(fault) for fault in armed)
    assert any(
        f"{'publish' if sink == 'files' else 'commit'}:finished" in str(fault) for fault in armed
    )
    assert len(kill_plan(DemoSettings(delivery="at_least_once"))) >= 3


def test_a_plan_of_many_kills_is_by_its_seed_alone_and_has_all_kinds() -> None:
    plan = kill_plan(DemoSettings(sink="postgres", kills=100, seed=7))
    assert len(plan) == 100
    assert plan == kill_plan(DemoSettings(sink="postgres", kills=100, seed=7))
    assert plan != kill_plan(DemoSettings(sink="postgres", kills=100, seed=8))
    assert {kill.trigger for kill in plan} == {"fault_point", "after_a_commit", "after_the_start"}
    for kill in plan:
        if kill.trigger == "fault_point":
            parse_faults(kill.fault)


def test_settings_are_checked_and_travel_as_json() -> None:
    with pytest.raises(ConfigurationError, match="10 records"):
        DemoSettings(records=10)
    with pytest.raises(ConfigurationError, match="Kafka sink alone"):
        DemoSettings(sink="postgres", delivery="at_least_once")
    for wrong in (
        {"sink": "files"},
        {"sink": "mysql"},
        {"delivery": "at_least_once"},
        {"plain": True},
    ):
        with pytest.raises(ConfigurationError, match="changes of MySQL"):
            DemoSettings(source="mysql", **wrong)  # type: ignore[arg-type]
    job = JobSettings("a:1", "/c", "/f", "exactly_once", "local[2]", 20)
    assert JobSettings.from_json(job.to_json()) == job


def test_progress_is_the_newest_batch_in_the_commit_log(tmp_path: Path) -> None:
    assert query_progress(tmp_path) is None
    for log in ("offsets", "commits"):
        (tmp_path / log).mkdir()
    assert query_progress(tmp_path) is None
    for batch in (9, 10, 11):
        metadata = json.dumps(
            {"batchWatermarkMs": batch * 1_000, "batchTimestampMs": 5, "conf": {}}
        )
        (tmp_path / "offsets" / str(batch)).write_text(f'v1\n{metadata}\n{{"people":{{"0":1}}}}')
    for batch in (9, 10):
        (tmp_path / "commits" / str(batch)).write_text("v1\n{}")
        (tmp_path / "commits" / f".{batch}.crc").write_text("")
    assert query_progress(tmp_path) == QueryProgress(batch_id=10, watermark_ms=10_000)


def test_news_are_told_apart_from_what_else_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    job_news.tell_step(
        events.Event(events.COMMIT, "finished", {"batch_id": 4, "partition": object()}, 0.5)
    )
    job_news.tell_step(events.Event(events.PLAN, "finished", {"batch_id": 4}, 0.5))
    lines = capfd.readouterr().out.encode().splitlines()
    (news,) = [
        news for line in [b"WARN something", *lines] if (news := job_news.heard(line)) is not None
    ]
    assert news.is_step(events.COMMIT, "finished")
    assert not news.is_step(events.COMMIT, "started")
    assert news.batch_id == 4


def answer(verdict: str, **more: object) -> CheckerFacts:
    facts = {"ledger": {"batches": 7}, "sources": {"people": {"group_lag": 0}}, "not_covered": []}
    return CheckerFacts({"verdict": verdict, "anomalies": [], "facts": {**facts, **more}})


def judged(output: OutputFacts, checked: CheckerFacts | None) -> DemoResult:
    return judge(DemoSettings(), output, checked, [], 9, 1.0, 200_000)


def test_the_checker_and_the_model_must_both_be_content() -> None:
    kept, lost = (OutputFacts(exactly_once(["a"], seen), 3) for seen in (["a"], []))
    assert judged(kept, answer("exactly_once")).kept
    assert judged(kept, answer("exactly_once")).batches == 7
    assert not judged(lost, answer("exactly_once")).kept
    assert not judged(kept, answer("inconclusive", not_covered=["the log directories"])).kept
    assert (
        "log directories"
        in judged(kept, answer("inconclusive", not_covered=["the log directories"])).violations[0]
    )


def test_every_spoilt_record_is_a_dead_letter_and_no_other_is() -> None:
    good = exactly_once(["a"], ["a"])
    for seen, kept in (
        (["1:x", "2:y"], True),
        (["1:x"], False),
        (["1:x", "2:y", "2:y"], False),
        (["1:x", "2:z"], False),
    ):
        letters = exactly_once([b"1:x", b"2:y"], [one.encode() for one in seen])
        result = judged(OutputFacts(good, 3, letters), answer("exactly_once"))
        assert result.kept is kept
        assert (result.poison, result.dead_letters) == (2, len(seen))
    (violation,) = judged(
        OutputFacts(good, 3, exactly_once([], [])), answer("exactly_once")
    ).violations
    assert "INVALID" in violation


def test_what_is_left_over_is_a_violation() -> None:
    found = OutputFacts(exactly_once(["a"], ["a"]), left_over=["staging table s"])
    result = judged(found, answer("exactly_once"))
    assert result.violations == ["left over: staging table s"]
    assert result.left_over == 1
    assert judged(OutputFacts(exactly_once(["a"], ["a"])), answer("exactly_once")).kept


def test_kills_that_left_nothing_behind_prove_nothing() -> None:
    (violation,) = judged(
        OutputFacts(exactly_once(["a"], ["a"]), 0), answer("exactly_once")
    ).violations
    assert "INVALID" in violation


def test_each_anomaly_is_told_with_its_place() -> None:
    checked = answer("violated")
    checked.answer["anomalies"].append(
        {"name": "lost-write", "where": "people-clean-0@3", "detail": "gone"}
    )
    assert checked.violations == ["lost-write at people-clean-0@3: gone"]


def test_a_checker_that_says_nothing_is_no_good_news() -> None:
    assert CheckerFacts(
        {"verdict": "nothing: no such module", "anomalies": [], "facts": {}}
    ).violations


@pytest.mark.parametrize(
    ("lags", "told"), [([0, 0], 0), ([3, 4], 7), ([0, None], None), ([], None)]
)
def test_an_unknown_lag_is_not_zero(lags: list[int | None], told: int | None) -> None:
    sources = {str(number): {"group_lag": lag} for number, lag in enumerate(lags)}
    assert answer("exactly_once", sources=sources).group_lag == told
