"""One process's client of one Kafka cluster: blocking calls, and what the process knows of leaders
and coordinators. Used in the driver and in executor processes. Thread safe. Never survives a fork:
Spark's Python workers are forked from a daemon, and two processes reading one socket would take
each other's answers."""

from __future__ import annotations

import base64
import hashlib
import os
import pickle
import queue
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from copy import copy
from dataclasses import replace
from itertools import count
from typing import Any, Literal
from uuid import UUID

from kafka.protocol.metadata import ApiVersionsRequest, FindCoordinatorRequest

from onceward import patience, surroundings
from onceward.errors import (
    BrokerUnreachable,
    OncewardError,
    SendFailed,
    TopicMissing,
)
from onceward.ids import TopicPartition
from onceward.kafka.wire.acls import Kind
from onceward.kafka.wire.admin import TopicAdmin, metadata_request
from onceward.kafka.wire.connections import ConnectionLost, Connections, NoToken
from onceward.kafka.wire.conversation import (
    SHORTEST_WAIT_MS,
    Answered,
    Code,
    Refused,
    Resources,
    Send,
    Unanswered,
    converse,
    raised_as_errors,
)
from onceward.kafka.wire.deadline import Deadline
from onceward.kafka.wire.error_table import Api, Meaning, find_rule
from onceward.kafka.wire.kafka_python import NodeId
from onceward.kafka.wire.options.settings import ClientSettings

CoordinatorKind = Literal["group", "transaction"]
_KEY_TYPES: Mapping[str, int] = {"group": 0, "transaction": 1}
# the IO thread times requests out; a caller that waits longer than this has lost that thread
_LATE_MS = 2_000
# of those that any broker may answer: then another one is asked, too
_LONGEST_TURN_MS = 1_000
_END_TXN_API_KEY = 26
_END_TXN_OF_3_8 = 4
_END_TXN_WITH_EPOCH = 5

NO_LEADER = -1

_shared: dict[tuple[int, str], KafkaClient] = {}
"""In the order of their last use."""
_MOST_ALIKE = 32
"""Of one cluster and client.id so many are shared: each start of a query may bring a token
provider, or a password, of its own."""
_shared_lock = threading.Lock()


