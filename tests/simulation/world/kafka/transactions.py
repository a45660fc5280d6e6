"""A transactional id as its coordinator knows it, and what becomes of each request about it. Pure.

Sources: ``TransactionMetadata`` and ``TransactionCoordinator`` (``prepareInitProducerIdTransit``,
``handleAddPartitionsToTransaction``, ``handleVerifyPartitionsInTransaction``, ``endTransaction``,
``endTransactionWithTV1``) of 3.9.1 and 4.3.1; KIP-98, KIP-360, KIP-890.

A decision is an error code, or the next :class:`Facts`, which have to be in the log before they
are true. Until then the id is *pending*, and refuses with CONCURRENT_TRANSACTIONS.
"""

from __future__ import annotations

from collections.abc import Callable

EMPTY, ONGOING, PREPARE_COMMIT, PREPARE_ABORT = "Empty", "Ongoing", "PrepareCommit", "PrepareAbort"
COMPLETE_COMMIT, COMPLETE_ABORT, FENCE, DEAD = (
    "CompleteCommit",
    "CompleteAbort",
    "PrepareEpochFence",
    "Dead",
)

UNKNOWN_SERVER_ERROR = -1
INVALID_TXN_STATE, INVALID_MAPPING, CONCURRENT, FENCED, ABORTABLE = 48, 49, 51, 90, 120
LAST_EPOCH = 32_767
NOBODY = -1

Where = tuple[str, int]


class Facts:
    """What stands in the log about an id. Not changed once they are handed out: a transition makes
    the next ones.
    """

    __slots__ = (
        "client_version", "epoch", "last_epoch", "next_producer", "partitions",
        "previous_producer", "producer",
        "started_ms", "state", "timeout_ms", "updated_ms",
    )  # fmt: skip

    def __init__(self, state: str, before: Facts | None) -> None:
        self.state = state
        if before is not None:
            self.producer = self.previous_producer = before.producer
            self.next_producer = before.next_producer
            self.epoch = before.epoch
            self.last_epoch = before.last_epoch
            self.timeout_ms = before.timeout_ms
            self.partitions = before.partitions
            self.started_ms = before.started_ms
            self.updated_ms = before.updated_ms
            self.client_version = before.client_version
        else:
            self.producer = self.previous_producer = self.next_producer = NOBODY
            self.epoch = self.last_epoch = self.started_ms = self.updated_ms = -1
            self.timeout_ms = self.client_version = 0
            self.partitions: dict[Where, None] = {}

    @property
    def exhausted(self) -> bool:
        """``isEpochExhausted``: the last epoch is kept for fencing."""
        return self.epoch >= LAST_EPOCH - 1

    def read_back(self, version_in_log: int) -> Facts:
        """What a coordinator that has just read the log knows (``TransactionLog.read``): not the
        epoch before; and the other producer ids only from ``TransactionLogValue`` 1 on.
        """
        read = Facts(self.state, self)
        read.last_epoch = -1
        read.previous_producer = self.previous_producer if version_in_log else NOBODY
        read.next_producer = self.next_producer if version_in_log else NOBODY
        return read


class Metadata:
    """``TransactionMetadata``: the facts, and what is under way."""

    __slots__ = ("facts", "failed_fence", "markers", "name", "pending", "watched_until")

    def __init__(self, name: str, facts: Facts) -> None:
        self.name = name
        self.facts = facts
        self.pending: str | None = None
        """The state that it is about to have."""
        self.failed_fence = False
        self.markers: dict[Where, None] = {}
        """Partitions whose markers are still to be written."""
        self.watched_until = -1
        """When it is looked at next whether its transaction is overdue."""


def created(name: str, producer: int, timeout_ms: int, now_ms: int) -> Metadata:
    """An id that nobody has used yet; nothing of it is in the log."""
    facts = Facts(EMPTY, None)
    facts.producer, facts.previous_producer = producer, NOBODY
    facts.timeout_ms, facts.updated_ms = timeout_ms, now_ms
    return Metadata(name, facts)


