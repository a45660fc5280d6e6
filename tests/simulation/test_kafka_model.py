"""The model of Kafka where real brokers cannot be made to show it: cut-off leaders, lost replicas,
the log cleaner.
"""

from __future__ import annotations

from typing import Any

import kafka.errors as kafka_errors
import pytest
from kafka.protocol.metadata import FindCoordinatorRequest
from kafka.protocol.producer import EndTxnRequest

from onceward.ids import ProducerIdentity, TopicPartition
from onceward.kafka.records.batch import Fragment, stamp
from onceward.kafka.records.compression import Codec
from onceward.kafka.records.reader import read_batches
from onceward.kafka.wire.appends.produce_frame import ProduceFrame
from simulation.model_check.sides import ModelSide
from simulation.model_check.talk import Talk
from simulation.world.kafka import faults
from simulation.world.kafka.faulty import FaultyAnswers
from support.wire_fixtures import error_rules

NOBODY = ProducerIdentity(-1, -1)


@pytest.fixture
def three() -> Talk:
    return Talk(ModelSide("4.3.1", 2, nodes=3), "t", "m")


def side(talk: Talk) -> ModelSide:
    assert isinstance(talk.side, ModelSide)
    return talk.side


def visible(talk: Talk, topic: str, *, committed: bool = True) -> list[int]:
    """First offsets of the batches that a reader is shown, without those that it is told were
    aborted.
    """
    talk.read(topic, committed=committed)
    batches, aborted = talk.facts[-1][5:]
    shown, aborting = [], set()
    for base, _, kind, _, producer, *_ in batches:
        aborting |= {name for name, first in aborted if first == base}
        if kind != "data":
            aborting.discard(producer)
        elif producer not in aborting:
            shown.append(base)
    return shown


def codes(talk: Talk) -> list[Any]:
    return [fact[2] for fact in talk.facts]


def send(
    talk: Talk,
    node: int,
    who: ProducerIdentity,
    topic: str,
    sequence: int,
    *,
    name: str | None,
    acks: int = -1,
) -> list[Any]:
    """Produce to a node that may not lead, and may not answer soon; the answers as they come."""
    where = TopicPartition(talk.real(topic), 0)
    part = stamp(one_record(side(talk).now_ms()), who, sequence, transactional=name is not None)
    frame = ProduceFrame(
        {where: part},
        transactional_id=name and talk.real(name),
        acks=acks,
        timeout_ms=30_000,
        min_version=11,
        max_version=12,
    )
    answers: list[Any] = []
    side(talk).cluster.receive(node, "test", frame, answers.append)
    return answers


def one_record(now_ms: int) -> Fragment:
    """Whatever it is: nobody looks into it here."""
    return Fragment(b"record", 1, Codec.NONE, now_ms, now_ms, None)  # type: ignore[arg-type]


def code_of(answer: Any) -> int:
    return int(answer.responses[0].partition_responses[0].error_code)


def test_a_cut_off_leader_acknowledges_nothing(three: Talk) -> None:
    three.topic("out")
    me = three.init("id")
    three.produce(me, "out", 0, name="id")
    cluster, leader = side(three).cluster, three.side.known_leader(three.real("out"), 0)
    cluster.isolate(leader)
    answers = send(three, leader, me, "out", 1, name="id")
    assert answers == []
    three.side.pause(29_000)
    assert answers == []
    three.side.pause(2_000)
    assert [code_of(answer) for answer in answers] == [7]


def test_a_cut_off_leader_shows_its_old_end(three: Talk) -> None:
    three.topic("out")
    cluster, leader = side(three).cluster, three.side.known_leader(three.real("out"), 0)
    me = three.idempotent()
    three.produce(me, "out", 0)
    cluster.isolate(leader)
    three.side.pause(10_000)
    assert three.side.known_leader(three.real("out"), 0) != leader
    three.produce(me, "out", 1)
    stale = cluster.partitions[three.real("out"), 0].led_by(leader)
    assert stale is not None
    assert stale.log.high == 1
    assert visible(three, "out") == [0, 1]
    cluster.heal(leader)
    three.side.pause(1_000)
    assert cluster.partitions[three.real("out"), 0].led_by(leader) is None


