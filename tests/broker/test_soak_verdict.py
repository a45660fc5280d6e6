"""The soak's feeder keeps exact account, and its verdict sees what is missing, repeated, changed
and out of order.
"""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from onceward_testing import LocalKafka
from onceward_testing.topic_reader import end_offsets
from soak.contents import check_copies, check_counts, check_source
from soak.feeder import Feeder, FeederSettings
from soak.findings import Findings
from soak.workload import (
    COPIES,
    COUNTS,
    OUTPUT_PARTITIONS,
    SOURCE,
    SOURCE_PARTITIONS,
    key_index,
    key_of,
    value_of,
)


@pytest.fixture(scope="module")
def servers(kafka: LocalKafka) -> str:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    wanted = {SOURCE: SOURCE_PARTITIONS, **OUTPUT_PARTITIONS}
    for made in admin.create_topics(
        [NewTopic(topic, count) for topic, count in wanted.items()]
    ).values():
        made.result(60)
    for topic in wanted:
        wait_until_it_is_led(kafka.bootstrap_servers, topic)
    return kafka.bootstrap_servers


def wait_until_it_is_led(servers: str, topic: str) -> None:
    deadline = time.monotonic() + 60
    while not is_led(servers, topic):
        assert time.monotonic() < deadline, f"{topic} has no leaders"
        time.sleep(0.1)


def is_led(servers: str, topic: str) -> bool:
    try:
        return bool(end_offsets(servers, topic, "read_committed"))
    except KafkaException:
        return False


@pytest.fixture(scope="module")
def account(servers: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two lives of the feeder, one after the other."""
    path = tmp_path_factory.mktemp("feeder") / "account.json"
    for _ in range(2):
        told: list[bool] = []
        threading.Timer(1.0, lambda told=told: told.append(True)).start()
        Feeder(FeederSettings(servers, 400, str(path))).run(told)
    return path


@pytest.fixture(scope="module")
def numbers(servers: str, account: Path) -> list[np.ndarray]:
    found = Findings()
    numbers = check_source(found, servers, account)
    assert found.holds, found.violations
    assert [len(part) for part in numbers] == json.loads(account.read_text())["acknowledged"]
    assert min(map(len, numbers)) > 30
    return numbers


def written(servers: str, topic: str, records: list[tuple[bytes | None, bytes]]) -> None:
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True})
    for key, value in records:
        producer.produce(topic, value, key, partition=0)
    assert producer.flush(60) == 0


def test_acknowledged_records_that_are_gone_are_found(servers: str, account: Path, tmp_path: Path):
    boasting = tmp_path / "account.json"
    boasting.write_text(json.dumps({"acknowledged": [10_000_000] * SOURCE_PARTITIONS}))
    found = Findings()
    check_source(found, servers, boasting)
    assert found.how_many["input"] == SOURCE_PARTITIONS


def test_copies_that_are_missing_repeated_changed_or_out_of_order_are_found(
    servers: str, numbers: list[np.ndarray]
):
    def copy(partition: int, offset: int, number: int | None = None) -> tuple[bytes | None, bytes]:
        number = offset if number is None else number
        return key_of(number), b"%d:%d:%s" % (partition, offset, value_of(partition, number))

    everything = [copy(p, offset) for p, part in enumerate(numbers) for offset in range(len(part))]
    written(servers, COPIES, everything)
    good = Findings()
    visible = check_copies(good, servers, COPIES, numbers, in_order=True)
    assert good.holds, good.violations
    assert (
        good.facts["records out"]
        == len(everything)
        == sum(int(part.sum()) for part in visible.values())
    )

    written(servers, COPIES, [copy(2, 7), copy(3, 3, number=4), copy(9, 1)])
    more = [np.append(part, len(part)) for part in numbers]  # a record that nobody copied
    bad = Findings()
    check_copies(bad, servers, COPIES, more, in_order=True)
    assert bad.how_many["I1"] == SOURCE_PARTITIONS + 1, bad.violations
    assert bad.how_many["I2"] == 3, bad.violations
    assert bad.how_many["I3"] == 2, bad.violations


def test_a_count_that_is_wrong_is_found(servers: str, numbers: list[np.ndarray]):
    half, whole = ({str(p): len(part) // n for p, part in enumerate(numbers)} for n in (2, 1))
    none = dict.fromkeys(half, 0)
    ledger: list[dict[str, Any]] = [
        {"sources": [{"start": {SOURCE: start}, "end": {SOURCE: end}}]}
        for start, end in ((none, half), (half, whole))
    ]
    totals: dict[int, int] = {}
    emitted = []
    for start, end in ((none, half), (half, whole)):
        batch = [
            key_index(n)
            for p, part in enumerate(numbers)
            for n in part[start[str(p)] : end[str(p)]]
        ]
        for key in sorted({key for key in batch if key >= 0}):
            totals[key] = totals.get(key, 0) + batch.count(key)
            emitted.append((b"key-%d" % key, b"%d" % totals[key]))
    written(servers, COUNTS, emitted[1:])
    found = Findings()
    check_counts(found, servers, numbers, ledger)
    assert found.how_many == {"I9": 1}, "the first is missing"
    written(servers, COUNTS, [*emitted[:1], (b"key-0", b"99999")])
    found = Findings()
    check_counts(found, servers, numbers, ledger)
    assert found.how_many == {"I9": 1}, "one should not be there"