def begin_again(
    held: Metadata,
    timeout_ms: int,
    expected: tuple[int, int] | None,
    new_producer: Callable[[], int],
    now_ms: int,
) -> int | Facts:
    """``InitProducerId``. :data:`FENCE` as the state of the answer: the open transaction has to be
    aborted first.

    :param expected: the identity that the asker believes to have (KIP-360); None: take it from
        whoever has it.
    """
    now = held.facts
    if held.pending is not None:
        return CONCURRENT
    if expected is not None and not (
        now.epoch == -1
        or expected[0] == now.producer
        or (expected[0] == now.previous_producer and expected[1] >= LAST_EPOCH - 1)
    ):
        return FENCED
    state = now.state
    if state is PREPARE_ABORT or state is PREPARE_COMMIT:
        return CONCURRENT
    if state is ONGOING:
        return fence(held)
    new = Facts(EMPTY, now)
    if now.exhausted and (expected is None or expected[1] == now.epoch):
        new.producer, new.epoch = new_producer(), 0
        new.last_epoch = now.epoch if expected is not None else -1
    elif now.exhausted:
        return (
            UNKNOWN_SERVER_ERROR  # ``prepareIncrementProducerEpoch`` throws IllegalStateException
        )
    elif expected is None:
        new.epoch, new.last_epoch = now.epoch + 1, -1
    elif now.epoch == -1 or expected[1] == now.epoch:
        new.epoch, new.last_epoch = now.epoch + 1, now.epoch
    elif expected[1] != now.last_epoch:
        return FENCED
    held.pending = EMPTY
    new.timeout_ms, new.partitions = timeout_ms, {}
    new.started_ms, new.updated_ms = -1, now_ms
    return new


def fence(held: Metadata) -> Facts:
    """``prepareFenceProducerEpoch``: the next epoch, which nobody is given, to abort with."""
    now = held.facts
    new = Facts(FENCE, now)
    if not held.failed_fence and now.epoch != LAST_EPOCH:
        new.epoch = now.epoch + 1
    held.pending = FENCE
    return new


def add(
    held: Metadata,
    producer: int,
    epoch: int,
    partitions: list[Where],
    version: int,
    now_ms: int,
    old: bool,
) -> int | Facts:
    """``AddPartitionsToTxn``, by a client (version 0) or for it by a partition's leader (2); 0:
    they are in already.

    4.x looks first whether a transition is pending, 3.9 whose the id is.
    """
    now = held.facts
    if held.pending is not None and not old:
        return CONCURRENT
    if now.producer != producer:
        return INVALID_MAPPING
    if now.epoch != epoch:
        return FENCED
    state = now.state
    if held.pending is not None or state is PREPARE_COMMIT or state is PREPARE_ABORT:
        return CONCURRENT
    known = now.partitions
    if state is ONGOING:
        for partition in partitions:
            if partition not in known:
                break
        else:
            return 0
    new = Facts(ONGOING, now)
    new.partitions = added = known.copy()
    for partition in partitions:
        added[partition] = None
    if state is not ONGOING:
        new.started_ms = now_ms
    new.updated_ms = now_ms
    new.client_version = version
    held.pending = ONGOING
    return new


def verify(held: Metadata, producer: int, epoch: int) -> int:
    """Of a leader that asks whether a partition takes part (KIP-890, part 1): 0 if the question
    makes sense.
    """
    now = held.facts
    if now.producer != producer:
        return INVALID_MAPPING
    if now.epoch != epoch:
        return FENCED
    return CONCURRENT if now.state is PREPARE_COMMIT or now.state is PREPARE_ABORT else 0


