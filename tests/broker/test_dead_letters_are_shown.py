"""``onceward dead-letters list`` and ``show`` on a real broker, and the reader under them against
librdkafka's.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from onceward.ids import TopicPartition as Partition
from onceward.kafka.wire.reads import committed as fetching
from onceward.kafka.wire.reads.committed import committed_records
from onceward.kafka.wire.reads.offsets import LATEST, list_offsets
from onceward_testing import LocalKafka
from support.dead_letter_desk import Desk, about

pytestmark = pytest.mark.broker


@pytest.fixture
def desk(
    kafka: LocalKafka, new_topic: Callable[..., str], read_committed: Callable[..., Any]
) -> Desk:
    return Desk(kafka.bootstrap_servers, new_topic, read_committed)


def test_letters_are_counted_by_what_they_are(desk: Desk) -> None:
    desk.write(6)
    desk.write(3, error="BadFraming", own=[("onceward.replayed", b"1")])
    desk.put(b"foreign", [("a", b"b")], key=b"k")
    desk.put(b"\x1b[2J", about("p\x1b", 0, 1, error="\x1b[31mX", pipeline="evil\r\n"))
    assert desk.command("replay", "--class", "BadFraming").exit_code == 0
    found = desk.listed()
    numbers = {
        (g["error_class"], g["source_partition"]): (g["records"], g["replayed"])
        for g in found["groups"]
    }
    assert numbers == {
        ("DoesNotFit", 0): (2, 0), ("DoesNotFit", 1): (2, 0), ("DoesNotFit", 2): (2, 0),
        ("BadFraming", 0): (1, 1), ("BadFraming", 1): (1, 1), ("BadFraming", 2): (1, 1),
        ("\x1b[31mX", None): (1, 0),
    }  # fmt: skip
    assert (
        found["letters"]["records"],
        found["letters"]["replayed"],
        found["letters"]["came_back"],
    ) == (10, 3, 3)
    assert found["other_records"]["records"] == 1
    assert 0 < found["letters"]["first_ms"] <= found["letters"]["last_ms"]
    table = desk.command("list")
    assert table.exit_code == 0
    assert all(line.isprintable() for line in table.output.split("\n"))
    assert f"{desk.dead}: 10 dead letters, of which 3 are replayed" in table.output


def test_an_empty_topic_and_one_that_nobody_has_replayed(desk: Desk) -> None:
    assert desk.listed()["letters"] == {"records": 0, "replayed": 0, "came_back": 0}
    assert "0 dead letters" in desk.command("list").output
    assert desk.command("show").exit_code == 0
    assert "0 letters fed back" in desk.command("replay").output
    missing = desk.command("list", topic="no-such-topic-at-all")
    assert missing.exit_code == 1
    assert "TopicMissing" in missing.output


def test_what_retention_has_removed_is_said_and_passed_over(desk: Desk) -> None:
    values = desk.write(20)
    admin = AdminClient({"bootstrap.servers": desk.servers})
    [gone] = admin.delete_records([TopicPartition(desk.dead, 0, 4)]).values()
    gone.result(30)
    assert desk.listed()["log_begins_at"] == {"0": 4}
    assert "begins at 0: 4" in desk.command("list").output
    desk.replay()
    desk.assert_fed_back_once([v for n, v in enumerate(values) if n % 2 or n >= 8])


def test_one_letter_and_some_of_them_are_shown(desk: Desk) -> None:
    desk.write(8)
    desk.put(
        b"\xff\x00",
        [("trace", b"\x1b[2J"), *about(desk.source, 2, 77, error="BadFraming")],
        partition=1,
    )
    shown = desk.command("show", "--class", "BadFraming")
    assert shown.exit_code == 0
    assert all(line.isprintable() for line in shown.output.split("\n"))
    for part in (f"{desk.dead}-1@4", f"{desk.source}-2@77, of "
                                     f"2023-11-14T22:13:20.123Z", "hex ff00", "key       null",
                 'trace = "\\x1b[2J"', "BadFraming: field age", "people-etl"):  # fmt: skip
        assert part in shown.output, part
    one = desk.command("show", "--partition", "0", "--offset", "2", "--json")
    [line] = one.stdout.splitlines()
    told = json.loads(line)
    assert (told["partition"], told["offset"], told["value"]) == (
        0,
        2,
        {"text": "letter 4", "bytes": 8},
    )
    assert len(desk.command("show", "--limit", "3", "--json").stdout.splitlines()) == 3
    desk.replay()
    assert json.loads(desk.command("show", "--limit", "1", "--json").stdout)["replayed"] is True
    nothing = desk.command("show", "--partition", "0", "--offset", "9999")
    assert nothing.exit_code == 0
    assert "no such letter" in nothing.output
    assert desk.command("show", "--offset", "1").exit_code == 64
    assert "PartitionMissing" in desk.command("show", "--partition", "7").output


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_what_we_read_is_what_librdkafka_reads(
    kafka: LocalKafka,
    desk: Desk,
    new_topic: Callable[..., str],
    read_committed: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
) -> None:
    """Transactions of three producers, committed, aborted, mixed with plain records; read a few at
    a time.
    """
    chance = random.Random(seed)
    topic = new_topic(desk.servers, 1, segment_bytes=1 << 20)
    plain = Producer({"bootstrap.servers": desk.servers, "linger.ms": 0})
    writers = [
        Producer({"bootstrap.servers": desk.servers, "transactional.id": f"{topic}-{n}"})
        for n in range(3)
    ]
    is_open = [False] * 3
    for writer in writers:
        writer.init_transactions(60)
    for number in range(150):
        n = chance.randrange(4)
        if n == 3:
            plain.produce(topic, b"plain %d" % number)
            plain.flush(60)
            continue
        if not is_open[n]:
            writers[n].begin_transaction()
        is_open[n] = True
        writers[n].produce(topic, b"%d" % number + b"." * chance.randrange(2_000))
        writers[n].flush(60)
        if chance.random() < 0.2:
            chance.choice((writers[n].commit_transaction, writers[n].abort_transaction))(60)
            is_open[n] = False
    expected = [
        (message.offset(), message.value()) for message in read_committed(desk.servers, topic)
    ]
    fetch = fetching.fetch_request

    def small(*arguments: Any, **more: Any) -> Any:
        request = fetch(*arguments, **more)
        request.topics[0].partitions[0].partition_max_bytes = request.max_bytes = 3_000
        return request

    monkeypatch.setattr(fetching, "fetch_request", small)
    client, _ = desk.client()
    where = Partition(topic, 0)
    try:
        end = list_offsets(client, [where], LATEST, read_committed=True)[where]
        read = [
            (record.offset, record.value) for record in committed_records(client, where, 0, end)
        ]
        assert read == expected
        half = [record.offset for record in committed_records(client, where, end // 3, end // 2)]
        assert half == [offset for offset, _ in expected if end // 3 <= offset < end // 2]
        every_other = [
            r.offset
            for r in committed_records(client, where, 0, end, skip=lambda o: o + 30 - o % 30)
        ]
        assert set(every_other) <= {offset for offset, _ in expected}
    finally:
        client.close()
        for n, writer in enumerate(writers):
            if is_open[n]:
                writer.abort_transaction(60)


def test_a_log_that_loses_its_beginning_while_it_is_read_goes_on_behind_it(desk: Desk) -> None:
    desk.write(40)
    client, _ = desk.client()
    where = Partition(desk.dead, 0)
    admin = AdminClient({"bootstrap.servers": desk.servers})

    def at_the_first_fetch(offset: int) -> int:
        if offset == 0:
            [gone] = admin.delete_records([TopicPartition(desk.dead, 0, 5)]).values()
            gone.result(30)
        return offset

    try:
        assert [
            r.offset for r in committed_records(client, where, 0, 20, skip=at_the_first_fetch)
        ] == [*range(5, 20)]
    finally:
        client.close()
