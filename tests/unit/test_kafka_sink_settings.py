"""``KafkaSink(…)`` refuses what cannot be where it is written, and names the parameter."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from pyspark import cloudpickle

import onceward as ow
from onceward import events
from onceward.engine.calls import foreach_batch
from onceward.engine.calls.journal import CallMemory
from onceward.engine.policy import Delivery, with_the_next_start
from onceward.engine.target import Write
from onceward.errors import (
    ROWS_REFUSED,
    BatchNotWritten,
    BatchTimedOut,
    ConfigurationError,
    ContradictoryOptions,
    InvalidTopicName,
    OncewardError,
    RowRefused,
    SendFailed,
    TopicMissing,
    UnsupportedQuery,
)
from onceward.ids import BatchId, SourceRange
from onceward.kafka.sink import plain
from onceward.kafka.sink import sink as sink_module
from onceward.kafka.sink.run import sequencer_hosts
from onceward.kafka.sink.topics import check_topic, refuse_own_topics
from onceward.kafka.wire.client import KafkaClient
from onceward.kafka.wire.options.settings import settings_from_options
from onceward.operate import metrics
from onceward.operate.metric_state import MetricState
from onceward.spark.batch.job import Lost
from onceward.spark.batch.query import KafkaSource, RunningBatch
from support.errors import raises

GOOD: dict[str, Any] = {"bootstrap_servers": "a:9092", "pipeline_id": "p", "topic": "t"}
EVERYWHERE = "0.0.0.0"  # noqa: S104
ODD = ["abc", "", "a,b", 5, -1, 1.5, True, [], ["a", "b"], {}, object(), float("nan"), b"x"]
FINE = {
    "bootstrap_servers": [],
    "pipeline_id": ["abc"],
    "topic": ["abc"],
    "ledger_topic": ["abc"],
    "dead_letter_topic": ["abc"],
    "options": [{}],
    "create_topic_partitions": [5],
    "batch_attempts": [5],
    "batch_timeout_s": [5, 1.5],
    "driver_records": [5],
    "driver_bytes": [5],
    "sequencer_host": ["abc", "a,b"],
    "sequencer_port": [5],
    "lineage": [True],
    "order_by": ["abc", "a,b", ["a", "b"]],
}
PARAMETERS = list(inspect.signature(ow.KafkaSink.__init__).parameters)[1:]


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_wrong_kind_of_value_is_refused_by_its_parameter(name: str):
    for value in ODD:
        wanted = any(type(value) is type(fine) and value == fine for fine in FINE.get(name, []))
        if wanted:
            ow.KafkaSink(**GOOD | {name: value})
            continue
        with pytest.raises(OncewardError, match=name) as refused:
            ow.KafkaSink(**GOOD | {name: value})
        assert refused.value.next_step, value


@pytest.mark.parametrize("topic", ["a,b", ["a", "b"], ("a", "b")])
def test_several_topics_in_one_are_told_what_to_do(topic: Any):
    with raises(InvalidTopicName):
        ow.KafkaSink(**GOOD | {"topic": topic})


class Tokens:
    def __init__(self, kept: object = None) -> None:
        self.kept = kept

    def token(self) -> str:
        self.kept = self.kept or threading.Lock()
        return "t"


def test_what_a_provider_of_tokens_opens_stays_in_the_driver():
    """Small batches are sent by the driver, so that it has opened all before a task needs it."""
    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}
    provider = Tokens()
    sink, alike = (
        ow.KafkaSink(**GOOD, options=login, oauth_token_provider=provider) for _ in range(2)
    )
    assert sink._built_with == alike._built_with
    assert sink.settings.client.oauth_token_provider.token() == "t"
    sent = cloudpickle.loads(cloudpickle.dumps(sink.settings)).client.oauth_token_provider
    assert provider.kept is not None
    assert (sent.kept, sent.token()) == (None, "t")
    provider.kept = "renewed"
    sent = cloudpickle.loads(cloudpickle.dumps(sink.settings)).client.oauth_token_provider
    assert sent.kept == "renewed", "what can be sent goes as it is"
    with raises(ConfigurationError, "oauth_token_provider="):
        ow.KafkaSink(**GOOD, options=login, oauth_token_provider=Tokens(threading.Lock()))


def test_what_a_task_holds_back_has_limits():
    ow.KafkaSink(**GOOD, held_bytes=3 << 30)
    for wrong in (1, 1 << 50):
        with raises(ConfigurationError, "held_bytes"):
            ow.KafkaSink(**GOOD, held_bytes=wrong)


@pytest.mark.parametrize(
    "option", ["minPartitions", "maxRecordsPerPartition", "MAXRECORDSPERPARTITION"]
)
def test_a_partition_is_not_split_among_tasks(option: str):
    from onceward.kafka.source.source import _own

    with pytest.raises(ContradictoryOptions, match=option):
        _own({option: 8})


@pytest.mark.parametrize(
    ("said", "then"),
    [
        (
            "the batch runs again; check the brokers",
            "; then the batch runs again; check the brokers",
        ),
        ("nothing; the batch runs again", "; then the batch runs again"),
        (
            "none: the batch runs again under a new epoch",
            "; then the batch runs again under a new epoch",
        ),
        ("", ""),
    ],
)
def test_what_was_tried_often_enough_says_that_a_start_is_needed(said: str, then: str):
    error = SendFailed("lost", next_step=said)
    for _ in range(2):  # the same one may be met twice
        with_the_next_start(error)
        assert error.next_step == f"start the query again, as ow.supervise does{then}"


@pytest.mark.parametrize(
    ("master", "given", "conf", "expected"),
    [
        ("local[2]", None, {"spark.driver.host": "driver"}, ("127.0.0.1", "127.0.0.1")),
        ("local[2]", "localhost", {}, ("127.0.0.1", "localhost")),
        ("local[2]", "::1", {}, ("::", "::1")),
        # One job's file for a cluster and for a laptop
        ("local[2]", "pod.example", {"spark.driver.host": "driver"}, (EVERYWHERE, "pod.example")),
        ("k8s://c", None, {"spark.driver.host": "driver"}, ("driver", "driver")),
        ("k8s://c", "pod.example", {"spark.driver.host": "driver"}, (EVERYWHERE, "pod.example")),
        ("k8s://c", "pod.example", {"spark.driver.bindAddress": "node.example"}, ("node.example", "pod.example")),
        ("k8s://c", "a", {"spark.driver.host": "fd00::7"}, ("::", "a")),
    ],
)  # fmt: skip
def test_the_sequencer_listens_where_tasks_are_sent(
    master: str, given: str | None, conf: dict[str, str], expected: tuple[str, str]
):
    context: Any = SimpleNamespace(master=master, getConf=lambda: conf)
    settings: Any = SimpleNamespace(sequencer_host=given)
    assert sequencer_hosts(context, settings) == expected


def test_a_worker_logs_in_by_the_newest_batchs_tokens():
    """Which the driver renews: executors may not reach the identity provider."""

    provider: Any = SimpleNamespace(token=lambda: "")
    options = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}
    settings, _ = settings_from_options(
        "localhost:1", options, client_id="worker", oauth_token_provider=provider
    )

    def shared(token: str) -> KafkaClient:
        arrived: Any = SimpleNamespace(token=lambda: token)
        return KafkaClient.shared(replace(settings, oauth_token_provider=arrived))

    client = shared("of 9:00")
    try:
        assert shared("of 10:00") is client
        assert client._connections._loop.manager.tokens.token() == "of 10:00"
        client._connections.start_anew()
        assert client._connections._loop.manager.tokens.token() == "of 10:00"
    finally:
        client.close()


@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once", "none"])
def test_a_query_may_read_ledgers_if_its_sink_has_none(delivery: Delivery):
    """A copy of all topics of a cluster, say."""
    read = SourceRange({}, {"onceward-ledger": {"0": 3}})
    running = RunningBatch(BatchId("q", 5), "r", "", (read,), (), False, None)
    settings = ow.KafkaSink(**GOOD, delivery=delivery).settings
    has_one = delivery == "exactly_once"
    with raises(ContradictoryOptions, "ledger_topic=") if has_one else nullcontext():
        refuse_own_topics(settings, running, [KafkaSource(0, frozenset(["a:9092"]))])


@pytest.mark.parametrize(
    ("brokers", "replicas", "thin"), [(1, 1, False), (3, 1, True), (3, 2, True), (3, 3, False)]
)
def test_a_topic_that_is_created_thinner_than_it_could_be_is_told(
    brokers: int, replicas: int, thin: bool, caplog: pytest.LogCaptureFixture
):
    made: list[str] = []

    def topic_partitions(names: list[str]) -> None:
        raise TopicMissing(f"{names}")

    client: Any = SimpleNamespace(
        topic_partitions=topic_partitions,
        create_topic=lambda topic, _: made.append(topic),
        brokers=lambda: list(range(brokers)),
        replication_factor=lambda _: replicas,
    )
    check_topic(client, ow.KafkaSink(**GOOD, create_topic_partitions=2).settings, "t")
    assert made == ["t"]
    assert ("replication factor" in caplog.text) == thin


@pytest.mark.parametrize(
    "limit", [{"batch_timeout_s": 5}, {"checkpointing": ow.checkpointing(timeout="5 s")}]
)
def test_a_batch_without_a_ledger_has_its_time_limit(
    limit: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    clock = [0.0]

    def hang(_: object, lost: Lost) -> Any:
        assert lost() is None
        clock[0] += 6
        raise RuntimeError("the job was cancelled")

    monkeypatch.setattr(plain.surroundings, "monotonic", lambda: clock[0])
    monkeypatch.setattr(plain, "prepare", lambda *_, **__: SimpleNamespace(rows=None))
    monkeypatch.setattr(plain.spark_jobs, "plan_write", lambda *_: None)
    monkeypatch.setattr(plain.job, "collect", hang)
    monkeypatch.setattr(plain.PlainBatches, "_settings_for", lambda batches, _: batches._settings)
    batches = plain.PlainBatches(ow.KafkaSink(**GOOD, delivery="at_least_once", **limit).settings)
    running = RunningBatch(BatchId("q", 5), "r", "", (), (), False, None)
    frame: Any = None
    for _ in range(2):
        with raises(BatchTimedOut):
            batches._write(Write(frame, "t"), running)


@pytest.mark.parametrize("delivery", ["at_least_once", "none"])
def test_dead_letters_without_a_ledger_are_counted(
    delivery: Delivery, monkeypatch: pytest.MonkeyPatch
):
    """By them an alert fires (OncewardDeadLetters)."""
    batches = plain.PlainBatches(ow.KafkaSink(**GOOD, delivery=delivery).settings)
    monkeypatch.setattr(batches, "_write", lambda write, _: 2 if write.set_aside else 5)
    frame: Any = None
    state = MetricState()
    running = RunningBatch(BatchId("q", 5), "r", "", (), (), False, None)
    stop = events.probe(lambda event: state.hear(event, 0.0))
    try:
        writes = [Write(frame, "t"), Write(frame, "dead", set_aside=True)]
        batches.process(writes, running, CallMemory())
    finally:
        stop()
    counted = {(name, labels[1:]): value for name, labels, value in state.samples(0.0)}
    assert counted["records", ()] == 7
    assert counted["dead_letters", ("InvalidRecord",)] == 2


def test_a_run_without_a_ledger_is_heard_of_once_however_often_its_sink_is_built(
    monkeypatch: pytest.MonkeyPatch,
):
    """By it metrics listen to Spark: a query that is idle was one without a commit."""
    monkeypatch.setattr(plain.PlainBatches, "_write", lambda *_: 5)
    made = metrics.Metrics()
    asked: list[str] = []
    monkeypatch.setattr(made._progress, "listen_to", asked.append)
    frame: Any = None
    try:
        for number, run_id in enumerate(("of-plain-1", "of-plain-1", "of-plain-2")):
            sink = ow.KafkaSink(**GOOD, delivery="at_least_once")
            running = RunningBatch(BatchId("q", number), run_id, "", (), (), False, None)
            sink._process(frame, [Write(frame, "t")], running)
    finally:
        made.stop()
    assert asked == ["q", "q"]


@pytest.mark.parametrize("aside", [False, True], ids=["nothing", "dead letters"])
def test_a_batch_without_a_ledger_of_which_nothing_is_written_has_its_state_computed(
    aside: bool, monkeypatch: pytest.MonkeyPatch
):
    """Once more where that fails, as a frame is written once more."""
    computed: list[Any] = []

    def compute(frame: Any, *_: Any) -> None:
        computed.append(frame)
        if len(computed) == 1:
            raise SendFailed("an executor was lost")

    frame: Any = SimpleNamespace()
    writes = [Write(frame, "dead", set_aside=True)] if aside else []
    batches = plain.PlainBatches(ow.KafkaSink(**GOOD, delivery="at_least_once").settings)
    monkeypatch.setattr(batches, "_write", lambda *_: 2)
    monkeypatch.setattr(plain.spark_jobs, "compute", compute)
    for stateful in (True, False):
        running = RunningBatch(BatchId("q", 5), "r", "", (), (), stateful, None, frame=frame)
        batches.process(writes, running, CallMemory())
        assert computed == [frame, frame]


def called_by_spark(sink: ow.KafkaSink, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that calls the sink for a batch; the call may fail before or while it
    writes."""
    frame: Any = SimpleNamespace(sparkSession=None)
    runs: list[str] = []
    monkeypatch.setattr(foreach_batch.progress, "remember", lambda *_: None)
    monkeypatch.setattr(foreach_batch, "is_being_stopped", lambda _: False)
    monkeypatch.setattr(foreach_batch, "current_run_id", lambda _: runs[-1])
    monkeypatch.setattr(foreach_batch.decoding, "find_steps", lambda *_: ())
    monkeypatch.setattr(sink, "_checked_writes", lambda *_: [Write(frame, "t")])
    # A wrong number is over a thousand: Spark knows the right one
    monkeypatch.setattr(sink_module, "failed_call", lambda _, number: (number % 1000, False))

    def begin(_: object, batch_id: int) -> RunningBatch:
        if batch_id >= 1000:
            raise UnsupportedQuery("in another thread", details={ROWS_REFUSED: True})
        return RunningBatch(BatchId("q", batch_id), runs[-1], "", (), (), False, None)

    def call(batch_id: int, fails: bool = False, run: str = "r") -> None:
        runs.append(run)
        failure = Mock(side_effect=RowRefused("no")) if fails else Mock(return_value=1)
        monkeypatch.setattr(plain.PlainBatches, "_write", failure)
        sink(frame, batch_id)

    monkeypatch.setattr(foreach_batch, "running_batch", begin)
    return call


