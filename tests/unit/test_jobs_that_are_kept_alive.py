"""``onceward run`` with real processes of jobs that have no Spark: each exit status, signals, and a
loop like systemd's that obeys the unit of the page.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from onceward.operate import run_job
from support import markdown_pages as markdown
from support import service_loop

pytestmark = pytest.mark.lengthy("ci")

PATIENCE_SECONDS = 90
RUN = [sys.executable, "-m", "onceward", "run"]
PAGE = markdown.ROOT / "docs" / "how-to" / "run.md"
COMMITTED = 'ow.events.publish(ow.events.Event("finish", "finished"))'

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a job under ``onceward run``, in ``tmp_path``."""
    started: list[subprocess.Popen[str]] = []

    def begin(job: str, *options: str) -> subprocess.Popen[str]:
        (tmp_path / "job.py").write_text("import os, signal, sys, time\n" + textwrap.dedent(job))
        process = subprocess.Popen(
            [*RUN, *options, "job.py", "an argument"],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        if process.poll() is None:
            for child in psutil.Process(process.pid).children(recursive=True):
                child.kill()
            process.kill()
        process.communicate()


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    output, _ = process.communicate(timeout=PATIENCE_SECONDS)
    return process.returncode, output


def until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


LEFT_IN_A_THREAD = """
    import threading
    from concurrent.futures import ThreadPoolExecutor
    import onceward as ow
    from onceward.engine.calls import runs

    failures = []
    runs.failed_at_last = lambda: failures[0] if failures else None

    def pipeline():
        time.sleep(1)
        with ThreadPoolExecutor() as pool:
            pool.submit(failures.append, ow.errors.SendFailed("away")).result()

    idle = ThreadPoolExecutor()
    idle.submit(print).result()
    threading.Thread(target=pipeline).start()
"""

FAILS_IN_A_THREAD = """
    import threading
    import onceward as ow

    def start():
        raise ow.errors.BrokerUnreachable("before there is a query", next_step="wait")

    threading.Thread(target=ow.supervise, args=(start, ow.restart.NoRestart())).start()
"""

FAILS_IN_AN_EXECUTOR = """
    from concurrent.futures import ThreadPoolExecutor
    import onceward as ow

    def start():
        time.sleep(0.2)
        raise RuntimeError("before there is a query")

    ThreadPoolExecutor(1).submit(ow.supervise, start)
    sys.exit(0)
"""

DEFINED_IN_A_THREAD = """
    import threading
    import onceward as ow
    from onceward.operate import stopping

    def pipeline():
        {failure}
        ow.wait()

    thread = threading.Thread(target=pipeline, daemon={daemon})
    thread.start()
    thread.join()
"""
OF_OURS = 'raise ow.errors.ConfigurationError("no such topic", next_step="create it")'
TOLD_TO_STOP = 'stopping._is_requested = True; raise RuntimeError("the session is gone")'

WITHOUT_ITS_SESSION = """from pyspark import SparkContext
        SparkContext._gateway = "of a session that the job has stopped"
        raise RuntimeError("it has stopped")"""
NOT_BUILT = """from pyspark import SparkContext
        SparkContext._gateway = "of a session that is being built"
        SparkContext(gateway=object())"""
WITHOUT_ITS_QUERY = """from onceward.spark.batch.job import JobInterrupted
        raise JobInterrupted"""

CALLED_WRONGLY_IN_AN_EXECUTOR = """
    from concurrent.futures import ThreadPoolExecutor
    import onceward as ow

    ThreadPoolExecutor(1).submit({call})
"""

HANDLED_IN_A_THREAD = """
    import threading
    from contextlib import suppress
    import onceward as ow
    from onceward.operate import stopping

    def without_this_one():
        with suppress(ow.errors.ConfigurationError), stopping.waiting():
            raise ow.errors.ConfigurationError("no such topic", next_step="create it")

    thread = threading.Thread(target=without_this_one)
    thread.start()
    thread.join()
    raise ow.errors.BrokerUnreachable("away", next_step="wait")
"""

FENCED_IN_A_THREAD = """
    import threading
    import onceward as ow
    from onceward.operate import stopping

    def fails(error):
        with stopping.waiting():
            raise error

    away = ow.errors.BrokerUnreachable("away", next_step="wait")
    for error in (ow.errors.Fenced("a newer copy"), away):
        thread = threading.Thread(target=fails, args=(error,))
        thread.start()
        thread.join()
"""

NAMED_WHEN_ITS_FILE_HAS_ENDED = """
    import multiprocessing, pickle, threading
    from concurrent.futures import ProcessPoolExecutor

    class Order:
        pass

    def work(number):
        return number + 1

    def pipeline():
        time.sleep(1)
        assert os.path.isabs(__file__)
        assert isinstance(pickle.loads(pickle.dumps(Order())), Order)
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=spawn) as pool:
            print("worked:", pool.submit(work, 1).result(), flush=True)

    if __name__ == "__main__":
        threading.Thread(target=pipeline).start()
"""

SOON = """
    frame = sys._getframe()
    while "_TO_PIPELINE_SECONDS" not in frame.f_globals:
        frame = frame.f_back
    frame.f_globals["_TO_PIPELINE_SECONDS"] = 0.5
"""

WAITED_FOR_IN_AN_EXECUTOR = """
    from concurrent.futures import ThreadPoolExecutor
    from onceward.operate import stopping

    def pipeline():
        time.sleep(1)  # its session is built
        with stopping.waiting():
            time.sleep(2)
            ThreadPoolExecutor(1).submit(print, "it worked to its end").result()

    ThreadPoolExecutor(1).submit(pipeline)
    sys.exit(0)
"""

QUIET_IN_A_THREAD = """
    import threading
    from concurrent.futures import ThreadPoolExecutor
    from onceward.spark.batch import query

    running = ["a query that has met no batch yet"]
    query.running_queries = lambda: running

    def pipeline():
        time.sleep(3)
        running.clear()
        ThreadPoolExecutor(1).submit(print, "it worked to its end").result()

    threading.Thread(target=pipeline).start()
"""

AWAITED_IN_A_DAEMON_THREAD = """
    import threading
    from onceward.operate import stopping

    def pipeline():
        with stopping.waiting():
            time.sleep(2)
            print("it worked to its end", flush=True)

    threading.Thread(target=pipeline, daemon=True).start()
    time.sleep(0.5)
"""

A_QUERY_WITHOUT_A_THREAD = """
    from onceward.spark.batch import query

    query.running_queries = lambda: ["one that nobody waits for"]
"""

ENDS_WITH_PYTHON = """
    import threading
    from concurrent.futures import ProcessPoolExecutor

    def helper():
        while threading.main_thread().is_alive():
            time.sleep(0.05)

    pool = ProcessPoolExecutor(1)
    pool.submit(abs, -1).result()
    threading.Thread(target=helper).start()
"""


@pytest.mark.parametrize(
    ("job", "status", "text"),
    [
        ("pass", 0, "finished"),
        pytest.param(LEFT_IN_A_THREAD, 75, "SendFailed: away", id="left in a thread"),
        pytest.param(WAITED_FOR_IN_AN_EXECUTOR, 0, "worked to its end", id="in an executor"),
        pytest.param(FAILS_IN_A_THREAD, 75, "before there is a query", id="fails in a thread"),
        pytest.param(FAILS_IN_AN_EXECUTOR, 1, "RuntimeError: before", id="fails in a pool"),
        pytest.param(
            DEFINED_IN_A_THREAD.format(failure=OF_OURS, daemon=False),
            78,
            "ConfigurationError: no such topic",
            id="defined in a thread",
        ),
        pytest.param(
            DEFINED_IN_A_THREAD.format(failure=OF_OURS, daemon=True),
            78,
            "ConfigurationError: no such topic",
            id="defined in a daemon",
        ),
        pytest.param(
            DEFINED_IN_A_THREAD.format(failure="{}['topic']", daemon=False),
            1,
            "KeyError: 'topic'",
            id="the job's own in a thread",
        ),
        pytest.param(
            DEFINED_IN_A_THREAD.format(failure="{}['topic']", daemon=True),
            0,
            "finished",
            id="a library's thread",
        ),
        pytest.param(
            DEFINED_IN_A_THREAD.format(failure=TOLD_TO_STOP, daemon=False),
            0,
            "finished",
            id="a thread that was told to stop",
        ),
        pytest.param(
            DEFINED_IN_A_THREAD.format(failure=WITHOUT_ITS_SESSION, daemon=False),
            0,
            "RuntimeError: it has stopped",
            id="a thread whose session was stopped",
        ),
        pytest.param(
            DEFINED_IN_A_THREAD.format(failure=WITHOUT_ITS_QUERY, daemon=False),
            0,
            "finished",
            id="a thread whose query was stopped",
        ),
        pytest.param(
            DEFINED_IN_A_THREAD.format(failure=NOT_BUILT, daemon=False),
            1,
            "has no attribute 'gateway_parameters'",
            id="a session that is not built in a thread",
        ),
        pytest.param(
            CALLED_WRONGLY_IN_AN_EXECUTOR.format(call="ow.wait"),
            78,
            "ow.wait() waits for nothing",
            id="wrong call in a pool",
        ),
        pytest.param(
            CALLED_WRONGLY_IN_AN_EXECUTOR.format(call="ow.supervise, None"),
            78,
            "start=None is wrong",
            id="wrong supervise in a pool",
        ),
        pytest.param(FENCED_IN_A_THREAD, 79, "Fenced: a newer", id="fenced in a thread"),
        pytest.param(FENCED_IN_A_THREAD + "    raise away", 79, "Fenced: a newer", id="fenced"),
        pytest.param(
            FENCED_IN_A_THREAD + "    sys.exit(ow.exit_status(away))",
            75,
            "may pass",
            id="believed",
        ),
        pytest.param(HANDLED_IN_A_THREAD, 75, "BrokerUnreachable: away", id="handled"),
        (NAMED_WHEN_ITS_FILE_HAS_ENDED, 0, "worked: 2"),
        pytest.param(AWAITED_IN_A_DAEMON_THREAD, 0, "worked to its end", id="daemon"),
        pytest.param(SOON + QUIET_IN_A_THREAD, 0, "worked to its end", id="quiet"),
        pytest.param(A_QUERY_WITHOUT_A_THREAD, 0, "finished", id="without a thread"),
        pytest.param(SOON + ENDS_WITH_PYTHON, 0, "finished", id="ends with Python"),
        ("import onceward as ow; raise ow.errors.SendFailed('away')", 75, "job.py:2: SendFailed"),
        ("import onceward as ow; ow.checkpointing(retain=0)", 78, "job.py:2: ConfigurationError"),
        ("import onceward as ow; raise ow.errors.Fenced('a newer copy')", 79, "Fenced: a newer"),
        ("import onceward as ow; raise ow.errors.AuthenticationFailed('no')", 78, "a change"),
        (
            f"import onceward as ow; {COMMITTED}; raise ow.errors.AuthenticationFailed('no')",
            75,
            "may pass",
        ),
        ("raise ValueError('of the job')", 1, "Traceback"),
        ("sys.exit(3)", 3, "status 3"),
        ("sys.exit('in words')", 1, "in words"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "killed by SIGKILL"),
        ("assert sys.argv == ['job.py', 'an argument']", 0, "finished"),
        ("import threading; threading.Thread(target=print, args=('late',)).start()", 0, "late"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_each_end_has_its_status(start: Start, job: str, status: int, text: str):
    found, output = ended(start(job, "--restart", "none"))
    assert (found, text in output) == (status, True), output


def test_a_job_finds_the_packages_of_an_archive(tmp_path: Path):
    """As in a PEX, whose interpreter alone has none of them; and nothing in the current folder."""
    (tmp_path / "onceward.py").write_text("raise RuntimeError('of the current folder')")
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "beside.py").touch()
    (tmp_path / "jobs" / "job.py").write_text(
        "import beside, onceward as ow; raise ow.errors.Fenced('a newer copy')"
    )
    path = [each for each in sys.path if each]
    (tmp_path / "archive").mkdir()
    (tmp_path / "archive" / "__main__.py").write_text(
        f"import sys; sys.path[1:1] = {path}\n"
        "from onceward.cli import app; app(prog_name='onceward')"
    )
    ran = subprocess.run(
        [sys._base_executable, "archive", "run", "--restart", "none", "jobs/job.py"],
        cwd=tmp_path, env={}, capture_output=True, text=True, timeout=PATIENCE_SECONDS,
    )  # fmt: skip
    assert (ran.returncode, "Fenced: a newer copy" in ran.stderr) == (79, True), ran.stderr


def test_an_archive_with_all_packages_stays_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Or the job would run with what the interpreter has of another version. A project's folder
    with its environment inside is none, though Onceward is below it.
    """
    (archive := tmp_path / "app.pyz").touch()
    (unpacked := tmp_path / "unpacked").mkdir()
    (unpacked / "__main__.py").touch()
    (project := tmp_path / "project").mkdir()
    for folder, stays in ((archive, True), (unpacked, True), (project, False)):
        monkeypatch.setattr(run_job, "__file__", f"{folder}/lib/onceward/operate/run_job.py")
        monkeypatch.setattr(sys, "path", path := [str(folder), "/packages"])
        assert run_job.search_path() == (path if stays else path[::-1]), folder
    monkeypatch.setattr(sys, "path", ["/program", "/packages"])
    assert run_job.search_path() == ["/packages", "/program"]
    monkeypatch.setattr(sys, "path", [])
    assert run_job.search_path() == []


@pytest.mark.parametrize("lost", ["stdout", "stderr"])
@pytest.mark.parametrize(
    ("job", "status"),
    [
        ("raise ow.errors.Fenced('a newer copy')", 79),
        ("ow.checkpointing(retain=0)", 78),
        ("pass", 0),
    ],
)
def test_a_status_is_not_lost_with_what_cannot_be_printed(
    tmp_path: Path, job: str, status: int, lost: str
):
    """As on a full disk. Only unbuffered streams say so to the job, when it prints."""
    code = f"import onceward as ow\nopen('starts', 'a').write('.')\nprint('begins')\n{job}\n"
    (tmp_path / "job.py").write_text(code)
    environment = {name: os.environ[name] for name in os.environ if name != "PYTHONUNBUFFERED"}
    with open("/dev/full", "w") as full:
        streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        streams[lost] = full
        ran = subprocess.run(
            [*RUN, "--restart", "fixed-delay", "--attempts", "2", "--delay", "10ms", "job.py"],
            cwd=tmp_path, env=environment, timeout=PATIENCE_SECONDS, check=False, **streams,
        )  # fmt: skip
    assert (ran.returncode, (tmp_path / "starts").read_text()) == (status, ".")


COUNTING = """
    import onceward as ow
    with open("starts", "a") as file:
        print(os.environ.get("ONCEWARD_RUN_WORKED"), file=file)
    count = len(open("starts").readlines())
    if count < 4:
        raise ow.errors.SendFailed(f"start {count}")
"""


def test_a_job_is_started_until_it_finishes(start: Start, tmp_path: Path):
    status, output = ended(start(COUNTING, "--restart", "fixed-delay", "--delay", "10 ms"))
    assert status == 0, output
    assert [output.count(f"SendFailed: start {count}") for count in (1, 2, 3, 4)] == [1, 1, 1, 0]
    assert output.count("started again in") == 3
    assert len((tmp_path / "starts").read_text().splitlines()) == 4


def test_restarts_that_are_used_up_end_with_the_last_failure(start: Start):
    options = ["--restart", "fixed-delay", "--attempts", "2", "--delay", "10ms"]
    status, output = ended(start(COUNTING, *options))
    assert status == 75, output
    assert "FixedDelay(attempts=2, delay_s=0.01) is used up after 3 failures" in output


SLEEPING = """
    open(f"began-{os.getpid()}", "w").close()
    time.sleep(600)
"""


def began(folder: Path) -> list[int]:
    return [int(file.name.partition("-")[2]) for file in folder.glob("began-*")]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=str)
def test_a_job_without_a_query_ends_at_once_and_well(
    start: Start, tmp_path: Path, number: signal.Signals
):
    process = start(SLEEPING)
    until(lambda: began(tmp_path))
    process.send_signal(number)
    status, output = ended(process)
    assert status == 0, output
    assert "is told to end with its batch" in output


FORKS = "import multiprocessing as mp; fork = mp.get_context('fork')\n"


@pytest.mark.parametrize(
    "job",
    [
        # The usual way to give work a time limit
        FORKS
        + "with fork.Pool(1) as pool:\n"
        + "    done = pool.apply_async(time.sleep, (600,))\n"
        + "    try: done.get(timeout=0.5)\n"
        + "    except mp.TimeoutError: print('it took too long')\n",
        FORKS + "fork.Process(target=time.sleep, args=(600,), daemon=True).start()\n",
        # One that waits for a query itself answers, and is heard
        FORKS
        + "import threading\n"
        + "def work():\n"
        + "    from onceward.operate import stopping\n"
        + "    stopped = threading.Event()\n"
        + "    with stopping.waiting(stopped): stopped.wait(600)\n"
        + "one = fork.Process(target=work); one.start(); time.sleep(1); one.terminate()\n"
        + "one.join(); sys.exit(one.exitcode)\n",
    ],
    ids=["a pool", "a daemon", "one that waits"],
)
def test_what_a_job_forks_ends_as_under_python(start: Start, job: str):
    status, output = ended(start(job))
    assert status == 0, output


def test_a_supervisor_between_two_starts_ends_with_its_last_error(start: Start, tmp_path: Path):
    process = start(
        """
        import onceward as ow
        def begin():
            open(f"began-{os.getpid()}", "w").close()
            raise ow.errors.SendFailed("away")
        try:
            ow.supervise(begin, ow.restart.FixedDelay(delay_s=600))
        finally:
            time.sleep(1)  # it has something to close, and its error is the last word all the same
        """
    )
    until(lambda: began(tmp_path))
    time.sleep(0.5)
    process.send_signal(signal.SIGTERM)
    status, output = ended(process)
    assert (status, "SendFailed: away" in output) == (75, True), output
    assert len(began(tmp_path)) == 1


def test_a_second_signal_ends_what_goes_on(start: Start, tmp_path: Path):
    stubborn = f"""
    try:
        {SLEEPING.strip()}
    except SystemExit:
        time.sleep(600)
    """
    process = start(stubborn.replace("\n    time", "\n        time"))
    until(lambda: began(tmp_path))
    process.send_signal(signal.SIGTERM)
    time.sleep(3)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    status, output = ended(process)
    assert (status, "ended by SIGTERM" in output) == (143, True), output


def test_a_job_that_ignores_signals_is_killed_after_the_second(start: Start, tmp_path: Path):
    job = "    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SLEEPING
    process = start(job, "--stop-timeout", "300 ms")
    until(lambda: began(tmp_path))
    process.send_signal(signal.SIGTERM)
    time.sleep(1)
    assert process.poll() is None, "the first one has all the time that its batch takes"
    process.send_signal(signal.SIGTERM)
    status, output = ended(process)
    assert (status, "is killed" in output) == (137, True), output


def test_what_a_dead_job_leaves_in_its_group_is_killed_and_nothing_else(
    start: Start, tmp_path: Path
):
    """As a JVM that hangs would be."""
    stranger = subprocess.Popen(["sleep", "600"])
    job = """
        import subprocess
        open(f"began-{subprocess.Popen(['sleep', '600']).pid}", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
        """
    try:
        status, output = ended(start(job, "--restart", "none"))
        assert status == 137, output
        [left] = began(tmp_path)
        until(lambda: not is_alive(left))
        assert is_alive(stranger.pid)
    finally:
        stranger.kill()
        stranger.wait()


def is_alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_a_job_ends_when_its_runner_is_gone(start: Start, tmp_path: Path):
    process = start(SLEEPING)
    until(lambda: began(tmp_path))
    [job] = began(tmp_path)
    process.kill()
    until(lambda: not is_alive(job))


# ── Kubernetes' manifests ──


def manifest(kind: str) -> list[str]:
    [text] = [block.text for block in markdown.blocks(PAGE) if f"kind: {kind}\n" in block.text]
    return [line.partition(" #")[0].strip() for line in text.splitlines()]


def test_a_pod_that_was_told_to_stop_does_not_complete_its_job():
    """It ends with 0, and Kubernetes counts it as one of the Job's completions."""
    job = manifest("Job")
    [completions] = [int(line.split()[1]) for line in job if line.startswith("completions:")]
    assert completions >= 1_000_000
    assert "parallelism: 1" in job
    assert "podReplacementPolicy: Failed" in job
    final = run_job.FINAL - {run_job.FINISHED}
    assert f"values: {sorted(final)}" in job


def test_an_operator_gives_up_no_pipeline_for_its_age():
    """Kubeflow's counts restarts and submissions over an application's life, and waits for the
    interval times their number."""
    settings = {
        name: int(value)
        for name, _, value in (line.partition(": ") for line in manifest("SparkApplication"))
        if name.endswith(("Retries", "RetryInterval"))
    }
    assert len(settings) == 4
    for name, value in settings.items():
        assert value == 1 if name.endswith("Interval") else value >= 1_000_000, name


# ── a loop like systemd's ──


def unit() -> str:
    [block] = [block for block in markdown.blocks(PAGE) if block.language == "ini"]
    return block.text


def test_the_unit_prevents_restarts_after_what_is_final():
    settings = service_loop.service(unit())
    restarted = {status: service_loop.is_started_again(settings, status) for status in range(256)}
    assert {status for status, again in restarted.items() if not again} == {0, 64, 78, 79}
    assert service_loop.is_started_again(settings, -signal.SIGKILL)
    assert settings["KillMode"] == "mixed"


def test_a_fenced_job_is_not_started_again_by_a_service_manager(tmp_path: Path):
    """The manager starts a killed runner again, and one whose job was fenced never."""
    job = tmp_path / "job.py"
    job.write_text(
        "import os, sys, time\n"
        "import onceward as ow\n"
        f"sys.stdout = open({str(tmp_path / 'out')!r}, 'a')\n"
        "open(f'began-{os.getpid()}', 'w').close()\n"
        "if not os.path.exists('fenced'):\n    time.sleep(600)\n"
        "raise ow.errors.Fenced('a newer copy')\n"
    )
    text = unit().replace("/opt/people/bin/onceward", f"{sys.executable} -m onceward")
    text = text.replace("/opt/people/job.py", str(job)).replace("RestartSec=10", "RestartSec=0.1")
    (tmp_path / "people.service").write_text(text)
    loop = subprocess.Popen(
        [sys.executable, service_loop.__file__, "people.service", "statuses"], cwd=tmp_path
    )
    try:
        until(lambda: began(tmp_path))
        [runner] = psutil.Process(loop.pid).children()
        (tmp_path / "fenced").touch()
        runner.kill()
        assert loop.wait(PATIENCE_SECONDS) == 0
    finally:
        loop.kill()
        loop.wait()
    assert (tmp_path / "statuses").read_text().split() == ["-9", "79"]
    until(lambda: not any(map(is_alive, began(tmp_path))))
