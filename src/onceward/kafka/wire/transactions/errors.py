"""Errors of a transaction, with the settings that they depend on. Called by :mod:`transaction`,
and by the sink for a transaction whose time is over.
"""

from __future__ import annotations

from onceward import patience
from onceward.errors import (
    AccessDenied,
    BatchFailed,
    Fenced,
    OncewardError,
    TransactionTimedOut,
    TransactionTimeoutTooLarge,
)
from onceward.ids import ProducerIdentity
from onceward.kafka.wire.client import KafkaClient
from onceward.kafka.wire.transactions.fencing import Fencing

# For what an error would like to say, and can do without
_MOMENT_MS = 5_000

LONGER_OR_SMALLER = (
    "raise transaction.timeout.ms (options= of the sink), up to the brokers' "
    "transaction.max.timeout.ms: this batch stands in Spark's log and keeps its size; "
    "max_offsets_per_trigger makes later ones smaller"
)
"""The next step for a batch that is too large for its transaction."""


def taken_over(
    transactional_id: str,
    identity: ProducerIdentity,
    cause: BaseException,
    *,
    perhaps_by_ourselves: bool,
) -> Fenced:
    """Return the error of an identity that a newer owner has replaced; ``perhaps_by_ourselves``: a
    late request of our own start, which nobody can tell from a newer copy."""
    alone = "; if no other copy was started, start this one again" if perhaps_by_ourselves else ""
    return Fenced(
        f"a newer copy of pipeline {transactional_id} has taken over from {identity} ({cause})",
        next_step="leave this copy stopped; if two are running by mistake, give one another "
        f"pipeline_id{alone}",
        details=_ids(transactional_id, identity),
    )


def timed_out(
    transactional_id: str,
    identity: ProducerIdentity,
    client: KafkaClient,
    timeout_ms: int,
    open_for_ms: float,
    *,
    by_an_older_copy: bool,
) -> TransactionTimedOut:
    """Return the error of a transaction that the coordinator has aborted, ``by_an_older_copy`` if
    it was too young for its timeout; asks a broker."""
    cause, advice = both_limits(client, timeout_ms), LONGER_OR_SMALLER
    if by_an_older_copy:
        cause = "at the request of an older copy of this pipeline"
        advice = "look for a copy that should not be running"
    return TransactionTimedOut(
        f"the coordinator aborted {identity} of {transactional_id}, which had been open for "
        f"{open_for_ms:.0f} ms ({cause})",
        next_step=f"the batch runs again; if it repeats, {advice}",
        details={
            "transactional_id": transactional_id,
            "transaction.timeout.ms": timeout_ms,
            "open_for_ms": round(open_for_ms),
        },
    )


def refused_early(
    transactional_id: str,
    identity: ProducerIdentity,
    timeout_ms: int,
    refusal: OncewardError,
    why: Fencing,
) -> BatchFailed:
    """Return the error of an identity that was refused while it is not known who holds the id."""
    return BatchFailed(
        f"{identity} of {transactional_id} was refused before transaction.timeout.ms={timeout_ms} "
        f"was over, and whether a newer copy has taken over is not known: {why.value} "
        f"({refusal.message})",
        next_step="the batch runs again, and is refused for good if a newer copy has taken over; "
        "if it repeats, see that the brokers answer, the transaction coordinator most of all",
        details=_ids(transactional_id, identity),
    )


def timeout_too_large(client: KafkaClient, timeout_ms: int) -> TransactionTimeoutTooLarge:
    """Return the error of a timeout that the brokers do not allow; asks a broker."""
    limit, theirs = brokers_limit(client)
    return TransactionTimeoutTooLarge(
        f"transaction.timeout.ms={timeout_ms} is above the brokers' {theirs}",
        next_step="lower transaction.timeout.ms (options= of the "
        f"sink){f' to at most {limit}' if limit else ''}, or raise transaction.max.timeout.ms on "
        "the brokers; no transaction was begun, so that nothing has to be undone",
    )


def both_limits(client: KafkaClient, timeout_ms: int) -> str:
    """Return the sink's limit and the brokers', up to which it may be raised; asks a broker."""
    return f"transaction.timeout.ms={timeout_ms}; the brokers' {brokers_limit(client)[1]}"


def brokers_limit(client: KafkaClient) -> tuple[str | None, str]:
    """Ask a broker for ``transaction.max.timeout.ms``; return it, if known, and a text of it."""
    name = "transaction.max.timeout.ms"
    try:
        with patience.within(_MOMENT_MS):
            limit = client.broker_config(timeout_ms=_MOMENT_MS).get(name)
    except AccessDenied:
        return None, f"{name}, which may not be read (DescribeConfigs on the cluster)"
    except OncewardError:
        return None, f"{name}, which no broker has told in time"
    return limit, f"{name}={limit}"


def _ids(transactional_id: str, identity: ProducerIdentity) -> dict[str, object]:
    return {"transactional_id": transactional_id, "identity": list(identity)}
