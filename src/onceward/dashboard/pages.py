"""Pages as text, of what was found. Pure.

Whatever comes from a cluster goes through :func:`pictures.text`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any
from urllib.parse import quote, urlencode

from onceward.dashboard.messages import Message, PartitionExcerpt
from onceward.dashboard.pictures import STEPS, line, plot, strip, text
from onceward.dashboard.watch import Measured, PipelineView, Snapshot
from onceward.ids import TopicPartition, is_kafka_offset, partition_offsets
from onceward.operate.logs import ago, moment, span
from onceward.operate.run_job import explain
from onceward.operate.status import LedgerEntry, PipelineState

TABS = ("batches", "lag", "transactions", "failures", "ledger")
_STRIP = 100
_HEIGHT = 60
_RANK = {state: rank for rank, state in enumerate(
    (PipelineState.FENCED, PipelineState.STUCK, PipelineState.STOPPED, PipelineState.RESTARTING,
     PipelineState.UNKNOWN, PipelineState.CATCHING_UP, PipelineState.RUNNING, PipelineState.IDLE)
)}  # fmt: skip
"""Whoever needs somebody comes first."""


def page(title: str, body: str, snapshot: Snapshot, now_ms: int) -> str:
    """Return a whole page."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{text(title)} · Onceward</title>"
        '<link rel="icon" href="data:,">'
        '<link rel="stylesheet" href="/assets/uPlot.min.css">'
        '<link rel="stylesheet" href="/assets/style.css">'
        '<script src="/assets/uPlot.iife.min.js" defer></script>'
        '<script src="/assets/dashboard.js" defer></script></head><body>'
        '<a class="skip" href="#main">Skip to the content</a>'
        '<header><nav aria-label="Pages"><a href="/">Pipelines</a> <a href="/messages">Messages'
        f'</a></nav></header><main id="main">{fragment(title, body, snapshot, now_ms)}</main>'
        "</body></html>"
    )


def fragment(title: str, body: str, snapshot: Snapshot, now_ms: int) -> str:
    """Return what changes of a page: its heading, how old its data are, and the body."""
    if not snapshot.taken_at_ms:
        age = "nothing was found yet; the clusters are being asked"
    else:
        age = f"as of {span(max(0, now_ms - snapshot.taken_at_ms) / 1000)} ago"
    notice = _notice(snapshot.trouble)
    return f'<h1>{text(title)}</h1><p class="age" role="status">{age}</p>{notice}{body}'


def _notice(trouble: Iterable[str]) -> str:
    rows = "".join(f"<li>{text(each)}</li>" for each in trouble)
    return f'<ul class="trouble" aria-label="Not looked at">{rows}</ul>' if rows else ""


def overview(snapshot: Snapshot, now_ms: int) -> str:
    """Return the body with all pipelines, those that need somebody first."""
    found = sorted(
        snapshot.pipelines.items(), key=lambda item: (_RANK[item[1].status.state], item[0])
    )
    counts: dict[str, int] = {}
    for _, view in found:
        counts[view.status.state.value] = counts.get(view.status.state.value, 0) + 1
    summary = ", ".join(f"{count} {state}" for state, count in counts.items()) or "none"
    rows = [
        [
            f'<a href="/pipeline/{quote(name, safe="")}">{text(name)}</a>',
            _state(view.status.state),
            text(_ago(view, now_ms)),
            _number(view.entries[-1].batch_id if view.entries else None),
            _number(view.entries[-1].records if view.entries else None),
            _number(view.status.lag),
            text(_open_for(view)),
            text(_owner(view)),
            strip(view.entries[-30:], height=18),
        ]
        for name, view in found
    ]
    heads = (
        "Pipeline", "State", "Last commit", "Batch", "Records", "Lag", "Open for", "Owner",
        "Last batches",
    )  # fmt: skip
    return f"<p>{text(summary)}</p>{_table('All pipelines', heads, rows)}"


