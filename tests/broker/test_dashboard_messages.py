"""The message browser on a real broker: committed, aborted and open records are told apart, by what
another client has written.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from confluent_kafka import Producer

from onceward.dashboard.messages import Fate, read_excerpt
from onceward.errors import OncewardError
from onceward.ids import TopicPartition
from onceward.kafka.wire.client import KafkaClient
from onceward_testing import LocalKafka
from support.wire_fixtures import settings


def test_the_fate_of_each_record_is_told(kafka: LocalKafka, new_topic: Callable[..., str]) -> None:
    topic = new_topic(kafka.bootstrap_servers, 1)
    servers = {"bootstrap.servers": kafka.bootstrap_servers}
    plain = Producer(servers)
    writers = [Producer({**servers, "transactional.id": f"{topic}-{n}"}) for n in range(2)]
    for writer in writers:
        writer.init_transactions(60)
        writer.begin_transaction()

    def put(producer: Producer, value: str) -> None:
        producer.produce(topic, value, key=b"\xff\x00", headers=[("h", None)], partition=0)
        assert producer.flush(60) == 0

    first, second = writers
    put(plain, "committed 0")
    put(first, "committed 1")
    put(second, "aborted 2")
    put(plain, "committed 3")
    second.abort_transaction(60)
    put(first, "committed 4")
    first.commit_transaction(60)
    first.begin_transaction()
    put(plain, "committed 5")
    put(first, "open 6")
    put(plain, "committed 7")

    client, where = KafkaClient(settings(kafka.bootstrap_servers)[0]), TopicPartition(topic, 0)
    try:
        found = read_excerpt(client, where, 0, 50)
        assert [m.value for m in found.messages] == [
            f'"{m.fate.value} {number}"' for number, m in enumerate(found.messages)
        ]
        assert [m.fate for m in found.messages].count(Fate.OPEN) == 1
        assert found.messages[0].headers == (("h", "null"),)
        assert found.earliest == 0
        assert found.last_stable < found.high_watermark
        assert [m.value for m in read_excerpt(client, where, -1, 50).messages] == ['"committed 7"']
        assert [m.value for m in read_excerpt(client, where, 0, 2).messages] == [
            '"committed 0"', '"committed 1"',
        ]  # fmt: skip
        assert read_excerpt(client, where, 1_000, 50).messages == ()
        with pytest.raises(OncewardError):
            read_excerpt(client, TopicPartition(f"{topic}-none", 0), 0, 1)
    finally:
        client.close()
        first.abort_transaction(60)
