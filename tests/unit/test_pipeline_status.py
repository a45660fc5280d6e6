"""The words of ``onceward status``: every rule of ``judge``, and what is shown of them."""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import onceward as ow
from onceward import surroundings
from onceward.cli import app
from onceward.cli.shared import LagOptions, print_table, table
from onceward.cli.status import _entries_since
from onceward.dashboard.watch import Watcher
from onceward.engine.ledger.record import LedgerRecord, Output, RecordState, Writer
from onceward.errors import (
    AccessDenied,
    AuthenticationFailed,
    BrokerUnreachable,
    ConfigurationError,
    OncewardError,
    TopicMissing,
)
from onceward.ids import AttemptId, BatchId, PipelineId, SourceRange
from onceward.kafka.dead_letters.ledger import Replayed, next_record
from onceward.kafka.wire.reads import offsets
from onceward.operate import status
from onceward.operate.status import (
    NEXT_STEPS,
    WELL,
    Evidence,
    LedgerEntry,
    LedgerView,
    OpenTransaction,
    PartitionLag,
    PipelineState,
    judge,
    open_ledger,
)
from support.errors import raises

NOW_MS = 1_700_000_000_000
HERE, THERE = Writer("0.1.0", "here", 1), Writer("0.1.0", "there", 2)
NEWER = HERE._replace(version="0.2.0")


def entry(ago_s: float, writer: Writer | None = HERE, read: int = 10) -> LedgerEntry:
    return LedgerEntry(
        "p", 0, "q", 0, NOW_MS - int(ago_s * 1000), 10, read, 1, 0, "finished", 5, writer, (), {}
    )


def transaction(state: str = "Ongoing", age_s: float | None = 1.0) -> OpenTransaction:
    return OpenTransaction("p", 1, 0, state, age_s, 60_000, 3)


ENDED, TAKEN, ABORTED = (
    transaction(state, None) for state in ("CompleteCommit", "Empty", "CompleteAbort")
)


def word(*entries: LedgerEntry, **evidence: Any) -> PipelineState:
    return judge(Evidence(entries, NOW_MS, **evidence))[0]


@pytest.mark.parametrize(
    ("entries", "evidence", "expected"),
    [
        ((), {}, "unknown"),
        ((), {"transaction": transaction()}, "running"),
        ((), {"transaction": TAKEN}, "unknown"),
        ((entry(5),), {"transaction": ENDED, "lag": 0}, "running"),
        ((entry(5),), {"lag": None}, "running"),
        ((entry(500),), {"transaction": transaction(), "lag": 5}, "running"),
        ((entry(5),), {"transaction": ENDED, "lag": 31}, "catching up"),
        ((entry(5),), {"transaction": ENDED, "lag": 30}, "running"),
        ((entry(5, read=0),), {"transaction": ENDED, "lag": 31}, "running"),
        ((entry(100),), {"transaction": ENDED, "lag": 0}, "idle"),
        ((entry(100),), {"transaction": TAKEN, "lag": 0}, "idle"),
        ((entry(100),), {"transaction": ENDED, "lag": 1}, "stopped"),
        ((entry(100),), {"transaction": None, "lag": 1}, "stopped"),
        ((entry(100),), {"transaction": TAKEN, "lag": 1}, "restarting"),
        ((entry(100),), {"transaction": ABORTED, "lag": 1}, "restarting"),
        ((entry(100),), {"transaction": ENDED, "lag": None}, "unknown"),
        # by a driver's clock that is ahead; one minute is nobody's
        ((entry(-50),), {"transaction": ENDED, "lag": 5}, "running"),
        ((entry(-3600),), {"transaction": ENDED, "lag": 5}, "unknown"),
        ((entry(-3600),), {"transaction": ENDED, "lag": 500}, "unknown"),
        ((entry(-3600),), {"transaction": ENDED, "lag": 0}, "idle"),
        ((entry(-3600),), {"transaction": transaction(), "lag": 5}, "running"),
        ((entry(-3600),), {"transaction": ABORTED, "lag": 1}, "restarting"),
        # an open transaction would show a batch that takes long
        ((entry(100),), {"coordinator_answers": False, "lag": 1}, "unknown"),
        # five of its usual intervals are more than a minute
        ((entry(140), entry(100)), {"transaction": ENDED, "lag": 1}, "running"),
        ((entry(250), entry(210)), {"transaction": ENDED, "lag": 1}, "stopped"),
        # open for more than half of 60 s
        ((entry(5),), {"transaction": transaction(age_s=31)}, "stuck"),
        ((entry(5),), {"transaction": transaction(age_s=29)}, "running"),
        ((entry(5),), {"transaction": transaction("PrepareCommit", 61)}, "stuck"),
        ((entry(9), entry(5, THERE)), {"transaction": ENDED}, "running"),
        # A failover, there and back; and an upgrade that was rolled back
        ((entry(9), entry(7, THERE), entry(5)), {"transaction": ENDED}, "running"),
        (
            (entry(9), entry(7, NEWER), entry(5), entry(4, NEWER)),
            {"transaction": ENDED},
            "running",
        ),
        (
            (entry(9), entry(7, THERE), entry(6), entry(5, THERE)),
            {"transaction": ENDED},
            "fenced",
        ),
        # A container whose job is started anew within it, and which is started anew itself
        (
            (
                entry(9),
                entry(8, THERE),
                entry(7),
                entry(6, THERE._replace(process_id=3)),
                entry(5),
            ),
            {"transaction": ENDED},
            "running",
        ),
        ((entry(9), entry(7, None), entry(5)), {"transaction": ENDED}, "running"),
    ],
)
def test_each_word_has_its_rule(
    entries: tuple[LedgerEntry, ...], evidence: dict[str, Any], expected: str
) -> None:
    assert word(*entries, **evidence).value == expected


