"""What every store of the ledger owes: see ``onceward.engine.ledger.chain``. Run over each of them
by ``test_ledgers.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import pytest

from onceward.engine.ledger.chain import Chain, as_far_as_known
from onceward.engine.ledger.record import LedgerRecord, Output, RecordState
from onceward.errors import CommitInDoubt, Fenced, LedgerBehind, LedgerOutdated, Recovery
from onceward.ids import AttemptId, BatchId, PipelineId, SourceRange
from onceward_testing.sink_contract import certain

P = PipelineId("p")


class Store:
    """One ledger; ``chain()`` is the pipeline's as a new process would open it."""

    def __init__(
        self,
        chain: Callable[[], Chain],
        unanswered: Callable[[Chain, bool], AbstractContextManager[None]],
    ) -> None:
        self.chain = chain
        self.unanswered = unanswered


def record(
    sequence: int, attempt: AttemptId, state: RecordState = RecordState.FINISHED, data: Any = None
) -> LedgerRecord:
    return LedgerRecord(
        P,
        sequence,
        BatchId("q", sequence),
        (SourceRange(sequence, sequence + 1, {"topic": "id"}),),
        attempt,
        {"files": Output("two_phase", 1, 3, {"version": 1, "committables": data or []})},
        1_700_000_000_000,
        state,
    )


def append(
    chain: Chain, newest: LedgerRecord | None, state: RecordState = RecordState.FINISHED
) -> LedgerRecord:
    sequence = 0 if newest is None else newest.sequence + 1
    made = record(sequence, chain.begin(newest), state)
    chain.append(made)
    return made


def delivered(decided: LedgerRecord, chunks: int) -> LedgerRecord:
    """The record of a batch that is delivered in chunks, with a count of them."""
    outputs = {"out": Output("write_ahead", 1, 9, {"delivered": chunks})}
    return replace(decided, outputs=outputs)


