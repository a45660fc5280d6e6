"""A write-ahead sink whose prepared files are gone: a newer copy has dropped them, or the folder
is not shared.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from onceward.delivery.row_files import note_path
from onceward.delivery.target import KIND, WriteAheadAttempt
from onceward.engine.ledger.record import LedgerRecord, Output, RecordState
from onceward.engine.target import Prepared
from onceward.engine.two_phase import TwoPhaseAttempt
from onceward.errors import ConfigurationError, Fenced, StoreUnreachable
from onceward.ids import AttemptId, BatchId, PipelineId

P = PipelineId("p")
NAME = "00000001-12-0.78-0-0.159.6.250.2749a4c9.arrow"


@pytest.mark.parametrize(
    ("sequence", "newest", "error"),
    [(1, 1, Fenced), (1, 0, StoreUnreachable), (0, None, ConfigurationError)],
)
def test_files_that_a_newer_copy_has_dropped_are_no_question_of_folders(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sequence: int,
    newest: int | None,
    error: type[Exception],
) -> None:
    """Where Kafka has forgotten the id it fences nobody: the ledger tells who has gone on. A store
    that has been one folder may be one again.
    """
    prepared = Prepared(
        {KIND: Output(KIND, 1, 6, {"committables": [NAME]})}, "", RecordState.DECIDED
    )
    monkeypatch.setattr(TwoPhaseAttempt, "prepared", lambda self: prepared)
    found = None
    if newest is not None:
        found = LedgerRecord(P, newest, BatchId("q", newest), (), AttemptId(1, 1), {}, 0)
    attempt: Any = WriteAheadAttempt.__new__(WriteAheadAttempt)
    attempt._chain = SimpleNamespace(settle=lambda: found)
    attempt._policy = SimpleNamespace(pipeline=P)
    attempt.target, attempt.sequence = SimpleNamespace(folder=tmp_path), sequence
    note_path(tmp_path).touch()
    with pytest.raises(error):
        attempt.prepared()
