"""Whoever does what an error of a replay of dead letters, of a transaction or of a broker's answer
says is done. None of these needs Spark or a server.
"""

from __future__ import annotations

import os
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import onceward as ow
from onceward.cli.dead_letters import _place
from onceward.engine.ledger.record import LedgerRecord, Output
from onceward.errors import (
    CommitInDoubt,
    Fenced,
    OncewardError,
    RecordTooLarge,
    Recovery,
    TopicMissing,
    TransactionTimeoutTooLarge,
)
from onceward.ids import (
    AttemptId,
    BatchId,
    PipelineId,
    ProducerIdentity,
    SourceRange,
    TaskAttempt,
    TopicPartition,
    pipeline_id,
    topic_name,
)
from onceward.kafka.dead_letters import ledger as replays
from onceward.kafka.dead_letters.replay import Outcome, Replay
from onceward.kafka.dead_letters.sending import Parcel, Sender, _given_up
from onceward.kafka.dead_letters.topic import Letter, LetterFilter
from onceward.kafka.ledger.chain import KafkaChain
from onceward.kafka.sink.run import KafkaRun
from onceward.kafka.sink.sequencer.leases import superseded_error
from onceward.kafka.sink.settings import name_checkpointing
from onceward.kafka.sink.task_reports import _mismatch
from onceward.kafka.wire.appends.producer import _Send
from onceward.kafka.wire.client import KafkaClient
from onceward.kafka.wire.conversation import Refused
from onceward.kafka.wire.error_table import Api, find_rule
from onceward.kafka.wire.options.security import MECHANISMS
from onceward.kafka.wire.options.settings import settings_from_options
from onceward.kafka.wire.transactions.fencing import (
    Fencing,
    refused_early,
    taken_over,
    timeout_too_large,
)
from onceward.kafka.wire.transactions.states import TRANSITIONS, State, Step
from onceward.kafka.wire.transactions.transaction import Transaction
from support.next_steps import Done, Row, Wrong, follow, named

ID, P0 = ProducerIdentity(7, 3), TopicPartition("orders", 0)


def raising(error: OncewardError | None) -> None:
    assert error is not None
    raise error


def letter(offset: int = 7, key: bytes | None = b"k", partition: int = 0, size: int = 9) -> Letter:
    home = TopicPartition("orders", partition)
    where = TopicPartition("dead", 0)
    return Letter(where, offset, 0, key, os.urandom(size), (), "DoesNotFit", "", "p", home, 1)


class Cluster:
    """Topics with their partitions and settings, in the place of a client."""

    def __init__(self, **partitions: int) -> None:
        self.partitions, self.configs = partitions, dict[str, str]()

    def topic_partitions(self, topics: list[str]) -> dict[str, dict[int, int]]:
        if missing := [name for name in topics if name not in self.partitions]:
            raise TopicMissing(f"{missing}")
        return {name: dict.fromkeys(range(self.partitions[name]), 0) for name in topics}

    def topic_config(self, topic: str, **_: Any) -> dict[str, str]:
        return self.configs

    def broker_config(self, **_: Any) -> dict[str, str]:
        return self.configs


def sender(there: Cluster, to: str | None = None, **options: Any) -> Any:
    given = {name.replace("_", "."): value for name, value in options.items()}
    producer = settings_from_options("b:1", given, client_id="c")[1]
    unused: Any = None
    client: Any = there
    return Sender(client, unused, producer, unused, to=to, run_id="r")


def left_out(option: str, place: str, which: Letter) -> None:
    """Leave a letter out as ``--leave-out 0:7`` does, and no other."""
    assert option == "--leave-out"
    rest = LetterFilter(left_out=frozenset([_place(place)]))
    assert which not in rest
    assert letter(which.offset + 1) in rest


def test_a_letter_without_a_key_for_a_compacted_topic() -> None:
    bare, compacted = letter(key=None), Cluster(orders=1)
    compacted.configs["cleanup.policy"] = "compact"

    def done(option: str, place: str, other: str) -> None:
        left_out(option, place, bare)
        assert other == "--to"
        sender(Cluster(other=1), to="other")._must_have_keys("other", [bare])

    follow(
        lambda: sender(compacted)._must_have_keys("orders", [bare]),
        r"later: (\S+) (\S+); or feed it back to another topic with (\S+)$",
        done,
    )


