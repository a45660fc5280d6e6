#!/usr/bin/env python3
"""Run README's first job as a newcomer would: its own commands, in an environment that pip has
just made.

No lock file: pip takes what it resolves today. The commands and the program come out of README.md,
so that a page that no longer works fails here. In order: install, start the broker, run the job,
write a record, ``verify``; ``kill -9`` the job, start it again, write another record, ``verify``
once more; read the output with another client. Exit status 0: all of it went well, and the output
has each record once. ``make readme`` runs it with the newest PySpark, ``make matrix`` with each
one of its rows.

Needs Python 3.10 or later, nothing else than its library; the port that README names has to be
free.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PORT = "9092"
"""README's."""
_DEADLINE_SECONDS = 300
_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_OF_OTHERS = re.compile(
    r"(PYSPARK|SPARK|PYTHON|ONCEWARD|VIRTUAL_ENV|UV_)"
)  # variables that a newcomer does not have
_READ = """\
from confluent_kafka import Consumer
reader = Consumer({"bootstrap.servers": "localhost:PORT", "group.id": "r", "auto.offset.reset": "earliest"})
reader.subscribe(["people-clean"])
values, quiet = [], 0
while quiet < 10:
    message = reader.poll(1)
    quiet = quiet + 1 if message is None else 0
    if message is not None and message.error() is None:
        values.append(message.value().decode())
print(" ".join(sorted(values)))
"""


class NotAsPromised(Exception):
    """A step of the page did not do what the page says."""


class Page:
    """README's own blocks, by what they do."""

    def __init__(self, text: str, port: str) -> None:
        section = text[text.index("## Install") : text.index("## Two commands")].replace(
            PORT, port
        )
        blocks = _FENCE.findall(section)
        bash = [body.strip() for language, body in blocks if language == "bash"]
        (self.program,) = [body for language, body in blocks if language == "python"]
        self.install, self.broker, self.run, last = bash
        self.produce, self.verify = last.splitlines()


