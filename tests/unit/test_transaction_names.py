"""Names of prepared transactions say whose they are."""

from __future__ import annotations

from onceward.engine.task_writer import Task
from onceward.ids import AttemptId, BatchId, PipelineId
from onceward.sql.sink.dialect import owner_in, transaction_name, with_number

PIPELINE, MARK = PipelineId("orders"), "0123abcd"
NAME = transaction_name(
    Task(PIPELINE, BatchId("query", 7), AttemptId(111_411, 3), 0, 2, 0, 45), MARK
)


def test_whose_a_transaction_is() -> None:
    assert (
        owner_in(NAME, PIPELINE, MARK)
        == owner_in(with_number(NAME, 99), PIPELINE, MARK)
        == 111_411
    )


def test_of_another_chain_nothing_is_known() -> None:
    assert owner_in(NAME, PIPELINE, "ffffffff") is None
    assert owner_in(NAME, PipelineId("order"), MARK) is None
    assert owner_in("orders@0123abcd-by hand", PIPELINE, MARK) is None