@pytest.mark.parametrize("skipped", ["refuse", "allow"])
@pytest.mark.parametrize("beside_a_good_call", [True, False])
def test_without_a_ledger_a_failure_before_the_first_write_is_kept_in_mind(
    beside_a_good_call: bool, skipped: Any, monkeypatch: pytest.MonkeyPatch
):
    """The refusal spoke of batches for which the sink was not called, or there was none. What a
    thread was refused no other call has written."""
    sink = ow.KafkaSink(**GOOD, delivery="at_least_once", skipped_batches=skipped)
    call = called_by_spark(sink, monkeypatch)
    call(4)
    with pytest.raises(UnsupportedQuery):
        call(1005)
    if beside_a_good_call:
        call(5)
    for batch_id in (6, 8):
        with pytest.raises(BatchNotWritten, match="for batch 5 had failed"):
            call(batch_id)


def test_without_any_guarantee_a_function_may_keep_failures(monkeypatch: pytest.MonkeyPatch):
    call = called_by_spark(ow.KafkaSink(**GOOD, delivery="none"), monkeypatch)
    with pytest.raises(RowRefused):
        call(4, fails=True)
    with pytest.raises(UnsupportedQuery):
        call(1005)
    call(6)


@pytest.mark.parametrize("skipped", ["refuse", "allow"])
@pytest.mark.parametrize("tried_again", [True, False])
def test_without_a_ledger_a_function_that_keeps_a_failure_is_told_at_the_next_batch(
    tried_again: bool, skipped: Any, monkeypatch: pytest.MonkeyPatch
):
    """A second call for the batch is written like the first, and may make good for it."""
    sink = ow.KafkaSink(**GOOD, delivery="at_least_once", skipped_batches=skipped)
    call = called_by_spark(sink, monkeypatch)

    call(4)
    call(4)
    with pytest.raises(RowRefused):
        call(5, fails=True)
    if tried_again:
        call(5)
        call(6)
        return
    for batch_id in (6, 6, 7):
        with pytest.raises(BatchNotWritten, match="for batch 5 had failed") as refused:
            call(batch_id)
        assert f"goes on behind batch {batch_id - 1}; write the rows from batch 5" in str(
            refused.value
        )
    call(7, run="another")
    call(8, run="another")