def test_a_letter_that_is_too_large_for_its_topic() -> None:
    small = Cluster(orders=1)
    small.configs["max.message.bytes"] = "1000"
    large, flat = letter(size=3000), letter()
    flat = Letter(flat.where, 7, 0, b"k", b"a" * 3000, (), "DoesNotFit", "", "p", flat.source, 1)

    def fit(which: Letter, **options: Any) -> None:
        sender(small, **options)._must_fit("orders", which, 0)

    def done(option: str, place: str, setting: str, limit: str, topic: str) -> None:
        left_out(option, place, large)
        fit(flat, **{setting.replace(".", "_"): "gzip"})
        small.configs[limit] = "9000"
        assert topic == "orders"
        fit(large)

    follow(
        lambda: fit(large),
        r"later: (\S+) ([\d:]+); or set (\S+) in --command-config.*, or raise (\S+) of (\w+) ",
        done,
    )


def test_a_letter_of_a_partition_that_is_gone() -> None:
    there, far = Cluster(orders=2), letter(partition=5)

    def done(grow: str, by_key: str, option: str, place: str) -> None:
        left_out(option, place, far)
        assert sender(there, to=by_key)._partitions(by_key, [far])[0] < 2
        there.partitions[grow] = 6
        assert sender(there)._partitions(grow, [far]) == np.array([5])

    follow(
        lambda: sender(there)._partitions("orders", [far]),
        r"^add partitions to (\w+), or .*--to (\w+); or leave this one .*later: (\S+) (\S+)$",
        done,
    )


def test_a_letter_of_a_topic_that_is_gone() -> None:
    there, lost = Cluster(other=1), letter()

    def done(create: str, to: str, choose: str, option: str, place: str) -> None:
        left_out(option, place, lost)
        assert (to, choose) == ("--to", "--source-topic")
        sender(there, to="other")._partitions("other", [lost])
        assert lost not in LetterFilter(source_topics=["other"])
        there.partitions[create] = 1
        sender(there)._partitions(create, [lost])

    follow(
        lambda: sender(there)._partitions("orders", [lost]),
        r"^create (\w+), name another topic with (\S+), or .* with (\S+?); or .*: (\S+) (\S+)$",
        done,
    )


def test_where_a_replay_goes() -> None:
    for same in ("dead", "ledger"):
        follow(
            partial(Replay, "dead", "ledger", to=same),
            r"^name another topic$",
            partial(Replay, "dead", "ledger", to="other"),
        )


def test_letters_that_name_no_source() -> None:
    outcome, nobodys = Outcome(unaddressed=1, unaddressed_at=["dead-0@7"]), letter()
    nobodys = Letter(nobodys.where, 7, 0, b"k", b"v", (), None, "")
    replay = Replay("dead", "ledger")
    assert not replay._goes_back(nobodys, Outcome())

    def done(to: str, of_class: str, of_topic: str) -> None:
        assert (to, of_class, of_topic) == ("--to", "--class", "--source-topic")
        assert Replay("dead", "ledger", to="other")._goes_back(nobodys, Outcome())
        for wanted in (LetterFilter(classes=["DoesNotFit"]), LetterFilter(source_topics=["a"])):
            after = Outcome()
            assert not Replay("dead", "ledger", wanted)._goes_back(nobodys, after)
            replay._refuse_the_unaddressed(after)

    follow(
        lambda: replay._refuse_the_unaddressed(outcome),
        r"feed them back with (\S+), or leave them out with (\S+) or (\S+)$",
        done,
    )


def replay_record(topic: str) -> LedgerRecord:
    output = Output("kafka", 1, 0, {})
    return replays.next_record(
        None, replays.Replayed(), topic=topic, topic_id="i", attempt=AttemptId(1, 1), run_id="",
        output=output,
    )  # fmt: skip


def test_a_ledger_record_that_is_of_no_replay() -> None:
    strange = LedgerRecord(
        PipelineId("p"), 0, BatchId("q", 0), (SourceRange(None, {}),), AttemptId(1, 1), {}, 0
    )

    def done(option: str) -> None:
        assert option == "--ledger-topic"
        assert not replays.parse_replayed(None, "dead", "i").offsets
        replays.parse_replayed(replay_record("dead"), "dead", "i")

    follow(
        lambda: replays.parse_replayed(strange, "dead", "i"),
        r"with another (\S+) every letter counts as not replayed",
        done,
    )


