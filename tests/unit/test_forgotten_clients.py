"""What nobody closed gives its thread and its file descriptors back when nobody has it any
more.
"""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from onceward.kafka.sink.sequencer.listener import Sequencer
from onceward.kafka.wire.client import KafkaClient
from support.wire_fixtures import settings

PATIENCE_SECONDS = 60


def held() -> tuple[set[threading.Thread], set[tuple[str, str]]]:
    """Threads, and each file descriptor with what it is; what another test has left may go
    meanwhile.
    """
    files = set()
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # what the listing itself was read from
            files.add((number, os.readlink(f"/proc/self/fd/{number}")))
    return set(threading.enumerate()), files


def new_since(before: tuple[set[threading.Thread], set[tuple[str, str]]]) -> set[Any]:
    return set().union(*(now - then for now, then in zip(held(), before, strict=True)))


@pytest.mark.skipif(
    not os.path.isdir("/proc/self/fd"), reason="file descriptors are counted in /proc"
)
@pytest.mark.parametrize(
    "make",
    [lambda: KafkaClient(settings("127.0.0.1:1")[0]), lambda: Sequencer("127.0.0.1", "127.0.0.1")],
)
@pytest.mark.parametrize("closed", [True, False])
def test_nothing_is_left_of_it(make: Callable[[], KafkaClient | Sequencer], closed: bool) -> None:
    gc.collect()
    before = held()
    forgotten = [make() for _ in range(5)]
    assert len(held()[0] - before[0]) >= len(forgotten)
    if closed:
        for one in forgotten:
            one.close()
        assert new_since(before) == set()
    del forgotten
    if closed:
        one = None
    gc.collect()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while left := new_since(before):
        assert time.monotonic() < deadline, left
        time.sleep(0.02)
