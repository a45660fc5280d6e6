"""The sequencer's wire format: what goes in comes out, and nothing else is accepted."""

from __future__ import annotations

import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceward.errors import Fenced, OncewardError
from onceward.ids import TaskAttempt, TopicPartition
from onceward.kafka.sink.sequencer import frames
from onceward.kafka.sink.sequencer.frames import BadFrame, FrameBuffer, Op
from support.errors import raises

INT32 = st.integers(-(2**31), 2**31 - 1)
PARTITIONS = st.builds(
    TopicPartition, st.text("abc._-", min_size=1, max_size=249), st.integers(0, 2**31 - 1)
)


@given(st.lists(st.tuples(PARTITIONS, INT32), max_size=20))
def test_partitions_survive_the_way(numbered):
    assert frames.decode_partitions(frames.encode_partitions(numbered)) == numbered


@given(st.binary(max_size=300))
def test_any_bytes_are_partitions_or_a_bad_frame(payload):
    try:
        numbered = frames.decode_partitions(payload)
    except BadFrame:
        return
    assert frames.encode_partitions(numbered) == payload


@given(st.binary(max_size=300))
def test_any_bytes_are_an_error_or_a_bad_frame(payload):
    with suppress(BadFrame):
        assert isinstance(frames.decode_error(payload), OncewardError)


@pytest.mark.parametrize(
    "payload", [b"[" * 100_000, b"{}", b"[1]", b"null", b'["Fenced","m","n",{},5]', b"\xff"]
)
def test_what_is_no_error_is_a_bad_frame(payload):
    with pytest.raises(BadFrame):
        frames.decode_error(payload)


def test_an_error_survives_the_way_and_one_too_long_is_cut():
    error = frames.decode_error(
        frames.encode_error(Fenced("gone", next_step="stop", details={"epoch": 3}))
    )
    assert type(error) is Fenced
    assert (error.message, error.next_step, error.details) == ("gone", "stop", {"epoch": 3})
    encoded = frames.encode_error(Fenced("\U0001f600" * 5_000_000))
    assert len(encoded) <= frames.MAX_PAYLOAD_BYTES
    assert type(frames.decode_error(encoded)) is Fenced


def test_the_largest_list_of_partitions_fits_a_frame():
    longest = [
        (TopicPartition("tu"[n % 2] * 249, n), 2**31 - 1) for n in range(frames.MAX_PARTITIONS)
    ]
    assert len(frames.encode_partitions(longest)) == frames.MAX_PAYLOAD_BYTES


@given(
    st.lists(st.tuples(st.sampled_from(list(Op)), st.binary(max_size=50)), max_size=10),
    st.lists(st.integers(1, 20), min_size=1),
)
def test_frames_come_out_whole_however_they_are_cut(spoken, cuts):
    stream = b"".join(frames.frame(op, payload) for op, payload in spoken)
    buffer, heard, at, turn = FrameBuffer(), [], 0, 0
    while at < len(stream):
        step = cuts[turn % len(cuts)]
        buffer.feed(stream[at : at + step])
        at, turn = at + step, turn + 1
        while (received := buffer.next_frame()) is not None:
            heard.append(received)
    assert heard == spoken


@pytest.mark.parametrize("length", [frames.MAX_PAYLOAD_BYTES + 1, 2**32 - 1])
def test_an_oversize_length_is_refused_before_its_payload_comes(length):
    buffer = FrameBuffer()
    buffer.feed(struct.pack(">BI", Op.LEASE, length))
    with raises(BadFrame):
        buffer.next_frame()


def test_an_unknown_operation_is_refused():
    buffer = FrameBuffer()
    buffer.feed(b"GET / HTTP/1.1\r\n")
    with raises(BadFrame):
        buffer.next_frame()


def test_hello_has_one_size_and_survives_the_way():
    task = TaskAttempt(3, 1, 2**40)
    hello = frames.hello_frame(b"t" * 32, task)
    assert len(hello) == frames.HELLO_FRAME_BYTES
    assert frames.parse_hello(hello) == (b"t" * 32, task)


@pytest.mark.parametrize("received", [b"", b"\x01", b"\x01\x00\x00\x00\x30"])
def test_the_beginning_of_a_hello_is_recognised(received):
    assert frames.is_hello_header(received)


@pytest.mark.parametrize(
    "received", [b"\x02", b"\x01\x00\x00\x00\x35", b"G", b"\x01\xff", b"\x16\x03\x01"]
)
def test_anything_else_is_not(received):
    assert not frames.is_hello_header(received)


def test_a_lease_request_survives_the_wire() -> None:
    wanted = [TopicPartition("a", 1), TopicPartition("b", 2)]
    assert frames.decode_lease_request(frames.encode_lease_request(wanted, 3)) == (wanted, 3)
    assert frames.decode_lease_request(frames.encode_lease_request([], 3)) == ([], 0)
    with pytest.raises(frames.BadFrame):
        frames.decode_lease_request(frames.encode_lease_request(wanted, -1))
