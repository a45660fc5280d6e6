"""``--conserves``: compare the output with the *input* that its records name (I1, I2).

For queries that make each output record of a record of its own batch: maps, filters, fan-outs,
joins with tables; not aggregates or joins of two streams, which name no record or an older one.

The input is what a reader of committed records is given of the source today, between the ledger's
bounds: markers and aborted records take offsets and are no records. What retention or compaction
has removed is unknown. Names stand in headers, by default those of ``KafkaSink(lineage=True)``, or
in fields of a JSON value.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np

from onceward_verify.chain import BatchChain
from onceward_verify.cluster import COMMITTED, Cluster, Where
from onceward_verify.findings import Findings, WrongUsage, place
from onceward_verify.ledger import OutputPart, kafka_position
from onceward_verify.outputs import Reading
from onceward_verify.tally import (
    BatchGroup,
    Rule,
    Tally,
    Window,
    WindowResult,
    group_batches,
    windows,
)

_PARTS = ("topic", "partition", "offset")
_WANTED = "is not topic=…, partition=… or offset=…, each once"
_NEXT = "write --lineage-{kind} topic=NAME,partition=NAME,offset=NAME"
_CELL_BYTES = 32 << 20
_SHOWN_PLACES = 100


class InputName(NamedTuple):
    """Name of one source record.

    ``topic`` is None where the output leaves it out, since there is one source topic.
    """

    topic: str | None
    partition: int
    offset: int


@dataclass(frozen=True)
class Lineage:
    """Place of a name's three parts: header names, or paths of fields (``meta.offset``).

    ``topic`` is None if the output leaves it out, because the pipeline reads one topic only.
    """

    kind: Literal["headers", "json"] = "headers"
    topic: str | None = "onceward.topic"
    partition: str = "onceward.partition"
    offset: str = "onceward.offset"

    def read(self, message: Any) -> InputName | None:
        """Return the record that ``message`` names; None if it names nothing that could be one."""
        values = _last_headers(message) if self.kind == "headers" else _Fields(message.value())
        topic = None if self.topic is None else _text(values.get(self.topic))
        partition, offset = _natural(values.get(self.partition)), _natural(values.get(self.offset))
        if partition is None or offset is None or (topic is None and self.topic is not None):
            return None
        return InputName(topic, partition, offset)

    def __str__(self) -> str:
        names = ", ".join(name for name in (self.topic, self.partition, self.offset) if name)
        return f"{'headers' if self.kind == 'headers' else 'JSON fields'} {names}"


def parse_lineage(kind: Literal["headers", "json"], text: str) -> Lineage:
    """Parse ``topic=NAME,partition=NAME,offset=NAME``; ``topic`` may be left out.

    :raises WrongUsage: a part is missing, unknown or given twice.
    """
    names: dict[str, str] = {}
    for pair in text.split(","):
        part, _, name = (piece.strip() for piece in pair.partition("="))
        if part not in _PARTS or not name or part in names:
            raise WrongUsage(
                f"--lineage-{kind} {text}: {pair.strip()!r} {_WANTED}",
                next_step=_NEXT.format(kind=kind),
            )
        names[part] = name
    if not {"partition", "offset"} <= names.keys():
        raise WrongUsage(
            f"--lineage-{kind} {text} lacks partition= or offset=",
            next_step=_NEXT.format(kind=kind),
        )
    return Lineage(kind, names.get("topic"), names["partition"], names["offset"])


def _last_headers(message: Any) -> Mapping[str, bytes | None]:
    """Return the headers by name, of several the last: a header is added at the end."""
    return dict(message.headers() or ())


class _Fields:
    """Fields of a JSON object by path. A field whose own name has dots is found, too."""

    def __init__(self, value: bytes | None) -> None:
        try:
            self._root: Any = json.loads(value or b"null")
        except ValueError:  # not JSON, or not UTF-8
            self._root = None

    def get(self, path: str) -> Any:
        if isinstance(self._root, dict) and path in self._root:
            return self._root[path]
        value = self._root
        for name in path.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        return value


def _text(value: Any) -> str | None:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value if isinstance(value, str) else None


def _natural(value: Any) -> int | None:
    """Parse a natural number below 2**63, or its decimal digits."""
    if isinstance(value, int) and not isinstance(value, bool):
        number = value
    else:
        text = _text(value)
        if text is None or not (text.isascii() and text.isdecimal()) or len(text) > 19:
            return None
        number = int(text)
    return number if 0 <= number < 2**63 else None


@dataclass(frozen=True)
class Conservation:
    """Rule that the output has to keep, and place of the names.

    ``exactly``: each record of the source is named by one output record; ``at-most``: by one or
    none (filters); ``at-least``: by one or more (one record makes several). ``each_topic``: count
    each output topic by itself, not all of them together.
    """

    rule: Rule
    each_topic: bool = False
    lineage: Lineage = field(default_factory=Lineage)
    cell_bytes: int = _CELL_BYTES
    """Memory of the counters; reading them takes four times as much. Larger inputs are counted in
    windows."""


def check_conservation(
    cluster: Cluster,
    chain: BatchChain,
    readings: Mapping[Where, Reading],
    rule: Conservation,
    findings: Findings,
) -> None:
    """Report inputs that are lost, named too often or foreign, and add the numbers as facts.

    :raises WrongUsage: the lineage leaves the topic out, and the pipeline reads several.
    """
    crowded = [part for reading in readings.values() if reading.shared for part in reading.crowded]
    if crowded:
        findings.cannot_judge(
            f"--conserves: records of others stand between those of {crowded[0].place}"
        )
        return
    if topics := _recreated_topics(chain):
        findings.cannot_judge(
            f"--conserves: source topic {', '.join(topics)} was deleted and created again (the "
            f"ledger has several ids of "
            "it): an offset of it names several records, and those of the first topic are gone"
        )
        return
    try:
        groups = group_batches(chain.covered)
    except ValueError as twice:
        findings.cannot_judge(
            f"--conserves: the query reads {twice} twice, so that each record has two outcomes"
        )
        return
    _Comparison(cluster, chain, groups, readings, rule, findings).run()


class _Comparison:
    """Comparison of output and input, window by window."""

    def __init__(
        self,
        cluster: Cluster,
        chain: BatchChain,
        groups: Sequence[BatchGroup],
        readings: Mapping[Where, Reading],
        rule: Conservation,
        findings: Findings,
    ) -> None:
        self._cluster, self._chain, self._groups = cluster, chain, groups
        self._readings, self._rule, self._findings = readings, rule, findings
        topics = sorted({where[0] for where in readings})
        self._topics = topics if rule.each_topic else ["all topics"]
        self._group_numbers = {
            s: number for number, one in enumerate(groups) for s in one.sequences
        }
        sources = sorted({source for group in groups for source in group.spans})
        self._only_topic = _only_topic(sources, rule.lineage)
        self._source_ranges = self._read_ranges(sources)
        self._compacted = self._may_be_compacted()
        self._nameless: dict[Where, tuple[int, int]] = {}
        """Records without a name in each output partition: number, and offset of the first."""
        self._without_names: set[int] = set()
        self._complete = self._complete_groups()
        zeros = [0] * len(self._topics)
        self._total = WindowResult(named=zeros, never=zeros, again=zeros, unjudged=zeros)
        self._output_records = self._foreign_records = 0
        self._expired: dict[Where, tuple[int, int, int]] = {}
        """Unknown offsets of each source partition: first, last and number."""

    def _read_ranges(self, sources: Sequence[Where]) -> dict[Where, tuple[int, int]]:
        ranges: dict[Where, tuple[int, int]] = {}
        for topic in sorted({where[0] for where in sources}):
            partitions = set(self._cluster.partitions(topic) or ())
            of_topic = [where for where in sources if where[0] == topic]
            if absent := [place(*where) for where in of_topic if where not in partitions]:
                self._findings.cannot_judge(
                    f"--conserves: {', '.join(absent)}: no such source on this cluster"
                )
            present = [where for where in of_topic if where in partitions]
            starts, ends = self._cluster.starts(present), self._cluster.ends(present, COMMITTED)
            ranges |= {where: (starts[where], ends[where]) for where in present}
        for batch in self._chain.covered:
            for number, span in enumerate(batch.spans):
                if kafka_position(span.end) is None:
                    self._findings.cannot_judge(
                        f"--conserves: source {number} is not of Kafka; its records are unknown"
                    )
        return ranges

    def _may_be_compacted(self) -> frozenset[Where]:
        topics = {where[0] for where in self._source_ranges}
        compacted = {topic for topic in topics if self._cluster.is_compacted(topic) is not False}
        return frozenset(where for where in self._source_ranges if where[0] in compacted)

    def _complete_groups(self) -> frozenset[int]:
        """Return the groups whose output is all there, so that what it does not name is lost."""
        complete = {p for reading in self._readings.values() for p in _complete_parts(reading)}
        lacking: set[int] = set()
        for batch in self._chain.covered:
            # In another target, which is not looked at, there may be a name of what topics lack
            if batch.records > batch.records_in.get("topics", 0) and not self._rule.each_topic:
                lacking.add(self._group_numbers[batch.sequence])
            for part in set(batch.parts) - complete:
                if not self._rule.each_topic or part.topic in self._topics:
                    lacking.add(self._group_numbers[batch.sequence])
        for number, group in enumerate(self._groups):
            if group.supplements_alone:
                lacking.add(number)
                self._findings.note_expired(
                    f"--conserves: the record of {group} itself, only what was added to it is told"
                )
        return frozenset(range(len(self._groups))) - lacking

    def run(self) -> None:
        """Count window by window, report, and add the facts."""
        rows = len(self._topics)
        cells = max(1, self._rule.cell_bytes // (1 + rows))
        for window in windows(self._groups, self._chain.skipped, cells):
            tally = Tally(window, self._groups, rows)
            self._read_sources(tally)
            places = self._read_outputs(window, tally)
            groups = self._complete - self._without_names
            outcome = tally.summarize(groups, self._source_ranges, self._compacted)
            self._add(outcome)
            self._report(outcome, tally, places)
        self._report_unknown()
        self._findings.facts["conservation"] = self._facts()

    def _read_sources(self, tally: Tally) -> None:
        ranges = {
            where: (
                max(low, self._source_ranges[where][0]),
                min(high, self._source_ranges[where][1]),
            )
            for where, (low, high) in tally.extents.items()
            if where in self._source_ranges
        }
        for where, _, offsets in self._cluster.read(ranges):
            tally.add_records(where, offsets)

    def _read_outputs(self, window: Window, tally: Tally) -> dict[tuple[Where, int], str]:
        """Count the names in the window's output; return places of some that come again."""
        again_at: dict[tuple[Where, int], str] = {}
        for where, messages, group in self._stretches(window):
            row = self._topics.index(where[0]) if self._rule.each_topic else 0
            begins = group in window.begins
            self._output_records += len(messages) if begins else 0
            for source, (offsets, tellers) in self._names(where, messages, group, begins).items():
                outside, again = tally.add_names(row, group, source, offsets)
                for index in np.flatnonzero(outside):
                    at = place(*where, int(tellers[index]))
                    self._report_foreign(group, source, int(offsets[index]), at)
                for index in np.flatnonzero(again) if len(again_at) < _SHOWN_PLACES else ():
                    at = place(*where, int(tellers[index]))
                    again_at.setdefault((source, int(offsets[index])), at)
        return again_at

    def _stretches(self, window: Window) -> Iterator[tuple[Where, list[Any], int]]:
        """Yield the output of the window's groups: visible records that belong to one of them."""
        groups = window.groups
        ranges: dict[Where, tuple[int, int]] = {}
        for where, reading in self._readings.items():
            parts = [p for p in reading.log.parts if self._group_numbers.get(p.sequence) in groups]
            if parts:
                begin = max(reading.scope.start, parts[0].first)
                ranges[where] = (begin, min(reading.scope.end, parts[-1].last + 1))
        for where, messages, offsets in self._cluster.read(ranges):
            for part, start, stop in self._readings[where].log.stretches(offsets):
                group = -1 if part is None else self._group_numbers.get(part.sequence, -1)
                if group in groups:
                    yield where, messages[start:stop], group

    def _names(
        self, where: Where, messages: Sequence[Any], group: int, begins: bool
    ) -> dict[Where, tuple[Any, Any]]:
        """Return the offsets that a stretch names in each source partition, and who names them."""
        names: dict[Where, tuple[list[int], list[int]]] = {}
        for message in messages:
            name = self._rule.lineage.read(message)
            if name is None:
                self._without_names.add(group)
                count, first = self._nameless.get(where, (0, message.offset()))
                self._nameless[where] = (count + begins, first)
                continue
            source = name.topic or self._only_topic, name.partition
            offsets, tellers = names.setdefault(source, ([], []))
            offsets.append(name.offset)
            tellers.append(message.offset())
        arrays = {source: np.array(pair, np.int64) for source, pair in names.items()}
        return {source: (pair[0], pair[1]) for source, pair in arrays.items()}

    def _report_foreign(self, group: int, source: Where, offset: int, teller: str) -> None:
        reader = self._groups[group]
        start, end = reader.spans.get(source, (0, 0))
        read = f"{place(*source, start, end - 1)}" if start < end else "nothing of it"
        detail = f"names {place(*source, offset)}, and is of {reader}, which read {read}"
        self._findings.anomaly("foreign-input", "I2", teller, detail)
        self._foreign_records += 1

    def _report(
        self, outcome: WindowResult, tally: Tally, again_at: Mapping[tuple[Where, int], str]
    ) -> None:
        rule = self._rule.rule
        for row, source, first, last in outcome.lost if rule != "at-most" else ():
            reader = tally.reader_at(source, first)
            detail = f"read by {reader}, and named by no record of {self._topics[row]}"
            self._findings.anomaly("lost-input", "I1", place(*source, first, last), detail)
        for row, source, first, last, most in outcome.repeated if rule != "at-least" else ():
            examples = (a for (s, o), a in again_at.items() if s == source and first <= o <= last)
            example = next(examples, None)
            detail = f"named {most} times by records of {self._topics[row]}"
            detail += f", among them {example}" if example else ""
            self._findings.anomaly("duplicate-input", "I2", place(*source, first, last), detail)
        for source, first, last in outcome.strangers:
            detail = (
                "named by output records, and no committed record of the source: aborted, a "
                "marker, or never there"
            )
            self._findings.anomaly("foreign-input", "I2", place(*source, first, last), detail)
        for source, first, last in outcome.unknown:
            low, high, number = self._expired.get(source, (first, last, 0))
            number += last - first + 1
            self._expired[source] = min(low, first), max(high, last), number

    def _report_unknown(self) -> None:
        for where, (count, first) in sorted(self._nameless.items()):
            self._findings.cannot_judge(
                f"--conserves: {count} records of {place(*where)} name no input by "
                f"{self._rule.lineage}, "
                f"the first at offset {first}; what their batches lost cannot be told"
            )
        for source, (first, last, count) in sorted(self._expired.items()):
            at = place(*source, first, last)
            if source not in self._source_ranges:
                continue  # reported already
            if source in self._compacted and self._rule.rule != "at-most":
                self._findings.note_expired(
                    f"--conserves: {count} offsets of {at}: the source is, or may be, compacted"
                )
            elif source not in self._compacted:
                start, end = self._source_ranges[source]
                self._findings.note_expired(
                    f"--conserves: {count} offsets of {at}: the source holds {start} to {end - 1} "
                    f"only"
                )

    def _add(self, outcome: WindowResult) -> None:
        total = self._total
        total.inputs += outcome.inputs
        total.skipped += outcome.skipped
        for name in ("named", "never", "again", "unjudged"):
            pairs = zip(getattr(total, name), getattr(outcome, name), strict=True)
            setattr(total, name, [one + more for one, more in pairs])

    def _facts(self) -> dict[str, Any]:
        total = self._total
        return {
            "rule": self._rule.rule,
            "lineage": str(self._rule.lineage),
            "input_records": total.inputs,
            "output_records": self._output_records,
            "skipped_records": total.skipped,
            "foreign_records": self._foreign_records,
            "nameless_records": sum(count for count, _ in self._nameless.values()),
            "counts": {
                topic: {
                    "named": total.named[row],
                    "never_named": total.never[row],
                    "named_again": total.again[row],
                    "not_judged": total.unjudged[row],
                }
                for row, topic in enumerate(self._topics)
            },
        }


def _recreated_topics(chain: BatchChain) -> list[str]:
    """Return source topics with several ids in the ledger.

    Under a pattern, and with ``failOnDataLoss=false``, a query goes on when a topic goes, and
    reads it if it comes back.
    """
    ids: dict[str, set[str]] = defaultdict(set)
    for batch in chain.covered:
        for topic, topic_id in (pair for span in batch.spans for pair in span.ids):
            ids[topic].add(topic_id)
    return sorted(topic for topic, of_one in ids.items() if len(of_one) > 1)


def _only_topic(sources: Sequence[Where], lineage: Lineage) -> str:
    topics = sorted({topic for topic, _ in sources})
    if lineage.topic is None and len(topics) > 1:
        raise WrongUsage(
            f"the lineage names no topic, and the pipeline reads {', '.join(topics)}",
            next_step=f"say where the source topic stands: --lineage-{lineage.kind} "
            "topic=…,partition=…,offset=…",
        )
    return topics[0] if topics else ""


def _complete_parts(reading: Reading) -> Iterator[OutputPart]:
    for part, tally in zip(reading.log.parts, reading.log.tallies, strict=True):
        if part.first >= reading.scope.start and tally.count >= part.count:
            yield part
