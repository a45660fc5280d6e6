"""Ranges of a source of one's own: how they are read, read again, and what is noticed. Without
Spark.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy
import pyarrow as pa
import pytest
from pyspark.sql import types as t

import onceward as ow
from onceward.custom.resettable import ranges as module
from onceward.custom.resettable.fitting import Fitting
from onceward.custom.resettable.offsets import Offset, as_partition, logged_position
from onceward.custom.resettable.ranges import Ranges
from onceward.custom.resettable.reader import PartsReader, RowsReader
from onceward.errors import (
    Recovery,
    SourceContractViolated,
    SourceFailed,
    SourceRangeChanged,
    SourceReplaced,
    TargetUnreachable,
    UnsupportedQuery,
)
from onceward.ids import is_kafka_offset
from onceward.spark.batch.carried import Carried, Carrier, carried_in
from support.errors import raises

LONG = t.LongType()
SCHEMA = t.StructType().add("n", t.LongType(), False)


class Numbers:
    """0, 1, 2 … up to a number, as many at once as it likes, and only some of them rows."""

    def __init__(
        self, upto: int = 10, page: int = 3, only: Callable[[int], bool] = lambda number: True
    ) -> None:
        self.numbers, self.page, self.only = list(range(upto)), page, only
        self.name: str | None = None
        self.asked: list[tuple[Any, int]] = []

    def start(self) -> Any:
        return 0

    def identity(self) -> str | None:
        return self.name

    def read(self, position: Any, limit: int) -> Any:
        self.asked.append((position, limit))
        end = min(len(self.numbers), position + min(limit, self.page))
        return [(n,) for n in self.numbers[position:end] if self.only(n)], end


class Rows:
    """One row, of one map."""

    def __init__(self, value: dict[str, Any]) -> None:
        self.value = value

    def start(self) -> Any:
        return 0

    def identity(self) -> str | None:
        return None

    def read(self, position: Any, limit: int) -> Any:
        return [(self.value,)] if position == 0 else [], 1


def ranges(source: Any, limit: int = 7) -> Ranges:
    return Ranges(source, Fitting(SCHEMA), limit)


def through(source: Any, limit: int = 7) -> list[tuple[Offset, list[int]]]:
    reading = ranges(source, limit)
    at, found = reading.beginning(), []
    while (following := reading.following(at)) is not None:
        at = following[0]
        found.append((at, following[1].column("n").to_pylist()))
    return found


def test_a_range_is_filled_by_as_many_calls_as_it_takes():
    source = Numbers(10)
    found = through(source, 7)
    assert [rows for _, rows in found] == [[0, 1, 2, 3, 4, 5, 6], [7, 8, 9]]
    assert source.asked[:3] == [(0, 7), (3, 4), (6, 1)]


def test_a_range_is_read_again_as_it_was_though_there_is_more():
    source = Numbers(10)
    found = through(source, 7)
    source.numbers += range(10, 50)
    source.page = 50
    for end, rows in found:
        assert (
            ranges(source, 1_000)
            .again(Offset.from_json(json.loads(json.dumps(end.to_json()))))
            .column("n")
            .to_pylist()
            == rows
        )


def test_rows_that_are_left_out_make_no_batch_and_are_passed_over():
    source = Numbers(40, only=lambda n: n in (20, 33))
    reading = ranges(source)
    at = reading.beginning()
    following = reading.following(at)
    assert following is not None
    assert following[1].column("n").to_pylist() == [20, 33]
    at = following[0]
    assert at.position < 40  # behind it nothing has come
    assert reading.following(at) is None
    source.asked.clear()
    assert reading.following(at) is None
    assert source.asked == [(40, 7)]  # what has no rows is not read twice
    for end, _ in [following]:
        assert ranges(source).again(end).num_rows == 2


def test_a_position_that_moves_without_rows_is_logged_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(module, "_EMPTY_READS", 20)
    found = through(Numbers(90, page=1, only=lambda n: n == 70))
    assert [(end.position, rows) for end, rows in found] == [
        (20, []), (40, []), (60, []), (71, [70])
    ]  # fmt: skip
    for end, rows in found:
        source = Numbers(300, page=1, only=lambda n: n == 70 or n > 100)
        assert ranges(source).again(end).column("n").to_pylist() == rows


def test_available_now_gets_behind_any_number_of_reads_without_rows():
    """Spark takes an offset that stands still for the end, and each run is a new process."""
    source = Numbers(25_000, page=1, only=lambda n: n >= 24_998)
    at, runs, found = reader(source).initialOffset(), 0, []
    while not found:
        runs += 1
        reading = reader(source)
        if runs > 1:
            reading.partitions(at, at)
        while (end := reading.latestOffset()) != at:
            found += rows_of(reading, at, end)
            at = end
    assert runs == 3
    assert found == [24_998, 24_999]


def test_spark_gets_a_word_in_however_slow_pages_without_rows_are(
    monkeypatch: pytest.MonkeyPatch,
):
    now = [0.0]

    class Slow(Numbers):
        def read(self, position: Any, limit: int) -> Any:
            now[0] += 2.0
            return super().read(position, limit)

    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    reading = ranges(Slow(1_000, only=lambda n: n == 900))
    following = reading.following(reading.beginning())
    assert now[0] <= 12.0
    assert following is not None
    assert (following[0].position, following[1].num_rows) == (18, 0)


def test_a_range_with_any_number_of_calls_without_rows_is_read_again():
    source = Numbers(1_501, page=1, only=lambda n: n == 1_500)
    (empty, _), (end, rows) = through(source)
    assert rows == [1_500]
    assert ranges(source).again(replace(end, begins=empty.begins)).num_rows == 1


@pytest.mark.parametrize("length", [1, 2, 3, 7, 100])
def test_a_circle_on_the_way_to_a_logged_end_is_noticed(length: int):
    source = Numbers(300, page=1, only=lambda n: n == 299)
    [(end, _)] = through(source)
    round_and_round = Broken(
        lambda position, limit: ([], position + 1 if position < length else 1)
    )
    with pytest.raises((SourceContractViolated, SourceRangeChanged, SourceFailed)):
        ranges(round_and_round).again(end)


@pytest.mark.parametrize(
    ("change", "how"),
    [
        (lambda numbers: numbers.__setitem__(4, 99), "they are others"),
        (lambda numbers: numbers.__setitem__(slice(1, 3), [2, 1]), "they are others"),
        (lambda numbers: numbers.reverse(), "they are others"),
        (lambda numbers: numbers.__setitem__(6, 0), "they are others"),
    ],
)
def test_other_rows_for_a_range_are_named(change: Callable[[list[int]], None], how: str):
    source = Numbers(7)
    [(end, _)] = through(source, 7)
    change(source.numbers)
    with pytest.raises(SourceRangeChanged, match=how) as changed:
        ranges(source).again(end)
    assert changed.value.recovery is Recovery.STOP


def test_a_map_is_the_same_whatever_the_order_of_its_keys():
    schema = t.StructType().add("m", t.MapType(t.StringType(), t.MapType(t.StringType(), LONG)))

    def reads(rows: dict[str, Any]) -> Ranges:
        return Ranges(Rows(rows), Fitting(schema), 7)

    first = {"b": {"y": 2, "x": 1}, "a": {}}
    reading = reads(first)
    following = reading.following(reading.beginning())
    assert following is not None
    end, table = following
    of_a_version_before = replace(end, checksum=module.checksum(table, sort_maps=False))
    assert of_a_version_before.checksum == "f07b93b257102d0e67380b3541ff6676"
    for logged in (end, of_a_version_before):
        assert reads(first).again(logged).num_rows == 1
        for others in ({"b": {"y": 1, "x": 2}, "a": {}}, {"a": {"y": 2, "x": 1}, "b": {}}):
            with pytest.raises(SourceRangeChanged):
                reads(others).again(logged)
    assert reads({"a": {}, "b": {"x": 1, "y": 2}}).again(end).num_rows == 1


def test_a_row_that_became_visible_late_is_named():
    """Between the last row of a range and its end: as many rows, the same ones, and then one
    more.
    """
    source = Numbers(7, only=lambda n: n != 3)
    reading = ranges(source, 4)
    following = reading.following(reading.beginning())
    assert following is not None
    end = following[0]
    assert following[1].column("n").to_pylist() == [0, 1, 2, 4]
    source.only = lambda n: True
    with pytest.raises(SourceRangeChanged):
        ranges(source).again(end)
    late = Offset(7, 0, 3, following[0].checksum, first=False)  # logged up to 7 with 0, 1 and 2
    with raises(SourceRangeChanged):
        ranges(source).again(late)


class Broken(Numbers):
    def __init__(self, answer: Callable[[Any, int], Any]) -> None:
        super().__init__()
        self.answer = answer

    def read(self, position: Any, limit: int) -> Any:
        return self.answer(position, limit)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (lambda position, limit: ([(1,)], position), "the same position again"),
        (
            lambda position, limit: ([(n,) for n in range(limit + 1)], position + limit),
            "more than 7 rows",
        ),
        (lambda position, limit: [(1,)], "read\\(\\) returned list"),
        (lambda position, limit: ([(1,)], {1, 2}), "not JSON"),
        (lambda position, limit: ([(1,)], float("nan")), "not JSON"),
        (lambda position, limit: ([(1,)], "x" * 2_000_000), "position of 2000002 characters"),
        (lambda position, limit: ([(1,)], (position + 1) % 2), "had been in the same batch"),
        (
            lambda position, limit: ([(1,)], "b" if position == "a" else "a"),
            "had been in the same batch",
        ),
        (lambda position, limit: (None, position), "returned NoneType for rows"),
    ],
)
def test_a_source_that_breaks_its_contract_is_named(answer: Callable[[Any, int], Any], why: str):
    reading = ranges(Broken(answer))
    with pytest.raises(SourceContractViolated, match=why):
        reading.following(reading.beginning())


def failing(position: Any, limit: int) -> Any:
    raise LookupError("no such page")


def failing_later(position: Any, limit: int) -> Any:
    def rows() -> Any:
        yield (1,)
        failing(position, limit)

    return rows(), position + 1


@pytest.mark.parametrize("answer", [failing, failing_later])
def test_what_a_source_raises_is_shown_with_its_place(answer: Callable[[Any, int], Any]):
    reading = ranges(Broken(answer))
    with raises(SourceFailed) as failed:
        reading.following(reading.beginning())
    assert "in failing)" in str(failed.value)
    assert 'raise LookupError("no such page")' in failed.value.details["traceback"]
    assert "contextlib" not in failed.value.details["traceback"]
    assert failed.value.recovery is Recovery.RESTART
    assert isinstance(failed.value.__cause__, LookupError)


def test_an_error_of_ours_is_the_sources_own_word():
    def answer(position: Any, limit: int) -> Any:
        raise TargetUnreachable("the API sleeps")

    reading = ranges(Broken(answer))
    with pytest.raises(TargetUnreachable):
        reading.following(reading.beginning())


def test_another_source_is_named_before_and_after_it_is_read():
    source = Numbers(10)
    source.name = "one"
    [(end, _), _] = through(source, 7)
    source.name = "two"
    with raises(SourceReplaced):
        ranges(source).following(end)
    with pytest.raises(SourceReplaced):
        ranges(source).again(end)
    source.name = "one"
    reading, read = ranges(source), source.read

    def replaced_meanwhile(position: Any, limit: int) -> Any:
        source.name = "two"
        return read(position, limit)

    source.read = replaced_meanwhile  # type: ignore[method-assign]
    with pytest.raises(SourceReplaced):
        reading.following(end)


def test_an_identity_may_come_later_and_must_be_text():
    source = Numbers(10)
    [(end, _), _] = through(source, 7)
    source.name = "one"
    assert ranges(source).again(end).num_rows == 7
    source.name = 7  # type: ignore[assignment]
    with raises(SourceContractViolated):
        ranges(source).beginning()


@pytest.mark.parametrize(
    "position", [None, 0, "cursor", [1, "é"], {"0": 5, "1": {"at": 7.5}}, True]
)
def test_offsets_come_back_from_a_checkpoint_and_are_not_taken_for_kafkas(position: Any):
    for offset in (Offset(position), Offset(position, position, 3, "c0ffee", "me", first=False)):
        text = json.dumps(offset.to_json())
        assert Offset.from_json(json.loads(text)) == offset
        assert json.dumps(Offset.from_json(json.loads(text)).to_json()) == text
        assert not is_kafka_offset(json.loads(text))


@pytest.mark.parametrize(
    "value", [None, {"position": 1}, {"topic": {"0": 5}}, {"onceward": 2, "position": 1}, "text"]
)
def test_offsets_of_others_are_refused(value: Any):
    with raises(SourceContractViolated):
        Offset.from_json(value)


def test_a_position_is_what_json_gives_back():
    assert logged_position((1, {"a": (2,)}), "start()") == [1, {"a": [2]}]


def test_a_partition_is_as_long_as_it_is():
    """It goes to its task, and into no log."""
    assert as_partition(("x" * 2_000_000,), "partitions(…)") == ["x" * 2_000_000]
    with raises(SourceContractViolated):
        as_partition({1}, "partitions(…)")


# ── where its end is passed by ──


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Those between reads, which take no time here."""
    made: list[float] = []
    monkeypatch.setattr(module.time, "sleep", made.append)
    return made


