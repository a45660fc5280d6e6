"""Every code block of the pages runs: Python and the new side of a diff on the shared broker,
commands by the CLI.

A page's blocks run in order and share their names, as a reader would type them. Only what a page
cannot know is put in: addresses, topics of the test's own, folders. What is not run stands in
:data:`ONLY_PARSED`, each with its reason; ``tests/tidy/test_pages_are_true.py`` parses these, too.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import subprocess
import sys
import uuid
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest
import urllib3
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from redis import Redis

import onceward
from onceward.operate.metrics import Metrics
from onceward_testing import (
    LocalKafka,
    LocalMySQL,
    LocalOpenSearch,
    LocalPostgres,
    LocalRedis,
    LocalRegistry,
    exactly_once,
    read_topic,
)
from support import markdown_pages as markdown
from support.avro_codec import write
from support.http_target import HttpTarget
from support.markdown_pages import ROOT, Block
from support.mysql_client import sql_at
from support.running_jobs import running

TOPICS = (
    *(
        "people",
        "people-clean",
        "people-traced",
        "people-rejected",
        "people-small",
        "people-large",
    ),
    "people-dead-letters",
)

ONLY_PARSED = {
    (
        "docs/explanation/how-it-is-tested.md",
        "LocalKafka(proxied=True)",
    ): "a cluster of its own; tests/broker/test_proxy.py has one",
    (
        "docs/reference/configuration.md",
        "secure_people =",
    ): "a login when it is defined; tests/spark/test_logins.py has one",
}
"""Python blocks that are not run: page and a part of the block, and why."""

NOT_RUN = {
    "make": "installs or tests the repository; that the target exists is checked",
    "pip": "installs packages",
    "python": "builds an environment, or is in a page for newcomers (test_first_job) or an "
    "example (tests/examples)",
    "spark-submit": "test_first_job submits the README's job by the first line; the others need a "
    "cluster or a network",
    "eval": "a spark-submit; tests/spark/test_how_jobs_are_started",
    "systemctl": "needs systemd; tests/unit/test_jobs_that_are_kept_alive obeys the unit",
    "journalctl": "the same",
    "kafka-consumer-groups.sh": "Kafka's own",
    "onceward run": "runs a job without end; tests/chaos/test_kept_alive",
    "onceward transactions describe": "of a pipeline that has run; "
    "tests/broker/test_status_and_transactions",
    "onceward dashboard": "runs until it is interrupted; tests/broker/test_dashboard_in_a_browser",
    "onceward plan": "of a job that is there; tests/spark/test_plans",
    "onceward savepoint": "of a pipeline that has run; tests/spark/test_savepoints",
    "onceward broker": "runs until it is interrupted; test_first_job",
}
"""Commands that are not run, and why."""

COMMAND_SECONDS = 120


class Reader:
    """Goes through one page."""

    def __init__(
        self, spark: Any, kafka: LocalKafka, folder: Path, new_topic: Callable[..., str]
    ) -> None:
        self.spark, self.servers, self.folder = spark, kafka.bootstrap_servers, folder
        self.topics = {name: new_topic(self.servers, 2, prefix=name) for name in TOPICS}
        self.ids = uuid.uuid4().hex[:8]
        self.fed: list[str] = []
        self.url = self.mysql_url = ""
        self.names: dict[str, Any] = {"ow": onceward, "spark": spark}
        self.ran: list[Block] = []

    def fit(self, text: str) -> str:
        """Python with what a page cannot know: addresses, folders, and in quotes the topics and
        ids of this test.
        """
        text = re.sub(r"\b(?:broker|localhost):909[23]\b", self.servers, text)
        text = text.replace("postgresql://shop:secret@database/shop", self.url)
        text = text.replace("mysql://shop:secret@database/shop", self.mysql_url)
        for before in ('checkpointLocation", "', ' checkpoint="'):
            text = re.sub(rf'(?<={before})[^"]+', lambda found: self.checkpoint(found[0]), text)
        text = text.replace("/etc/kafka/ca.crt", str(self.folder / "ca.crt")).replace(
            '"/data/', f'"{self.folder}/'
        )
        text = re.sub(r'(?<=pipeline_id=")[\w-]+', lambda found: self.own(found[0]), text)
        for name, topic in self.topics.items():
            text = re.sub(rf"""(?<=["']){name}(?=["'])""", topic, text)
        return text

    def fit_words(self, words: list[str]) -> list[str]:
        """The same for the words of a command."""
        fitted = [
            re.sub(r"\b(?:broker|localhost):909[23]\b", self.servers, word) for word in words
        ]
        for place, before in enumerate(words[:-1], start=1):
            if before.endswith("topic"):
                fitted[place] = self.topics[words[place]]
            elif before == "--pipeline-id":
                fitted[place] = self.own(words[place])
        return fitted

    def own(self, name: str) -> str:
        return f"{name}-{self.ids}"

    def checkpoint(self, name: str) -> str:
        return str(self.folder / re.sub(r"\W+", "-", name))

    def feed(self, count: int = 20) -> None:
        """People who were not there before, and one without a value."""
        fresh = [f"person {len(self.fed) + number}" for number in range(count)]
        producer = Producer({"bootstrap.servers": self.servers})
        for person in fresh:
            producer.produce(self.topics["people"], key=person, value=person)
        assert producer.flush(60) == 0
        self.fed += fresh

    def run(self, block: Block, text: str) -> None:
        """Executes ``text``, and waits until each query that it started has read everything."""
        self.prepare(text)
        before = set(self.spark.streams.active)
        exec(compile(self.fit(text), block.name, "exec"), self.names)  # noqa: S102 — the page is what is under test
        for query in set(self.spark.streams.active) - before:
            try:
                query.processAllAvailable()
            finally:
                query.stop()
            assert query.exception() is None, block.name
        self.ran.append(block)

    def prepare(self, text: str) -> None:
        """Names that a block takes for granted because every reader has them by then."""
        used = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
        if "people" in used - self.names.keys() or "frame" in used - self.names.keys():
            self.names["people"] = onceward.kafka_source(
                self.spark, bootstrap_servers=self.servers, topic=self.topics["people"]
            )
            self.names["frame"] = self.names["people"].select("key", "value")
        if "query" in used and "query =" not in text and "query" not in self.names:
            self.begin()

    def begin(self) -> None:
        """The first pipeline of the configuration page, for pages that speak of one that has
        run.
        """
        first = next(
            block for block in markdown.blocks(ROOT / "docs" / "reference" / "configuration.md")
        )
        self.run(first, first.text)

    def begin_what_is_judged(self, page: Path, pipeline: str) -> None:
        """The pipeline of a ``verify`` command: of this page if it has one of that name, else the
        first one.
        """
        named = [
            b
            for b in markdown.blocks(page)
            if b.language == "python" and f'pipeline_id="{pipeline}"' in b.text
        ]
        if named and named[0] not in self.ran:
            self.run(named[0], named[0].text)
        elif not self.ran:
            self.begin()

    def command(self, line: str, page: Path) -> None:
        """Runs one line of a shell block."""
        plain = shlex.split(line, comments=True)
        words = self.fit_words(plain)
        if words[1] in ("verify", "report"):
            self.begin_what_is_judged(page, plain[plain.index("--pipeline-id") + 1])
        done = subprocess.run(
            [str(Path(sys.executable).parent / words[0]), *words[1:]],
            capture_output=True, text=True, check=False, timeout=COMMAND_SECONDS, cwd=self.folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip
        # The ledger has the pipelines of other pages, too, some of which are well no longer, and
        # none of those that pages only speak of.
        fine = (0, 1) if words[1] in ("status", "lag", "ledger") else (0,)
        assert done.returncode in fine, f"{line}\n{done.stdout}\n{done.stderr}"


@pytest.fixture
def reader(
    spark: Any, kafka: LocalKafka, tmp_path: Path, new_topic: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Reader]:
    monkeypatch.setenv("KAFKA_PASSWORD", "a password")
    (tmp_path / "ca.crt").write_text(certificate(tmp_path))
    watching: list[Metrics] = []
    initialise = Metrics.__init__

    def remember(self: Metrics, **settings: Any) -> None:
        initialise(self, **settings)
        watching.append(self)

    monkeypatch.setattr(Metrics, "__init__", remember)
    made = Reader(spark, kafka, tmp_path, new_topic)
    made.feed()
    yield made
    for query in spark.streams.active:
        query.stop()
    # A page lets its process end; a thread that asks for lags would go on among other tests.
    for metrics in watching:
        metrics.stop()
    if callable(stop_tracing := made.names.get("stop")):
        stop_tracing()


def certificate(folder: Path) -> str:
    """An authority's certificate, as a broker with TLS would have one."""
    arguments = (
        "req -x509 -newkey rsa:2048 -nodes -subj /CN=authority -days 2 -keyout key.pem -out ca.pem"
    )
    subprocess.run(["openssl", *arguments.split()], cwd=folder, check=True, capture_output=True)
    return (folder / "ca.pem").read_text()


def python_to_run(page: Path) -> list[Block]:
    """The page's Python, but for :data:`ONLY_PARSED`; README and migration page have tests of
    their own.
    """
    if page.name in (
        "README.md",
        "first-pipeline.md",
        "migration.md",
        "databases.md",
        "write-ahead.md",
        "upsert.md",
        "delta-and-iceberg.md",
        "avro.md",
        "mysql.md",
        "debezium.md",
    ):
        return []
    return [
        block
        for block in markdown.blocks(page)
        if block.language == "python"
        and not any(name == block.page and part in block.text for name, part in ONLY_PARSED)
    ]


def commands(page: Path) -> list[str]:
    """The lines of the page's shell blocks, without comments, continued lines joined."""
    shell = [
        block.text.replace("\\\n", " ")
        for block in markdown.blocks(page)
        if block.language == "bash"
    ]
    lines = [line for text in shell for line in text.splitlines()]
    return [line for line in lines if line.strip() and not line.lstrip().startswith("#")]


def commands_to_run(page: Path) -> list[str]:
    if (
        page.parent in (ROOT, ROOT / "examples", ROOT / "docs" / "tutorial")
        or page.name == "mysql.md"
    ):
        # about jobs that the reader has started: test_first_job, tests/examples,
        # test_the_mysql_page_runs
        return []
    return [
        line
        for line in commands(page)
        if not line.startswith(tuple(f"{start} " for start in NOT_RUN))
    ]


@pytest.mark.parametrize(
    "page", list(filter(python_to_run, markdown.pages())), ids=markdown.name_of
)
def test_python_blocks_run(page: Path, reader: Reader):
    for block in python_to_run(page):
        reader.run(block, block.text)


def test_the_database_page_runs(reader: Reader, postgres: LocalPostgres, mysql: LocalMySQL):
    """Its statements, too, in its order."""
    sql_at(mysql.url, f"CREATE DATABASE page_{reader.ids}")
    reader.mysql_url = mysql.url.replace("/test", f"/page_{reader.ids}")
    schema = f"page_{reader.ids}"
    options = f"options=-csearch_path%3D{schema}"
    reader.url = f"{postgres.url}?{options}"
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {schema}")
        connection.execute(f"SET search_path = {schema}")
        for block in markdown.blocks(ROOT / "docs" / "how-to" / "databases.md"):
            if block.language == "sql" and "utf8mb4" in block.text:
                sql_at(reader.mysql_url, block.text)
            elif block.language == "sql":
                connection.execute(block.text)
            elif block.language == "python":
                reader.run(block, block.text)
        orders = connection.execute(
            "SELECT customer FROM orders ORDER BY partition, position"
        ).fetchall()
        customers = connection.execute("SELECT count(*) FROM customers").fetchall()
    assert sorted(name for (name,) in orders) == sorted(reader.fed)
    assert customers == [(len(reader.fed),)]
    in_mysql = sql_at(reader.mysql_url, "SELECT customer FROM orders")
    assert sorted(name for (name,) in in_mysql) == sorted(reader.fed)


def test_the_mysql_page_runs(reader: Reader, postgres: LocalPostgres, binlog_mysql: LocalMySQL):
    """From its statements to the copy, through its doctor; then what comes after the snapshot."""
    shop, copy = f"shop_{reader.ids}", f"page_{reader.ids}"
    url, login = (
        f"mysql://cdc_{reader.ids}:a%20password@127.0.0.1:{binlog_mysql.port}",
        f"cdc_{reader.ids}",
    )
    reader.url = f"{postgres.url}?options=-csearch_path%3D{copy}"

    def fitted(text: str) -> str:
        text = text.replace("mysql://cdc:a%20password@database:3306", f"{url}?ssl_disabled=true")
        return re.sub(
            r"\bcdc\b",
            login,
            text.replace("shop.orders", f"{shop}.orders").replace(
                "DATABASE shop", f"DATABASE {shop}"
            ),
        )

    [theirs, ours] = [
        b.text
        for b in markdown.blocks(ROOT / "docs" / "how-to" / "mysql.md")
        if b.language == "sql"
    ]
    [job, going_on, servers] = [
        b for b in markdown.blocks(ROOT / "docs" / "how-to" / "mysql.md") if b.language == "python"
    ]
    for statement in filter(str.strip, fitted(theirs).split(";\n")):
        sql_at(binlog_mysql.url, statement)
    [doctor] = commands(ROOT / "docs" / "how-to" / "mysql.md")
    reader.command(fitted(doctor), ROOT / "docs" / "how-to" / "mysql.md")
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {copy}")
        connection.execute(f"SET search_path = {copy}")
        connection.execute(ours)
        reader.run(job, fitted(job.text))
        for change in (
            "UPDATE shop.orders SET amount = 0.10 WHERE id = 1",
            "DELETE FROM shop.orders WHERE id = 2",
            "INSERT INTO shop.orders VALUES (3, 'Alan', 1e9)",
        ):
            sql_at(binlog_mysql.url, fitted(change))
        reader.run(job, fitted(job.text))
        found = connection.execute(
            "SELECT id, customer, amount::text FROM orders ORDER BY id"
        ).fetchall()
    assert found == [(1, "Ada", "0.10"), (3, "Alan", "1000000000.00")]
    reader.run(going_on, fitted(going_on.text))
    assert (
        "LocalMySQL(replica_of=primary)" in servers.text
    )  # tests/broker/test_local_mysql.py has the same


def test_the_write_ahead_page_runs(reader: Reader):
    [job] = [
        block
        for block in markdown.blocks(ROOT / "docs" / "how-to" / "write-ahead.md")
        if block.language == "python"
    ]
    with HttpTarget(reader.folder) as http:
        reader.run(job, job.text.replace("http://crm.example/people", http.url("people")))
        kept = http.kept("people")
    assert sorted(row["name"] for _, rows in kept for row in rows) == sorted(reader.fed)


@pytest.mark.slow
def test_the_upsert_page_runs(
    reader: Reader, local_redis: LocalRedis, opensearch: LocalOpenSearch
):
    with closing(Redis.from_url(local_redis.url, decode_responses=True)) as redis:
        for block in markdown.blocks(ROOT / "docs" / "how-to" / "upsert.md"):
            if block.language == "python":
                text = block.text.replace("redis://:secret@redis:6379/0", local_redis.url)
                text = text.replace("https://writer:secret@opensearch:9200", opensearch.url)
                text = text.replace('index="customers"', f'index="{reader.own("customers")}"')
                for prefix in ("customer:", "current:"):
                    text = text.replace(f'"{prefix}"', f'"{reader.own(prefix)}:"')
                reader.run(block, text)
        names = {
            redis.hget(key, "name") for key in redis.scan_iter(f"{reader.own('customer:')}:*")
        }
        current = {
            redis.hget(key, "name") for key in redis.scan_iter(f"{reader.own('current:')}:*")
        }
    found = f"{opensearch.url}/{reader.own('customers')}"
    urllib3.request("POST", f"{found}/_refresh", timeout=60)
    hits = urllib3.request("GET", f"{found}/_search?size=1000", timeout=60).json()["hits"]["hits"]
    assert {hit["_source"]["name"] for hit in hits} == set(reader.fed)
    assert names == set(reader.fed)
    assert current == {name for name in reader.fed if len(name) <= 8}
    by_hand = reader.names["database"].execute("SELECT name FROM customers").fetchall()
    assert {name for (name,) in by_hand} == set(reader.fed)


def test_the_avro_page_runs(reader: Reader, registry: LocalRegistry):
    """With a registry that has neither login nor TLS; what the topic has besides Avro is put
    aside.
    """
    topic = reader.topics["people"]
    fields = [{"name": "name", "type": "string"}, {"name": "age", "type": "int"}]
    schema = {"type": "record", "name": f"P{reader.ids}", "fields": fields}
    number = onceward.SchemaRegistry(registry.url).register(f"{topic}-value", json.dumps(schema))
    producer = Producer({"bootstrap.servers": reader.servers})
    producer.produce(
        topic,
        key="ada",
        value=b"\x00" + number.to_bytes(4, "big") + write(schema, {"name": "Ada", "age": 36}),
    )
    assert producer.flush(60) == 0
    for block in markdown.blocks(ROOT / "docs" / "how-to" / "avro.md"):
        if block.language == "python":
            text = block.text.replace("https://registry:8081", registry.url)
            reader.run(
                block, text.replace('        "ssl.ca.location": "/etc/kafka/ca.crt",\n', "")
            )
    assert reader.names["known"].keys() == {reader.names["person_id"]}
    assert [m.value for m in read_topic(reader.servers, reader.topics["people-clean"])] == [b"ADA"]
    assert sorted(
        str(m.value, "utf-8") for m in read_topic(reader.servers, reader.topics["people-rejected"])
    ) == sorted(reader.fed)
    assert reader.names["records"].schema["value"].dataType.simpleString() == "binary"


@pytest.mark.slow
def test_the_debezium_page_runs(
    reader: Reader, binlog_mysql: LocalMySQL, postgres: LocalPostgres, registry: LocalRegistry
):
    """From a place in the binlog, because its tables are on a server with others; topics and copy
    are there before.
    """
    [(file, place, *_)] = sql_at(binlog_mysql.url, "SHOW MASTER STATUS")
    database, topic = f"page_{reader.ids}", f"prod.page_{reader.ids}.orders"
    sql_at(binlog_mysql.url, f"CREATE DATABASE {database}")
    shop = binlog_mysql.url.replace("/test?", f"/{database}?")
    sql_at(
        shop, "CREATE TABLE orders (id bigint PRIMARY KEY, total decimal(10,2), placed datetime)"
    )
    sql_at(shop, "INSERT INTO orders VALUES (1, 1.10, '2024-02-29 12:00:00'), (2, 2, NULL)")
    sql_at(shop, "UPDATE orders SET total = 12.3 WHERE id = 1")
    sql_at(shop, "DELETE FROM orders WHERE id = 2")
    admin = AdminClient({"bootstrap.servers": reader.servers})
    admin.create_topics([NewTopic(topic, 2)])[topic].result(30)
    reader.mysql_url = binlog_mysql.url
    reader.url = f"{postgres.url}?options=-csearch_path%3D{database}"
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {database}")
        connection.execute(f"SET search_path = {database}")
        connection.execute(
            "CREATE TABLE orders_copy (id bigint PRIMARY KEY, total numeric, placed timestamp)"
        )
        [to_kafka, as_avro, to_postgres, back] = (
            block
            for block in markdown.blocks(ROOT / "docs" / "how-to" / "debezium.md")
            if block.language == "python"
        )
        begin = f'starting={{"file": "{file}", "position": {place}}}, tables='
        for block in (
            to_kafka,
            back,
            as_avro,
            to_postgres,
        ):  # the third topic's records are another format's
            text = block.text.replace("https://registry:8081", registry.url).replace(
                "tables=", begin
            )
            text = text.replace("shop.", f"{database}.")
            reader.run(block, f"{text}\n\nquery = start()" if block is as_avro else text)
        copied = connection.execute("SELECT id, total, placed::text FROM orders_copy").fetchall()
    assert copied == [(1, Decimal("12.30"), "2024-02-29 12:00:00")]
    records = read_topic(reader.servers, topic)
    framed = [m for m in records if bytes(m.key or b"")[:1] == b"\0"]
    texts = [m for m in records if m not in framed]
    assert sorted(m.key for m in texts) == [b'{"id":1}'] * 2 + [b'{"id":2}'] * 3
    assert [m.value and json.loads(m.value)["op"] for m in texts if m.key == b'{"id":2}'] == [
        "c",
        "d",
        None,
    ]
    assert sorted(bytes(m.value or b"")[:1] for m in framed) == [b"", *[b"\0"] * 4]
    totals = [m.value for m in read_topic(reader.servers, reader.topics["people-clean"])]
    assert sorted(totals) == [b"1.10", b"12.30", b"2.00"]


def test_the_lake_page_runs(reader: Reader, lake: Any):
    """In a session like the one that its first block makes."""
    [session, *blocks] = [
        b
        for b in markdown.blocks(ROOT / "docs" / "how-to" / "delta-and-iceberg.md")
        if b.language == "python"
    ]
    assert ".getOrCreate()" in session.text
    exec(session.text.partition("spark = (")[0], reader.names)  # noqa: S102
    reader.spark = reader.names["spark"] = lake
    for block in blocks:
        reader.run(block, block.text.replace("delta.`/data/", f"delta.`{reader.folder}/"))
    for table in ("in_delta", "in_iceberg"):
        assert sorted(row["person"] for row in reader.names[table].collect()) == sorted(
            reader.fed
        ), table


def test_the_readmes_job_runs(reader: Reader):
    [job] = [block for block in markdown.blocks(ROOT / "README.md") if block.language == "python"]
    code = compile(reader.fit(job.text), job.name, "exec")
    with running(reader.spark, lambda: exec(code, {"__name__": "__main__"})) as query:  # noqa: S102
        query.processAllAvailable()
    assert_once(reader, upper=True)


def test_the_migration_page_moves_exactly_once(reader: Reader):
    """Spark's own sink, the new one on its checkpoint, and another checkpoint after the loss of
    that: in page order.
    """
    diff, files, placed, lost = [
        b
        for b in markdown.blocks(ROOT / "docs" / "how-to" / "migration.md")
        if b.language in ("diff", "python")
    ]
    assert (diff.language, lost.language) == ("diff", "python")
    keys = [b"", b"a", "größe".encode()]
    found = {
        "frame": reader.spark.createDataFrame(
            [(key, key) for key in keys], "key binary, value binary"
        )
    }
    exec(compile(placed.text, placed.name, "exec"), found)  # noqa: S102
    partitions = [row.partition for row in found["placed"].collect()]
    assert partitions == [zlib.crc32(key) % 12 for key in keys], "as librdkafka places them"
    reader.run(diff, markdown.old_side(diff.text))
    reader.feed()
    reader.run(diff, markdown.new_side(diff.text))
    reader.feed()
    # Files have more of it: the last batch of Spark's own sink may be written once more
    reader.run(files, markdown.old_side(files.text))
    reader.feed()
    reader.run(files, markdown.new_side(files.text))
    reader.run(lost, lost.text)
    assert_once(reader)


def assert_once(reader: Reader, *, upper: bool = False) -> None:
    visible = [
        str(record.value, "utf-8")
        for record in read_topic(reader.servers, reader.topics["people-clean"])
    ]
    verdict = exactly_once(
        [person.upper() for person in reader.fed],
        visible if upper else [value.upper() for value in visible],
    )
    assert verdict.holds, verdict


@pytest.mark.parametrize(
    "page", list(filter(commands_to_run, markdown.pages())), ids=markdown.name_of
)
def test_commands_run(page: Path, reader: Reader):
    for line in commands_to_run(page):
        reader.command(line, page)


def test_the_lists_of_exemptions_only_shrink():
    every = [block for page in markdown.pages() for block in markdown.blocks(page)]
    lines = [line for page in markdown.pages() for line in commands(page)]
    unused = [
        place
        for place in ONLY_PARSED
        if not any(b.page == place[0] and place[1] in b.text for b in every)
    ]
    unused += [
        start for start in NOT_RUN if not any(line.startswith(f"{start} ") for line in lines)
    ]
    assert unused == []
