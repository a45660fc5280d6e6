"""Every example runs as it stands, on the shared broker, is stopped and started again, and shows
each result once.
"""

from __future__ import annotations

import json
import runpy
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from onceward_testing import LocalKafka, LocalMySQL, exactly_once, read_topic
from support.mysql_client import sql_at, transact_at
from support.running_jobs import running

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
MINUTE_MS = 60_000
BEGIN_MS = int(time.time() * 1000) // MINUTE_MS * MINUTE_MS  # older records would expire at once


class Stage:
    """The shared broker, with the topics of one example."""

    def __init__(
        self, spark: Any, kafka: LocalKafka, folder: Path, patch: pytest.MonkeyPatch
    ) -> None:
        self.spark, self.servers, self.folder, self.patch = (
            spark,
            kafka.bootstrap_servers,
            folder,
            patch,
        )

    def create(self, *topics: str) -> None:
        admin = AdminClient({"bootstrap.servers": self.servers})
        for created in admin.create_topics(
            [NewTopic(name, num_partitions=2) for name in topics]
        ).values():
            created.result(30)

    def send(self, topic: str, records: list[tuple[str, str, int]]) -> None:
        """Key, value and timestamp in milliseconds."""
        producer = Producer({"bootstrap.servers": self.servers})
        for key, value, timestamp_ms in records:
            producer.produce(topic, key=key, value=value, timestamp=timestamp_ms)
        assert producer.flush(60) == 0

    def run(self, script: str, *options: str) -> None:
        """Runs the file as a program until it has read everything."""
        arguments = [
            script,
            "--bootstrap-servers",
            self.servers,
            "--checkpoint",
            str(self.folder / script),
            *options,
        ]
        self.patch.setattr(sys, "argv", arguments)
        with running(
            self.spark, lambda: runpy.run_path(str(EXAMPLES / script), run_name="__main__")
        ) as query:
            query.processAllAvailable()

    def read(self, topic: str) -> list[tuple[str, str]]:
        return [
            (str(r.key, "utf-8"), str(r.value, "utf-8")) for r in read_topic(self.servers, topic)
        ]


