"""Whoever does what an error of a command, of a sink or of a source says is done: each row has
what was wrong, the words of the next step, and what is done with them. No server and no Spark.
"""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import onceward as ow
from onceward.cli import app
from onceward.cli.dashboard import _token
from onceward.cli.dead_letters import _place
from onceward.cli.run import _STRATEGIES, Restart, restart_strategy
from onceward.cli.transactions import _must_hang
from onceward.errors import OncewardError, ResourceError
from onceward.ids import ProducerIdentity, TopicPartition
from onceward.kafka.wire.transactions.listing import Holder, OpenProducer
from onceward.operate import metrics, status
from onceward.operate.checkpoint_files import Folder
from onceward_verify import cli as verify
from onceward_verify.client_settings import librdkafka_settings, settings_from_file
from onceward_verify.conservation import parse_lineage
from onceward_verify.file_views import open_view
from onceward_verify.findings import CannotTell
from onceward_verify.ledger import parse_since
from onceward_verify.mysql import _connection_arguments as mysql_arguments
from support.next_steps import Done, Wrong, advice, case_name, follow_whole

SRC = Path(__file__).parents[2] / "src"
LEDGER = ow.FolderLedger("/ledger")


def command(*arguments: str) -> Wrong:
    def call() -> None:
        result = CliRunner().invoke(app, list(arguments))
        if isinstance(result.exception, OncewardError):
            raise result.exception
        if found := re.search(r"^Next: (.+?)\.?$", result.output, re.DOTALL | re.MULTILINE):
            raise CannotTell(result.output, next_step=" ".join(found[1].split()))
        # 69: nobody is there
        assert result.exit_code in (0, 1, 69), result.output

    return call


def options(**given: Any) -> verify.Options:
    return verify.Options(pipeline_id="p", **given)


def asked(**given: Any) -> Wrong:
    """Ask the checker as far as what its options say."""
    return functools.partial(verify._conserves, options(**given))