def pipeline(view: PipelineView, tab: str, now_ms: int) -> str:
    """Return the body of one pipeline's page."""
    status, step = view.status, ""
    if not status.is_well:
        step = f"<p>Next: {text(status.next_step)}.</p>"
    tabs = "".join(
        f'<a href="?tab={each}"{" aria-current=page" if each == tab else ""}>'
        f"{each.capitalize()}</a>"
        for each in TABS
    )
    bodies = {
        "batches": _batches, "lag": _lag, "transactions": _transactions, "failures": _failures,
        "ledger": _ledger,
    }  # fmt: skip
    return (
        f"<p>{_state(status.state)} {text(status.reason)}. Last commit "
        f"{text(_ago(view, now_ms))}; owner {text(_owner(view) or 'not known')}.</p>"
        f"{step}{_notice(status.trouble)}"
        f'<nav class="tabs" aria-label="Of this pipeline">{tabs}</nav>'
        f'<section aria-label="{tab}">{bodies[tab](view)}</section>'
    )


def _batches(view: PipelineView) -> str:
    entries = view.entries[-_STRIP:]
    times, rates, gaps = _series(entries)
    body = "<h2>Last batches</h2>" + strip(entries, height=_HEIGHT)
    legend = " ".join(f'<span class="key {step}">{step}</span>' for step in (*STEPS, "other"))
    body += f"<p>A bar is a batch, the last one on the right, in pieces of its steps: {legend}</p>"
    body += plot("Throughput", "records/s", times, rates)
    body += plot("Between commits", "seconds", times, gaps)
    return body + _steps(view.measured)


def _series(entries: Sequence[LedgerEntry]) -> tuple[list[float], list[float], list[float]]:
    """Return of each batch but the first, in seconds: its time, records a second, and pause."""
    pairs = list(pairwise(entries))
    gaps = [max(0.001, (b.committed_at_ms - a.committed_at_ms) / 1000) for a, b in pairs]
    rates = [b.records / gap for (_, b), gap in zip(pairs, gaps, strict=True)]
    return [b.committed_at_ms / 1000 for _, b in pairs], rates, gaps


def _steps(measured: Measured | None) -> str:
    if measured is None:
        return (
            "<h2>Steps</h2><p>Seconds of each step are known where the pipeline serves its "
            "metrics, and this page is started with --metrics.</p>"
        )
    rows = [
        [
            text(step),
            _number(round(count)),
            f"{1000 * seconds / count:,.1f} ms",
            _bar(seconds, total),
        ]
        for total in [sum(seconds for _, seconds in measured.steps.values()) or 1.0]
        for step, (count, seconds) in sorted(measured.steps.items(), key=lambda item: -item[1][1])
    ]
    return "<h2>Steps</h2>" + _table("Steps", ("Step", "Times", "On average", "Share"), rows)


def _lag(view: PipelineView) -> str:
    rows = [
        [
            text(each.topic),
            _message_link(TopicPartition(each.topic, each.partition), each.offset),
            _number(each.offset),
            _number(each.last_stable_offset),
            _number(each.lag),
        ]
        for each in view.status.partitions
    ]
    heads = ("Topic", "Partition", "Next offset", "Last stable offset", "Lag")
    return _table("Lag by partition", heads, rows) if rows else "<p>No lag is known.</p>"


def _transactions(view: PipelineView) -> str:
    found, body = view.status.transaction, ""
    if found is None:
        body = "<p>No transaction of it is known.</p>"
    else:
        facts = {
            "Transactional id": found.transactional_id,
            "Producer id and epoch": f"{found.producer_id}, {found.epoch}",
            "State": found.state,
            "Open for": "nothing is open" if found.age_s is None else span(found.age_s),
            "Timeout": span(found.timeout_ms / 1000),
            "Partitions": found.partitions,
        }
        body = _facts(facts)
    aborts = view.measured.aborts if view.measured is not None else {}
    rows = [[text(reason or "not known"), _number(round(n))] for reason, n in aborts.items()]
    return body + (
        _table("Aborted attempts of this driver", ("Reason", "Times"), rows) if rows else ""
    )


def _failures(view: PipelineView) -> str:
    measured = view.measured
    if measured is None:
        return (
            "<p>What failed is known where the pipeline serves its metrics, and this page is "
            "started with --metrics; else it is in the driver's log.</p>"
        )
    names = sorted({*measured.failures, *measured.restarts})
    rows = [
        [
            text(name),
            text(meaning),
            _number(round(measured.failures.get(name, 0))),
            _number(round(measured.restarts.get(name, 0))),
            text(view.entries[-1].batch_id + 1 if view.entries else 0),
            text(recovery),
        ]
        for name in names
        for meaning, recovery in [explain(name)]
    ]
    heads = ("Error", "Cause", "Failures", "Restarts", "Batch it is at", "What follows")
    if not rows:
        return "<p>Nothing has failed.</p>"
    return _table("Failures of this driver", heads, rows) + _last_failures(measured)


