"""A transaction coordinator: one partition of ``__transaction_state``, on the node that leads it,
or believes so.

Sources: ``TransactionCoordinator``, ``TransactionStateManager`` (``appendTransactionToLog``,
``timedOutTransactions``, ``loadTransactionsForTxnTopicPartition``,
``removeExpiredTransactionalIds``), ``TransactionMarkerChannelManager`` and
``TransactionMarkerRequestCompletionHandler``, of 3.9.1 and 4.3.1.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from simulation.world.kafka import transactions as rules
from simulation.world.kafka.partition import Led, Partition
from simulation.world.kafka.transactions import Facts, Metadata, Where

if TYPE_CHECKING:
    from simulation.world.kafka.cluster import Cluster

LOADING, NOT_AVAILABLE, NOT_COORDINATOR, UNKNOWN_TOPIC = 14, 15, 16, 3
_RETRY_MS = 100.0
_MARKER_FAILED_FOR_GOOD = (47, 52)
_AGAIN_MS = 1_000
_HOURLY_MS = 3_600_000  # transaction.remove.expired.transaction.cleanup.interval.ms

Ended = Callable[[int, int, int], None]
"""Told an error code, and with 0 the identity to go on with."""


class Coordinator:
    """See the module. ``known`` is the cache; what the log says is true, and what an isolated node
    has is stale.
    """

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
        in_log = 1 if self.cluster.transaction_version >= 2 else 0
        known = self.known
        for entry in self.led.log.entries:
            name, facts = entry.body
            if facts is None:
                known.pop(name, None)
            else:
                known[name] = Metadata(name, facts)
        for held in list(known.values()):
            held.facts = held.facts.read_back(in_log)
            state = held.facts.state
            if state is rules.ONGOING:
                self._watch(held, held.facts.started_ms)
            elif state is rules.PREPARE_COMMIT or state is rules.PREPARE_ABORT:
                self._send_markers(held, rules.completed(held, self.cluster.around.now_ms()))

    def _append(
        self, held: Metadata, new: Facts, done: Callable[[int], None], *, insist: bool = False
    ) -> None:
        """``appendTransactionToLog``: done with 0 once it is replicated and true, or with why it
        is not.

        :param insist: the transition stays pending after a failure that may pass; whoever asked
            asks again.
        """
        partition, led = self.partition, self.led
        if len(partition.isr) < partition.min_isr and led is partition.led:
            if not insist:
                held.pending = None
            done(NOT_AVAILABLE)
            return
        led.log.note((held.name, new))
        replicated_now = partition.appended(led)
        cluster = self.cluster
        if cluster.slow_state_log and not insist and cluster.around.fires("kafka:state log slow"):
            # ``appendTransactionToLog``: REQUEST_TIMED_OUT. What is known here stays as it was;
            # the log goes on.
            late = partial(self._too_late, held, done)
            cluster.around.later(cluster.settings.request_timeout_ms, late, "state log")
            return
        if replicated_now:
            held.facts = new
            held.pending = None
            done(0)
            return

        def replicated(code: int) -> None:
            if self.resigned:
                done(NOT_COORDINATOR)
            elif code == 0:
                held.facts = new
                held.pending = None
                done(0)
            else:
                code = NOT_COORDINATOR if code == 6 else NOT_AVAILABLE
                if not (insist and code == NOT_AVAILABLE):
                    held.pending = None
                done(code)

        partition.wait(led, led.log.end, self.cluster.settings.request_timeout_ms, replicated)

    def _too_late(self, held: Metadata, done: Callable[[int], None]) -> None:
        if not self.resigned:
            held.pending = None
        done(NOT_COORDINATOR if self.resigned else NOT_AVAILABLE)

    def resign(self) -> None:
        self.resigned = True

    # ── requests ──

    def find(self, name: str) -> Metadata | int:
        """What is known of an id; LOADING or NOT_COORDINATOR; 0: nothing."""
        if self.loading:
            return LOADING
        held = self.known.get(name)
        if held is None:
            return 0
        facts = held.facts
        if facts.state is not rules.ONGOING and held.pending is None:
            age = self.cluster.around.now_ms() - facts.updated_ms
            if age >= self.cluster.settings.transactional_id_expiration_ms and self._expire(
                held, age
            ):
                return 0
        return held

    def _expire(self, held: Metadata, age: int) -> bool:
        """``removeExpiredTransactionalIds``: hourly, so that it may not have come round yet."""
        cluster, partition = self.cluster, self.partition
        if (
            held.facts.state in (rules.PREPARE_COMMIT, rules.PREPARE_ABORT)
            or not partition.enough()
        ):
            return False
        lately = age < cluster.settings.transactional_id_expiration_ms + _HOURLY_MS
        if lately and cluster.around.fires("kafka:expired id lingers"):
            return False
        del self.known[held.name]
        cluster.ids_forgotten += 1
        self.led.log.note((held.name, None))
        partition.appended(self.led)
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
        held = self.find(name)
        if held == LOADING:
            done(LOADING, -1, -1)
            return
        now_ms = cluster.around.now_ms()
        if not isinstance(held, Metadata):
            held = self.known[name] = rules.created(
                name, cluster.new_producer(node), timeout_ms, now_ms
            )
        new = rules.begin_again(
            held, timeout_ms, expected, lambda: cluster.new_producer(node), now_ms
        )
        if isinstance(new, int):
            done(new, -1, -1)
        elif new.state is rules.FENCE:
            version = cluster.transaction_version

            def aborted(code: int, _: int, __: int) -> None:
                done(code or rules.CONCURRENT, -1, -1)

            self._end(node, held, new.producer, new.epoch, False, False, version, aborted)
        else:
            producer, epoch = new.producer, new.epoch
            self._append(
                held, new, lambda code: done(code, -1, -1) if code else done(0, producer, epoch)
            )

    def add(
        self,
        name: str,
        producer: int,
        epoch: int,
        partitions: list[Where],
        version: int,
        done: Callable[[int], None],
    ) -> None:
        """``handleAddPartitionsToTransaction``."""
        held = self.find(name)
        if held.__class__ is not Metadata:
            done(held or rules.INVALID_MAPPING)  # type: ignore[arg-type]
            return
        cluster = self.cluster
        new = rules.add(
            held, producer, epoch, partitions, version, cluster.around.now_ms(), cluster.old
        )  # type: ignore[arg-type]
        if new.__class__ is int:
            done(new)  # type: ignore[arg-type]
            return
        fresh = held.facts.state is not rules.ONGOING  # type: ignore[union-attr]
        self._append(held, new, done)  # type: ignore[arg-type]
        if fresh:
            self._watch(held, new.started_ms)  # type: ignore[union-attr, arg-type]

    def verify(
        self, name: str, producer: int, epoch: int, partitions: list[Where]
    ) -> int | dict[Where, int]:
        """``handleVerifyPartitionsInTransaction``: a code for all, or one for each that is not
        part of it.
        """
        held = self.find(name)
        if not isinstance(held, Metadata):
            return held or rules.INVALID_MAPPING
        code = rules.verify(held, producer, epoch)
        if code:
            return code
        known = held.facts.partitions
        return {partition: rules.ABORTABLE for partition in partitions if partition not in known}

    def end(
        self,
        node: int,
        name: str,
        producer: int,
        epoch: int,
        commit: bool,
        version: int,
        done: Ended,
    ) -> None:
        """``handleEndTransaction``."""
        held = self.find(name)
        if not isinstance(held, Metadata):
            done(held or rules.INVALID_MAPPING, -1, -1)
            return
        self._end(node, held, producer, epoch, commit, True, version, done)

    def _end(
        self,
        node: int,
        held: Metadata,
        producer: int,
        epoch: int,
        commit: bool,
        client: bool,
        version: int,
        done: Ended,
    ) -> None:
        cluster = self.cluster
        fencing = held.pending is rules.FENCE
        now_ms = cluster.around.now_ms()
        if version >= 2:
            new = rules.end_v2(
                held, producer, epoch, commit, client, lambda: cluster.new_producer(node), now_ms
            )
        else:
            new = rules.end_v1(held, producer, epoch, commit, client, now_ms)
        if isinstance(new, int):
            if fencing and held.pending is rules.FENCE:
                held.pending = None
            if new == 0 and version >= 2:
                done(0, held.facts.producer, held.facts.epoch)
            else:
                done(new, -1, -1)
            return

        def logged(code: int) -> None:
            if code:
                if fencing and not self.resigned:
                    held.failed_fence = True
                done(code, -1, -1)
                return
            complete = rules.completed(held, cluster.around.now_ms())
            if version >= 2:
                # The answer comes before the markers, with the identity of the next transaction:
                # at overflow a new producer's.
                done(0, complete.producer, complete.epoch)
            else:
                done(0, -1, -1)
            self._send_markers(held, complete)

        self._append(held, new, logged)

    # ── markers ──

    def _send_markers(self, held: Metadata, complete: Facts) -> None:
        """``addTxnMarkersToSend``: each partition by itself, until all have it; then the log
        learns of it.
        """
        markers = held.markers = held.facts.partitions.copy()
        if not markers:
            self._completed(held, complete)
            return
        around, lags = self.cluster.around, self.cluster.marker_lags
        for where in list(markers):
            lag = around.lag("markers") if lags else 0
            if lag <= 0:
                self._send_marker(held, complete, where)
            else:
                around.later(lag, partial(self._send_marker, held, complete, where), "marker")

    def _send_marker(self, held: Metadata, complete: Facts, where: Where) -> None:
        if self.resigned or where not in held.markers:
            return
        cluster, facts, led = self.cluster, held.facts, self.led
        if not cluster.health.well and cluster.brokers[led.node].isolated:
            self._marker_written(held, complete, where, 13)
            return
        if cluster.late and cluster.is_late(cluster.brokers[led.node], where):
            # it asks whom its broker's metadata names (``addTxnMarkersToBrokerQueue``)
            self._marker_written(held, complete, where, 6)
            return
        commit = facts.state is rules.PREPARE_COMMIT
        code = cluster.write_marker(
            where, facts.producer, facts.epoch, commit, led.epoch, facts.client_version
        )
        if code.__class__ is int:
            self._marker_written(held, complete, where, code)  # type: ignore[arg-type]
        else:
            partition, leader = code  # type: ignore[misc]
            written = partial(self._marker_written, held, complete, where)
            # a leader that dies is asked again (``TransactionMarkerRequestCompletionHandler``:
            # disconnected)
            partition.wait(
                leader,
                leader.log.end,
                cluster.settings.request_timeout_ms,
                written,
                from_afar=True,
            )

    def _marker_written(self, held: Metadata, complete: Facts, where: Where, code: int) -> None:
        """``TransactionMarkerRequestCompletionHandler.onComplete``."""
        if self.resigned or where not in held.markers:
            return
        if code == 0:
            del held.markers[where]
            if not held.markers:
                self._completed(held, complete)
        elif code not in _MARKER_FAILED_FOR_GOOD:
            around = self.cluster.around
            again = max(_RETRY_MS, around.lag("markers"))
            around.later(again, partial(self._send_marker, held, complete, where), "marker")

    def _completed(self, held: Metadata, complete: Facts) -> None:
        """``writeTxnCompletion``."""
        if not self.resigned:
            self._append(
                held, complete, partial(self._logged_completion, held, complete), insist=True
            )

    def _logged_completion(self, held: Metadata, complete: Facts, code: int) -> None:
        if code == NOT_AVAILABLE and not self.resigned:
            self.cluster.around.later(
                _RETRY_MS, partial(self._completed, held, complete), "completion"
            )

    # ── transactions that take too long ──

    def _watch(self, held: Metadata, started_ms: int) -> None:
        """Look at it when it will be overdue: the coordinator looks at all of them every so
        often.
        """
        around = self.cluster.around
        now_ms = around.now_ms()
        due = started_ms + held.facts.timeout_ms + 1
        if held.watched_until > now_ms and held.watched_until <= due:
            return  # that look will see to the next one
        due = max(due, now_ms + (_AGAIN_MS if due <= now_ms else 0))
        held.watched_until = due
        around.later(
            due - now_ms + around.lag("expire"),
            partial(self._look_at, held, due),
            "transaction timeout",
        )

    def _look_at(self, held: Metadata, due: int) -> None:
        """``abortTimedOutTransactions``: ended under the next epoch, which fences whoever is still
        at work.
        """
        if self.resigned or self.known.get(held.name) is not held or held.watched_until != due:
            return
        held.watched_until = -1
        if held.facts.state is not rules.ONGOING:
            if held.pending is rules.ONGOING:
                self._watch(held, self.cluster.around.now_ms())
            return
        if (
            held.pending is not None
            or self.cluster.around.now_ms() - held.facts.started_ms <= held.facts.timeout_ms
        ):
            self._watch(held, held.facts.started_ms)
            return
        new = rules.fence(held)

        def ended(code: int, _: int, __: int) -> None:
            if code and not self.resigned and held.facts.state is rules.ONGOING:
                self._watch(held, held.facts.started_ms)

        version = self.cluster.transaction_version
        self._end(self.led.node, held, new.producer, new.epoch, False, False, version, ended)
