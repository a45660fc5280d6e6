"""How near a pipeline's batches come to their transaction's timeout. Called by ``onceward doctor
--pipeline-id``.

Each ledger record of a Kafka transaction says for how long that had been open (``open_ms``), and
the coordinator says with which timeout the pipeline runs. It changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from onceward.cli.doctor.finding import Finding
from onceward.engine.ledger.record import LedgerRecord
from onceward.kafka.ledger.topic import LedgerTopic
from onceward.kafka.wire.client import KafkaClient
from onceward.kafka.wire.conversation import Refused, Unanswered
from onceward.kafka.wire.deadline import Deadline
from onceward.kafka.wire.transactions.coordinator import TransactionCoordinator

from onceward.errors import OncewardError
from onceward.ids import PipelineId

_NARROW = 0.5
"""From this share of the timeout on a batch twice as large, or brokers half as fast, would not get
through.
"""
_LARGER = (
    "raise transaction.timeout.ms (options= of the sink), up to the brokers' "
    "transaction.max.timeout.ms, or make "
    "batches smaller with max_offsets_per_trigger"
)


def check_slowest_batch(
    client: KafkaClient, pipeline: PipelineId, ledger_topic: str, most_ms: int | None
) -> Finding:
    """Compare the pipeline's slowest recent batch with the transaction's timeout.

    :param most_ms: the brokers' ``transaction.max.timeout.ms``; None: it may not be read.

    :raises AccessDenied, BrokerUnreachable, LedgerUnreadable: the ledger cannot be read.
    """
    recent = LedgerTopic(client, ledger_topic, pipeline).recent()
    return judged(pipeline, recent, _timeout_ms(client, pipeline), most_ms, ledger_topic)


def _timeout_ms(client: KafkaClient, pipeline: PipelineId) -> int | None:
    """Return the timeout of the pipeline's newest run (up to 1 % less than it is set to); None: it
    is not known."""
    coordinator = TransactionCoordinator(client, pipeline)
    try:
        return coordinator.describe(Deadline(client.settings.request_timeout_ms)).timeout_ms
    except (Refused, Unanswered, OncewardError):  # expired, brokers before 3.0, or not granted
        return None


def judged(
    pipeline: str,
    recent: Sequence[LedgerRecord],
    timeout_ms: int | None,
    most_ms: int | None,
    ledger_topic: str,
) -> Finding:
    """Compare the slowest of the ``recent`` batches with the timeout. Pure."""
    if not recent:
        return Finding(
            "ok", f"pipeline {pipeline} has no batch in ledger topic {ledger_topic} yet"
        )
    told = [record for record in recent if record.open_ms is not None]
    if not told:
        return Finding(
            "ok",
            f"pipeline {pipeline}: its last {len(recent)} batches in {ledger_topic} do not say "
            f"how long their "
            "transactions were open: an earlier release wrote them",
            "look again after the next batch; at INFO the sink logs each batch's time",
        )
    slowest = max(told, key=lambda record: record.open_ms or 0)
    open_ms = slowest.open_ms or 0
    brokers = "may not be read" if most_ms is None else f"is {most_ms}"
    text = (
        f"pipeline {pipeline}: of its last {len(told)} batches the slowest, batch "
        f"{slowest.batch.batch_id}, had its "
        f"transaction open for {open_ms} ms"
    )
    theirs = f"the brokers' transaction.max.timeout.ms {brokers}"
    if not timeout_ms:
        return Finding(
            "ok",
            f"{text}; the coordinator does not say with which transaction.timeout.ms it runs; "
            f"{theirs}",
        )
    share = open_ms / timeout_ms
    text += (
        f", {share:.0%} of the {timeout_ms} ms that it asked for (transaction.timeout.ms): room "
        f"for "
        f"{timeout_ms - open_ms} ms; {theirs}"
    )
    return Finding("warn", text, _LARGER) if share >= _NARROW else Finding("ok", text)