def _last_failures(measured: Measured) -> str:
    rows = [
        [
            text(moment(each.at_ms)),
            _number(each.batch_id),
            *map(text, (each.error, each.message, each.next_step)),
        ]
        for each in reversed(measured.last_failures)
    ]
    if not rows:
        return (
            "<p>Messages and next steps are in the driver's log, and here where it serves its "
            "metrics with failures=True.</p>"
        )
    heads = ("When", "Batch", "Error", "Message", "Next step")
    return _table("The last ones, newest first", heads, rows)


def _ledger(view: PipelineView) -> str:
    name = quote(view.status.pipeline_id, safe="")
    rows = [
        [
            f'<a href="/pipeline/{name}/ledger/{entry.sequence}">{entry.sequence}</a>',
            _number(entry.batch_id),
            text(moment(entry.committed_at_ms)),
            _number(entry.records),
            _number(entry.read),
            text("" if entry.open_ms is None else f"{entry.open_ms} ms"),
            text(f"{entry.owner}-{entry.epoch}"),
            text(entry.state),
        ]
        for entry in reversed(view.entries)
    ]
    heads = ("Sequence", "Batch", "Committed", "Records", "Read", "Open for", "Attempt", "State")
    return _table("The ledger, newest first", heads, rows)


def ledger_entry(view: PipelineView, sequence: int) -> str | None:
    """Return the body of one ledger record's page; None if it is not kept."""
    found = {entry.sequence: entry for entry in view.entries}
    entry = found.get(sequence)
    if entry is None:
        return None
    name = quote(view.status.pipeline_id, safe="")
    ways = "".join(
        f'<a href="/pipeline/{name}/ledger/{other}">{word}</a> '
        for word, other in (("Before", sequence - 1), ("After", sequence + 1))
        if other in found
    )
    facts = {
        "Batch": f"{entry.batch_id} of query {entry.query_id}",
        "Committed": moment(entry.committed_at_ms),
        "Records": f"{entry.records:,}",
        "Attempt": f"{entry.owner}-{entry.epoch}",
        "State": entry.state,
        "Written by": entry.written_by,
    }
    return (
        f'<nav aria-label="Records beside this one">{ways}'
        f'<a href="/pipeline/{name}?tab=ledger">All</a></nav>{_facts(facts)}{_sources(entry)}'
        + _table(
            "Targets",
            ("Target", "Records"),
            [[text(k), _number(v)] for k, v in entry.targets.items()],
        )
    )


def _sources(entry: LedgerEntry) -> str:
    rows = []
    for number, source in enumerate(entry.sources):
        if not is_kafka_offset(source["end"]):
            ends = (text(json.dumps(source[end])) for end in ("start", "end"))
            rows.append([str(number), *ends, ""])
            continue
        starts = partition_offsets(source["start"])
        for where, end in sorted(partition_offsets(source["end"]).items()):
            start = starts.get(where)
            rows.append(
                [text(where), _number(start), _number(end), _message_link(where, start or 0)]
            )
    return _table("Sources", ("Source", "From", "To", "Records"), rows)


def messages(
    parameters: Mapping[str, str], answer: PartitionExcerpt | str | None, pipelines: Iterable[str]
) -> str:
    """Return the body of the message browser.

    :param parameters: topic, partition and offset as they were typed.
    :param answer: the records, why there are none, or None: being read, or nothing was asked.
    """
    our_pipelines = set(pipelines)
    body = (
        '<form method="get" action="/messages"><label>Topic <input name="topic" required value="'
        f'{text(parameters.get("topic", ""))}"></label> <label>Partition <input name="partition" '
        f'inputmode="numeric" value="{text(parameters.get("partition", "0"))}"></label> '
        '<label>Offset <input name="offset" inputmode="numeric" value="'
        f'{text(parameters.get("offset", "-50"))}"></label> '
        "<button>Show</button></form><p>An offset below 0 counts from the end.</p>"
    )
    if not parameters.get("topic"):
        return body
    if answer is None:
        return body + '<p aria-busy="true">Being read …</p>'
    if isinstance(answer, str):
        return body + f'<p class="trouble">{text(answer)}</p>'
    rows = [_message_row(each, our_pipelines) for each in answer.messages]
    last = answer.messages[-1].offset + 1 if answer.messages else answer.start
    return (
        body
        + f"<p>{text(answer.where)}: offsets {answer.earliest:,} to {answer.high_watermark:,}, "
        f"decided up to {answer.last_stable:,}. {_message_link(answer.where, last, 'Next')}</p>"
        + _table("Records", ("Offset", "Time", "Transaction", "Key", "Value", "Headers"), rows)
    )


