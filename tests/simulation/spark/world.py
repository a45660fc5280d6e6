"""One seed's world: brokers, a source, a checkpoint, copies of a driver, and whoever starts and
stops them.

Built by ``run.simulate`` from a setting; what happens is told in :meth:`World.live`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from onceward import events
from onceward.engine.calls import runs
from onceward.errors import OncewardError, Recovery
from simulation import swarm
from simulation.judge import judge
from simulation.kernel.scheduler import Killed, Process, Sim
from simulation.spark import stand_ins
from simulation.spark.advice import Operator
from simulation.spark.around import Around
from simulation.spark.frames import Plan, key_of
from simulation.spark.jobs import Executors, Jobs
from simulation.spark.query import Checkpoint, Query, Source
from simulation.world.files import Files
from simulation.world.kafka.cluster import Cluster
from simulation.world.kafka.settings import ClusterSettings

FAULTS = {
    "user:second copy": "a second copy of the query is started while the first one runs",
    "user:commit log lost": "the newest entry of Spark's commit log is removed while no copy runs",
    "user:checkpoint restored": "the checkpoint is put back to what it was a while ago, while no "
                                "copy runs",
    "broker:crash": "a broker is killed, and started again seconds later",
    "broker:isolated": "a broker is cut off from the controllers and the other brokers, but not "
                       "from clients",
    "clock:jump": "the wall clock of a driver jumps by up to an hour",
    **{f"crash:{step}.{phase}": f"the driver dies when "
                                f"step {step} has {phase}" for step in events.STEPS
       for phase in ("started", "finished", "failed")},
    **{f"pause:{step}.{phase}": f"the driver stands still "
                                f"when step {step} has {phase}" for step in events.STEPS
       for phase in ("started", "finished", "failed")},
}  # fmt: skip

_TROUBLES = ("broker:crash", "broker:isolated", "user:second copy", "user:checkpoint "
                                                                    "restored", "clock:jump",
             "kafka:partitions added")  # fmt: skip
_PHASES = ("started", "finished", "failed")
_AT_STEPS = {
    (step, phase): (f"crash:{step}.{phase}", f"pause:{step}.{phase}")
    for step in events.STEPS
    for phase in _PHASES
}
_SENDS = (events.SEND, events.OFFSETS, events.LEDGER, events.COMMIT)
_LOOK = 0.6
_PATIENCE = 4.0
_LONGEST_CALM = 1_500.0
_AFTERWARDS = 130.0
_MOST_STARTS = 60
_LEDGER, _MOST_PARTITIONS = "onceward-ledger", 24


OPTIONS: dict[str, Sequence[Any]] = {
    "shuffle": (False, True),
    "between": (0, 2, 3),
    "by_chance": (False, True),
    "stateful": (False, False, False, True),
    "slots": (4, 2, 1),
    "piece": (4, 1, 100),
    "row_bytes": (100, 100_000_000),
    "transaction_timeout_ms": (60_000, 10_000, 3_000),
    "request_timeout_ms": (5_000, 1_000, 30_000),
    "delivery_timeout_ms": (30_000, 120_000, 8_000),
    "batch_attempts": (3, 1),
    "retained": (100, 2),
    "lags": (False, True),
    "at_home": (True, False),
    "in_process": (True, False),
    "trouble_seconds": (40.0, 120.0, 400.0),
    "id_expiration_ms": (604_800_000, 604_800_000, 604_800_000, 20_000),
    "watched": (False, True),
    "once_more": (False, True),
}
"""``between``: tasks of a stage between two shuffles; 0, there is one shuffle at most.
``stateful``: the query counts by key; then it has a shuffle, and nothing by chance. ``slots``:
tasks at a time. ``piece``: rows between which a task may be interrupted. ``row_bytes``: many, so
that a task sends piece by piece. ``retained``: ``spark.sql.streaming.minBatchesToRetain``.
``lags``: replication and the like take their time. ``at_home``: the source lies on the sink's
cluster. ``in_process``: a query that failed is started again in its process. ``trouble_seconds``:
until the world heals. ``id_expiration_ms``: ``transactional.id.expiration.ms``, so short that a
pause is enough for it. ``watched``: a driver that stands still is taken for dead, and another copy
is started. ``once_more``: whoever has caught up is started again when all others have ended.
"""


class Start:
    """One start of the query, in one process. ``error`` is what ended it; None while it runs, when
    it was killed, and when it has read all there is (``caught_up``).
    """

    __slots__ = (
        "admitted",
        "caught_up",
        "error",
        "identities",
        "number",
        "opened_at",
        "opening_at",
        "opens",
        "over",
        "over_at",
        "process",
        "query",
        "when",
    )

    def __init__(self, number: int, process: Process, query: Query, when: float) -> None:
        self.number = number
        self.process = process
        self.query = query
        self.when = when
        self.opening_at = -1.0
        """When it began to take the pipeline over; somewhere between this and the next it has."""
        self.opened_at = -1.0
        """When it had taken the pipeline over and read the ledger; -1: it did not come so far."""
        self.admitted = False
        """A batch was: until then it changes nothing but who has the pipeline."""
        self.opens: list[tuple[float, float]] = []
        """Both of each time that it has taken the pipeline over: a run may begin anew by
        itself.
        """
        self.over_at = -1.0
        self.error: BaseException | None = None
        self.caught_up = False
        self.over = False
        self.identities: list[tuple[int, int]] = []
        """Producer id and epoch of each commit that it tried, in order (Kafka sink)."""


class World:
    """See the module."""

    def __init__(self, sim: Sim, setting: Any) -> None:
        self.sim = sim
        sim.world = self
        self.lots = sim.lots
        self.setting = setting
        stand_ins.put()
        self.files = Files(sim)
        self.cluster = Cluster(
            Around(sim, setting.lags),
            brokers=setting.brokers,
            transaction_version=setting.transaction_version,
            settings=ClusterSettings(transactional_id_expiration_ms=setting.id_expiration_ms),
        )
        self.cluster.begins_at = int(self.lots.time.random() * setting.brokers)
        self.pipeline = swarm.pipelines()[setting.pipeline]()
        self.listeners: dict[tuple[str, int], Any] = {}
        self.last_port = 40_000
        self.jobs = Jobs(sim, self)
        self.settings_known: dict[int, Any] = {}
        self.queries: list[Query] = []
        self.starts: list[Start] = []
        self.returned: list[tuple[Start, Any, float]] = []
        """Of each batch that the sink has told Spark is committed: in which start, its number, and
        when.
        """
        self.failed: list[tuple[Start, float, BaseException]] = []
        """Of each send and each commit that failed: in which start, when, and why."""
        self.stopped_by: BaseException | None = None
        """The named error at which the story ended, if the pipeline did not catch up."""
        self.events: dict[str, int] = {}
        self.step = ""
        """The engine's step that began or ended last, in whatever process."""
        self.once_more = 0
        """Number of the first start after all was over; 0: it did not come so far."""
        self.longest_lease = (0.0, "")
        """Of a partition, by the sequencer of a driver that did not stand still meanwhile:
        seconds, and whose.
        """
        self.most_offsets = setting.rows * setting.source_partitions
        self._numbers = self._elections = 0
        self._executors: dict[Process, Executors] = {}
        self._drivers: dict[Process, None] = {}
        self.copies_kept: list[Any] = []
        """Of the logs of the checkpoint that is in use."""
        self._troubled = any(self.lots.is_on(kind) for kind in _TROUBLES)
        self._stop_listening = events.probe(self.probe)
        self.source = Source(self, setting.source_partitions, setting.batches * self.most_offsets)
        self.checkpoint = Checkpoint(self, "checkpoint", [0] * setting.source_partitions)
        self.operator = Operator(self)
        self.plan: Plan = self.pipeline.plan(setting)
        self.pipeline.set_up(self)

    # ── what others ask ──

    def next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def executors_of(self, driver: Process) -> Executors:
        found = self._executors.get(driver)
        if found is None:
            found = self._executors[driver] = Executors(
                self.sim, driver, self.setting.executors, None
            )
        return found

    def servers(self) -> str:
        """``bootstrap.servers``."""
        return ",".join(f"broker-{node}:9092" for node in self.cluster.node_ids)

    def ledger_has_a_new_leader(self) -> bool:
        """Is that so since it was asked last? It is asked behind each batch."""
        topic = self.cluster.topics.get(_LEDGER)
        before, self._elections = (
            self._elections,
            sum(each.epoch for each in topic.partitions) if topic else 0,
        )
        return self._elections > before

    def reachable(self, node: int) -> bool:
        return bool(self.cluster.brokers[node].up)

    def cluster_receives(
        self, node: int, client: str, request: Any, reply: Callable[[Any], None]
    ) -> None:
        self.cluster.receive(node, client, request, reply)

    def expected(self, partition: int, offset: int) -> list[str]:
        """Where the effect of a record must be, once in each; ``["*"]``: once, in any one of
        them.
        """
        if (
            self.setting.options.get("user") == "persists"
            and self.setting.topics > 1
            and not self.plan.stateful
        ):
            return ["*"]
        return self.plan.branches(partition, offset, 0)

    def key_of(self, partition: int, offset: int) -> int:
        """By which key a record counts."""
        return key_of(partition, offset)

    def plan_branches(self, partition: int, offset: int) -> list[str]:
        """What the plan says of a record, whoever draws what."""
        return self.plan.branches(partition, offset, 0)

    # ── the story ──

    def live(self) -> None:
        """The story, in a task of the outside's: from the first start until the pipeline has
        caught up or stopped for good; then it is started once more.
        """
        sim, setting = self.sim, self.setting
        sim.sleep(1.0)  # brokers hear of the topics
        rest = (
            self.most_offsets if setting.once_more and self.source.total > self.most_offsets else 0
        )
        sim.spawn(sim.outside, self.source.feed, self.source.total - rest)
        self._begin_copy()
        self._until_it_rests(sim.now + setting.trouble_seconds, _MOST_STARTS + 20)
        self._end_all()
        if rest and self.starts[-1].caught_up and "swallowed" not in self.events:
            self._once_more(rest)
            self._end_all()
        left = self.cluster.open_transactions()
        sim.sleep(_AFTERWARDS)  # what was held back arrives, and must not do anything any more
        if not left and self.cluster.open_transactions():
            # Under transaction version 1 a late AddPartitionsToTxn of the newest epoch opens a
            # transaction that nobody ends but the coordinator (KIP-890, "hanging transactions").
            sim.sleep(self.setting.transaction_timeout_ms / 1000 + _AFTERWARDS)
        self._stop_listening()

    def _until_it_rests(self, calm_at: float, most_starts: int) -> None:
        """Until a copy has caught up, or each that is started is stopped."""
        sim = self.sim
        repeated: dict[str, int] = {}
        while True:
            sim.sleep(_LOOK * (0.5 + self.lots.time.random()))
            if not self.lots.calm and (sim.now > calm_at or len(self.starts) > _MOST_STARTS // 2):
                calm_at = min(calm_at, sim.now)
                self._heal()
            elif sim.now > calm_at + _LONGEST_CALM:
                break  # the judge will say that it never came to an end
            if not self.lots.calm:
                self._trouble()
            running = [start for start in self.starts if not start.over]
            if running:
                if self.operator.mends():
                    for start in running:
                        sim.kill(start.process, "the operator stops it")
                continue
            last = self.starts[-1]
            if last.caught_up:
                break
            stops = isinstance(last.error, OncewardError) and last.error.recovery is Recovery.STOP
            if stops:
                name = type(last.error).__name__
                repeated[name] = repeated.get(name, 0) + 1
                if repeated[name] > 2 and (self.lots.calm or repeated[name] > 5):
                    if not self.operator.follows(last.error):
                        self.stopped_by = last.error
                        break
                    repeated.clear()
            if len(self.starts) > most_starts:
                break  # the judge will say so
            self._between_copies()
            sim.sleep(self.lots.time.random() * 2)
            self._begin_copy()

    def _once_more(self, records: int) -> None:
        """Days later somebody starts the query again: what was left behind must not be in its way.
        (Of a function that keeps errors to itself nobody says how far it has come.)
        """
        sim = self.sim
        sim.sleep(3.0)  # executors end, too
        self._say("★ the query is started once more")
        self.once_more = len(self.starts)
        self.source.exhausted = False
        sim.spawn(sim.outside, self.source.feed, records)
        self._begin_copy()
        self._until_it_rests(sim.now, len(self.starts) + 20)

    def _end_all(self) -> None:
        """The world heals, who stood still goes on for a while, and all end."""
        self._heal()
        for process in list(self._drivers):
            self.sim.resume(process)
        self.sim.sleep(5.0)
        for process in list(self._drivers):
            self.sim.kill(process, "the story is over")

    # ── what came of it ──

    def committed(self) -> int:
        """How many batches the engine has handed back to Spark."""
        return self.events.get("batches", 0)

    def judge(self) -> Iterable[str]:
        """See :mod:`simulation.judge`, and the pipeline's own."""
        return [str(violation) for violation in judge(self)] + self.pipeline.judge(self)

    def stops(self) -> Iterable[str]:
        return [type(start.error).__name__ for start in self.starts if start.error is not None]

    def met(self) -> Iterable[tuple[str, ...]]:
        return [("event", name) for name in self.events]

    def _heal(self) -> None:
        if self.lots.calm:
            return
        self.lots.calm = True
        self._say("★ the world heals: no faults from here on")
        for node in self.cluster.node_ids:
            self.cluster.heal(node)
            if not self.cluster.brokers[node].up:
                self.cluster.restart(node)

    def _trouble(self) -> None:
        """What befalls the world from outside: asked now and then, and at each step of a
        driver.
        """
        sim, lots = self.sim, self.lots
        if lots.fires("broker:crash"):
            node = self.cluster.node_ids[lots.below("broker:crash", len(self.cluster.node_ids))]
            if self.cluster.brokers[node].up:
                self._say(f"⚡ broker {node} is killed")
                self.cluster.crash(node)
                sim.after(lots.below("broker:crash", 100) / 100 * 20, self._restart_broker, node)
        if self._all_see_each_other() and lots.fires("broker:isolated"):
            node = self._to_be_cut_off()
            self._say(f"⚡ broker {node} is cut off from the others")
            self.cluster.isolate(node)
            sim.after(lots.below("broker:isolated", 100) / 100 * 120, self._broker_is_back, node)
        if lots.fires("user:second copy") and sum(not start.over for start in self.starts) < 3:
            self._say("⚡ somebody starts another copy")
            self._begin_copy()
        if self.setting.watched and self._none_moves():
            self._say("★ the driver stands still: another copy is started")
            self._begin_copy()
        if lots.fires("clock:jump") and self._drivers:
            driver = next(reversed(self._drivers))
            driver.wall_offset += (lots.below("clock:jump", 2) * 2 - 1) * lots.below(
                "clock:jump", 3600
            )
            self._say(f"⚡ the clock of {driver} is {driver.wall_offset:+.0f} s wrong")
        if lots.fires("kafka:partitions added"):
            self._add_partitions()
        if lots.is_on("user:checkpoint restored") and len(self.copies_kept) < 3:
            self.copies_kept.append(self.checkpoint.copy())

    def _add_partitions(self) -> None:
        """``kafka-topics --alter --partitions`` of the ledger's, if there is such a topic. Not
        beside a broker that cannot hear of it.
        """
        cluster, topic = self.cluster, self.cluster.topics.get(_LEDGER)
        if topic is None or not cluster.health.well or len(topic.partitions) > _MOST_PARTITIONS:
            return
        count = len(topic.partitions) + 1 + self.lots.below("kafka:partitions added", 8)
        self._say(f"⚡ the ledger's topic gets {count} partitions, from {len(topic.partitions)}")
        cluster.add_partitions(_LEDGER, count)

    def _to_be_cut_off(self) -> int:
        """Any broker; every second time the one that leads where the pipeline's ledger grows, if
        there is such a topic: what is read from it decides more than what is read from any other.
        """
        cluster, lots = self.cluster, self.lots
        node = cluster.node_ids[lots.below("broker:isolated", len(cluster.node_ids))]
        ledger = cluster.topics.get(_LEDGER)
        if ledger is None or lots.below("broker:isolated", 2):
            return node
        leader = max(ledger.partitions, key=lambda partition: partition.log.end).leader
        return leader if leader in cluster.node_ids else node

    def _all_see_each_other(self) -> bool:
        """Of several brokers; of two that are cut off at once one learns nothing that a single one
        does not tell.
        """
        brokers = self.cluster.brokers
        return len(brokers) > 1 and not any(broker.isolated for broker in brokers.values())

    def _none_moves(self) -> bool:
        """Is there a copy, and does each stand still, and not since a moment ago?"""
        running = [start for start in self.starts if not start.over]
        if not 0 < len(running) < 3 or self.sim.now < self.starts[-1].when + _PATIENCE:
            return False
        return all(start.process.paused for start in running)

    def _restart_broker(self, node: int) -> None:
        if not self.cluster.brokers[node].up:
            self._say(f"★ broker {node} is started again")
            self.cluster.restart(node)
            self._lead_again(node)

    def _broker_is_back(self, node: int) -> None:
        self.cluster.heal(node)
        self._lead_again(node)

    def _lead_again(self, node: int) -> None:
        """``auto.leader.rebalance.enable``: after a while it leads what it led; else all would end
        up at one broker.
        """
        seconds = 3 + self.lots.time.random() * 20
        self.sim.after(seconds, self._rebalance, node)

    def _rebalance(self, node: int) -> None:
        for (topic, index), partition in self.cluster.partitions.items():
            if partition.replicas[0] == node != partition.leader:
                self.cluster.move_leader(topic, index, to=node)

    def _between_copies(self) -> None:
        checkpoint = self.checkpoint
        if checkpoint.commits and self.lots.fires("user:commit log lost"):
            lost = max(checkpoint.commits)
            checkpoint.commits.discard(lost)
            self._say(f"⚡ commits/{lost} is removed")
        if self.copies_kept and self.lots.fires("user:checkpoint restored"):
            checkpoint.offsets, checkpoint.commits = self.copies_kept.pop(0)
            self._say("⚡ an older copy of the checkpoint's logs is put back")
            self.events["checkpoint restored"] = 1

    # ── copies ──

    def _begin_copy(self) -> None:
        process = self.sim.process(f"driver-{len(self._drivers) + 1}")
        self._drivers[process] = None
        query = Query(self, process, self.checkpoint, self.plan)
        start = self._started(process, query)
        process.on_death.append(lambda: self._process_ended(process))
        self.sim.spawn(process, self._drive, process, start, name="query")

    def _started(self, process: Process, query: Query) -> Start:
        start = Start(len(self.starts), process, query, self.sim.now)
        self.starts.append(start)
        self._say(f"★ start {start.number} in {process}, {query.run_id}")
        return start

    def _process_ended(self, process: Process) -> None:
        for start in self.starts:
            if start.process is process:
                if not start.over:
                    start.over_at = self.sim.now
                start.over = True
                for place in [place for place in runs._open if place.run_id == start.query.run_id]:
                    del runs._open[place]
                if start.query in self.queries:
                    self.queries.remove(start.query)

    def _drive(self, process: Process, start: Start) -> None:
        """The driver's main thread: the sink is built, the query runs; a supervisor in the process
        starts it again.
        """
        sim = self.sim
        sink: Any = None
        while True:
            try:
                if sink is None:
                    self.operator.define(start.query.checkpoint)
                    sink = self.pipeline.sink(self)
                    self.operator.resume = ""
                start.query.run(self.pipeline.function(self, sink))
                start.caught_up = True
            except Killed:
                raise
            except BaseException as error:  # noqa: BLE001 — whatever ended the query is judged
                start.error = error
                if sim.tell is not None:
                    sim.tell(
                        sim.now, process.name, f"✗ the query ends: {type(error).__name__}: {error}"
                    )
            start.over_at = sim.now
            again = (
                self.setting.in_process
                and start.error is not None
                and len(self.starts) <= _MOST_STARTS + 20
                and (
                    not isinstance(start.error, OncewardError)
                    or start.error.recovery is not Recovery.STOP
                )
            )
            if not again:
                start.over = True
                break
            sim.sleep(0.5 + self.lots.time.random())
            query = Query(self, process, self.checkpoint, self.plan)
            next_start = self._started(process, query)
            start.over = True
            start = next_start
        sim.sleep(1.5)
        sim.kill(process, "exits")

    # ── the product's steps ──

    def probe(self, event: events.Event) -> None:
        """Called inside every step of whatever process is at work."""
        sim, lots = self.sim, self.lots
        step, phase = event.step, event.phase
        if (step, phase) not in _AT_STEPS:
            # of a query, and not of a batch: events.FAIL, events.RESTART
            return
        self.step = step
        if step == events.COMMIT and phase == "started" and "epoch" in event.ids:
            self._identity(event)
        if phase == "failed" and step in _SENDS and event.error is not None:
            self.failed.append((self._start_here(), sim.now, event.error))
        if phase == "finished" and step == events.FINISH:
            self.events["batches"] = self.events.get("batches", 0) + 1
            self.returned.append((self._start_here(), event.ids["batch_id"], sim.now))
        elif step == events.OPEN:
            start = self._start_here()
            if phase == "started":
                start.opening_at = sim.now
            elif phase == "finished":
                start.opened_at = sim.now
                start.opens.append((start.opening_at, sim.now))
        elif step == events.ADMIT and phase == "finished":
            self._start_here().admitted = True
        elif step == events.LEASE and event.seconds is not None:
            stood_still = sim.here.went_on_at >= sim.now - event.seconds
            if event.seconds > self.longest_lease[0] and not stood_still:
                self.longest_lease = (
                    event.seconds,
                    f"{event.ids['task']} held {event.ids['partition']}",
                )
        if sim.tell is not None and step != events.LEASE:
            sim.tell(
                sim.now,
                sim.here.name,
                f"{step} {phase}" + (f": {event.error}" if event.error else ""),
            )
        if self._troubled and not lots.calm:
            self._trouble()
        crash, pause = _AT_STEPS[step, phase]
        if lots.fires(crash):
            sim.kill(sim.here, f"killed: {step} {phase}")
        if lots.fires(pause):
            process = sim.here
            sim.pause(process, lots.below(pause, 1000) / 1000 * 90)
            sim.park(0.0)  # from here on nothing of it runs

    def _identity(self, event: events.Event) -> None:
        self._start_here().identities.append(
            (event.ids.get("producer_id", -1), event.ids["epoch"])
        )

    def _start_here(self) -> Start:
        """The newest start in the process at work."""
        here = self.sim.here
        return next(start for start in reversed(self.starts) if start.process is here)

    def _say(self, what: str) -> None:
        if self.sim.tell is not None:
            self.sim.tell(self.sim.now, "world", what)