class ByTime(Numbers):
    """Rows by the time at which they came. A page that is full ends at its last row, and any other
    one now; no two answers are given at one time.
    """

    def __init__(self, *times: int, stays: bool = False) -> None:
        super().__init__()
        self.numbers, self.stays, self.now = list(times), stays, 100

    def read(self, position: Any, limit: int) -> Any:
        self.asked.append((position, limit))
        assert len(self.asked) < 10_000, "there is no end to it"
        self.now += 1
        found = [n for n in self.numbers if position < n <= self.now][:limit]
        if len(found) == limit:
            return [(n,) for n in found], found[-1]
        return [(n,) for n in found], position if self.stays and not found else self.now


class Scanned(Numbers):
    """Numbers, looked through some at a time from the position on, whatever it is."""

    def read(self, position: Any, limit: int) -> Any:
        self.asked.append((position, limit))
        rows = [n for n in self.numbers[position : position + self.page] if self.only(n)][:limit]
        end = min(position + self.page, len(self.numbers))
        return [(n,) for n in rows], rows[-1] + 1 if len(rows) == limit else end


class Tickets(Numbers):
    """Cursors that say nothing, and each answer has a new one."""

    def read(self, position: Any, limit: int) -> Any:
        self.asked.append((position, limit))
        end = min(len(self.numbers), int(str(position).split("-")[0]) + limit)
        at = int(str(position).split("-")[0])
        return [(n,) for n in self.numbers[at:end]], f"{end}-{len(self.asked)}"


