"""Table maps and rows with bytes changed at random: a named error or other values, and nothing
else. Seeds replay.
"""

from __future__ import annotations

import functools
import random
import time
import tracemalloc

import pytest
from made_events import GOLDEN_FILES, dialect_of
from made_tables import INT, Made, event, number, row, rows, table_map

from onceward.errors import BinlogCorrupted, ChangeUnreadable
from onceward.mysql.binlog import decoder as decoder_module
from onceward.mysql.binlog.compression import decompress
from onceward.mysql.binlog.decoder import Decoder
from onceward.mysql.binlog.event import ROWS_EVENTS, TABLE_MAP, BinlogEvent, Dialect
from support.binlog_files import events_of_file

_COMPRESSED = {140, 141}
_BYTES_EACH = 400
"""What a byte may become: a value's name, ``null`` and what Arrow keeps of it; more than a real
one ever does.
"""


@functools.cache
def pairs() -> list[tuple[Dialect, BinlogEvent, BinlogEvent]]:
    """Each rows event of the golden binlogs with its table map."""
    found = []
    for file in GOLDEN_FILES:
        maps: dict[bytes, BinlogEvent] = {}
        for outer in events_of_file(file.read_bytes(), dialect_of(file)):
            for each in decompress(outer):
                if each.kind == TABLE_MAP:
                    maps[bytes(each.body[:6])] = each
                elif each.kind in ROWS_EVENTS:
                    found.append((dialect_of(file), maps[bytes(each.body[:6])], each))
    return found


def changed(event: BinlogEvent, chance: random.Random) -> BinlogEvent:
    body = bytearray(event.body[6:])  # the table's number stays, so that the two belong together
    for _ in range(chance.choice((1, 1, 1, 2, 6))):
        at = chance.randrange(len(body))
        how = chance.randrange(10)
        if how < 4:
            body[at] ^= 1 << chance.randrange(8)
        elif how < 7:
            body[at] = chance.choice((0, 127, 128, 251, 252, 253, 254, 255, chance.randrange(256)))
        elif how == 7:
            del body[at : at + chance.randrange(1, 9)]
        elif how == 8:
            body[at:at] = chance.randbytes(chance.randrange(1, 9))
        else:
            del body[at:]
        if not body:
            break
    data = bytes(19) + bytes(event.body[:6]) + bytes(body)
    return event._replace(buffer=data, start=0, stop=len(data))


def attacked(seed: int) -> str:
    """What came of it."""
    chance = random.Random(seed)
    dialect, table, rows = chance.choice(pairs())
    if chance.random() < 0.4:
        table = changed(table, chance)
    if chance.random() < 0.7:
        rows = changed(rows, chance)
    decoder = Decoder(dialect, lambda *_: True, values=chance.choice(("text", "debezium")))
    many = chance.choice((1, 1, 15))
    try:
        decoder.feed(table)
        for _ in range(many):
            decoder.feed(rows)
        found = decoder.flush()
    except (BinlogCorrupted, ChangeUnreadable) as error:
        refused = error
    else:
        refused = None
    if refused:
        place = refused.details["at"].partition("/")[0].partition("#")[0]
        assert place in (f"{rows.file}:{rows.position}", f"{table.file}:{table.position}"), seed
        assert refused.next_step, seed
        return type(refused).__name__
    found.validate(full=True)
    if not _COMPRESSED & set(bytes(table.body)):
        assert found.nbytes < _BYTES_EACH * (many * len(rows.body) + len(table.body)) + 50_000, (
            seed
        )
    return "changes"


def attack(seeds: range, seconds: float) -> set[str]:
    end, outcomes = time.process_time() + seconds, set()
    for seed in seeds:
        if time.process_time() > end:
            break
        outcomes.add(attacked(seed))
    return outcomes


def test_damage_in_rows_is_named():
    assert attack(range(800), 3) == {"changes", "BinlogCorrupted", "ChangeUnreadable"}


@pytest.mark.parametrize("kind", [30, 31])
def test_one_event_with_more_rows_than_are_held_is_decoded_in_pieces(
    monkeypatch: pytest.MonkeyPatch, kind: int
):
    """As large as ``binlog_row_event_max_size`` says: 8 KiB, or much more."""
    monkeypatch.setattr(decoder_module, "PIECE_BYTES", 1 << 20)
    body = table_map([INT, *(Made(f"c{place}", 3, nullable=True) for place in range(300))])
    data = [row(number(each), *[None] * 300) for each in range(1200)]
    decoder = Decoder("mysql", lambda *_: True)
    decoder.feed(event(19, body))
    decoder.feed(event(kind, rows(301, *data, kind=kind)))
    pieces = []
    while decoder.has_changes:
        pieces.append(decoder.flush())
    assert len(pieces) > 3
    assert max(each.nbytes for each in pieces) < 4 << 20
    step = 1 if kind == 30 else 2
    assert [each for piece in pieces for each in piece["row"].to_pylist()] == list(
        range(step - 1, 1200, step)
    )


@pytest.mark.slow
def test_damage_in_rows_is_named_for_minutes():
    assert attack(range(10_000, 10_000_000), 100) == {
        "changes",
        "BinlogCorrupted",
        "ChangeUnreadable",
    }


def flushed(decoder: Decoder, events: list[BinlogEvent]) -> None:
    for each in events:
        decoder.feed(each)
    decoder.flush()


def test_a_length_that_is_not_there_allocates_nothing():
    """Of a LONGTEXT of 4 GiB, of a compressed column of 4 GiB, of 16 million columns."""
    texts = table_map([INT, Made("v", 252, b"\4", nullable=True)])
    shrunk = table_map([INT, Made("v", 140, b"\4", nullable=True)])
    attempts = [
        (texts, rows(2, row(number(1), b"\xff\xff\xff\xff"))),
        (texts, rows(2, *[row(number(1), b"\0\0\0\0")] * 20, row(number(1), b"\xff\xff\xff\x7f"))),
        (shrunk, rows(2, row(number(1), b"\x06\0\0\0\x84\xff\xff\xff\xfe\1"))),
        (texts[:13] + b"\xfd\xff\xff\xff" + texts[14:], b""),
    ]
    for body, data in attempts:
        tracemalloc.start()
        decoder = Decoder("mariadb", lambda *_: True)
        with pytest.raises(BinlogCorrupted):
            flushed(decoder, [event(19, body)] + [event(30, data)] * 20)
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
        tracemalloc.stop()


def test_rows_of_nulls_are_decoded_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch):
    """A row of 38 bytes has 300 cells: of a MiB of them 8 million, which are not all held at
    once.
    """
    monkeypatch.setattr(decoder_module, "PIECE_BYTES", 1 << 20)
    body = table_map([Made(f"c{place}", 3, nullable=True) for place in range(300)])
    nulls = event(30, rows(300, *[row(*[None] * 300)] * 20))
    decoder = Decoder("mysql", lambda *_: True)
    for each in [event(19, body)] + [nulls] * 60:
        decoder.feed(each)
    built = []
    while decoder.has_changes:
        built.append(decoder.flush())
    assert sum(each.num_rows for each in built) == 60 * 20
    assert (
        max(each.nbytes for each in built) <= (1 << 20) + 300 * 20 * 80
    )  # and the event that was one too many