@pytest.fixture
def stage(spark: Any, kafka: LocalKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(spark, kafka, tmp_path, monkeypatch)


def test_counts_go_on_after_a_restart(stage: Stage):
    stage.create("orders")
    fed: Counter[tuple[str, int]] = Counter()
    for day in range(3):
        orders = [(f"k{n % 5}", "", BEGIN_MS + (n % 3) * MINUTE_MS + day) for n in range(60)]
        stage.send("orders", orders)
        fed.update((key, timestamp_ms // MINUTE_MS) for key, _, timestamp_ms in orders)
        stage.run("count_by_minute.py")

    seen: dict[tuple[str, str], list[int]] = {}
    for key, value in stage.read("orders-per-minute"):
        count = json.loads(value)
        seen.setdefault((key, count["minute"]), []).append(count["orders"])
    # A count that came twice, or of a state that was lost, would break the rise or the end.
    assert all(counts == sorted(set(counts)) for counts in seen.values())
    assert sorted((key, counts[-1]) for (key, _), counts in seen.items()) == sorted(
        (key, count) for (key, _), count in fed.items()
    )


def test_events_go_to_the_topic_of_their_kind(stage: Stage):
    stage.create("events", "events-click", "events-view", "events-other")
    kinds = ["click", "view", "other", "boo"] * 9
    events = [(f"k{n}", json.dumps({"kind": kind, "n": n})) for n, kind in enumerate(kinds)]
    for half in (events[:18], events[18:]):
        stage.send("events", [(key, value, BEGIN_MS) for key, value in half])
        stage.run("route_by_topic.py")

    for topic in ("click", "view", "other"):
        wanted = [
            event
            for event, kind in zip(events, kinds, strict=True)
            if kind.replace("boo", "other") == topic
        ]
        verdict = exactly_once(wanted, stage.read(f"events-{topic}"))
        assert verdict.holds, verdict


def test_both_halves_of_each_transfer_appear_once(stage: Stage):
    stage.create("transfers", "credits")
    booked = [(f"a{n % 7}", f"b{n % 3}", n + 1) for n in range(40)]
    transfers = [
        json.dumps({"from": payer, "to": payee, "cents": cents}) for payer, payee, cents in booked
    ]
    for half in (transfers[:25], transfers[25:]):
        stage.send("transfers", [("", transfer, BEGIN_MS) for transfer in half])
        stage.run("two_frames.py")

    debits = exactly_once(
        [(payer, str(-cents)) for payer, _, cents in booked], stage.read("debits")
    )
    credit = exactly_once(
        [(payee, str(cents)) for _, payee, cents in booked], stage.read("credits")
    )
    assert debits.holds, debits
    assert credit.holds, credit


@pytest.mark.slow
def test_each_event_of_the_outbox_goes_to_its_topic_once_and_in_order(
    stage: Stage, read_committed: Callable[..., list[Message]]
):
    kinds = ("order", "customer")
    stage.create(*(f"outbox.event.{kind}" for kind in kinds))
    table = str(runpy.run_path(str(EXAMPLES / "outbox_events.py"))["__doc__"]).partition(";")[0]
    published: list[tuple[str, ...]] = []
    with LocalMySQL(binlog=True) as mysql:
        sql_at(mysql.url, table[table.index("CREATE") :])
        for begin in (0, 30, 60):
            for number in range(begin, begin + 30):
                payload = json.dumps({"n": number, "text": "é"}, ensure_ascii=False)
                event = (
                    f"{number:036}",
                    kinds[number % 3 // 2],
                    f"k{number % 5}",
                    f"type {number % 2}",
                    payload,
                )
                insert = ("INSERT INTO outbox VALUES (%s, %s, %s, %s, %s)", *event)
                # What is gone again before the query is there, it could not see.
                delete = (
                    [("DELETE FROM outbox WHERE id = %s", event[0])]
                    if begin and number % 2
                    else []
                )
                transact_at(mysql.url, insert, *delete, commit=number % 7 < 6)
                published += [event] if number % 7 < 6 else []
            stage.run("outbox_events.py", "--mysql", mysql.url, "--table", "test.outbox")
            sql_at(mysql.url, "DELETE FROM outbox WHERE aggregate_id = 'k1'")
    for kind in kinds:
        wanted = [event for event in published if event[1] == kind]
        read = [
            _event(message) for message in read_committed(stage.servers, f"outbox.event.{kind}")
        ]
        assert exactly_once([event[0] for event in wanted], [event[0] for event in read]).holds
        for key in {event[2] for event in wanted}:
            assert [(*event[:1], *event[2:]) for event in wanted if event[2] == key] == [
                (identity, of, what, json.dumps(json.loads(payload), ensure_ascii=False))
                for identity, of, what, payload in read
                if of == key
            ]


def _event(message: Message) -> tuple[str, ...]:
    """Id, key, type and payload."""
    headers = {name: bytes(value or b"").decode() for name, value in message.headers() or []}
    assert headers.keys() == {"id", "type"}
    return (
        headers["id"],
        str(message.key(), "utf-8"),
        headers["type"],
        str(message.value(), "utf-8"),
    )


def test_the_test_of_ones_own_pipeline(
    spark: Any, kafka: LocalKafka, tmp_path: Path, load: Callable[[str], dict[str, Any]]
):
    example = load("own_pipeline_test/test_pipeline.py")
    example["test_a_restart_neither_loses_nor_repeats"](spark, kafka, tmp_path)


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], dict[str, Any]]]:
    """The names of an example's module, whose own folder is on the path as pytest puts it
    there.
    """
    monkeypatch.syspath_prepend(str(EXAMPLES / "own_pipeline_test"))
    yield lambda path: runpy.run_path(str(EXAMPLES / path))
    sys.modules.pop("pipeline", None)