def test_a_replay_of_dead_letters_that_has_ended_is_well() -> None:
    record = next_record(
        None,
        Replayed(),
        topic="letters",
        topic_id="id",
        attempt=AttemptId(7, 0),
        run_id="r",
        output=Output("kafka", 1, 3, {"replayed": {"0": (3, 0, 2, "x")}}),
    )
    once = LedgerEntry.from_record(replace(record, committed_at_ms=NOW_MS - 3_600_000))
    assert once.is_replay
    assert word(once, transaction=ENDED) is PipelineState.IDLE
    assert word(once, coordinator_answers=False) is PipelineState.IDLE
    assert word(once, transaction=transaction()) is PipelineState.RUNNING
    assert word(once, transaction=transaction(age_s=31)) is PipelineState.STUCK
    # A topic may have that name
    source = {"start": None, "end": {"replayed": {"0": 5}}, "identity": None}
    assert not replace(once, sources=(source,)).is_replay


@pytest.mark.parametrize(("later", "expected"), [(ENDED, "running"), (None, "stuck")])
def test_a_long_batch_that_is_being_committed_is_not_stuck(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    later: OpenTransaction | None,
    expected: str,
) -> None:
    """A coordinator says when the transaction began, and not since when it is in PrepareCommit."""
    ending = transaction("PrepareCommit", 61)
    looks = iter([ending, later or ending])
    monkeypatch.setattr(status, "_transaction", lambda *_: next(looks))
    monkeypatch.setattr(LedgerView, "client", lambda _: object())
    monkeypatch.setattr(status, "_lag", lambda *_: [])
    monkeypatch.setattr(surroundings, "sleep", lambda _: None)
    monkeypatch.setattr(surroundings, "wall_clock_ns", lambda: (NOW_MS + 5_000) * 1_000_000)
    view = replace(open_ledger(path=folder), has_coordinator=True)
    assert view.status("second").state.value == expected


def test_every_word_that_is_not_well_has_a_next_step() -> None:
    assert set(NEXT_STEPS) == {state.value for state in PipelineState if state not in WELL}


