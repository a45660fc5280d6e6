"""Binlogs with a few bytes changed, their checksums made to fit again: right answers or errors of
ours, at once, and in the memory that the input justifies.
"""

from __future__ import annotations

import random
import struct
import time
import tracemalloc
import zlib
from contextlib import contextmanager

import pytest
from made_events import FILE, GOLDEN_FILES, dialect_of, packets, read, rotation

from onceward.errors import OncewardError
from onceward.mysql.binlog.compression import decompress
from onceward.mysql.binlog.event import QUERY, unsupported_reason
from onceward.mysql.binlog.framing import EventReader
from onceward.mysql.binlog.gtids import parse_gtid, parse_previous_gtids
from onceward.mysql.binlog.statements import classify
from support.binlog_files import events_of_file

MOST_BYTES = 24_000_000
"""A packet's header may announce 16 MiB, and its event agree with it."""

INTERESTING = (0, 1, 2, 0x7F, 0x80, 0xFA, 0xFB, 0xFC, 0xFD, 0xFE, 0xFF)


def pieces_of(data):
    """The events of a file, each as its bytes."""
    at = 4
    while at < len(data):
        size = struct.unpack_from("<I", data, at + 9)[0]
        yield bytearray(data[at : at + size])
        at += size


def damaged(events, chosen):
    """A few bytes of one event changed, and often its kind; often with the right checksum, and the
    right position.
    """
    events = [bytearray(event) for event in events]
    event = chosen.choice(events)
    for _ in range(chosen.choice((1, 1, 2, 5, 30))):
        at = (
            chosen.randrange(19, len(event))
            if chosen.random() < 0.8
            else chosen.randrange(len(event))
        )
        event[at] = chosen.choice(INTERESTING) if chosen.random() < 0.7 else chosen.randrange(256)
    what = chosen.random()
    if what < 0.2:
        event[4] = chosen.choice((2, 16, 33, 34, 35, 38, 40, 42, *range(160, 173)))
    elif what < 0.3:
        del event[chosen.randrange(19, len(event)) :]
        event += bytes(4)
    if chosen.random() < 0.9:
        mended(events)
    return events


def mended(events):
    position = 4
    for event in events:
        if len(event) < 23:
            continue
        position += len(event)
        event[9:17] = struct.pack("<II", len(event), position)
        event[-4:] = zlib.crc32(event[:-4]).to_bytes(4, "little")


def looked_at(events, dialect):
    """Everything here that reads an event's body."""
    for event in events:
        unsupported_reason(event.kind, event.flags, dialect, event.body)
        for one in decompress(event):
            parse_gtid(one)
            parse_previous_gtids(one)
            if one.kind == QUERY:
                classify(one, lambda *_: True)


@contextmanager
def named():
    """Nothing leaves it but errors of ours, and these say where."""
    found: OncewardError | None = None
    try:
        yield
    except OncewardError as error:
        found = error
    assert found is None or found.details["at"]


def survives(data, dialect, sent):
    """:param sent: what a server sends. :returns: how many bytes it took."""
    tracemalloc.start()
    try:
        with named():
            looked_at(events_of_file(data, dialect), dialect)
        with named():
            looked_at(read(sent, EventReader(dialect, FILE, 4, block_bytes=65536)), dialect)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def trial(path, seed):
    chosen = random.Random(f"{path.name} {seed}")
    events = damaged(list(pieces_of(path.read_bytes())), chosen)
    sent = bytearray(packets([rotation(), *map(bytes, events)]))
    if chosen.random() < 0.3:
        sent[chosen.randrange(len(sent))] ^= 1 << chosen.randrange(8)
    return b"\xfebin" + b"".join(events), bytes(sent)


@pytest.mark.parametrize("path", GOLDEN_FILES, ids=lambda path: path.stem)
def test_damage_is_named_or_does_no_harm(path):
    tried(path, range(25))


@pytest.mark.slow
@pytest.mark.parametrize("path", GOLDEN_FILES, ids=lambda path: path.stem)
def test_much_damage_is_named_or_does_no_harm(path):
    tried(path, range(1000, 2500))


def tried(path, seeds):
    for seed in seeds:
        data, sent = trial(path, seed)
        began = time.process_time()
        took = survives(data, dialect_of(path), sent)
        assert took < MOST_BYTES, seed
        assert time.process_time() - began < 5, seed
