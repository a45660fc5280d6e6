"""A transactional id as its coordinator knows it, and what becomes of each request about it. Pure.

Sources: ``TransactionMetadata`` and ``TransactionCoordinator`` (``prepareInitProducerIdTransit``,
``handleAddPartitionsToTransaction``, ``handleVerifyPartitionsInTransaction``, ``endTransaction``,
``endTransactionWithTV1``) of 3.9.1 and 4.3.1; KIP-98, KIP-360, KIP-890.

A decision is an error code, or a :class:`Transit` that has to be in the log before it is true. Until then the id is
*pending*, and refuses with CONCURRENT_TRANSACTIONS.
"""

from __future__ import annotations

from collections.abc import Callable

EMPTY, ONGOING, PREPARE_COMMIT, PREPARE_ABORT = "Empty", "Ongoing", "PrepareCommit", "PrepareAbort"
COMPLETE_COMMIT, COMPLETE_ABORT, FENCE, DEAD = "CompleteCommit", "CompleteAbort", "PrepareEpochFence", "Dead"

UNKNOWN_SERVER_ERROR = -1
INVALID_TXN_STATE, INVALID_MAPPING, CONCURRENT, FENCED, ABORTABLE = 48, 49, 51, 90, 120
LAST_EPOCH = 32_767
NOBODY = -1

Where = tuple[str, int]


class Transit:
    """What an id is about to become. ``partitions`` is not changed after it has been made."""

    __slots__ = (
        "client_version", "epoch", "last_epoch", "next_producer", "partitions", "previous_producer", "producer",
        "started_ms", "state", "timeout_ms", "updated_ms",
    )  # fmt: skip

    def __init__(self, state: str, now: Metadata) -> None:
        self.state = state
        self.producer = now.producer
        self.previous_producer = now.producer
        self.next_producer = now.next_producer
        self.epoch = now.epoch
        self.last_epoch = now.last_epoch
        self.timeout_ms = now.timeout_ms
        self.partitions = now.partitions
        self.started_ms = now.started_ms
        self.updated_ms = now.updated_ms
        self.client_version = now.client_version


class Metadata:
    """``TransactionMetadata``. ``last_epoch`` is not in the log (``TransactionLogValue``): it dies with its holder."""

    __slots__ = (
        "client_version", "epoch", "failed_fence", "last_epoch", "markers", "name", "next_producer", "partitions",
        "pending", "previous_producer", "producer", "started_ms", "state", "timeout_ms", "updated_ms",
        "watched_until",
    )  # fmt: skip

    def __init__(self, name: str, producer: int, timeout_ms: int, now_ms: int) -> None:
        self.name = name
        self.producer = producer
        self.previous_producer = self.next_producer = NOBODY
        self.epoch = self.last_epoch = -1
        self.timeout_ms = timeout_ms
        self.state = EMPTY
        self.partitions: dict[Where, None] = {}
        self.started_ms = -1
        self.updated_ms = now_ms
        self.client_version = 0
        self.pending: str | None = None
        self.failed_fence = False
        self.markers: dict[Where, None] = {}
        """Partitions whose markers are still to be written."""
        self.watched_until = -1
        """When it is looked at next whether its transaction is overdue."""

    def complete(self, transit: Transit) -> None:
        """``completeTransitionTo``: the log has it."""
        self.state = transit.state
        self.producer = transit.producer
        self.previous_producer = transit.previous_producer
        self.next_producer = transit.next_producer
        self.epoch = transit.epoch
        self.last_epoch = transit.last_epoch
        self.timeout_ms = transit.timeout_ms
        self.partitions = transit.partitions
        self.started_ms = transit.started_ms
        self.updated_ms = transit.updated_ms
        self.client_version = transit.client_version
        self.pending = None

    def take(self, transit: Transit, version_in_log: int) -> None:
        """What a coordinator that has just read the log knows (``TransactionLog.read``)."""
        self.complete(transit)
        self.last_epoch = -1
        if version_in_log < 1:  # ``TransactionLogValue`` 0 does not tell them
            self.previous_producer = self.next_producer = NOBODY
        self.markers = {}

    @property
    def exhausted(self) -> bool:
        """``isEpochExhausted``: the last epoch is kept for fencing."""
        return self.epoch >= LAST_EPOCH - 1


def begin_again(
    now: Metadata, timeout_ms: int, expected: tuple[int, int] | None, new_producer: Callable[[], int], now_ms: int
) -> int | Transit:
    """``InitProducerId``. :data:`FENCE` as the state of the answer: the open transaction has to be aborted first.

    :param expected: the identity that the asker believes to have (KIP-360); None: take it from whoever has it.
    """
    if now.pending is not None:
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
        return fence(now)
    transit = Transit(EMPTY, now)
    if now.exhausted and (expected is None or expected[1] == now.epoch):
        transit.producer, transit.epoch = new_producer(), 0
        transit.last_epoch = now.epoch if expected is not None else -1
    elif now.exhausted:
        return UNKNOWN_SERVER_ERROR  # ``prepareIncrementProducerEpoch`` throws IllegalStateException
    elif expected is None:
        transit.epoch, transit.last_epoch = now.epoch + 1, -1
    elif now.epoch == -1 or expected[1] == now.epoch:
        transit.epoch, transit.last_epoch = now.epoch + 1, now.epoch
    elif expected[1] != now.last_epoch:
        return FENCED
    now.pending = EMPTY
    transit.timeout_ms, transit.partitions = timeout_ms, {}
    transit.started_ms, transit.updated_ms = -1, now_ms
    return transit


