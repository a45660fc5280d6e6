"""Metrics: what each event does to the numbers, and that whoever looks at them holds up nobody."""

from __future__ import annotations

import base64
import logging
import runpy
import socket
import sys
import threading
import time
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from onceward import events
from onceward.engine import batch_log
from onceward.errors import (
    AccessDenied,
    BrokerUnreachable,
    ConfigurationError,
    Fenced,
    SendFailed,
)
from onceward.events import Event
from onceward.ids import TopicPartition, partition_offsets
from onceward.kafka.source import identity
from onceward.kafka.wire.client import KafkaClient
from onceward.kafka.wire.options.settings import ClientSettings
from onceward.operate import metrics
from onceward.operate.metric_state import FAMILIES, MetricState
from support.hostile_http import HostileServer, answer, drip

ROOT = Path(__file__).resolve().parents[2]
IDS = {"pipeline": "orders", "query_id": "q", "batch_id": 7}
KAFKA = {**IDS, "epoch": 3}
WRITTEN = {"records": 5, "bytes": 80, "sequence": 41, "epoch": 3, "set_aside": 2, "too_large": 1}


def end(step: str, ids: dict[str, Any] = IDS, seconds: float = 1.0, **values: Any) -> Event:
    return Event(step, "finished", ids, seconds, None, values)


def failed(step: str, error: Exception, **values: Any) -> Event:
    return Event(step, "failed", IDS, 1.0, error, values)


def numbers(state: MetricState, now: float = 0.0) -> dict[Any, float]:
    """Samples by name, or by name and labels behind the pipeline."""
    return {
        (name, *labels[1:]) if len(labels) > 1 else name: value
        for name, labels, value in state.samples(now)
    }


def after(*heard: Event, now: float = 0.0, at: float = 0.0) -> dict[Any, float]:
    state = MetricState()
    for event in heard:
        state.hear(event, at, 1_000.0)
    return numbers(state, now)


def test_there_are_at_most_25_families_with_one_prefix_and_label():
    assert len(FAMILIES) <= 25
    assert len({family.name for family in FAMILIES}) == len(FAMILIES)
    assert {family.kind for family in FAMILIES} == {"counter", "gauge", "histogram"}


def test_a_committed_batch_is_counted_once():
    found = after(end(events.COMMIT, KAFKA, **WRITTEN), end(events.FINISH, **WRITTEN))
    assert found["batches", "written"] == 1
    assert (found["records"], found["bytes"], found["attempts"]) == (5, 80, 1)
    assert found["dead_letters", "InvalidRecord"] == 2
    assert found["dead_letters", "RecordTooLarge"] == 1
    assert (found["epoch"], found["ledger_sequence"]) == (3, 41)


def test_a_commit_in_doubt_that_was_carried_out_is_counted_by_the_last_step():
    found = after(failed(events.COMMIT, SendFailed("no answer"), **WRITTEN))
    assert "records" not in found
    found = after(
        failed(events.COMMIT, SendFailed("no answer"), **WRITTEN), end(events.FINISH, **WRITTEN)
    )
    assert (found["records"], found["attempts"], found["batches", "written"]) == (5, 1, 1)


def test_a_replay_counts_no_records():
    found = after(end(events.FINISH, replayed=True, sources=[]))
    assert found["batches", "replayed"] == 1
    assert "records" not in found


def test_aborts_failures_and_restarts_have_the_class_of_the_error():
    found = after(
        failed(events.SEND, SendFailed("lost")),
        end(events.ABORT, reason="SendFailed"),
        Event(events.FAIL, "failed", IDS, None, Fenced("a newer copy")),
        Event(events.RESTART, "failed", {"query_id": "q"}, None, SendFailed("lost")),
    )
    assert found["aborts", "SendFailed"] == found["attempts"] == 1
    assert found["failures", "Fenced"] == 1
    assert found["restarts", "SendFailed"] == 1


def test_who_is_fenced_owns_nothing_any_more():
    opened = end(events.OPEN, sequence=40)
    owner = [key for key in after(opened) if key[0] == "info"]
    assert owner[0][2] == "q"
    fenced = Event(events.FAIL, "failed", IDS, None, Fenced("a newer copy"))
    assert not [key for key in after(opened, fenced) if key[0] == "info"]
    assert after(opened)["ledger_sequence"] == 40
    assert after(opened)["start_time_seconds"] == 1_000.0


