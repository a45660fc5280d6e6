"""The dashboard's server and pages without a cluster: who may look, what is escaped, and that a
page is served whatever the clusters do. ``tests/chaos/test_dashboard_in_a_browser.py`` has the
rest.
"""

from __future__ import annotations

import asyncio
import re
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from html import escape
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from onceward import events
from onceward.cli.dashboard import _token
from onceward.dashboard import pages, server, watch
from onceward.dashboard.messages import Fate, Message, PartitionExcerpt
from onceward.dashboard.server import dashboard_app, must_be_safe
from onceward.dashboard.watch import (
    Measured,
    PipelineView,
    RecordQuery,
    Snapshot,
    Watcher,
    last_failures,
    measure,
)
from onceward.engine.ledger.record import Writer
from onceward.errors import (
    BrokerUnreachable,
    ConfigurationError,
    Fenced,
    LedgerUnreadable,
    SendFailed,
    TopicMissing,
)
from onceward.ids import TopicPartition
from onceward.kafka.dead_letters.topic import Letter
from onceward.operate import status as looks
from onceward.operate.metric_state import LastFailure
from onceward.operate.metrics import serve_metrics
from onceward.operate.status import (
    LedgerEntry,
    LedgerView,
    OpenTransaction,
    PartitionLag,
    PipelineState,
    PipelineStatus,
)
from support.errors import raises
from support.hostile_http import HostileServer, answer, drip

EVIL = "<script>alert('\"1\"')</script>"
NOW_MS = 1_700_000_000_000


def entry(sequence: int, pipeline: str = "p", evil: str = "") -> LedgerEntry:
    end = {f"people{evil}": {"0": sequence * 10 + 10}}
    start = {f"people{evil}": {"0": sequence * 10}}
    return LedgerEntry(
        pipeline, sequence, f"q{evil}", sequence, NOW_MS - 60_000 + 1_000 * sequence, 10, 10, 1, 2,
        "finished", 40, Writer(f"1{evil}", f"host{evil}", 7),
        ({"start": start, "end": end}, {"start": None, "end": f"x{evil}"}), {f"kafka{evil}": 10},
    )  # fmt: skip


def view(
    pipeline: str = "p", evil: str = "", state: PipelineState = PipelineState.RUNNING
) -> PipelineView:
    entries = tuple(entry(number, pipeline, evil) for number in range(5))
    status = PipelineStatus(
        pipeline, state, f"why{evil}", entries[-1], 5.0, 3,
        (PartitionLag(f"people{evil}", 0, 50, 53),),
        OpenTransaction(pipeline, 9, 2, f"Ongoing{evil}", 4.0, 60_000, 2), (f"t{evil}",),
    )  # fmt: skip
    measured = Measured(
        {f"send{evil}": (2.0, 1.0)}, {f"r{evil}": 1.0}, {f"E{evil}": 1.0}, {f"E{evil}": 2.0},
        (LastFailure(pipeline, NOW_MS, 7, f"E{evil}", f"why{evil}", f"do{evil}"),),
    )  # fmt: skip
    return PipelineView(status, entries, measured)


class Site:
    """A dashboard over what a test hands to it; nothing is watched."""

    def __init__(self, *views: PipelineView, token: str = "", hosts: tuple[str, ...] = ()) -> None:
        self.watcher = Watcher([], 60.0)
        found = {each.status.pipeline_id: each for each in views}
        self.watcher.snapshot = Snapshot(1, NOW_MS, found, ("gone",))
        self.app = dashboard_app(self.watcher, hosts, token)

    def ask(
        self, path: str, method: str = "GET", body: bytes = b"", **headers: str
    ) -> tuple[int, dict[str, str], str]:
        path, _, query = path.partition("?")
        told = {"host": "127.0.0.1:9465", **{k.replace("_", "-"): v for k, v in headers.items()}}
        sent: list[dict[str, Any]] = []
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method,
            "path": path, "raw_path": path.encode(), "query_string": query.encode(),
            "scheme": "http", "server": ("127.0.0.1", 9465), "client": ("127.0.0.1", 1),
            "headers": [(k.lower().encode(), v.encode()) for k, v in told.items()], "root_path": "",
        }  # fmt: skip

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        asyncio.run(self.app(scope, receive, send))
        begun = {k.decode(): v.decode() for k, v in sent[0]["headers"]}
        text = b"".join(each.get("body", b"") for each in sent[1:]).decode()
        return sent[0]["status"], begun, text


