"""Each option of each command with values that are none: what is wrong is said, in the words of the
command line, and no traceback.

Whatever would be asked for is not there (port 1 of this machine), and is waited for no longer than
a moment.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from onceward import patience
from onceward.cli import app
from onceward.cli.run import _STRATEGIES

pytestmark = pytest.mark.lengthy("ci")

TEXTS = ["", "a b", "\udcff"]
PATHS = ["~/none", "/none/x", "{folder}", "{latin}", "x" * 300]
SERVERS = ["foo", "[", "[::1", "mysql://[::1", "127.0.0.1:99999"]
ADDRESSES = [
    "[", "http://[", "http://a b", "ftp://h", "http://127.0.0.1:x",
    "redis://h:99999", "redis://127.0.0.1:1?foo=1", "redis://h?db=x", "unix://",
    "rediss://127.0.0.1:1?ssl_cert_reqs=foo", "postgresql://h:x/d", "postgresql://[",
    "postgresql://127.0.0.1:1/d?foo=1", "mysql://", "mysql://[::1", "mysql://127.0.0.1:99999/d",
    "mysql://127.0.0.1:1/d?foo=1", "mysql://127.0.0.1:1/d?ssl_ca=/none",
]  # fmt: skip
IS_PATH = re.compile("path|config|folder|files|html|file|dirs|checkpoint|to|job")
IS_ADDRESS = re.compile("url|mysql|target|registry|metrics|files")

BROKERS: dict[str, str | None] = {"--bootstrap-servers": "127.0.0.1:1"}
LEDGER: dict[str, str | None] = {"--ledger-path": "{empty}", "--pipeline-id": "p"}
BESIDE: dict[str, dict[str, str | None]] = {
    "status": {"--ledger-path": "{empty}"},
    "dashboard": {"--ledger-path": "{empty}", "--host": "::"},
    "report": {**LEDGER, "--html": "{folder}/page.html"},
    "lag": {**LEDGER, **BROKERS},
    "ledger show": LEDGER,
    "ledger export": LEDGER,
    "ledger tail": LEDGER,
    "transactions list": BROKERS,
    "transactions describe": {**BROKERS, "--transactional-id": "p"},
    "transactions abort": {**BROKERS, "--topic": "t", "--partition": "0"},
    "transactions commit": {**BROKERS, "--topic": "t", "--partition": "0"},
    "savepoint create": {**LEDGER, "--checkpoint": "{folder}", "--to": "{folder}"},
    "savepoint list": {},
    "savepoint restore": {"--ledger-path": "{empty}", "path": "{folder}", "--checkpoint": "/none"},
    "savepoint fork": {**LEDGER, "path": "{folder}", "--checkpoint": "/none"},
    "dead-letters list": {**BROKERS, "--topic": "t"},
    "dead-letters show": {**BROKERS, "--topic": "t"},
    "dead-letters replay": {**BROKERS, "--topic": "t"},
    "doctor": {"--acls": None, "--pipeline-id": "p", "--topic": "t"},
    "doctor --bootstrap-servers": {"--consumers": None, "--topic": "t"},
    "doctor --command-config": {"--consumers": None, "--topic": "t", **BROKERS},
    "doctor --tables": {"--target": "http://127.0.0.1:1"},
    "doctor --subject": {"--registry": "ftp://h"},
    "doctor --mysql": {},
    "doctor --target": {"--tables": "t"},
    "doctor --registry": {},
    "verify": {"--pipeline-id": "p", "--files": "{folder}"},
    "verify --database-url": {"--pipeline-id": "p"},
    "verify --bootstrap-servers": {"--pipeline-id": "p", "--patience": "0.1"},
    "verify --command-config": {"--pipeline-id": "p", "--patience": "0.1", **BROKERS},
    "verify --log-dirs": {"--pipeline-id": "p", "--patience": "0.1", **BROKERS},
    "verify --topic": {"--pipeline-id": "p", "--patience": "0.1", **BROKERS},
    "verify --lineage-headers": {"--pipeline-id": "p", "--conserves": "exactly", **BROKERS},
    "verify --lineage-json": {"--pipeline-id": "p", "--conserves": "exactly", **BROKERS},
}
"""What is given beside an option, by its command, or by both; None: of a flag."""
OF_CODE = re.compile(
    r"\w\((url|path)=|(?<![\w.-])(url|path|tables?|index|timeout_s|pipeline_id)=['\"…]"
    r"|bootstrap_servers|topic name|---|Posix|Traceback"
)


def commands(command: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if not hasattr(command, "list_commands"):
        yield path, command
        return
    context = command.make_context("onceward", [], resilient_parsing=True)
    for name in command.list_commands(context):
        yield from commands(command.get_command(context, name), f"{path} {name}".strip())


# Options that commands share once
CASES = {
    (option.opts[0], getattr(option, "help", path)): (path, option.opts[0])
    for path, command in commands(typer.main.get_command(app))
    for option in command.params
    if path in BESIDE and not getattr(option, "is_flag", False)
}


def values(option: str) -> list[str]:
    name = option.removeprefix("--")
    paths = PATHS if IS_PATH.search(name) else []
    servers = SERVERS if "servers" in name or "path" in name else []
    return [*TEXTS, *paths, *servers, *(ADDRESSES if IS_ADDRESS.search(name) else [])]


@pytest.mark.parametrize(("path", "option"), CASES.values())
def test_a_malformed_value_is_named_in_the_words_of_the_command(
    path: str, option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = {each: tmp_path / each for each in ("folder", "empty", "latin")}
    places["folder"].mkdir()
    places["empty"].mkdir()
    places["latin"].write_bytes("a = é\n".encode("latin-1"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("uvicorn.Server.run", lambda _: None)
    beside = BESIDE.get(f"{path} {option}", BESIDE[path])
    if path != "doctor" and option in ("--ledger-url", "--ledger-topic"):
        beside = {name: value for name, value in beside.items() if name != "--ledger-path"}
    for value in values(option):
        texts = {
            name: None if text is None else text.format(**places)
            for name, text in {**beside, option: value}.items()
        }
        options = [
            name if text is None else f"{name}={text}"
            for name, text in texts.items()
            if name.startswith("--")
        ]
        own = [text for name, text in texts.items() if text and not name.startswith("--")]
        words = [*path.split(), *options, *(["--", *own] if own else [])]
        with patience.within(20):
            done = CliRunner().invoke(app, words)
        assert done.exception is None or isinstance(done.exception, SystemExit), (words, done)
        assert not OF_CODE.search(done.output), (words, done.output)


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (["broker"], "--topic"),
        (["dead-letters", "list", "--bootstrap-servers=127.0.0.1:1"], "--topic"),
        (["doctor", "--consumers", "--bootstrap-servers=127.0.0.1:1"], "--topic"),
        (["doctor", "--acls", "--pipeline-id=p"], "--topic"),
        (["status", "--bootstrap-servers=127.0.0.1:1"], "--ledger-topic"),
    ],
)
def test_a_malformed_topic_is_a_wrong_option(words: list[str], option: str) -> None:
    for value in ("a b", "\udcff", "."):
        done = CliRunner().invoke(app, [*words, f"{option}={value}"])
        assert (done.exit_code, f"{option}={value!r} is" in done.output) == (64, True), done.output


@pytest.mark.parametrize(
    ("restart", "option"),
    [(each.value, name) for each, (_, settings) in _STRATEGIES.items() for name in settings],
)
def test_a_malformed_restart_setting_starts_no_job(restart: str, option: str) -> None:
    for value in (*TEXTS, "nan", "-1"):
        words = ["run", f"--restart={restart}", f"--{option}={value}", __file__]
        done = CliRunner().invoke(app, words)
        assert (done.exit_code, f"--{option}" in done.output) == (64, True), done.output


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (["status", "--watch"], "--interval"),
        (["ledger", "tail", "--pipeline-id=p"], "--interval"),
        (["dashboard"], "--interval"),
        (["plan"], "--timeout"),
        (["verify", "--pipeline-id=p"], "--patience"),
        (["verify", "--pipeline-id=p"], "--settle"),
    ],
)
def test_a_time_that_nobody_waits_is_a_wrong_option(words: list[str], option: str) -> None:
    for value in ("nan", "inf", "-1"):
        done = CliRunner().invoke(app, [*words, f"{option}={value}"])
        assert (done.exit_code, option in done.output) == (64, True), done.output


def test_a_number_of_brokers_that_there_is_not_starts_none() -> None:
    done = CliRunner().invoke(app, ["broker", "--nodes=2"])
    assert (done.exit_code, "nodes=" in done.output) == (64, False), done.output


@pytest.mark.parametrize("command", ["run", "plan"])
@pytest.mark.parametrize("job", ["", "/none/x", "\udcff", "x" * 300])
def test_a_job_that_is_no_file_is_not_run(command: str, job: str) -> None:
    assert CliRunner().invoke(app, [command, "--", job]).exit_code == 64