def fill(
    folder: Path, name: str, batches: int, query: str = "q", decided: int = 0, end: Any = None
) -> None:
    """Put batches into a ledger, of which each is ``decided`` so often before it is finished."""
    chain = ow.FolderLedger(folder).chain(PipelineId(name))
    newest = chain.take()
    for number in range(batches):
        kafka_end = {"in": {"0": number * 10 + 10}}
        source = SourceRange({"in": {"0": number * 10}}, end or kafka_end)
        record = LedgerRecord(
            PipelineId(name), number, BatchId(query, number), (source,), chain.begin(newest), {},
            NOW_MS + number * (600_000 if decided else 1), writer=HERE,
        )  # fmt: skip
        for _ in range(decided):
            chain.append(replace(record, state=RecordState.DECIDED))
        chain.append(record)
        newest = record


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A ledger of two pipelines in a folder; the second has three batches."""
    fill(tmp_path, "first", 1)
    fill(tmp_path, "second", 3)
    return tmp_path


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, arguments, catch_exceptions=False)


def test_batches_that_come_between_two_looks_are_printed_however_many(folder: Path) -> None:
    # A command line makes a Path of it
    view = open_ledger(path=Path(f"file://{folder}"))
    printed = [None, *view.entries("second")]
    for known, last in enumerate(printed):
        found, is_the_same = _entries_since(view, "second", last)
        assert [each.sequence for each in found] == list(range(known, 3))
        assert is_the_same


@pytest.mark.parametrize("decided", [1, 7])
def test_a_batch_with_more_records_than_one_is_one_batch(tmp_path: Path, decided: int) -> None:
    """Of sinks that publish behind the decision: files, lakes, stores."""
    fill(tmp_path, "files", 30, decided=decided)
    view = open_ledger(path=tmp_path)
    entries = view.entries("files", 20)
    assert [each.sequence for each in entries] == list(range(10, 30))
    assert {each.state for each in entries} == {"finished"}
    assert len(view.entries("files")) == 30
    found, is_the_same = _entries_since(view, "files", entries[0])
    assert is_the_same
    assert [each.sequence for each in found] == list(range(11, 30))
    now_ms = entries[-1].committed_at_ms + 90_000
    assert judge(Evidence(entries, now_ms, lag=5))[0] is PipelineState.RUNNING


@pytest.mark.parametrize("batches", [1, 3, 5])
def test_a_ledger_that_begins_anew_is_followed_and_said_to(
    folder: Path, batches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shorter than the one before, as long, or longer by the time of the look."""

    def begin_anew(seconds: float) -> None:
        if not (folder / "second" / "gone").exists():
            shutil.rmtree(folder / "second")
            fill(folder, "second", batches, query="another")
            (folder / "second" / "gone").touch()
        else:
            raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", begin_anew)
    done = run("ledger", "tail", "--ledger-path", str(folder), "--pipeline-id", "second")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(each["query_id"], each["sequence"]) for each in lines] == [
        ("q", 2), *(("another", number) for number in range(batches))
    ]  # fmt: skip
    assert done.stderr.splitlines()[0] == (
        "the ledger has begun anew, or an older copy was put back"
    )


