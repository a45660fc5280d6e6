"""What pipelines are doing, told from their ledger, the transaction coordinator and the logs'
ends: it works when no driver answers. Reads only.

Called by ``onceward status``, ``lag`` and ``ledger``, and by whoever wants the same as values::

    ledger = open_ledger(bootstrap_servers="broker:9092")
    ledger.statuses(ledger.pipelines())

:func:`judge` is the rule behind the words; it is pure, and the tests read every case of it.
It is longer than 500 lines so that the rule and all that it goes by are found in one place.
"""

from __future__ import annotations

import logging
import os
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onceward import surroundings
from onceward.engine.ledger.chain import Ledger, LedgerReader
from onceward.engine.ledger.record import LedgerRecord, Writer
from onceward.errors import (
    AccessDenied,
    ConfigurationError,
    LedgerUnreadable,
    OncewardError,
    TopicMissing,
)
from onceward.ids import (
    BatchId,
    TopicPartition,
    is_kafka_offset,
    is_pipeline_id,
    least_offsets,
    offsets_covered,
    pipeline_id,
)
from onceward.operate.logs import span

if TYPE_CHECKING:
    from onceward.kafka.wire.client import KafkaClient

log = logging.getLogger(__name__)

_QUIET_S = 60.0  # within so long, or five of its intervals, of a commit a pipeline is at work
_RECENT = 20
_MOST_RECORDS = 10_000  # that are read for some batches: of thousands of chunks each has as many
_ENDING = ("PrepareCommit", "PrepareAbort")
_ENDING_S, _ASK_AGAIN_S = 60.0, 2.0
_BATCHES_BEHIND = 3
_ASK_MS = 5_000
_AT_ONCE = 64
_NO_BROKERS = (
    "its lag: no brokers of its sources are named. Next: name them (--bootstrap-servers)."
)


class PipelineState(Enum):
    """Words for what a pipeline is doing."""

    RUNNING = "running"
    IDLE = "idle"
    CATCHING_UP = "catching up"
    RESTARTING = "restarting"
    STOPPED = "stopped"
    FENCED = "fenced"
    STUCK = "stuck"
    UNKNOWN = "unknown"


