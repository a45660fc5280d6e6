"""A partition and its replicas: who leads, who is in sync, when an append is acknowledged, what an
election loses.

Sources: ``Partition`` (``appendRecordsToLeader``, ``checkEnoughReplicasReachOffset``,
``maybeIncrementLeaderHW``, ``makeLeader``), ``DelayedProduce``, ``ReplicaFetcherThread``,
``ReplicationControlManager`` (elections, fencing).

All replicas share one log as long as they agree; a follower is how much of it he has. A leader
that was cut off and does not know that it was deposed keeps the log (:class:`Led` in ``stale``),
and its successor goes on with a copy.
"""

from __future__ import annotations

from collections.abc import Callable

from simulation.world.kafka.around import Surroundings
from simulation.world.kafka.broker import Broker, Health
from simulation.world.kafka.log import Log

NOT_LEADER, TIMED_OUT, NOT_ENOUGH_REPLICAS, NOT_ENOUGH_AFTER_APPEND = 6, 7, 19, 20
NOBODY = -1

Done = Callable[[int], None]


class Led:
    """A node that leads, or believes so: its log, since when, and who waits for
    acknowledgements.
    """

    __slots__ = ("epoch", "epoch_start", "log", "node", "timer_at", "waiting")

    def __init__(self, node: int, log: Log, epoch: int) -> None:
        self.node = node
        self.log = log
        self.epoch = epoch
        self.epoch_start = log.end
        self.waiting: list[tuple[int, int, Done, bool]] = []
        """End of what was appended, until when (ms), what to do, and whether another broker is to
        hear of a death.
        """
        self.timer_at = -1

    def let_go(self, code: int, *, died: bool = False) -> None:
        """Whoever waits is told ``code``; of a broker that has died only those who wait from afar
        hear of it.
        """
        waiting, self.waiting = self.waiting, []
        for _, _, done, from_afar in waiting:
            if from_afar or not died:
                done(code)


class Follower:
    """Up to where a replica has the log, and what it was told of the high watermark.

    ``read_up_to``: what lies below it was read from a disk, at a start. Of a producer's batches
    there only the newest is known (``ProducerStateManager.writeSnapshot``; seen on 3.9.1 and
    4.3.1).
    """

    __slots__ = ("end", "high", "read_up_to")

    def __init__(self) -> None:
        self.end = self.high = self.read_up_to = 0