PAGES = [
    "/", "/pipeline/p", "/pipeline/p?tab=lag", "/pipeline/p?tab=transactions", "/login",
    "/pipeline/p?tab=failures", "/pipeline/p?tab=ledger", "/pipeline/p/ledger/3", "/messages",
    "/pipeline/none", "/pipeline/p/ledger/99", "/status.json", "/assets/style.css",
    "/assets/none.css", "/nowhere",
]  # fmt: skip


@pytest.mark.parametrize("path", PAGES)
def test_every_answer_allows_nothing_but_our_own_files(path: str) -> None:
    status, headers, text = Site(view()).ask(path)
    assert status == (404 if "none" in path or "99" in path or path == "/nowhere" else 200)
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    # With "no-referrer" a browser sends the login form with `Origin: null`, which is refused
    assert headers["referrer-policy"] == "same-origin"
    assert not re.search(
        r"(?i)\sstyle=|\son\w+=|<style|<script(?! src=\"/assets/)|https?://", text
    )


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "localhost"}, 200),
        ({"host": "[::1]:9465"}, 200),
        ({"host": "dash.example:80"}, 200),
        ({"host": "attacker.example"}, 421),
        ({"host": "127.0.0.1.attacker.example"}, 421),
        ({"host": "[::1"}, 421),
        ({"host": ""}, 421),
        ({"origin": "http://127.0.0.1:9465"}, 200),
        ({"origin": "http://attacker.example"}, 403),
        ({"origin": "null"}, 403),
    ],
)
def test_another_site_may_not_ask(headers: Mapping[str, str], status: int) -> None:
    site = Site(view(), hosts=("Dash.example",))
    assert site.ask("/", **headers)[0] == status
    assert site.ask("/events" if status != 200 else "/status.json", **headers)[0] == status


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_it_is_only_read(method: str) -> None:
    assert Site(view()).ask("/pipeline/p", method)[0] == 405