NEXT_STEPS = {
    "restarting": "read the driver's log; `onceward ledger show --pipeline-id …` has what it "
    "committed before",
    "stopped": "see whether its driver is alive, and start it again; nothing is lost meanwhile",
    "fenced": "stop one of the two, or give it another pipeline_id",
    "stuck": "`onceward transactions describe --transactional-id …`; a driver that is gone is "
    "replaced by starting it again, which aborts what it had open",
    "unknown": "name its ledger (--bootstrap-servers, --ledger-path, --ledger-url), and see that "
    "its id is spelt right and clocks agree; of sources that are not Kafka's ask its driver's log",
}
"""What to do about a state that is not well; ``…`` stands for the pipeline's id."""
WELL = (PipelineState.RUNNING, PipelineState.IDLE, PipelineState.CATCHING_UP)


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One committed batch, as the ledger has it. Times are milliseconds since 1970, by the
    driver's clock; ``open_ms``: for how long its Kafka transaction had been open; ``read``: how
    many offsets of Kafka it covers; ``steps_ms``: of its steps up to the record.
    """

    pipeline_id: str
    sequence: int
    query_id: str
    batch_id: int
    committed_at_ms: int
    records: int
    read: int
    owner: int
    epoch: int
    state: str
    open_ms: int | None
    writer: Writer | None
    sources: tuple[Mapping[str, Any], ...]
    targets: Mapping[str, int]
    steps_ms: Mapping[str, int] = field(default_factory=dict)

    @property
    def written_by(self) -> str:
        """Return host, process and release that wrote it; nothing where it does not say."""
        by = self.writer
        return f"{by.host}, process {by.process_id}, onceward {by.version}" if by else ""

    @property
    def kafka_offsets(self) -> dict[TopicPartition, int]:
        """Return where it ends in each partition of its sources, of those that are Kafka's."""
        return least_offsets(source["end"] for source in self.sources)

    @property
    def is_replay(self) -> bool:
        """Return whether ``onceward dead-letters replay`` keeps here what it has fed back."""
        ends = (source["end"] for source in self.sources)
        return any(
            isinstance(end, Mapping) and isinstance(end.get("replayed"), int) for end in ends
        )

    @classmethod
    def from_record(cls, record: LedgerRecord) -> LedgerEntry:
        """Return what ``record`` says."""
        return cls(
            record.pipeline,
            record.sequence,
            *record.batch,
            record.committed_at_ms,
            record.records,
            sum(map(offsets_covered, record.sources)),
            *record.attempt,
            record.state.value,
            record.open_ms,
            record.writer,
            tuple(source._asdict() for source in record.sources),
            {name: output.records for name, output in sorted(record.outputs.items())},
            dict(record.steps_ms),
        )


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """The transaction of a pipeline, as its coordinator knows it. ``state`` is Kafka's; ``age_s``
    is None while nothing is open.
    """

    transactional_id: str
    producer_id: int
    epoch: int
    state: str
    age_s: float | None
    timeout_ms: int
    partitions: int


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """How far a pipeline is behind in one partition: from the ledger's offset to the last stable
    offset, behind which nobody who reads committed records can get.
    """

    topic: str
    partition: int
    offset: int
    last_stable_offset: int

    @property
    def lag(self) -> int:
        """Offsets that are still to be read; transaction markers count as offsets."""
        return max(0, self.last_stable_offset - self.offset)


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that :func:`judge` goes by; oldest entry first. ``transaction`` is None where the
    coordinator knows none; ``coordinator_answers`` is False where there is one that could not be
    asked. ``lag`` is None where the sources are not Kafka's, or cannot be reached.
    """

    entries: Sequence[LedgerEntry]
    now_ms: int
    transaction: OpenTransaction | None = None
    coordinator_answers: bool = True
    lag: int | None = None

    @property
    def age_s(self) -> float | None:
        """Seconds since the last commit, by its driver's clock; below 0 where that is ahead."""
        return (self.now_ms - self.entries[-1].committed_at_ms) / 1000 if self.entries else None

    @property
    def interval_s(self) -> float | None:
        """Seconds from commit to commit, usually; None before the second."""
        times = [entry.committed_at_ms for entry in self.entries]
        steps = [later - earlier for earlier, later in pairwise(times)]
        return statistics.median(steps) / 1000 if steps else None


@dataclass(frozen=True, slots=True)
class PipelineStatus:
    """One pipeline at one moment. ``reason`` says what its word is taken from; ``partitions`` are
    those whose lag is known (``lag`` is None unless all are), ``trouble`` is what could not be
    asked, why, and what to do.
    """

    pipeline_id: str
    state: PipelineState
    reason: str
    newest: LedgerEntry | None = None
    age_s: float | None = None
    lag: int | None = None
    partitions: tuple[PartitionLag, ...] = ()
    transaction: OpenTransaction | None = None
    trouble: tuple[str, ...] = ()

    @property
    def is_well(self) -> bool:
        """Return whether nobody has to look after it."""
        return self.state in WELL

    @property
    def next_step(self) -> str:
        """Return what to do where somebody has to look after it."""
        if self.state is PipelineState.UNKNOWN and self.trouble:
            return "see to what could not be asked"
        return NEXT_STEPS[self.state.value].replace("…", self.pipeline_id)


