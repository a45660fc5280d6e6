"""The proxy reads Kafka's frames wherever TCP cuts them, and never mistakes whose they are."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.protocol.metadata import ApiVersionsRequest, FindCoordinatorRequest, MetadataRequest
from kafka.protocol.producer import EndTxnRequest, InitProducerIdRequest

from onceward_testing.proxy.frames import (
    LARGEST_FRAME_BYTES,
    PREFIX_BYTES,
    KafkaFrame,
    NotKafka,
    RequestHead,
    api_name,
    api_names,
    correlation_id,
)

REQUESTS = {
    "ApiVersions": ApiVersionsRequest[4](client_software_name="a", client_software_version="1"),
    "Metadata": MetadataRequest[1](topics=None),
    "FindCoordinator": FindCoordinatorRequest[3](key="k", key_type=1),
    "InitProducerId": InitProducerIdRequest[0](transactional_id="t", transaction_timeout_ms=1),
    "EndTxn": EndTxnRequest[5](
        transactional_id="t", producer_id=1, producer_epoch=2, committed=True
    ),
}


def encoded(api: str, number: int, client_id: str) -> bytes:
    """A request as kafka-python writes it, size included."""
    request = REQUESTS[api]
    request.with_header(correlation_id=number, client_id=client_id)
    framed: bytes = request.encode(framed=True, header=True)
    return framed


@given(
    asked=st.lists(
        st.tuples(
            st.sampled_from(sorted(REQUESTS)), st.integers(0, 2**31 - 1), st.text(max_size=20)
        )
    ),
    cuts=st.lists(st.integers(1, 200)),
)
def test_requests_are_told_apart_wherever_the_stream_is_cut(
    asked: list[tuple[str, int, str]], cuts: list[int]
):
    stream = b"".join(encoded(*request) for request in asked)

    async def read() -> list[tuple[RequestHead, bytes]]:
        reader = fed(pieces(stream, cuts))
        found = []
        for _ in asked:
            frame = await KafkaFrame.read(reader)
            found.append((RequestHead.parse(frame.prefix), await frame.whole()))
        return found

    found = asyncio.run(read())
    assert [(head.api, head.correlation_id, head.client_id) for head, _ in found] == asked
    assert b"".join(whole for _, whole in found) == stream


@settings(max_examples=20, deadline=None)
@given(size=st.integers(PREFIX_BYTES - 3, 5 * PREFIX_BYTES), piece=st.integers(1_000, 200_000))
def test_a_frame_larger_than_what_is_looked_at_passes_unchanged(size: int, piece: int):
    body = struct.pack(">i", 7) + bytes(index % 251 for index in range(size - 4))
    stream = struct.pack(">i", size) + body + struct.pack(">ii", 4, 8)

    async def read() -> tuple[int, bytes, int]:
        reader = fed(pieces(stream, [piece] * (len(stream) // piece)))
        first = await KafkaFrame.read(reader)
        copy = b"".join([chunk async for chunk in first.chunks()])
        return (
            correlation_id(first.prefix),
            copy,
            correlation_id((await KafkaFrame.read(reader)).prefix),
        )

    number, copy, following = asyncio.run(read())
    assert (number, following) == (7, 8)
    assert copy == stream[: 4 + size]


def test_a_discarded_frame_leaves_the_next_one_whole():
    async def read() -> str:
        reader = fed([encoded("EndTxn", 1, "x"), encoded("Metadata", 2, "y")])
        await (await KafkaFrame.read(reader)).discard()
        return RequestHead.parse((await KafkaFrame.read(reader)).prefix).client_id

    assert asyncio.run(read()) == "y"


def test_a_client_without_a_name():
    assert RequestHead.parse(struct.pack(">hhih", 3, 1, 5, -1)) == RequestHead(
        "Metadata", 1, 5, ""
    )


@pytest.mark.parametrize(
    "prefix",
    [b"", b"\x00\x01", struct.pack(">hhih", 3, 1, 5, 9), struct.pack(">hhih", -1, 1, 5, 0)],
)
def test_what_is_no_request_is_refused(prefix: bytes):
    with pytest.raises(NotKafka):
        RequestHead.parse(prefix)


@pytest.mark.parametrize(
    "size", [-1, 0, 3, LARGEST_FRAME_BYTES + 1, 0x16030100]
)  # the last one: a TLS hello
def test_a_size_that_cannot_be_ends_the_connection(size: int):
    async def read() -> None:
        await KafkaFrame.read(fed([struct.pack(">i", size) + b"0123456789"]))

    with pytest.raises(NotKafka):
        asyncio.run(read())


def test_a_sender_that_closes_in_the_middle_is_noticed():
    async def read() -> None:
        await (
            await KafkaFrame.read(fed([struct.pack(">i", 100_000) + bytes(PREFIX_BYTES)]))
        ).whole()

    with pytest.raises(asyncio.IncompleteReadError):
        asyncio.run(read())


def test_names_are_kafkas():
    assert [api_name(key) for key in (0, 22, 26)] == ["Produce", "InitProducerId", "EndTxn"]
    assert api_name(30_000) == "Api30000"
    assert {"Produce", "TxnOffsetCommit", "AddPartitionsToTxn"} < api_names()


def pieces(stream: bytes, sizes: Sequence[int]) -> list[bytes]:
    found, at = [], 0
    for size in sizes:
        found.append(stream[at : at + size])
        at += size
    return [*found, stream[at:]]


def fed(parts: Sequence[bytes]) -> asyncio.StreamReader:
    """A reader to which ``parts`` come one after the other, each when the one before has been
    taken.
    """
    reader = asyncio.StreamReader()

    async def feed() -> None:
        for part in parts:
            if part:
                reader.feed_data(part)
                await asyncio.sleep(0)
        reader.feed_eof()

    reader.feeding = asyncio.ensure_future(feed())  # type: ignore[attr-defined]
    return reader