def test_the_age_of_the_last_commit_is_computed_at_the_scrape():
    opened = end(events.OPEN, sequence=None)
    assert after(opened, at=100.0, now=130.0)["last_commit_age_seconds"] == 30.0
    committed = end(events.COMMIT, KAFKA, **WRITTEN)
    assert after(opened, committed, at=100.0, now=105.0)["last_commit_age_seconds"] == 5.0


RUNNING = {"last_commit_age_seconds", "transaction_open_seconds", "idle", "lag_records", "info"}
PLACE = [(frozenset({"b:1"}), {"t": {"0": 7}})]


def in_mid_batch() -> MetricState:
    """A pipeline that has committed a batch, and has a transaction open for the next one."""
    state = MetricState()
    for event in (
        end(events.OPEN, sequence=40),
        end(events.COMMIT, KAFKA, **WRITTEN),
        end(events.FINISH, sources=PLACE),
        Event(events.SEND, "started", KAFKA),
    ):
        state.hear(event, 100.0, 1_000.0)
    state.set_lags("orders", {("t", "0"): 3}, 100.0)
    return state


def running(state: MetricState) -> set[str]:
    names = {name for name, _, _ in state.samples(130.0)}
    return names & RUNNING


def test_a_query_that_has_ended_owns_nothing_and_is_not_waited_for():
    state = in_mid_batch()
    assert running(state) == RUNNING
    state.hear_end("another", failed=False)
    assert running(state) == RUNNING
    state.hear_end("q", failed=False)
    # The last events may be heard behind Spark's
    state.hear(end(events.FINISH, sources=PLACE), 101.0)
    state.hear_idle("q", 101.0)
    state.set_lags("orders", {("t", "0"): 3}, 101.0)
    assert running(state) == set()
    assert state.positions == {}
    assert numbers(state)["batches", "written"] == 1
    state.hear(Event(events.OPEN, "started", IDS), 102.0)
    state.hear(end(events.OPEN, sequence=41), 103.0)
    assert running(state) == RUNNING - {"lag_records"}
    assert numbers(state, 130.0)["transaction_open_seconds"] == 0


@pytest.mark.parametrize("later", [events.FAIL, events.RESTART])
def test_one_that_failed_is_waited_for_until_it_commits_again(later: str):
    """Also between two starts of ``ow.supervise``, and where Spark's word comes first."""
    told = Event(later, "failed", IDS, None, SendFailed("away"))
    for failed, heard in ((True, ()), (False, (told,))):
        state = in_mid_batch()
        state.hear_end("q", failed=failed)
        for event in heard:
            state.hear(event, 101.0)
        assert running(state) == RUNNING - {"lag_records", "info"}
        assert numbers(state, 130.0)["last_commit_age_seconds"] == 30.0
        assert numbers(state, 130.0)["transaction_open_seconds"] == 0
        assert numbers(state, 130.0)["idle"] == 0


def test_starts_that_fail_one_after_the_other_are_one_wait_for_a_commit():
    state = in_mid_batch()
    for start in range(3):
        state.hear_end("q", failed=True)
        state.hear(Event(events.OPEN, "started", IDS), 110.0 + start)
        state.hear(end(events.OPEN, sequence=40), 110.0 + start, 1_010.0)
    assert numbers(state, 130.0)["last_commit_age_seconds"] == 30.0
    state.hear(end(events.COMMIT, KAFKA, **WRITTEN), 120.0)
    assert numbers(state, 130.0)["last_commit_age_seconds"] == 10.0


def test_a_run_that_opens_its_ledger_again_and_again_waits_for_a_commit():
    state = in_mid_batch()
    for again in range(3):
        state.hear(Event(events.OPEN, "started", IDS), 110.0 + again)
        state.hear(end(events.OPEN, sequence=40), 110.0 + again, 1_010.0)
    assert numbers(state, 130.0)["last_commit_age_seconds"] == 30.0


def test_a_pipeline_that_begins_later_has_no_part_in_older_failures():
    state = MetricState(failing_since=940.0)
    state.hear(end(events.OPEN, sequence=40), 100.0, 1_000.0)
    state.hear(end(events.COMMIT, KAFKA, **WRITTEN), 110.0, 1_010.0)
    other = {**IDS, "pipeline": "audit", "query_id": "r"}
    state.hear(end(events.OPEN, other, sequence=1), 120.0, 1_020.0)
    ages = {
        labels[0]: value
        for name, labels, value in state.samples(130.0)
        if name == "last_commit_age_seconds"
    }
    assert ages == {"orders": 20.0, "audit": 10.0}


