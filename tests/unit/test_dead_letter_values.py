"""What a dead letter's headers say, what has been replayed, and how letters look on a terminal:
values only.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from onceward.engine.ledger.record import Output, decode, encode
from onceward.errors import ConfigurationError, LedgerUnreadable, RecordTooLarge
from onceward.ids import AttemptId, TopicPartition
from onceward.kafka.dead_letters import ledger, text
from onceward.kafka.dead_letters.ledger import (
    OffsetSet,
    Replayed,
    chain_name,
    next_record,
    parse_replayed,
)
from onceward.kafka.dead_letters.replay import Replay
from onceward.kafka.dead_letters.text import Counts
from onceward.kafka.dead_letters.topic import (
    Letter,
    LetterFilter,
    headers_to_feed_back,
    parse_letter,
)
from onceward.kafka.records.reader import ControlType, Record
from onceward.kafka.sink import dead_letters as written
from onceward.kafka.sink.dead_letters import ABOUT as ABOUT_NAMES
from onceward.kafka.wire.reads.committed import with_fates
from support.errors import raises

WHERE = TopicPartition("people-dead-letters", 1)
ABOUT = (
    ("onceward.error.class", b"DoesNotFit"),
    ("onceward.error.message", b"no number"),
    ("onceward.pipeline", b"people-etl"),
    ("onceward.timestamp", b"1700000000123"),
    ("onceward.topic", b"people"),
    ("onceward.partition", b"2"),
    ("onceward.offset", b"40"),
)


def letter(
    *headers: tuple[str, bytes | None], key: bytes | None = b"k", value: bytes | None = b"v"
) -> Letter:
    return parse_letter(WHERE, Record(7, 1_700_000_001_000, key, value, headers))


def changed(name: str, value: bytes | None) -> Letter:
    return letter(*((n, value if n == name else v) for n, v in ABOUT))


# --- headers -------------------------------------------------------------------------------------


def test_a_letter_says_where_it_came_from_and_why():
    found = letter(("trace", b"1"), *ABOUT)
    assert (found.error_class, found.error_message, found.pipeline) == (
        "DoesNotFit",
        "no number",
        "people-etl",
    )
    assert (found.source, found.source_offset) == (TopicPartition("people", 2), 40)
    assert found.source_timestamp_ms == 1_700_000_000_123
    assert found.headers == (("trace", b"1"),)


def test_what_the_source_record_had_of_the_same_names_stays_its_own():
    """It may be the output of a pipeline with ``lineage=True``, or of one that feeds a second
    dead-letter topic.
    """
    upstream = (
        ("onceward.topic", b"raw"),
        ("onceward.partition", b"9"),
        ("onceward.error.class", b"Old"),
    )
    found = letter(*upstream, *ABOUT)
    assert found.headers == upstream
    assert (found.source, found.error_class) == (TopicPartition("people", 2), "DoesNotFit")


def test_what_others_have_added_since_stays_too():
    assert letter(*ABOUT, ("mirror", b"x")).headers == (("mirror", b"x"),)


def test_what_a_letter_does_not_say_is_not_taken_from_the_record_it_holds():
    """What is not known is left out, and the record may have had headers of the same name."""
    found = letter(*ABOUT, ABOUT[0], ABOUT[2])
    assert found.headers == ABOUT
    assert (found.source, found.source_timestamp_ms, found.error_message) == (None, None, "")


def test_a_record_of_the_output_does_not_go_back_to_the_source():
    found = changed("onceward.error.class", b"RecordTooLarge")
    assert found.source == TopicPartition("people", 2)
    assert found.home is None
    assert letter(*ABOUT).home == found.source


def test_the_headers_are_those_that_the_sink_writes():
    assert tuple(name for name, _ in ABOUT) == ABOUT_NAMES
    assert tuple(written.LINEAGE) == ABOUT_NAMES[-3:]


def test_how_often_it_was_fed_back_is_counted_on():
    assert headers_to_feed_back(letter(*ABOUT)) == (("onceward.replayed", b"1"),)
    again = letter(("a", b""), ("onceward.replayed", b"3"), *ABOUT)
    assert again.replayed == 3
    assert headers_to_feed_back(again) == (("a", b""), ("onceward.replayed", b"4"))
    assert letter(("onceward.replayed", b"many"), *ABOUT).replayed == 0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("onceward.topic", b"no topic"),
        ("onceward.topic", b"\xff"),
        ("onceward.topic", b""),
        ("onceward.topic", None),
        ("onceward.topic", b"a\x1b[2J"),
        ("onceward.partition", b"-1"),
        ("onceward.partition", b"+1"),
        ("onceward.partition", b" 1"),
        ("onceward.partition", b"1_0"),
        ("onceward.partition", "٣".encode()),
        ("onceward.partition", b""),
        ("onceward.partition", b"9" * 5_000),
        ("onceward.partition", b"2147483648"),
        ("onceward.partition", None),
    ],
)
def test_a_source_is_named_well_or_not_at_all(name: str, value: bytes | None):
    assert changed(name, value).source is None


def test_a_record_without_the_header_of_an_error_is_no_letter():
    found = letter(*ABOUT[1:], ("onceward.replayed", b"2"))
    assert found.error_class is None
    assert found.source is None
    assert headers_to_feed_back(found) == (*ABOUT[1:], ("onceward.replayed", b"3"))


def test_filters():
    found, foreign = letter(*ABOUT), letter()
    assert found in LetterFilter()
    assert foreign in LetterFilter()
    assert found in LetterFilter(["DoesNotFit", "X"], ["people"])
    assert found not in LetterFilter(["X"])
    assert found not in LetterFilter(["DoesNotFit"], ["other"])
    assert foreign not in LetterFilter(["DoesNotFit"])
    assert foreign not in LetterFilter([], ["people"])
    _, partition, offset = found.leave_out.replace(":", " ").split()
    assert found not in LetterFilter(left_out=[(int(partition), int(offset))])
    assert found in LetterFilter(
        left_out=[(int(partition), int(offset) + 1), (int(partition) + 1, int(offset))]
    )


def test_nothing_is_fed_back_into_the_topic_itself_or_the_ledger():
    for to in ("dead", "ledger"):
        with raises(ConfigurationError, "--to"):
            Replay("dead", "ledger", to=to)


# --- offsets -------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_a_set_of_offsets_is_what_a_set_is(seed: int):
    chance = random.Random(seed)
    found, plain, lowest = OffsetSet(), set[int](), 0
    for _ in range(200):
        start = chance.randrange(300)
        end = start + chance.randrange(20)
        found.add(start, end)
        plain.update(range(start, end))
        if chance.random() < 0.05:
            lowest = chance.randrange(200)
            found.forget_below(lowest)
            plain = {offset for offset in plain if offset >= lowest}
        assert [offset for offset in range(330) if offset in found] == sorted(plain)
        for offset in range(0, 330, 7):
            after = found.next_outside(offset)
            assert after not in plain
            assert set(range(offset, after)) <= plain
    assert OffsetSet.from_text(found.to_text()) == found
    stretches = sum(offset - 1 not in plain for offset in plain)
    assert len(found) == stretches


def test_a_long_stretch_and_many_short_ones_are_short_texts():
    one = OffsetSet()
    one.add(5, 10_000_000_000)
    assert len(one.to_text()) < 50
    every_other = OffsetSet(
        [border for border in range(0, 1_000_000, 2) for border in (border, border + 1)]
    )
    assert len(every_other.to_text()) < 20_000
    chance = random.Random(1)
    by_chance = OffsetSet()
    for offset in range(200_000):
        if chance.random() < 0.5:
            by_chance.add(offset, offset + 1)
    assert len(by_chance.to_text()) * 8 / 200_000 < 3


@pytest.mark.parametrize("wrong", ["", "x", "AAAA", OffsetSet([1, 2]).to_text()[:-6],
    OffsetSet([5, 3]).to_text(),
                                   OffsetSet([5, 5]).to_text(),
                                   OffsetSet([-3, 3]).to_text()])  # fmt: skip
def test_a_text_that_is_no_set_of_offsets_is_refused(wrong: str):
    with pytest.raises(ValueError, match="no set of offsets"):
        OffsetSet.from_text(wrong)


# --- the ledger record ---------------------------------------------------------------------------

OUTPUT = Output("kafka", 1, 3, {"people": {"0": [1, 5, 5, "c"], "1": [2, 7, 8, "d"]}})


def record_of(after: Replayed, newest: Any = None, topic_id: str = "id") -> Any:
    return next_record(
        newest,
        after,
        topic=WHERE.topic,
        topic_id=topic_id,
        attempt=AttemptId(1, 2),
        run_id="r",
        output=OUTPUT,
    )


def test_what_was_replayed_comes_back_from_the_ledger():
    after = Replayed(count=10)
    after.of(WHERE).add(3, 9)
    first = decode(encode(record_of(after)), where="here")
    assert parse_replayed(first, WHERE.topic, "id") == after
    after.count += 3
    second = record_of(after, first)
    assert (first.sequence, second.sequence) == (0, 1)
    assert second.sources[0].start == first.sources[0].end  # by which the checker joins them
    assert [tuple(frame) for frame in second.frames or ()] == [("people", 3)]


def test_of_a_topic_that_had_the_name_before_nothing_counts_but_the_total():
    after = Replayed(count=10)
    after.of(WHERE).add(3, 9)
    assert parse_replayed(record_of(after), WHERE.topic, "another id") == Replayed(count=10)
    assert parse_replayed(None, WHERE.topic, "id") == Replayed()


@pytest.mark.parametrize(("before", "now"), [("", "id"), ("id", ""), ("", "")])
def test_brokers_that_tell_no_ids_have_no_letter_replayed_twice(before: str, now: str):
    """Those before 2.8, also while they are upgraded one after the other."""
    after = Replayed(count=10)
    after.of(WHERE).add(3, 9)
    first = record_of(after, topic_id=before)
    assert parse_replayed(first, WHERE.topic, now) == after
    second = record_of(after, first, topic_id=now)
    another = parse_replayed(second, WHERE.topic, "another id")
    assert another == (Replayed(count=10) if before or now else after)


def test_a_record_that_is_no_replays_is_not_believed():
    record = record_of(Replayed(count=3))
    source = record.sources[0]
    for wrong in ((), (source, source), (source._replace(identity=None),),
        (source._replace(end=None),),
                  (source._replace(identity={**source.identity, "topic": "other"}),),
                  (source._replace(identity={**source.identity, "offsets": {"0": "??"}}),
                  )):  # fmt: skip
        with pytest.raises(LedgerUnreadable, match=WHERE.topic):
            parse_replayed(replace(record, sources=wrong), WHERE.topic, "id")


def test_what_is_too_scattered_is_refused_before_it_is_written(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ledger, "MOST_BYTES", 40)
    after = Replayed(count=1)
    for offset in range(5_000):
        if offset * offset % 11 < 5:
            after.of(WHERE).add(offset, offset + 1)
    with raises(RecordTooLarge):
        record_of(after)


def test_every_topic_has_a_chain_of_its_own():
    assert chain_name("people-dead-letters") == "dead-letters.people-dead-letters"
    long = "t" * 248
    names = {
        chain_name(long + "a"),
        chain_name(long + "b"),
        chain_name("t" * 187),
        chain_name("t" * 188),
    }
    assert len(names) == 4
    assert max(map(len, names)) <= 200


# --- what a terminal is given --------------------------------------------------------------------

NASTY = "\x1b[31m \x9b2J \r\n\t\x00\x07\u202e \u2028 \\ \ud800"


def test_nothing_that_a_terminal_obeys_gets_to_it():
    escaped = text.printable(NASTY)
    assert escaped.isprintable()
    assert "\\x1b[31m" in escaped
    assert "\\\\" in escaped
    assert text.printable("Grüße, 世界 😀") == "Grüße, 世界 😀"


def test_a_whole_letter_is_printable_line_by_line():
    bad = NASTY.encode(errors="replace")
    about = tuple((name, bad) for name, _ in ABOUT)
    whole = text.block(
        letter((NASTY[:-1], bad), *about, key=bad, value=bad), replayed=True, most_bytes=100
    )
    assert all(line.isprintable() for line in whole.split("\n"))
    counts = Counts(WHERE.topic)
    counts.add(letter(*about), replayed=False)
    assert all(line.isprintable() for line in text.table(counts).split("\n"))


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (None, "null"),
        (b"", '""'),
        (b"ada", '"ada"'),
        (b"\x00\x00\x00\x00\x01ab", '"\\x00\\x00\\x00\\x00\\x01ab"'),
        (b"\xff\x00", "hex ff00"),
        ("aé".encode() * 4, '"aéaéa" … (12 bytes)'),
        (b"\xff" * 20, "hex ffffffffffffffff … (20 bytes)"),
        ("é".encode()[:1], "hex c3"),
    ],
)
def test_bytes_are_text_where_they_are_utf8(data: bytes | None, expected: str):
    assert text.shown(data, 8) == expected


def test_as_json_a_letter_has_text_or_hex():
    found = text.as_json(
        letter(*ABOUT, key=b"\xff", value=b"v" * 20), replayed=False, most_bytes=5
    )
    assert found["key"] == {"hex": "ff", "bytes": 1}
    assert found["value"] == {"text": "vvvvv", "bytes": 20}
    assert (found["source_topic"], found["source_partition"], found["source_offset"]) == (
        "people",
        2,
        40,
    )


def test_times_that_are_none_are_numbers():
    assert text.when(1_700_000_000_123) == "2023-11-14T22:13:20.123Z"
    assert text.when(10**18) == f"{10**18} ms"
    assert text.when(None) == "unknown"


# --- counting ------------------------------------------------------------------------------------


def test_others_names_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(text, "MOST_GROUPS", 10)
    counts = Counts("t")
    for number in range(100):
        counts.add(
            changed("onceward.error.class", f"C{number}".encode()), replayed=number % 2 == 0
        )
    counts.add(letter(), replayed=False)
    assert len(counts.groups) == 12
    assert (counts.letters.records, counts.letters.replayed, counts.others.records) == (100, 50, 1)


# --- what a read-committed consumer sees ---------------------------------------------------------


class Batch:
    """Of a partition: ``what`` is "plain", "data", "commit" or "abort"."""

    def __init__(self, offset: int, producer_id: int, what: str) -> None:
        self.base_offset = self.last_offset = offset
        self.producer_id = producer_id
        self.is_control = what in ("commit", "abort")
        self.is_transactional = what != "plain"
        self.control_type = {"commit": ControlType.COMMIT, "abort": ControlType.ABORT}.get(what)
        self.records = [Record(offset, 0, None, b"")]


@pytest.mark.parametrize("seed", range(50))
def test_aborted_transactions_are_passed_over_from_wherever_one_begins_to_read(seed: int):
    chance = random.Random(seed)
    batches: list[Batch] = []
    open_since: dict[int, int] = {}
    written: dict[int, list[int]] = {}
    aborted: list[tuple[int, int, int]] = []
    seen = set[int]()
    for offset in range(200):
        producer, what = (
            chance.randrange(4),
            chance.choice(["plain", "data", "data", "data", "commit", "abort"]),
        )
        if what in ("commit", "abort") and producer not in open_since:
            what = "plain"
        batches.append(Batch(offset, producer, what))
        if what == "plain":
            seen.add(offset)
        elif what == "data":
            open_since.setdefault(producer, offset)
            written.setdefault(producer, []).append(offset)
        else:
            first = open_since.pop(producer)
            offsets = written.pop(producer)
            if what == "commit":
                seen.update(offsets)
            else:
                aborted.append((first, producer, offset))
    stable = min(open_since.values(), default=200)
    for start in range(0, stable, 13):
        end = min(stable, start + chance.randrange(1, 100))
        part: Any = [batch for batch in batches if start <= batch.base_offset < end]
        told = [
            (first, producer) for first, producer, last in aborted if first < end and last >= start
        ]
        chance.shuffle(told)
        shown = [batch for batch, is_aborted in with_fates(part, told) if not is_aborted]
        assert [record.offset for batch in shown for record in batch.records] == sorted(
            o for o in seen if start <= o < end
        )