def end_v1(
    held: Metadata, producer: int, epoch: int, commit: bool, client: bool, now_ms: int
) -> int | Facts:
    """``EndTxn`` up to version 4, or the coordinator's own abort where the cluster has transaction
    version 1.
    """
    now = held.facts
    if now.producer != producer:
        return INVALID_MAPPING
    if (client and epoch != now.epoch) or epoch < now.epoch:
        return FENCED
    if held.pending is not None and held.pending is not FENCE:
        return CONCURRENT
    state = now.state
    if state is ONGOING:
        if not commit and held.pending is FENCE:
            held.facts = raised = Facts(state, now)
            raised.previous_producer, raised.epoch, raised.last_epoch = (
                now.previous_producer,
                epoch,
                -1,
            )
        return _ending(held, commit, 0, NOBODY, now_ms)
    if state is (COMPLETE_COMMIT if commit else COMPLETE_ABORT):
        return 0
    if state is (PREPARE_COMMIT if commit else PREPARE_ABORT):
        return CONCURRENT
    return INVALID_TXN_STATE


def end_v2(
    held: Metadata,
    producer: int,
    epoch: int,
    commit: bool,
    client: bool,
    new_producer: Callable[[], int],
    now_ms: int,
) -> int | Facts:
    """``EndTxn`` version 5, whose answer is the next epoch: 0 means that an earlier request has
    done it (KIP-890).

    The table in ``TransactionCoordinator``: a repetition comes under the epoch before the current
    one. An abort is taken where nothing is open, too, and then there is a transaction of no
    partition.
    """
    now = held.facts
    fencing = held.pending is FENCE
    if held.pending is not None and not fencing:
        return CONCURRENT
    bumped = overflown = False
    if not fencing:
        overflown = (
            now.previous_producer == producer and epoch == LAST_EPOCH - 1 and now.epoch == 0
        )
        bumped = now.epoch == epoch + 1
    if now.producer != producer and not overflown:
        return INVALID_MAPPING
    state = now.state
    if fencing:
        valid = (not client or epoch == now.epoch) and epoch >= now.epoch
    elif state is ONGOING or state is EMPTY:
        valid = epoch == now.epoch
    elif state is PREPARE_COMMIT or state is PREPARE_ABORT:
        valid = bumped
    else:
        valid = bumped or overflown or epoch == now.epoch
    if not valid:
        return FENCED
    if state is ONGOING:
        return _ending(held, commit, 2, new_producer() if now.exhausted else NOBODY, now_ms)
    if state is PREPARE_COMMIT or state is PREPARE_ABORT:
        return (
            CONCURRENT
            if state is (PREPARE_COMMIT if commit else PREPARE_ABORT)
            else INVALID_TXN_STATE
        )
    if (bumped or overflown) and state is not EMPTY:
        return 0 if state is (COMPLETE_COMMIT if commit else COMPLETE_ABORT) else INVALID_TXN_STATE
    if commit:
        return INVALID_TXN_STATE
    new = _ending(held, False, 2, new_producer() if now.exhausted else NOBODY, now_ms)
    new.started_ms = now_ms
    return new


def _ending(held: Metadata, commit: bool, version: int, next_producer: int, now_ms: int) -> Facts:
    """``prepareAbortOrCommit``."""
    now = held.facts
    new = Facts(PREPARE_COMMIT if commit else PREPARE_ABORT, now)
    if version >= 2:
        if not (now.epoch == LAST_EPOCH and not commit):
            new.epoch = now.epoch + 1
        new.last_epoch = now.epoch
    new.next_producer = next_producer
    new.updated_ms = now_ms
    new.client_version = version
    held.pending = new.state
    return new


def completed(held: Metadata, now_ms: int) -> Facts:
    """``prepareComplete``: to be logged when all markers are written."""
    now = held.facts
    held.failed_fence = False
    new = Facts(COMPLETE_COMMIT if now.state is PREPARE_COMMIT else COMPLETE_ABORT, now)
    if now.client_version >= 2 and now.next_producer != NOBODY:
        new.producer, new.epoch = now.next_producer, 0
    new.next_producer = NOBODY
    new.partitions = {}
    new.updated_ms = now_ms
    held.pending = new.state
    return new
