"""What befalls nodes: they die and come back, are cut off from the others, or give a leadership
away.

Sources: KIP-631 (``broker.session.timeout.ms``: the controller fences whoever is silent),
``ClusterControlManager``, ``ReplicationControlManager.handleBrokerFenced``; a broker that is cut
off goes on to lead as far as it knows (``ReplicaManager`` asks nobody).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from simulation.world.kafka.around import Surroundings
from simulation.world.kafka.broker import Broker, Health
from simulation.world.kafka.coordinator import Coordinator
from simulation.world.kafka.groups import GroupCoordinator
from simulation.world.kafka.partition import NOBODY, NOT_LEADER, Led, Partition
from simulation.world.kafka.transactions import Where


class Nodes:
    """The part of the cluster that has to do with nodes."""

    around: Surroundings
    brokers: dict[int, Broker]
    partitions: dict[Where, Partition]
    late: dict[Where, dict[int, tuple[int, int]]]
    topics: dict[str, Any]
    unheard_of: Callable[[str, int], bool]
    health: Health
    coordinators: dict[Led, Coordinator]
    group_coordinators: dict[Led, GroupCoordinator]

    def crash(self, node: int) -> None:
        """``kill -9``: connections break at once; the controller notices when the session has
        ended.
        """
        broker = self.brokers[node]
        if not broker.up:
            return
        self._settle()
        broker.up = False
        self._changed(broker)
        for coordinators in (self.coordinators, self.group_coordinators):
            for led, coordinator in coordinators.items():
                if led.node == node:
                    coordinator.resign()  # what it had in mind is gone with it
        held, broker.held = broker.held, {}
        for each in held:
            each.broker = None
            each.reply(None)
        for partition in self.partitions.values():
            led = partition.led_by(node)
            if led is not None:
                led.log.verifying.clear()
                led.let_go(NOT_LEADER, died=True)
            stale = partition.stale.pop(node, None)
            if stale is not None and partition.on_leader is not None:
                partition.on_leader(partition)

    def restart(self, node: int) -> None:
        """It is up again, with what its disk had, and catches up."""
        broker = self.brokers[node]
        if broker.up:
            return
        if not broker.fenced:
            self._fence(node)  # its old session has to end before it may register again
        self._settle()
        broker.up, broker.isolated = True, False
        for views in self.late.values():
            views.pop(node, None)  # what it believed when it was cut off died with it
        for partition in self.partitions.values():
            if node in partition.followers:
                partition.restarted(node)
        self._changed(broker)
        self._returns(broker)

    def isolate(self, node: int) -> None:
        """Cut off from the controller and the other brokers, and not from clients."""
        broker = self.brokers[node]
        if not broker.well:
            return
        for where, partition in self.partitions.items():
            self.late.setdefault(where, {})[node] = (1 << 62, partition.leader)
        for name in list(self.topics):
            self.unheard_of(name, node)  # what it has heard of by now it goes on to know
        self._settle()
        broker.isolated = True
        self._changed(broker)

    def heal(self, node: int) -> None:
        """It hears the others again, and what became of its leaderships."""
        broker = self.brokers[node]
        if not broker.isolated:
            return
        self._settle()
        broker.isolated = False
        for where, views in list(self.late.items()):
            views.pop(node, None)
            if not views:
                del self.late[where]
        if broker.up:  # else it has died meanwhile, and returns when it is started
            broker.life += 1
            self._returns(broker)

    def move_leader(self, topic: str, index: int, to: int | None = None) -> None:
        """As the preferred election, a reassignment or a controlled shutdown does: without waiting
        for anything.
        """
        partition = self.partitions[topic, index]
        led = partition.led
        if led is None or not self.brokers[led.node].well:
            return
        able = [node for node in partition.isr if node != led.node and self.brokers[node].well]
        if to is not None:
            able = [node for node in able if node == to]
        if able:
            before = partition.leader
            partition.elect(preferred=able[0])
            self._announce(partition, before)

    def _settle(self) -> None:
        """Something is about to change."""
        self.health.told.clear()
        for partition in self.partitions.values():
            partition.settle()

    def _changed(self, broker: Broker) -> None:
        self.health.well = False
        broker.life += 1
        life = broker.life
        self.around.later(
            self.around.lag("session"), lambda: self._session_over(broker, life), "session"
        )

    def _session_over(self, broker: Broker, life: int) -> None:
        if broker.life == life and not broker.well:
            self._fence(broker.node)

    def _fence(self, node: int) -> None:
        broker = self.brokers[node]
        if broker.fenced:
            return
        broker.fenced = True
        for partition in self.partitions.values():
            if node in partition.followers:
                before = partition.leader
                partition.gone(node)
                if partition.leader != before:
                    self._announce(partition, before)

    def _returns(self, broker: Broker) -> None:
        broker.fenced = False
        self.health.well = all(other.well and not other.fenced for other in self.brokers.values())
        life = broker.life
        for partition in self.partitions.values():
            if broker.node in partition.followers:
                before = partition.leader
                partition.back(broker.node)
                if partition.leader != before:
                    self._announce(partition, before)
                if partition.on_leader is not None:
                    partition.on_leader(partition)
        self.around.later(
            self.around.lag("catch up"), lambda: self._caught_up(broker, life), "catch up"
        )

    def _caught_up(self, broker: Broker, life: int) -> None:
        if broker.life != life or not broker.well:
            return
        waits = False
        for partition in self.partitions.values():
            if broker.node in partition.followers and not partition.in_sync(broker.node):
                waits = True
        if waits:
            self.around.later(
                100.0 + self.around.lag("catch up"),
                lambda: self._caught_up(broker, life),
                "catch up",
            )

    # ── who believes whom to lead ──

    def _announce(self, partition: Partition, before: int) -> None:
        """The news of a leader; those who have not heard it name the one before."""
        now = self.around.now_ms()
        where = (partition.topic, partition.index)
        views = self.late.pop(where, {})
        for node, broker in self.brokers.items():
            if broker.isolated or node == partition.leader:
                continue
            lag = self.around.lag("metadata")
            if lag > 0:
                views[node] = (now + int(lag), before)
            else:
                views.pop(node, None)
        if views:
            self.late[where] = views

    def is_late(self, broker: Broker, where: Where) -> bool:
        """Return whether ``broker`` has not heard of the leader yet."""
        partition = self.partitions.get(where)
        return partition is not None and self.leader_seen_by(broker, partition) not in (
            partition.leader,
            NOBODY,
        )

    def leader_seen_by(self, broker: Broker, partition: Partition) -> int:
        """The node that ``broker`` names as the leader of ``partition``."""
        views = self.late.get((partition.topic, partition.index))
        if views:
            seen = views.get(broker.node)
            if seen is not None:
                if self.around.now_ms() < seen[0]:
                    return seen[1]
                del views[broker.node]
                if not views:
                    del self.late[partition.topic, partition.index]
        return partition.leader if partition.led is not None else NOBODY