def _message_row(message: Message, pipelines: set[str]) -> list[str]:
    headers = "".join(f"<li>{text(name)}: {text(value)}</li>" for name, value in message.headers)
    letter = message.letter
    if letter is not None:
        ways = []
        if letter.source is not None and letter.source_offset is not None:
            ways.append(_message_link(letter.source, letter.source_offset, "Source record"))
        if letter.pipeline in pipelines:
            name = quote(letter.pipeline, safe="")
            ways.append(
                f'<a href="/pipeline/{name}?tab=ledger">Ledger of {text(letter.pipeline)}</a>'
            )
        headers = f"<li>Dead letter: {text(letter.error_class)}. {' '.join(ways)}</li>{headers}"
    return [
        _number(message.offset),
        text(moment(message.timestamp_ms)),
        f'<span class="fate {message.fate.value}">{message.fate.value}</span>',
        f"<code>{text(message.key)}</code>",
        f"<code>{text(message.value)}</code>",
        f"<ul>{headers}</ul>" if headers else "",
    ]


def report(view: PipelineView, style: str, now_ms: int) -> str:
    """Return a page of its own, without script: to attach to a ticket."""
    entries = view.entries[-_STRIP:]
    times, rates, gaps = _series(entries)
    name = view.status.pipeline_id
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f"<title>{text(name)}, {moment(now_ms)}</title><style>{style}</style></head><body><main>"
        f"<h1>{text(name)}</h1><p>{moment(now_ms)}: {_state(view.status.state)} "
        f"{text(view.status.reason)}. Last commit {text(_ago(view, now_ms))}, lag "
        f"{_number(view.status.lag)}, owner {text(_owner(view) or 'not known')}.</p>"
        f"{_notice(view.status.trouble)}"
        f"<h2>Last batches</h2>{strip(entries, height=_HEIGHT)}"
        f"{line('Throughput', 'records/s', times, rates)}"
        f"{line('Between commits', 's', times, gaps)}"
        f"{_steps(view.measured) if view.measured else ''}{_lag(view)}{_transactions(view)}"
        f"{_failures(view) if view.measured else ''}{_ledger(view)}</main></body></html>"
    )


def _table(caption: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f'<th scope="col">{each}</th>' for each in heads)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{text(caption)}"><table>'
        f"<caption>{text(caption)}</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table>"
        "</div>"
    )


def _facts(facts: Mapping[str, Any]) -> str:
    return "<dl>" + "".join(f"<dt>{k}</dt><dd>{text(v)}</dd>" for k, v in facts.items()) + "</dl>"


def _state(state: PipelineState) -> str:
    return f'<span class="state {text(state.name.lower())}">{text(state.value)}</span>'


def _bar(part: float, total: float) -> str:
    width = max(1, round(100 * part / total))
    bar = f'<rect width="{width}" height="10"/>'
    return f'<svg class="bar" width="100" height="10" aria-hidden="true">{bar}</svg>'


def _message_link(where: TopicPartition, offset: int, word: str = "") -> str:
    query = urlencode({"topic": where.topic, "partition": where.partition, "offset": offset})
    return f'<a href="/messages?{text(query)}">{text(word or where.partition)}</a>'


def _ago(view: PipelineView, now_ms: int) -> str:
    if not view.entries:
        return "never"
    return ago((now_ms - view.entries[-1].committed_at_ms) / 1000)


def _open_for(view: PipelineView) -> str:
    found = view.status.transaction
    return "" if found is None or found.age_s is None else span(found.age_s)


def _owner(view: PipelineView) -> str:
    return view.entries[-1].written_by if view.entries else ""


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,}"