def judge(evidence: Evidence) -> tuple[PipelineState, str]:
    """Return the word for a pipeline, and what it is taken from."""
    age, transaction = evidence.age_s, evidence.transaction
    if age is None:
        if transaction is not None and transaction.age_s is not None:
            return PipelineState.RUNNING, "its first batch is open"
        return PipelineState.UNKNOWN, "the ledger has no batch of it"
    if transaction is not None:
        stuck = _stuck(transaction)
        if stuck:
            return PipelineState.STUCK, stuck
    is_open = transaction is not None and transaction.age_s is not None
    if evidence.entries[-1].is_replay and not is_open:
        return PipelineState.IDLE, "it is a replay of dead letters, and nothing of it is open"
    rivals = _rivals(evidence.entries)
    if rivals:
        return PipelineState.FENCED, f"two drivers take it from each other: {rivals}"
    quiet_s = max(_QUIET_S, 5 * (evidence.interval_s or 0.0))
    # A driver's clock that is ahead makes young what may be old
    is_ahead = age < -_QUIET_S
    if is_open or (age <= quiet_s and not is_ahead):
        largest = max(entry.read for entry in evidence.entries)
        if evidence.lag is not None and largest and evidence.lag > _BATCHES_BEHIND * largest:
            behind = f"{evidence.lag:,} offsets are more than {_BATCHES_BEHIND} of its batches"
            return PipelineState.CATCHING_UP, f"it commits, and {behind}"
        return PipelineState.RUNNING, "a batch is open" if is_open else "it commits"
    if evidence.lag == 0:
        return PipelineState.IDLE, "it has read all there is"
    if transaction is not None and transaction.state in ("Empty", "CompleteAbort"):
        event = "was taken over" if transaction.state == "Empty" else "has aborted a batch"
        return PipelineState.RESTARTING, f"it {event} since its last commit"
    if is_ahead:
        clock = f"by its driver's clock its newest batch is {span(-age)} ahead of this machine's"
        return PipelineState.UNKNOWN, f"{clock}, and whether it commits is not known"
    if not evidence.coordinator_answers:
        return PipelineState.UNKNOWN, "it commits nothing, and its coordinator cannot be asked"
    if evidence.lag is None:
        behind = "how far it is behind is not known (its driver's log may tell)"
        return PipelineState.UNKNOWN, f"it commits nothing, and {behind}"
    return PipelineState.STOPPED, "it commits nothing, and there is more to read"


def _is_ending_late(transaction: OpenTransaction) -> bool:
    return transaction.state in _ENDING and (transaction.age_s or 0.0) > _ENDING_S


def _stuck(transaction: OpenTransaction) -> str:
    if transaction.age_s is None:
        return ""
    if _is_ending_late(transaction):
        return f"its transaction, {transaction.age_s:.0f} s old, is still in {transaction.state}"
    if transaction.age_s * 1000 > transaction.timeout_ms / 2:
        return (
            f"its transaction is open for {transaction.age_s:.0f} s, of "
            f"{transaction.timeout_ms / 1000:.0f} s after which it is aborted"
        )
    return ""


def _rivals(entries: Sequence[LedgerEntry]) -> str:
    """Return two drivers that have both come back. One alone may be a failover, there and back, or
    a container: each of its starts has the same host and process id.
    """
    turns: list[tuple[str, int]] = []
    returned: set[tuple[str, int]] = set()
    for entry in entries:
        driver = entry.writer and (entry.writer.host, entry.writer.process_id)
        if driver and turns[-1:] != [driver]:
            if driver in turns:
                returned.add(driver)
            turns.append(driver)
            if len(returned) > 1:
                return " and ".join(f"{host} (process {process})" for host, process in turns[-2:])
    return ""


