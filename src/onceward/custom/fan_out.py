"""``onceward.FanOut``: what the user builds and hands to ``foreachBatch``. Driver only."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations

from pyspark.sql import DataFrame

from onceward.engine.calls.batch import must_be_a_frame
from onceward.engine.calls.foreach_batch import ForeachBatchSink
from onceward.engine.fan_out import FanOutTarget
from onceward.engine.policy import SinkPolicy
from onceward.engine.target import BRANCH, AtomicTarget, Write
from onceward.engine.two_phase import TwoPhaseTarget
from onceward.errors import ConfigurationError, ContradictoryOptions

Select = Callable[[DataFrame], DataFrame]

_NAME = re.compile(r"[A-Za-z0-9_-]{1,60}")


class FanOut(ForeachBatchSink):
    """Writes each micro-batch exactly once to several targets: one of them decides, the others
    publish.

    ::

        sink = ow.FanOut(
            {
                "orders": ow.KafkaSink(
                    bootstrap_servers=servers, topic="orders", pipeline_id="orders"
                ),
                "archive": ow.FileSink(
                    path="/archive/orders", pipeline_id="orders", ledger=ow.KafkaLedger(servers)
                ),
            },
            select={
                "orders": lambda frame: frame.selectExpr("key", "to_json(struct(*)) AS value")
            },
        )

    A ``KafkaSink`` or a ``DatabaseSink`` decides by its own commit, in which the ledger record
    names what the tasks of the others have prepared. There can be one of these. Where there is
    none, the ledger record decides.

    Guarantee: after any crash all targets hold the same batches, each exactly once, with one
    exception that passes: the newest batch may be visible in the one that decides while the others
    still publish it, in their order, or will at the next start. None of them ever shows a batch
    that is not decided, and none gets a batch before all have the one before it. What each target
    shows its readers of a batch while it is published is said by its own sink.

    Cost: each target computes its frame anew. Where that is dear, persist the batch in a function
    of your own, around the call of the sink; a batch whose persisted rows were lost and computed
    again between two targets runs again.

    :param sinks: by names of your choice (letters, digits, ``_``, ``-``), which the ledger knows
        the others by: a renamed one is another one. All with the same ``pipeline_id``, ``resume``,
        ``skipped_batches``, ``batch_attempts``, ``batch_timeout_s`` and ``checkpointing``, and the
        same ledger: ``ow.KafkaLedger`` and ``ow.DatabaseLedger`` with the addresses and topic or
        table of the sink that decides.
    :param select: for some of the names a function that makes the frame for that sink out of the
        batch's frame. It must be a plan over that frame alone; called once for each frame of a
        batch, in the driver.
    :raises ConfigurationError: any of these is wrong. Nothing is connected before the first batch.
    """

    def __init__(
        self, sinks: Mapping[str, ForeachBatchSink], *, select: Mapping[str, Select] | None = None
    ) -> None:
        _must_be_sinks(sinks)
        _must_be_functions(select or {}, sinks)
        self._select = dict(select or {})
        self._decides = next((name for name, sink in sinks.items() if sink.is_atomic), None)
        # The one that decides comes last: its transaction is open no longer than it must.
        self._sinks = dict(sorted(sinks.items(), key=lambda named: named[0] == self._decides))
        first = next(iter(sinks.values()))
        super().__init__(
            first._policy,
            ledger=first._where[0],
            settings=(
                tuple((name, sink._built_with) for name, sink in self._sinks.items()),
                tuple(self._select.items()),
            ),
        )

    def _checked_writes(self, frame: DataFrame, where: str | None) -> Sequence[Write]:
        must_be_a_frame(frame)
        writes = []
        for name, sink in self._sinks.items():
            selected = self._select[name](frame) if name in self._select else frame
            must_be_a_frame(selected, f" from the function for {name!r} in select=")
            checked = sink._checked(selected, None)
            writes.append(checked if sink.is_atomic else Write(checked.frame, f"{BRANCH}{name}"))
        return writes

    def _dead_letters(self, frame: DataFrame) -> Write:
        # A place for them have those that decide by a commit of their own, if any.
        if self._decides is None:
            return super()._dead_letters(frame)
        return self._sinks[self._decides]._dead_letters(frame)

    def _new_target(self, policy: SinkPolicy) -> FanOutTarget:
        targets = {name: sink._new_target(policy) for name, sink in self._sinks.items()}
        branches = {
            name: target for name, target in targets.items() if isinstance(target, TwoPhaseTarget)
        }
        atomic = next(
            (target for target in targets.values() if isinstance(target, AtomicTarget)), None
        )
        chain = next(iter(branches.values())).chain if atomic is None else atomic.chain
        return FanOutTarget(atomic, branches, chain, policy)

    def _begin_run(self) -> None:
        for sink in self._sinks.values():
            sink._begin_run()

    def __repr__(self) -> str:
        decides = f"decided by {self._decides}" if self._decides else "decided by the ledger"
        return (
            f"FanOut(pipeline_id={self._policy.pipeline!r}, {', '.join(self._sinks)}; {decides})"
        )


def _must_be_sinks(sinks: object) -> None:
    if not isinstance(sinks, Mapping) or len(sinks) < 2:
        raise ConfigurationError(
            "FanOut(…) takes two sinks or more, by names",
            next_step='pass {"orders": ow.KafkaSink(…), "archive": ow.FileSink(…)}',
        )
    for name, sink in sinks.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ConfigurationError(
                f"a sink of the fan-out is named {name!r}",
                next_step="name it by letters, digits, '_' and '-'",
            )
        if not isinstance(sink, ForeachBatchSink) or isinstance(sink, FanOut):
            raise ConfigurationError(
                f"{name}: a {type(sink).__name__} cannot be a part of a fan-out",
                next_step="pass a KafkaSink, DatabaseSink, FileSink, WriteAheadSink, UpsertSink, "
                "or a sink of your own that subclasses TwoPhaseCommitSink",
            )
    atomic = [name for name, sink in sinks.items() if sink.is_atomic]
    if len(atomic) > 1:
        raise ContradictoryOptions(
            f"{' and '.join(atomic)} would each decide by a commit of its own, and one could be "
            "carried out without the other",
            next_step="let one of them decide; write to the other one from its output, in a query "
            "of its own",
        )
    for (one, sink), (other, another) in combinations(sinks.items(), 2):
        if sink.writes_to is not None and sink.writes_to.meets(another.writes_to):
            raise ContradictoryOptions(
                f"{one} and {other} write to the same place, or the one within the other's, and "
                "would get into each other's way",
                next_step="write a union of the two frames by one sink; or give each a place of "
                "its own (path=, table=, or for upserts index=, write= or a prefix= with which "
                "the other one's does not begin)",
            )
    (first_name, first), *others = sinks.items()
    for name, sink in others:
        _must_agree(first_name, first, name, sink)
    if any(not sink._policy.has_ledger for sink in sinks.values()):
        raise ContradictoryOptions(
            "a sink of the fan-out has a delivery= that decides nothing",
            next_step='pass delivery="exactly_once"',
        )


def _must_agree(
    first_name: str, first: ForeachBatchSink, name: str, sink: ForeachBatchSink
) -> None:
    if first._policy != sink._policy:
        raise ContradictoryOptions(
            f"the sinks of a fan-out are one pipeline, and {first_name} and {name} have "
            f"{first._policy} and {sink._policy}",
            next_step="give all of them the same pipeline_id, resume, skipped_batches, "
            "batch_attempts, batch_timeout_s and checkpointing",
        )
    if first._where != sink._where:
        raise ContradictoryOptions(
            f"the sinks of a fan-out keep one ledger, and {first_name} has another one than "
            f"{name}",
            next_step="pass the same ledger= to all: for a KafkaSink that decides ow.KafkaLedger "
            "with its bootstrap_servers and ledger_topic, for a DatabaseSink ow.DatabaseLedger "
            "with its url and ledger_table",
        )


def _must_be_functions(
    select: Mapping[str, object], sinks: Mapping[str, ForeachBatchSink]
) -> None:
    if not isinstance(select, Mapping):
        raise ConfigurationError(
            f"select={select!r} is no dict",
            next_step='pass functions by the names of sinks: {"orders": lambda frame: …}',
        )
    for name, function in select.items():
        if name not in sinks:
            raise ConfigurationError(
                f"select= has {name!r}, which is none of the sinks {', '.join(sinks)}",
                next_step="name one of them",
            )
        if not callable(function):
            raise ConfigurationError(
                f"select[{name!r}] is no function",
                next_step="pass one that makes a frame out of the batch's frame",
            )