def test_what_only_a_cut_off_leader_has_is_lost(three: Talk) -> None:
    three.topic("out")
    cluster, leader = side(three).cluster, three.side.known_leader(three.real("out"), 0)
    me = three.idempotent()
    three.produce(me, "out", 0)
    cluster.isolate(leader)
    answers = send(three, leader, me, "out", 1, name=None, acks=1)
    assert [code_of(answer) for answer in answers] == [0]
    three.side.pause(10_000)
    assert visible(three, "out") == [0]
    three.produce(me, "out", 1)
    cluster.heal(leader)
    three.side.pause(1_000)
    cluster.move_leader(three.real("out"), 0, leader)
    assert visible(three, "out") == [0, 1]
    three.produce(me, "out", 1)
    assert three.facts[-1] == ["produce", "out", 0, 1]  # a duplicate of what the others have


def test_a_marker_outlives_the_leader_that_has_not_replicated_it(
    three: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    me = three.init("id")
    cluster, home = side(three).cluster, three.side.coordinator_of("transaction", three.real("id"))
    topic = next(name for name in ("a", "b", "c") if _made(three, name) != home)
    three.produce(me, topic, 0, name="id")
    leader = three.side.known_leader(three.real(topic), 0)
    other = next(node for node in cluster.node_ids if node not in (home, leader))
    write_marker = cluster.write_marker

    def cut_off(*marker: Any) -> Any:
        """So that it is not acknowledged yet."""
        monkeypatch.undo()
        cluster.isolate(other)
        return write_marker(*marker)

    monkeypatch.setattr(cluster, "write_marker", cut_off)
    answers: list[Any] = []
    request = EndTxnRequest(
        transactional_id=three.real("id"), producer_id=me.producer_id, producer_epoch=me.epoch,
        committed=True,
        min_version=5, max_version=5,
    )  # fmt: skip
    cluster.receive(home, "test", request, answers.append)
    three.side.pause(20)
    assert [answer.error_code for answer in answers] == [0]
    assert cluster.transactions()[three.real("id")].state == "PrepareCommit"
    cluster.crash(leader)
    cluster.heal(other)
    three.side.pause(5_000)
    cluster.restart(leader)
    three.side.pause(60_000)
    assert cluster.transactions()[three.real("id")].state == "CompleteCommit"
    assert visible(three, topic) == [0]


def _made(talk: Talk, topic: str) -> int:
    """Who leads it."""
    talk.topic(topic)
    return talk.side.known_leader(talk.real(topic), 0)


def test_a_cut_off_coordinator_commits_nothing(three: Talk) -> None:
    three.topic("out")
    me = three.init("id")
    three.produce(me, "out", 0, name="id")
    cluster = side(three).cluster
    home = three.side.coordinator_of("transaction", three.real("id"))
    cluster.isolate(home)
    request = EndTxnRequest(
        transactional_id=three.real("id"), producer_id=me.producer_id, producer_epoch=me.epoch,
        committed=True,
        min_version=5, max_version=5,
    )  # fmt: skip
    answers: list[Any] = []
    cluster.receive(home, "test", request, answers.append)
    three.side.pause(60_000)
    assert [answer.error_code for answer in answers] == [15]
    assert cluster.transactions()[three.real("id")].state in ("Ongoing", "CompleteAbort")
    cluster.heal(home)
    three.side.pause(5_000)
    assert cluster.transactions()[three.real("id")].state == "CompleteAbort"  # of its timeout
    assert visible(three, "out") == []


def test_a_leader_that_dies_loses_what_nobody_fetched(three: Talk) -> None:
    side(three).around.lags["replicate"] = 50.0
    cluster = side(three).cluster
    cluster.health.lags = True
    three.topic("out")
    me = three.idempotent()
    leader = three.side.known_leader(three.real("out"), 0)
    assert [code_of(a) for a in send(three, leader, me, "out", 0, name=None, acks=1)] == [0]
    cluster.crash(leader)
    three.side.pause(10_000)
    assert visible(three, "out") == []
    cluster.restart(leader)
    three.side.pause(1_000)
    assert cluster.partitions[three.real("out"), 0].followers[leader].end == 0


def test_a_dying_broker_breaks_what_is_unanswered(three: Talk) -> None:
    side(three).around.lags["replicate"] = 50.0
    cluster = side(three).cluster
    cluster.health.lags = True
    three.topic("out")
    leader = three.side.known_leader(three.real("out"), 0)
    answers = send(three, leader, three.idempotent(), "out", 0, name=None)
    assert answers == []
    cluster.crash(leader)
    assert answers == [None]
    three.side.pause(60_000)
    assert answers == [None]


def test_a_new_leader_does_not_know_what_was_committed(three: Talk) -> None:
    around, cluster = side(three).around, side(three).cluster
    three.topic("out")
    three.produce(three.idempotent(), "out", 0)
    partition = cluster.partitions[three.real("out"), 0]
    partition.settle()
    for follower in partition.followers.values():
        follower.high = 0  # nobody has fetched since
    around.lags["replicate"] = 100.0
    cluster.health.lags = True
    cluster.move_leader(three.real("out"), 0)
    assert partition.log.high == 0
    assert visible(three, "out") == []
    three.ends("out")  # OFFSET_NOT_AVAILABLE is asked again
    assert three.facts[-1] == ["ends", "out", 0, 1, 1]


def test_the_news_of_a_topic_travel() -> None:
    talk = Talk(ModelSide("4.3.1", 2, nodes=3), "t", "m")
    side(talk).around.lags["metadata"] = 500.0
    talk.side.make_topic(talk.real("out"), 1, {})
    talk.metadata("out")
    talk.side.pause(600)
    talk.metadata("out")
    assert codes(talk) == [3, 0]


def test_versions_that_both_sides_speak() -> None:
    talk = Talk(ModelSide("3.9.1", 1), "t", "m")
    talk.topic("out")
    with pytest.raises(kafka_errors.IncompatibleBrokerVersion, match="Produce"):
        talk.produce(talk.idempotent(), "out", 0, version=12)


def test_an_expired_id_begins_anew() -> None:
    talk = Talk(ModelSide("4.3.1", 2), "t", "m")
    first = talk.init("id")
    talk.side.pause(8 * 86_400_000)
    talk.describe("id")
    talk.init("id", first)
    talk.end("id", first, True)
    assert talk.facts[1:] == [
        ["describe", "id", 105, "", "", -1, 0],
        ["init", "id", 0, "P1", 0],
        ["commit", "id", 49, "nobody", -1],
    ]


def test_a_silent_producer_is_forgotten() -> None:
    talk = Talk(ModelSide("4.3.1", 2), "t", "m")
    talk.topic("out")
    me = talk.idempotent()
    talk.produce(me, "out", 0)
    talk.side.pause(2 * 86_400_000)
    talk.produce(me, "out", 7)
    assert talk.facts[-1] == ["produce", "out", 0, 1]


def test_the_cleaner_keeps_what_was_committed_last() -> None:
    talk = Talk(ModelSide("4.3.1", 2), "t", "m")
    talk.topic("ledger", cleanup_policy="compact")
    me = talk.init("id")
    for commit in (True, True, False):
        talk.produce(me, "ledger", 0, name="id", key=b"k")
        me = talk.end("id", me, commit)
        talk.settled("id")
    talk.produce(me, "ledger", 0, name="id", key=b"other")
    me = talk.end("id", me, True)
    talk.settled("id")
    cluster = side(talk).cluster
    cluster.compact(talk.real("ledger"), 0)
    assert visible(talk, "ledger") == [2, 6]
    log = cluster.partitions[talk.real("ledger"), 0].log
    assert [(entry.base, entry.kind) for entry in log.entries] == [
        (1, "commit"), (2, "data"), (3, "commit"), (5, "abort"), (6, "data"), (7, "commit"),
    ]  # fmt: skip
    assert len(list(read_batches(log.read(0, log.high, 1 << 20)[0]))) == 6  # CRCs fit
    for _ in range(2):  # a marker outlives its records by one pass
        cluster.compact(talk.real("ledger"), 0, markers=True)
    assert [entry.base for entry in log.entries] == [2, 3, 6, 7]


def test_the_cleaner_leaves_what_is_open() -> None:
    talk = Talk(ModelSide("4.3.1", 2), "t", "m")
    talk.topic("ledger", cleanup_policy="compact")
    me = talk.init("id")
    talk.produce(me, "ledger", 0, name="id", key=b"k")
    talk.produce(me, "ledger", 1, name="id", key=b"k")
    side(talk).cluster.compact(talk.real("ledger"), 0)
    talk.end("id", me, True)
    talk.settled("id")
    assert visible(talk, "ledger") == [0, 1]


def test_a_rewritten_batch_has_its_other_records() -> None:
    talk = Talk(ModelSide("4.3.1", 2), "t", "m")
    talk.topic("ledger", cleanup_policy="compact")
    me = talk.idempotent()
    talk.produce(me, "ledger", 0, 3, key=b"k")
    talk.produce(me, "ledger", 3, 1, key=b"other")
    side(talk).cluster.compact(talk.real("ledger"), 0)
    log = side(talk).cluster.partitions[talk.real("ledger"), 0].log
    batches = list(read_batches(log.read(0, log.high, 1 << 20)[0]))
    assert [(b.base_offset, b.last_offset, [r.offset for r in b.records]) for b in batches] == [
        (0, 2, [2]),
        (3, 3, [3]),
    ]


def test_an_append_of_the_coordinator_can_be_late(
    monkeypatch: pytest.MonkeyPatch, three: Talk
) -> None:
    """The answer is COORDINATOR_NOT_AVAILABLE, and whoever reads the log next commits it."""
    three.topic("out")
    me = three.init("id")
    three.produce(me, "out", 0, name="id")
    cluster = side(three).cluster
    cluster.slow_state_log = True
    slow = iter([True])
    monkeypatch.setattr(
        side(three).around,
        "fires",
        lambda fault: fault == "kafka:state log slow" and next(slow, False),
    )
    request = EndTxnRequest(
        transactional_id=three.real("id"), producer_id=me.producer_id, producer_epoch=me.epoch,
        committed=True,
        min_version=5, max_version=5,
    )  # fmt: skip
    answers: list[Any] = []
    home = three.side.coordinator_of("transaction", three.real("id"))
    cluster.receive(home, "test", request, answers.append)
    three.side.pause(31_000)
    assert [answer.error_code for answer in answers] == [15]
    assert cluster.transactions()[three.real("id")].state == "Ongoing"
    partition = cluster.home_of(three.real("id"))
    cluster.move_leader(partition.topic, partition.index)
    three.settled("id")
    assert visible(three, "out") == [0]


def test_every_row_of_the_error_table_is_met() -> None:
    for api, code, _ in error_rules():
        if code and api.value not in faults.UNASKED:
            told = (
                code in faults.ANSWERS[api.value]
                or code in faults.GIVEN[api.value]
                or code in faults.NEVER
            )
            assert told, (
                f"no broker of the model answers {api.value} with {code}, and nobody says why"
            )


def test_no_answer_is_listed_that_nobody_judges() -> None:
    known = {(api.value, code) for api, code, _ in error_rules()}
    listed = {
        (api, code)
        for table in (faults.ANSWERS, faults.GIVEN)
        for api, found in table.items()
        for code in found
    }
    assert listed <= known


@pytest.mark.parametrize(
    ("api", "code"), [(api, code) for api, codes_of in faults.ANSWERS.items() for code in codes_of]
)
def test_each_refusal_has_its_code_in_its_place(
    api: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked by requests like Onceward's, through the client's own eyes: the words of the
    conversations.
    """
    talk = Talk(ModelSide("4.3.1", 1), "t", "m")
    talk.topic("out")
    me = talk.init("id")
    cluster = side(talk).cluster
    around = side(talk).around
    fault = faults.kind(api, code)
    monkeypatch.setattr(around, "is_on", lambda kind: kind == fault)
    monkeypatch.setattr(around, "fires", lambda kind: kind == fault)
    cluster._faults = FaultyAnswers(around)
    monkeypatch.setattr("simulation.model_check.asking.PASSING", frozenset())
    asked: list[Any] = []

    def ask(request: Any, where: Any, told: Any, passing: Any = ()) -> None:
        asked.append(told(side(talk).ask(request, where)))
        raise _Enough

    monkeypatch.setattr(talk, "_ask", ask)
    with pytest.raises(_Enough):
        _ask(talk, api, me)
    assert code in asked[0] or (api in ("Metadata", "DescribeConfigs") and asked[0] == [0])


class _Enough(Exception):
    """The answer was seen."""


def _ask(talk: Talk, api: str, me: ProducerIdentity) -> None:
    ask = {
        "Metadata": lambda: talk.metadata("out"),
        "FindCoordinator": lambda: _find(talk),
        "InitProducerId": lambda: talk.init("id"),
        "AddPartitionsToTxn": lambda: talk.add("id", me, ("out", 0)),
        "AddOffsetsToTxn": lambda: talk.add_offsets("id", me, "group"),
        "TxnOffsetCommit": lambda: talk.commit_offsets(
            "id", me, "group", {("out", 0): 1}, version=5
        ),
        "EndTxn": lambda: talk.end("id", me, False, version=5),
        "Produce": lambda: talk.produce(ProducerIdentity(99_000, 0), "out", 0),
        "DescribeTransactions": lambda: talk.describe("id"),
        "ListOffsets": lambda: talk.ends("out"),
        "OffsetFetch": lambda: talk.group("group"),
        "Fetch": lambda: talk.read("out"),
        "CreateTopics": lambda: talk.create("new"),
        "DescribeConfigs": lambda: talk.topic_config("out", "cleanup.policy"),
    }
    ask[api]()


def _find(talk: Talk) -> None:
    request = FindCoordinatorRequest(key="k", key_type=1, coordinator_keys=["k"], max_version=5)
    talk._ask(request, ("any", None), lambda a: [c.error_code for c in a.coordinators])