def test_whoever_knows_the_token_may_look(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(server.asyncio, "sleep", sleep)
    site = Site(view(), token="geheim")
    assert site.ask("/status.json")[0] == 401
    assert site.ask("/", accept="text/html")[:2][0] == 303
    assert site.ask("/status.json", authorization="Bearer geheim")[0] == 200
    assert site.ask("/status.json", authorization="Bearer geheimer")[0] == 401
    assert site.ask("/status.json", cookie="onceward=geheim")[0] == 401
    assert site.ask("/login", "POST", b"token=falsch")[0] == 403
    assert pauses == [1]
    assert site.ask("/login", "POST", b"token=" + b"x" * 5_000)[0] == 413
    status, headers, _ = site.ask("/login", "POST", b"token=geheim")
    assert status == 303
    cookie = headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert "geheim" not in cookie
    assert site.ask("/status.json", cookie=cookie.partition(";")[0])[0] == 200
    assert Site(view(), token="geheim").ask("/", cookie=cookie.partition(";")[0])[0] == 401


def test_two_dashboards_on_one_host_do_not_take_each_others_place_in_a_browser() -> None:
    """Browsers send a host's cookies to all its ports, and keep one of a name."""
    names = set()
    for host in ("127.0.0.1:9465", "127.0.0.1:9466", "[::1]:9465"):
        _, headers, _ = Site(view(), token="one").ask("/login", "POST", b"token=one", host=host)
        names.add(headers["set-cookie"].partition("=")[0])
    assert len(names) == 3


def test_a_token_beyond_ascii_is_known_in_a_header_and_a_form(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("gehéim\n", encoding="utf-8")
    site = Site(view(), token=_token(file))
    assert site.ask("/status.json", authorization="Bearer gehéim")[0] == 200
    assert site.ask("/status.json", authorization="Bearer gehëim")[0] == 401
    sent = [(b"host", b"127.0.0.1"), (b"authorization", "Bearer gehéim".encode("latin-1"))]
    request = server.Request({"type": "http", "headers": sent})
    assert server._Site(site.watcher, "gehéim", lambda: False).may_look(request)
    assert site.ask("/login", "POST", "token=gehéim".encode())[0] == 303


def test_other_machines_need_a_token() -> None:
    must_be_safe("127.0.0.1", "")
    must_be_safe("0.0.0.0", "geheim")  # noqa: S104 — an address that others reach
    with raises(ConfigurationError, "0.0.0.0"):  # noqa: S104
        must_be_safe("0.0.0.0", "")  # noqa: S104


def excerpt(evil: str) -> PartitionExcerpt:
    letter = Letter(
        TopicPartition("dead", 0), 3, NOW_MS, None, None, (), error_class=f"E{evil}",
        pipeline="p", source=TopicPartition("people", 1), source_offset=17,
    )  # fmt: skip
    made = Message(3, NOW_MS, Fate.OPEN, evil, evil, ((evil, evil),), letter)
    return PartitionExcerpt(TopicPartition("dead", 0), 0, 0, 3, 9, (made,))


@pytest.mark.parametrize("tab", pages.TABS)
def test_what_a_cluster_says_is_text(tab: str) -> None:
    evil = view("p", EVIL, PipelineState.STUCK)
    snapshot = Snapshot(1, NOW_MS, {"p": evil, EVIL: view(EVIL)}, (EVIL,))
    found = [
        pages.page(EVIL, pages.overview(snapshot, NOW_MS), snapshot, NOW_MS),
        pages.pipeline(evil, tab, NOW_MS),
        pages.ledger_entry(evil, 3) or "",
        pages.messages({"topic": EVIL, "partition": EVIL, "offset": EVIL}, excerpt(EVIL), ["p"]),
        pages.messages({"topic": "t"}, EVIL, []),
        pages.report(evil, "", NOW_MS),
    ]
    for text in found:
        assert EVIL not in text
        assert "&lt;script&gt;" in text
        assert not re.search(r"<script(?! src=\"/assets/)", text)


def test_a_dead_letter_leads_to_its_source_and_its_ledger() -> None:
    text = pages.messages({"topic": "dead"}, excerpt("x"), ["p"])
    assert 'href="/messages?topic=people&amp;partition=1&amp;offset=17">Source record' in text
    assert 'href="/pipeline/p?tab=ledger">Ledger of p' in text


def test_what_could_not_be_asked_of_a_pipeline_is_on_its_page_and_in_its_report() -> None:
    status = replace(view().status, transaction=None, trouble=("no broker answers. Next: wait.",))
    asked = replace(view(), status=replace(status, state=PipelineState.UNKNOWN))
    for text in (pages.pipeline(asked, "transactions", NOW_MS), pages.report(asked, "", NOW_MS)):
        assert "no broker answers. Next: wait." in text
        assert "knows no transaction" not in text


def test_those_that_need_somebody_come_first() -> None:
    found = {
        name: view(name, state=state) for name, state in zip("abc", PipelineState, strict=False)
    }
    found["d"] = view("d", state=PipelineState.FENCED)
    text = pages.overview(Snapshot(1, NOW_MS, found, ()), NOW_MS)
    assert re.findall(r'href="/pipeline/(\w)"', text)[0] == "d"


class Ledger(LedgerView):
    """A ledger whose cluster does what a test says."""

    failure: Exception | None = None
    state = PipelineState.RUNNING
    unreadable = False

    def looking(self) -> AbstractContextManager[None]:
        return nullcontext()

    def pipelines(self) -> list[str]:
        if self.failure is not None:
            raise self.failure
        return ["p"]

    def entries(self, pipeline: str, limit: int = 100) -> list[LedgerEntry]:
        if self.unreadable:
            raise LedgerUnreadable("damaged", next_step="look")
        return [entry(number) for number in range(3)]

    def statuses(self, pipelines: Iterable[str], known: Any = None) -> list[PipelineStatus]:
        return [
            replace(view(name).status, state=self.state if known[name] else PipelineState.UNKNOWN)
            for name in pipelines
        ]

    def client(self) -> Any:
        raise BrokerUnreachable("away", next_step="wait")


def test_a_cluster_that_is_away_leaves_what_was_known_with_its_age(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ledger: Any = Ledger(None)  # type: ignore[arg-type]
    watcher = Watcher([ledger], 60.0)
    watcher.look()
    known = watcher.snapshot
    assert known.pipelines["p"].status.state is PipelineState.RUNNING
    for failure in (BrokerUnreachable("away", next_step="wait"), RuntimeError("odd")):
        monkeypatch.setattr(Ledger, "failure", failure)
        watcher.look()
        assert watcher.snapshot.pipelines == known.pipelines
        assert watcher.snapshot.taken_at_ms == known.taken_at_ms
        assert str(failure).split(".")[0] in watcher.snapshot.trouble[0]
    monkeypatch.setattr(Ledger, "failure", None)
    monkeypatch.setattr(Ledger, "unreadable", True)
    watcher.look()
    assert watcher.snapshot.pipelines["p"].status.state is PipelineState.UNKNOWN


def test_pipelines_behind_one_that_cannot_be_looked_at_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Ledger, "pipelines", lambda _: ["o", "p", "q"])
    watcher = Watcher([Ledger(None)], 60.0)  # type: ignore[arg-type]
    watcher.look()
    known = watcher.snapshot

    def away(_: Ledger, pipeline: str, limit: int = 100) -> list[LedgerEntry]:
        if pipeline == "p":
            raise BrokerUnreachable("away", next_step="wait")
        return [entry(number) for number in range(3)]

    monkeypatch.setattr(Ledger, "entries", away)
    monkeypatch.setattr(Ledger, "state", PipelineState.IDLE)
    watcher.look()
    found = watcher.snapshot
    assert found.pipelines.keys() == {"o", "p", "q"}
    assert found.pipelines["o"].status.state is PipelineState.IDLE
    assert (found.pipelines["q"], found.taken_at_ms) == (known.pipelines["q"], known.taken_at_ms)


def test_a_pipeline_that_is_retired_goes_though_an_endpoint_of_metrics_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Ledger, "pipelines", lambda _: ["o", "p"])
    away = "http://etl:s3cret@127.0.0.1:1/metrics"
    watcher = Watcher([Ledger(None)], 60.0, [away])  # type: ignore[arg-type]
    watcher.look()
    monkeypatch.setattr(Ledger, "pipelines", lambda _: ["p"])
    watcher.look()
    assert watcher.snapshot.pipelines.keys() == {"p"}
    (trouble,) = watcher.snapshot.trouble
    assert trouble.startswith("http://127.0.0.1:1/metrics has no metrics now")
    assert "s3cret" not in trouble


class Growing(Ledger):
    """A ledger with batches up to a number, the last one in a state."""

    newest = -1
    state = "finished"
    asked = 0

    def entries(self, pipeline: str, limit: int = 100) -> list[LedgerEntry]:
        Growing.asked += limit
        found = [entry(number) for number in range(self.newest + 1)][-limit:]
        return [*found[:-1], *(replace(each, state=self.state) for each in found[-1:])]


def test_a_look_asks_for_what_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    watcher = Watcher([Growing(None)], 60.0)  # type: ignore[arg-type]
    # Nothing yet; one by one; many at once; a chain that begins anew
    numbers = (-1, -1, 0, 0, 1, 1, 1, 4, 90, 400, 3, 5)
    for newest, state in zip(numbers, cycle(["finished", "finished", "decided"]), strict=False):
        monkeypatch.setattr(Growing, "newest", newest)
        monkeypatch.setattr(Growing, "state", state)
        monkeypatch.setattr(Growing, "asked", 0)
        before = watcher.snapshot.pipelines.get("p")
        watcher.look()
        found = watcher.snapshot.pipelines["p"].entries
        sequences = [each.sequence for each in found]
        assert sequences == list(range(newest + 1))[-200:]
        assert not found or found[-1].state == state
        assert {each.state for each in found[:-1]} <= {"finished"}
        if before is not None and before.entries == found and found:
            assert Growing.asked == 1


def test_records_are_read_by_the_thread_and_no_page_waits() -> None:
    watcher = Watcher([Ledger(None)], 60.0)  # type: ignore[arg-type]
    question = RecordQuery(TopicPartition("t", 0), 0)
    assert watcher.ask(question) is None
    assert watcher.ask(question) is None
    watcher.look()
    assert watcher.ask(question) == "away"
    for number in range(100):
        watcher.ask(RecordQuery(TopicPartition("t", 0), number))
        watcher._answer()
    assert len(watcher._answers) == watch._KEPT


@pytest.mark.parametrize(
    ("topic", "asked"),
    [("people", ["theirs"]), ("people-clean", ["ours", "theirs"]), ("new-since", ["theirs"])],
)
def test_records_of_a_source_are_those_of_the_brokers_named_for_the_sources(
    monkeypatch: pytest.MonkeyPatch, topic: str, asked: list[str]
) -> None:
    """Links lead to them, and the ledger's cluster may have a topic of the same name, a copy.
    Others are looked for there first."""
    clusters: list[str] = []

    def read(cluster: str, *_: Any) -> Any:
        clusters.append(cluster)
        if topic == "people-clean" and cluster == "ours":
            raise TopicMissing("not here", next_step="none")
        return excerpt(f"of {cluster}")

    def entries(_: Ledger, pipeline: str, limit: int = 100) -> list[LedgerEntry]:
        reads = (("people",), ("people", "new-since"))
        return [
            replace(
                entry(number), sources=({"start": None, "end": {topic: {"0": 7} for topic in of}},)
            )
            for number, of in enumerate(reads)
        ]

    monkeypatch.setattr(Ledger, "entries", entries)
    monkeypatch.setattr(Ledger, "client", lambda self: "ours")
    monkeypatch.setattr(looks, "_client", lambda arguments: arguments["servers"])
    monkeypatch.setattr(watch, "read_excerpt", read)
    ledger: Any = Ledger(None, sources={"servers": "theirs"})  # type: ignore[arg-type]
    watcher = Watcher([ledger], 60.0)
    watcher.look()
    question = RecordQuery(TopicPartition(topic, 0), 0)
    assert watcher.ask(question) is None
    watcher._answer()
    answer: Any = watcher.ask(question)
    assert (clusters, answer.messages[0].value) == (asked, "of theirs")


def test_a_page_that_is_open_has_what_each_look_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in place of why there was nothing; for nobody nothing is read."""
    reads: list[int] = []

    def read(view: Any, question: RecordQuery) -> Any:
        reads.append(len(reads))
        return excerpt(f"value {reads[-1]}") if reads[-1] != 1 else "away"

    monkeypatch.setattr(watch, "_read_by", read)
    watcher = Watcher([Ledger(None)], 60.0)  # type: ignore[arg-type]
    question = RecordQuery(TopicPartition("t", 0), 0)
    watcher.ask(question)
    found = []
    for _ in range(3):
        watcher.look()
        answer = watcher.ask(question)
        assert answer == watcher.ask(question)
        found.append(answer if isinstance(answer, str) else answer and answer.messages[0].value)
    assert found == ["value 0", "away", "value 2"]
    for _ in range(10):
        watcher.look()
    assert reads == [0, 1, 2, 3]
    assert watcher.ask(question) is None, "what was found long ago is not shown as if it were new"


def test_of_two_ledgers_with_one_pipeline_the_newest_is_shown_and_both_are_told_of() -> None:
    class Older(Ledger):
        def entries(self, pipeline: str, limit: int = 100) -> list[LedgerEntry]:
            return [replace(each, committed_at_ms=1) for each in super().entries(pipeline)]

    for ledgers in ([Older, Ledger], [Ledger, Older]):
        watcher = Watcher([kind(None) for kind in ledgers], 60.0)  # type: ignore[arg-type]
        watcher.look()
        assert watcher.snapshot.pipelines["p"].entries[-1].committed_at_ms > 1
        (line,) = watcher.snapshot.trouble
        assert line == "p is in two ledgers: shown is the one with the newest batch"


def test_metrics_are_taken_apart_by_pipeline() -> None:
    text = """
# HELP onceward_step_seconds Seconds of each step
onceward_step_seconds_bucket{le="0.1",pipeline="p",step="send"} 3.0
onceward_step_seconds_count{pipeline="p",step="send"} 4.0
onceward_step_seconds_sum{pipeline="p",step="send"} 2.5
onceward_step_seconds_count{pipeline="p",step="plan"} 0.0
onceward_aborts_total{pipeline="p",reason="a \\"b\\""} 1.0
onceward_failures_total{error="SendFailed",pipeline="q"} 2.0
onceward_failures_total{error="Fenced",pipeline="q"} 0.0
process_cpu_seconds_total 3.0
"""
    found = measure(text)
    assert found["p"] == Measured({"send": (4.0, 2.5)}, {'a "b"': 1.0})
    assert found["q"].failures == {"SendFailed": 2.0}


WORDS = '"pipeline": "p", "error": "E", "message": "m", "next_step": "n"'


@pytest.mark.parametrize(
    "text",
    [
        "[1]",
        '[{"pipeline": "p"}]',
        "[",
        f'[{{{WORDS}, "at_ms": 1, "batch_id": "7"}}]',
        f'[{{{WORDS}, "at_ms": 1, "batch_id": ""}}]',
    ],
)
def test_what_is_no_list_of_failures_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 — of JSON, and of ours
        last_failures(text)


METRICS = b'onceward_failures_total{error="SendFailed",pipeline="q"} 2.0\n'


@pytest.mark.parametrize(
    ("length", "pieces", "trouble"),
    [
        (len(METRICS), [METRICS], ""),
        (999, [METRICS], "IncompleteRead"),
        (9_999, [b"#"] * 40, "TimeoutError: "),
        (4, [b"{{{\n"], "ValueError"),
    ],
)
def test_an_endpoint_takes_no_more_than_its_time(
    length: int, pieces: list[bytes], trouble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "_SCRAPE_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}/metrics"

        def serve() -> None:
            while True:
                connection, _ = server.accept()
                if not connection.recv(4096).startswith(b"GET /failures"):
                    break
                with connection:
                    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            with connection, suppress(OSError):
                connection.sendall(f"HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n".encode())
                for piece in pieces:
                    connection.sendall(piece)
                    time.sleep(0.05)

        thread = threading.Thread(target=serve)
        thread.start()
        watcher = Watcher([Ledger(None)], 60.0, [address])  # type: ignore[arg-type]
        watcher.look()
        thread.join()
    assert trouble in "".join(watcher.snapshot.trouble)
    assert bool(watcher.snapshot.trouble) == bool(trouble)
    assert "p" in watcher.snapshot.pipelines


def test_endpoints_that_never_answer_are_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "_SCRAPE_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0), backlog=100) as server:
        addresses = [f"http://127.0.0.1:{server.getsockname()[1]}/{n}" for n in range(20)]
        watcher = Watcher([Ledger(None)], 60.0, addresses)  # type: ignore[arg-type]
        began = time.monotonic()
        watcher.look()
    assert time.monotonic() - began < 5
    assert [each.partition(" ")[0] for each in watcher.snapshot.trouble] == addresses


def test_metrics_are_shown_although_failures_are_not_told_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def get(url: str) -> str:
        if url.endswith("/failures"):
            raise TimeoutError("no whole answer within 0.5 s")
        return METRICS.decode()

    monkeypatch.setattr(watch, "_get", get)
    watcher = Watcher([], 60.0, ["http://a:1/metrics"])
    trouble: list[str] = []
    assert watcher._scrape(trouble)["q"].failures == {"SendFailed": 2}
    assert trouble == []


@pytest.mark.parametrize("first", [b"", b"HTTP/1.1 200 OK\r\nX: "], ids=["first line", "header"])
def test_a_header_that_comes_a_byte_at_a_time_ends_in_time(
    first: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stopped the one thread that looks, and pages went on to show what was."""
    monkeypatch.setattr(watch, "_SCRAPE_SECONDS", 0.5)
    with HostileServer([drip(first, b"#")]) as scraped:
        watcher = Watcher([Ledger(None)], 60.0, [f"{scraped.url}/metrics"])  # type: ignore[arg-type]
        watcher.start()
        ends = time.monotonic() + 10
        while not watcher.snapshot.number and time.monotonic() < ends:
            time.sleep(0.02)
        watcher.stop()
    assert "no whole answer within 0.5 s" in "".join(watcher.snapshot.trouble)


def test_another_host_that_an_address_leads_to_is_not_told_the_login() -> None:
    with HostileServer([answer(200, METRICS)]) as other:
        there = f"Location: {other.url.replace('127.0.0.1', 'localhost')}/metrics"
        with HostileServer([answer(302, headers=[there])]) as asked:
            address = asked.url.replace("//", "//user:canary@") + "/metrics"
            assert watch._get(address) == METRICS.decode()
    assert b"Authorization: Basic" in asked.requests[0]
    assert b"Authorization" not in other.requests[0]


def test_a_look_that_fails_is_not_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    watcher = Watcher([], 0.01)
    looks: list[int] = []

    def look() -> None:
        looks.append(1)
        if len(looks) > 2:
            watcher.stop()
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr(watcher, "look", look)
    watcher.start()._thread.join(30)
    assert len(looks) == 3


def test_a_failure_is_told_with_its_cause_and_what_follows() -> None:
    known = Measured(failures={"SendFailed": 2.0, "Fenced": 1.0, "PySparkException": 3.0})
    text = pages.pipeline(replace(view(), measured=known), "failures", NOW_MS)
    for error in (SendFailed, Fenced):
        assert escape((error.__doc__ or "").split("\n")[0].split(". ")[0]) in text
        assert escape(error.recovery.value) in text
    assert "of Spark, or of the job&#x27;s own code" in text
    assert "failures=True" in text


def test_a_driver_tells_the_dashboard_of_its_failures() -> None:
    """Over the wire, with the next step of the error; one of no batch, and a batch's once."""
    made = serve_metrics(0, failures=True)
    ids = {"pipeline": "p", "query_id": "q"}
    lost, away = (kind("gone <b>", next_step="look there") for kind in (SendFailed, TopicMissing))
    try:
        events.announce(events.FAIL, {**ids, "batch_id": 7}, lost)
        events.announce(events.RESTART, ids, lost)
        events.announce(events.RESTART, ids, away)
        watcher = Watcher([Ledger(None)], 60.0, [f"http://127.0.0.1:{made.port}/metrics"])
        ends = time.monotonic() + 10
        measured = None
        # What is told is read before what is counted: the driver may hear one in between
        while measured is None or len(measured.last_failures) < 2:
            assert time.monotonic() < ends
            watcher.look()
            measured = watcher.snapshot.pipelines["p"].measured
    finally:
        made.stop()
    found = [(each.batch_id, each.error) for each in measured.last_failures]
    assert found == [(7, "SendFailed"), (None, "TopicMissing")]
    text = pages.pipeline(replace(view(), measured=measured), "failures", NOW_MS)
    assert "gone &lt;b&gt;" in text
    assert text.count("look there") == 2
    assert not watcher.snapshot.trouble


def test_a_driver_that_tells_of_no_failures_is_asked_in_vain() -> None:
    made = serve_metrics(0)
    try:
        watcher = Watcher([Ledger(None)], 60.0, [f"http://127.0.0.1:{made.port}/metrics"])
        watcher.look()
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://127.0.0.1:{made.port}/failures", timeout=10)
    finally:
        made.stop()
    assert not watcher.snapshot.trouble


def test_a_report_needs_nothing_else() -> None:
    text = pages.report(view(), "svg {}", NOW_MS)
    assert "<style>svg {}</style>" in text
    assert text.count("<polyline") == 2
    assert not re.search(r"<script|<link|src=", text)


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setattr(server, "_LOOK_SECONDS", 0.001)
    return Site(view())


def test_changes_are_told_and_nothing_is_kept_for_a_page_that_goes(stream: Site) -> None:
    async def follow() -> list[str]:
        site = stream.app._site
        changes = site._changes()
        told = [await anext(changes)]
        assert site._streams == 1
        for _ in range(100):
            stream.watcher._publish(stream.watcher.snapshot)
        told.append(await anext(changes))
        told.append(await anext(changes))
        await changes.aclose()
        assert site._streams == 0
        return told

    assert asyncio.run(follow()) == ["data: 1\n\n", "data: 101\n\n", ": still here\n\n"]


def test_no_more_pages_than_can_be_told(stream: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream.app._site, "_streams", 32)
    assert stream.ask("/events")[0] == 503
