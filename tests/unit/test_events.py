"""Who listens: a probe is part of the step, a watcher can never hurt one."""

from __future__ import annotations

import logging
import threading

import pytest

from onceward import events
from onceward.events import Event


def test_a_probe_runs_inside_the_step_and_its_error_is_the_steps():
    def fail(event: Event) -> None:
        assert threading.current_thread() is here
        if event.phase == "finished":
            raise ZeroDivisionError

    here = threading.current_thread()
    stop = events.probe(fail)
    try:
        with pytest.raises(ZeroDivisionError), events.step(events.COMMIT):
            pass
    finally:
        stop()
    with events.step(events.COMMIT):
        pass


def test_a_watcher_hears_everything_in_order_before_it_is_stopped():
    heard: list[str] = []
    stop = events.watch(lambda event: heard.append(f"{event.step} {event.phase}"))
    for name in (events.PLAN, events.SEND):
        with events.step(name):
            pass
    stop()
    assert heard == ["plan started", "plan finished", "send started", "send finished"]
    with events.step(events.COMMIT):
        pass
    assert len(heard) == 4


def test_a_watcher_that_fails_hurts_no_step_and_hears_on(caplog: pytest.LogCaptureFixture):
    heard = []

    def fail(event: Event) -> None:
        heard.append(event)
        raise ZeroDivisionError("an exporter is away")

    stop = events.watch(fail)
    with caplog.at_level(logging.WARNING), events.step(events.COMMIT):
        pass
    stop()
    assert len(heard) == 2
    assert "an exporter is away" in caplog.text


def test_a_watcher_may_stop_itself(caplog: pytest.LogCaptureFixture):
    heard = []
    done = threading.Event()

    def once(event: Event) -> None:
        heard.append(event)
        stop()
        done.set()

    stop = events.watch(once)
    with caplog.at_level(logging.WARNING), events.step(events.COMMIT):
        pass
    assert done.wait(60)
    assert len(heard) == 1
    assert "failed" not in caplog.text


def test_a_watcher_that_is_stopped_hears_no_more(monkeypatch: pytest.MonkeyPatch):
    """Its file, or its connection, may be closed by then."""
    monkeypatch.setattr(events, "_LAST_SECONDS", 0.01)
    hang, heard = threading.Event(), []

    def slow(event: Event) -> None:
        heard.append(event)
        hang.wait()

    stop = events.watch(slow)
    with events.step(events.SEND):
        pass
    while not heard:
        pass
    stop()
    (thread,) = (one for one in threading.enumerate() if one.name == "onceward-watcher")
    hang.set()
    thread.join(60)
    assert len(heard) == 1


def test_a_watcher_that_hangs_holds_nobody_up(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    """Nor does it fill the memory: what is too much is lost to it, and said."""
    monkeypatch.setattr(events, "_QUEUED", 4)
    hang, done, heard = threading.Event(), threading.Event(), []

    def slow(event: Event) -> None:
        hang.wait()
        heard.append(event)
        done.set()

    stop = events.watch(slow)
    for _ in range(20):
        with events.step(events.SEND):
            pass
    assert not done.is_set()
    hang.set()
    with caplog.at_level(logging.WARNING):
        stop()
    assert 4 <= len(heard) <= 5
    assert f"too slow for {40 - len(heard)} events" in caplog.text


def test_a_step_carries_what_its_block_adds():
    heard: list[Event] = []
    stop = events.probe(heard.append)
    try:
        with events.step(events.SEND, batch_id=1) as values:
            values["records"] = 5
    finally:
        stop()
    started, finished = heard
    assert started.values == {}
    assert finished.values == {"records": 5}
    values["records"] = 6
    assert finished.values == {"records": 5}, "it is a copy"


def test_a_watcher_of_some_steps_is_not_told_of_others():
    heard: list[str] = []
    stop = events.watch(lambda event: heard.append(event.step), [events.COMMIT])
    for name in (events.LEASE, events.COMMIT):
        with events.step(name):
            pass
    stop()
    assert heard == ["commit", "commit"]


def test_seconds_of_steps_are_added_up_for_the_batch_that_is_under_way():
    with events.batch(pipeline="p") as under_way:
        for _ in range(2):
            with events.step(events.SEND):
                pass
    assert list(under_way.seconds) == ["send"]
    assert events.batch_ids() == {}


def test_what_is_no_step_is_told_to_watchers_alone():
    probed: list[Event] = []
    heard: list[Event] = []
    stops = [events.probe(probed.append), events.watch(heard.append)]
    error = ZeroDivisionError()
    events.announce(events.FAIL, {"pipeline": "p"}, error)
    for stop in stops:
        stop()
    assert probed == []
    assert [(event.step, event.phase, event.error) for event in heard] == [
        ("fail", "failed", error)
    ]