class Newcomer:
    """An empty folder with an environment of its own, and what was started in it."""

    def __init__(self, folder: Path, python: str, pyspark: str | None) -> None:
        self.folder = folder
        self._started: list[subprocess.Popen[bytes]] = []
        subprocess.run([python, "-m", "venv", str(folder / "venv")], check=True)
        self._variables = {
            name: value for name, value in os.environ.items() if not _OF_OTHERS.match(name)
        }
        self._variables["PATH"] = f"{folder / 'venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"
        # Not ONCEWARD_CACHE, which has all jars fetched again; and pip keeps its own
        self._variables.setdefault("PIP_CACHE_DIR", str(Path.home() / ".cache" / "pip"))
        self._variables["XDG_CACHE_HOME"] = str(folder / "cache")
        if pyspark is not None:
            (folder / "constraints.txt").write_text(f"pyspark=={pyspark}\n")
            self._variables["PIP_CONSTRAINT"] = str(folder / "constraints.txt")

    def answer(
        self, command: str, *, within: float = _DEADLINE_SECONDS, where: Path | None = None
    ) -> tuple[int, str]:
        """Run ``command`` in a shell; its exit status and all that it printed."""
        try:
            ran = subprocess.run(
                ["bash", "-c", command],
                cwd=where or self.folder,
                env=self._variables,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=within,
            )
        except subprocess.TimeoutExpired as late:
            raise NotAsPromised(f"{command}\nhas not ended within {within:g} s") from late
        return ran.returncode, ran.stdout.decode(errors="replace")

    def do(
        self, command: str, *, within: float = _DEADLINE_SECONDS, where: Path | None = None
    ) -> str:
        """:raises NotAsPromised: it ends with another status than 0."""
        status, text = self.answer(command, within=within, where=where)
        if status:
            raise NotAsPromised(f"{command}\nended with status {status}:\n{text[-5000:]}")
        return text

    def start(self, command: str, log: str) -> subprocess.Popen[bytes]:
        """Start ``command``, as in a terminal of its own."""
        with (self.folder / log).open("wb") as out:
            started = subprocess.Popen(
                ["bash", "-c", f"exec {command}"],
                cwd=self.folder,
                env=self._variables,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._started.append(started)
        return started

    def wait_for(
        self, what: str, holds: Callable[[], bool], running: subprocess.Popen[bytes], log: str
    ) -> None:
        """:raises NotAsPromised: it does not hold in time, or the process that should bring it
        about has ended.
        """
        deadline = time.monotonic() + _DEADLINE_SECONDS
        while not holds():
            ended = running.poll() is not None
            if ended or time.monotonic() > deadline:
                why = (
                    f"the process ended with status {running.returncode}"
                    if ended
                    else "nothing in time"
                )
                raise NotAsPromised(
                    f"{what}: {why}; {log} ends with\n{(self.folder / log).read_text()[-5000:]}"
                )
            time.sleep(0.5)

    def end(self) -> None:
        """End what still runs, and what a killed job has left for a moment: its JVM."""
        for process in reversed(self._started):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def run_until_killed(newcomer: Newcomer, page: Page, *, batches: int) -> None:
    """One life of the job: a record more, until ``verify`` has seen so many batches."""
    verdict = newcomer.folder / "verdict.txt"

    def verified() -> bool:
        status, text = newcomer.answer(page.verify)
        verdict.write_text(text)
        return status == 0 and f"{batches} batch" in text

    say(page.run)
    job = newcomer.start(page.run, "job.log")
    for tries_left in (
        2,
        1,
        0,
    ):  # on a busy machine half a minute may be too short for its client to find the broker
        status, text = newcomer.answer(page.produce)
        if not status:
            break
        if not tries_left or "Unable to bootstrap" not in text:
            raise NotAsPromised(f"{page.produce}\nended with status {status}:\n{text[-5000:]}")
    newcomer.wait_for("verify", verified, job, "job.log")
    say(f"{page.verify}\n{verdict.read_text().strip()}")
    say("kill -9")
    job.kill()
    job.wait()


def follow(newcomer: Newcomer, page: Page, port: str) -> None:
    """Do what the page says, and look whether it comes out."""
    say(page.install)
    newcomer.do(page.install.partition("#")[0], within=1800, where=ROOT)
    installed = (
        "import onceward, pyspark, pandas, sys; print(pyspark.__version__, "
        "pandas.__version__, sys.version)"
    )
    say(
        f"installed: PySpark, pandas, Python "
        f"{newcomer.do(f'python -c {chr(34)}{installed}{chr(34)}').strip()}"
    )
    (newcomer.folder / "job.py").write_text(page.program)
    say(page.broker)
    broker = newcomer.start(page.broker, "broker.log")
    log = newcomer.folder / "broker.log"
    newcomer.wait_for(
        "the broker", lambda: "\nrunning until" in log.read_text(), broker, "broker.log"
    )
    for life in (1, 2):
        run_until_killed(newcomer, page, batches=life)
    (newcomer.folder / "read.py").write_text(_READ.replace("PORT", port))
    if (read := newcomer.do("python read.py").split()) != ["ADA", "ADA"]:
        raise NotAsPromised(f"the output is {read}, not ADA twice, once for each record")
    os.killpg(broker.pid, signal.SIGINT)  # what a terminal does
    if broker.wait(60) != 0:
        raise NotAsPromised(
            f"the broker ended with status {broker.returncode} at "
            f"Ctrl-C:\n{log.read_text()[-3000:]}"
        )


def say(text: str) -> None:
    """One line at once."""
    sys.stdout.write(f"── {text}\n")
    sys.stdout.flush()


def main() -> int:
    """Exit status 0: README holds."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pyspark", metavar="VERSION", help="default: what pip resolves")
    parser.add_argument(
        "--python", default=sys.executable, help="the interpreter to make the environment with"
    )
    parser.add_argument(
        "--kafka", metavar="VERSION", help="the broker's release, instead of README's"
    )
    parser.add_argument("--port", default=PORT, help="another port than README's")
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="work there, and leave everything"
    )
    asked = parser.parse_args()
    page = Page((ROOT / "README.md").read_text(), asked.port)
    if asked.kafka:
        page.broker += f" --version {asked.kafka}"
    folder = asked.keep or Path(tempfile.mkdtemp(prefix="onceward-readme-"))
    folder.mkdir(parents=True, exist_ok=True)
    newcomer = Newcomer(folder.resolve(), asked.python, asked.pyspark)
    began = time.monotonic()
    try:
        follow(newcomer, page, asked.port)
    except NotAsPromised as error:
        say(f"FAILED: {error}")
        return 1
    finally:
        newcomer.end()
        if asked.keep is None:
            shutil.rmtree(folder, ignore_errors=True)
    say(f"README holds ({time.monotonic() - began:.0f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