class ChainContract:
    def test_nothing_is_there_before_the_first_record(self, store: Store) -> None:
        assert store.chain().peek() is None
        chain = store.chain()
        assert chain.take() is None
        assert chain.newest() is None
        assert list(chain.history()) == []

    def test_what_is_appended_is_the_newest_for_everybody(self, store: Store) -> None:
        chain = store.chain()
        newest = chain.take()
        for _ in range(3):
            newest = append(chain, newest)
            assert certain(lambda: store.chain().peek()) == newest
            assert chain.newest() == newest
        assert store.chain().take() == newest
        assert next(store.chain().history()) == newest

    def test_a_new_owner_goes_on(self, store: Store) -> None:
        newest = None
        for number in range(4):
            chain = store.chain()
            assert chain.take() == newest
            newest = append(chain, newest)
            assert newest.sequence == number

    def test_a_chain_keeps_its_identity(self, store: Store) -> None:
        chain = store.chain()
        newest = chain.take()
        identity = chain.identity()
        assert identity
        append(chain, newest)
        heir = store.chain()
        heir.take()
        assert chain.identity() == heir.identity() == identity

    def test_no_two_attempts_have_one_name(self, store: Store) -> None:
        names: list[AttemptId] = []
        for _ in range(3):
            chain = store.chain()
            newest = chain.take()
            for _ in range(3):
                names.append(chain.begin(newest))
                chain.abort()
        assert len(set(names)) == len(names)

    @pytest.mark.parametrize("heir", ["has appended", "has appended nothing"])
    @pytest.mark.parametrize("does", ["begin and append", "append", "progress"])
    def test_an_owner_that_was_replaced_appends_nothing(
        self, store: Store, does: str, heir: str
    ) -> None:
        old = store.chain()
        first = append(old, old.take())
        begun = record(1, old.begin(first) if does == "append" else AttemptId(-1, -1))
        new = store.chain()
        newest = new.take()
        assert newest == first
        if heir == "has appended":
            newest = append(new, newest)
        doing = {
            "begin and append": lambda: append(old, first),
            "append": lambda: old.append(begun),
            "progress": lambda: old.progress(replace(first, state=RecordState.FINISHED)),
        }
        with pytest.raises(Fenced):
            doing[does]()
        assert new.newest() == newest
        append(new, newest)

    def test_progress_replaces_the_newest(self, store: Store) -> None:
        chain = store.chain()
        decided = append(chain, chain.take(), RecordState.DECIDED)
        assert certain(lambda: store.chain().peek()) == decided
        finished = chain.progress(replace(decided, state=RecordState.FINISHED))
        assert (finished.sequence, finished.state) == (0, RecordState.FINISHED)
        assert certain(lambda: store.chain().peek()) == finished
        following = append(chain, finished)
        assert store.chain().take() == following

    def test_a_new_owner_finishes_what_the_old_one_decided(self, store: Store) -> None:
        old = store.chain()
        decided = append(old, old.take(), RecordState.DECIDED)
        new = store.chain()
        assert new.take() == decided
        finished = new.progress(replace(decided, state=RecordState.FINISHED))
        append(new, finished)
        with pytest.raises(Fenced):
            old.progress(replace(decided, state=RecordState.FINISHED))

    @pytest.mark.parametrize("carried_out", [True, False])
    def test_a_doubt_is_settled_for_good(self, store: Store, carried_out: bool) -> None:
        chain = store.chain()
        first = append(chain, chain.take())
        second = record(1, chain.begin(first))
        with store.unanswered(chain, carried_out), pytest.raises(CommitInDoubt):
            chain.append(second)
        newest = second if carried_out else first
        assert chain.settle() == newest
        following = append(chain, newest)
        assert store.chain().take() == following

    def test_settling_takes_nothing_from_a_new_owner(self, store: Store) -> None:
        old = store.chain()
        first = append(old, old.take())
        with store.unanswered(old, False), pytest.raises(CommitInDoubt):
            old.append(record(1, old.begin(first)))
        new = store.chain()
        newest = new.take()
        with pytest.raises(Fenced):
            old.settle()
        append(new, newest)

    def test_a_peek_takes_nothing(self, store: Store) -> None:
        chain = store.chain()
        newest = chain.take()
        for _ in range(3):
            begun = record(0 if newest is None else newest.sequence + 1, chain.begin(newest))
            store.chain().peek()
            chain.append(begun)
            newest = begun

    def test_a_large_record(self, store: Store) -> None:
        """Thousands of committables."""
        chain = store.chain()
        newest = chain.take()
        names = [f"part-{number:06}-{'x' * 60}" for number in range(10_000)]
        large = record(0, chain.begin(newest), RecordState.DECIDED, names)
        chain.append(large)
        assert store.chain().take() == large

    def test_closing_may_be_repeated(self, store: Store) -> None:
        chain = store.chain()
        chain.close()
        taken = store.chain()
        taken.take()
        taken.close()
        taken.close()


def _behind_a_copy(
    store: Store, copy: Callable[[], Callable[[], None]]
) -> tuple[Chain, LedgerRecord, LedgerRecord, Callable[[], None]]:
    """Return an owner, two records of it, and what puts a copy in place that lacks the second."""
    chain = store.chain()
    first = append(chain, chain.take())
    restore = copy()
    return chain, first, append(chain, first), restore


