"""The ledger's answer to a batch: every row of the admission table, and every pair of neighbours
that must differ.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from onceward.engine.calls.advice import refusal
from onceward.engine.ledger.admission import (
    RESUME_CHOICES,
    Admission,
    CallHistory,
    admit,
    is_refused_in_any_case,
)
from onceward.engine.ledger.record import LedgerRecord
from onceward.errors import (
    AdmissionRefused,
    BatchNotWritten,
    CheckpointReplaced,
    CheckpointRewound,
    LedgerBehind,
)
from onceward.ids import BatchId, PipelineId, ProducerIdentity, SourceRange, is_kafka_offset

QUERY, OTHER = "query-a", "query-b"


def kafka(**offsets: int) -> dict[str, dict[str, int]]:
    return {"people": {name.removeprefix("p"): offset for name, offset in offsets.items()}}


def span(start: object, end: object) -> tuple[SourceRange, ...]:
    return (SourceRange(start, end),)


def ledger(batch_id: int, end: object, query: str = QUERY, sequence: int = 40) -> LedgerRecord:
    return LedgerRecord(
        PipelineId("p"),
        sequence,
        BatchId(query, batch_id),
        span(None, end),
        {},
        ProducerIdentity(1, 1),
        0,
    )


TEN, TWENTY, THIRTY = kafka(p0=10, p1=10), kafka(p0=20, p1=20), kafka(p0=30, p1=30)

TABLE = [
    # ledger, batch id, query, source span, resume, outcome
    (None, 0, QUERY, span(None, TEN), "checkpoint", Admission.FIRST),
    (None, 0, QUERY, span(TEN, TWENTY), "ledger", Admission.FIRST),
    (None, 0, QUERY, span(TEN, TWENTY), "adopt", Admission.FIRST),
    (None, 7, QUERY, span(TEN, TWENTY), "checkpoint", Admission.LEDGER_BEHIND),
    (None, 7, QUERY, span(TEN, TWENTY), "ledger", Admission.LEDGER_BEHIND),
    (None, 7, QUERY, span(TEN, TWENTY), "adopt", Admission.ADOPT),
    (ledger(4, TEN), 5, QUERY, span(TEN, TWENTY), "checkpoint", Admission.NEXT),
    (
        ledger(4, TEN),
        5,
        QUERY,
        span(TEN, TEN),
        "checkpoint",
        Admission.NEXT,
    ),  # only-watermark batch
    (ledger(4, TEN), 5, QUERY, span(TWENTY, THIRTY), "checkpoint", Admission.OFFSETS_DIFFER),
    (ledger(4, TEN), 5, QUERY, span(TWENTY, THIRTY), "adopt", Admission.OFFSETS_DIFFER),
    (
        ledger(4, TEN),
        5,
        QUERY,
        span({**TEN, "new": {"0": 0}}, TWENTY),
        "ledger",
        Admission.OFFSETS_DIFFER,
    ),
    (ledger(4, TEN), 4, QUERY, span(None, TEN), "checkpoint", Admission.REPLAY),
    (ledger(4, TEN), 4, QUERY, span(None, TWENTY), "checkpoint", Admission.OFFSETS_DIFFER),
    (ledger(4, TEN), 6, QUERY, span(TEN, TWENTY), "checkpoint", Admission.SKIPPED),
    (ledger(4, TEN), 6, QUERY, span(TEN, TWENTY), "adopt", Admission.SKIPPED),
    (ledger(4, TEN), 6, QUERY, span(TEN, TWENTY), "skip_missing", Admission.AFTER_SKIPPED),
    (ledger(4, TEN), 3, QUERY, span(None, TEN), "checkpoint", Admission.REWOUND),
    (ledger(4, TEN), 0, OTHER, span(TEN, TWENTY), "checkpoint", Admission.REPLACED),
    (ledger(4, TEN), 0, OTHER, span(TEN, TWENTY), "adopt", Admission.REPLACED),
    (ledger(4, TEN), 5, OTHER, span(TEN, TWENTY), "checkpoint", Admission.REPLACED),
    (ledger(4, TEN), 0, OTHER, span(TEN, TWENTY), "ledger", Admission.RESUME),
    (
        ledger(4, TEN),
        0,
        OTHER,
        span(kafka(p0=10, p1=10, p2=0), TWENTY),
        "ledger",
        Admission.RESUME,
    ),
    (ledger(4, TEN), 0, OTHER, span(kafka(p0=10), TWENTY), "ledger", Admission.RESUME_GAP),
    (ledger(4, TEN), 0, OTHER, span(kafka(p0=10, p1=11), TWENTY), "ledger", Admission.RESUME_GAP),
    (ledger(4, TEN), 0, OTHER, span(None, TWENTY), "ledger", Admission.RESUME_GAP),
    (ledger(4, TEN), 0, OTHER, (), "ledger", Admission.RESUME_GAP),
    (
        ledger(4, {"logOffset": 3}),
        0,
        OTHER,
        span({"logOffset": 3}, {"logOffset": 4}),
        "ledger",
        Admission.RESUME,
    ),
    (
        ledger(4, {"logOffset": 3}),
        0,
        OTHER,
        span({"logOffset": 4}, {"logOffset": 5}),
        "ledger",
        Admission.RESUME_GAP,
    ),
]


@pytest.mark.parametrize(("newest", "batch_id", "query", "sources", "resume", "outcome"), TABLE)
def test_every_row_of_the_table(newest, batch_id, query, sources, resume, outcome) -> None:
    assert admit(BatchId(query, batch_id), sources, newest, resume) is outcome


@pytest.mark.parametrize("sources", [span(TEN, TWENTY), span(TWENTY, THIRTY)])
def test_state_that_was_lost_with_the_checkpoint_is_not_made_up(sources) -> None:
    outcome = admit(BatchId(OTHER, 0), sources, ledger(4, TEN), "ledger", stateful=True)
    assert outcome is Admission.STATE_LOST
    assert is_refused_in_any_case(
        BatchId(OTHER, 0), sources, ledger(4, TEN), "ledger", stateful=True
    )
    assert "state" in str(refusal(outcome, BatchId(OTHER, 0), sources, ledger(4, TEN)))


def test_state_matters_only_where_it_was_lost() -> None:
    for newest, batch_id, query, sources, resume, outcome in TABLE:
        if outcome not in (Admission.RESUME, Admission.RESUME_GAP):
            assert (
                admit(BatchId(query, batch_id), sources, newest, resume, stateful=True) is outcome
            )


def known(
    end: object = None, *, allow: bool = True, first: bool = False, failed: int | None = None
) -> CallHistory:
    """What Spark's log says of batch 4, what the user allows, and whether a call for a batch
    failed.
    """
    return CallHistory(
        "allow" if allow else "refuse",
        failed=None if failed is None else (failed, "SendFailed: late"),
        first_of_run=first,
        ends=None if end is None else (end,),
        checkpoint="/cp",
        rewindable=True,
    )


KEPT = replace(known(allow=False, first=True), given_up=True)
GAPS = [
    # ledger, batch id, source span, what is known of the batches before, resume, outcome
    (ledger(4, TEN), 7, span(TWENTY, THIRTY), known(TEN), "checkpoint", Admission.AFTER_SKIPPED),
    (
        ledger(4, TEN),
        7,
        span(TWENTY, THIRTY),
        known(TEN, first=True),
        "checkpoint",
        Admission.AFTER_SKIPPED,
    ),
    (
        ledger(4, TEN),
        7,
        span(TWENTY, THIRTY),
        known(TEN, allow=False),
        "checkpoint",
        Admission.SKIPPED,
    ),
    (
        ledger(4, TEN),
        7,
        span(TWENTY, THIRTY),
        known(TEN, allow=False),
        "skip_missing",
        Admission.SKIPPED,
    ),
    (
        ledger(4, TEN),
        7,
        span(TWENTY, THIRTY),
        known(TEN, allow=False, first=True),
        "skip_missing",
        Admission.AFTER_SKIPPED,
    ),
    (
        ledger(4, TEN),
        7,
        span(TWENTY, THIRTY),
        known(TEN, allow=False, first=True),
        "adopt",
        Admission.SKIPPED,
    ),
    (ledger(4, TEN), 7, span(TEN, TEN), known(TEN), "checkpoint", Admission.AFTER_SKIPPED),
    (
        ledger(4, TEN),
        7,
        span(TWENTY, THIRTY),
        known(TWENTY),
        "checkpoint",
        Admission.OFFSETS_DIFFER,
    ),
    (
        ledger(4, TEN),
        7,
        span(TWENTY, THIRTY),
        known(TWENTY, first=True),
        "skip_missing",
        Admission.OFFSETS_DIFFER,
    ),
    (
        ledger(4, TWENTY),
        7,
        span(TEN, THIRTY),
        known(TWENTY),
        "checkpoint",
        Admission.OFFSETS_DIFFER,
    ),
    (ledger(4, TWENTY), 7, span(TEN, THIRTY), known(), "checkpoint", Admission.OFFSETS_DIFFER),
    (ledger(4, TEN), 7, (), known(TEN), "checkpoint", Admission.OFFSETS_DIFFER),
    # a partition that a skipped batch has left out, and that would be read from its first record
    (
        ledger(4, TEN),
        7,
        span(kafka(p0=20), THIRTY),
        known(TEN),
        "checkpoint",
        Admission.OFFSETS_DIFFER,
    ),
    (
        ledger(4, TEN),
        7,
        span(kafka(p0=20), kafka(p0=30)),
        known(TEN),
        "checkpoint",
        Admission.AFTER_SKIPPED,
    ),
    # Spark's log has dropped where the ledger ends: a hit may be rarer than every hundredth batch
    (ledger(4, TEN), 700, span(TWENTY, THIRTY), known(), "checkpoint", Admission.AFTER_SKIPPED),
    (
        ledger(4, TEN),
        700,
        span(TWENTY, THIRTY),
        known(allow=False),
        "checkpoint",
        Admission.SKIPPED,
    ),
    (
        ledger(4, TEN),
        7,
        span(TWENTY, THIRTY),
        known(TEN, failed=5),
        "checkpoint",
        Admission.NOT_WRITTEN,
    ),
    (ledger(4, TEN), 5, span(TEN, TWENTY), known(failed=4), "checkpoint", Admission.NOT_WRITTEN),
    (ledger(4, TEN), 5, span(TEN, TWENTY), known(), "checkpoint", Admission.NEXT),
    (ledger(4, "a"), 7, span("b", "c"), known("a"), "checkpoint", Admission.AFTER_SKIPPED),
    (
        ledger(4, "a"),
        7,
        span("b", "c"),
        replace(known(), ends=(None,)),
        "checkpoint",
        Admission.AFTER_SKIPPED,
    ),
    (ledger(4, TEN), 7, span(TWENTY, THIRTY), KEPT, "skip_missing", Admission.AFTER_SKIPPED),
    (None, 7, span(TEN, TWENTY), known(), "checkpoint", Admission.AFTER_SKIPPED),
    (None, 7, span(TEN, TWENTY), known(allow=False), "checkpoint", Admission.SKIPPED),
    # the first batch of a run may have been committed before
    (None, 7, span(TEN, TWENTY), known(first=True), "checkpoint", Admission.LEDGER_BEHIND),
    (
        None,
        7,
        span(TEN, TWENTY),
        known(allow=False, first=True),
        "checkpoint",
        Admission.LEDGER_BEHIND,
    ),
    (None, 7, span(TEN, TWENTY), known(allow=False, first=True), "adopt", Admission.ADOPT),
    (None, 7, span(TEN, TWENTY), known(failed=5), "adopt", Admission.NOT_WRITTEN),
    (None, 7, span(TEN, TWENTY), KEPT, "skip_missing", Admission.ADOPT),
]


@pytest.mark.parametrize(("newest", "batch_id", "sources", "before", "resume", "outcome"), GAPS)
def test_batches_before_that_are_not_in_the_ledger(
    newest, batch_id, sources, before, resume, outcome
) -> None:
    assert admit(BatchId(QUERY, batch_id), sources, newest, resume, history=before) is outcome


def test_a_gap_tells_to_call_the_sink_for_every_batch() -> None:
    for newest, resume in ((ledger(4, TEN), "skip_missing"), (None, "adopt")):
        offer = (BatchId(QUERY, 7), span(TWENTY, THIRTY), newest)
        error = refusal(Admission.SKIPPED, *offer, known(allow=False))
        assert type(error) is BatchNotWritten
        assert "batches 5 to 6" in error.message or "batches 0 to 6" in error.message
        assert "call the sink for every batch, also for an empty one" in error.next_step
        assert 'skipped_batches="allow"' in error.next_step
        assert admit(*offer, resume, history=known(allow=False, first=True)).writes, (
            "what it says to do"
        )
        assert "lost" not in error.message, "this run has skipped them"
    error = refusal(
        Admission.SKIPPED,
        BatchId(QUERY, 6),
        span(TWENTY, THIRTY),
        ledger(4, TEN),
        known(first=True),
    )
    assert "not batch 5 before it" in error.message
    assert "has lost its end" in error.message


def test_a_run_does_not_replay_itself() -> None:
    newest = replace(ledger(4, TEN), run_id="r")
    offer = (BatchId(QUERY, 4), span(None, TEN), newest, "checkpoint")
    assert admit(*offer, run_id="r") is Admission.SECOND_CALL
    assert admit(*offer, run_id="another") is Admission.REPLAY
    assert admit(*offer) is Admission.REPLAY
    assert (
        admit(BatchId(QUERY, 4), span(None, TEN), ledger(4, TEN), "checkpoint", run_id="")
        is Admission.REPLAY
    )


def test_the_tables_have_every_outcome() -> None:
    shown = {row[-1] for row in (*TABLE, *GAPS)}
    assert shown == set(Admission) - {Admission.STATE_LOST, Admission.SECOND_CALL}


def test_what_was_not_written_says_how_to_go_back() -> None:
    gap = known(TEN, failed=5)
    error = refusal(Admission.NOT_WRITTEN, BatchId(QUERY, 7), span(TEN, TEN), ledger(4, TEN), gap)
    assert type(error) is BatchNotWritten
    assert "batch 5" in error.message
    assert "SendFailed: late" in error.message
    assert "commits/5" in error.next_step
    assert "offsets/6" in error.next_step
    assert "write_missing" not in error.next_step


def test_rows_that_the_newest_batch_lacks_say_how_to_write_them() -> None:
    lacking = known(failed=4)
    offer = (BatchId(QUERY, 5), span(TEN, TWENTY), ledger(4, TEN))
    error = refusal(admit(*offer, "checkpoint", history=lacking), *offer, lacking)
    assert type(error) is BatchNotWritten
    assert "batch 4" in error.message
    assert "commits/4" in error.next_step
    assert "offsets/5" in error.next_step
    assert 'resume="write_missing"' in error.next_step
    error = refusal(Admission.NOT_WRITTEN, *offer, replace(lacking, rewindable=False))
    assert "commits/" not in error.next_step
    assert "no longer reaches back" in error.next_step


def test_a_batch_is_written_at_most_once_over_all_cases() -> None:
    """Whatever Spark offers, a batch id that the ledger holds for this checkpoint is never written
    again.
    """
    spans = [span(a, b) for a, b in itertools.product((None, TEN, TWENTY), (TEN, TWENTY))]
    for newest_id, batch_id, sources, resume in itertools.product(
        range(4), range(6), spans, RESUME_CHOICES
    ):
        outcome = admit(BatchId(QUERY, batch_id), sources, ledger(newest_id, TEN), resume)
        assert not (outcome.writes and batch_id <= newest_id)
        assert not (
            outcome.writes and sources[0].start != TEN and outcome is not Admission.AFTER_SKIPPED
        )
        assert not (outcome is Admission.REPLAY and sources[0].end != TEN)


@pytest.mark.parametrize(
    ("outcome", "kind"),
    [
        (Admission.LEDGER_BEHIND, LedgerBehind),
        (Admission.REPLACED, CheckpointReplaced),
        (Admission.RESUME_GAP, CheckpointReplaced),
        (Admission.OFFSETS_DIFFER, CheckpointRewound),
        (Admission.REWOUND, CheckpointRewound),
    ],
)
def test_a_refusal_names_both_sides_and_the_next_step(
    outcome: Admission, kind: type[AdmissionRefused]
) -> None:
    error = refusal(outcome, BatchId(QUERY, 9), span(TEN, TWENTY), ledger(4, TEN, OTHER))
    assert type(error) is kind
    assert "batch 9 of query query-a" in str(error)
    assert "Next: " in str(error)
    assert error.details["ledger_batch_id"] == 4


def test_a_refusal_without_any_record_says_so() -> None:
    error = refusal(Admission.LEDGER_BEHIND, BatchId(QUERY, 9), span(TEN, TWENTY), None)
    assert "the ledger has none" in str(error)
    assert error.next_step.startswith(
        "if the ledger that the sink names, or its pipeline_id, was "
    )


@pytest.mark.parametrize(
    "offset", [None, {}, "x", 3, {"logOffset": 3}, {"t": {"a": 1}}, {"t": {"0": "1"}}, {"t": 3}]
)
def test_other_offsets_are_not_taken_for_kafkas(offset: object) -> None:
    assert not is_kafka_offset(offset)


def test_nothing_is_hopeless_on_the_word_of_an_undecided_ledger() -> None:
    for batch_id, resume in itertools.product((0, 7), RESUME_CHOICES):
        assert not is_refused_in_any_case(
            BatchId(QUERY, batch_id), span(TEN, TWENTY), None, resume
        )


@pytest.mark.parametrize(("newest", "batch_id", "query", "sources", "resume", "outcome"), TABLE)
def test_what_is_hopeless_is_refused_later_too(
    newest, batch_id, query, sources, resume, outcome
) -> None:
    if is_refused_in_any_case(BatchId(query, batch_id), sources, newest, resume):
        assert not outcome.writes
        assert outcome is not Admission.REPLAY
