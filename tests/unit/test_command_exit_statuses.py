"""What a CI gate reads: a misspelt option or a dead broker never looks like a verdict."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from typer.testing import CliRunner

from onceward import errors
from onceward.cli import app, groups
from onceward.cli.groups import _ANYTHING
from onceward.cli.shared import print_table, table
from onceward.operate.status import LedgerView
from onceward_testing.free_ports import free_ports

pytestmark = pytest.mark.lengthy("ci")

USAGE, UNAVAILABLE, DENIED = 64, 69, 77
ASK = ["verify", "--bootstrap-servers", "127.0.0.1:1", "--pipeline-id", "p"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["no-such-command"],
        ["doctor", "--no-such-option"],
        ["doctor", "--acls"],
        ["doctor", "--target", "https://127.0.0.1:1"],
        ["doctor", "--target", "http://["],
        ["doctor", "--acls", "--pipeline-id", "p", "--topic", "t", "--registry", "http://h"],
        ["doctor", "--principal", "User:a"],
        ["doctor", "--tables", "t"],
        ["broker", "--port", "99999999"],
        ["report", "--pipeline-id", "p", "--ledger-path", ".", "--html", "/no/such/folder/x.html"],
        ["dashboard", "--ledger-path", ".", "--token-file", sys.executable],
        ["plan", "/dev/null"],
        ["verify"],
        [*ASK, "--settle", "soon"],
        [*ASK, "--conserves", "mostly"],
        [*ASK, "--each-topic"],
        [*ASK, "--conserves", "exactly", "--lineage-json", "offset=o"],
        [*ASK, "--conserves", "exactly", "--lineage-json", "x", "--lineage-headers", "y"],
        [*ASK, "--since", "yesterday"],
        [*ASK, "--command-config", "/nowhere/client.properties"],
        ["demo", "--source", "postgres"],
        ["demo", "--source", "mysql", "--sink", "files"],
        ["demo", "--source", "mysql", "--at-least-once"],
        ["demo", "--source", "mysql", "--plain"],
        ["demo", "--source", "mysql", "--records", "10"],
        ["demo", "--mysql-home", "."],
    ],
    ids=str,
)
def test_wrong_usage_has_its_own_status(arguments: list[str]):
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == USAGE, result.output


@pytest.mark.parametrize(
    "arguments", [[], ["--since", "yesterday"], ["--conserves", "mostly"]], ids=" ".join
)
def test_the_module_agrees(arguments: list[str]):
    command = [sys.executable, "-m", "onceward_verify", "--pipeline-id", "p", *arguments]
    command += ["--bootstrap-servers", "127.0.0.1:1"] if arguments else []
    assert subprocess.run(command, capture_output=True, check=False).returncode == USAGE


@pytest.mark.parametrize("asking", ["onceward_verify", "onceward.cli"])
def test_a_dead_broker_is_one_line(asking: str):
    (port,) = free_ports(1)
    start = (
        ["-m", asking]
        if asking == "onceward_verify"
        else ["-c", "from onceward.cli import app; app()", "verify"]
    )
    address = f"127.0.0.1:{port}"
    done = subprocess.run(
        [sys.executable, *start, "--pipeline-id", "p", "--bootstrap-servers", address],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (UNAVAILABLE, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"CANNOT TELL: no broker answers at {address}: ")
    assert "Next: check --bootstrap-servers" in line


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.BrokerUnreachable, UNAVAILABLE),
        (errors.LedgerUnreachable, UNAVAILABLE),
        (errors.ServerUnreachable, UNAVAILABLE),
        (errors.AccessDenied, DENIED),
        (errors.AuthenticationFailed, DENIED),
        (errors.RegistryUnreachable, UNAVAILABLE),
        (errors.RegistryRefused, DENIED),
        (errors.ConfigurationError, USAGE),
        (errors.LedgerUnreadable, 1),
    ],
)
def test_what_a_command_could_not_ask_is_no_verdict(
    error: type[errors.OncewardError], status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise error("no", next_step="see")

    monkeypatch.setattr(LedgerView, "pipelines", refuse)
    assert CliRunner().invoke(app, ["status", "--ledger-path", "."]).exit_code == status


@pytest.mark.parametrize(
    "module", ["onceward", "onceward.cli", "onceward.operate.run_job", "onceward.operate.stopping"]
)
def test_what_answers_at_once_loads_nothing_heavy(module: str) -> None:
    """``--help``, the supervisor of ``onceward run``, and a job before its own first line."""
    heavy = ("pyspark", "pyarrow", "numpy", "kafka", "confluent_kafka", "pandas")
    code = f"import sys, {module}; print([each for each in {heavy} if each in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


COMMAND = [sys.executable, "-m", "onceward"]


@pytest.mark.parametrize("form", [["--json"], []], ids=["JSON", "a table"])
@pytest.mark.parametrize("output", ["/dev/full", "a pipe that nobody reads"])
def test_an_output_that_cannot_be_written_is_no_verdict(
    output: str, form: list[str], tmp_path: Path
) -> None:
    command = [*COMMAND, "savepoint", "list", str(tmp_path), *form]
    if output == "/dev/full":
        with open(output, "w") as full:
            done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False)
        status, said = done.returncode, done.stderr
    else:
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.close()
            assert process.stderr is not None
            said, status = process.stderr.read(), process.wait(60)
    assert status == 74, said
    assert b"Traceback" not in said


@pytest.mark.parametrize(
    ("command", "status"),
    [
        (["onceward", "savepoint", "list", "."], 0),
        (["onceward", "savepoint", "list", ".", "--json"], 0),
        (["onceward", "--help"], 0),
        (["onceward_verify", "--files", ".", "--pipeline-id", "p"], 70),
        (["onceward_verify", "--files", ".", "--pipeline-id", "p", "--output", "json"], 70),
    ],
    ids=str,
)
def test_a_stdout_that_is_closed_is_no_verdict(
    command: list[str], status: int, tmp_path: Path
) -> None:
    """As of some schedulers and init scripts."""
    closed = (
        "import os, sys; os.close(1); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    )
    done = subprocess.run(
        [sys.executable, "-c", closed, "-m", *command],
        cwd=tmp_path, stderr=subprocess.PIPE, check=False, timeout=60,
    )  # fmt: skip
    assert (done.returncode, b"Traceback" in done.stderr) == (status, False), done.stderr


ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.mark.parametrize("command", ["onceward status", "onceward doctor", "onceward_verify"])
@pytest.mark.parametrize("more", [ASCII, {"PYTHONIOENCODING": "latin-1"}], ids=["C", "ISO 8859"])
def test_help_is_shown_in_any_encoding(command: str, more: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *command.split(), "--help"],
        env=os.environ | more, capture_output=True, check=False, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_name_keeps_its_bytes_where_the_encoding_lacks_them() -> None:
    assert "caf\udcc3\udca9".encode("ascii", _ANYTHING) == "café".encode()
    assert "[,…]".encode("ascii", _ANYTHING) == b"[,?]"


def test_a_table_is_not_cut_where_colours_are_forced(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As CI does."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "40")
    printed = io.StringIO()
    with redirect_stdout(printed):
        print_table(table("pipeline", "epoch>", rows=[("long" * 20, 7)]))
    assert "long" * 20 in printed.getvalue()
    assert "\x1b" not in printed.getvalue()


def test_commands_show_what_others_say_and_a_terminal_obeys_none_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise errors.BrokerUnreachable("no \x1b[2J\n  line \\d", next_step="see \x9b2J")

    monkeypatch.setattr(LedgerView, "pipelines", refuse)
    result = CliRunner().invoke(app, ["status", "--ledger-path", "."])
    assert "BrokerUnreachable: no \\x1b[2J\n  line \\d\n" in result.output
    assert "Next: see \\x9b2J." in result.output
    folder = Path(groups.__file__).parent
    raw = {
        file.name
        for file in folder.rglob("*.py")
        if re.search(r"typer\.s?echo\(|\bprint\(\S", file.read_text())
    }
    assert raw <= {"shared.py", "checks.py"}, "print by onceward.cli.shared.say"


def test_a_report_that_cannot_be_written_or_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(*_: object) -> None:
        raise errors.BrokerUnreachable("no", next_step="see")

    with monkeypatch.context() as patched:
        patched.setattr(LedgerView, "pipelines", refuse)
        asked = ["report", "--ledger-path", ".", "--pipeline-id", "p", "--html"]
        away = CliRunner().invoke(app, [*asked, str(tmp_path / "x.html")])
    assert away.exit_code == UNAVAILABLE, away.output


def test_the_help_tells_of_every_status():
    told = " ".join(CliRunner().invoke(app, ["verify", "--help"]).output.split())
    for status in (
        "0 exactly once",
        "1 violated",
        "2 cannot tell",
        "64 the command",
        "69 no broker",
        "70 the checker",
    ):
        assert status in told.replace("│", "")
