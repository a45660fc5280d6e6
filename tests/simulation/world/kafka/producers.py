"""What a partition remembers of the producers that wrote to it, and whom it refuses.

Sources: ``ProducerAppendInfo`` (``checkProducerEpoch``, ``checkSequence``,
``appendEndTxnMarker``), ``ProducerStateEntry`` (``NUM_BATCHES_TO_RETAIN``,
``findDuplicateBatch``), ``UnifiedLog`` (``maybeStart…Verification``,
``analyzeAndValidateProducerState``), of 3.9.1 and 4.3.1.
"""

from __future__ import annotations

OUT_OF_ORDER_SEQUENCE, INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE, COORDINATOR_FENCED = (
    45,
    47,
    48,
    52,
)
LAST_SEQUENCE = (1 << 31) - 1
RETAINED = 5
LAST_EPOCH = 32_767

APPEND = -1
"""The verdict that a batch is to be appended; others are an error code, negated below this, or a
duplicate's offset.
"""


class ProducerState:
    """One producer's entry. ``batches``: first and last sequence, first and last offset of the
    newest five.
    """

    __slots__ = ("batches", "coordinator_epoch", "epoch", "last_ms", "open_since")

    def __init__(self) -> None:
        self.epoch = -1
        self.coordinator_epoch = -1
        self.last_ms = -1
        self.open_since = -1  # offset of the first record of its open transaction
        self.batches: list[tuple[int, int, int, int]] = []

    def added(
        self, epoch: int, first: int, last: int, base: int, last_offset: int, time_ms: int
    ) -> None:
        batches = self.batches
        if self.epoch != epoch:
            batches.clear()
            self.epoch = epoch
        elif len(batches) == RETAINED:
            del batches[0]
        batches.append((first, last, base, last_offset))
        self.last_ms = time_ms

    def ended(self, epoch: int, coordinator_epoch: int, time_ms: int) -> None:
        """By a marker. With transaction version 2 its epoch is a new one, so that the sequences
        begin again.
        """
        if self.epoch != epoch:
            self.batches.clear()
            self.epoch = epoch
        self.coordinator_epoch = coordinator_epoch
        self.open_since = -1
        self.last_ms = time_ms

    def copy(self) -> ProducerState:
        other = ProducerState()
        other.epoch, other.coordinator_epoch, other.last_ms = (
            self.epoch,
            self.coordinator_epoch,
            self.last_ms,
        )
        other.open_since, other.batches = self.open_since, self.batches[:]
        return other


class Verification:
    """``VerificationStateEntry``: a partition waits for the coordinator's word on a producer's
    first batch.

    ``lowest``: the lowest sequence that came meanwhile; what lies above it was sent before, and
    must wait its turn.
    """

    __slots__ = ("bumps", "epoch", "lowest")

    def __init__(self, sequence: int, epoch: int, bumps: bool) -> None:
        self.lowest = sequence
        self.epoch = epoch
        self.bumps = bumps

    def seen(self, sequence: int, epoch: int) -> None:
        """``maybeUpdateLowestSequenceAndEpoch``."""
        if epoch == self.epoch and sequence < self.lowest:
            self.lowest = sequence
        elif epoch > self.epoch:
            self.epoch, self.lowest = epoch, sequence


def verdict(
    state: ProducerState | None,
    epoch: int,
    first: int,
    last: int,
    transactional: bool,
    verification: Verification | None,
    guarded: bool,
    old: bool,
) -> int:
    """What becomes of a client's batch: :data:`APPEND`, the negated error code, or the offset of
    its first coming.

    :param guarded: the request was verified by the partition's own current ``verification``, or
        needs none.
    :param old: as 3.9.1 does it.
    """
    if state is not None:
        current = state.epoch
        if epoch == current:
            for batch in state.batches:
                if batch[0] == first and batch[1] == last:
                    return batch[2]
        # 3.9 takes an open transaction of any epoch for the batch's own
        # (``hasOngoingTransaction``)
        if transactional and not (state.open_since >= 0 and (old or epoch == current)):
            if epoch < current and not old:
                return -INVALID_PRODUCER_EPOCH
            if not guarded:
                return -INVALID_TXN_STATE
        if epoch < current:
            return -INVALID_PRODUCER_EPOCH
    elif transactional and not guarded:
        return -INVALID_TXN_STATE
    if verification is not None:
        # An epoch that was never written here begins at 0 with transaction version 2 (KAFKA-14359,
        # not in 3.9).
        if not old and verification.bumps and first and (state is None or not state.batches):
            return -OUT_OF_ORDER_SEQUENCE
        if first > verification.lowest:
            return -OUT_OF_ORDER_SEQUENCE
    if state is not None and state.epoch >= 0:
        if epoch != state.epoch:
            if first:
                return -OUT_OF_ORDER_SEQUENCE
        else:
            before = state.batches[-1][1] if state.batches else -1
            if first != before + 1 and not (first == 0 and before == LAST_SEQUENCE):
                return -OUT_OF_ORDER_SEQUENCE
        if state.open_since >= 0 and not transactional:
            return -INVALID_TXN_STATE
    return APPEND


def marker_refused(
    state: ProducerState | None, epoch: int, coordinator_epoch: int, version: int, old: bool
) -> int:
    """0, or why a transaction marker is not appended.

    4.x is strict with version 2, whose markers carry an epoch of their own
    (``checkProducerEpoch``): the same epoch is let pass only where no transaction is open, as the
    repetition of a marker.
    """
    if state is None:
        return 0
    strict = version >= 2 and not old
    if epoch <= state.epoch if strict else epoch < state.epoch:
        repeated = (
            strict and epoch == state.epoch and (state.open_since < 0 or epoch == LAST_EPOCH)
        )
        if not repeated:
            return INVALID_PRODUCER_EPOCH
    return COORDINATOR_FENCED if state.coordinator_epoch > coordinator_epoch else 0