class KafkaClient(TopicAdmin):
    """Client of one cluster. ``settings`` are where to connect and how to prove who we are.
    Nothing is connected before the first request. While no broker at all can be reached, requests
    fail with :class:`BrokerUnreachable` after ``settings.connect_timeout_ms``."""

    def __init__(self, settings: ClientSettings) -> None:
        self.settings = settings
        self._pid = surroundings.process_id()
        self._connections = Connections(settings)
        self._lock = threading.Lock()
        self._leaders: dict[str, dict[int, int]] = {}
        self._coordinators: dict[tuple[str, str], int] = {}
        self._forgotten = Counter[tuple[str, str]]()
        self._cluster_id: str | None = None
        self._reached = False

    @classmethod
    def shared(cls, settings: ClientSettings) -> KafkaClient:
        """Return this process's client for ``settings``; made at first use, and after a fork.
        Later logins are by the newest settings' token provider: a worker outlives its first one,
        which knows the tokens of its day."""
        key = (surroundings.process_id(), _sharing_key(settings))
        with _shared_lock:
            client = _shared.pop(key, None)
            if client is None:
                client = cls(settings)
            elif settings.oauth_token_provider is not None:
                client.settings = settings
                client._connections.log_in_by(settings)
            _shared[key] = client
            place = _place(key, client)
            alike = [known for known, each in _shared.items() if _place(known, each) == place]
            # Not closed: whoever still has one goes on with it, and its thread ends behind that
            for known in alike[:-_MOST_ALIKE]:
                del _shared[known]
            return client

    # --- single requests -------------------------------------------------------------------------

    def send(
        self, request: Any, node_id: int | str, timeout_ms: float | None = None
    ) -> Future[Any]:
        """Send without waiting; the future holds the answer, :class:`ConnectionLost`, or why we
        may not connect. Requests of one thread for one node leave in the order of the calls."""
        self._refuse_after_fork()
        return self._connections.submit(
            request, node_id, timeout_ms or self.settings.request_timeout_ms
        )

    def call(self, request: Any, node_id: int | str, timeout_ms: float | None = None) -> Any:
        """Send once and wait for the answer.

        :raises ConnectionLost: no answer; the request may have been carried out.
        :raises AuthenticationFailed: TLS or SASL said no.
        :raises UnsupportedBroker: no version of this request that both sides speak.
        """
        most_ms = self.settings.request_timeout_ms
        timeout_ms = min(timeout_ms or most_ms, most_ms)
        answer = self.send(request, node_id, timeout_ms)
        try:
            return patience.result(answer, (timeout_ms + _LATE_MS) / 1000)
        except FutureTimeoutError:
            raise self._stuck(f"broker {node_id}") from None

    def call_many(self, requests: Iterable[tuple[Any, int | str]], timeout_ms: float) -> list[Any]:
        """Send every ``(request, node)`` at once; return the answers that came, in order."""
        came = []
        for answer in [self.send(request, node, timeout_ms) for request, node in requests]:
            with suppress(ConnectionLost, FutureTimeoutError):
                came.append(patience.result(answer, (timeout_ms + _LATE_MS) / 1000))
        return came

    def call_any(self, request: Any, timeout_ms: float | None = None, *, turn: int = 0) -> Any:
        """Send to any broker (connected ones, others, bootstrap servers), beginning with the one
        after ``turn`` others. :raises ConnectionLost: none answered."""
        nodes = self._connections.nodes()
        nodes = [*nodes[turn % len(nodes) :], *nodes[: turn % len(nodes)]] if turn else nodes
        timeout_ms = timeout_ms or self.settings.request_timeout_ms
        # A copy: kafka-python notes in a request which version its broker speaks
        return self.call_one_of(nodes, lambda _: copy(request), timeout_ms)

    def call_one_of(
        self, nodes: Sequence[NodeId], request_to: Callable[[NodeId], Any], timeout_ms: float
    ) -> Any:
        """Ask one node more after each share of the time, and return the first answer. Whoever
        was asked may still answer: a broker that is slow, or whose connection is being made, is
        not given up for another one, nor waited for. :raises ConnectionLost: none answered.

        :param request_to: makes the request for a node, each time a new one.
        """
        deadline = Deadline(min(timeout_ms, self.settings.request_timeout_ms))
        answers: queue.SimpleQueue[Future[Any]] = surroundings.SimpleQueue()
        unasked, in_flight, lost = list(nodes), 0, ConnectionLost("no broker is known")
        while unasked or in_flight:
            left_ms = max(SHORTEST_WAIT_MS, deadline.remaining_ms)
            turn_ms = min(_LONGEST_TURN_MS, deadline.remaining_ms / max(1, len(unasked)))
            if unasked:
                node = unasked.pop(0)
                self.send(request_to(node), node, left_ms).add_done_callback(answers.put)
                in_flight += 1
            # What is in flight ends by itself
            wait_ms = turn_ms if unasked else left_ms + _LATE_MS
            try:
                answer = patience.next_in(answers, wait_ms / 1000)
            except queue.Empty:
                if not unasked:
                    raise self._stuck("any broker") from None
                if deadline.passed:
                    unasked.clear()
                continue
            in_flight -= 1
            try:
                return answer.result()
            except ConnectionLost as error:
                lost = error
            if deadline.passed:
                break
        raise lost

    def _stuck(self, whom: str) -> ConnectionLost:
        """Give up the IO thread, which times requests out, and has not."""
        self._connections.start_anew()
        return ConnectionLost(f"no answer from {whom}: the IO thread is stuck")

    # --- what the cluster looks like -------------------------------------------------------------

    def topic_partitions(
        self, topics: Iterable[str], *, timeout_ms: float | None = None, turn: int = 0
    ) -> dict[str, dict[int, int]]:
        """Ask for ``topics`` now: per topic, partition → node id of its leader (``NO_LEADER``
        during an election).

        Never creates a topic. A topic unknown to one broker is asked for again for a moment, of
        the others in turn, because brokers hear of a new topic one after the other, and one that
        is cut off from the controllers never.

        :param turn: of the brokers, the one to begin with (:meth:`call_any`).
        :raises TopicMissing, AccessDenied, BrokerUnreachable: the first names the topic.
        """
        return {
            t.name: {p.partition_index: p.leader_id for p in t.partitions}
            for t in self._topics_asked(sorted(set(topics)), timeout_ms, turn)
        }

    def _topics_asked(
        self, wanted: Sequence[str], timeout_ms: float | None = None, turn: int = 0
    ) -> Any:
        timeout_ms, turns = self._timeout_ms(timeout_ms), count(turn)
        missing_until = Deadline(min(2_000, timeout_ms))

        def codes(answer: Any) -> list[int]:
            self.learn(answer)
            found = [(t.name, t.error_code) for t in answer.topics if t.error_code]
            for topic, code in found:
                rule = find_rule(Api.METADATA, code)
                unknown = rule.error is TopicMissing and missing_until.passed
                if unknown or rule.meaning is Meaning.STOP:
                    raise Refused(
                        Api.METADATA, code, rule, f"topic {topic}", resources={Kind.TOPIC: topic}
                    )
            return [code for _, code in found]

        return self._converse(
            Api.METADATA,
            f"topics {', '.join(wanted)}",
            lambda left_ms: self.call_any(metadata_request(wanted), left_ms, turn=next(turns)),
            codes,
            timeout_ms,
        ).topics

    def topic_ids(
        self, topics: Iterable[str], *, timeout_ms: float | None = None
    ) -> dict[str, str]:
        """Ask for the ids of ``topics`` now, spelt as Kafka's tools do; without those of brokers
        before 2.8. A topic that is deleted and created again under its name has another id
        (KIP-516).

        :raises TopicMissing, AccessDenied, BrokerUnreachable: the first names the topic.
        """
        found = self._topics_asked(sorted(set(topics)), timeout_ms)
        return {
            t.name: _as_kafka_spells(t.topic_id) for t in found if t.topic_id and t.topic_id.int
        }

    def known_leaders(self, topic: str) -> dict[int, int]:
        """Return by partition the leader's node id (or ``NO_LEADER``) as last heard, asking only
        if ``topic`` is unknown."""
        with self._lock:
            leaders, turn = self._leaders.get(topic), self._forgotten["topic", topic]
        return self.topic_partitions([topic], turn=turn)[topic] if leaders is None else leaders

    def known_leader(self, partition: TopicPartition) -> int:
        """Return the leader's node id as last heard; ``NO_LEADER`` if there is none."""
        return self.known_leaders(partition.topic).get(partition.partition, NO_LEADER)

    def forget_leaders(self, topics: Iterable[str]) -> None:
        """Ask again before the next request to a leader of ``topics``, another broker, as for a
        coordinator."""
        with self._lock:
            for topic in topics:
                self._leaders.pop(topic, None)
                self._forgotten["topic", topic] += 1

    def learn(self, metadata: Any) -> None:
        """Take over brokers and leaders from an answer to ``MetadataRequest``."""
        self._connections.learn_brokers(metadata)
        with self._lock:
            self._reached = True
            self._cluster_id = metadata.cluster_id
            for topic in metadata.topics:
                if topic.error_code:
                    self._leaders.pop(topic.name, None)
                else:
                    leaders = {p.partition_index: p.leader_id for p in topic.partitions}
                    self._leaders[topic.name] = leaders

    def coordinator(
        self, key: str, kind: CoordinatorKind, *, timeout_ms: float | None = None
    ) -> int:
        """Return the node id of the coordinator of a group or transactional id, once there is one.
        :raises BrokerUnreachable, AccessDenied: the second names group or transactional id."""
        with self._lock:
            node = self._coordinators.get((kind, key))
            turns = count(self._forgotten[kind, key])
        if node is not None:
            return node
        request = FindCoordinatorRequest(
            key=key, key_type=_KEY_TYPES[kind], coordinator_keys=[key], max_version=5
        )
        answer = self._converse(
            Api.FIND_COORDINATOR,
            f"{kind} {key}",
            lambda left_ms: self.call_any(request, left_ms, turn=next(turns)),
            lambda found: [
                Answered((one := _one_coordinator(found)).error_code, words=one.error_message)
            ],
            timeout_ms,
            resources={Kind.GROUP: key, Kind.TRANSACTIONAL_ID: key},
        )
        found = _one_coordinator(answer)
        node_id: int = found.node_id
        self._connections.learn_broker(node_id, found.host, found.port)
        with self._lock:
            self._coordinators[kind, key] = node_id
        return node_id

    def forget_coordinator(self, key: str, kind: CoordinatorKind) -> None:
        """Look for the coordinator again before the next request to it, at another broker: one
        that is cut off from the controllers goes on naming the coordinator of then."""
        with self._lock:
            self._coordinators.pop((kind, key), None)
            self._forgotten[kind, key] += 1

    def transaction_version(self) -> Literal[1, 2]:
        """Return the transaction protocol that the cluster has finalised, asked for now (KIP-890):
        2 from level 2 of ``transaction.version`` on, if the broker has ``EndTxn`` v5, else 1."""
        levels, end_txn = self._spoken()
        is_2 = levels.get("transaction.version", 0) >= 2 and end_txn >= _END_TXN_WITH_EPOCH
        return 2 if is_2 else 1

    def bounds_remote_reads(self) -> bool:
        """Return whether the broker, asked now, waits for tiered storage as long as a limit of its
        own says (``remote.fetch.max.wait.ms``, KIP-1018), and not as long as a fetch may wait:
        from 3.8 on, which brought ``EndTxn`` v4 as well."""
        return self._spoken()[1] >= _END_TXN_OF_3_8

    def _spoken(self) -> tuple[dict[str, int], int]:
        """Return the features' levels that are finalised, and the newest ``EndTxn``."""
        answer = self._ask(
            lambda: ApiVersionsRequest(
                client_software_name="onceward", client_software_version="1", min_version=0
            )
        )
        levels = {each.name: each.max_version_level for each in answer.finalized_features or ()}
        newest = {key.api_key: key.max_version for key in answer.api_keys}
        return levels, newest.get(_END_TXN_API_KEY, 0)

    def cluster_id(self) -> str:
        """Return Kafka's own id of the cluster, whatever bootstrap server was used."""
        if self._cluster_id is None:
            self.learn(self._ask(lambda: metadata_request([])))
        return self._cluster_id or ""

    def reach(self, topics: Sequence[str] = ()) -> int:
        """Ask whether a broker answers at the address that it advertises, where requests go, and
        return how many partitions ``topics`` have, as far as it knows.

        :raises BrokerUnreachable: no bootstrap server answers, or no broker that they name.
        """
        nodes = self.brokers()
        try:
            answer = self.call_one_of(
                nodes, lambda _: metadata_request(topics), self.settings.connect_timeout_ms
            )
            return sum(len(topic.partitions) for topic in answer.topics)
        except ConnectionLost as lost:
            raise BrokerUnreachable(
                f"bootstrap.servers={','.join(self.settings.bootstrap_servers)} answers, and none "
                "of the brokers that it names does "
                f"({', '.join(sorted(self._connections.addresses()))}); the last: {lost.message}",
                next_step="see that these addresses, advertised.listeners of the brokers, can be "
                "reached from here",
            ) from lost

    def is_served_by(self, servers: Iterable[str]) -> bool:
        """Return whether any of these ``host:port`` is a bootstrap server of ours, or a broker."""
        self.brokers()
        return not frozenset(servers).isdisjoint(
            {*self.settings.bootstrap_servers, *self._connections.addresses()}
        )

    def brokers(self) -> list[int]:
        """Return node ids of the brokers known from the last metadata answer."""
        if not self._reached:
            self.cluster_id()
        return [node for node in self._connections.nodes() if isinstance(node, int)]

    def replication_factor(self, topic: str) -> int:
        """Return how many replicas ``topic`` has (its least). :raises TopicMissing: …"""
        return min(len(p.replica_nodes) for p in self._topics_asked([topic])[0].partitions)

    def close(self) -> None:
        """Close every connection. Outstanding requests fail with :class:`ConnectionLost`."""
        with _shared_lock:
            for key in [key for key, client in _shared.items() if client is self]:
                del _shared[key]
        if surroundings.process_id() == self._pid:
            self._connections.close()

    # --- inside ----------------------------------------------------------------------------------

    def _ask(self, build: Any) -> Any:
        """Send a request that any broker can answer, until one does."""
        return self._converse(
            Api.METADATA,
            "the cluster",
            lambda left_ms: self.call_any(build(), left_ms),
            lambda answer: [getattr(answer, "error_code", 0) or 0],
        )

    def _timeout_ms(self, timeout_ms: float | None) -> float:
        # A cluster that never answered is probably misnamed: say so soon.
        settings = self.settings
        default = settings.request_timeout_ms if self._reached else settings.connect_timeout_ms
        return default if timeout_ms is None else timeout_ms

    @raised_as_errors()
    def _converse(
        self,
        api: Api,
        subject: str,
        send: Send,
        codes: Callable[[Any], Iterable[Code]],
        timeout_ms: float | None = None,
        resources: Resources | None = None,
    ) -> Any:
        """Converse, as :func:`asked` does; a cluster that has never answered is named."""
        deadline = Deadline(self._timeout_ms(timeout_ms))
        try:
            return converse(api, subject, send, codes, deadline, resources=resources)
        except Unanswered as unanswered:
            if self._reached or isinstance(unanswered.lost, NoToken):
                raise
            raise BrokerUnreachable(
                f"none of bootstrap.servers={','.join(self.settings.bootstrap_servers)} answered: "
                f"{unanswered}",
                next_step="check bootstrap.servers, security.protocol, and that the brokers are "
                "up and reachable",
            ) from None

    def _refuse_after_fork(self) -> None:
        if surroundings.process_id() != self._pid:
            raise OncewardError(
                "a Kafka client was used in a forked process",
                next_step="use KafkaClient.shared(settings) there",
            )


