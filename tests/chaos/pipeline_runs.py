"""What the pipeline tests share: a pipeline with its topics and input, and its job's processes, life after life."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pyspark
import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer
from confluent_kafka.admin import AdminClient
from pipeline_job import FAILED_OTHERWISE, STOPPED_BY_US, JobSettings
from pipeline_models import RECORD_MS, record
from pipeline_workloads import WORKLOADS

from fault_table import invalid
from onceward.testing import LocalKafka
from onceward.testing.faults import FAULTS_VARIABLE, FIRED_VARIABLE, FiredFault, fired_faults
from onceward.testing.topic_reader import end_offsets

PATIENCE_SECONDS = 400  # for one life of a job, on a machine with other things to do
_SOURCE_PARTITIONS, _OUTPUT_PARTITIONS = 4, 8


class Pipeline:
    """One pipeline on one cluster: topics and names of its own, a checkpoint, and its jobs' files."""

    def __init__(self, kafka: LocalKafka, folder: Path, new_topic: Callable[..., str], **settings: Any) -> None:
        self.kafka = kafka
        self.folder = folder
        self.source = new_topic(kafka.bootstrap_servers, _SOURCE_PARTITIONS, prefix="people")
        topics = WORKLOADS[settings.get("query", "copy")].topics
        self.outputs = [new_topic(kafka.bootstrap_servers, _OUTPUT_PARTITIONS, prefix="clean") for _ in range(topics)]
        self.settings = JobSettings(
            bootstrap_servers=kafka.bootstrap_servers,
            source=self.source,
            outputs=self.outputs,
            pipeline_id=f"pipe-{uuid.uuid4().hex[:10]}",
            folder=str(folder),
            checkpoint=str(folder / "checkpoint"),
            news="",
            **settings,
        )
        self._producer = Producer(
            {"bootstrap.servers": kafka.bootstrap_servers, "enable.idempotence": True, "linger.ms": 5}
        )
        self._produced = 0
        self._lives = 0
        # Recent, or the broker's retention would delete them; past, or it would refuse the records that close windows.
        self._event_time_zero_ms = int(time.time() - 7_200) * 1000

    @property
    def pipeline_id(self) -> str:
        return self.settings.pipeline_id

    @property
    def output(self) -> str:
        """The first of the ``outputs``: for most workloads the only one."""
        return self.outputs[0]

    def produce(self, records: int, *, close_windows: bool = False, value_bytes: int = 0) -> None:
        """``records`` more, 10 ms of event time apart, evenly over the partitions; see ``pipeline_models.record``.

        ``close_windows`` adds a tombstone from an hour later to each partition, which closes every window before it.
        ``value_bytes`` is how long values are at least, by blanks.
        """
        producer = self._producer
        failures: list[object] = []

        def on_delivery(error: object, _message: object) -> None:
            if error:
                failures.append(error)

        for index in range(self._produced, self._produced + records):
            made = record(self.settings.query, index)
            producer.produce(
                self.source,
                made.value.ljust(value_bytes),
                made.key,
                index % _SOURCE_PARTITIONS,
                on_delivery=on_delivery,
                timestamp=self._event_time_zero_ms + made.time_ms,
            )
            if index % 10_000 == 0:
                producer.poll(0)
        self._produced += records
        if close_windows:
            later = self._event_time_zero_ms + RECORD_MS * self._produced + 3_600_000
            for partition in range(_SOURCE_PARTITIONS):
                producer.produce(self.source, None, b"tick", partition, on_delivery=on_delivery, timestamp=later)
        assert producer.flush(120) == 0
        assert failures == []

    def lag(self) -> int:
        """How many records of the source the consumer group has not passed yet."""
        servers = self.kafka.bootstrap_servers
        admin = AdminClient({"bootstrap.servers": servers})
        answer = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(self.pipeline_id)])
        passed = {
            tp.partition: tp.offset
            for tp in answer[self.pipeline_id].result(60).topic_partitions
            if tp.topic == self.source
        }
        ends = end_offsets(servers, self.source, "read_uncommitted")
        return sum(end - max(0, passed.get(partition, 0)) for partition, end in ends.items())

    def open_partitions(self) -> list[str]:
        """Output partitions in which a transaction is open: their last stable offset is behind their end."""
        servers = self.kafka.bootstrap_servers
        return [
            f"{topic}-{partition}"
            for topic in self.outputs
            for partition, end in end_offsets(servers, topic, "read_uncommitted").items()
            if end_offsets(servers, topic, "read_committed")[partition] != end
        ]

    @contextmanager
    def job(self, faults: str = "", **changes: Any) -> Iterator[JobLife]:
        """One life of the job; when the block ends nothing of it is left."""
        self._lives += 1
        folder = self.folder / f"life-{self._lives}"
        folder.mkdir()
        settings = replace(self.settings, folder=str(folder), news=str(folder / "news.jsonl"), **changes)
        life = JobLife(settings, faults, folder)
        try:
            yield life
        finally:
            life.bury()

    def run(self, faults: str = "", **changes: Any) -> JobLife:
        """One life of the job from start to end: by itself, or by the faults' hand."""
        with self.job(faults, **changes) as life:
            life.wait()
        return life

    def run_to_the_end(self, **changes: Any) -> JobLife:
        """One life without faults, which must end well."""
        life = self.run(**changes)
        assert life.status == 0, f"status {life.status}\n{life.log_tail()}"
        return life