def test_a_process_goes_on_waiting_where_the_one_before_has_failed():
    state = MetricState(failing_since=940.0)
    state.hear(Event(events.OPEN, "started", IDS), 100.0, 1_000.0)
    state.hear(end(events.OPEN, sequence=40), 101.0, 1_001.0)
    assert numbers(state, 130.0)["last_commit_age_seconds"] == 90.0
    state.hear(end(events.COMMIT, KAFKA, **WRITTEN), 120.0)
    assert numbers(state, 130.0)["last_commit_age_seconds"] == 10.0


def test_a_query_that_was_started_again_and_finds_nothing_is_idle():
    state = in_mid_batch()
    state.hear_end("q", failed=True)
    assert numbers(state, 130.0)["idle"] == 0
    state.hear_idle("q", 120.0)
    assert numbers(state, 130.0)["idle"] == 1


def test_all_pipelines_of_a_query_are_idle_with_it():
    state = MetricState()
    for name in ("orders", "audit"):
        state.hear(end(events.OPEN, {**IDS, "pipeline": name}, sequence=1), 100.0)
    state.hear_idle("q", 120.0)
    idle = {
        labels[0] for name, labels, value in state.samples(130.0) if (name, value) == ("idle", 1)
    }
    assert idle == {"orders", "audit"}


def test_whoever_was_fenced_does_not_wait_for_another_ones_commits():
    state = in_mid_batch()
    state.hear(Event(events.FAIL, "failed", IDS, None, Fenced("a newer copy")), 101.0)
    state.hear_end("q", failed=True)
    assert running(state) == set()


@pytest.mark.parametrize("last", [events.COMMIT, events.ABORT])
def test_a_transaction_is_open_from_its_job_to_its_end(last: str):
    planned = end(events.PLAN, KAFKA, timeout_ms=900_000)
    sending = Event(events.SEND, "started", KAFKA)
    found = after(planned, sending, at=100.0, now=160.0)
    assert found["transaction_open_seconds"] == 60.0
    assert found["transaction_timeout_seconds"] == 900.0
    ended = after(planned, sending, end(last, **WRITTEN), at=100.0, now=160.0)
    assert ended["transaction_open_seconds"] == 0.0
    staging = Event(events.SEND, "started", IDS)
    assert after(staging, at=100.0, now=160.0)["transaction_open_seconds"] == 0.0


def test_events_that_name_no_pipeline_are_nobodys_batch():
    assert after(end(events.COMMIT, {"topic": "letters"}, records=5)) == {}


def test_seconds_of_steps_are_a_histogram():
    state = MetricState()
    for seconds in (0.004, 0.2, 1_000.0):
        state.hear(end(events.SEND, seconds=seconds), 0.0)
    state.hear(end(events.LEDGER, KAFKA, open_ms=2_000), 0.0)
    found = {(name, *labels[1:]): counts for name, labels, counts in state.histograms()}
    counts = found["step_seconds", "send"]
    assert (counts[0], sum(counts[:-1]), counts[-2]) == (1, 3, 1)
    assert counts[-1] == pytest.approx(1_000.204)
    assert found[("transaction_seconds",)][-1] == 2.0


PROGRESS = {
    "timestamp": "2026-11-26T15:00:10.000Z",
    "eventTime": {"max": "2026-11-26T15:00:04.000Z", "watermark": "2026-11-26T14:59:00.000Z"},
    "stateOperators": [
        {"numRowsTotal": 10, "memoryUsedBytes": 400},
        {"numRowsTotal": 5, "memoryUsedBytes": 100},
    ],
}


def test_sparks_progress_gives_watermark_delay_and_state():
    state = MetricState()
    state.hear_progress("q", PROGRESS)
    assert numbers(state) == {}
    state.hear(end(events.OPEN, sequence=None), 0.0)
    state.hear_progress("q", PROGRESS)
    found = numbers(state)
    assert found["event_time_delay_seconds"] == 6.0
    assert found["watermark_timestamp_seconds"] == 1_795_705_140.0
    assert (found["state_rows"], found["state_bytes"]) == (15, 500)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2000-02-29T23:59:59.500Z", 951_868_799.5),
        ("9999-12-31T23:59:59.000Z", 253_402_300_799),
        ("+10000-01-01T00:00:00.000Z", 253_402_300_800),
        ("57889-12-31T00:00:00.000Z", 1_764_664_704_000),
        ("+57889-12-31T00:00:00.000Z", 1_764_664_704_000),
    ],
)
def test_event_times_of_any_year_are_told(text: str, seconds: float):
    """Milliseconds that were taken for seconds: the watermark never comes back."""
    state = MetricState()
    state.hear(end(events.OPEN, sequence=None), 0.0)
    times = {"max": text, "watermark": text}
    state.hear_progress("q", {**PROGRESS, "eventTime": times})
    found = numbers(state)
    assert found["watermark_timestamp_seconds"] == seconds
    assert found["event_time_delay_seconds"] == 1_795_705_210.0 - seconds
    assert found["state_rows"] == 15