def test_stretches_that_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replays, "MOST_BYTES", 20)
    after = replays.Replayed()
    for offset in range(0, 60, 2):
        after.of(TopicPartition("dead", 0)).add(offset, offset + 1)

    def joined() -> None:
        after.of(TopicPartition("dead", 0)).add(0, 60)
        replays._offsets(after, "dead")

    follow(lambda: replays._offsets(after, "dead"), r"which joins the stretches$", joined)


# What follows is about transactions.


def transaction(state: State = State.READY) -> Transaction:
    client = KafkaClient(settings_from_options("b:1", {}, client_id="c")[0])
    made = Transaction(client, "p", None)
    made.state = state
    return made


@pytest.mark.parametrize(
    ("state", "step"),
    [(s, n) for s in State if s is not State.FENCED for n in Step if n not in TRANSITIONS[s]],
)
def test_the_steps_that_are_allowed_now(state: State, step: Step) -> None:
    def tried(which: Step) -> None:
        with transaction(state)._step(which):
            pass

    def done(allowed: str) -> None:
        for name in allowed.split(", ") if allowed != "nothing" else []:
            tried(Step(name))

    follow(lambda: tried(step), r"^allowed now: (.*)$", done)


def test_a_client_in_a_forked_process() -> None:
    settings = settings_from_options("b:1", {}, client_id="c")[0]
    old = KafkaClient(settings)
    old._pid = -1
    follow(
        old._refuse_after_fork,
        r"^use KafkaClient\.(\w+)\(settings\) there$",
        lambda name: getattr(KafkaClient, name)(settings)._refuse_after_fork(),
    )


def test_a_transaction_timeout_above_the_brokers() -> None:
    there: Any = Cluster()
    there.configs["transaction.max.timeout.ms"] = "600000"

    def opened(**settings: Any) -> None:
        sink = ow.KafkaSink(bootstrap_servers="b:1", pipeline_id="p", topic="t", **settings)
        wanted = sink.settings.producer.transaction_timeout_ms
        assert wanted is not None
        if wanted > int(there.configs["transaction.max.timeout.ms"]):
            error = timeout_too_large(there, wanted)
            assert isinstance(error, TransactionTimeoutTooLarge)
            name_checkpointing(error, settings.get("checkpointing"))
            raise error

    def done(setting: str, most: str, theirs: str) -> None:
        opened(options={setting: most})
        there.configs[theirs] = "900000"
        opened(options={setting: 900_000})
        there.configs[theirs] = "600000"

    follow(
        lambda: opened(options={"transaction.timeout.ms": 900_000}),
        r"^lower (\S+) \(options= of the sink\) to at most (\d+), or raise (\S+) on the brokers",
        done,
    )

    def in_checkpointing(setting: str, theirs: str) -> None:
        a_minute_below = int(there.configs[theirs]) / 1000 - 60
        settings: dict[str, Any] = {setting: a_minute_below}
        opened(checkpointing=ow.checkpointing(**settings))

    follow(
        lambda: opened(checkpointing=ow.checkpointing(timeout="10 min")),
        r"^lower (\w+)= of ow\.checkpointing to at least a minute below (\S+), or raise",
        in_checkpointing,
    )


def sent(code: int, records: int = 1) -> None:
    send: Any = _Send.__new__(_Send)
    send._producer = SimpleNamespace(identity=ID, transactional_id="p")
    send._client = Cluster()
    append: Any = SimpleNamespace(partition=P0, fragment=SimpleNamespace(size=9, count=records))
    answer = SimpleNamespace(error_code=code, error_message=None, record_errors=())
    raising(send._refusal(append, answer, find_rule(Api.PRODUCE, code)))


def asked(api: Api, code: int) -> Wrong:
    return lambda: raising(Refused(api, code, find_rule(api, code), "it").as_error())


def sink(options: dict[str, Any] | None = None, /, **more: Any) -> ow.KafkaSink:
    where = {"bootstrap_servers": "b:9092", "pipeline_id": "p", "topic": "out"}
    return ow.KafkaSink(**where | more, options=options or {})


