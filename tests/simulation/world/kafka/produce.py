"""``Produce``, and the word with the transaction coordinator that comes before it.

Sources: ``KafkaApis.handleProduceRequest``, ``ReplicaManager.handleProduceAppend``
(``maybeSendPartitionsTo…``, ``maybeRetryOnConcurrentTransactions``, ``postVerificationCallback``),
``AddPartitionsToTxnManager``, ``Partition.appendRecordsToLeader``, of 3.9.1 and 4.3.1; KIP-890.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from simulation.world.kafka.answers import ProduceAnswer, Produced, ProducedTopic
from simulation.world.kafka.broker import Broker, Held
from simulation.world.kafka.partition import Led, Partition
from simulation.world.kafka.producers import APPEND, INVALID_PRODUCER_EPOCH, Verification, verdict
from simulation.world.kafka.record_bytes import HEADER, TRANSACTIONAL, lacks_a_key
from simulation.world.kafka.transactions import ABORTABLE, CONCURRENT, FENCED, Where

if TYPE_CHECKING:
    from simulation.world.kafka.cluster import Cluster

UNKNOWN_TOPIC, NOT_LEADER, TOO_LARGE, NETWORK, NOT_ENOUGH_REPLICAS = 3, 6, 10, 13, 19
LOADING, NOT_AVAILABLE, NOT_COORDINATOR, BAD_ACKS, INVALID_TXN_STATE = 14, 15, 16, 21, 48
INVALID_RECORD = 87
ADDS, TELLS_ABORTABLE = 12, 11
"""From these versions of ``Produce`` on partitions are added by it, and TRANSACTION_ABORTABLE is
told.
"""

_CANNOT_ASK = frozenset((NETWORK, LOADING, NOT_AVAILABLE, NOT_COORDINATOR))


class _Append:
    """A batch of a request."""

    __slots__ = (
        "code",
        "fields",
        "head",
        "led",
        "offset",
        "partition",
        "pieces",
        "verification",
        "where",
    )

    def __init__(self, where: Where, pieces: Any) -> None:
        self.where = where
        self.pieces = pieces
        self.code = 0
        self.offset = -1
        self.partition: Partition | None = None
        self.led: Led | None = None
        self.verification: Verification | None = None


def produce(
    cluster: Cluster, broker: Broker, version: int, request: Any, reply: Callable[[Any], None]
) -> None:
    """Carry one request out, and answer it when all of it is acknowledged or refused."""
    node = broker.node
    partitions = cluster.partitions
    appends = []
    asked: list[_Append] = []
    acks = request.acks
    name = request.transactional_id
    producer = epoch = -1
    for where, pieces in request._batches.items():
        each = _Append(where, pieces)
        appends.append(each)
        partition = partitions.get(where)
        if partition is None or (cluster.unheard and cluster.unheard_of(where[0], node)):
            each.code = UNKNOWN_TOPIC
            continue
        led = partition.led_by(node)
        if led is None:
            each.code = NOT_LEADER
            continue
        each.partition, each.led = partition, led
        head = pieces[0]
        if len(head) != 61:
            whole = b"".join(pieces)
            head, each.pieces = whole[:61], (whole[:61], whole[61:])
        each.head = head
        fields = each.fields = HEADER.unpack(head)
        if name is not None and fields[5] & TRANSACTIONAL:
            producer, epoch = fields[9], fields[10]
            log = led.log
            state = log.producers.get(producer)
            if state is not None:
                if epoch < state.epoch and not cluster.old:
                    each.code = INVALID_PRODUCER_EPOCH
                    continue
                if state.open_since >= 0 and (state.epoch == epoch or cluster.old):
                    continue
            verification = log.verifying.get(producer)
            if verification is None:
                verification = log.verifying[producer] = Verification(
                    fields[11], epoch, version >= ADDS
                )
            else:
                verification.seen(fields[11], epoch)
            each.verification = verification
            asked.append(each)
    if acks not in (-1, 0, 1):
        for each in appends:
            each.code = BAD_ACKS
        asked = []
    if asked:
        ask = _Question(
            cluster, broker, version, request, appends, asked, name, producer, epoch, reply
        )
        ask.send()
    else:
        _append_all(cluster, broker, request, appends, reply)


class _Question:
    """``AddPartitionsToTxn`` from a partition's leader to the transaction coordinator."""

    __slots__ = (
        "appends", "asked", "broker", "cluster", "epoch", "name", "producer", "reply", "request",
        "started_ms",
        "version",
    )  # fmt: skip

    def __init__(
        self,
        cluster: Cluster,
        broker: Broker,
        version: int,
        request: Any,
        appends: list[_Append],
        asked: list[_Append],
        name: str,
        producer: int,
        epoch: int,
        reply: Callable[[Any], None],
    ) -> None:
        self.cluster, self.broker, self.version, self.request = cluster, broker, version, request
        self.appends, self.asked, self.name, self.producer, self.epoch = (
            appends,
            asked,
            name,
            producer,
            epoch,
        )
        self.reply = reply
        self.started_ms = cluster.around.now_ms()

    def send(self) -> None:
        lag = self.cluster.around.lag("verify") if self.cluster.verify_lags else 0
        if lag <= 0:
            self._arrived()
        else:
            if not isinstance(self.reply, Held):
                self.reply = Held(self.broker, self.reply)
            self.cluster.around.later(lag, self._arrived, "AddPartitionsToTxn")

    def _arrived(self) -> None:
        cluster = self.cluster
        if not self.broker.up:
            return
        coordinator = cluster.coordinator_for(self.name, self.broker)
        if isinstance(coordinator, int):
            self._told(coordinator)
            return
        partitions = [each.where for each in self.asked]
        if self.version >= ADDS:
            coordinator.add(self.name, self.producer, self.epoch, partitions, 2, self._told)
        else:
            self._told(coordinator.verify(self.name, self.producer, self.epoch, partitions))

    def _told(self, codes: int | dict[Where, int]) -> None:
        cluster = self.cluster
        settings = cluster.settings
        if codes == CONCURRENT and self.version >= ADDS:
            patience_ms = settings.add_partitions_to_txn_retry_backoff_max_ms
            if cluster.around.now_ms() - self.started_ms < patience_ms:
                if not isinstance(self.reply, Held):
                    self.reply = Held(self.broker, self.reply)
                pause_ms = settings.add_partitions_to_txn_retry_backoff_ms
                cluster.around.later(pause_ms, self._again, "AddPartitionsToTxn")
                return
        if codes:
            for each in self.asked:
                code = codes if isinstance(codes, int) else codes.get(each.where, 0)
                each.code = _after_verification(code, self.version)
        _append_all(cluster, self.broker, self.request, self.appends, self.reply)

    def _again(self) -> None:
        """Whether each still has to be asked for is looked up anew."""
        if self.broker.up:
            _refresh(self.asked, self.producer, self.epoch, self.version)
            self._arrived() if self.asked else _append_all(
                self.cluster, self.broker, self.request, self.appends, self.reply
            )


