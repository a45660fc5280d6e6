"""Servers, or proxies before them, whose answers come a byte now and then and never end: no pause is
as long as the limit of a client's socket.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from onceward import patience
from onceward.delivery.opensearch_answers import TooSlow
from onceward.delivery.opensearch_writer import OpenSearchWriter
from onceward.delivery.redis_writer import RedisWriter
from onceward.delivery.upserts import Upsert
from support.hostile_http import HostileServer, answer, drip

UPSERT = Upsert("a", "0.0.0", "attempt", "people", {"v": 1})
HEAD = b"HTTP/1.1 200 OK\r\n"


class Stopped(Exception):
    """The query is to end."""


@pytest.fixture
def dripping() -> Iterator[int]:
    """The port of a server that begins an answer of Redis to whatever it is asked."""
    ended = threading.Event()
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = listening.accept()
        with connection:
            connection.sendall(b"$100000\r\n")
            while not ended.wait(0.05):
                connection.sendall(b"x")

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield listening.getsockname()[1]
    ended.set()
    thread.join(60)
    listening.close()
    assert not thread.is_alive()


@pytest.mark.parametrize(
    "dripped",
    [drip(b"", b"H"), drip(HEAD, b"X-A: b\r\n"), drip(HEAD + b"Content-Length: 100000\r\n\r\n")],
    ids=["first line", "headers", "body"],
)
def test_an_answer_of_opensearch_ends_in_time_and_the_next_call_connects_anew(
    monkeypatch: pytest.MonkeyPatch, dripped: Any
):
    monkeypatch.setattr(OpenSearchWriter, "answer_s", 0.5)
    index = {"people": {"settings": {"index.uuid": "u"}}}
    with HostileServer([dripped, answer(200, json.dumps(index).encode())]) as server:
        writer = OpenSearchWriter(server.url, "people", False, None)
        with pytest.raises(TooSlow, match=r"no whole answer within 0\.5 s"):
            writer._settings()
        monkeypatch.setattr(OpenSearchWriter, "answer_s", 60)
        assert writer._settings() == index
        assert server.connections == 2
        writer.close()


def test_an_answer_of_redis_ends_in_time(monkeypatch: pytest.MonkeyPatch, dripping: int):
    monkeypatch.setattr(RedisWriter, "answer_s", 0.5)
    writer = RedisWriter(f"redis://127.0.0.1:{dripping}/0", "people:", 60)
    with pytest.raises(TimeoutError, match=r"no whole answer within 0\.5 s"):
        writer([UPSERT])
    assert writer._client is None


def test_a_line_that_is_slow_has_as_much_longer_as_there_is_to_send(
    monkeypatch: pytest.MonkeyPatch,
):
    """A chunk is as large as the user wants; one that is late each time would never be through."""
    waited: list[float] = []

    def in_time(call: Any, timeout_s: float, *_: object, **__: object) -> Any:
        waited.append(timeout_s)
        raise Stopped

    monkeypatch.setattr(patience, "in_time", in_time)
    writer = OpenSearchWriter("http://127.0.0.1:1", "people", False, None)
    for method, path, body in (
        ("GET", "/people/_settings", None),
        ("POST", "/people/_bulk", b"x" * 5_000_000),
    ):
        with pytest.raises(Stopped):
            writer._asked(method, path, body)
    writer.close()
    assert waited == [120, 220]


def test_a_query_that_is_to_end_does_not_wait_for_it(dripping: int):
    writer = RedisWriter(f"redis://127.0.0.1:{dripping}/0", "people:", 60)
    asked: list[int] = []

    def stop() -> None:
        asked.append(1)
        if len(asked) > 1:
            raise Stopped

    with patience.asking(stop), pytest.raises(Stopped):
        writer([UPSERT])
    assert writer._client is None
