"""The tasks' reports against the sequencer's book: what adds up passes, and every way of not
adding up is caught.
"""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest

from onceward.errors import ReportMismatch
from onceward.ids import TaskAttempt, TopicPartition
from onceward.kafka.records.batch import next_sequence
from onceward.kafka.records.checksum import ContentChecksum
from onceward.kafka.sink.sequencer.leases import ReturnedLease
from onceward.kafka.sink.task_reports import Segment, TaskReport, check, joined, kafka_output
from support.plain_checksum import checksum_of

P0, P1 = TopicPartition("out", 0), TopicPartition("out", 1)


def attempt(task: int) -> TaskAttempt:
    return TaskAttempt(task, 0, 100 + task)


def records(values: list[bytes]) -> ContentChecksum:
    return checksum_of((None, value, None) for value in values)


def segment(sequence: int, offset: int, values: list[bytes]) -> Segment:
    return Segment(sequence, len(values), offset, offset + len(values) - 1, records(values))


FIRST = segment(0, 10, [b"a", b"b"])
SECOND = segment(2, 13, [b"c"])  # offset 12 belongs to another producer
THIRD = segment(3, 14, [b"d", b"e"])
ELSEWHERE = segment(0, 7, [b"x"])

TURNS = [
    ReturnedLease(P0, attempt(0), 0, 3),
    ReturnedLease(P1, attempt(1), 0, 1),
    ReturnedLease(P0, attempt(1), 3, 5),
]
REPORTS = [
    TaskReport.of(0, 100, {P0: [FIRST, SECOND]}),
    TaskReport.of(1, 101, {P0: [THIRD], P1: [ELSEWHERE]}),
]


def test_what_adds_up_becomes_the_manifest() -> None:
    manifest = check(REPORTS, TURNS, task_count=2)
    assert manifest[P0].count == 5
    assert (manifest[P0].first_offset, manifest[P0].last_offset) == (10, 15)
    assert manifest[P0].checksum == records([b"a", b"b", b"c", b"d", b"e"])
    assert manifest[P1].count == 1


def test_a_report_survives_the_way_to_the_driver() -> None:
    for report in (*REPORTS, TaskReport.of(2, 102, {P1: [ELSEWHERE]}, {"out": 1_700_000_000_000})):
        text = json.dumps(report.to_json())
        assert json.dumps(TaskReport.from_json(json.loads(text)).to_json()) == text
    there = [TaskReport.from_json(json.loads(json.dumps(report.to_json()))) for report in REPORTS]
    assert check(there, TURNS, 2) == check(REPORTS, TURNS, 2)


@pytest.mark.parametrize("seed", range(40))
def test_any_batch_adds_up_and_one_wrong_number_is_noticed(seed: int) -> None:
    """Tasks that take turns on partitions of two topics, over the end of the sequences."""
    lot = random.Random(seed)
    places = [TopicPartition(topic, n) for topic in ("b", "a.longer-name") for n in (0, 3, 70_000)]
    at = {place: lot.choice([0, 7, 2**31 - 3]) for place in places}
    first, offset = dict(at), dict.fromkeys(places, 0)
    turns, wrote, content = [], {}, {place: [] for place in places}
    for task in (lot.randrange(5) for _ in range(30)):
        place = lot.choice(places)
        base, parts = at[place], wrote.setdefault(task, {}).setdefault(place, [])
        for _ in range(lot.choice([0, 1, 1, 2])):
            values = [lot.randbytes(lot.randrange(9)) for _ in range(lot.randint(1, 3))]
            offset[place] += lot.choice([0, 0, 4])  # somebody else's, or a marker
            parts.append(segment(at[place], offset[place], values))
            content[place] += values
            offset[place] += len(values)
            at[place] = next_sequence(at[place], len(values))
        turns.append(ReturnedLease(place, attempt(task), base, at[place]))
    reports = [TaskReport.of(task, 100 + task, wrote.get(task, {})) for task in range(5)]
    written = check(reports, turns, 5, first)
    assert {place: part.checksum for place, part in written.items()} == {
        place: records(values) for place, values in content.items() if values
    }
    assert sum(part.count for part in written.values()) == sum(map(len, content.values()))
    assert all(part.last_offset == offset[place] - 1 for place, part in written.items())
    task = lot.choice([task for task, parts in wrote.items() if any(parts.values())])
    place = lot.choice([place for place, parts in wrote[task].items() if parts])
    number = lot.randrange(len(wrote[task][place]))
    for wrong in (
        replace(
            wrote[task][place][number], base_sequence=wrote[task][place][number].base_sequence ^ 1
        ),
        replace(wrote[task][place][number], count=wrote[task][place][number].count + 1),
        replace(
            wrote[task][place][number], last_offset=wrote[task][place][number].last_offset + 1
        ),
        None,
    ):
        parts = [*wrote[task][place]]
        parts[number : number + 1] = [] if wrong is None else [wrong]
        bad = TaskReport.of(task, 100 + task, wrote[task] | {place: parts})
        with pytest.raises(ReportMismatch):
            check(
                [bad if report.partition_id == task else report for report in reports],
                turns,
                5,
                first,
            )


