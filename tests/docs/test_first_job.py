"""The README's first job and the tutorial, typed into an empty folder: their commands, and ``kill
-9`` in the middle.

All that differs from the pages is the port, which is a free one. The folder has nothing in it, and
the job is a process of its own: started by ``python`` without the environment activated, and by
``spark-submit`` with it, since that looks for PySpark in the ``python3`` of the path.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from onceward_testing import read_topic
from onceward_testing.free_ports import free_ports
from support import markdown_pages as markdown
from support.markdown_pages import ROOT

BIN = Path(sys.executable).parent
DEADLINE_SECONDS = 240
TUTORIAL = "docs/tutorial/first-pipeline.md"
VISITS = 6_000

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def lines(page: str, start: str) -> list[str]:
    """The page's shell lines that begin so, in order."""
    shell = [block for block in markdown.blocks(ROOT / page) if block.language == "bash"]
    return [line for block in shell for line in block.text.splitlines() if line.startswith(start)]


class Newcomer:
    """A terminal in an empty folder."""

    def __init__(self, folder: Path, port: int, page: str) -> None:
        self.folder, self.port, self.servers = folder, port, f"localhost:{port}"
        self.activated = False
        self.started: list[subprocess.Popen[str]] = []
        programs = [block for block in markdown.blocks(ROOT / page) if block.language == "python"]
        names = re.findall(
            r"^Write these lines to `(\w+\.py)`", (ROOT / page).read_text(), re.MULTILINE
        )
        for name, program in zip(names, programs, strict=True):
            (folder / name).write_text(self.fit(program.text))

    def fit(self, text: str) -> str:
        return re.sub(r"\b9092\b", str(self.port), text)

    def environment(self) -> dict[str, str]:
        """With the virtual environment's ``bin`` on the path only if it is activated; what is run
        is named in full.
        """
        others = [folder for folder in os.environ["PATH"].split(os.pathsep) if Path(folder) != BIN]
        path = [str(BIN), *others] if self.activated else others
        ours = ("PYSPARK", "SPARK", "VIRTUAL_ENV")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        return {
            **kept,
            "PATH": os.pathsep.join(path),
            "PYTHONPATH": os.pathsep.join(p for p in sys.path if "src" in p),
        }

    def words(self, line: str) -> list[str]:
        words = shlex.split(self.fit(line), comments=True)
        return [str(BIN / words[0]), *words[1:]]

    def run(self, line: str) -> str:
        done = subprocess.run(
            self.words(line), cwd=self.folder, env=self.environment(), capture_output=True,
            text=True, check=False,
            timeout=DEADLINE_SECONDS,
        )  # fmt: skip
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def start(self, line: str) -> subprocess.Popen[str]:
        with (self.folder / f"{len(self.started)}.log").open("w") as log:
            process = subprocess.Popen(
                self.words(line), cwd=self.folder, env=self.environment(), stdout=log, stderr=log,
                text=True,
                start_new_session=True,
            )  # fmt: skip
        self.started.append(process)
        return process

    def kill(self, process: subprocess.Popen[str]) -> None:
        """``kill -9`` of the process and of the JVM that it started."""
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)

    def wait(
        self, condition: Callable[[], bool], process: subprocess.Popen[str], what: str
    ) -> None:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not condition():
            log = (self.folder / f"{self.started.index(process)}.log").read_text()
            assert process.poll() is None, f"ended before {what}:\n{log}"
            assert time.monotonic() < deadline, f"no {what}:\n{log}"
            time.sleep(0.5)

    def visible(self, topic: str) -> list[bytes | None]:
        return [record.value for record in read_topic(self.servers, topic)]


@pytest.fixture
def page(request: pytest.FixtureRequest) -> str:
    return getattr(request, "param", "README.md")


@pytest.fixture
def newcomer(tmp_path: Path, page: str) -> Iterator[Newcomer]:
    [port] = free_ports(1)
    person = Newcomer(tmp_path, port, page)
    [line] = lines(page, "onceward broker")
    broker = person.start(line)
    person.wait(
        lambda: str(port) in (tmp_path / "0.log").read_text(), broker, "the broker's address"
    )
    yield person
    for process in person.started[1:]:
        if process.poll() is None:
            person.kill(process)
    broker.send_signal(signal.SIGINT)
    broker.wait(60)


def submit_line(newcomer: Newcomer) -> str:
    """The first of the deploying page, ``$(onceward jars --submit)`` filled in as a shell
    would.
    """
    line = lines("docs/how-to/deploying.md", "spark-submit $(onceward jars --submit)")[0]
    return line.replace(
        "$(onceward jars --submit)", newcomer.run("onceward jars --submit").strip()
    )


@pytest.mark.parametrize("launcher", ["python", "spark-submit"])
def test_the_first_job_survives_a_kill(launcher: str, newcomer: Newcomer):
    newcomer.activated = launcher == "spark-submit"
    line = (
        lines("README.md", "python job.py")[0] if launcher == "python" else submit_line(newcomer)
    )
    [send], [verify] = lines("README.md", "python -c"), lines("README.md", "onceward verify")

    newcomer.run(send)
    first = newcomer.start(line)
    newcomer.wait(lambda: newcomer.visible("people-clean") == [b"ADA"], first, "record")
    newcomer.kill(first)

    newcomer.run(send)
    second = newcomer.start(line)
    newcomer.wait(
        lambda: newcomer.visible("people-clean") == [b"ADA"] * 2, second, "second record"
    )
    assert "EXACTLY ONCE: pipeline people-etl: 2 records in 2 batches" in newcomer.run(verify)


@pytest.mark.parametrize("page", [TUTORIAL], indirect=True)
def test_the_tutorials_pipeline_survives_its_kills(newcomer: Newcomer):
    [produce], [verify] = lines(TUTORIAL, "python visits.py"), lines(TUTORIAL, "onceward verify")
    [kill] = lines(TUTORIAL, "pkill")
    assert kill == "pkill -9 -f job.py", (
        "the test kills by process id, because others run jobs of that name, too"
    )
    first, again = lines(TUTORIAL, "python job.py")

    job, visits = newcomer.start(first), newcomer.start(produce)
    newcomer.wait(lambda: len(newcomer.visible("visits-clean")) > 0, job, "visit")
    newcomer.kill(job)
    job = newcomer.start(again)
    assert visits.wait(DEADLINE_SECONDS) == 0
    newcomer.wait(lambda: len(newcomer.visible("visits-clean")) == VISITS, job, "last visit")
    assert set(newcomer.visible("visits-clean")) == {b"/page-%d" % number for number in range(13)}
    assert newcomer.run(verify).startswith("EXACTLY ONCE: pipeline clean-visits: 6,000 records")