def _refresh(asked: list[_Append], producer: int, epoch: int, version: int) -> None:
    """``maybeStartTransactionVerificationForPartition``, once more; only 4.x does (version 12 of
    the request).
    """
    still = []
    for each in asked:
        assert each.led is not None
        log = each.led.log
        state = log.producers.get(producer)
        if state is not None and epoch < state.epoch:
            each.code = INVALID_PRODUCER_EPOCH
        elif state is not None and state.open_since >= 0 and state.epoch == epoch:
            each.verification = None
        else:
            if producer not in log.verifying:
                log.verifying[producer] = Verification(each.fields[11], epoch, version >= ADDS)
            each.verification = log.verifying[producer]
            still.append(each)
    asked[:] = still


def _after_verification(code: int, version: int) -> int:
    """``AddPartitionsToTxnHandler`` and ``postVerificationCallback``: what the producer is told of
    a refusal.
    """
    if code == FENCED:
        return INVALID_PRODUCER_EPOCH
    if code == ABORTABLE and version < TELLS_ABORTABLE:
        return INVALID_TXN_STATE
    if code in _CANNOT_ASK or (code == CONCURRENT and version < ADDS):
        return NOT_ENOUGH_REPLICAS
    return code


def _append_all(
    cluster: Cluster,
    broker: Broker,
    request: Any,
    appends: list[_Append],
    reply: Callable[[Any], None],
) -> None:
    acks = request.acks
    waiting: list[_Append] = []
    for each in appends:
        if each.code == 0:
            _append(cluster, broker, each, acks)
            if acks == -1 and each.code == 0:
                led = each.led
                assert led is not None
                if led.log.high <= each.offset + each.fields[6]:
                    waiting.append(each)
    if not waiting:
        reply(_answer(appends))
        return
    held = reply if isinstance(reply, Held) else Held(broker, reply)
    left = len(waiting)

    def acknowledged(each: _Append, code: int) -> None:
        nonlocal left
        if code:
            each.code, each.offset = code, -1
        left -= 1
        if not left:
            held(_answer(appends))

    for each in waiting:
        assert each.led is not None
        assert each.partition is not None
        each.partition.wait(
            each.led,
            each.offset + each.fields[6] + 1,
            request.timeout_ms,
            lambda code, each=each: acknowledged(each, code),  # type: ignore[misc]
        )


