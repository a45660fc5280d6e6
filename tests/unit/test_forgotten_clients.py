"""What nobody closed gives its thread and its file descriptors back when nobody has it any more."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable

import pytest

from onceward.sinks.kafka.sequencer.server import Sequencer
from onceward.wire.client import KafkaClient
from wire_fixtures import settings

PATIENCE_SECONDS = 60


def held() -> tuple[set[threading.Thread], int]:
    return set(threading.enumerate()), len(os.listdir("/proc/self/fd"))


def more_than(before: tuple[set[threading.Thread], int]) -> bool:
    """Less is no matter: what another test has left may be collected here."""
    threads, files = held()
    return bool(threads - before[0]) or files > before[1]


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="file descriptors are counted in /proc")
@pytest.mark.parametrize(
    "make", [lambda: KafkaClient(settings("127.0.0.1:1")[0]), lambda: Sequencer("127.0.0.1", "127.0.0.1")]
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
        assert not more_than(before), held()
    del forgotten
    if closed:
        one = None
    gc.collect()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while more_than(before):
        assert time.monotonic() < deadline, held()
        time.sleep(0.02)
