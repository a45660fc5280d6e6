"""The contract over Kafka transactions, in both versions of their protocol (KIP-890)."""

from __future__ import annotations

from typing import Any

import pytest
from kafka_kit import KafkaKit

from onceward.errors import Fenced, OncewardError
from onceward_testing import LocalKafka
from onceward_testing.sink_contract import Process, SinkContract, assert_holds


class KafkaContract(SinkContract):
    """What a transaction owes besides."""

    @pytest.mark.parametrize("carried_out", [True, False])
    @pytest.mark.parametrize("settled", [True, False], ids=["settled", "not settled"])
    def test_an_abort_without_an_answer_is_no_obstacle(
        self, kit: KafkaKit, carried_out: bool, settled: bool
    ):
        """A commit was never sent, so there is no doubt: the next attempt may begin, settled or
        not.
        """
        process = Process(kit).open()
        process.commit(["first"])
        process.stage(kit.frame(["aborted"]))
        with kit.unanswered(process.target, carried_out=carried_out), pytest.raises(OncewardError):
            process.attempt.abort()
        if settled:
            assert process.target.settle() == process.newest
        process.commit(["second"])
        assert_holds(kit, ["first", "second"], 1)

    def test_a_zombie_stays_fenced(self, kit: KafkaKit):
        zombie = Process(kit).open()
        zombie.write(kit.frame(["zombie"]))
        Process(kit).open()
        for _ in range(2):
            with pytest.raises(Fenced):
                zombie.attempt.abort()


class TestTransactionsV2(KafkaContract):
    """Kafka 4.3.1."""

    @pytest.fixture
    def kit(self, spark: Any, kafka: LocalKafka, new_topic: Any, read_committed: Any) -> KafkaKit:
        return KafkaKit(spark, kafka, new_topic, read_committed)


class TestTransactionsV1(KafkaContract):
    """Kafka 3.9.1."""

    @pytest.fixture
    def kit(
        self, spark: Any, kafka39: LocalKafka, new_topic: Any, read_committed: Any
    ) -> KafkaKit:
        return KafkaKit(spark, kafka39, new_topic, read_committed)