def test_a_tail_of_a_pipeline_that_has_no_batch_says_so_and_waits(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = iter(range(2))

    def come_later(seconds: float) -> None:
        if next(looks, None) is None:
            raise KeyboardInterrupt
        fill(folder, "mistyped", 1)

    monkeypatch.setattr(time, "sleep", come_later)
    done = run("ledger", "tail", "--ledger-path", str(folder), "--pipeline-id", "mistyped")
    assert [json.loads(line)["sequence"] for line in done.stdout.splitlines()] == [0]
    assert done.stderr.startswith("the ledger has no batch of mistyped. Next: ")


def test_a_tail_goes_on_behind_a_look_that_failed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As brokers that are started anew one after the other, which `--watch` outlives, too."""
    newest = open_ledger(path=folder).entries("second", 1)[0]
    away = BrokerUnreachable("no broker answers", next_step="wait")
    looks: Iterator[Any] = iter([away, [replace(newest, sequence=3)], KeyboardInterrupt()])

    def look(*_: Any) -> tuple[list[LedgerEntry], bool]:
        found = next(looks)
        if isinstance(found, BaseException):
            raise found
        return found, True

    monkeypatch.setattr(sys.modules["onceward.cli.status"], "_entries_since", look)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    done = run("ledger", "tail", "--ledger-path", str(folder), "--pipeline-id", "second")
    assert "BrokerUnreachable: no broker answers" in done.stderr
    assert [json.loads(line)["sequence"] for line in done.stdout.splitlines()] == [2, 3]


def test_a_look_logs_in_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ledger in a database keeps its session for a look, and opens another one for the next."""
    fill(tmp_path, "files", 30, decided=7)
    logins: list[str] = []
    depth = 0

    @contextmanager
    def looking(ledger: ow.FolderLedger) -> Iterator[None]:
        nonlocal depth
        logins.extend([""] * (depth == 0))
        depth += 1
        try:
            yield
        finally:
            depth -= 1

    def recent(ledger: ow.FolderLedger, *arguments: Any) -> list[LedgerRecord]:
        with looking(ledger):
            return as_it_is(ledger, *arguments)

    as_it_is = ow.FolderLedger.recent
    monkeypatch.setattr(ow.FolderLedger, "looking", looking)
    monkeypatch.setattr(ow.FolderLedger, "recent", recent)
    where = ["--ledger-path", str(tmp_path), "--pipeline-id", "files"]
    monkeypatch.setattr(status, "_client", lambda arguments: None)
    lag = ["lag", "--bootstrap-servers", "here:1"]
    for command in (lag, ["ledger", "show"], ["ledger", "export", "--limit", "3"]):
        logins.clear()
        assert run(*command, *where).exit_code == 0
        assert len(logins) == 1, command

    def come_later(seconds: float) -> None:
        if len(logins) > 1:
            raise KeyboardInterrupt
        fill(tmp_path, "files", 1, query="another")

    monkeypatch.setattr(time, "sleep", come_later)
    logins.clear()
    run("ledger", "tail", *where)
    assert len(logins) == 2


def test_a_folder_that_is_not_there_is_no_empty_ledger(tmp_path: Path) -> None:
    for command in (["status", "--ledger-path"], ["savepoint", "list"]):
        result = run(*command, str(tmp_path / "misspelt"))
        assert result.exit_code == 64, result.output
        assert "there is no folder" in result.output


def test_what_others_wrote_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    rows = table("TRANSACTIONAL ID")
    for name in ("orders[eu]-0", "sink[/a]", "with \x1b[31m colour"):
        rows.add_row(name)
    print_table(rows)
    printed = capsys.readouterr().out
    assert "orders[eu]-0" in printed
    assert "sink[/a]" in printed
    assert "\x1b" not in printed


def test_a_pipeline_that_was_given_up_is_left_out(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whoever names those that are to run forgets the next one."""
    where = ("status", "--ledger-path", str(folder), "--json", "--except", "first")
    assert [each["pipeline_id"] for each in json.loads(run(*where).stdout)] == ["second"]
    done = run(*where, "--except", "second")
    assert (json.loads(done.stdout), done.exit_code) == ([], 1)
    assert "--except leaves out each pipeline" in done.stderr
    assert "--except" in run(*where, "--pipeline-id", "first").stderr
    empty = tmp_path_factory.mktemp("empty")
    nothing = run("status", "--ledger-path", str(empty), "--except", "first")
    assert "the ledger has no pipeline" in nothing.stderr


def test_a_folder_is_read_without_a_broker(folder: Path) -> None:
    view = open_ledger(path=folder)
    assert view.pipelines() == ["first", "second"]
    entries = view.entries("second", 2)
    assert [(each.sequence, each.read, each.writer) for each in entries] == [
        (1, 10, HERE), (2, 10, HERE),
    ]  # fmt: skip
    assert view.lag("second") == []
    assert view.transaction("second") is None
    found = view.status("second")
    assert (found.state, found.lag, found.is_well) == (PipelineState.UNKNOWN, None, False)


def test_status_as_json_has_every_field_and_says_by_its_status_that_one_is_not_well(
    folder: Path,
) -> None:
    done = run("status", "--ledger-path", str(folder), "--json")
    assert done.exit_code == 1
    first, second = json.loads(done.stdout)
    assert set(first) == {
        "pipeline_id", "state", "reason", "newest", "age_s", "lag", "partitions", "transaction",
        "trouble",
    }  # fmt: skip
    assert second["newest"]["batch_id"] == 2
    assert second["newest"]["writer"] == {"version": "0.1.0", "host": "here", "process_id": 1}


@pytest.mark.parametrize("form", ["--json", None])
def test_who_watches_through_a_pipe_is_given_each_look(
    folder: Path, monkeypatch: pytest.MonkeyPatch, form: str | None
) -> None:
    looks = iter([None])

    def until_the_second(_: float) -> None:
        if next(looks, "over") is not None:
            raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", until_the_second)
    chosen = [form] if form else []
    done = run("status", "--ledger-path", str(folder), "--watch", *chosen)
    if form:
        one, other = map(json.loads, done.stdout.splitlines())
        assert [each["pipeline_id"] for each in one] == ["first", "second"]
        assert len(other) == 2
    else:
        assert done.stdout.count("here, process 1") == 4
        assert done.stderr.count("first, second: not asked: its lag: ") == 2


def test_a_terminal_that_is_watched_obeys_nothing_of_a_trouble_or_an_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does rich take it for markup, on some of which (`[/x]`) it ended."""
    error = BrokerUnreachable("away [/x] \x1b[2J", next_step="see \x9b2J")

    def over(_: float) -> None:
        raise KeyboardInterrupt

    def away(*_: object) -> list[str]:
        raise error

    monkeypatch.setattr(sys.modules["onceward.cli.status"], "is_terminal", lambda: True)
    monkeypatch.setattr(time, "sleep", over)
    monkeypatch.setattr(status, "_NO_BROKERS", "its lag: [/y] \x1b[2J")
    watch = ["status", "--ledger-path", str(folder), "--watch"]
    assert "not asked: its lag: [/y] \\x1b[2J" in run(*watch).output
    monkeypatch.setattr(LedgerView, "pipelines", away)
    assert "away [/x] \\x1b[2J" in run(*watch).output


def test_the_table_names_pipeline_word_and_owner_and_the_next_step(folder: Path) -> None:
    done = run("status", "--ledger-path", str(folder), "--pipeline-id", "second")
    assert "second" in done.stdout
    assert "first" not in done.stdout
    assert "unknown" in done.stdout
    assert "here, process 1, onceward 0.1.0" in done.stdout
    assert "Next: see to what could not be asked." in done.stdout
    assert "second: not asked: its lag: no brokers of its sources are named. Next: " in done.stderr
    fill(folder, "no-kafka", 1, end={"position": 7})
    done = run("status", "--ledger-path", str(folder), "--pipeline-id", "no-kafka")
    assert f"Next: {NEXT_STEPS['unknown']}." in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize("command", ["status", "lag"])
def test_a_source_on_another_cluster_has_a_lag_where_that_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """And a word without: what is of the ledger's own cluster is asked for there."""

    def lag(brokers: Any, newest: LedgerEntry) -> list[PartitionLag]:
        if brokers != ("here:1" if newest.pipeline_id == "first" else "there:1"):
            raise status._another("in")
        return [PartitionLag("in", 0, 10, 17)]

    monkeypatch.setattr(status, "_client", lambda arguments: arguments["bootstrap_servers"])
    monkeypatch.setattr(status, "_lag", lag)
    where = ["--ledger-path", str(folder), "--bootstrap-servers", "here:1", "--json"]
    elsewhere = ["--source-bootstrap-servers", "there:1"]
    if command == "status":
        found = json.loads(run("status", *where, *elsewhere).stdout)
        assert [(each["lag"], each["trouble"]) for each in found] == [(7, []), (7, [])]
        found = json.loads(run("status", *where).stdout)
        assert [each["lag"] for each in found] == [7, None]
        assert "name that one's brokers (--source-bootstrap-servers)" in found[1]["trouble"][0]
        return
    where += ["--pipeline-id", "second"]
    alone = [*where[:2], *where[4:], *elsewhere]
    assert json.loads(run("lag", *alone).stdout)[0]["lag"] == 7
    nobody = run("lag", *where[:2], *where[4:])
    assert (nobody.exit_code, "add --bootstrap-servers" in nobody.stderr) == (64, True)
    assert json.loads(run("lag", *where, *elsewhere).stdout)[0]["lag"] == 7
    refused = run("lag", *where)
    assert refused.exit_code
    assert "--source-bootstrap-servers" in refused.output


def test_the_login_of_the_sources_cluster_is_that_of_the_ledgers_unless_it_is_named(
    folder: Path, tmp_path: Path
) -> None:
    ours, theirs = tmp_path / "ours.properties", tmp_path / "theirs.properties"
    ours.write_text("security.protocol=SSL\n")
    theirs.write_text("security.protocol=PLAINTEXT\n")
    at = LagOptions(
        bootstrap_servers="here:1",
        command_config=ours,
        ledger_path=folder,
        source_bootstrap_servers="there:1",
    )
    for login, protocol in ((None, "SSL"), (theirs, "PLAINTEXT")):
        view = replace(at, source_command_config=login).view()
        options = {"security.protocol": protocol}
        assert view.sources == {"bootstrap_servers": "there:1", "options": options}
        assert view.kafka is not None
        assert view.kafka["options"] == {"security.protocol": "SSL"}


@pytest.mark.parametrize(
    ("there", "here", "says"),
    [
        (7, 0, 7),
        (AccessDenied("in: no", next_step="a"), 7, 7),
        (TopicMissing("in: none", next_step="a"), 7, 7),
        (7, AccessDenied("in: no", next_step="a"), 7),
        (
            TopicMissing("in: none", next_step="a"),
            AccessDenied("in: denied", next_step="a"),
            "in: denied",
        ),
        (
            AccessDenied("in: denied", next_step="a"),
            TopicMissing("in: none", next_step="a"),
            "in: denied",
        ),
        (BrokerUnreachable("away", next_step="a"), 0, "away"),
    ],
)
def test_the_cluster_that_is_named_for_the_sources_is_asked_first(
    folder: Path, monkeypatch: pytest.MonkeyPatch, there: Any, here: Any, says: int | str
) -> None:
    """On the ledger's, a topic of the same name may be the copy that the pipeline makes; and its
    ACLs do not say whether there is one."""

    def lag(brokers: str, _: LedgerEntry) -> list[PartitionLag]:
        found = {"there:1": there, "here:1": here}[brokers]
        if isinstance(found, Exception):
            raise found
        return [PartitionLag("in", 0, 10, 10 + found)]

    monkeypatch.setattr(status, "_client", lambda arguments: arguments["bootstrap_servers"])
    monkeypatch.setattr(status, "_lag", lag)
    view = open_ledger(path=folder, bootstrap_servers="here:1", source_servers="there:1")
    found = view.status("first")
    if isinstance(says, int):
        assert (found.lag, found.trouble) == (says, ())
    else:
        assert found.lag is None
        assert says in found.trouble[0]


BOTH = (
    {"start": None, "end": {"a": {"0": 10}, "t": {"0": 10}}, "identity": {"t": "of 1"}},
    {"start": None, "end": {"b": {"0": 10}, "t": {"0": 20}}, "identity": {"t": "of 2"}},
)


@pytest.mark.parametrize(
    ("servers", "shown", "lag"),
    [("there:1", [("a", 1), ("t", 1), ("b", 2), ("t", 2)], 6), (None, [("b", 2), ("t", 2)], None)],
)
def test_sources_of_one_query_on_two_clusters_have_their_lags(
    folder: Path, monkeypatch: pytest.MonkeyPatch, servers: str | None, shown: Any, lag: Any
) -> None:
    """Also where both have a topic of one name; what cannot be asked for is named beside them."""

    def client(at: Any) -> Any:
        lag, topics = (2, "bt") if at["bootstrap_servers"] == "here:1" else (1, "at")

        def ids(names: set[str], **_: Any) -> dict[str, str]:
            if names - set(topics):
                raise TopicMissing("none", next_step="a")
            return dict.fromkeys(names, f"of {lag}")

        partitions = lambda names, **_: {name: {0: 1} for name in names}  # noqa: E731
        return SimpleNamespace(topic_ids=ids, topic_partitions=partitions, lag=lag)

    def ends(client: Any, places: Any, *_: Any, **__: Any) -> Any:
        return {where: offset + client.lag for where, offset in places.items()}

    newest = replace(entry(5), sources=BOTH)
    monkeypatch.setattr(status, "_client", client)
    monkeypatch.setattr(offsets, "list_offsets", ends)
    monkeypatch.setattr(LedgerView, "entries", lambda *_: [newest])
    at = ["--ledger-path", str(folder), "--bootstrap-servers", "here:1"]
    at += ["--source-bootstrap-servers", servers] if servers else []
    (found,) = json.loads(run("status", *at, "--pipeline-id", "first", "--json").stdout)
    assert [(each["topic"], each["lag"]) for each in found["partitions"]] == shown
    assert (found["lag"], len(found["trouble"])) == (lag, lag is None)
    done = run("lag", *at, "--pipeline-id", "first", "--json")
    assert json.loads(done.stdout) == found["partitions"]
    assert ("TopicMissing" in done.stderr, done.exit_code) == ((lag is None), lag is None)
    in_words = run("lag", *at, "--pipeline-id", "first").stdout
    assert ("not in all" in in_words, "offsets in" in in_words) == (lag is None, True)


@pytest.mark.parametrize(
    ("away", "ids", "shown"),
    [
        ("there:1", True, ["b"]),
        ("here:1", True, ["a"]),
        # Which cluster's topic it is, nothing tells then
        ("there:1", False, []),
        ("here:1", False, ["a"]),
    ],
)
@pytest.mark.parametrize("refused", [BrokerUnreachable, AuthenticationFailed])
def test_a_cluster_that_is_away_does_not_hide_the_lag_on_the_other(
    monkeypatch: pytest.MonkeyPatch,
    away: str,
    ids: bool,
    shown: list[str],
    refused: type[OncewardError],
) -> None:
    asked: list[str] = []

    def client(at: Any) -> Any:
        asked.append(at["bootstrap_servers"])
        if asked[-1] == away:
            raise refused(f"{away} says nothing", next_step="a")
        return "a" if asked[-1] == "there:1" else "b"

    def lag(topic: str, batch: LedgerEntry) -> list[PartitionLag]:
        if {where.topic for where in batch.kafka_offsets} != {topic}:
            raise TopicMissing("another's", next_step="a")
        return [PartitionLag(topic, 0, 10, 11)]

    sources = tuple(
        {"start": None, "end": {topic: {"0": 10}}, "identity": {topic: "1"} if ids else None}
        for topic in "ab"
    )
    monkeypatch.setattr(status, "_client", client)
    monkeypatch.setattr(status, "_lag", lag)
    kafka, of_sources = ({"bootstrap_servers": each} for each in ("here:1", "there:1"))
    view = LedgerView(ow.FolderLedger("/none"), kafka, sources=of_sources)
    found, why = view.lag_behind(replace(entry(5), sources=sources))
    assert ([each.topic for each in found], str(why)[: len(away)]) == (shown, away)
    assert asked.count(away) == 1, "it is waited for once"


def test_a_source_beside_kafkas_has_whatever_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any JSON: what is not understood hides no pipeline."""
    monkeypatch.setattr(offsets, "list_offsets", lambda _, places, *__, **___: places)
    client: Any = SimpleNamespace(
        topic_ids=lambda names, **_: dict.fromkeys(names, "of 1"),
        topic_partitions=lambda names, **_: {name: {0: 1} for name in names},
    )
    another = {"start": None, "end": "its own", "identity": {"whatever": ["it", "says"]}}
    newest = replace(entry(5), sources=(BOTH[0], another))
    assert [each.lag for each in status._lag(client, newest)] == [0, 0]


def test_options_of_the_sources_cluster_are_those_of_commands_that_ask_it(folder: Path) -> None:
    """The others took them without effect."""
    taking = {
        path for path, name, _ in options_of(typer.main.get_command(app)) if "source-boot" in name
    }
    assert taking == {"status", "lag", "dashboard", "report"}
    with raises(ConfigurationError, "add --source-bootstrap-servers"):
        LagOptions(ledger_path=folder, source_command_config=folder / "c.properties").view()


@pytest.mark.parametrize(
    "refused",
    [
        BrokerUnreachable("no broker answers", next_step="see that brokers run"),
        AuthenticationFailed("the login is refused", next_step="see that brokers run"),
    ],
    ids=["silent", "login"],
)
def test_brokers_that_are_away_are_waited_for_once_and_named_with_the_step_that_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: OncewardError
) -> None:
    """Fifty pipelines took five minutes, one after the other; and ids were to be spelt right."""
    for number in range(10):
        fill(tmp_path, f"p{number}", 1)

    together = threading.Barrier(10)

    def away(*_: Any) -> Any:
        # One after the other, the first would wait for nobody
        together.wait(30)
        raise refused

    monkeypatch.setattr(status, "_lag", away)
    monkeypatch.setattr(LedgerView, "client", lambda _: object())
    done = run("status", "--ledger-path", str(tmp_path))
    assert f"p9: not asked: {refused}" in done.stderr
    assert done.stdout.count("Next: see to what could not be asked.") == 10
    watcher = Watcher([open_ledger(path=tmp_path)], 60.0)
    watcher.look()
    assert watcher.snapshot.pipelines["p9"].status.trouble == (str(refused),)


def test_all_pipelines_are_read_in_one_look(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a ledger in a database a look is a log-in: fifty pipelines were fifty."""
    heard: list[str] = []

    @contextmanager
    def looking(_: LedgerView) -> Iterator[None]:
        if heard and heard[-1] != "end":
            yield
            return
        heard.append("look")
        yield
        heard.append("end")

    read = LedgerView.entries
    monkeypatch.setattr(LedgerView, "looking", looking)
    monkeypatch.setattr(
        LedgerView,
        "entries",
        lambda view, name, limit: heard.append(name) or read(view, name, limit),
    )
    assert len(open_ledger(path=folder).statuses(["first", "second"])) == 2
    assert heard == ["look", "first", "second", "end"]


def test_a_record_that_cannot_be_read_hides_no_other_pipeline(folder: Path) -> None:
    newest = max(path for path in (folder / "first").rglob("*") if path.is_file())
    newest.write_text("no record")
    first, second = json.loads(run("status", "--ledger-path", str(folder), "--json").stdout)
    assert (first["state"], first["newest"]) == ("unknown", None)
    assert "cannot be read" in first["reason"]
    assert first["trouble"]
    assert second["newest"]["batch_id"] == 2


@pytest.mark.parametrize("denied", ["its folder", "its entries"])
def test_a_pipeline_that_this_login_may_not_read_is_shown_and_hides_no_other(
    folder: Path, denied: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As root may all, the system's calls refuse; a service with UMask=0077 makes such folders."""
    listdir, read_bytes = os.listdir, Path.read_bytes

    def refused(path: Any) -> None:
        if "first" in str(path):
            raise PermissionError(13, "Permission denied", str(path))

    def listed(path: Any = ".") -> list[str]:
        if denied == "its folder":
            refused(path)
        return listdir(path)

    def read(path: Path) -> bytes:
        refused(path)
        return read_bytes(path)

    monkeypatch.setattr(os, "listdir", listed)
    monkeypatch.setattr(Path, "read_bytes", read)
    done = run("status", "--ledger-path", str(folder), "--json")
    first, second = json.loads(done.stdout)
    assert (first["pipeline_id"], first["state"]) == ("first", "unknown")
    assert "Permission denied" in first["trouble"][0]
    assert second["newest"]["batch_id"] == 2
    watcher = Watcher([open_ledger(path=folder)], 60.0)
    watcher.look()
    assert list(watcher.snapshot.pipelines) == ["first", "second"]


def test_what_is_no_pipelines_name_hides_none_and_is_named_once(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As a copy that somebody made beside a pipeline's folder."""
    shutil.copytree(folder / "second", folder / "second (copy)")
    found = json.loads(run("status", "--ledger-path", str(folder), "--json").stdout)
    assert [each["pipeline_id"] for each in found] == ["first", "second"]
    (line,) = caplog.messages
    assert "no pipeline's name: ['second (copy)']" in line
    caplog.clear()
    watcher = Watcher([open_ledger(path=folder)], 60.0)
    for _ in range(2):
        watcher.look()
        assert list(watcher.snapshot.pipelines) == ["first", "second"]
        assert watcher.snapshot.trouble == ()
    assert len(caplog.messages) == 1


def test_the_shell_may_name_the_ledger(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCEWARD_LEDGER_PATH", str(folder))
    assert "second" in run("status", "--pipeline-id", "second").stdout


def test_the_command_line_names_the_ledger_whatever_the_shell_does(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic was passed over in silence, and the folder shown."""
    monkeypatch.setenv("ONCEWARD_LEDGER_URL", "postgresql://127.0.0.1:1/none")
    monkeypatch.setenv("ONCEWARD_LEDGER_TOPIC", "other")
    where = ("--ledger-path", str(folder))
    assert "second" in run("status", *where, "--pipeline-id", "second").stdout
    both = run("status", *where, "--ledger-topic", "team")
    assert both.exit_code == 64
    assert "leave out --ledger-topic or --ledger-path" in both.output
    monkeypatch.setenv("ONCEWARD_LEDGER_PATH", str(folder))
    assert "the shell names two ledgers" in run("status").output
    monkeypatch.delenv("ONCEWARD_LEDGER_URL")
    assert "no ledger is named" in run("status", "--ledger-topic", "team").output


def options_of(command: Any, path: str = "") -> Iterator[tuple[str, str, Any]]:
    """Each option of this package's commands: command, name, and the variable that stands for
    it."""
    for parameter in command.params:
        for name in parameter.opts:
            yield path, name, parameter.envvar
    for name, each in getattr(command, "commands", {}).items():
        yield from options_of(each, f"{path} {name}".strip())


def test_what_the_shell_names_is_heard_by_every_command_that_takes_it() -> None:
    """Letters that were replayed by the one ledger topic would be fed back again by another."""
    variables = {
        "--source-bootstrap-servers": "ONCEWARD_SOURCE_BOOTSTRAP_SERVERS",
        "--source-command-config": "ONCEWARD_SOURCE_COMMAND_CONFIG",
        "--bootstrap-servers": "ONCEWARD_BOOTSTRAP_SERVERS",
        "--command-config": "ONCEWARD_COMMAND_CONFIG",
        "--ledger-topic": "ONCEWARD_LEDGER_TOPIC",
    }
    found = list(options_of(typer.main.get_command(app)))
    assert ("dead-letters replay", "--ledger-topic", "ONCEWARD_LEDGER_TOPIC") in found
    assert [each for each in found if variables.get(each[1], each[2]) != each[2]] == []


def test_the_ledger_is_shown_and_exported(folder: Path) -> None:
    where = ("--ledger-path", str(folder), "--pipeline-id", "second")
    shown = run("ledger", "show", *where, "--limit", "2")
    assert "2023-11-14 22:13:20Z" in shown.stdout
    assert len(shown.stdout.splitlines()) >= 4
    exported = [json.loads(line) for line in run("ledger", "export", *where).stdout.splitlines()]
    assert [each["sequence"] for each in exported] == [0, 1, 2]


def test_one_ledger_is_to_be_named() -> None:
    with raises(ConfigurationError):
        open_ledger()
    with raises(ConfigurationError):
        open_ledger(path="here", url="postgresql://db/x")
    assert run("status").exit_code == 64
    both = run("status", "--ledger-path", "x", "--all", "--pipeline-id", "p")
    assert both.exit_code == 64


def test_lag_is_never_below_nothing() -> None:
    assert PartitionLag("t", 0, 10, 7).lag == 0
    assert replace(PartitionLag("t", 0, 10, 7), last_stable_offset=12).lag == 2
