"""Which sources are at home, and what the group's offsets say about the ledger: never more than
they can.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.protocol.consumer import ListOffsetsRequest

import onceward as ow
from onceward.engine.ledger.record import LedgerRecord
from onceward.errors import (
    AccessDenied,
    AuthenticationFailed,
    BinlogPurged,
    BrokerUnreachable,
    ContradictoryOptions,
    Fenced,
    LedgerBehind,
    OncewardError,
    PartitionsAdded,
    SourceDataLost,
    SourceTopicReplaced,
    TopicMissing,
)
from onceward.ids import AttemptId, BatchId, PipelineId, SourceRange, TopicPartition
from onceward.kafka.ledger.chain import KafkaChain
from onceward.kafka.sink import run
from onceward.kafka.sink import sink as kafka_target
from onceward.kafka.sink.run import GroupOffsets
from onceward.kafka.sink.sink import KafkaTarget
from onceward.kafka.source import identity as source_identity
from onceward.kafka.source.identity import KafkaSourceIdentity
from onceward.kafka.wire.connections import ConnectionLost
from onceward.kafka.wire.error_table import PENDING_OFFSETS
from onceward.kafka.wire.options.settings import ClientSettings
from onceward.spark.batch.checkpoint_files import PLAN_ANEW
from onceward.spark.batch.query import KafkaSource, RunningBatch
from support.errors import raises

HERE, ELSEWHERE = frozenset({"here:9092"}), frozenset({"elsewhere:9092"})
P = PipelineId("p")
HOME = (KafkaSource(0, HERE),)


class Client:
    """A cluster whose brokers can be down, and are then not told of."""

    def __init__(self) -> None:
        self.up = True
        self.settings = None

    def is_served_by(self, servers: frozenset[str]) -> bool:
        return self.up and servers == HERE

    def topic_ids(self, topics: set[str]) -> dict[str, str]:
        return dict.fromkeys(topics, "an-id")

    def brokers(self) -> list[int]:
        return [1]

    def topic_partitions(self, topics: set[str], turn: int = 0) -> dict[str, dict[int, int]]:
        return {topic: {0: 1} for topic in topics}


def at(offset: int) -> dict[str, dict[str, int]]:
    return {"orders": {"0": offset}}


def batch(number: int, *servers: frozenset[str], start: int, end: int) -> RunningBatch:
    """One that reads ``orders`` from each of ``servers``; what lies elsewhere is at a tenth of the
    offsets.
    """
    spans = [
        SourceRange(at(start), at(end))
        if s is HERE
        else SourceRange(at(start // 10), at(end // 10))
        for s in servers
    ]
    kafka = tuple(KafkaSource(index, s) for index, s in enumerate(servers))
    return RunningBatch(BatchId("q", number), "r", "", tuple(spans), kafka, False, None)


def record(of: RunningBatch) -> LedgerRecord:
    return LedgerRecord(P, 0, of.batch, of.sources, AttemptId(1, 1), {}, 0)


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> dict[TopicPartition, int]:
    offsets: dict[TopicPartition, int] = {}
    monkeypatch.setattr(run, "committed_offsets", lambda *_, **__: dict(offsets))
    return offsets


def offsets() -> GroupOffsets:
    client: Any = Client()
    return GroupOffsets(client, P, "ledger")


@pytest.mark.parametrize("servers", [(HERE,), (HERE, ELSEWHERE), (ELSEWHERE, HERE)])
def test_a_topic_of_the_same_name_on_another_cluster_says_nothing_about_the_ledger(
    group: dict[TopicPartition, int], servers: tuple[frozenset[str], ...]
) -> None:
    done, now = batch(0, *servers, start=0, end=100), batch(1, *servers, start=100, end=200)
    group |= offsets().end_offsets(done)
    assert group == {TopicPartition("orders", 0): 100}
    offsets().refuse_ledger_behind(now, record(done), "checkpoint")
    group[TopicPartition("orders", 0)] = 101
    for newest in (record(done), None):
        with raises(LedgerBehind) as behind:
            offsets().refuse_ledger_behind(now, newest, "checkpoint")
        assert behind.value.next_step.startswith("if ledger_topic= was changed, set it back; ")


@pytest.mark.parametrize(("may_lose", "pattern"), [(True, True), (True, False), (False, True)])
def test_a_batch_of_a_topic_that_is_gone_is_planned_anew(may_lose: bool, pattern: bool) -> None:
    """Spark reads what it has logged, and would look for it at each start. Of a batch that is
    committed nobody reads it.
    """
    client: Any = Client()
    running = batch(1, HERE, start=10, end=20)
    read = KafkaSource(0, HERE, may_lose, lambda topic: pattern)
    running = replace(running, kafka_sources=(read,))
    identity = KafkaSourceIdentity(lambda source: client)
    identity.start(batch(0, HERE, start=0, end=10), None)

    def gone(topics: set[str]) -> dict[str, str]:
        raise TopicMissing("no topic", next_step="…", details={"subject": "topic orders"})

    client.topic_ids = gone
    # Of a list, Spark would ask for it anew
    by_itself = may_lose and pattern
    refused = PartitionsAdded if by_itself else TopicMissing
    with raises(refused, "was planned with topic orders") as found:
        identity.identify(running)
    assert "remove the file offsets/1 and" in found.value.next_step
    assert (PLAN_ANEW in found.value.details) is by_itself
    with pytest.raises(refused):
        KafkaSourceIdentity(lambda source: client).start(running, None)
    identity = KafkaSourceIdentity(lambda source: client)
    identity.start(running, record(running))
    with raises(SourceDataLost, "is committed, and topic orders"):
        identity.identify(running)
    # Of which it has read nothing
    idle = replace(running, sources=(SourceRange(at(20), at(20)),))
    identity.start(idle, record(idle))
    assert identity.identify(idle) == (None,)


@pytest.mark.parametrize(("read", "idle"), [("a", "z"), ("z", "a")])
def test_of_two_topics_that_are_gone_the_one_that_was_read_counts(read: str, idle: str) -> None:
    """Brokers name one of them; Spark makes no task for what it reads nothing of."""
    client: Any = Client()
    spans = SourceRange({read: {"0": 1}, idle: {"0": 7}}, {read: {"0": 2}, idle: {"0": 7}})
    running = replace(batch(1, HERE, start=0, end=0), sources=(spans,))
    missing = [read, idle]

    def topic_ids(topics: set[str]) -> dict[str, str]:
        for topic in sorted(topics & set(missing)):
            raise TopicMissing("no topic", next_step="…", details={"subject": f"topic {topic}"})
        return dict.fromkeys(topics, "its id")

    client.topic_ids = topic_ids
    identity = KafkaSourceIdentity(lambda source: client)
    identity.start(running, record(running))
    with pytest.raises(SourceDataLost, match=f"is committed, and topic {read}"):
        identity.identify(running)
    missing.remove(read)
    assert identity.identify(running) == (None,)


@pytest.mark.parametrize("is_pending", [True, False])
def test_a_group_without_its_marker_holds_no_start_up(
    is_pending: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka 4.3 passes over a partition of ``__consumer_offsets`` that has no leader. A
    coordinator that does not answer is waited for.
    """
    details = {"reason": PENDING_OFFSETS} if is_pending else {}

    def pending(*_: object, require_stable: bool = True, **__: object) -> dict[Any, int]:
        if require_stable:
            raise BrokerUnreachable("UNSTABLE_OFFSET_COMMIT", next_step="wait", details=details)
        return {TopicPartition("orders", 0): 90}

    monkeypatch.setattr(run, "committed_offsets", pending)
    done, now = batch(0, HERE, start=0, end=100), batch(1, HERE, start=100, end=200)
    if not is_pending:
        with pytest.raises(BrokerUnreachable):
            offsets().refuse_ledger_behind(now, record(done), "checkpoint")
        return
    offsets().refuse_ledger_behind(now, record(done), "checkpoint")
    before = batch(0, HERE, start=0, end=80)
    with pytest.raises(LedgerBehind):
        offsets().refuse_ledger_behind(now, record(before), "checkpoint")


