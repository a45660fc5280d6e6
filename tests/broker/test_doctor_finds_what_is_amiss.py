"""``onceward doctor`` on real brokers: what is well, what is not, and the exit status."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from onceward.cli import app
from onceward.cli.doctor.checks import check_brokers
from onceward.cli.doctor.kinds import CheckResult
from onceward.ids import TopicPartition
from onceward.kafka.ledger.reader import LedgerTopicReader
from onceward.kafka.ledger.topic import LedgerTopic
from onceward.kafka.wire.client import KafkaClient
from onceward.kafka.wire.transactions.transaction import Transaction
from onceward_testing import LocalKafka
from onceward_testing.free_ports import free_ports
from support.ledger_driver import Driver
from support.wire_fixtures import settings


def findings(
    servers: str, *, topics: list[str], ledger: str, config: Path | None = None
) -> dict[str, CheckResult]:
    """By their first words, and their kind."""
    return {
        " ".join([*f.what.split()[:3], f.kind]).strip(): f
        for f in check_brokers(servers, config, topics, topics, ledger)
    }


def test_a_sound_cluster(
    any_kafka: LocalKafka, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    servers = any_kafka.bootstrap_servers
    output = new_topic(servers, 3)
    ledger = new_topic(servers, prefix="ledger", cleanup_policy="compact")
    config = tmp_path / "client.properties"
    config.write_text("# a client\nsecurity.protocol = PLAINTEXT\n\n")
    found = findings(servers, topics=[output], ledger=ledger, config=config)
    assert {finding.status for finding in found.values()} == {
        "ok",
        "warn",
    }  # one broker is one replica
    version = 2 if any_kafka.version.startswith("4") else 1
    assert any(f"transaction version {version}" in finding.what for finding in found.values())
    assert found[f"source topic {output},"].what.endswith("3 partitions")
    assert "replication.factor=1" in found[f"output topic {output}: output-replication"].what


def test_the_slowest_of_the_last_batches_is_named(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time that is noted is that of the transaction, and aborted attempts do not count."""
    target = driver.new()
    target.open(driver.running(0))
    for number, open_ms in enumerate((10, 500_000, 20)):
        monkeypatch.setattr(Transaction, "open_for_ms", property(lambda _, ms=open_ms: float(ms)))
        driver.commit(target, number)
    monkeypatch.setattr(Transaction, "open_for_ms", property(lambda _: 800_000.0))
    driver.stage(target, 3).abort()
    every = check_brokers(driver.bootstrap, None, [], [], driver.ledger_topic, driver.name)
    (found,) = [finding for finding in every if driver.name in finding.what]
    assert found.status == "warn", found
    assert (
        "of its last 3 batches the slowest, batch 1, had its transaction open for 500000 ms"
        in found.what
    )
    assert "transaction.max.timeout.ms is 900000" in found.what


def test_a_batch_notes_for_how_long_its_transaction_was_open(driver: Driver) -> None:
    target = driver.new()
    target.open(driver.running(0))
    attempt = target.begin(None, driver.running(0))
    target.run.chain.transaction.add_partitions([TopicPartition(driver.topic, 0)])
    began = time.monotonic()
    while time.monotonic() - began < 0.05:  # for a number above 0
        pass
    attempt.stage(driver.record(0, attempt.id), driver.running(0))
    attempt.commit()
    client = KafkaClient(settings(driver.bootstrap)[0])
    ledger = LedgerTopic(client, driver.ledger_topic, driver.name)
    assert (
        ledger.newest() is not None
    )  # waits for the markers, which the coordinator writes after its answer
    (record,) = LedgerTopicReader(client, driver.ledger_topic).recent(
        driver.name
    )  # waits for nothing
    assert record.open_ms >= 50
    assert record == attempt.record, "it says nothing about which batch it was"


def test_what_is_amiss_is_named_with_a_next_step(
    kafka: LocalKafka, new_topic: Callable[..., str]
) -> None:
    servers = kafka.bootstrap_servers
    forgetful = new_topic(servers, prefix="ledger", cleanup_policy="delete")
    found = findings(servers, topics=["doctor-no-such-topic"], ledger=forgetful)
    failed = [finding for finding in found.values() if finding.status == "fail"]
    assert all(finding.next_step for finding in failed)
    assert {
        "doctor-no-such-topic" in f.what or "cleanup.policy=delete" in f.what for f in failed
    } == {True}
    assert len(failed) >= 2


@pytest.mark.lengthy("ci")
def test_the_exit_status_is_that_of_the_worst(kafka: LocalKafka) -> None:
    sound = CliRunner().invoke(app, ["doctor", "--bootstrap-servers", kafka.bootstrap_servers])
    assert sound.exit_code == 0, sound.output
    (port,) = free_ports(1)
    unreachable = CliRunner().invoke(app, ["doctor", "--bootstrap-servers", f"127.0.0.1:{port}"])
    assert unreachable.exit_code == 69
    assert "bootstrap.servers" in unreachable.output


def test_a_secret_in_a_broken_configuration_file_is_not_shown(tmp_path: Path) -> None:
    config = tmp_path / "client.properties"
    config.write_text("the-canary\n")
    result = CliRunner().invoke(
        app, ["doctor", "--bootstrap-servers", "b:1", "--command-config", str(config)]
    )
    assert result.exit_code == 64
    assert "line 1" in result.output
    assert "canary" not in result.output
    with pytest.raises(Exception, match="no file"):
        check_brokers("b:1", tmp_path / "none", [], [], "l")