def test_an_empty_batch_has_an_empty_manifest() -> None:
    assert check([TaskReport.of(0, 100, {})], [], task_count=1) == {}
    assert check([], [], task_count=0) == {}


def test_a_lease_that_sent_nothing_leaves_no_trace() -> None:
    assert (
        check([TaskReport.of(0, 100, {})], [ReturnedLease(P0, attempt(0), 0, 0)], task_count=1)
        == {}
    )


def test_a_second_job_goes_on_where_the_first_ended() -> None:
    first = check(REPORTS, TURNS, task_count=2)
    more = TaskReport.of(0, 200, {P0: [segment(5, 20, [b"f"])]})
    turn = ReturnedLease(P0, TaskAttempt(0, 0, 200), 5, 6)
    second = check([more], [turn], 1, {P0: 5, P1: 1})
    whole = kafka_output(joined(first, second)).data
    zero, one = (whole[P0.topic][str(place.partition)] for place in (P0, P1))
    assert zero == [6, 10, 20, records([b"a", b"b", b"c", b"d", b"e", b"f"]).hexdigest()]
    assert one == kafka_output(first).data[P1.topic][str(P1.partition)]
    with pytest.raises(ReportMismatch):
        check([more], [turn], 1)  # the second job may not begin at 0
    with pytest.raises(ReportMismatch):
        joined(second, first)


def with_segments(task: int, segments: dict[TopicPartition, list[Segment]]) -> list[TaskReport]:
    return [
        TaskReport.of(task, r.task_attempt_id, segments) if r.partition_id == task else r
        for r in REPORTS
    ]


WRONG = {
    "a task did not report": (REPORTS[:1], TURNS, 2),
    "a task reported twice": ([*REPORTS, REPORTS[0]], TURNS, 2),
    "a report of a task that was not run": (REPORTS, TURNS, 1),
    "a gap in a turn": (with_segments(0, {P0: [FIRST]}), TURNS, 2),
    "a gap at a turn's start": (with_segments(0, {P0: [SECOND]}), TURNS, 2),
    "an overlap of sequences": (
        with_segments(0, {P0: [FIRST, replace(SECOND, base_sequence=1)]}),
        TURNS,
        2,
    ),
    "an overlap of offsets": (
        with_segments(0, {P0: [FIRST, replace(SECOND, base_offset=11, last_offset=11)]}),
        TURNS,
        2,
    ),
    "offsets that go back between tasks": (
        with_segments(1, {P0: [replace(THIRD, base_offset=1, last_offset=2)], P1: [ELSEWHERE]}),
        TURNS,
        2,
    ),
    "offsets that cannot hold the records": (
        with_segments(0, {P0: [FIRST, replace(SECOND, last_offset=15)]}),
        TURNS,
        2,
    ),
    "records outside any lease": (
        with_segments(0, {P0: [FIRST, SECOND], P1: [segment(1, 9, [b"z"])]}),
        TURNS,
        2,
    ),
    "more records than the lease": (
        with_segments(1, {P0: [THIRD, segment(5, 20, [b"z"])], P1: [ELSEWHERE]}),
        TURNS,
        2,
    ),
    "a lease of another task": (REPORTS, [TURNS[0]._replace(task=attempt(1)), *TURNS[1:]], 2),
    "a chain that does not begin at 0": (REPORTS, [TURNS[2], TURNS[1]], 2),
    "a missing turn": (REPORTS, TURNS[:2], 2),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_does_not_add_up_is_caught(case: str) -> None:
    reports, turns, tasks = WRONG[case]
    with pytest.raises(ReportMismatch):
        check(reports, turns, task_count=tasks)