@pytest.mark.parametrize(("heir", "error"), [(True, Fenced), (False, LedgerBehind)])
def test_a_start_that_stood_still_is_replaced_and_its_ledger_has_lost_nothing(
    group: dict[TopicPartition, int],
    monkeypatch: pytest.MonkeyPatch,
    heir: bool,
    error: type[Exception],
) -> None:
    """Between two reads of a start an heir may commit: then the group is ahead of what was read,
    and all is well.
    """
    done, now = batch(0, HERE, start=0, end=100), batch(1, HERE, start=100, end=200)
    read = record(done)
    group |= offsets().end_offsets(now)
    chain: Any = KafkaChain.__new__(KafkaChain)
    chain._committed = read.sequence
    chain._pipeline = P
    found = LedgerRecord(P, 1, now.batch, now.sources, AttemptId(1, 2), {}, 0) if heir else read
    chain._topic = SimpleNamespace(newest=lambda: found, topic="ledger")
    monkeypatch.setattr(chain, "take", lambda confirm: read)
    monkeypatch.setattr(chain, "confirm", lambda: None)
    target: Any = KafkaTarget.__new__(KafkaTarget)
    settings = ow.KafkaSink(bootstrap_servers="a:9092", pipeline_id="p").settings
    target.run = SimpleNamespace(settings=settings, client=None, chain=chain, group=offsets())
    monkeypatch.setattr(kafka_target, "check_topic", lambda *_: None)
    with pytest.raises(error):
        target.open(now)