@dataclass(frozen=True)
class Step:
    """One event of the engine, as the job told it."""

    step: str
    phase: str
    ids: dict[str, Any]
    at: float
    error: str | None = None


class JobLife:
    """The job's driver, its JVM, executors and Python workers: a session of their own, from start to burial."""

    def __init__(self, settings: JobSettings, faults: str, folder: Path) -> None:
        self.settings = settings
        self.armed = [fault for fault in faults.split(";") if fault]
        self._fired = folder / "fired.jsonl"
        self._log = folder / "stderr.log"
        environment = {**os.environ, "SPARK_HOME": str(_spark_home(folder))}
        environment.pop(FAULTS_VARIABLE, None)
        if faults:
            environment |= {FAULTS_VARIABLE: faults, FIRED_VARIABLE: str(self._fired)}
        self.started_at = time.time()
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("pipeline_job.py")), settings.to_json()],
                stdin=subprocess.PIPE,  # the job's lifeline
                stdout=log,
                stderr=log,
                env=environment,
                cwd=folder,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def status(self) -> int | None:
        """None while it runs, else its exit status; minus the signal's number if one ended it."""
        return self._process.poll()

    @property
    def fired(self) -> list[FiredFault]:
        return fired_faults(self._fired)

    def wait(self) -> int:
        """Its exit status. Fails when it does not end in time."""
        try:
            return self._process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            pytest.fail(f"the job did not end within {PATIENCE_SECONDS} s; {self._last_steps()}\n{self.log_tail()}")

    def must_have_fired(self) -> None:
        """A fault that was armed and never happened proves nothing: the test is invalid then."""
        fired = [fault.fault for fault in self.fired]
        missing = [fault for fault in self.armed if fault not in fired]
        if missing:
            self._must_not_have_stopped(f"before {missing}")
            invalid(f"never fired: {missing}; {self._last_steps()}\n{self.log_tail()}")

    def _must_not_have_stopped(self, when: str) -> None:
        """An error of the product is a failure, whatever fault was still to come."""
        stopped = self.status in (STOPPED_BY_US, FAILED_OTHERWISE)
        assert not stopped, f"the query stopped ({self.error}) {when}\n{self.log_tail()}"

    def must_have_been_killed(self) -> None:
        self.must_have_fired()
        assert self.status == -signal.SIGKILL, f"INVALID: status {self.status}\n{self.log_tail()}"

    def until(self, happened: Callable[[], Any], what: str) -> Any:
        """What ``happened`` returns as soon as it is true.

        Fails when the query ends before with an error. INVALID when it ends well before, or nothing comes while a
        fault is still to fire.
        """
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not (found := happened()):
            if self.status is not None and not (found := happened()):  # it may have come right before the end
                self._must_not_have_stopped(f"before: {what}")
                invalid(f"ended ({self.status}) before: {what}\n{self.log_tail()}")
            if found:
                break
            if time.monotonic() > deadline:
                armed = len(self.fired) < len(self.armed)
                (invalid if armed else pytest.fail)(f"never: {what}; {self._last_steps()}\n{self.log_tail()}")
            time.sleep(0.05)
        return found

    def until_fired(self) -> None:
        self.until(lambda: len(self.fired) >= len(self.armed), f"faults {self.armed}")

    def until_committed(self, batches: int) -> None:
        self.until(lambda: len(self.steps("commit")) >= batches, f"{batches} commits")

    @property
    def news(self) -> list[dict[str, Any]]:
        path = Path(self.settings.news)
        lines = path.read_text().split("\n")[:-1] if path.exists() else []  # without a line that is being written
        return [json.loads(line) for line in lines]

    def steps(self, step: str, phase: str = "finished") -> list[Step]:
        told = (entry for entry in self.news if entry["what"] == "step")
        found = (Step(e["step"], e["phase"], e["ids"], e["at"], e["error"]) for e in told)
        return [event for event in found if (event.step, event.phase) == (step, phase)]

    @property
    def error(self) -> str | None:
        """The type of the error that stopped the query, once it has."""
        return next((entry["error"] for entry in self.news if entry["what"] == "stopped"), None)

    def go(self) -> None:
        """Let the job go on that ``hold`` has stopped."""
        (Path(self.settings.folder) / "go").touch()

    def kill(self) -> None:
        """SIGKILL to driver, JVM and whatever shares their process group, in the same instant."""
        os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()

    def suspend(self) -> None:
        os.killpg(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.killpg(self.pid, signal.SIGCONT)

    def executors(self) -> list[psutil.Process]:
        """The executors' JVMs of a local-cluster."""
        return [p for p in _session_members(self.pid) if "CoarseGrainedExecutorBackend" in " ".join(_command(p))]

    def python_workers(self) -> list[psutil.Process]:
        """Python worker daemons and the workers they forked."""
        return [p for p in _session_members(self.pid) if "worker_daemon" in " ".join(_command(p))]

    def bury(self) -> None:
        """Kill what is left, and wait until nothing is."""
        if self.status is None:
            self.kill()
        deadline = time.monotonic() + 20
        while left := _session_members(self.pid):
            if time.monotonic() > deadline - 15:  # workers end by themselves when the JVM is gone
                for process in left:
                    send(process, signal.SIGKILL)
            assert time.monotonic() < deadline, f"left over: {left}"
            time.sleep(0.05)
        if self._process.stdin is not None:
            self._process.stdin.close()

    def log_tail(self, characters: int = 6_000) -> str:
        """The end of the job's log, without the JVM's stack frames."""
        lines = self._log.read_text(errors="replace").splitlines()
        told = "\n".join(line for line in lines if not line.lstrip().startswith(("at ", "\tat ")))
        return f"--- the end of the job's log ---\n{told[-characters:]}"

    def _last_steps(self) -> str:
        return f"last news: {self.news[-8:]}"


def _spark_home(folder: Path) -> Path:
    """PySpark's own folder under another name: a local cluster writes its executors' files below SPARK_HOME."""
    home = folder / "spark-home"
    home.mkdir()
    for entry in Path(pyspark.__file__).parent.iterdir():
        if entry.name in ("bin", "jars", "python", "sbin"):
            (home / entry.name).symlink_to(entry)
    return home


def _session_members(session: int) -> list[psutil.Process]:
    return [process for process in psutil.process_iter() if _is_member(process, session)]


def _is_member(process: psutil.Process, session: int) -> bool:
    try:
        return os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE
    except (ProcessLookupError, PermissionError, psutil.Error):
        return False


def _command(process: psutil.Process) -> Sequence[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return ()


def send(process: psutil.Process, number: signal.Signals) -> None:
    """``number`` to ``process``, if it is still there."""
    with suppress(psutil.NoSuchProcess):
        process.send_signal(number)