def partition_gone(where: TopicPartition) -> SendFailed:
    """Return the error for a partition that was there when it was first looked at."""
    return SendFailed(
        f"topic {where.topic} has no partition {where.partition} any more, and records of this "
        "batch are for it: the topic was created again with fewer partitions",
        next_step="nothing: the batch runs again with the partitions that the topic has by then",
    )


def _as_kafka_spells(topic_id: UUID) -> str:
    """Return an id as ``org.apache.kafka.common.Uuid.toString`` spells it."""
    return base64.urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")


def _one_coordinator(answer: Any) -> Any:
    """Return the one coordinator of an answer: versions from 4 on have a list (KIP-699)."""
    return answer.coordinators[0] if answer.coordinators else answer


def _place(key: tuple[int, str], client: KafkaClient) -> tuple[int, tuple[str, ...], str]:
    """Return what clients have in common of which the newer replace the older."""
    return key[0], client.settings.bootstrap_servers, client.settings.client_id


def _sharing_key(settings: ClientSettings) -> str:
    """Return a key that is equal for equal settings, wherever they come from. A token provider
    counts by its settings' name for it, not by a token that it remembers."""
    return hashlib.sha256(pickle.dumps(replace(settings, oauth_token_provider=None))).hexdigest()


def _forget_inherited() -> None:
    """Drop, in a forked child, the parent's clients without touching their sockets."""
    global _shared_lock
    # the parent may have held it
    _shared_lock = threading.Lock()
    _shared.clear()


os.register_at_fork(after_in_child=_forget_inherited)
