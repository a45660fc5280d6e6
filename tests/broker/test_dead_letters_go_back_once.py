"""I21: each letter goes back once, whatever is killed, lost or run twice, on real brokers.

What came back librdkafka counts; and the ledger's chain is judged by ``onceward verify``, which is
librdkafka's, too.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from fault_table import fired
from onceward.errors import (
    ConfigurationError,
    Fenced,
    InvalidRecord,
    PartitionMissing,
    RecordTooLarge,
    SendFailed,
    SourceNotNamed,
    SourceTopicReplaced,
    TopicMissing,
    TransactionTimedOut,
)
from onceward.kafka.dead_letters import ledger, replay
from onceward.kafka.dead_letters.replay import Outcome, Replay
from onceward.kafka.dead_letters.sending import Parcel, Sender
from onceward.kafka.dead_letters.topic import DeadLetterTopic, LetterFilter
from onceward.kafka.wire.transactions.transaction import Transaction
from onceward_testing import LocalKafka
from onceward_testing.faults import fired_faults
from onceward_testing.topic_reader import end_offsets
from support.dead_letter_desk import PARTITIONS, Desk, about, ended
from support.lost_answers import lost_end_txn

pytestmark = pytest.mark.broker


@pytest.fixture
def desk(
    any_kafka: LocalKafka, new_topic: Callable[..., str], read_committed: Callable[..., Any]
) -> Desk:
    return Desk(any_kafka.bootstrap_servers, new_topic, read_committed)


@pytest.fixture
def new_desk(
    kafka: LocalKafka, new_topic: Callable[..., str], read_committed: Callable[..., Any]
) -> Desk:
    """On the newer broker only."""
    return Desk(kafka.bootstrap_servers, new_topic, read_committed)


def test_each_goes_back_once_to_where_it_came_from_as_it_came(desk: Desk) -> None:
    own = [("trace", b"\x00\xff"), ("onceward.offset", b"7"), ("empty", None)]
    values = desk.write(250, own=own)
    outcome = desk.replay()
    assert dict(outcome.fed_back) == {desk.source: 250}
    desk.assert_fed_back_once(values)
    last: dict[bytes, int] = {}
    for message in desk.fed_back():
        assert message.headers() == [*own, ("onceward.replayed", b"1")]
        number = int(message.value().split()[1])
        assert message.partition() == number % 20 % PARTITIONS
        assert number > last.get(message.key(), -1), "a key's letters are in another order"
        last[message.key()] = number
    assert desk.replay().fed_back == {}
    desk.assert_fed_back_once(values)
    assert desk.verdict()["verdict"] == "exactly_once"


def test_what_a_filter_leaves_is_for_a_later_replay(
    new_desk: Desk, new_topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "PARCEL_LETTERS", 7)
    desk, other = new_desk, new_topic(new_desk.servers, PARTITIONS, prefix="other")
    by_class: dict[str, list[bytes]] = {"DoesNotFit": [], "BadFraming": []}
    from_other = []
    for _ in range(5):
        errors = ["DoesNotFit", "BadFraming", "BadFraming"] * 4
        for error, value in zip(errors, desk.write(12, error=errors), strict=True):
            by_class[error].append(value)
        from_other += desk.write(3, source=other)
    tried = desk.command("replay", "--class", "BadFraming", "--dry-run")
    assert f"{len(by_class['BadFraming'])} letters would be fed back" in tried.output, tried.output
    assert desk.fed_back() == []
    limited = desk.command("replay", "--class", "BadFraming", "--limit", "11")
    assert "11 letters fed back in" in limited.output, limited.output
    assert len(desk.fed_back()) == 11
    outcome = desk.replay(letter_filter=LetterFilter(classes=["BadFraming"]))
    assert outcome.left_out == 20 + 15
    desk.assert_fed_back_once(by_class["BadFraming"])
    desk.replay(letter_filter=LetterFilter(source_topics=[desk.source]))
    desk.assert_fed_back_once(by_class["BadFraming"] + by_class["DoesNotFit"])
    assert desk.fed_back(other) == []
    found = desk.listed()
    assert (found["letters"]["records"], found["letters"]["replayed"], found["fed_back_ever"]) == (
        75,
        60,
        60,
    )
    desk.replay()
    desk.assert_fed_back_once(from_other, other)
    desk.assert_fed_back_once(by_class["BadFraming"] + by_class["DoesNotFit"])
    assert desk.verdict()["verdict"] == "exactly_once"


def test_a_null_goes_back_as_a_null(new_desk: Desk) -> None:
    new_desk.put(None, [("a", None), *about(new_desk.source, 2, 5)])
    new_desk.put(b"", about(new_desk.source, 2, 6), key=b"")
    new_desk.replay()
    found = [(m.partition(), m.key(), m.value(), m.headers()) for m in new_desk.fed_back()]
    once = ("onceward.replayed", b"1")
    assert found == [(2, None, None, [("a", None), once]), (2, b"", b"", [once])]


def test_what_fails_again_and_again_is_given_up_and_can_be_begun_anew(
    new_desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = new_desk.write(6)
    with monkeypatch.context() as failing:
        failing.setattr(
            Sender, "_append", lambda *_: (_ for _ in ()).throw(SendFailed("on purpose"))
        )
        with pytest.raises(SendFailed, match=r"3 times: on purpose\. Next: .*run again"):
            new_desk.replay()
    assert new_desk.fed_back() == []
    new_desk.replay()
    new_desk.assert_fed_back_once(values)


def test_an_interrupt_leaves_no_transaction_open(
    new_desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers of the source would have to wait for its timeout."""
    values, put = new_desk.write(6), replay.KafkaChain.put

    def interrupted(*arguments: Any) -> None:
        put(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as failing:
        failing.setattr(replay.KafkaChain, "put", interrupted)
        with pytest.raises(KeyboardInterrupt):
            new_desk.replay()
    deadline = (
        time.monotonic() + 30
    )  # half of the timeout, after which the coordinator would have ended it
    aborted = dict.fromkeys(range(PARTITIONS), 2)  # a letter of the first parcel, and a marker
    while end_offsets(new_desk.servers, new_desk.source, "read_committed") != aborted:
        assert time.monotonic() < deadline, "the transaction is still open"
        time.sleep(0.05)
    new_desk.replay()
    new_desk.assert_fed_back_once(values)


def test_one_that_becomes_poison_again_is_told_apart(new_desk: Desk) -> None:
    [value] = new_desk.write(1)
    new_desk.replay()
    [message] = new_desk.fed_back()
    new_desk.put(
        message.value(),
        [*message.headers(), *about(new_desk.source, message.partition(), message.offset())],
    )
    assert new_desk.listed()["letters"]["came_back"] == 1
    new_desk.replay()
    assert [m.headers() for m in new_desk.fed_back()] == [
        [("onceward.replayed", b"1")],
        [("onceward.replayed", b"2")],
    ]
    new_desk.assert_fed_back_once([value, value])


def test_letters_of_open_transactions_wait_and_aborted_ones_never_were(new_desk: Desk) -> None:
    desk, before = new_desk, new_desk.write(3)
    writer = Producer({"bootstrap.servers": desk.servers, "transactional.id": f"sink-{desk.dead}"})
    writer.init_transactions(60)
    for end in (writer.abort_transaction, writer.commit_transaction):
        writer.begin_transaction()
        for partition in (0, 1):
            writer.produce(
                desk.dead, end.__name__, partition=partition, headers=about(desk.source, 0, 0)
            )
        assert writer.flush(60) == 0
        behind = desk.write(2)  # one in each partition
        desk.replay()
        desk.assert_fed_back_once(before)
        end(60)
        desk.fed_back(desk.dead)  # waits for the markers
        desk.replay()
        before += behind + [b"commit_transaction"] * 2 * (end == writer.commit_transaction)
        desk.assert_fed_back_once(before)
    assert desk.replay().fed_back == {}


def test_what_names_no_source_is_refused_by_name_and_the_rest_goes_back(
    new_desk: Desk, new_topic: Callable[..., str]
) -> None:
    desk = new_desk
    nameless = [[("x", b"y")], about(desk.source, "-1", 5), about("no topic!", 0, 5),
        about(desk.source, "", 1),
                about("__consumer_offsets", 0, 1), about(desk.ledger, 0, 1),
                about(desk.dead, 0, 1),
                about(desk.source, 0, 1, error="RecordTooLarge")]  # fmt: skip
    for number, headers in enumerate(nameless):
        desk.put(f"nameless {number}".encode(), headers, key=b"person 1")
    values = desk.write(5)
    with pytest.raises(SourceNotNamed, match=rf"8 records .* {desk.dead}-0@0, {desk.dead}-0@1"):
        desk.replay()
    desk.assert_fed_back_once(values)
    assert (
        desk.command("replay", "--class", "DoesNotFit", "--source-topic", desk.source).exit_code
        == 0
    )
    assert desk.command("replay").exit_code == 1
    desk.assert_fed_back_once(values)
    other = new_topic(desk.servers, 5, prefix="other")
    desk.replay(to=other)
    desk.assert_fed_back_once([f"nameless {number}".encode() for number in range(8)], other)
    by_murmur2 = Producer({"bootstrap.servers": desk.servers, "partitioner": "murmur2_random"})
    by_murmur2.produce(other, b"by librdkafka", b"person 1")
    assert by_murmur2.flush(60) == 0
    assert len({message.partition() for message in desk.fed_back(other)}) == 1
    assert desk.replay().fed_back == {}
    desk.assert_fed_back_once(values)


@pytest.mark.fault("dead-letters-killed")
@pytest.mark.parametrize(
    "moment",
    [
        "ledger:finished:2",
        *(
            pytest.param(moment, marks=pytest.mark.slow)
            for moment in ("open:started:1", "open:finished:1", "plan:finished:1",
            "send:started:2", "send:finished:2",
                           "ledger:started:1", "commit:started:1", "commit:started:3",
                           "commit:finished:1",
                           "commit:finished:2", "commit:finished:3")
        ),
    ],
)  # fmt: skip
def test_a_replay_that_is_killed_is_gone_on_with(
    new_desk: Desk, tmp_path: Path, moment: str
) -> None:
    values = new_desk.write(250)
    status, said = ended(new_desk.process(faults=f"{moment}:kill", fired=tmp_path / "fired"))
    fired(fired_faults(tmp_path / "fired"), f"{moment} never came: {said}")
    assert status == -signal.SIGKILL
    status, said = ended(new_desk.process())
    assert status == 0, said
    new_desk.assert_fed_back_once(values)
    assert new_desk.verdict()["verdict"] == "exactly_once"
    assert new_desk.listed()["letters"]["replayed"] == 250


@pytest.mark.fault("dead-letters-two-replays")
@pytest.mark.parametrize(
    "moment",
    ["commit:started:2", *(pytest.param(m, marks=pytest.mark.slow) for m in ("send:finished:1",
               "commit:finished:1", "plan:started:2"))],
)  # fmt: skip
def test_a_second_replay_takes_over_and_the_first_one_stops(
    new_desk: Desk, tmp_path: Path, moment: str
) -> None:
    values = new_desk.write(350)
    first = new_desk.process(faults=f"{moment}:stop", fired=tmp_path / "fired")
    try:
        deadline = time.monotonic() + 60
        while (
            not fired_faults(tmp_path / "fired")
            and time.monotonic() < deadline
            and first.poll() is None
        ):
            time.sleep(0.05)
        fired(fired_faults(tmp_path / "fired"), f"{moment} never came")
        status, said = ended(new_desk.process())
        assert status == 0, said
        new_desk.assert_fed_back_once(values)
    finally:
        os.killpg(first.pid, signal.SIGCONT)
    status, said = ended(first)
    assert status == 1, said
    assert "Fenced" in said
    assert "another replay" in said
    new_desk.assert_fed_back_once(values)
    assert new_desk.verdict()["verdict"] == "exactly_once"


@pytest.mark.slow
@pytest.mark.fault("dead-letters-two-replays")
def test_replays_that_race_feed_nothing_back_twice(new_desk: Desk) -> None:
    values = new_desk.write(2_000)
    racing = [new_desk.process(letters=20) for _ in range(4)]
    ends = [ended(process) for process in racing]
    fired(any(status == 0 for status, _ in ends), f"none came to its end: {ends}")
    assert all(status == 0 or "another replay" in said for status, said in ends), ends
    new_desk.assert_fed_back_once(values)
    assert new_desk.verdict()["verdict"] == "exactly_once"


def test_what_an_older_replay_commits_just_before_it_is_fenced_is_known(
    new_desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever reads the ledger first and fences afterwards overlooks it, and feeds these letters
    back again.
    """
    values = new_desk.write(20)
    client, producer = new_desk.client()
    topic = DeadLetterTopic(client, new_desk.dead)
    older = Sender(
        client, new_desk.chain(client, producer), producer, topic, to=None, run_id="older"
    )
    older.take()
    parcels = list(
        Replay(new_desk.dead, new_desk.ledger)._parcels(topic, older.replayed, Outcome())
    )
    take_over = Transaction.take_over

    def at_the_last_moment(transaction: Transaction) -> Any:
        older.send(parcels[0])
        return take_over(transaction)

    monkeypatch.setattr(Transaction, "take_over", at_the_last_moment)
    try:
        assert sum(new_desk.replay().fed_back.values()) == 20 - len(parcels[0].letters)
    finally:
        client.close()
    new_desk.assert_fed_back_once(values)


@pytest.mark.fault("dead-letters-commit-unanswered")
@pytest.mark.parametrize("carried_out", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_commit_without_an_answer_is_looked_up(desk: Desk, carried_out: bool) -> None:
    """Nobody answers for as long as it is asked: then the next epoch is claimed, and the ledger
    tells.
    """
    values = desk.write(20)
    client, producer = desk.client()
    topic, chain = DeadLetterTopic(client, desk.dead), desk.chain(client, producer)
    sender = Sender(client, chain, producer, topic, to=None, run_id="test")
    sender.take()
    where, *_ = topic.extents
    letters = list(topic.letters(where))
    parcel = Parcel(where, letters, [(0, letters[-1].offset + 1)])
    try:
        with lost_end_txn(chain, carried_out=carried_out):
            if carried_out:
                sender.send(parcel)
                assert sender.replayed.count == len(letters)
            else:
                with pytest.raises(TransactionTimedOut, match="3 times"):
                    sender.send(parcel)
                assert sender.replayed.count == 0
    finally:
        client.close()
    desk.replay()
    desk.assert_fed_back_once(values)
    assert desk.verdict()["verdict"] == "exactly_once"


@pytest.mark.slow
@pytest.mark.fault("dead-letters-commit-unanswered")
def test_the_answer_of_a_commit_may_get_lost_on_the_way(kafka: LocalKafka, new_desk: Desk) -> None:
    values = new_desk.write(20)
    lost = kafka.proxy.on("EndTxn", client_id="test-replay").drop_response()
    try:
        new_desk.replay(servers=kafka.proxied_servers)
    finally:
        kafka.proxy.heal()
    fired(lost.fired, "no answer was lost")
    new_desk.assert_fed_back_once(values)


@pytest.mark.fault("dead-letters-commit-unanswered")
def test_a_failure_of_the_next_one_is_not_taken_for_the_last_ones_success(
    new_desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest ledger record is ours then, too: but of the letters before."""
    values = new_desk.write(30)
    monkeypatch.setattr(replay, "PARCEL_LETTERS", 5)
    encoded, calls = Sender._encoded, []

    def failing(self: Sender, letters: Any) -> Any:
        calls.append(letters)
        if len(calls) == 2:
            raise TransactionTimedOut("on purpose")
        return encoded(self, letters)

    monkeypatch.setattr(Sender, "_encoded", failing)
    new_desk.replay()
    assert calls[1] == calls[2]
    new_desk.assert_fed_back_once(values)


@pytest.mark.slow
def test_a_topic_that_was_created_again_has_other_letters(new_desk: Desk) -> None:
    values = new_desk.write(10)
    new_desk.replay()
    admin = AdminClient({"bootstrap.servers": new_desk.servers})
    recreate(admin, new_desk.dead)
    again = new_desk.write(10)
    assert new_desk.listed()["letters"]["replayed"] == 0
    new_desk.replay()
    new_desk.assert_fed_back_once(values + again)
    assert new_desk.listed()["fed_back_ever"] == 20
    assert new_desk.verdict()["verdict"] == "exactly_once"


@pytest.mark.slow
def test_a_topic_that_is_created_again_meanwhile_is_noticed_before_the_commit(
    new_desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_desk.write(10)
    admin, put = AdminClient({"bootstrap.servers": new_desk.servers}), replay.KafkaChain.put

    def at_the_last_moment(*arguments: Any) -> None:
        put(*arguments)
        recreate(admin, new_desk.dead)

    monkeypatch.setattr(replay.KafkaChain, "put", at_the_last_moment)
    with pytest.raises(SourceTopicReplaced):
        new_desk.replay()
    assert new_desk.fed_back() == []


def recreate(admin: AdminClient, topic: str) -> None:
    admin.delete_topics([topic])[topic].result(30)
    deadline = time.monotonic() + 60
    while True:  # brokers hear of it one after the other
        try:
            admin.create_topics([NewTopic(topic, num_partitions=2)])[topic].result(30)
            break
        except Exception:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
    while admin.list_topics(topic, timeout=30).topics[topic].error is not None:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_what_cannot_be_written_is_refused_by_name_and_nothing_is_half_done(
    new_desk: Desk, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    desk, small = new_desk, new_topic(new_desk.servers, 1, prefix="small", max_message_bytes=2_000)
    desk.write(4)
    desk.put(b"gone", about(desk.source, PARTITIONS, 1), partition=1)
    with pytest.raises(
        PartitionMissing, match=f"{desk.dead}-1@.*--source-topic {desk.source} --to {desk.source}"
    ):
        desk.replay()
    even = [
        f"letter {number}".encode() for number in (0, 2)
    ]  # of the first partition, which went before it
    desk.assert_fed_back_once(even)
    assert (
        desk.command("replay", "--source-topic", desk.source, "--to", desk.source).exit_code == 0
    )
    desk.assert_fed_back_once([*even, b"letter 1", b"letter 3", b"gone"])

    desk.put(b"x", about("no-such-topic", 0, 1))
    with pytest.raises(TopicMissing, match=f"no-such-topic .*{desk.dead}-0@"):
        desk.replay()
    desk.put(b"x" * 5_000, about(small, 0, 1), partition=1)
    fitting = [
        desk.put(b"%d" % n + b"y" * 1_500, about(small, 0, n), partition=1) for n in range(3)
    ]
    with pytest.raises(
        RecordTooLarge, match=f"{desk.dead}-1@.* {small} takes records of 2000"
    ) as too_large:
        desk.replay(letter_filter=LetterFilter(source_topics=[small]))
    assert desk.fed_back(small) == []

    # What the error advises: that letter alone is left, and goes back compressed, as its producer
    # had it.
    leave_out = too_large.value.next_step.partition(";")[0].split()[-2:]
    assert desk.command("replay", "--source-topic", small, *leave_out).exit_code == 0
    assert len(desk.fed_back(small)) == len(fitting)
    compressing = tmp_path / "compressing.properties"
    compressing.write_text("compression.type=zstd\n")
    assert (
        desk.command(
            "replay", "--source-topic", small, "--command-config", str(compressing)
        ).exit_code
        == 0
    )
    assert [len(message.value()) for message in desk.fed_back(small)][-1] == 5_000
    # Its source took it as it was; it has a header more now
    desk.put(b"z" * 1_930, about(small, 0, 4), partition=1)
    desk.put(b"after", about(small, 0, 5), partition=1)
    with pytest.raises(RecordTooLarge, match=f"{desk.dead}-1@.* takes 20") as too_large:
        desk.replay(letter_filter=LetterFilter(source_topics=[small]))
    leave_out = too_large.value.next_step.partition(";")[0].split()[-2:]
    assert desk.command("replay", "--source-topic", small, *leave_out).exit_code == 0
    assert [message.value() for message in desk.fed_back(small)][-1] == b"after"
    keyed = new_topic(desk.servers, 1, prefix="keyed", cleanup_policy="compact")
    desk.put(b"no key", about(keyed, 0, 6), partition=1)
    desk.put(b"has one", about(keyed, 0, 7), partition=1, key=b"k")
    with pytest.raises(InvalidRecord, match=f"{desk.dead}-1@.* has no key, .*{keyed}") as refused:
        desk.replay(letter_filter=LetterFilter(source_topics=[keyed]))
    leave_out = refused.value.next_step.partition(";")[0].split()[-2:]
    assert desk.command("replay", "--source-topic", keyed, *leave_out).exit_code == 0
    assert [message.value() for message in desk.fed_back(keyed)][-1] == b"has one"
    assert desk.command("replay", "--leave-out", "x").exit_code != 0
    for to in (desk.dead, desk.ledger):
        with pytest.raises(ConfigurationError, match="--to"):
            desk.replay(to=to)


def test_many_letters_that_fit_one_by_one_go_into_a_topic_with_a_low_limit(
    new_desk: Desk, new_topic: Callable[..., str]
) -> None:
    small = new_topic(new_desk.servers, 1, prefix="small", max_message_bytes=1_000)
    values = new_desk.write(200)
    new_desk.replay(to=small)
    new_desk.assert_fed_back_once(values, small)


def test_what_is_too_scattered_for_a_ledger_record_is_refused_and_joins_again(
    new_desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "MOST_BYTES", 100)
    chance = random.Random(3)
    values = new_desk.write(300, error=[chance.choice("AB") for _ in range(300)])
    with pytest.raises(RecordTooLarge, match="stretches"):
        new_desk.replay(letter_filter=LetterFilter(classes=["A"]))
    assert new_desk.fed_back() == []
    new_desk.replay()
    new_desk.assert_fed_back_once(values)


def test_it_is_fenced_by_name_also_when_it_has_nothing_under_way(new_desk: Desk) -> None:
    values = new_desk.write(20)
    client, producer = new_desk.client()
    topic = DeadLetterTopic(client, new_desk.dead)
    sender = Sender(
        client, new_desk.chain(client, producer), producer, topic, to=None, run_id="old"
    )
    sender.take()
    parcels = list(
        Replay(new_desk.dead, new_desk.ledger)._parcels(topic, sender.replayed, Outcome())
    )
    new_desk.replay()
    try:
        for parcel in parcels:
            with pytest.raises(Fenced, match="another replay"):
                sender.send(parcel)
    finally:
        client.close()
    new_desk.assert_fed_back_once(values)