class RestoredContract(ChainContract):
    """Of stores that may be restored from an older copy, or fail over to one, while a query runs.

    ``copy`` copies the chain's store, and returns what puts the copy in its place.
    """

    @pytest.mark.parametrize("looks", ["newest", "begin", "append", "settle"])
    def test_records_that_are_gone_are_noticed_and_nobody_newer_is_blamed(
        self, store: Store, copy: Callable[[], Callable[[], None]], looks: str
    ) -> None:
        chain, first, second, restore = _behind_a_copy(store, copy)
        begun = record(2, chain.begin(second))
        restore()
        with pytest.raises(LedgerBehind):
            {
                "newest": chain.newest,
                "begin": lambda: chain.begin(second),
                "append": lambda: chain.append(begun),
                "settle": chain.settle,
            }[looks]()
        assert [found.sequence for found in store.chain().history()] == [0]
        assert store.chain().take() == first

    def test_records_that_are_gone_when_a_doubt_is_settled_are_noticed(
        self, store: Store, copy: Callable[[], Callable[[], None]]
    ) -> None:
        chain, _, second, restore = _behind_a_copy(store, copy)
        third = record(2, chain.begin(second))
        with store.unanswered(chain, False), pytest.raises(CommitInDoubt):
            chain.append(third)
        restore()
        with pytest.raises(LedgerBehind):
            chain.settle()

    @pytest.mark.parametrize("looks", ["begin", "append"])
    def test_a_takeover_that_is_gone_alone_is_repeated(
        self, store: Store, copy: Callable[[], Callable[[], None]], looks: str
    ) -> None:
        """It stops nobody: all records are there."""
        old = store.chain()
        first = append(old, old.take())
        restore = copy()
        chain = store.chain()
        begun = record(1, chain.begin(chain.take()))
        restore()
        with pytest.raises(LedgerOutdated) as lost:
            {"begin": lambda: chain.begin(first), "append": lambda: chain.append(begun)}[looks]()
        assert lost.value.recovery is Recovery.REOPEN
        again = store.chain()
        append(again, again.take())
        with pytest.raises(Fenced):
            old.begin(first)

    @pytest.mark.parametrize("takeover", ["is gone, too", "is there"])
    def test_progress_that_is_gone_is_not_forgotten(
        self, store: Store, copy: Callable[[], Callable[[], None]], takeover: str
    ) -> None:
        """Without it rows would be delivered once more."""
        chain, decided, restore = _in_a_delivery(store, copy)
        if takeover == "is gone, too":
            chain = store.chain()
            chain.take()
        first, second = delivered(decided, 1), delivered(decided, 2)
        chain.progress(first)
        restore()
        known = None
        try:
            chain.progress(second)
        except LedgerOutdated as lost:
            known = lost.known
        taken = store.chain().take()
        assert as_far_as_known(taken, known) == second
        assert as_far_as_known(second, first) == second
        with pytest.raises(LedgerBehind):
            as_far_as_known(taken, replace(second, sequence=7))

    @pytest.mark.parametrize("looks", ["begin", "append"])
    def test_an_end_of_publishing_that_is_gone_alone_is_repeated(
        self, store: Store, copy: Callable[[], Callable[[], None]], looks: str
    ) -> None:
        """The newest commit of all is what a standby lacks most often. No batch is missing."""
        chain, decided, restore = _in_a_delivery(store, copy)
        finished = replace(delivered(decided, 2), state=RecordState.FINISHED)
        chain.progress(finished)
        begun = record(1, chain.begin(finished))
        restore()
        with pytest.raises(LedgerOutdated) as lost:
            {"begin": lambda: chain.begin(finished), "append": lambda: chain.append(begun)}[
                looks
            ]()
        known = as_far_as_known(store.chain().take(), lost.value.known)
        assert known is not None
        assert known.outputs == finished.outputs

    def test_progress_in_doubt_and_gone_is_not_forgotten(
        self, store: Store, copy: Callable[[], Callable[[], None]]
    ) -> None:
        """A lost answer of a COMMIT is how a failover mostly shows."""
        _, decided, restore = _in_a_delivery(store, copy)
        chain = store.chain()
        chain.take()
        first = delivered(decided, 1)
        with store.unanswered(chain, False), pytest.raises(CommitInDoubt):
            chain.progress(first)
        restore()
        known = None
        try:
            chain.settle()
        except LedgerOutdated as lost:
            known = lost.known
        else:
            chain.progress(first)
        assert as_far_as_known(store.chain().take(), known) == first


def _in_a_delivery(
    store: Store, copy: Callable[[], Callable[[], None]]
) -> tuple[Chain, LedgerRecord, Callable[[], None]]:
    """A chain whose newest batch is decided, of which no chunk is delivered; what puts a copy of
    then in its place.
    """
    chain = store.chain()
    decided = delivered(record(0, chain.begin(chain.take()), RecordState.DECIDED), 0)
    chain.append(decided)
    return chain, decided, copy()
