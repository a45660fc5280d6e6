"""A transaction coordinator: one partition of ``__transaction_state``, on the node that leads it, or believes so.

Sources: ``TransactionCoordinator``, ``TransactionStateManager`` (``appendTransactionToLog``,
``timedOutTransactions``, ``loadTransactionsForTxnTopicPartition``, ``removeExpiredTransactionalIds``),
``TransactionMarkerChannelManager`` and ``TransactionMarkerRequestCompletionHandler``, of 3.9.1 and 4.3.1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from simulation.world.kafka import transactions as rules
from simulation.world.kafka.partition import Led, Partition
from simulation.world.kafka.transactions import Metadata, Transit, Where

if TYPE_CHECKING:
    from simulation.world.kafka.cluster import Cluster

LOADING, NOT_AVAILABLE, NOT_COORDINATOR, UNKNOWN_TOPIC = 14, 15, 16, 3
_RETRY_MS = 100.0
_MARKER_FAILED_FOR_GOOD = (47, 52)
_AGAIN_MS = 1_000

Ended = Callable[[int, int, int], None]
"""Told an error code, and with 0 the identity to go on with."""


class Coordinator:
    """See the module. ``known`` is the cache; what the log says is true, and what an isolated node has is stale."""

    __slots__ = ("cluster", "known", "led", "loading", "partition", "resigned")

    def __init__(self, cluster: Cluster, partition: Partition, led: Led) -> None:
        self.cluster = cluster
        self.partition = partition
        self.led = led
        self.known: dict[str, Metadata] = {}
        self.resigned = False
        self.loading = False

    # ── the log ──

    def load(self) -> None:
        """Read the log, and finish what a predecessor has begun to end."""
        self.loading = bool(self.led.log.entries)
        if not self.loading:
            return
        lag = self.cluster.around.lag("load")
        if lag <= 0:
            self._loaded()
        else:
            self.cluster.around.later(lag, self._loaded, "load")

    def _loaded(self) -> None:
        if self.resigned:
            return
        self.loading = False
        for entry in self.led.log.entries:
            name, transit = entry.body
            if transit is None:
                self.known.pop(name, None)
                continue
            now = self.known.get(name)
            if now is None:
                now = self.known[name] = Metadata(name, transit.producer, transit.timeout_ms, 0)
            now.take(transit, 1 if self.cluster.transaction_version >= 2 else 0)
        for now in list(self.known.values()):
            if now.state is rules.ONGOING:
                self._watch(now, now.started_ms)
            elif now.state is rules.PREPARE_COMMIT or now.state is rules.PREPARE_ABORT:
                self._send_markers(now, rules.completed(now, self.cluster.around.now_ms()))

    def _append(self, now: Metadata, transit: Transit, done: Callable[[int], None], *, insist: bool = False) -> None:
        """``appendTransactionToLog``: done with 0 once it is replicated and true, or with why it is not.

        :param insist: the transition stays pending after a failure that may pass; whoever asked asks again.
        """
        partition, led = self.partition, self.led
        if led is partition.led and not partition.enough():
            code = NOT_AVAILABLE
            if not insist:
                now.pending = None
            done(code)
            return

        def replicated(code: int) -> None:
            if self.resigned:
                done(NOT_COORDINATOR)
                return
            if code == 0:
                now.complete(transit)
                done(0)
                return
            code = NOT_COORDINATOR if code == 6 else NOT_AVAILABLE
            if not (insist and code == NOT_AVAILABLE):
                now.pending = None
            done(code)

        log = led.log
        log.append(None, (now.name, transit), 1, -1, -1, -1, False, led.epoch, transit.updated_ms)
        partition.appended(led)
        if log.high == log.end:
            replicated(0 if partition.enough() else 20)
        else:
            partition.wait(led, log.end, self.cluster.settings.request_timeout_ms, replicated)

    def resign(self) -> None:
        self.resigned = True

    # ── requests ──

    def find(self, name: str) -> Metadata | int:
        """What is known of an id; LOADING or NOT_COORDINATOR; 0: nothing."""
        if self.loading:
            return LOADING
        now = self.known.get(name)
        if now is None:
            return 0
        if now.state is not rules.ONGOING and now.pending is None:
            age = self.cluster.around.now_ms() - now.updated_ms
            if age >= self.cluster.settings.transactional_id_expiration_ms and self._expire(now):
                return 0
        return now

    def _expire(self, now: Metadata) -> bool:
        """``removeExpiredTransactionalIds``: hourly, so that it may not have come round yet."""
        if now.state in (rules.PREPARE_COMMIT, rules.PREPARE_ABORT) or not self.partition.enough():
            return False
        late = self.cluster.around.now_ms() - now.updated_ms - self.cluster.settings.transactional_id_expiration_ms
        if late < 3_600_000 and self.cluster.around.fires("kafka:expired id lingers"):
            return False
        del self.known[now.name]
        led = self.led
        led.log.append(None, (now.name, None), 1, -1, -1, -1, False, led.epoch, self.cluster.around.now_ms())
        self.partition.appended(led)
        return True

    def init(
        self,
        node: int,
        name: str,
        timeout_ms: int,
        expected: tuple[int, int] | None,
        done: Callable[[int, int, int], None],
    ) -> None:
        """``handleInitProducerId``."""
        cluster = self.cluster
        now = self.find(name)
        if now == LOADING:
            done(LOADING, -1, -1)
            return
        now_ms = cluster.around.now_ms()
        if not isinstance(now, Metadata):
            now = self.known[name] = Metadata(name, cluster.new_producer(node), timeout_ms, now_ms)
        metadata = now
        decision = rules.begin_again(metadata, timeout_ms, expected, lambda: cluster.new_producer(node), now_ms)
        if isinstance(decision, int):
            done(decision, -1, -1)
        elif decision.state is rules.FENCE:
            version = cluster.transaction_version
            self._end(
                node, metadata, decision.producer, decision.epoch, False, False, version,
                lambda code, _, __: done(code or rules.CONCURRENT, -1, -1),
            )  # fmt: skip
        else:
            self._append(
                metadata,
                decision,
                lambda code: done(0, decision.producer, decision.epoch) if code == 0 else done(code, -1, -1),
            )

    def add(
        self, name: str, producer: int, epoch: int, partitions: list[Where], version: int, done: Callable[[int], None]
    ) -> None:
        """``handleAddPartitionsToTransaction``."""
        now = self.find(name)
        if not isinstance(now, Metadata):
            done(now or rules.INVALID_MAPPING)
            return
        cluster = self.cluster
        decision = rules.add(now, producer, epoch, partitions, version, cluster.around.now_ms(), cluster.old)
        if isinstance(decision, int):
            done(decision)
            return
        fresh = now.state is not rules.ONGOING
        self._append(now, decision, done)
        if fresh:
            self._watch(now, decision.started_ms)

    def verify(self, name: str, producer: int, epoch: int, partitions: list[Where]) -> int | dict[Where, int]:
        """``handleVerifyPartitionsInTransaction``: a code for all, or one for each that is not part of it."""
        now = self.find(name)
        if not isinstance(now, Metadata):
            return now or rules.INVALID_MAPPING
        code = rules.verify(now, producer, epoch)
        if code:
            return code
        known = now.partitions
        return {partition: rules.ABORTABLE for partition in partitions if partition not in known}

    def end(self, node: int, name: str, producer: int, epoch: int, commit: bool, version: int, done: Ended) -> None:
        """``handleEndTransaction``."""
        now = self.find(name)
        if not isinstance(now, Metadata):
            done(now or rules.INVALID_MAPPING, -1, -1)
            return
        self._end(node, now, producer, epoch, commit, True, version, done)

    def _end(
        self, node: int, now: Metadata, producer: int, epoch: int, commit: bool, client: bool, version: int, done: Ended
    ) -> None:
        cluster = self.cluster
        fencing = now.pending is rules.FENCE
        now_ms = cluster.around.now_ms()
        if version >= 2:
            decision = rules.end_v2(now, producer, epoch, commit, client, lambda: cluster.new_producer(node), now_ms)
        else:
            decision = rules.end_v1(now, producer, epoch, commit, client, now_ms)
        if isinstance(decision, int):
            if decision == 0 and version >= 2:
                done(0, now.producer, now.epoch)
            else:
                done(decision, -1, -1)
            return

        def logged(code: int) -> None:
            if code:
                if fencing and not self.resigned:
                    now.failed_fence = True
                done(code, -1, -1)
                return
            complete = rules.completed(now, cluster.around.now_ms())
            if version >= 2:
                # The answer comes before the markers, with the identity of the next transaction: at overflow a new
                # producer's.
                done(0, complete.producer, complete.epoch)
            else:
                done(0, -1, -1)
            self._send_markers(now, complete)

        self._append(now, decision, logged)

    # ── markers ──

    def _send_markers(self, now: Metadata, complete: Transit) -> None:
        """``addTxnMarkersToSend``: each partition by itself, until all have it; then the log learns of it."""
        markers = now.markers = dict(now.partitions)
        if not markers:
            self._completed(now, complete)
            return
        around = self.cluster.around
        for where in now.partitions:
            lag = around.lag("markers")
            if lag <= 0:
                self._send_marker(now, complete, where)
            else:
                around.later(lag, lambda where=where: self._send_marker(now, complete, where), "marker")  # type: ignore[misc]

    def _send_marker(self, now: Metadata, complete: Transit, where: Where) -> None:
        if self.resigned or where not in now.markers:
            return
        cluster = self.cluster

        def written(code: int) -> None:
            if self.resigned or where not in now.markers:
                return
            if code == 0:
                del now.markers[where]
                if not now.markers:
                    self._completed(now, complete)
            elif code not in _MARKER_FAILED_FOR_GOOD:
                again = max(_RETRY_MS, cluster.around.lag("markers"))
                cluster.around.later(again, lambda: self._send_marker(now, complete, where), "marker")

        if cluster.brokers[self.led.node].isolated:
            written(13)
            return
        commit = now.state is rules.PREPARE_COMMIT
        version = now.client_version
        cluster.write_marker(where, now.producer, now.epoch, commit, self.led.epoch, version, written)

    def _completed(self, now: Metadata, complete: Transit) -> None:
        """``writeTxnCompletion``."""

        def logged(code: int) -> None:
            if code == NOT_AVAILABLE and not self.resigned:
                self.cluster.around.later(_RETRY_MS, lambda: self._completed(now, complete), "completion")

        if not self.resigned:
            self._append(now, complete, logged, insist=True)

    # ── transactions that take too long ──

    def _watch(self, now: Metadata, started_ms: int) -> None:
        """Look at it when it will be overdue: the coordinator looks at all of them every so often."""
        around = self.cluster.around
        now_ms = around.now_ms()
        due = started_ms + now.timeout_ms + 1
        if now.watched_until > now_ms and now.watched_until <= due:
            return  # that look will see to the next one
        due = max(due, now_ms + (_AGAIN_MS if due <= now_ms else 0))
        now.watched_until = due
        around.later(due - now_ms + around.lag("expire"), lambda: self._look_at(now, due), "transaction timeout")

    def _look_at(self, now: Metadata, due: int) -> None:
        """``abortTimedOutTransactions``: ended under the next epoch, which fences whoever is still at work."""
        if self.resigned or self.known.get(now.name) is not now or now.watched_until != due:
            return
        now.watched_until = -1
        if now.state is not rules.ONGOING:
            if now.pending is rules.ONGOING:
                self._watch(now, self.cluster.around.now_ms())
            return
        if now.pending is not None or self.cluster.around.now_ms() - now.started_ms <= now.timeout_ms:
            self._watch(now, now.started_ms)
            return
        decision = rules.fence(now)

        def ended(code: int, _: int, __: int) -> None:
            if code and not self.resigned and now.state is rules.ONGOING:
                self._watch(now, now.started_ms)

        version = self.cluster.transaction_version
        self._end(self.led.node, now, decision.producer, decision.epoch, False, False, version, ended)
