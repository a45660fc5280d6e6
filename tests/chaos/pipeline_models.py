"""What goes into the pipelines of ``pipeline_workloads``, and which rows must come out: without
Spark, by hand.

``record`` is the input, a function of its number. ``expected`` folds what a reader found in the
source, along the batches as the ledger bounds them, into the rows that must be visible, topic by
topic.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from onceward_testing.topic_reader import ReadRecord

Row = tuple[bytes | None, bytes | None]
Ledger = Sequence[dict[str, Any]]

RECORD_MS = 10
"""Event time between two records."""

_WINDOW_MS = _DELAY_MS = 20_000
_LATE_MS = 1_200_000


@dataclass(frozen=True)
class Input:
    """One record to produce; ``time_ms`` counts from the first record's event time."""

    key: bytes | None
    value: bytes
    time_ms: int


def record(query: str, index: int) -> Input:
    """The ``index``-th record of a query's input.

    People: two follow each other with the same number, one in five has a number of another length,
    one in ten no key. For ``windows`` one in twenty comes twenty minutes late. Transfers go
    between accounts, never to the payer itself.
    """
    if query == "transfers":
        payer, payee = index % 89, (index + 1 + index % 7) % 89
        transfer = {
            "payer": f"account-{payer}",
            "payee": f"account-{payee}",
            "cents": 1 + index % 997,
        }
        return Input(b"account-%d" % payer, json.dumps(transfer).encode(), RECORD_MS * index)
    number = f"{index // 2:018d}" if index % 5 else f"{index:07d}"
    person = {"id": index, "name": f"person {index}", "identifyNumber": number}
    key = None if index % 10 == 3 else b"key-%d" % (index % 97)
    late = query == "windows" and index % 20 == 7
    return Input(key, json.dumps(person).encode(), RECORD_MS * index - (_LATE_MS if late else 0))


def expected(
    query: str, source: Sequence[ReadRecord], ledger: Ledger, topic: str, outputs: Sequence[str]
) -> dict[str, list[Row]]:
    """Rows by output topic, given all that is in the source ``topic`` and the pipeline's ledger
    records.
    """
    if query == "fanout":
        return {
            name: _copies([r for r in source if r.offset % 3 == turn])
            for turn, name in enumerate(outputs)
        }
    if query == "transfers":
        return dict(zip(outputs, _postings(source), strict=True))
    one_topic: dict[str, Callable[[], list[Row]]] = {
        "copy": lambda: _copies(source),
        "scatter": lambda: _copies(source),
        "counts": lambda: list(_counts(source, ledger, topic)),
        "windows": lambda: list(_windows(source, ledger, topic)),
        "etl": lambda: _numbers_once_per_window(source),
    }
    (output,) = outputs
    return {output: one_topic[query]()}


def copies(source: Sequence[ReadRecord]) -> list[Row]:
    """The rows of ``copy``, wherever they go."""
    return _copies(source)


def late_and_dropped(source: Sequence[ReadRecord], ledger: Ledger, topic: str) -> int:
    """How many records of ``windows`` no window may count, for a test that wants some."""
    return sum(late for _, late in _fold_windows(source, ledger, topic))


def balance(visible: Sequence[Row]) -> int:
    """Of all postings of ``transfers``: zero, whenever whole transactions are visible and nothing
    else.
    """
    return sum(int((value or b"").rpartition(b":")[2]) for _, value in visible)


# ── the models ──


def _copies(source: Sequence[ReadRecord]) -> list[Row]:
    return [(r.key, b"%d:%d:%s" % (r.partition, r.offset, r.value or b"")) for r in source]


def _postings(source: Sequence[ReadRecord]) -> tuple[list[Row], list[Row]]:
    debits: list[Row] = []
    credits: list[Row] = []
    for r in source:
        transfer = json.loads(r.value or b"")
        for legs, account, sign in ((debits, "payer", -1), (credits, "payee", 1)):
            legs.append(
                (
                    transfer[account].encode(),
                    b"%d:%d:%d" % (r.partition, r.offset, sign * transfer["cents"]),
                )
            )
    return debits, credits


def _batches(
    source: Sequence[ReadRecord], ledger: Ledger, topic: str
) -> Iterator[list[ReadRecord]]:
    """The records of each batch, as the ledger bounds it; a batch that only moved the watermark
    has none.
    """
    for entry in ledger:
        (span,) = entry["sources"]
        starts, ends = span["start"][topic], span["end"][topic]
        yield [r for r in source if starts[str(r.partition)] <= r.offset < ends[str(r.partition)]]


def _counts(source: Sequence[ReadRecord], ledger: Ledger, topic: str) -> Iterator[Row]:
    """The fold over the batches: each batch emits the new count of each of its keys (I9)."""
    seen: Counter[bytes] = Counter()
    for batch in _batches(source, ledger, topic):
        keys = [r.key for r in batch if r.key]
        seen.update(keys)
        yield from ((key, b"%d" % seen[key]) for key in set(keys))


def _windows(source: Sequence[ReadRecord], ledger: Ledger, topic: str) -> Iterator[Row]:
    for closed, _ in _fold_windows(source, ledger, topic):
        for (start, key), positions in closed.items():
            yield key, b"%d:%d:%d" % (start, len(positions), sum(positions))


def _fold_windows(
    source: Sequence[ReadRecord], ledger: Ledger, topic: str
) -> Iterator[tuple[dict[tuple[int, bytes], list[int]], int]]:
    """Per batch: the windows that it closes, and how many of its records are too late.

    Spark's rule: the watermark of a batch comes from the event times of the batches before it and
    closes windows at the batch's end; what is late is judged by the watermark of the batch before
    (``WatermarkPropagator``).
    """
    open_windows: dict[tuple[int, bytes], list[int]] = defaultdict(list)
    latest_ms, watermark, watermark_before = 0, 0, 0
    for batch in _batches(source, ledger, topic):
        late = 0
        for r in batch:
            start = r.timestamp_ms - r.timestamp_ms % _WINDOW_MS
            if start + _WINDOW_MS <= watermark_before:
                late += 1
            else:
                open_windows[start, r.key or b"none"].append(r.offset * 4 + r.partition)
        closed = {
            window: open_windows.pop(window)
            for window in list(open_windows)
            if window[0] + _WINDOW_MS <= watermark
        }
        yield closed, late
        latest_ms = max([latest_ms, *(r.timestamp_ms for r in batch)])
        watermark_before, watermark = watermark, max(0, latest_ms - _DELAY_MS)


def _numbers_once_per_window(source: Sequence[ReadRecord]) -> list[Row]:
    latest: dict[tuple[int, str], str] = {}
    for r in source:
        number = json.loads(r.value)["identifyNumber"] if r.value else ""
        if len(number) == 18:
            window = r.timestamp_ms // _WINDOW_MS
            origin = f"{r.partition}:{r.offset}"
            latest[window, number] = max(origin, latest.get((window, number), ""))
    return [(number.encode(), origin.encode()) for (_, number), origin in latest.items()]