def test_progress_without_event_time_or_state_adds_nothing():
    state = MetricState()
    state.hear(end(events.OPEN, sequence=None), 0.0)
    before = numbers(state)
    state.hear_progress("q", {"eventTime": {"watermark": "1970-01-01T00:00:00.000Z"}})
    assert numbers(state) == before


def test_a_query_is_idle_as_long_as_spark_says_so():
    state = MetricState()
    state.hear(end(events.OPEN, sequence=None), 0.0)
    assert numbers(state, 5.0)["idle"] == 0.0
    state.hear_idle("q", 10.0)
    assert numbers(state, 15.0)["idle"] == 1.0
    assert numbers(state, 300.0)["idle"] == 0.0, "one that hangs is not idle"
    state.set_pace("orders", 0.0, 300.0)
    assert numbers(state, 300.0)["idle"] == 1.0, "Spark was told to say it every five minutes"
    state.set_pace("orders", 0.0, 10.0)
    state.hear_idle("q", 300.0)
    state.hear(end(events.COMMIT, KAFKA, **WRITTEN), 301.0)
    assert numbers(state, 302.0)["idle"] == 0.0


def has_no_commit(state: MetricState, now: float) -> bool:
    """The expression of the alert."""
    found = numbers(state, now)
    interval = max(found["trigger_interval_seconds"], 24)
    return found["last_commit_age_seconds"] > 5 * interval and found["idle"] != 1


@pytest.mark.parametrize(("interval", "allowed"), [(0.0, 120.0), (3_600.0, 18_000.0)])
def test_the_batch_that_ends_a_quiet_time_has_as_long_as_any_other(
    interval: float, allowed: float
):
    state = MetricState()
    state.hear(end(events.OPEN, sequence=None), 0.0)
    state.set_pace("orders", interval, 10.0)
    state.hear(end(events.COMMIT, KAFKA, **WRITTEN), 0.0)
    state.hear_idle("q", 80_000.0)
    for step in (events.ADMIT, events.SEND):
        state.hear(Event(step, "started", KAFKA), 80_001.0)
    for seconds in (1.0, allowed / 2, allowed):
        assert not has_no_commit(state, 80_000.0 + seconds), seconds
    assert has_no_commit(state, 80_001.0 + allowed)
    state.hear(end(events.COMMIT, KAFKA, **WRITTEN), 98_100.0)
    assert numbers(state, 98_101.0)["idle"] == 0.0
    assert not has_no_commit(state, 98_101.0)


def test_a_new_process_that_cannot_open_its_ledger_is_waited_for_as_any_other():
    """Brokers away, and the pipeline moved to another pod: no run of this process has opened it."""
    state, away = MetricState(failing_since=1_000.0), BrokerUnreachable("away", next_step="wait")
    state.hear(Event(events.OPEN, "started", KAFKA), 0.0, 1_030.0)
    assert not has_no_commit(state, 60.0)
    state.hear(Event(events.OPEN, "failed", KAFKA, 30.0, away), 30.0, 1_060.0)
    state.hear(Event(events.RESTART, "failed", {"query_id": "q"}, None, away), 31.0, 1_061.0)
    assert has_no_commit(state, 121.0)


BEGUN = Event(events.BEGIN, "started", {"pipeline": "orders"})
STARTED = Event(events.BEGIN, "finished", {"pipeline": "orders", "query_id": "q"})


