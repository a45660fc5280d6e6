"""The contract of every sink, as tests that you run against a sink of your own.

::

    from onceward_testing.sink_contract import TwoPhaseContract, TwoPhaseKit

    class TestMySink(TwoPhaseContract):
        @pytest.fixture
        def kit(self, spark, tmp_path):
            ledger = ow.FolderLedger(tmp_path / "ledger")
            return TwoPhaseKit(
                spark,
                lambda: MySink(pipeline_id="p", ledger=ledger, folder=tmp_path / "out"),
                visible=lambda: Counter(values_that_a_reader_finds(tmp_path / "out")),
            )

``kit`` makes the sink as a new process of its pipeline would, and tells what a reader of the
target finds; read that with something that is not the sink. The frames have one column, ``value``,
a string. Each test has a kit, a pipeline and a target of its own.

The contract: whatever fails, and wherever a process dies, loses an answer or is overtaken by a
newer copy, in the end the target shows every batch exactly once, all of it or nothing, and the
ledger says the same.

:class:`SinkContract` is for any :class:`~onceward.engine.target.Target`; :class:`TwoPhaseContract`
adds what a ``TwoPhaseCommitSink`` owes besides.
"""

from onceward_testing.sink_contract.process import (
    FIRST,
    SECOND,
    Died,
    Process,
    SinkKit,
    assert_holds,
    batch,
    certain,
    fault,
    run_batch,
)
from onceward_testing.sink_contract.sink import SinkContract
from onceward_testing.sink_contract.two_phase import TwoPhaseContract, TwoPhaseKit, lost_append

__all__ = [
    "FIRST",
    "SECOND",
    "Died",
    "Process",
    "SinkContract",
    "SinkKit",
    "TwoPhaseContract",
    "TwoPhaseKit",
    "assert_holds",
    "batch",
    "certain",
    "fault",
    "lost_append",
    "run_batch",
]