@pytest.mark.parametrize(
    ("source", "more"),
    [
        (ByTime(10, 20, 30), (150, 160)),
        (ByTime(10, 20, 30, stays=True), (150, 160)),
        (Scanned(50, page=20, only=lambda n: n % 16 == 3), range(50, 90)),
        (Tickets(3), (3, 4)),
    ],
)
def test_a_range_is_read_again_though_its_end_is_passed_by(source: Any, more: Any):
    """By another limit it passes other positions: the rows that it had are all there."""
    reading = ranges(source, 1_000)
    following = reading.following(reading.beginning())
    assert following is not None
    end, rows = following
    assert ranges(source).again(end).equals(rows)
    source.numbers += more
    assert ranges(source).again(end).equals(rows)


def test_rows_that_a_range_has_lost_are_named_wherever_it_is_read_to(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(module, "_MOST_EMPTY_READS", 2_000)
    for source in (ByTime(10, 20, 30), Tickets(3)):
        reading = ranges(source)
        following = reading.following(reading.beginning())
        assert following is not None
        source.asked.clear()
        source.numbers.pop()
        with raises(SourceRangeChanged, "it has 2 rows now, and goes on at", rows=3):
            ranges(source).again(following[0])


def test_what_few_calls_have_passed_by_takes_few_calls_again():
    """Of a log that is looked through `limit` entries at a time, and most of it left out: before
    the first row, between rows, and with more rows close behind the range.
    """
    source = Numbers(210_000, page=10_000, only=lambda n: n in (200_000, 205_000))
    [(end, rows)] = through(source, 10_000)
    assert rows == [200_000, 205_000]
    source.numbers += range(210_000, 300_000)
    source.only = lambda n: n in (200_000, 205_000) or n > end.position + 10
    source.asked.clear()
    assert ranges(source, 10_000).again(end).column("n").to_pylist() == rows
    assert len(source.asked) < 150


def test_rows_are_not_given_up_where_positions_tell_that_the_end_lies_ahead(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(module, "_MOST_EMPTY_READS", 50)
    source = Numbers(100, page=1, only=lambda n: n == 99)
    [(end, rows)] = through(source)
    assert ranges(source).again(end).column("n").to_pylist() == rows
    source.only = lambda n: False
    with pytest.raises(SourceRangeChanged, match="has 0 rows now"):
        ranges(source).again(end)


def test_a_source_that_moves_all_the_time_is_not_asked_without_a_pause(
    monkeypatch: pytest.MonkeyPatch, pauses: list[float]
):
    """Nor does it make batches without rows for ever: availableNow comes to an end."""
    source = ByTime()
    monkeypatch.setattr(module, "_MOST_WITHOUT_ROWS", 5_000)
    assert len(through(source)) == 5
    assert len(pauses) > 0.9 * len(source.asked)


# ── what a source changes in place ──


class InPlace(Numbers):
    """Moves the position that it was given, and gives out one row and one list again and again."""

    def __init__(self) -> None:
        super().__init__(10)
        self.at = {"n": 0}
        self.row: dict[str, Any] = {"n": -1}

    def start(self) -> Any:
        return self.at

    def read(self, position: Any, limit: int) -> Any:
        self.at["n"] = -7  # its own, which was a position once
        begin = position["n"]
        position["n"] = min(begin + min(limit, 3), 10)
        return self._rows(begin, position["n"]), position

    def _rows(self, begin: int, end: int) -> Any:
        for n in range(begin, end):
            self.row["n"] = n
            yield self.row


def test_a_source_that_changes_what_it_was_given_simply_works():
    found = through(InPlace(), 7)
    assert [rows for _, rows in found] == [[0, 1, 2, 3, 4, 5, 6], [7, 8, 9]]
    assert [ranges(InPlace()).again(end).column("n").to_pylist() for end, _ in found] == [
        rows for _, rows in found
    ]


def test_arrow_over_a_buffer_that_is_filled_again_keeps_its_rows():
    numbers = numpy.zeros(4, numpy.int64)

    class Reused(Numbers):
        def read(self, position: Any, limit: int) -> Any:
            end = min(position + 4, 8)
            numbers[: end - position] = range(position, end)
            return pa.table({"n": pa.array(numbers[: end - position])}), end

    reading = RowsReader(Reused(8), SCHEMA, None, 0, 8, Carrier())
    start, end = reading.initialOffset(), reading.latestOffset()
    numbers[:] = -1
    assert rows_of(reading, start, end) == list(range(8))


class PartsInPlace:
    """A PartitionedSource that moves what it was given, and names its parts with one object."""

    def start(self) -> Any:
        return {"n": 0}

    def identity(self) -> None:
        return None

    def advance(self, position: Any, limit: int) -> Any:
        position["n"] = min(position["n"] + limit, 10)
        return position

    def partitions(self, start: Any, end: Any) -> Any:
        part: dict[str, Any] = {}
        while start["n"] < end["n"]:
            part["n"] = start["n"]
            start["n"] += 1
            yield part

    def read_partition(self, part: Any) -> Any:
        number = part.pop("n")
        return [(number,)]


def test_parts_that_are_changed_in_place_are_all_there():
    reading = PartsReader(PartsInPlace(), SCHEMA, None, 0, 7, Carrier())
    start, end = reading.initialOffset(), reading.latestOffset()
    parts = reading.partitions(start, end)
    for _ in range(2):  # a task may run again
        assert [
            n for part in parts for batch in reading.read(part) for n in batch["n"].to_pylist()
        ] == list(range(7))
    assert json.dumps(reading.latestOffset()) != json.dumps(end)


def test_a_partition_that_ends_in_a_stop_iteration_is_not_taken_for_the_end():
    """As of ``next(cursor)`` on nothing: read() would lack its rows without a word."""

    class Slip(PartsInPlace):
        read = ow.PartitionedSource.read

        def read_partition(self, part: Any) -> Any:
            return [(1,)] if part["n"] != 1 else next(iter(()))

    with pytest.raises(StopIteration):
        Slip().read({"n": 0}, 3)


class LaggingParts(PartsInPlace):
    """It asks for the newest number somewhere, which is smaller for a moment."""

    def __init__(self, start: Any, ends: list[Any]) -> None:
        self.first, self.ends = start, iter(ends)

    def start(self) -> Any:
        return self.first

    def advance(self, position: Any, limit: int) -> Any:
        return next(self.ends)


LARGER = [(0, 1), (-0.5, 0.25), ([3, 100], [4, 0]), (["9", 5], ["10", 1]), ({"a": 3, "b": 1},
    {"a": 2, "b": 2}), ([1, 2], [1]), ("zz", "aa"), (True, False), (None, 0), (2, [1]),
    ({"a": 2}, {"b": 1})]  # fmt: skip
SMALLER = [(300, 100), (0.5, 0.25), ([3, 100], [3, 50]), (["9", 5], ["9", 1]), ({"a": 3, "b": [1,
    {"c": 9}]}, {"b": [1, {"c": 8}], "a": 3}), ([3, 4], [2, 3])]  # fmt: skip


@pytest.mark.parametrize(("one", "other"), LARGER)
def test_a_position_that_may_be_later_is_taken(one: Any, other: Any):
    reading = PartsReader(LaggingParts(one, [other]), SCHEMA, None, 0, 7, Carrier())
    assert reading.latestOffset()["position"] == other


@pytest.mark.parametrize(("one", "other"), SMALLER)
def test_a_position_that_goes_back_is_refused(one: Any, other: Any):
    """Its rows would come twice, without a word."""
    reading = PartsReader(LaggingParts(None, [one, other]), SCHEMA, None, 0, 7, Carrier())
    assert reading.latestOffset()["position"] == one
    with pytest.raises(Carried, match=r"advance\(\) went back from .* come twice"):
        reading.latestOffset()


def test_a_source_that_counts_down_is_taken():
    """It reads from the newest row on."""
    reading = PartsReader(LaggingParts(9, [6, 3, 6]), SCHEMA, None, 0, 7, Carrier())
    assert [reading.latestOffset()["position"] for _ in range(2)] == [6, 3]
    with pytest.raises(Carried, match="went back from 3 to 6"):
        reading.latestOffset()


def test_texts_go_back_to_where_the_range_before_began():
    reading = PartsReader(LaggingParts("a", ["b", "a"]), SCHEMA, None, 0, 7, Carrier())
    reading.latestOffset()
    with pytest.raises(Carried, match='went back from "b" to "a"'):
        reading.latestOffset()


def test_a_read_that_goes_back_is_refused_with_and_without_rows():
    source = Numbers(10)
    reading = ranges(source)
    following = reading.following(reading.beginning())
    assert following is not None
    del source.numbers[3:]  # a replica that lags: read() returns min(position + …, newest)
    with raises(SourceContractViolated, "read()", position=3):
        reading.following(following[0])


class PartsInPieces(PartsInPlace):
    """One of ours, whose partitions may be larger than a task's memory."""

    def __init__(self) -> None:
        self.held = 0

    def read_pieces(self, part: Any) -> Any:
        for n in range(part["n"], part["n"] + 3):
            self.held += 1
            yield [(n,)]


def test_a_partition_in_pieces_is_read_a_piece_at_a_time():
    source = PartsInPieces()
    reading = PartsReader(source, SCHEMA, None, 0, 1, Carrier())
    reading.initialOffset()
    (part,) = reading.partitions(reading.initialOffset(), reading.latestOffset())
    found = []
    for batch in reading.read(part):
        found += batch["n"].to_pylist()
        assert source.held == len(found)
    assert found == [0, 1, 2]


# ── what Spark calls ──


def reader(source: Any, starts_at: Any = None) -> RowsReader:
    return RowsReader(source, SCHEMA, starts_at, 0, 7, Carrier())


def rows_of(reading: RowsReader, start: Any, end: Any) -> list[int]:
    return [
        n
        for part in reading.partitions(start, end)
        for batch in reading.read(part)
        for n in batch["n"].to_pylist()
    ]


def test_a_first_run_and_one_that_goes_on():
    source = Numbers(10)
    first = reader(source)
    begin = first.initialOffset()
    middle = first.latestOffset()
    assert rows_of(first, begin, middle) == rows_of(first, begin, middle) == list(range(7))
    end = first.latestOffset()
    first.commit(middle)
    # Spark's process dies here: `end` is logged, and its batch is not done.
    source.numbers += range(10, 20)
    second = reader(source)
    assert second.partitions(end, end) == []
    assert rows_of(second, middle, end) == [7, 8, 9]
    last = second.latestOffset()
    assert rows_of(second, end, last) == list(range(10, 17))


def test_nothing_new_is_the_same_text():
    source = Numbers(5)
    reading = reader(source)
    end = reading.latestOffset()
    assert json.dumps(reading.latestOffset()) == json.dumps(end)
    again = reader(source)
    again.partitions(end, end)
    assert json.dumps(again.latestOffset()) == json.dumps(end)


def test_a_first_batch_begins_where_it_was_logged_to_begin():
    """Spark does not log a beginning. A source that starts at "now" has another one at the next
    start.
    """
    source = Numbers(10)
    end = reader(source).latestOffset()
    source.start = lambda: 5  # type: ignore[method-assign]
    second = reader(source)
    second.partitions(end, end)
    assert rows_of(second, second.initialOffset(), end) == list(range(7))


def test_offsets_that_do_not_join_are_refused():
    source = Numbers(30)
    first = reader(source)
    ends = [first.latestOffset() for _ in range(3)]
    second = reader(source)
    second.partitions(ends[2], ends[2])
    with raises(Carried):
        second.partitions(ends[0], ends[2])


def test_available_now_by_sparks_wrapper_is_refused():
    """It asks for the newest position before it says where the query stands, and would read the
    first range for ever.
    """
    source = Numbers(30)
    end = reader(source).latestOffset()
    second = reader(source)
    second.latestOffset()
    with pytest.raises(Carried) as refused:
        second.partitions(end, end)
    assert isinstance(
        carried_in(f"onceward.spark.batch.carried.Carried: {refused.value}"), UnsupportedQuery
    )


def test_it_begins_where_a_ledger_ends():
    end = reader(Numbers(10)).latestOffset()
    second = reader(Numbers(10), starts_at=end)
    assert second.initialOffset() == end
    assert rows_of(second, end, second.latestOffset()) == [7, 8, 9]


def test_large_ranges_travel_in_several_tasks():
    schema = t.StructType().add("text", t.StringType())

    class Texts(Numbers):
        def read(self, position: Any, limit: int) -> Any:
            end = min(40, position + limit)
            return [("x" * 100_000,) for _ in range(position, end)], end

    reading = RowsReader(Texts(), schema, None, 0, 100, Carrier())
    parts = reading.partitions(reading.initialOffset(), reading.latestOffset())
    assert 5 <= len(parts) <= 10
    assert max(len(part.value) for part in parts) < 1_000_000
    assert sum(batch.num_rows for part in parts for batch in reading.read(part)) == 40


@pytest.mark.parametrize("left", [0, 3])
def test_rows_that_are_not_there_yet_are_waited_for(left: int):
    """An address may lead to a replica that is behind, just as the query starts again."""
    source = Numbers(7)
    [(end, _)] = through(source, 7)
    ahead = source.numbers[left:]
    del source.numbers[left:]
    with pytest.raises(SourceFailed, match=f"has {left} of them now") as behind:
        ranges(source).again(end)
    assert behind.value.recovery is Recovery.RESTART
    source.numbers += ahead
    assert ranges(source).again(end).num_rows == 7


def test_a_row_that_is_gone_in_the_middle_is_not_waited_for():
    """The source is at the end of the range: nothing is behind."""
    source = Numbers(7)
    [(end, _)] = through(source, 7)
    source.only = lambda number: number != 3
    with pytest.raises(SourceRangeChanged, match="6 rows now, up to its end"):
        ranges(source).again(end)