def fence(now: Metadata) -> Transit:
    """``prepareFenceProducerEpoch``: the next epoch, which nobody is given, to abort with."""
    transit = Transit(FENCE, now)
    if not now.failed_fence and now.epoch != LAST_EPOCH:
        transit.epoch = now.epoch + 1
    now.pending = FENCE
    return transit


def add(
    now: Metadata, producer: int, epoch: int, partitions: list[Where], version: int, now_ms: int, old: bool
) -> int | Transit:
    """``AddPartitionsToTxn``, by a client (version 0) or for it by a partition's leader (2); 0: they are in already.

    4.x looks first whether a transition is pending, 3.9 whose the id is.
    """
    if now.pending is not None and not old:
        return CONCURRENT
    if now.producer != producer:
        return INVALID_MAPPING
    if now.epoch != epoch:
        return FENCED
    state = now.state
    if now.pending is not None or state is PREPARE_COMMIT or state is PREPARE_ABORT:
        return CONCURRENT
    known = now.partitions
    if state is ONGOING:
        for partition in partitions:
            if partition not in known:
                break
        else:
            return 0
    transit = Transit(ONGOING, now)
    transit.partitions = {**known, **dict.fromkeys(partitions)}
    if state is not ONGOING:
        transit.started_ms = now_ms
    transit.updated_ms = now_ms
    transit.client_version = version
    now.pending = ONGOING
    return transit


def verify(now: Metadata, producer: int, epoch: int) -> int:
    """Of a leader that asks whether a partition takes part (KIP-890, part 1): 0 if the question makes sense."""
    if now.producer != producer:
        return INVALID_MAPPING
    if now.epoch != epoch:
        return FENCED
    return CONCURRENT if now.state is PREPARE_COMMIT or now.state is PREPARE_ABORT else 0


def end_v1(now: Metadata, producer: int, epoch: int, commit: bool, client: bool, now_ms: int) -> int | Transit:
    """``EndTxn`` up to version 4, or the coordinator's own abort where the cluster has transaction version 1."""
    if now.producer != producer:
        return INVALID_MAPPING
    if (client and epoch != now.epoch) or epoch < now.epoch:
        return FENCED
    if now.pending is not None and now.pending is not FENCE:
        return CONCURRENT
    state = now.state
    if state is ONGOING:
        if not commit and now.pending is FENCE:
            now.epoch, now.last_epoch = epoch, -1
        return _ending(now, commit, 0, NOBODY, now_ms)
    if state is (COMPLETE_COMMIT if commit else COMPLETE_ABORT):
        return 0
    if state is (PREPARE_COMMIT if commit else PREPARE_ABORT):
        return CONCURRENT
    return INVALID_TXN_STATE


def end_v2(
    now: Metadata, producer: int, epoch: int, commit: bool, client: bool, new_producer: Callable[[], int], now_ms: int
) -> int | Transit:
    """``EndTxn`` version 5, whose answer is the next epoch: 0 means that an earlier request has done it (KIP-890).

    The table in ``TransactionCoordinator``: a repetition comes under the epoch before the current one. An abort is taken
    where nothing is open, too, and then there is a transaction of no partition.
    """
    fencing = now.pending is FENCE
    if now.pending is not None and not fencing:
        return CONCURRENT
    bumped = overflown = False
    if not fencing:
        overflown = now.previous_producer == producer and epoch == LAST_EPOCH - 1 and now.epoch == 0
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
        return _ending(now, commit, 2, new_producer() if now.exhausted else NOBODY, now_ms)
    if state is PREPARE_COMMIT or state is PREPARE_ABORT:
        return CONCURRENT if state is (PREPARE_COMMIT if commit else PREPARE_ABORT) else INVALID_TXN_STATE
    if (bumped or overflown) and state is not EMPTY:
        return 0 if state is (COMPLETE_COMMIT if commit else COMPLETE_ABORT) else INVALID_TXN_STATE
    if commit:
        return INVALID_TXN_STATE
    transit = _ending(now, False, 2, new_producer() if now.exhausted else NOBODY, now_ms)
    transit.started_ms = now_ms
    return transit


def _ending(now: Metadata, commit: bool, version: int, next_producer: int, now_ms: int) -> Transit:
    """``prepareAbortOrCommit``."""
    transit = Transit(PREPARE_COMMIT if commit else PREPARE_ABORT, now)
    if version >= 2:
        if not (now.epoch == LAST_EPOCH and not commit):
            transit.epoch = now.epoch + 1
        transit.last_epoch = now.epoch
    transit.next_producer = next_producer
    transit.updated_ms = now_ms
    transit.client_version = version
    now.pending = transit.state
    return transit


def completed(now: Metadata, now_ms: int) -> Transit:
    """``prepareComplete``: to be logged when all markers are written."""
    now.failed_fence = False
    transit = Transit(COMPLETE_COMMIT if now.state is PREPARE_COMMIT else COMPLETE_ABORT, now)
    if now.client_version >= 2 and now.next_producer != NOBODY:
        transit.producer, transit.epoch = now.next_producer, 0
    transit.next_producer = NOBODY
    transit.partitions = {}
    transit.updated_ms = now_ms
    now.pending = transit.state
    return transit