@dataclass(frozen=True)
class LedgerView:
    """Everything that can be read of the pipelines of one ledger; see :func:`open_ledger`."""

    ledger: Ledger
    kafka: Mapping[str, Any] | None = field(default=None, repr=False)
    """Arguments of the client for coordinator and lag: servers and options; None: not asked."""
    has_coordinator: bool = False
    sources: Mapping[str, Any] | None = field(default=None, repr=False)
    """Arguments of the client for another cluster, which is asked for the lag first."""
    _passed_over: set[str] = field(default_factory=set, repr=False, compare=False)

    @cached_property
    def _reader(self) -> LedgerReader:
        return self.ledger.reader()

    def looking(self) -> AbstractContextManager[None]:
        """Keep the connection to a database in the block: one look at many pipelines."""
        return self._reader.looking()

    def pipelines(self) -> list[str]:
        """Return the ids of all pipelines that have a record. What is no pipeline's name, of
        whoever else writes there, is passed over, and named once.
        """
        found = [str(name) for name in self._reader.pipelines()]
        others = {name for name in found if not is_pipeline_id(name)}
        if others - self._passed_over:
            self._passed_over.update(others)
            log.warning("passed over in the ledger, being no pipeline's name: %s", sorted(others))
        return [name for name in found if name not in others]

    def entries(self, pipeline: str, limit: int = 100) -> list[LedgerEntry]:
        """Return the last batches that the ledger keeps, oldest first, each by its newest record:
        of one that is published after its decision there are more. A topic keeps the newest
        records, and those that compaction has not reached; a table 10,000, a folder 1,000.
        """
        number = 1 if limit == 1 else 2 * limit
        with self.looking():
            while True:
                found = self._reader.recent(pipeline_id(pipeline), number)
                newest: dict[tuple[int, BatchId], LedgerRecord] = {}
                for record in found:
                    newest.setdefault((record.sequence, record.batch), record)
                if len(newest) >= limit or len(found) < number or number >= _MOST_RECORDS:
                    last = list(newest.values())[:limit]
                    return [LedgerEntry.from_record(record) for record in reversed(last)]
                number = min(4 * number, max(_MOST_RECORDS, limit))

    def lag(self, pipeline: str) -> list[PartitionLag]:
        """Return the lag in each partition of Kafka that the newest batch names; empty where the
        sources are not Kafka's. New topics of a pattern are not in it.

        :raises TopicMissing: a source is on another cluster, or gone.
        :raises AccessDenied, BrokerUnreachable: …
        """
        entries = self.entries(pipeline, 1)
        found, refused = self.lag_behind(entries[-1]) if entries else ([], None)
        if refused is not None:
            raise refused
        return found

    def lag_behind(self, newest: LedgerEntry) -> tuple[list[PartitionLag], OncewardError | None]:
        """Return the lag behind this batch in the sources that could be asked for, and why others
        could not be.
        """
        left = [each for each in newest.sources if is_kafka_offset(each["end"])]
        found: list[PartitionLag] = []
        unknown: list[Mapping[str, Any]] = []
        refused: OncewardError | None = None
        # The sources' own first: the pipeline may write, on the ledger's cluster, a topic of the
        # same name, which only its id tells apart, where the record has that
        for client in reversed(self.clients()):
            lags, left, why = _lag_on(client, newest, left)
            found += lags
            # Of a topic that this login may not see no broker says whether it is there
            if refused is None or not isinstance(why, TopicMissing | None):
                refused = why
            if why is not None and not isinstance(why, TopicMissing | AccessDenied):
                # It may have the topic, and says nothing
                unknown += [each for each in left if not _has_ids(each)]
                left = [each for each in left if _has_ids(each)]
        return found, refused if left or unknown else None

    def transaction(self, pipeline: str) -> OpenTransaction | None:
        """Return the pipeline's transaction, if it writes to Kafka or keeps its ledger there."""
        client = self.client() if self.has_coordinator else None
        found = None if client is None else _transaction(client, pipeline)
        if client is not None and found is not None and _is_ending_late(found):
            # Its coordinator says since when it is open, and not since when it ends
            surroundings.sleep(_ASK_AGAIN_S)
            found = _transaction(client, pipeline)
        return found

    def client(self) -> KafkaClient | None:
        """Return this process's client for looking; None without brokers. No batch uses it."""
        return None if self.kafka is None else _client(self.kafka)

    def clients(self) -> Sequence[Callable[[], KafkaClient | None]]:
        """Return :meth:`client`, and what gives that of the sources' cluster where it is named."""
        sources = self.sources
        return (self.client,) if sources is None else (self.client, lambda: _client(sources))

    def status(self, pipeline: str) -> PipelineStatus:
        """Return what the pipeline is doing; see :meth:`statuses`."""
        return self.statuses([pipeline])[0]

    def statuses(
        self, pipelines: Iterable[str], known: Mapping[str, Sequence[LedgerEntry]] | None = None
    ) -> list[PipelineStatus]:
        """Return what each is doing. What cannot be asked is named in ``trouble``, and so is a
        record that cannot be read: it hides no other pipeline. Brokers are asked for all of them
        side by side: those that are silent are waited for once.

        :param known: last batches, oldest first, where they have been read already.
        :raises OncewardError: the ledger as a whole cannot be read.
        """
        with self.looking():
            found = [(name, (known or {}).get(name) or self._recent(name)) for name in pipelines]
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return list(pool.map(lambda each: self._asked(*each), found))

    def _recent(self, pipeline: str) -> Sequence[LedgerEntry] | LedgerUnreadable:
        try:
            return self.entries(pipeline, _RECENT)
        except LedgerUnreadable as error:
            return error

    def _asked(
        self, pipeline: str, known: Sequence[LedgerEntry] | LedgerUnreadable
    ) -> PipelineStatus:
        if isinstance(known, LedgerUnreadable):
            reason, why = "what the ledger has of it cannot be read", (str(known),)
            return PipelineStatus(pipeline, PipelineState.UNKNOWN, reason, trouble=why)
        entries = known[-_RECENT:]
        transaction, trouble, lag = None, [], None
        try:
            transaction = self.transaction(pipeline)
        except OncewardError as error:
            trouble.append(str(error))
        coordinator_answers = not trouble
        partitions, refused = self.lag_behind(entries[-1]) if entries else ([], None)
        if refused is not None:
            trouble.append(str(refused))
        elif partitions:
            lag = sum(each.lag for each in partitions)
        is_asked = self.sources is not None or self.client() is not None
        if not is_asked and entries and entries[-1].kafka_offsets:
            trouble.append(_NO_BROKERS)
        now_ms = surroundings.wall_clock_ns() // 1_000_000
        evidence = Evidence(entries, now_ms, transaction, coordinator_answers, lag)
        state, reason = judge(evidence)
        return PipelineStatus(
            pipeline, state, reason, entries[-1] if entries else None, evidence.age_s, lag,
            tuple(partitions), transaction, tuple(trouble),
        )  # fmt: skip