def test_a_pipeline_whose_source_is_away_from_the_beginning_is_waited_for():
    """Its sink has been called for no batch: nothing told of it, and no alert fired."""
    state, away = MetricState(), BrokerUnreachable("away", next_step="wait")
    for second in (0.0, 60.0, 120.0):
        state.hear(BEGUN, second, 1_000.0 + second)
        # Its start was refused twice; then there is a query, which fails before its first batch
        ids = IDS if second == 120.0 else {"pipeline": "orders"}
        if ids is IDS:
            state.hear(STARTED, second, 1_000.0 + second)
            state.hear_end("q", failed=True)
        state.hear(Event(events.RESTART, "failed", ids, None, away), second + 1.0, 1_121.0)
    assert has_no_commit(state, 122.0)
    found = numbers(state, 122.0)
    assert (found["restarts", "BrokerUnreachable"], found["last_commit_age_seconds"]) == (3, 122.0)
    # Of a new process, and of no start within it; and whoever owns nothing yet is no second owner
    assert found["start_time_seconds"] == 1_000.0
    assert not [name for name in found if name[0] == "info"]
    state.hear(BEGUN, 129.0, 1_129.0)
    state.hear(STARTED, 130.0, 1_130.0)
    state.hear(Event(events.OPEN, "started", IDS), 131.0, 1_131.0)
    state.hear(end(events.OPEN, sequence=None), 132.0, 1_132.0)
    state.hear(end(events.COMMIT, KAFKA, **WRITTEN), 133.0)
    found = numbers(state, 134.0)
    assert (found["start_time_seconds"], found["last_commit_age_seconds"]) == (1_000.0, 1.0)
    state.hear_end("q", failed=True)
    state.hear(BEGUN, 139.0, 1_139.0)
    state.hear(STARTED, 140.0, 1_140.0)
    state.hear(end(events.OPEN, sequence=41), 141.0, 1_141.0)
    assert numbers(state, 142.0)["start_time_seconds"] == 1_141.0


def test_a_pipeline_that_finds_nothing_to_read_from_its_start_on_is_idle():
    state = MetricState()
    state.hear(BEGUN, 0.0, 1_000.0)
    state.hear(STARTED, 1.0, 1_001.0)
    assert has_no_commit(state, 125.0)
    state.hear_idle("q", 120.0)
    assert not has_no_commit(state, 125.0)
    state.hear_end("q", failed=False)
    assert running(state) == set()
    state.hear(BEGUN, 200.0, 1_200.0)
    assert numbers(state, 230.0)["last_commit_age_seconds"] == 30.0


def test_a_query_that_is_given_up_before_its_first_batch_is_waited_for():
    state = MetricState()
    state.hear(BEGUN, 0.0, 1_000.0)
    state.hear(STARTED, 1.0, 1_001.0)
    state.hear_end("q", failed=True)
    assert running(state) == RUNNING - {"lag_records", "info"}


def test_a_query_that_has_ended_before_start_returns_is_waited_for_no_more():
    """`start` may wait for the end itself, or it had nothing to read."""
    state = MetricState()
    state.hear(BEGUN, 0.0, 1_000.0)
    state.hear(end(events.OPEN, sequence=None), 1.0, 1_001.0)
    state.hear_end("q", failed=False)
    state.hear(STARTED, 2.0, 1_002.0)
    assert running(state) == set()


def test_a_copy_that_was_fenced_before_its_first_batch_waits_for_nothing():
    state = MetricState()
    state.hear(BEGUN, 0.0, 1_000.0)
    state.hear(STARTED, 0.5, 1_000.5)
    state.hear(Event(events.FAIL, "failed", IDS, None, Fenced("a newer copy")), 1.0)
    state.hear_end("q", failed=True)
    assert running(state) == set()


@pytest.mark.parametrize("per_partition", [False, True])
def test_lag_is_one_series_a_pipeline_unless_more_is_asked_for(per_partition: bool):
    state = MetricState(per_partition=per_partition)
    state.hear(end(events.FINISH, **WRITTEN, sources=[(frozenset({"b:1"}), {"t": {"0": 7}})]), 0.0)
    assert state.positions["orders"] == [(frozenset({"b:1"}), {"t": {"0": 7}})]
    state.set_lags("orders", {("t", "0"): 3, ("t", "1"): 4}, 0.0)
    found = numbers(state, 1.0)
    assert found["lag_records"] == 7
    assert (("partition_lag_records", "t", "0") in found) is per_partition
    assert "lag_records" not in numbers(state, 1_000.0), "brokers have not answered since"


def test_the_position_of_the_newest_ledger_record_is_known_before_the_first_batch():
    state = MetricState()
    state.hear(end(events.OPEN, sequence=4, sources=[(frozenset({"b:1"}), {"t": {"0": 3}})]), 0.0)
    assert state.positions["orders"] == [(frozenset({"b:1"}), {"t": {"0": 3}})]