def _append(cluster: Cluster, broker: Broker, each: _Append, acks: int) -> None:
    """``appendRecordsToLeader``, with the checks in the order of ``UnifiedLog.append``."""
    partition, led = each.partition, each.led
    assert partition is not None
    assert led is not None
    if led is not partition.led and partition.stale.get(broker.node) is not led:
        each.code = NOT_LEADER  # since it was verified
        return
    fields = each.fields
    if acks == -1 and len(partition.isr) < partition.min_isr and led is partition.led:
        each.code = NOT_ENOUGH_REPLICAS
        return
    if fields[1] + 12 > partition.max_bytes:
        each.code = TOO_LARGE
        return
    if partition.compact and lacks_a_key(each.head, each.pieces[1]):
        each.code = INVALID_RECORD
        return
    log = led.log
    last_delta = fields[6]
    producer, epoch, first = fields[9], fields[10], fields[11]
    transactional = bool(fields[5] & TRANSACTIONAL)
    if producer >= 0:
        state = log.producers.get(producer)
        if state is not None and state.open_since < 0 and cluster.forgets(state):
            del log.producers[producer]
            state = None
        last = (first + last_delta) & 0x7FFFFFFF
        verification = log.verifying.get(producer)
        guarded = verification is not None and verification is each.verification
        decided = verdict(
            state, epoch, first, last, transactional, verification, guarded, cluster.old
        )
        if decided != APPEND:
            if decided < 0:
                each.code = -decided
            else:
                each.offset = decided
            return
    each.offset = log.append(
        each.head,
        bytes(each.pieces[1]),
        last_delta + 1,
        producer,
        epoch,
        first,
        transactional,
        led.epoch,
        fields[8],
    )
    partition.appended(led)


def _answer(appends: list[_Append]) -> ProduceAnswer:
    if len(appends) == 1:
        each = appends[0]
        topic, index = each.where
        return ProduceAnswer([ProducedTopic(topic, [Produced(index, each.code, each.offset)])])
    topics: dict[str, list[Produced]] = {}
    for each in appends:
        topic, index = each.where
        topics.setdefault(topic, []).append(Produced(index, each.code, each.offset))
    return ProduceAnswer([ProducedTopic(topic, parts) for topic, parts in topics.items()])