def open_ledger(
    *,
    bootstrap_servers: str | Sequence[str] | None = None,
    options: Mapping[str, Any] | None = None,
    ledger_topic: str | None = None,
    path: str | Path | None = None,
    url: str | None = None,
    table: str | None = None,
    source_servers: str | Sequence[str] | None = None,
    source_options: Mapping[str, Any] | None = None,
) -> LedgerView:
    """Return a view of a ledger: a topic's by ``bootstrap_servers`` alone, a folder's by ``path``,
    a table's by ``url``. With one of the latter two the brokers are asked for the lag only.

    :param options: Kafka client settings by Kafka's own names.
    :param source_servers: the brokers of sources on another cluster, for the lag.
    :param source_options: as ``options``, of these; default: the same.
    :raises ConfigurationError: none or two ledgers are named, a setting is wrong, or there is no
        such folder.
    """
    if (path is not None and url is not None) or bootstrap_servers is path is url is None:
        raise ConfigurationError(
            "one ledger is to be named",
            next_step="pass bootstrap_servers, or path (a folder), or url (a database)",
        )
    kafka = _client_arguments(bootstrap_servers, options)
    more = options if source_options is None else source_options
    sources = _client_arguments(source_servers, more)
    if path is not None:
        from onceward.files.ledger import FolderLedger

        folder = FolderLedger(path)
        if not os.path.isdir(folder.path):
            raise ConfigurationError(
                f"there is no folder {folder.path}",
                next_step="correct the path, and see that its disk is mounted here",
            )
        return LedgerView(folder, kafka, sources=sources)
    if url is not None:
        from onceward.sql.ledger.database_ledger import DatabaseLedger
        from onceward.sql.ledger.table import DEFAULT_TABLE

        if url.startswith("postgres") and "target_session_attrs" not in url:
            # No standby, as for a pipeline; but a login that only reads may look
            url += f"{'&' if '?' in url else '?'}target_session_attrs=primary"
        ledger = DatabaseLedger(url, table or DEFAULT_TABLE)
        return LedgerView(ledger, kafka, sources=sources)
    from onceward.kafka.ledger.chain import KafkaLedger
    from onceward.kafka.ledger.topic import DEFAULT_TOPIC

    assert kafka is not None  # noqa: S101 — it was looked at above
    in_topic = KafkaLedger(topic=ledger_topic or DEFAULT_TOPIC, **kafka)
    return LedgerView(in_topic, kafka, True, sources)


def _client_arguments(
    servers: str | Sequence[str] | None, options: Mapping[str, Any] | None
) -> dict[str, Any] | None:
    if servers is None:
        return None
    return {"bootstrap_servers": servers, "options": dict(options or {})}