def test_settings_of_a_sink_on_the_cluster_will_do_for_the_lag(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(identity, "_known", {})
    monkeypatch.setattr(identity, "_sinks", {})
    servers = frozenset({"b:1"})
    assert identity.known_logins(servers) == []
    of_sink, of_source = ClientSettings(("b:1", "c:1")), ClientSettings(("b:1",))
    identity.remember_sink(servers, of_sink)
    assert identity.known_logins(servers) == [of_sink]
    identity.remember(of_source)
    assert identity.known_logins(servers) == [of_source]


def test_of_two_sources_on_one_topic_the_slower_one_has_the_lag(monkeypatch: pytest.MonkeyPatch):
    """Under whatever names they know its brokers."""

    monkeypatch.setattr(
        metrics, "list_offsets", lambda client, places, *_, **__: dict.fromkeys(places, 100)
    )
    monkeypatch.setattr(metrics, "known_logins", lambda of: [ClientSettings(tuple(sorted(of)))])
    watcher = metrics.LagWatcher(dict, lambda *_: None, 100.0)
    here, too = frozenset({"a1:1"}), frozenset({"a2:1"})
    position = [(here, {"t": {"0": 7}}), (too, {"t": {"0": 90}}), (here, {"t": {"0": 80}})]
    found = [watcher._ask(each, "orders") for each in (position, position[::-1])]
    assert found == [{("t", "0"): 93}] * 2
    watcher.stop()


@dataclass
class EqualProvider:
    """As users write them: equal by its values, and so without a hash."""

    scope: str = "kafka"

    def token(self) -> str:
        return "t"


def test_the_lag_is_asked_for_by_a_login_that_may(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """Whichever source was defined last; and each start of a query may bring a login of its own,
    whose clients are those that all share, and no more of them are kept.
    """
    asked: list[tuple[str, str]] = []

    def offsets(client: KafkaClient, places: Iterable[TopicPartition], *_: Any, **__: Any) -> Any:
        user = client.settings.security.username or ""
        topics = {each.topic for each in places}
        asked.extend((user, topic) for topic in topics)
        if user and user not in topics:
            raise AccessDenied(f"{user} may not", next_step="grant it")
        return dict.fromkeys(places, 10)

    monkeypatch.setattr(metrics, "list_offsets", offsets)
    monkeypatch.setattr(identity, "_known", {})
    here = ClientSettings(("lag.example:1",))
    for user in ("orders", "people"):
        login = replace(here.security, username=user, password="p")
        identity.remember(replace(here, security=login))
    servers = frozenset(here.bootstrap_servers)
    watcher = metrics.LagWatcher(dict, lambda *_: None, 100.0)
    for topic in ("orders", "people", "orders"):
        assert watcher._ask([(servers, {topic: {"0": 7}})], topic) == {(topic, "0"): 3}
    assert asked[:2] == [("people", "orders"), ("orders", "orders")]
    assert asked[2:] == [("people", "people"), ("orders", "orders")]
    with pytest.raises(AccessDenied, match="people may not"):
        watcher._ask([(servers, {"cars": {"0": 7}})], "cars")
    monkeypatch.setattr(identity, "_known", {})
    threads = threading.active_count()
    for _ in range(60):
        identity.remember(replace(here, oauth_token_provider=EqualProvider()))
        assert watcher._ask([(servers, {"t": {"0": 7}})], "t") == {("t", "0"): 3}
    watcher.stop()
    assert threading.active_count() < threads + 60


def test_lag_is_never_negative_and_of_known_partitions_alone():
    ends = {TopicPartition("t", 0): 7, TopicPartition("t", 1): 9, TopicPartition("t", 2): 1}
    stable = {TopicPartition("t", 0): 10, TopicPartition("t", 1): 2}
    assert metrics.lags(ends, stable) == {("t", "0"): 3, ("t", "1"): 0}
    assert partition_offsets({"t": {"0": 7}}) == {TopicPartition("t", 0): 7}
    assert partition_offsets("a position of something else") == {}


# ── by endpoint, gateway and registry ──


@pytest.fixture
def served() -> Iterator[metrics.Metrics]:
    made = metrics.serve_metrics(0)
    yield made
    made.stop()


def publish_a_batch() -> float:
    """Publish the events of a batch, and return how long its thread took."""
    began = time.monotonic()
    with events.step(events.OPEN, **IDS) as values:
        values["sequence"] = 40
    with events.step(events.COMMIT, **KAFKA) as values:
        values |= WRITTEN
    return time.monotonic() - began


def scrape(port: int | None) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return str(answer.read().decode())


def until(text: str, port: int | None) -> str:
    ends = time.monotonic() + 10
    while text not in (found := scrape(port)):
        assert time.monotonic() < ends, found
        time.sleep(0.01)
    return found


def test_metrics_listen_to_spark_from_the_start_of_a_query_on(
    served: metrics.Metrics, monkeypatch: pytest.MonkeyPatch
):
    """Before its first batch: one that finds nothing to read is idle, and no alert fires."""
    asked: list[str] = []
    monkeypatch.setattr(served._progress, "listen_to", asked.append)
    events.announce(events.BEGIN, {"pipeline": "orders"}, phase="started")
    events.announce(events.BEGIN, {"pipeline": "orders", "query_id": "q"}, phase="finished")
    served.stop()
    assert asked == ["q"]


def test_an_endpoint_serves_what_was_heard(served: metrics.Metrics):
    publish_a_batch()
    found = until('onceward_records_total{pipeline="orders"} 5.0', served.port)
    assert 'onceward_step_seconds_bucket{le="+Inf",pipeline="orders",step="commit"} 1.0' in found
    assert 'onceward_info{pipeline="orders",query_id="q",version="' in found


def test_a_scraper_that_hangs_delays_neither_batches_nor_scrapers(served: metrics.Metrics):
    hanging = [socket.create_connection(("127.0.0.1", served.port or 0)) for _ in range(4)]
    try:
        hanging[0].sendall(b"GET /metrics HTTP/1.1\r\n")
        assert publish_a_batch() < 1
        until("onceward_records_total", served.port)
    finally:
        for connection in hanging:
            connection.close()


def test_a_port_that_is_taken_fails_no_job(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(metrics, "_BIND_AGAIN_SECONDS", 0.01)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        made = metrics.serve_metrics(taken.getsockname()[1])
        assert made.port is None
        assert "is taken" in caplog.text
    try:
        ends = time.monotonic() + 10
        while made.port is None and time.monotonic() < ends:
            time.sleep(0.01)
        publish_a_batch()
        until("onceward_records_total", made.port)
    finally:
        made.stop()


def test_an_address_of_ipv6_is_served():
    with suppress(OSError), socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
        made = metrics.serve_metrics(0, "::1")
        try:
            with urllib.request.urlopen(f"http://[::1]:{made.port}/metrics", timeout=10) as answer:
                assert answer.status == 200
        finally:
            made.stop()


def test_a_host_that_nobody_knows_is_not_called_taken(caplog: pytest.LogCaptureFixture):
    made = metrics.serve_metrics(0, "no-such-host.invalid")
    made.stop()
    assert made.port is None
    assert "no-such-host.invalid" in caplog.text
    assert "taken" not in caplog.text


def test_a_gateway_that_is_away_or_hangs_is_logged_once(caplog: pytest.LogCaptureFixture):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        where = f"127.0.0.1:{silent.getsockname()[1]}"
        made = metrics.push_metrics(where, interval_s=0.01, timeout_s=0.05)
        assert publish_a_batch() < 1
        ends = time.monotonic() + 10
        while "push gateway" not in caplog.text and time.monotonic() < ends:
            time.sleep(0.01)
        began = time.monotonic()
        made.stop()
        assert time.monotonic() - began < 5
    warned = [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert ["push gateway" in r.getMessage() for r in warned] == [True]


@pytest.mark.parametrize(
    ("program", "given", "key"),
    [
        (["/jobs/orders_job.py", "--fast"], {}, ("onceward", "orders_job")),
        (["/jobs/orders/__main__.py"], {}, ("onceward", "orders")),
        ([], {}, ("onceward", "onceward")),
        (["/jobs/orders_job.py"], {"job": "orders"}, ("orders", "orders")),
        (["/jobs/orders_job.py"], {"instance": "a"}, ("onceward", "a")),
    ],
)
def test_two_jobs_do_not_replace_each_others_numbers(
    monkeypatch: pytest.MonkeyPatch,
    program: list[str],
    given: dict[str, Any],
    key: tuple[str, str],
):
    """A gateway keeps the numbers of one push for each job and instance."""
    pushed: list[tuple[str, str]] = []
    monkeypatch.setattr(sys, "argv", program)
    monkeypatch.setattr(
        metrics.Metrics,
        "push",
        lambda _, gateway, job, instance, *times: pushed.append((job, instance)),
    )
    metrics.push_metrics("http://gateway:9091", **given).stop()
    assert pushed == [key]


def test_a_push_that_is_answered_a_byte_at_a_time_is_not_the_last():
    slow = drip(b"HTTP/1.1 200 OK\r\nX: ", b"#")
    with HostileServer([slow, answer(200)]) as gateway:
        made = metrics.push_metrics(gateway.url, interval_s=0.05, timeout_s=0.5)
        ends = time.monotonic() + 10
        while gateway.connections < 2 and time.monotonic() < ends:
            time.sleep(0.02)
        made.stop()
        assert gateway.connections > 1


def test_a_registry_of_the_users_has_them_until_they_are_stopped():
    registry = CollectorRegistry()
    made = metrics.register_metrics(registry)
    made.state.hear(end(events.COMMIT, KAFKA, **WRITTEN), 0.0)
    assert b'onceward_records_total{pipeline="orders"} 5.0' in generate_latest(registry)
    made.stop()
    assert generate_latest(registry) == b""


def test_who_registers_once_more_is_told_and_leaves_nothing_behind():
    registry = CollectorRegistry()
    made = metrics.register_metrics(registry)
    before = threading.active_count()
    with pytest.raises(ConfigurationError, match="outside of what"):
        metrics.register_metrics(registry)
    assert threading.active_count() == before
    made.stop()


def test_a_gateways_login_goes_into_a_header_and_no_log(caplog: pytest.LogCaptureFixture):
    heard: list[str] = []

    class Gateway(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            heard.append(self.headers.get("Authorization", ""))
            self.send_response(202 if len(heard) > 1 else 500)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Gateway) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        where = f"http://etl:p%40ss@127.0.0.1:{server.server_port}"
        made = metrics.push_metrics(where, interval_s=0.05)
        until = time.monotonic() + 10
        while len(heard) < 2 and time.monotonic() < until:
            time.sleep(0.02)
        made.stop()
        server.shutdown()
    assert set(heard) == {"Basic " + base64.b64encode(b"etl:p@ss").decode()}
    assert "p%40ss" not in caplog.text


def test_what_is_no_port_or_time_is_refused_by_name():
    with pytest.raises(ConfigurationError, match="port=70000"):
        metrics.serve_metrics(70_000)
    with pytest.raises(ConfigurationError, match="lag_interval_s=0"):
        metrics.register_metrics(CollectorRegistry(), lag_interval_s=0)


def test_a_lag_that_cannot_be_asked_for_is_logged_once_and_in_no_line_of_a_batch(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    answers = iter([{("t", "0"): 3}, SendFailed("brokers are away"), SendFailed("and still")])
    known: list[int | None] = []
    over = threading.Event()

    def ask(self: metrics.LagWatcher, position: Any, pipeline: str) -> Any:
        known.append(batch_log.known_lags.get("orders"))
        answer = next(answers, None)
        if answer is None:
            over.set()
        if isinstance(answer, SendFailed):
            raise answer
        return answer

    monkeypatch.setattr(metrics.LagWatcher, "_ask", ask)
    place = [(frozenset({"b:1"}), {"t": {"0": 7}})]
    found: list[Any] = []
    watcher = metrics.LagWatcher(lambda: {"orders": place}, lambda *one: found.append(one), 0.001)
    assert over.wait(10)
    watcher.stop()
    assert known[:4] == [None, 3, None, None]
    assert found[0] == ("orders", {("t", "0"): 3})
    assert caplog.text.count("its lag is not known now") == 1


def test_of_a_pipeline_that_has_ended_no_lag_is_asked_for(monkeypatch: pytest.MonkeyPatch):
    asked = threading.Semaphore(0)

    def ask(self: metrics.LagWatcher, position: Any, pipeline: str) -> Any:
        asked.release()
        return {("t", "0"): 3}

    monkeypatch.setattr(metrics.LagWatcher, "_ask", ask)
    positions: dict[str, Any] = {"orders": PLACE}
    watcher = metrics.LagWatcher(lambda: dict(positions), lambda *one: None, 0.001)
    try:
        assert asked.acquire(timeout=10)
        del positions["orders"]
        until_time = time.monotonic() + 10
        while "orders" in batch_log.known_lags:
            assert time.monotonic() < until_time
            time.sleep(0.001)
    finally:
        watcher.stop()


def test_the_last_push_is_of_no_owner():
    """It stays in the gateway."""
    pushed: list[str] = []

    class Gateway(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            pushed.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
            self.send_response(200)
            self.end_headers()

    gateway = HTTPServer(("127.0.0.1", 0), Gateway)
    threading.Thread(target=gateway.serve_forever, daemon=True).start()
    pushing = metrics.push_metrics(f"127.0.0.1:{gateway.server_port}", interval_s=3_600)
    try:
        publish_a_batch()
    finally:
        pushing.stop()
        gateway.shutdown()
        gateway.server_close()
    assert 'onceward_batches_total{how="written",pipeline="orders"} 1.0' in pushed[-1]
    assert "onceward_info" not in pushed[-1]
    assert "onceward_last_commit_age_seconds" not in pushed[-1]


def test_the_reference_is_what_the_code_says():
    script = runpy.run_path(str(ROOT / "docs" / "tables" / "metrics.py"))
    assert script["PAGE"].read_text(encoding="utf-8") == script["page"](), (
        "run python docs/tables/metrics.py"
    )
