"""The states of a transactional producer and the steps that each allows: the table behind
``transaction``.

Pure; a test reads every pair of it. The machine, success drawn straight::

    UNINITIALISED -take_over-> READY -begin-> OPEN -commit/abort-> (ENDING) -> READY
                                               |            |
                                               |            +-- no answer --> IN_DOUBT
                                               +-- broker's timeout --------> TIMED_OUT
    IN_DOUBT -recover-> READY, TIMED_OUT -recover/abort-> READY
    from everywhere but UNINITIALISED: a newer owner --> FENCED, for good
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class State(Enum):
    """Where a transaction stands."""

    UNINITIALISED = "no identity yet"
    READY = "an identity, and no transaction open"
    OPEN = "records and offsets may be added"
    ENDING = "EndTxn is under way"
    IN_DOUBT = "EndTxn has no answer"
    TIMED_OUT = (
        "the coordinator has aborted the transaction, or refuses its epoch, and nobody newer is "
        "known"
    )
    FENCED = "a newer copy of this pipeline has taken over"


class Step(Enum):
    """What can be asked of a transaction."""

    TAKE_OVER = "take_over"
    BEGIN = "begin"
    ADD_PARTITIONS = "add_partitions"
    COMMIT_OFFSETS = "commit_offsets"
    COMMIT = "commit"
    ABORT = "abort"
    RECOVER = "recover"


_S = State

TRANSITIONS: Mapping[State, Mapping[Step, frozenset[State]]] = {
    _S.UNINITIALISED: {Step.TAKE_OVER: frozenset({_S.READY, _S.UNINITIALISED})},
    _S.READY: {
        Step.BEGIN: frozenset({_S.OPEN, _S.READY, _S.FENCED}),
        # nothing is open: what was asked for holds
        Step.ABORT: frozenset({_S.READY}),
    },
    _S.OPEN: {
        Step.ADD_PARTITIONS: frozenset({_S.OPEN, _S.TIMED_OUT, _S.FENCED}),
        Step.COMMIT_OFFSETS: frozenset({_S.OPEN, _S.TIMED_OUT, _S.FENCED}),
        Step.COMMIT: frozenset({_S.READY, _S.OPEN, _S.IN_DOUBT, _S.TIMED_OUT, _S.FENCED}),
        Step.ABORT: frozenset({_S.READY, _S.IN_DOUBT, _S.TIMED_OUT, _S.FENCED}),
    },
    # one EndTxn at a time
    _S.ENDING: {},
    # An unanswered commit is never followed by an abort: the ledger tells what became of it.
    _S.IN_DOUBT: {Step.RECOVER: frozenset({_S.READY, _S.IN_DOUBT, _S.FENCED})},
    _S.TIMED_OUT: {
        Step.RECOVER: frozenset({_S.READY, _S.TIMED_OUT, _S.FENCED}),
        Step.ABORT: frozenset({_S.READY, _S.TIMED_OUT, _S.FENCED}),
    },
    _S.FENCED: {},
}
"""Per state the steps that it allows, and where they can lead. Any other step is refused."""