def _client(arguments: Mapping[str, Any]) -> KafkaClient:
    from onceward.kafka.wire.client import KafkaClient
    from onceward.kafka.wire.options.settings import settings_from_options

    return KafkaClient.shared(settings_from_options(**arguments, client_id="onceward-status")[0])


def _transaction(client: KafkaClient, pipeline: str) -> OpenTransaction | None:
    from onceward.kafka.wire.transactions.listing import describe_transaction

    found = describe_transaction(client, pipeline, timeout_ms=_ASK_MS)
    if found is None:
        return None
    open_since = found.started_at_ms if found.state in ("Ongoing", *_ENDING) else None
    now_s = surroundings.wall_clock_ns() / 1e9
    age_s = None if open_since is None else max(0.0, now_s - open_since / 1000)
    numbers = (found.timeout_ms, len(found.partitions))
    return OpenTransaction(pipeline, *found.identity, found.state, age_s, *numbers)


def _has_ids(source: Mapping[str, Any]) -> bool:
    """Return whether the record of a source of Kafka has the id of each of its topics."""
    topics = {where.topic for where in least_offsets([source["end"]])}
    known = source.get("identity")
    return isinstance(known, Mapping) and topics <= known.keys()


def _lag_on(
    client: Callable[[], KafkaClient | None],
    newest: LedgerEntry,
    sources: list[Mapping[str, Any]],
) -> tuple[list[PartitionLag], list[Mapping[str, Any]], OncewardError | None]:
    """Return the lag in those of the sources that one cluster has, the others, and why not."""
    try:
        asked = client() if sources else None
        if asked is None:
            return [], sources, None
        return _lag(asked, replace(newest, sources=tuple(sources))), [], None
    except OncewardError as error:
        refused = error
    if len(sources) < 2 or not isinstance(refused, TopicMissing | AccessDenied):
        return [], sources, refused
    # Each may be on another cluster
    parts = [_lag_on(client, newest, [source]) for source in sources]
    return (
        [lag for lags, _, _ in parts for lag in lags],
        [source for _, left, _ in parts for source in left],
        next((why for _, _, why in parts if why is not None), None),
    )


def _lag(client: KafkaClient, newest: LedgerEntry) -> list[PartitionLag]:
    from onceward.kafka.wire.reads.offsets import EARLIEST, LATEST, list_offsets

    offsets = newest.kafka_offsets
    if not offsets:
        return []
    topics = {where.topic for where in offsets}
    try:
        found = client.topic_ids(topics, timeout_ms=_ASK_MS)
    except TopicMissing as error:
        missing = str(error.details.get("subject", ", ".join(sorted(topics))))
        raise _another(missing, error.message) from error
    each = (source.get("identity") for source in newest.sources)
    # Of one name there are two where a source is on each cluster
    known = [pair for one in each if isinstance(one, dict) for pair in one.items()]
    if others := sorted(
        {name for name, topic_id in known if found.get(name, topic_id) != topic_id}
    ):
        raise _another(", ".join(others))
    # Spark reads partitions that are new from their beginning
    there = client.topic_partitions(topics, timeout_ms=_ASK_MS).items()
    if new := {TopicPartition(t, n) for t, some in there for n in some} - offsets.keys():
        offsets |= list_offsets(client, new, EARLIEST, timeout_ms=_ASK_MS)
    ends = list_offsets(client, offsets, LATEST, read_committed=True, timeout_ms=_ASK_MS)
    if ahead := {where for where, offset in offsets.items() if offset > ends[where]}:
        # Behind an open transaction, as Spark's own reader goes, or behind the log's end
        tops = list_offsets(client, ahead, LATEST, timeout_ms=_ASK_MS)
        for where in sorted(where for where in ahead if offsets[where] > tops[where]):
            raise _another(f"{where}", f"it ends at {tops[where]}, not {offsets[where]}")
    return [PartitionLag(*where, offsets[where], ends[where]) for where in sorted(offsets)]


def _another(source: str, why: str = "it is not as the pipeline has read it") -> TopicMissing:
    return TopicMissing(
        f"{source}: {why}; it was deleted or made anew since, cut off, or is another cluster's",
        next_step="if it is, name that one's brokers (--source-bootstrap-servers); else ask the "
        "driver's log or metrics (onceward_lag_records)",
    )
