"""The demo's pure parts: the people, the pace, the plan, the checkpoint, and messages."""

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
from onceward_testing.demo.input import Pace
from onceward_testing.demo.job import tell_step
from onceward_testing.demo.kill_plan import kill_plan
from onceward_testing.demo.outputs import CheckerFacts
from onceward_testing.demo.report import DemoResult, OutputFacts
from onceward_testing.demo.settings import DemoJobSettings, DemoSettings, SinkName, SourceName
from onceward_testing.demo.supervisor import QueryProgress, is_step, query_progress
from onceward_testing.demo.windows.people import (
    DEFECTS,
    VALID_LENGTH,
    avro_encoder,
    expected_numbers,
    people,
    to_json,
    with_defects,
)
from onceward_testing.faults import parse_faults
from onceward_testing.job_messages import MessageReader, MessageWriter
from onceward_testing.verdict import exactly_once
from support.errors import raises


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
    values = [to_json(person) for person in everybody]
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


def test_invalid_people_are_no_avro_and_expected_nowhere() -> None:
    everybody = with_defects(list(people(20_000, seed=1)), 10, random.Random(1).random)
    invalid = [person for person in everybody if person.defect]
    assert 100 < len(invalid) < 300
    assert {person.defect for person in invalid} == set(DEFECTS)
    assert all(person.document is not None and person.number is None for person in invalid)
    registry: Any = Ids()
    encode = avro_encoder(registry, evolves_at=10_000)
    sound = 0
    for number, person in enumerate(everybody):
        assert (
            len(registry.texts) == 1 + (number > 10_000)
            or number == 10_000
            or everybody[10_000].document is None
        )
        value = encode(person)
        if value is None:
            assert person.document is None
            continue
        read = _read(value, registry.texts)
        if person.defect:
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
        ("mysql", "kafka", "lease[demo.]:finished"),
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
    with raises(ConfigurationError):
        DemoSettings(records=10)
    with raises(ConfigurationError):
        DemoSettings(sink="postgres", delivery="at_least_once")
    for wrong in (
        {"sink": "files"},
        {"sink": "mysql"},
        {"delivery": "at_least_once"},
        {"plain": True},
    ):
        with raises(ConfigurationError):
            DemoSettings(source="mysql", **wrong)  # type: ignore[arg-type]
    job = DemoJobSettings("a:1", "/f", window_seconds=20)
    assert DemoJobSettings.from_json(job.to_json()) == job


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


def test_the_job_tells_some_steps_by_messages_that_a_reader_gets_once(tmp_path: Path) -> None:
    writer, reader = MessageWriter(tmp_path / "messages"), MessageReader(tmp_path / "messages")
    tell_step(
        writer,
        events.Event(events.COMMIT, "finished", {"batch_id": 4, "partition": object()}, 0.5),
    )
    tell_step(writer, events.Event(events.PLAN, "finished", {"batch_id": 4}, 0.5))
    (message,) = reader.read()
    assert is_step(message, events.COMMIT, "finished")
    assert not is_step(message, events.COMMIT, "started")
    assert message["batch_id"] == 4
    with (tmp_path / "messages").open("a") as file:
        file.write('{"what": "cut')
    assert reader.read() == []


def answer(verdict: str, **more: object) -> CheckerFacts:
    facts = {"ledger": {"batches": 7}, "sources": {"people": {"group_lag": 0}}, "not_covered": []}
    return CheckerFacts({"verdict": verdict, "anomalies": [], "facts": {**facts, **more}})


def judged(output: OutputFacts, checked: CheckerFacts | None) -> DemoResult:
    return DemoResult(DemoSettings(), output, checked, [], 9, 1.0, 200_000)


def test_the_checker_and_the_model_must_both_be_content() -> None:
    kept, lost = (OutputFacts(exactly_once(["a"], seen), 3) for seen in (["a"], []))
    assert judged(kept, answer("exactly_once")).kept
    assert judged(kept, answer("exactly_once")).figures["batches"] == 7
    assert not judged(lost, answer("exactly_once")).kept
    assert not judged(kept, answer("inconclusive", not_covered=["the log directories"])).kept
    assert (
        "log directories"
        in judged(kept, answer("inconclusive", not_covered=["the log directories"])).violations[0]
    )


def test_every_invalid_record_is_a_dead_letter_and_no_other_is() -> None:
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
        assert (result.figures["poison"], result.figures["dead_letters"]) == (2, len(seen))
    (violation,) = judged(
        OutputFacts(good, 3, exactly_once([], [])), answer("exactly_once")
    ).violations
    assert "INVALID" in violation


def test_what_is_left_over_is_a_violation() -> None:
    found = OutputFacts(exactly_once(["a"], ["a"]), left_over=["staging table s"])
    result = judged(found, answer("exactly_once"))
    assert result.violations == ["left over: staging table s"]
    assert result.figures["left_over"] == 1
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


@pytest.mark.parametrize("kills", [None, 20])
def test_a_run_may_take_longer_than_its_input(kills: int | None) -> None:
    settings = DemoSettings(produce_seconds=86_400, kills=kills)
    assert settings.longest_seconds >= 86_400 + settings.limit_seconds
