"""The kits of the examples of sources: where their rows come from, and who counts them."""

from __future__ import annotations

import http.server
import importlib.util
import itertools
import json
import sys
import threading
import urllib.parse
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import psycopg
from pyspark import cloudpickle

from onceward import ResettableSource
from onceward_testing.source_contract import SourceKit

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def example(name: str) -> ModuleType:
    """One of the examples, which Spark's processes need not find: it is pickled by value."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    cloudpickle.register_pickle_by_value(module)
    return module


class EventsServer(http.server.ThreadingHTTPServer):
    """A log of events over HTTP. Of its answers each seventh fails: with 503, cut in the middle,
    or too late.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.events: list[dict[str, Any]] = []
        self.log = str(uuid.uuid4())
        self.failing = True
        self.refusing = False
        self.asked = 0
        self.failed: dict[str, int] = {}
        self.over = threading.Event()
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def add(self, count: int) -> None:
        first = len(self.events)
        self.events += [
            {"id": n, "kind": "sale" if n % 3 else "refund", "cents": n * 7}
            for n in range(first, first + count)
        ]

    def next_failure(self) -> str | None:
        with self.lock:
            self.asked += 1
            if not self.failing or self.asked % 7:
                return None
            failure = ("503", "cut", "late")[self.asked // 7 % 3]
            self.failed[failure] = self.failed.get(failure, 0) + 1
            return failure

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has given up is no news."""


class _Handler(http.server.BaseHTTPRequestHandler):
    server: EventsServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        asked = dict(urllib.parse.parse_qsl(query))
        failure = self.server.next_failure()
        if self.server.refusing:
            return self.answer({"error": "who are you?"}, status=401)
        if failure == "503":
            return self.answer({"error": "try again"}, status=503)
        if failure == "late":
            self.server.over.wait(60)
            self.close_connection = True
            return None
        if path == "/log":
            return self.answer({"id": self.server.log}, cut=failure == "cut")
        after = asked.get("after")
        begin = 0 if after is None else int(after.removeprefix("cursor-"))
        events = self.server.events[begin : begin + int(asked["limit"])]
        following = f"cursor-{begin + len(events)}" if events else after
        return self.answer({"events": events, "next": following}, cut=failure == "cut")

    def answer(self, value: object, *, status: int = 200, cut: bool = False) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if cut else body)
        self.close_connection = cut

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing: the log is for what goes wrong."""


@contextmanager
def events_server() -> Iterator[EventsServer]:
    """A server of this process, and its thread."""
    server = EventsServer()
    thread = threading.Thread(
        target=server.serve_forever, args=(0.05,), name="events-server", daemon=True
    )
    thread.start()
    try:
        yield server
    finally:
        server.over.set()
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def paged_api_kit(spark: Any, folder: Path) -> Iterator[SourceKit]:
    """The API of :mod:`paged_api`, from a server that fails. Five events a page."""
    module = example("paged_api")
    with events_server() as server:
        yield SourceKit(
            spark,
            folder,
            lambda: module.EventsApi(server.url, page=5, timeout_s=0.3),
            server.add,
            lambda: [event["id"] for event in server.events],
            "id",
        )
        assert server.asked < 7 or server.failed, "INVALID: no answer failed"


class ScannedLog(ResettableSource):
    """Every third number of a file, which is looked through some lines at a time from wherever the
    position is: by another limit it passes other positions.
    """

    schema = "n BIGINT NOT NULL"

    def __init__(self, path: Path) -> None:
        self.path = path

    def start(self) -> Any:
        return 0

    def read(self, position: Any, limit: int) -> Any:
        lines = self.path.read_text().splitlines()
        end = min(position + 7, len(lines))
        rows = [(n,) for n in map(int, lines[position:end]) if n % 3 == 0][:limit]
        return rows, rows[-1][0] + 1 if len(rows) == limit else end


@contextmanager
def scanned_log_kit(spark: Any, folder: Path) -> Iterator[SourceKit]:
    """Three lines for each row."""
    path, numbers = folder / "numbers.txt", itertools.count()
    path.touch()

    def add(count: int) -> None:
        with path.open("a") as file:
            file.writelines(f"{next(numbers)}\n" for _ in range(3 * count))

    def wanted() -> list[int]:
        return [n for n in map(int, path.read_text().splitlines()) if n % 3 == 0]

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield SourceKit(spark, folder, lambda: ScannedLog(path), add, wanted, "n")


class OutboxTable:
    """A table of its own. Rows come as they do in life: in transactions that overtake each other,
    some in vain.
    """

    def __init__(self, url: str) -> None:
        self.name = f"outbox_{uuid.uuid4().hex[:12]}"
        self.url = url
        self.committed: list[int] = []
        statements = example("outbox_table").__doc__.partition("CREATE TABLE")
        self.execute(
            (statements[1] + statements[2].partition("\n\n")[0]).replace("outbox", self.name)
        )

    def execute(self, statement: str) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(statement)

    def insert(self, connection: psycopg.Connection[Any]) -> int:
        insert = f"INSERT INTO {self.name} (payload) VALUES ('some') RETURNING id"  # noqa: S608 — our own name
        return int(connection.execute(insert).fetchone()[0])

    def add(self, count: int) -> None:
        """So many that are committed; of the ids that are drawn, the lower ones become visible
        last.
        """
        with (
            psycopg.connect(self.url) as early,
            psycopg.connect(self.url) as late,
            psycopg.connect(self.url) as never,
        ):
            for number in range(count):
                self.committed.append(self.insert(early if number % 3 == 0 else late))
                self.insert(never)
            late.commit()
            early.commit()
            never.rollback()

    def drop(self) -> None:
        self.execute(f"DROP TABLE {self.name}")


@contextmanager
def outbox_kit(spark: Any, folder: Path, url: str, kind: str) -> Iterator[SourceKit]:
    """A table as :mod:`outbox_table` reads it, by the class of that name."""
    source = getattr(example("outbox_table"), kind)
    table = OutboxTable(url)
    try:
        yield SourceKit(
            spark,
            folder,
            lambda: source(url, table.name),
            table.add,
            lambda: list(table.committed),
            "id",
        )
    finally:
        table.drop()


class LogFile:
    """A file that grows line by line, the last of which is never complete."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: list[str] = []
        self.begun = ""
        path.touch()

    def add(self, count: int) -> None:
        with self.path.open("a") as file:
            for _ in range(count):
                line = f"line {len(self.lines)} é"
                file.write(line[len(self.begun) :] + "\n")
                self.lines.append(line)
                self.begun = ""
            self.begun = "line "
            file.write(self.begun)


@contextmanager
def growing_file_kit(spark: Any, folder: Path) -> Iterator[SourceKit]:
    """The file of :mod:`growing_file`."""
    module = example("growing_file")
    log = LogFile(folder / "log.txt")
    yield SourceKit(
        spark,
        folder,
        lambda: module.GrowingFile(log.path),
        log.add,
        lambda: list(log.lines),
        "line",
    )