PIPELINE = ("--pipeline-id", "p")
ACLS = ("doctor", "--acls")
LINEAGE = "partition=p,offset=o"
FLAGS = {"ssl_ca": "/ca", "ssl_cert": "/c", "ssl_key": "/k", "connect_timeout": "5"}
VERIFY: list[tuple[Wrong, str, Done]] = [
    (
        lambda: verify.answer(options()),
        r"pass (--\S+) for .+ topics, (--\S+) for .+ tables, (--\S+) for .+ files",
        lambda *offered: [options(**{name[2:].replace("-", "_"): "x"}) for name in offered],
    ),
    (
        asked(lineage_headers=LINEAGE, lineage_json=LINEAGE, conserves=verify._Rule.EXACTLY),
        "leave one of them out",
        lambda: [
            asked(**{name: LINEAGE}, conserves=verify._Rule.EXACTLY)()
            for name in ("lineage_headers", "lineage_json")
        ],
    ),
    (
        asked(each_topic=True),
        r"add --conserves (.+), (.+) or (.+)",
        lambda *rules: [
            asked(each_topic=True, conserves=verify._Rule(rule))() for rule in rules
        ],
    ),
    (
        lambda: parse_lineage("headers", "offset=o"),
        r".*--lineage-headers (?:topic=…,)?(\S+)",
        lambda spec: parse_lineage("headers", spec.replace("…", "x")),
    ),
    (
        lambda: parse_since("yesterday"),
        r"pass a batch number such as (\S+), (\S+), or a time such as (\S+)",
        lambda *offered: [parse_since(each) for each in offered],
    ),
    (
        lambda: settings_from_file(Path("/nowhere")),
        "check (--command-config)",
        lambda name: options(**{name[2:].replace("-", "_"): SRC}),
    ),
    (
        lambda: librdkafka_settings({"ssl.truststore.location": "/store.jks"}),
        r"export its certificates as PEM \(.+\) and name the file in (\S+), which may stand .+",
        lambda name: librdkafka_settings({"ssl.truststore.location": "/s", name: "/ca.pem"}),
    ),
    (
        lambda: open_view("hdfs://h/files", has_lists=False),
        "mount the path, and pass that folder",
        lambda: open_view("/mnt/files", has_lists=False),
    ),
    (
        lambda: mysql_arguments("mysql://"),
        r"pass (\S+), as the sink is told; .+ MYSQL_PWD; behind \? there may be (.+)",
        lambda url, names: [
            mysql_arguments(f"{url.replace('port', '3306')}?{name}={FLAGS.get(name, 'true')}")
            for name in names.split(", ")
        ],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("wrong", "says", "does"), VERIFY, ids=case_name)
def test_verify_as_it_is_asked_for(wrong: Wrong, says: str, does: Done):
    follow_whole(wrong, says, does)


def place(options: str) -> None:
    """See that each of the options names a ledger."""
    for name in re.findall(r"--([\w-]+)", options):
        given = {"bootstrap_servers": "b:9092", "ledger_path": ".", "ledger_url": "mysql://h/d"}
        key = name.replace("-", "_")
        status.open_ledger(**{key.replace("ledger_", ""): given[key]})  # type: ignore[arg-type]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("ONCEWARD_BOOTSTRAP_SERVERS", "ONCEWARD_LEDGER_PATH", "ONCEWARD_LEDGER_URL"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "job.py").write_text("")
    (tmp_path / "empty").write_text("")
    (tmp_path / "token").write_text("secret\n")
    (tmp_path / "ledger").mkdir()
    return tmp_path


A_LEDGER = ("--ledger-path", "ledger")
CLI: list[tuple[Wrong, str, Done]] = [
    (command("status"), r"add (--.+), or set \w+ in the shell", place),
    (
        command("status", "--ledger-path", "gone"),
        "correct the path, and see that its disk is mounted here",
        command("status", *A_LEDGER),
    ),
    (
        command("status", "--all", *PIPELINE, *A_LEDGER),
        "leave one of them out",
        lambda: [command("status", *each, *A_LEDGER)() for each in (("--all",), PIPELINE)],
    ),
    (
        command("savepoint", "list", "gone"),
        "correct the path, and see that its disk is mounted here",
        command("savepoint", "list", "ledger"),
    ),
    (
        command("plan", "gone.py"),
        "name the job's Python file",
        lambda: Path("job.py").resolve(strict=True),
    ),
    (
        command("run", "gone.py"),
        "name the job's Python file",
        lambda: Path("job.py").resolve(strict=True),
    ),
    (
        command(*ACLS),
        r"add (--\S+) and (--\S+), and (--\S+) for Kafka sources on the same cluster",
        lambda *names: command(*ACLS, *(word for name in names for word in (name, "x")))(),
    ),
    (
        command("doctor", "--consumers"),
        r"add (--\S+) and (--\S+)",
        lambda servers, topic: typer_takes("doctor", servers, topic),
    ),
    (
        command(*ACLS, "--target", "redis://h"),
        r"leave out (--\S+), or (--\S+)",
        lambda acls, target: typer_takes("doctor", acls, target),
    ),
    (
        command("doctor", "--subject", "s"),
        r"add (--\S+), or leave out (--\S+)",
        lambda *names: typer_takes("doctor", *names),
    ),
    (
        command("doctor", "--mysql", "mysql://h", "--target", "redis://h", "--tables", "a.b"),
        r"leave out (--\S+) or (--\S+), and look at that by a second command",
        lambda *names: typer_takes("doctor", *names),
    ),
    (
        command("doctor", "--target", "https://127.0.0.1:1"),
        r"add (--\w+)=INDEX",
        lambda name: command("doctor", "--target", "https://127.0.0.1:1", name, "index")(),
    ),
    (
        command("transactions", "abort", "--bootstrap-servers", "b:9092"),
        r"add (--\S+), or (--\S+) and (--\S+)",
        lambda *names: typer_takes("transactions abort", *names),
    ),
    (
        command(
            "dead-letters",
            "show",
            "--bootstrap-servers",
            "b:9092",
            "--topic",
            "d",
            "--offset",
            "1",
        ),
        r"add (--\S+)",
        lambda name: typer_takes("dead-letters show", name),
    ),
    (
        lambda: _place("42"),
        r"write the letter's .+: --leave-out (\S+)",
        lambda text: _place(text),
    ),
    (
        command("report", *PIPELINE, *A_LEDGER, "--html", "gone/page.html"),
        "name a file in a folder that is there",
        lambda: follow_whole(
            command("report", *PIPELINE, *A_LEDGER, "--html", "page.html"),
            "`onceward (status)` lists those that it has",
            lambda name: command(name, *A_LEDGER)(),
        ),
    ),
    (
        lambda: _token(Path("gone")),
        "name a file with it, of one line of text",
        lambda: _token(Path("token")),
    ),
    (lambda: _token(Path("empty")), "write a token into it", lambda: _token(Path("token"))),
    (
        lambda: status.open_ledger(path="ledger", url="mysql://h/d"),
        r"pass (\w+), or (\w+) \(a folder\), or (\w+) \(a database\)",
        lambda *names: [
            status.open_ledger(**{name: value})  # type: ignore[arg-type]
            for name, value in zip(names, ("b:9092", "ledger", "mysql://h/d"), strict=True)
        ],
    ),
    (
        lambda: Folder("dbfs:/checkpoint"),
        r"name a local path, s3://, gs://, abfss:// or hdfs://; or copy .+ to a local path .+",
        lambda: [Folder(path) for path in ("checkpoint", "/checkpoint", "gs://b/checkpoint")],
    ),
    (lambda: metrics.serve_metrics(70_000), r"pass a port, (\d+) say", int),
    (
        lambda: metrics.push_metrics("http://h", interval_s=0),
        r"pass seconds, (\d+) say",
        lambda number: metrics._must_be_seconds("interval_s", float(number)),
    ),
]


def typer_takes(command: str, *names: str) -> None:
    found: Any = typer.main.get_command(app)
    for name in command.split():
        found = found.get_command(typer.Context(found), name)
    assert set(names) <= {name for each in found.params for name in each.opts}


@pytest.mark.parametrize(("wrong", "says", "does"), CLI, ids=case_name)
def test_a_command_as_it_is_asked_for(wrong: Wrong, says: str, does: Done, folder: Path):
    follow_whole(wrong, says, does)


SETTINGS_OF_RESTARTS = {
    name: 1 if parameter in ("attempts", "max_failures", "multiplier", "jitter") else "1 min"
    for _, (_, names) in _STRATEGIES.items()
    for name, parameter in names.items()
}


@pytest.mark.parametrize("setting", SETTINGS_OF_RESTARTS)
@pytest.mark.parametrize("restart", Restart)
def test_a_setting_of_another_restart_strategy(setting: str, restart: Restart):
    """``leave it out, or choose --restart …``"""
    given = {setting: SETTINGS_OF_RESTARTS[setting]}
    if setting in _STRATEGIES[restart][1]:
        assert restart_strategy(restart, given) is not None
        return
    step = advice(lambda: restart_strategy(restart, given))
    assert restart_strategy(restart, {}) is not None
    for word in step.removeprefix("leave it out, or choose --restart ").split(" or "):
        assert restart_strategy(Restart(word), given) is not None


def sinks(**more: Any) -> Callable[..., Any]:
    kinds: dict[str, Any] = {
        "kafka": functools.partial(ow.KafkaSink, bootstrap_servers="b:9092", topic="out"),
        "files": functools.partial(ow.FileSink, path="/files"),
        "redis": functools.partial(
            ow.UpsertSink, key="id", store="/store", url="redis://h", prefix="a:"
        ),
        "ahead": functools.partial(ow.WriteAheadSink, deliver=print, store="/store"),
    }

    def sink(kind: str, **settings: Any) -> Any:
        if kind != "kafka":
            settings = {"ledger": ow.KafkaLedger("b:9092"), **settings}
        return kinds[kind](**{"pipeline_id": "p", **more, **settings})

    return sink


one = sinks()
FAN_OUT_SETTINGS = {
    "pipeline_id": "q", "resume": "skip_missing", "skipped_batches": "allow",
    "batch_timeout_s": 9.0, "batch_attempts": 2, "checkpointing": ow.checkpointing(interval=10),
}  # fmt: skip


def fan_out(*kinds: Any, **more: Any) -> Wrong:
    named = {f"s{place}": kind() for place, kind in enumerate(kinds)}
    return lambda: ow.FanOut(named, **more)


def sink(kind: str, **settings: Any) -> Wrong:
    return functools.partial(one, kind, **settings)


def with_the_same(names: str) -> None:
    """Give all sinks of a fan-out the same of each setting that is named."""
    for name in re.split(r", | and ", names):
        given = {name: FAN_OUT_SETTINGS[name]}
        all_of_them = sinks(**given)
        ow.FanOut({kind: all_of_them(kind) for kind in ("kafka", "files", "redis", "ahead")})


DATABASE = functools.partial(ow.DatabaseSink, url="postgresql://u@h/d", pipeline_id="p", table="t")
FAN_OUTS: list[tuple[Wrong, str, Done]] = [
    (
        fan_out(sink("kafka")),
        r'pass \{"(\w+)": ow\.(\w+)\(…\), "(\w+)": ow\.(\w+)\(…\)\}',
        lambda a, first, b, second: ow.FanOut({a: one("kafka"), b: one("files")}),
    ),
    (
        lambda: ow.FanOut({"a b": one("kafka"), "b": one("files")}),
        "name it by letters, digits, '(_)' and '(-)'",
        lambda *signs: ow.FanOut({f"a{''.join(signs)}1": one("kafka"), "b": one("files")}),
    ),
    (
        fan_out(sink("kafka"), lambda: print),
        "pass a (.+), or a sink of your own that subclasses (TwoPhaseCommitSink)",
        lambda names, own: [getattr(ow, name) for name in (*names.split(", "), own)],
    ),
    (
        fan_out(sink("kafka"), sink("kafka", topic="other")),
        "let one of them decide; write to the other one from its output, in a query of its own",
        fan_out(sink("kafka"), sink("files")),
    ),
    (
        fan_out(sink("files"), sink("files")),
        r"write a union .+; or give each a place of its own \((\w+)=, table=, or for upserts .+",
        lambda setting: fan_out(sink("files"), sink("files", **{setting: "/others"}))(),
    ),
    (
        fan_out(sink("redis"), sink("redis")),
        r".+ or for upserts index=, write= or a (\w+)= with which the other one's does not begin.",
        lambda setting: fan_out(sink("redis"), sink("redis", **{setting: "b:"}))(),
    ),
    (
        fan_out(sink("kafka", batch_timeout_s=9), sink("files")),
        "give all of them the same (.+)",
        with_the_same,
    ),
    (
        fan_out(sink("kafka"), sink("files", ledger=LEDGER)),
        r"pass the same ledger= to all: for a KafkaSink .+ ow\.(\w+) with .+, for a DatabaseSink "
        r"ow\.(\w+) with its url and ledger_table",
        lambda kafka, database: (
            fan_out(sink("kafka"), sink("files", ledger=getattr(ow, kafka)("b:9092")))(),
            fan_out(DATABASE, sink("files", ledger=getattr(ow, database)("postgresql://u@h/d")))(),
        ),
    ),
    (
        fan_out(sink("kafka"), sink("files"), select=[print]),
        "pass functions by the names of sinks: .+",
        fan_out(sink("kafka"), sink("files"), select={"s1": print}),
    ),
    (
        fan_out(sink("kafka"), sink("files"), select={"s9": print}),
        "name one of them",
        fan_out(sink("kafka"), sink("files"), select={"s0": print}),
    ),
    (
        fan_out(sink("kafka"), sink("files"), select={"s1": "x"}),
        "pass one that makes a frame out of the batch's frame",
        fan_out(sink("kafka"), sink("files"), select={"s1": lambda frame: frame}),
    ),
    (
        sink("ahead", deliver="http://h"),
        "pass a function that takes an ow.delivery.Chunk, and .+",
        sink("ahead", deliver=lambda chunk: None),
    ),
    (
        sink("ahead", store="s3://b/store"),
        r"pass the path, or the URI \((file:///)…\), of a folder that driver and executors see, on a "
        r"disk that outlasts them, absolute where a name has a colon",
        lambda uri: [
            sink("ahead", store=store)() for store in ("/store", f"{uri}store", Path("/a:b"))
        ],
    ),
]


@pytest.mark.parametrize(("wrong", "says", "does"), FAN_OUTS, ids=case_name)
def test_a_sink_as_it_is_asked_for(wrong: Wrong, says: str, does: Done):
    follow_whole(wrong, says, does)


@pytest.mark.parametrize("owner", ["my app-0", "my app-0; rm x", "app-0", "a'b", "a\x1b[2J"])
def test_an_id_that_anybody_has_chosen_is_one_word_and_no_order(owner: str):
    producer = OpenProducer(TopicPartition("t", 0), ProducerIdentity(1, 0), 0, 0, -1)
    with pytest.raises(ResourceError) as refused:
        _must_hang(Holder(producer, owner, 0), commit=False, force=False)
    error = refused.value
    shown = owner.replace("\x1b", "\\x1b")
    assert shlex.split(error.next_step)[-2:] == ["--transactional-id", shown]
    assert error.message.startswith(f"{shown} has t-0")
    assert "\x1b" not in str(error)