@pytest.mark.parametrize("committed", [None, "before", "this"])
def test_a_start_that_reads_its_own_topic_replaces_nobody(
    committed: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A newer version of the job with a wider pattern, say. The last batch is a replay."""

    class TakenError(Exception):
        pass

    def take(confirm: bool) -> None:
        raise TakenError

    before, now = batch(0, HERE, start=0, end=100), batch(1, HERE, start=100, end=200)
    newest = {None: None, "before": record(before), "this": record(now)}[committed]
    target: Any = KafkaTarget.__new__(KafkaTarget)
    target.run = SimpleNamespace(
        settings=ow.KafkaSink(
            bootstrap_servers="a:9092", pipeline_id="p", topic="orders"
        ).settings,
        client=None,
        chain=SimpleNamespace(peek=lambda: newest, take=take),
        group=offsets(),
    )
    monkeypatch.setattr(kafka_target, "check_topic", lambda *_: None)
    with pytest.raises(TakenError if committed == "this" else ContradictoryOptions):
        target.open(now)


def test_a_source_stays_at_home_while_its_brokers_are_down() -> None:
    client: Any = Client()
    known = GroupOffsets(client, P, "ledger")
    reading = batch(0, HERE, ELSEWHERE, start=0, end=100)
    assert known.end_offsets(reading) == {TopicPartition("orders", 0): 100}
    client.up = False
    assert known.end_offsets(reading) == {TopicPartition("orders", 0): 100}


@pytest.mark.parametrize(
    ("ids", "is_ours"),
    [
        ({"orders": "an-id"}, True),
        ({"orders": "another"}, False),
        ({"orders": ""}, False),
        ({}, False),
    ],
)
def test_a_cluster_is_known_by_its_topics_whatever_its_brokers_are_called(
    ids: dict[str, str], is_ours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another listener, an alias. One of its logins may be outdated. A cluster's own id is none:
    all that run an image of Kafka's may have the same.
    """

    def refuse(_: set[str]) -> dict[str, str]:
        raise AuthenticationFailed("refused", next_step="mend it")

    clients = [SimpleNamespace(topic_ids=refuse), SimpleNamespace(topic_ids=lambda _: ids)]
    monkeypatch.setattr(source_identity, "known_clients", lambda source: clients)
    known, alias = offsets(), frozenset({"alias:9092"})
    reading = batch(0, alias, start=0, end=100)
    assert known.end_offsets(reading) == ({TopicPartition("orders", 0): 10} if is_ours else {})
    clients.clear()
    assert bool(known.end_offsets(reading)) is is_ours, "once found there it stays so"


@pytest.mark.parametrize("refused", [AccessDenied, TopicMissing])
def test_a_cluster_whose_topics_the_sink_may_not_see_is_another_one(
    refused: type[OncewardError], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: set[str]) -> dict[str, str]:
        raise refused("refused", next_step="grant it")

    login = SimpleNamespace(topic_ids=lambda topics: dict.fromkeys(topics, "an-id"))
    monkeypatch.setattr(source_identity, "known_clients", lambda source: [login])
    known = offsets()
    monkeypatch.setattr(known._client, "topic_ids", refuse)
    assert known.end_offsets(batch(0, frozenset({"alias:9092"}), start=0, end=100)) == {}


def test_a_topic_that_a_query_no_longer_reads_may_come_back_as_another_one():
    client: Any = Client()
    identity = KafkaSourceIdentity(lambda source: client)
    client.topic_ids = lambda topics: {topic: f"{topic} of before" for topic in topics}
    both = RunningBatch(
        BatchId("q", 0),
        "r",
        "",
        (SourceRange({}, {"orders": {"0": 9}, "gone": {"0": 9}}),),
        HOME,
        False,
        None,
    )
    identity.identify(both)
    identity.identify(batch(1, HERE, start=9, end=10))
    client.topic_ids = lambda topics: {"orders": "orders of before", "gone": "another"}
    assert identity.identify(both) == ({"gone": "another", "orders": "orders of before"},)


def test_a_topic_that_was_created_again_is_refused_at_the_start_and_in_mid_run():
    client: Any = Client()
    client.topic_ids = lambda topics: dict.fromkeys(topics, "first")
    identity = KafkaSourceIdentity(lambda source: client)
    reading = batch(0, HERE, start=0, end=10)
    (seen,) = identity.identify(reading)
    client.topic_ids = lambda topics: dict.fromkeys(topics, "second")
    with pytest.raises(SourceTopicReplaced):
        identity.identify(batch(1, HERE, start=10, end=20))
    newest = LedgerRecord(
        P, 0, reading.batch, (reading.sources[0]._replace(identity=seen),), AttemptId(1, 1), {}, 0
    )
    with pytest.raises(SourceTopicReplaced):
        KafkaSourceIdentity(lambda source: client).start(batch(1, HERE, start=10, end=20), newest)


def test_a_topic_that_appears_in_mid_run_is_known_before_it_is_read():
    """Replaced while it was read, it would be in the ledger as the second topic, with offsets of
    the first.
    """
    client: Any = Client()
    identity = KafkaSourceIdentity(lambda source: client)
    identity.start(batch(0, HERE, start=0, end=10), None)
    more = SourceRange(at(10), at(10) | {"new": {"0": 5}})
    found = RunningBatch(BatchId("q", 1), "r", "", (more,), HOME, False, None)
    client.topic_ids = lambda topics: {"orders": "an-id", "new": "first"}
    identity.check_parts(found)
    client.topic_ids = lambda topics: {"orders": "an-id", "new": "second"}
    with raises(SourceTopicReplaced):
        identity.identify(found)


def test_of_topics_that_are_known_nobody_asks_before_they_are_read():
    client: Any = Client()
    identity = KafkaSourceIdentity(lambda source: client)
    identity.start(batch(0, HERE, start=0, end=10), None)
    client.topic_ids = None
    identity.check_parts(batch(1, HERE, start=10, end=20))


def test_of_two_clusters_each_has_its_own_topics():
    clients: dict[frozenset[str], Any] = {HERE: Client(), ELSEWHERE: Client()}
    clients[ELSEWHERE].topic_ids = lambda topics: dict.fromkeys(topics, "another-id")
    identity = KafkaSourceIdentity(lambda source: clients[source.bootstrap_servers])
    for number in range(2):
        assert identity.identify(batch(number, HERE, ELSEWHERE, start=0, end=10)) == (
            {"orders": "an-id"},
            {"orders": "another-id"},
        )


def test_what_cannot_be_asked_is_unknown_and_what_was_known_stays():
    identity = KafkaSourceIdentity(lambda source: None)
    assert identity.identify(batch(0, HERE, start=0, end=10)) == (None,)
    reading = batch(0, HERE, start=0, end=10)
    named = (reading.sources[0]._replace(identity={"orders": "an-id"}),)
    newest = LedgerRecord(P, 0, reading.batch, named, AttemptId(1, 1), {}, 0)
    identity.start(batch(1, HERE, start=10, end=20), newest)
    assert identity.identify(batch(1, HERE, start=10, end=20)) == ({"orders": "an-id"},)


class Logins:
    """Clients of one cluster, by login: some are refused."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.refused: dict[str, OncewardError] = {}
        self.topic_id = "an-id"
        self.may_see: dict[str, str] = {}
        self.asked: list[str] = []
        self.clients: dict[str, Client] = {}
        monkeypatch.setattr(source_identity, "_known", {})
        monkeypatch.setattr(source_identity, "KafkaClient", SimpleNamespace(shared=self.client))

    def client(self, settings: ClientSettings) -> Any:
        login = str(settings.request_timeout_ms)
        client = self.clients.setdefault(login, Client())

        def topic_ids(topics: set[str]) -> dict[str, str]:
            self.asked.append(login)
            if not topics <= {self.may_see.get(login, "orders")}:
                raise TopicMissing("not to be seen", next_step="…")
            if login in self.refused:
                raise self.refused[login]
            return dict.fromkeys(topics, self.topic_id)

        client.topic_ids = topic_ids  # type: ignore[method-assign]
        return client


OLD, NEW = (ClientSettings(tuple(HERE), request_timeout_ms=number) for number in (1, 2))
"""They differ in something: a password would do."""


def test_two_sources_of_one_cluster_may_have_a_login_each(monkeypatch: pytest.MonkeyPatch):
    logins = Logins(monkeypatch)
    logins.may_see = {"1": "orders", "2": "people"}
    for settings in (OLD, NEW):
        source_identity.remember(settings)
    sources = (
        SourceRange(at(0), at(10)),
        SourceRange({"people": {"0": 0}}, {"people": {"0": 5}}),
    )
    kafka = (KafkaSource(0, HERE), KafkaSource(1, HERE))
    reading = RunningBatch(BatchId("q", 0), "r", "", sources, kafka, False, None)
    identity = KafkaSourceIdentity()
    for _ in range(3):
        assert identity.identify(reading) == ({"orders": "an-id"}, {"people": "an-id"})
    assert logins.asked == ["2", "1", "2", "1", "2", "1", "2"], "the one that could comes first"


@pytest.mark.parametrize("is_alone", [True, False], ids=["alone-at-first", "beside-others"])
def test_a_source_keeps_its_login_however_many_others_come(
    monkeypatch: pytest.MonkeyPatch, is_alone: bool
):
    """Another query of the process is started again and again, each time by a provider of its
    own, and only so many logins are remembered of a cluster."""
    logins = Logins(monkeypatch)
    logins.may_see = dict.fromkeys(map(str, range(2, 30)), "people")
    mine = OLD
    others = [ClientSettings(tuple(HERE), request_timeout_ms=number) for number in range(2, 20)]
    source_identity.remember(mine)
    if not is_alone:
        source_identity.remember(others.pop())
    identity = KafkaSourceIdentity()
    for number in range(3):
        reading = batch(number, HERE, start=0, end=10)
        assert identity.identify(reading) == ({"orders": "an-id"},)
        # Also asked for a topic by name, as where a batch was planned without one
        assert identity._found(reading.kafka_sources[0], "orders", reading) == "an-id"
        for each in others:
            source_identity.remember(each)
    assert mine not in source_identity.known_logins(HERE)


def test_the_login_of_one_cluster_is_not_asked_of_another(monkeypatch: pytest.MonkeyPatch):
    """A topic of the same name has another id there: it would be taken for one created again."""
    here = ClientSettings(tuple(HERE), request_timeout_ms=1)
    elsewhere = ClientSettings(tuple(ELSEWHERE), request_timeout_ms=2)
    clients = {1: Client(), 2: Client()}
    clients[2].topic_ids = lambda topics: dict.fromkeys(topics, "another-id")  # type: ignore[method-assign]
    shared = SimpleNamespace(shared=lambda settings: clients[settings.request_timeout_ms])
    monkeypatch.setattr(source_identity, "_known", {})
    monkeypatch.setattr(source_identity, "KafkaClient", shared)
    for settings in (here, elsewhere):
        source_identity.remember(settings)
    identity = KafkaSourceIdentity()
    for number in range(3):
        assert identity.identify(batch(number, HERE, ELSEWHERE, start=0, end=10)) == (
            {"orders": "an-id"},
            {"orders": "another-id"},
        )


@pytest.mark.parametrize("client_for", [None, lambda source: None])
def test_a_renewed_login_is_asked_and_else_an_older_one(
    monkeypatch: pytest.MonkeyPatch, client_for: Any
):
    logins = Logins(monkeypatch)
    source_identity.remember(OLD)
    identity = KafkaSourceIdentity(client_for)
    identity.identify(batch(0, HERE, start=0, end=10))
    source_identity.remember(NEW)
    logins.refused["1"] = AuthenticationFailed("expired", next_step="…")
    assert identity.identify(batch(1, HERE, start=10, end=20)) == ({"orders": "an-id"},)
    logins.topic_id = "another-id"
    with pytest.raises(SourceTopicReplaced):
        identity.identify(batch(2, HERE, start=20, end=30))
    # another source's, which may not see this topic
    logins.refused = {"2": TopicMissing("orders", next_step="…")}
    with pytest.raises(SourceTopicReplaced):
        identity.identify(batch(2, HERE, start=20, end=30))
    logins.refused["1"] = AccessDenied("orders", next_step="…")
    with pytest.raises(AccessDenied):
        identity.identify(batch(2, HERE, start=20, end=30))


class Brokers(Client):
    """Three of them: node 1 leads by its own word, node 2 by that of the others, in a later epoch;
    node 3 is away.
    """

    def __init__(self, earliest: int, latest: int) -> None:
        super().__init__()
        self.bounds = {-2: earliest, -1: latest}
        self.away = {3}
        """Of those, but for questions who leads."""

    def brokers(self) -> list[int]:
        return [1, 2, 3]

    def topic_partitions(self, topics: set[str], turn: int = 0) -> Any:
        raise TopicMissing("asked of one that has not heard of it")

    def call(self, request: Any, node: int, timeout_ms: float) -> Any:
        asks_for_offsets = isinstance(request, ListOffsetsRequest)
        if node in self.away and (node == 3 or asks_for_offsets):
            raise ConnectionLost("away")
        part = SimpleNamespace(partition_index=0, error_code=0)
        if asks_for_offsets:
            asked = request.topics[0].partitions[0].timestamp
            part.offset = self.bounds[asked] if node == 2 else 130
        else:
            part.leader_id = part.leader_epoch = node
        return SimpleNamespace(topics=[SimpleNamespace(name="orders", partitions=[part])])


LOST = SourceDataLost(
    "records of this batch are gone: orders-0=150",
    next_step="retention",
    details={"condition": "KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE"},
)


LOST_PARTITIONS = SourceDataLost(
    "records of this batch are gone: Partitions Set(left-out-0) have been deleted",
    next_step="retention",
    details={"condition": "KAFKA_DATA_LOSS.PARTITIONS_DELETED"},
)


@pytest.mark.parametrize(
    ("earliest", "latest", "kind", "says"),
    [
        (101, 500, SourceDataLost, "are gone"),  # retention was faster
        (0, 200, BrokerUnreachable, "no longer leads a partition"),
        (100, 999, BrokerUnreachable, "no longer leads a partition"),
        (0, 199, SourceDataLost, "ends at offset 199, and ended at 200 or behind"),
    ],
)
def test_what_spark_takes_for_lost_is_looked_for_at_the_leader(
    earliest: int, latest: int, kind: type[OncewardError], says: str
) -> None:
    client: Any = Brokers(earliest, latest)
    identity = KafkaSourceIdentity(lambda source: client)
    found = identity.explain(LOST, batch(1, HERE, start=100, end=200))
    assert type(found) is kind
    assert says in found.message
    assert (found is LOST) is (earliest > 100)


@pytest.mark.parametrize(
    ("latest", "refused"),
    [
        (100, None),
        (199, None),
        (200, SourceDataLost),
        (300, SourceDataLost),
        (None, BrokerUnreachable),
    ],
)
def test_a_batch_that_goes_back_is_refused_unless_the_logs_end_was_lost(
    latest: int | None, refused: type[OncewardError] | None
) -> None:
    client: Any = Brokers(0, latest or 0)
    client.away |= {2} if latest is None else set()
    identity = KafkaSourceIdentity(lambda source: client)
    running = batch(1, HERE, start=200, end=100)
    if refused is None:
        identity.must_not_go_back(running)
    else:
        with raises(refused, "200"):
            identity.must_not_go_back(running)


@pytest.mark.parametrize(
    ("latest", "may_lose", "begins", "refused"),
    [
        (199, True, True, True),
        (200, True, True, False),
        (199, False, True, False),  # reading it says so
        (199, True, False, False),  # planned in this run
        (99, True, True, True),
    ],
)
def test_a_planned_end_that_the_log_has_lost_is_not_gone_on_from(
    latest: int, may_lose: bool, begins: bool, refused: bool
) -> None:
    client: Any = Brokers(0, latest)
    identity = KafkaSourceIdentity(lambda source: client)
    running = batch(1, HERE, start=100, end=200)
    running = replace(running, kafka_sources=(KafkaSource(0, HERE, may_lose),))
    identity.start(running if begins else batch(0, HERE, start=0, end=100), None)
    if not refused:
        identity.must_not_go_back(running)
        return
    with pytest.raises(SourceDataLost) as lost:
        identity.must_not_go_back(running)
    assert "remove the file offsets/1" in lost.value.next_step
    assert ("failOnDataLoss" in lost.value.next_step) is (latest < 100)


def planned_without(topic: str) -> RunningBatch:
    """Batch 1, which ends without a topic that it starts with."""
    one = SourceRange(at(10) | {topic: {"0": 5}}, at(20))
    return RunningBatch(BatchId("q", 1), "r", "", (one,), HOME, False, None)


MISSING, DENIED = (kind("…", next_step="…") for kind in (TopicMissing, AccessDenied))


@pytest.mark.parametrize(
    ("answer", "begins_with", "refused"),
    [
        ("an-id", "an-id", PartitionsAdded),
        ("an-id", None, PartitionsAdded),
        ("another-id", "an-id", None),  # created again: earlier offsets mean nothing in it
        (MISSING, "an-id", None),
        (DENIED, "an-id", AccessDenied),
    ],
)
def test_a_batch_that_leaves_out_a_topic_that_is_there_is_not_written(
    answer: str | OncewardError, begins_with: str | None, refused: type[OncewardError] | None
) -> None:
    """Brokers leave out of a list of all topics what may not be described. Spark would read it
    from its first record once it is back.
    """
    client: Any = Client()
    identity = KafkaSourceIdentity(lambda source: client)
    before = batch(0, HERE, start=0, end=10)
    known = {"orders": "an-id"} | ({"left-out": begins_with} if begins_with else {})
    named = (before.sources[0]._replace(identity=known),)
    running = planned_without("left-out")
    identity.start(before, LedgerRecord(P, 0, before.batch, named, AttemptId(1, 1), {}, 0))

    def topic_ids(topics: set[str]) -> dict[str, str]:
        if topics == {"orders"}:
            return {"orders": "an-id"}
        if isinstance(answer, OncewardError):
            raise answer
        return {"left-out": answer}

    client.topic_ids = topic_ids
    if refused is None:
        identity.check_parts(running)
        assert identity.explain(LOST_PARTITIONS, running) is LOST_PARTITIONS
        return
    with raises(refused, "planned without topic left-out") as written:
        identity.check_parts(running)
    assert "remove the file offsets/1" in written.value.next_step
    if refused is PartitionsAdded:
        assert type(identity.explain(LOST_PARTITIONS, running)) is refused
        other = PartitionsAdded("availableNow sees other ones", next_step="…")
        assert identity.explain(other, running).details[PLAN_ANEW] == 1
    else:
        with pytest.raises(refused):
            identity.explain(LOST_PARTITIONS, running)


def reading(*sources: tuple[dict[str, int], dict[str, int], str], **options: Any) -> RunningBatch:
    """Batch 1. Of each source the offsets from which and up to which it goes, by topic, and the
    list of topics that the program has now.
    """

    def offset(of: dict[str, int]) -> dict[str, dict[str, int]]:
        return {topic: {"0": number} for topic, number in of.items()}

    spans = tuple(SourceRange(offset(start), offset(end)) for start, end, _ in sources)
    kafka = tuple(
        KafkaSource(n, HERE, finds=lambda topic: False, names=frozenset(names.split()), **options)
        for n, (_, _, names) in enumerate(sources)
    )
    return RunningBatch(BatchId("q", 1), "r", "", spans, kafka, False, None)


def known_at(*identities: dict[str, str], number: int = 0) -> LedgerRecord:
    sources = tuple(SourceRange(at(0), at(10), each) for each in identities)
    return LedgerRecord(P, 0, BatchId("q", number), sources, AttemptId(1, 1), {}, 0)


def lost_by(condition: str) -> SourceDataLost:
    details = {"condition": f"KAFKA_DATA_LOSS.{condition}"}
    return SourceDataLost("Partitions b-0, a-0", next_step="…", details=details)


NEW_ONES = lost_by("INITIAL_OFFSET_NOT_FOUND_FOR_PARTITIONS")
ADDED = lost_by("ADDED_PARTITION_DOES_NOT_START_FROM_OFFSET_ZERO")
DELETED = lost_by("PARTITIONS_DELETED")


@pytest.mark.parametrize(
    ("start", "end", "says"),
    [
        ({"a": 10, "b": 5}, {"a": 20}, "was planned without topic b, or a part of it"),
        ({"a": 10, "b": 5}, {"c": 7}, "which is there, and with topic c, which is new"),
        ({"a": 10, "b": 5}, {"a": 20, "b": 5, "c": 7}, "was planned with topic c, which is new"),
    ],
    ids=["one less", "another", "one more"],
)
@pytest.mark.parametrize("may_lose", [False, True])
def test_a_list_of_topics_that_is_put_back_has_its_batch_planned_anew(
    start: dict[str, int], end: dict[str, int], says: str, may_lose: bool
) -> None:
    """Spark has logged the batch of the wrong list, and would fail at each start; passing over
    what it takes for lost, it would read the topics from their first record in the batch behind.
    """
    client: Any = Client()
    running = reading((start, end, "a b"), may_lose=may_lose)
    identity = KafkaSourceIdentity(lambda source: client)
    identity.start(running, known_at({"a": "an-id", "b": "an-id"}))
    with raises(PartitionsAdded, says) as anew:
        identity.check_parts(running)
    assert anew.value.details[PLAN_ANEW] == 1
    for lost in (DELETED, NEW_ONES, ADDED):
        for asked in (identity, KafkaSourceIdentity(lambda source: client)):
            assert asked.explain(lost, running).details[PLAN_ANEW] == 1
    # It cannot be: it is written
    identity.start(running, known_at({"a": "an-id", "b": "an-id"}, number=1))
    identity.check_parts(running)
    for lost in (DELETED, NEW_ONES):
        assert identity.explain(lost, running) is lost


def test_a_topic_with_fewer_partitions_is_another_one() -> None:
    """To a process that knows no id of it. Each new plan would lack them, too."""
    client: Any = Client()
    one = SourceRange({"a": {"0": 5, "1": 5}}, {"a": {"0": 5}})
    reads = (KafkaSource(0, HERE, finds=lambda topic: False, names=frozenset({"a"})),)
    running = RunningBatch(BatchId("q", 1), "r", "", (one,), reads, False, None)
    identity = KafkaSourceIdentity(lambda source: client)
    assert identity.explain(DELETED, running) is DELETED

    def topic_partitions(topics: set[str], turn: int = 0) -> dict[str, dict[int, int]]:
        return {"a": {0: 1, 1: 1} if turn else {0: 1}}

    # Only one of the brokers lags behind
    client.brokers, client.topic_partitions = lambda: [1, 2], topic_partitions
    assert identity.explain(DELETED, running).details[PLAN_ANEW] == 1


def test_a_list_that_is_put_back_may_have_had_a_topic_that_is_gone() -> None:
    """A name that was made for a day, or that another cluster has: nobody wants it any more."""
    client: Any = Client()

    def topic_ids(topics: set[str]) -> dict[str, str]:
        if "b" in topics:
            raise TopicMissing("no topic", next_step="…", details={"subject": "topic b"})
        return dict.fromkeys(topics, "an-id")

    client.topic_ids = topic_ids
    identity = KafkaSourceIdentity(lambda source: client)
    with pytest.raises(PartitionsAdded) as anew:
        identity.start(reading(({"a": 10}, {"b": 7}, "a")), known_at({"a": "an-id"}))
    assert anew.value.details[PLAN_ANEW] == 1
    for start, names in (({"a": 10, "b": 5}, "a"), ({"a": 10}, "a b")):
        # Records that were to be read, and a topic that Spark would ask for
        with pytest.raises(TopicMissing):
            identity.start(reading((start, {"a": 20, "b": 7}, names)), known_at({"a": "an-id"}))


@pytest.mark.parametrize("end", [0, 200])
@pytest.mark.parametrize("topic", ["orders", "gone"])
def test_new_partitions_that_a_broker_has_not_heard_of_are_asked_for_again(
    topic: str, end: int
) -> None:
    """1. Partitions are added, and one broker tells Spark. 2. Spark asks another one, which is
    behind, where they begin."""
    client: Any = Brokers(0, 500)
    client.topic_ids = lambda topics: dict.fromkeys(topics, "an-id")
    running = reading(({"a": 10}, {"a": 10, topic: end}, f"a {topic}"))
    told = KafkaSourceIdentity(lambda source: client).explain(NEW_ONES, running)
    if topic == "gone":
        assert told is NEW_ONES
    else:
        assert isinstance(told, BrokerUnreachable)


def test_a_topic_that_is_taken_out_of_the_list_is_no_brokers_fault() -> None:
    """Its partitions are in the batch, and Spark, asked for them, has not asked any leader."""
    client: Any = Brokers(0, 500)
    client.topic_ids = lambda topics: dict.fromkeys(topics, "an-id")
    running = reading(({"a": 10}, {"orders": 200}, "orders"))
    identity = KafkaSourceIdentity(lambda source: client)
    for lost in (DELETED, NEW_ONES):
        told = SourceDataLost("orders-0, a-0", next_step="…", details=lost.details)
        assert identity.explain(told, running) is told
    # Nobody is told that no record is missed, and to pass over those of the other topic
    found = identity.explain(ADDED, running)
    assert found.message.endswith("taken out of topic=, no longer fits topic_pattern=, or was "
                                  "deleted: all or some of a")  # fmt: skip
    assert found.next_step.startswith("put the topic back")
    losing = reading(({"a": 10}, {"orders": 200}, "orders"), may_lose=True)
    identity.check_parts(losing)
    assert identity.explain(ADDED, losing) is ADDED


@pytest.mark.parametrize("may_lose", [False, True])
@pytest.mark.parametrize("is_known", [False, True])
def test_sources_in_another_order_are_named_as_such(may_lose: bool, is_known: bool) -> None:
    """Spark would read each topic from its first record, or from where the other one ended."""
    client: Any = Client()
    ids = {"a": "id-a", "b": "id-b"}
    client.topic_ids = lambda topics: {topic: ids[topic] for topic in topics}
    offsets = ({"a": 10}, {"b": 7}), ({"b": 5}, {"a": 20})
    swapped = reading((*offsets[0], "b"), (*offsets[1], "a"), may_lose=may_lose)
    identity = KafkaSourceIdentity(lambda source: client)
    identity.start(swapped, known_at({"a": "id-a"}, {"b": "id-b"}) if is_known else None)
    with raises(SourceTopicReplaced, "topic a of source 0 shows") as refused:
        identity.check_parts(swapped)
    assert refused.value.next_step.startswith("put them back in their order")
    for lost in (DELETED, NEW_ONES, ADDED):
        assert type(identity.explain(lost, swapped)) is SourceTopicReplaced
    back = reading((*offsets[0], "a"), (*offsets[1], "b"), may_lose=may_lose)
    with pytest.raises(PartitionsAdded, match="without topic a, b"):
        identity.check_parts(back)


def test_a_topic_is_left_out_for_one_start_to_move_to_another_source() -> None:
    """Spark refuses a start that lacks it where nothing may be lost."""
    client: Any = Client()
    client.topic_ids = lambda topics: dict.fromkeys(topics, "an-id")
    before = known_at({"a": "an-id", "c": "an-id"}, {"b": "an-id"})
    from_first, without = ({"a": 10, "c": 1}, {"c": 1}, "c"), ({"b": 5}, {"b": 5}, "b")
    moved, left = reading(from_first, ({"b": 5}, {"b": 5, "a": 20}, "b a")), [from_first, without]
    identity = KafkaSourceIdentity(lambda source: client)
    identity.start(moved, before)
    with raises(SourceTopicReplaced, "as topic a of source 0") as refused:
        identity.check_parts(moved)
    assert '"failOnDataLoss": False' in refused.value.next_step
    assert identity.explain(DELETED, reading(*left)) is DELETED
    identity.check_parts(reading(*left, may_lose=True))


def test_a_topic_of_another_cluster_may_come_where_one_of_its_name_goes() -> None:
    client: Any = Client()
    elsewhere: Any = Client()
    elsewhere.topic_ids = lambda topics: dict.fromkeys(topics, "another-id")
    running = reading(({"a": 10, "c": 1}, {"c": 1}, "c"), ({"b": 5}, {"b": 5, "a": 20}, "b a"))
    identity = KafkaSourceIdentity(lambda source: elsewhere if source.index else client)
    identity.start(running, known_at({"a": "an-id", "c": "an-id"}, {"b": "another-id"}))
    identity.check_parts(running)


@pytest.mark.parametrize("number", [0, 1])
def test_a_source_that_is_another_is_told_by_its_id(number: int) -> None:
    """One that another source has read, or one of a cluster that no source has read."""
    clients: list[Any] = [Client(), Client()]
    for n, client in enumerate(clients):
        client.topic_ids = lambda topics, n=n: dict.fromkeys(topics, f"id-{n}")
    ways = ({"orders": 10}, {"orders": 20}, "orders"), ({"orders": 5}, {"orders": 7}, "orders")
    running = reading(*ways)
    identity = KafkaSourceIdentity(lambda source: clients[1 - source.index])
    known = [{"orders": "id-0"}, {"orders": "id-1"}]
    with raises(SourceTopicReplaced, "have changed places, as topic orders of source 0") as order:
        identity.start(running, known_at(*known, number=number))
    known[1] = {"orders": "id-2"}
    with raises(SourceTopicReplaced, "or bootstrap_servers= leads to another cluster") as other:
        identity.start(running, known_at(*known, number=number))
    # What is written stays planned, and is not written once more by another pipeline
    is_written = number == 1
    for refused in (order, other):
        assert ("remove the file offsets/1" in refused.value.next_step) is not is_written
    assert ("only counts batch 1" in other.value.next_step) is is_written


def test_a_topic_of_two_sources_that_was_created_again_has_not_changed_places() -> None:
    """The first source has it since this batch, and the id that is found for it is no proof."""
    client: Any = Client()
    client.topic_ids = lambda topics: dict.fromkeys(topics, "new")
    running = reading(({}, {"orders": 2}, "orders"), ({"orders": 1}, {"orders": 2}, "orders"))
    identity = KafkaSourceIdentity(lambda source: client)
    for _ in range(2):
        with raises(SourceTopicReplaced, "topic orders was deleted and created again"):
            identity.start(running, known_at({"more": "an-id"}, {"orders": "old"}))


def test_a_topic_that_nobody_can_ask_for_may_be_left_out() -> None:
    identity = KafkaSourceIdentity(lambda source: None)
    identity.check_parts(planned_without("left-out"))
    assert identity.explain(LOST_PARTITIONS, planned_without("left-out")) is LOST_PARTITIONS


def test_a_login_that_may_describe_a_topic_knows_that_it_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    logins = Logins(monkeypatch)
    logins.may_see = {"1": "left-out", "2": "left-out"}
    logins.refused = {"1": MISSING, "2": DENIED}
    for settings in (OLD, NEW):
        source_identity.remember(settings)
    KafkaSourceIdentity()._misplanned(planned_without("left-out"))
    assert logins.asked == ["2", "1"]


def test_a_topic_that_was_created_again_is_named_as_such() -> None:
    client: Any = Brokers(0, 150)
    identity = KafkaSourceIdentity(lambda source: client)
    back, on = batch(1, HERE, start=200, end=100), batch(1, HERE, start=100, end=200)
    identity.start(back, None)
    client.topic_ids = lambda topics: dict.fromkeys(topics, "another-id")
    for look in (lambda: identity.must_not_go_back(back), lambda: identity.explain(LOST, on)):
        with pytest.raises(SourceTopicReplaced):
            look()
    client.bounds[-1] = 500
    with pytest.raises(SourceTopicReplaced):
        identity.explain(LOST, on)


def test_a_loss_of_another_source_stays_what_it_is() -> None:
    client: Any = Brokers(0, 500)
    identity = KafkaSourceIdentity(lambda source: client)
    running = batch(1, HERE, start=100, end=200)
    purged = BinlogPurged("the server has removed mysql-bin.000007", next_step="snapshot")
    others = (
        SourceDataLost(f"gone: {{{name}=3}}", next_step="retention", details=LOST.details)
        for name in ("prices-0", "old-orders-0", "orders-01", "orders-0-1", "orders-0x-1")
    )
    for lost in (purged, *others):
        assert identity.explain(lost, running) is lost
    nothing_read = batch(1, HERE, start=200, end=200)
    assert identity.explain(LOST, nothing_read) is LOST


def test_a_leader_that_cannot_be_asked_is_asked_again() -> None:
    client: Any = Brokers(0, 500)
    client.away |= {2}
    found = KafkaSourceIdentity(lambda source: client).explain(
        LOST, batch(1, HERE, start=100, end=200)
    )
    assert isinstance(found, BrokerUnreachable)


def test_what_nobody_can_tell_stays_as_spark_has_it() -> None:
    client: Any = Brokers(0, 500)
    client.brokers = lambda: [3]
    running = batch(1, HERE, start=100, end=200)
    assert KafkaSourceIdentity(lambda source: client).explain(LOST, running) is LOST
    assert KafkaSourceIdentity().explain(LOST, running) is LOST
