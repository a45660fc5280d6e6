"""Words about transactional ids."""

from __future__ import annotations

from typing import Any

from kafka.protocol.admin import DescribeTransactionsRequest
from kafka.protocol.producer import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)

from onceward.ids import ProducerIdentity
from simulation.model_check.asking import NOBODY, PASSING, SETTLED, TIMEOUT_MS, Asking


class TransactionWords(Asking):
    """Of each what is asked; of the answer what can be compared."""

    def settled(self, name: str) -> None:
        """Every marker of the id's last transaction is written."""
        for _ in range(300):
            state = self._described(name)
            if state[0] == 0 and state[1] in SETTLED:
                return
            if state[0] == 105:
                return
            self.side.pause(20)
        raise AssertionError(f"{name} is still {state}")

    def timed_out(self, name: str) -> None:
        """The transaction timeout has passed, and the coordinator has done what it does about
        it.
        """
        for _ in range(600):
            if self._described(name)[1] != "Ongoing":
                self.settled(name)
                return
            self.side.pause(50)
        raise AssertionError(f"{name} does not time out")

    def init(
        self,
        name: str,
        expected: ProducerIdentity = NOBODY,
        timeout_ms: int = TIMEOUT_MS,
        *,
        retry: bool = False,
        quiet: bool = False,
    ) -> ProducerIdentity:
        """``InitProducerId``. ``retry``: again while it is answered CONCURRENT_TRANSACTIONS, as
        clients do.
        """
        request = InitProducerIdRequest(
            transactional_id=self.real(name),
            transaction_timeout_ms=timeout_ms,
            producer_id=expected.producer_id,
            producer_epoch=expected.epoch,
            min_version=3,
            max_version=5,
        )
        passing = PASSING | {51} if retry else PASSING
        answer = self._ask(
            request, ("coordinator", self.real(name)), lambda a: [a.error_code], passing
        )
        if not quiet:
            self.say(
                "init",
                name,
                answer.error_code,
                self.producer(answer.producer_id),
                answer.producer_epoch,
            )
        return ProducerIdentity(answer.producer_id, answer.producer_epoch)

    def idempotent(self) -> ProducerIdentity:
        """A producer id without transactions."""
        request = InitProducerIdRequest(
            transactional_id=None, transaction_timeout_ms=2**31 - 1, min_version=0, max_version=5
        )
        answer = self._ask(request, ("any", None), lambda a: [a.error_code])
        self.say(
            "idempotent",
            answer.error_code,
            self.producer(answer.producer_id),
            answer.producer_epoch,
        )
        return ProducerIdentity(answer.producer_id, answer.producer_epoch)

    def join(self, name: str, who: ProducerIdentity, *partitions: tuple[str, int]) -> None:
        """Whatever the cluster's own protocol needs before the first records."""
        if self.side.transaction_version == 1:
            self.add(name, who, *partitions)

    def join_group(self, name: str, who: ProducerIdentity, group: str) -> None:
        if self.side.transaction_version == 1:
            self.add_offsets(name, who, group)

    def add(self, name: str, who: ProducerIdentity, *partitions: tuple[str, int]) -> None:
        kind = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.real(name),
            v3_and_below_producer_id=who.producer_id,
            v3_and_below_producer_epoch=who.epoch,
            v3_and_below_topics=[
                kind(name=self.real(topic), partitions=[partition])
                for topic, partition in sorted(partitions)
            ],
            max_version=3,
        )

        def codes(answer: Any) -> list[int]:
            return [
                p.partition_error_code
                for t in answer.results_by_topic_v3_and_below
                for p in t.results_by_partition
            ]

        answer = self._ask(request, ("coordinator", self.real(name)), codes, PASSING - {3})
        self.say("add", name, sorted(codes(answer)))

    def add_offsets(self, name: str, who: ProducerIdentity, group: str) -> None:
        request = AddOffsetsToTxnRequest(
            transactional_id=self.real(name),
            producer_id=who.producer_id,
            producer_epoch=who.epoch,
            group_id=self.real(group),
            max_version=4,
        )
        answer = self._ask(request, ("coordinator", self.real(name)), lambda a: [a.error_code])
        self.say("add offsets", name, answer.error_code)

    def commit_offsets(
        self,
        name: str,
        who: ProducerIdentity,
        group: str,
        offsets: dict[tuple[str, int], int],
        *,
        note: str = "",
        version: int | None = None,
    ) -> None:
        kind = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
        wanted = version or (5 if self.side.transaction_version == 2 else 4)
        request = TxnOffsetCommitRequest(
            transactional_id=self.real(name),
            group_id=self.real(group) if group else "",
            producer_id=who.producer_id,
            producer_epoch=who.epoch,
            generation_id=-1,
            member_id="",
            group_instance_id=None,
            topics=[
                kind(
                    name=self.real(topic),
                    partitions=[
                        kind.TxnOffsetCommitRequestPartition(
                            partition_index=partition,
                            committed_offset=offset,
                            committed_leader_epoch=-1,
                            committed_metadata=note,
                        )
                    ],
                )
                for (topic, partition), offset in sorted(offsets.items())
            ],
            min_version=wanted,
            max_version=wanted,
        )

        def codes(answer: Any) -> list[int]:
            return [p.error_code for t in answer.topics for p in t.partitions]

        answer = self._ask(request, ("group", request.group_id), codes, PASSING - {3})
        self.say("commit offsets", name, sorted(codes(answer)))

    def end(
        self,
        name: str,
        who: ProducerIdentity,
        commit: bool,
        *,
        version: int | None = None,
        retry: bool = False,
        quiet: bool = False,
    ) -> ProducerIdentity:
        """``EndTxn``, and the identity to go on with."""
        wanted = version or (5 if self.side.transaction_version == 2 else 4)
        request = EndTxnRequest(
            transactional_id=self.real(name),
            producer_id=who.producer_id,
            producer_epoch=who.epoch,
            committed=commit,
            min_version=wanted,
            max_version=wanted,
        )
        passing = PASSING | {51} if retry else PASSING
        answer = self._ask(
            request, ("coordinator", self.real(name)), lambda a: [a.error_code], passing
        )
        word = "commit" if commit else "abort"
        if wanted < 5:
            self.say(word, name, answer.error_code)
            return who
        if not quiet:
            self.say(
                word,
                name,
                answer.error_code,
                self.producer(answer.producer_id),
                answer.producer_epoch,
            )
        return (
            ProducerIdentity(answer.producer_id, answer.producer_epoch)
            if answer.error_code == 0
            else who
        )

    def describe(self, name: str) -> None:
        """``DescribeTransactions``: state, identity and timeout."""
        code, state, producer, epoch, timeout_ms = self._described(name)
        self.say(
            "describe",
            name,
            code,
            state,
            self.producer(producer) if code == 0 else "",
            epoch,
            timeout_ms,
        )

    def describe_soon(self, name: str) -> None:
        """After the coordinator has had time to write all markers that it can."""
        self.side.pause(1_000)
        self.describe(name)

    def _described(self, name: str) -> tuple[int, str, int, int, int]:
        request = DescribeTransactionsRequest(transactional_ids=[self.real(name)])
        answer = self._ask(
            request,
            ("coordinator", self.real(name)),
            lambda a: [s.error_code for s in a.transaction_states],
        )
        found = answer.transaction_states[0]
        if found.error_code:
            return found.error_code, "", -1, -1, 0
        return (
            0,
            found.transaction_state,
            found.producer_id,
            found.producer_epoch,
            found.transaction_timeout_ms,
        )