class Partition:
    """See the module."""

    __slots__ = (
        "around", "brokers", "compact", "count", "epoch", "followers", "health", "index", "isr",
        "led", "level", "log",
        "max_bytes", "min_isr", "on_leader", "replicas", "replicating", "stale", "topic",
    )  # fmt: skip

    def __init__(
        self,
        around: Surroundings,
        brokers: dict[int, Broker],
        health: Health,
        topic: str,
        index: int,
        replicas: list[int],
        min_isr: int,
    ) -> None:
        self.around = around
        self.brokers = brokers
        self.health = health
        self.level = False
        """All replicas have all there is: what ``followers`` say is older than that."""
        self.topic = topic
        self.index = index
        self.replicas = replicas
        self.count = len(replicas)
        self.min_isr = min_isr
        self.max_bytes = 1_048_588
        self.compact = False
        self.isr = [node for node in replicas if brokers[node].well] or [replicas[0]]
        self.log = Log()
        """What is true: the log of whoever leads, or led last."""
        self.followers = {node: Follower() for node in replicas}
        self.led: Led | None = Led(self.isr[0], self.log, 0) if brokers[self.isr[0]].well else None
        self.epoch = 0
        self.stale: dict[int, Led] = {}
        self.replicating = False
        self.on_leader: Callable[[Partition], None] | None = None
        """Told of each change of the leader: coordinators come and go with it."""

    @property
    def leader(self) -> int:
        return NOBODY if self.led is None else self.led.node

    def led_by(self, node: int) -> Led | None:
        """The leadership of ``node``, as the node itself sees it."""
        led = self.led
        if led is not None and led.node == node:
            return led
        return self.stale.get(node) if self.stale else None

    # ── acknowledgements ──

    def enough(self) -> bool:
        """May a batch be appended with acks=all?"""
        return len(self.isr) >= self.min_isr

    def appended(self, led: Led) -> bool:
        """Something was appended by ``led``: let it be replicated. Is it already?"""
        if led is not self.led:
            return False  # nobody fetches from a leader that is none
        log = led.log
        health = self.health
        if not health.lags and health.well and not led.waiting and len(self.isr) == self.count:
            self.level = True
            if log.undecided:
                log.raise_high(log.end)
            else:
                log.high = log.end
            return True
        if len(self.isr) == 1:
            self._raise_high(led)
        elif not self.replicating:
            lag = self.around.lag("replicate")
            if lag <= 0:
                self._replicate()
            else:
                self.replicating = True
                self.around.later(lag, self._replicate, "replicate")
        return log.high == log.end

    def settle(self) -> None:
        """Write down where each replica is, because that is about to matter."""
        if self.level:
            self.level = False
            log = self.log
            for follower in self.followers.values():
                follower.end, follower.high = log.end, log.high

    def wait(
        self, led: Led, end: int, timeout_ms: int, done: Done, *, from_afar: bool = False
    ) -> None:
        """Call ``done`` with 0 when all in-sync replicas have everything below ``end``, or with an
        error code.

        :param from_afar: another broker waits, and notices when this one dies.
        """
        if led.log.high >= end:
            done(0 if len(self.isr) >= self.min_isr else NOT_ENOUGH_AFTER_APPEND)
            return
        until = self.around.now_ms() + timeout_ms
        led.waiting.append((end, until, done, from_afar))
        if led.timer_at < 0 or until < led.timer_at:
            led.timer_at = until
            self.around.later(timeout_ms, lambda: self._overdue(led), "acknowledgements")

    def _overdue(self, led: Led) -> None:
        now = self.around.now_ms()
        if led.timer_at < 0 or now < led.timer_at:
            return
        late = [each for each in led.waiting if each[1] <= now]
        led.waiting = [each for each in led.waiting if each[1] > now]
        led.timer_at = -1
        if led.waiting:
            led.timer_at = min(each[1] for each in led.waiting)
            self.around.later(led.timer_at - now, lambda: self._overdue(led), "acknowledgements")
        for _, _, done, _ in late:
            done(TIMED_OUT)

    def _replicate(self) -> None:
        """Every follower that can fetches all there is; and the leader hears of it with the next
        request.
        """
        self.replicating = False
        self.settle()
        led = self.led
        if led is None:
            return
        brokers = self.brokers
        if not brokers[led.node].well:
            return
        end, high = led.log.end, led.log.high
        for node, follower in self.followers.items():
            broker = brokers[node]
            if node != led.node and broker.up and not broker.isolated:
                if self.around.fires("kafka:follower lags"):
                    continue
                follower.end = end
                follower.high = high
        self._raise_high(led)
        if led.log.high < led.log.end and self._all_reachable(led):
            lag = self.around.lag("replicate")
            self.replicating = True
            self.around.later(max(lag, 1.0), self._replicate, "replicate")

    def _all_reachable(self, led: Led) -> bool:
        brokers = self.brokers
        return self.enough() and all(brokers[node].well for node in self.isr)

    def _raise_high(self, led: Led) -> None:
        if len(self.isr) < self.min_isr:
            return  # KIP-966: below min ISR the high watermark stands still (``isUnderMinIsr``)
        high = led.log.end
        for node in self.isr:
            if node != led.node:
                end = self.followers[node].end
                if end < high:
                    high = end
        led.log.raise_high(high)
        waiting = led.waiting
        if waiting:
            high = led.log.high
            reached = 0
            for end, _, _, _ in waiting:
                if end > high:
                    break
                reached += 1
            if reached:
                ready = waiting[:reached]
                del waiting[:reached]
                code = 0 if len(self.isr) >= self.min_isr else NOT_ENOUGH_AFTER_APPEND
                for _, _, done, _ in ready:
                    done(code)

    # ── elections ──

    def gone(self, node: int) -> None:
        """The controller has fenced ``node``: it is not in sync any more, and does not lead."""
        self.settle()
        if node in self.isr and len(self.isr) > 1:
            self.isr.remove(node)
            self.health.told.clear()
        if self.leader == node or self.led is None:
            self.elect()
        elif self.led is not None:
            self._catch_up_soon()
            self._raise_high(self.led)

    def elect(self, preferred: int | None = None) -> None:
        """A replica in sync takes over, ``preferred`` if it is one; nobody if there is none
        (unclean elections are off).
        """
        self.settle()
        old = self.led
        able = [node for node in self.replicas if node in self.isr and self.brokers[node].well]
        if preferred in able:
            able = [preferred]  # type: ignore[list-item]
        if old is not None and able and able[0] == old.node:
            return
        self.led = None
        self.epoch += 1
        self.health.told.clear()
        if old is not None:
            self._depose(old)
        if able:
            self._lead(able[0], old)
        if self.on_leader is not None:
            self.on_leader(self)

    def _depose(self, old: Led) -> None:
        """Whoever cannot be told goes on as if he led; his log is his own from here on."""
        broker = self.brokers[old.node]
        follower = self.followers[old.node]
        follower.end, follower.high = old.log.end, old.log.high
        if broker.up and broker.isolated:
            self.stale[old.node] = old
            self.log = old.log.copy()
        else:
            old.let_go(NOT_LEADER, died=not broker.up)

    def _lead(self, node: int, old: Led | None) -> None:
        mine = self.followers[node]
        log = self.log
        log.truncate(mine.end)
        log.verifying.clear()
        if old is None or old.node != node:
            log.high = min(log.high, mine.high)
            log.rebuild(mine.read_up_to)
        self.led = Led(node, log, self.epoch)
        for other, follower in self.followers.items():
            if other != node:
                follower.end = min(follower.end, log.end)
                follower.high = min(follower.high, log.high)
        self._catch_up_soon()

    def _catch_up_soon(self) -> None:
        led = self.led
        if led is None:
            return
        if len(self.isr) == 1:
            self._raise_high(led)
        elif not self.replicating:
            self.replicating = True
            self.around.later(max(1.0, self.around.lag("replicate")), self._replicate, "replicate")

    # ── nodes that come back ──

    def restarted(self, node: int) -> None:
        """``node`` reads its disk."""
        follower = self.followers[node]
        follower.read_up_to = follower.end

    def back(self, node: int) -> None:
        """``node`` hears the controller again. What it has that its leader has not it cuts off."""
        self.settle()
        follower = self.followers[node]
        follower.end = min(follower.end, self.log.end)
        old = self.stale.pop(node, None)
        if old is not None:
            old.let_go(NOT_LEADER)
        if self.led is None and node in self.isr:
            self.elect()
            return
        if self.led is not None and self.led.node == node:
            self._catch_up_soon()

    def in_sync(self, node: int) -> bool:
        """``node`` has caught up, and is a replica like the others; False: there is nobody to
        catch up with.
        """
        self.settle()
        led = self.led
        if led is None or not self.brokers[led.node].well:
            return node in self.isr
        if node not in self.isr:
            self.isr.append(node)
            self.health.told.clear()
            self.isr.sort(key=self.replicas.index)
        follower = self.followers[node]
        if node != led.node:
            follower.end, follower.high = led.log.end, led.log.high
        self._raise_high(led)
        return True