ANSWERS: list[Row] = [
    (
        asked(Api.METADATA, 17),
        r"a name of at most (\d+) letters, .*, and none of Kafka's own topics$",
        lambda most: topic_name("aZ9.-_" + "a" * (int(most) - 6)),
    ),
    (
        asked(Api.METADATA, 33),
        r"set (\S+) to one that the listener has",
        lambda name: [
            settings_from_options("b:1", {
                "security.protocol": "SASL_SSL", name: each, "sasl.username": "u",
                "sasl.password": "p",
            }, client_id="c")
            for each in MECHANISMS if each != "OAUTHBEARER"
        ],
    ),
    *(
        (
            asked(api, code),
            r"choose another pipeline_id, of letters, digits, dots and dashes",
            lambda: pipeline_id("aZ9.-"),
        )
        for api, code in [
            (Api.INIT_PRODUCER_ID, 42), (Api.FIND_COORDINATOR, 42), (Api.TXN_OFFSET_COMMIT, 24),
        ]
    ),
    (
        lambda: sent(21),
        r"leave (\w+) out of the options",
        lambda name: sink() if name == "acks" else pytest.fail(name),
    ),
    (
        lambda: sent(76),
        r"set (\S+) to one that all brokers read; (\w+) is read by all",
        lambda name, word: sink({name: word}),
    ),
    (
        asked(Api.CREATE_TOPICS, 37),
        r"correct (\w+), or create the topic by hand",
        lambda name: (sink(**{name: 1}), sink()),
    ),
    (
        lambda: sent(10, 2),
        r"raise max.message.bytes of the topic, or lower (\S+)$",
        lambda name: sink({name: 1000}),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("wrong", "says", "done"), ANSWERS, ids=named(ANSWERS))
def test_answers_of_brokers(wrong: Wrong, says: str, done: Done) -> None:
    follow(wrong, says, done)


def run(limit: int) -> Any:
    made: Any = KafkaRun.__new__(KafkaRun)
    made.client, made.settings = Cluster(), sink().settings
    made.client.configs["max.message.bytes"] = str(limit)
    made._dead_letter_route = SimpleNamespace(topic="dead", limit_bytes=1000)
    made.limits = SimpleNamespace(refused=lambda client, error: error)
    return made


BY_ITSELF: list[tuple[Wrong, str]] = [
    (lambda: raising(_mismatch("x")), r"runs again under a new epoch"),
    (lambda: run(2000).must_be_too_large_still(), r"^nothing: the batch runs again"),
    (
        lambda: raising(
            run(2000).explain(RecordTooLarge("r", details={"records": 1, "bytes": 900}))
        ),
        r"^nothing: the batch runs again, and such records go to dead$",
    ),
    (
        lambda: raising(refused_early("p", ID, 9, Fenced("f"), next(iter(Fencing)))),
        r"^the batch runs again",
    ),
    *(
        (asked(Api.END_TXN, code), r"^none: the batch runs again under a new epoch$")
        for code in (48, 49, 59, 120)
    ),
    *(
        (partial(sent, code), r"the batch runs again") for code in (32, 45, 46, 48)
    ),
]  # fmt: skip


@pytest.mark.parametrize(("wrong", "says"), BY_ITSELF, ids=[row[1][:30] for row in BY_ITSELF])
def test_nothing_is_to_be_done_and_the_engine_does_it(wrong: Wrong, says: str) -> None:
    with pytest.raises(OncewardError) as refused:
        wrong()
    follow(wrong, says, lambda: None)
    assert refused.value.recovery is Recovery.RUN_AGAIN


def overtaken() -> Any:
    made = sender(Cluster())
    made._topic = SimpleNamespace(name="dead")
    return made


def test_whoever_is_to_be_left_stopped_is_not_started_again() -> None:
    chain: Any = KafkaChain.__new__(KafkaChain)
    newer = replay_record("dead")
    chain._pipeline, chain.newest = "p", lambda: newer
    for wrong in (
        partial(chain.refuse_what_a_newer_owner_wrote, None),
        partial(raising, taken_over("p", ID, Fenced("f"))),
        partial(raising, overtaken()._overtaken(Fenced("f"))),
    ):
        with pytest.raises(Fenced) as fenced:
            wrong()
        assert fenced.value.recovery is Recovery.STOP
        follow(wrong, r"^leave this (?:copy|one) stopped", lambda: None)


def test_a_replay_that_gave_up_is_run_again() -> None:
    parcel = Parcel(TopicPartition("dead", 0), [letter()], [(7, 8)])
    for error in (CommitInDoubt("c"), TopicMissing("t")):
        gave_up = partial(raising, _given_up(parcel, error))
        follow(gave_up, r"then run again: its first step asks the ledger", lambda: None)


def test_an_attempt_that_is_superseded_has_nothing_to_do() -> None:
    gone = superseded_error(TaskAttempt(0, 0, 0))
    follow(partial(raising, gone), r"^nothing; the newer attempt goes on$", lambda: None)
