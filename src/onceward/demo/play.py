"""One demo run from the first broker to the verdict. Called by the command; everything it starts, it ends."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from onceward.demo.audit import ask_the_checker, read_output
from onceward.demo.input_stream import InputStream
from onceward.demo.job_lives import JobLives, Killed
from onceward.demo.kill_plan import kill_plan
from onceward.demo.output_tail import OutputTail
from onceward.demo.pace import Pace
from onceward.demo.people import people
from onceward.demo.report import DemoResult, judge
from onceward.demo.screen import Screen
from onceward.demo.settings import (
    INPUT_TOPIC,
    OUTPUT_TOPIC,
    PARTITIONS,
    WATERMARK_DELAY_SECONDS,
    DemoSettings,
    JobSettings,
)
from onceward.spark.connector import spark_connector
from onceward.testing.local_kafka import LocalKafka

_CREATE_SECONDS = 60


def play(settings: DemoSettings, screen: Screen, log_dir: Path | None = None) -> DemoResult:
    """Run the demo and judge it.

    :param log_dir: where the logs of broker and job stay; by default they go with the rest.
    :raises DemoInvalid: the run did not go as planned and proves nothing.
    """
    folder = Path(tempfile.mkdtemp(prefix="onceward-demo-"))
    try:
        screen.say("finding Spark's Kafka connector (the first time it is fetched, which takes a while)")
        spark_connector()
        screen.say(f"starting Kafka {settings.broker_version} with {settings.nodes} node(s)")
        with LocalKafka(settings.nodes, settings.broker_version, log_dir=log_dir) as kafka:
            return _with_kafka(settings, screen, kafka, folder)
    finally:
        if log_dir is not None and (folder / "job.log").exists():
            shutil.copy(folder / "job.log", log_dir / "job.log")
        shutil.rmtree(folder, ignore_errors=True)


def _with_kafka(settings: DemoSettings, screen: Screen, kafka: LocalKafka, folder: Path) -> DemoResult:
    servers = kafka.bootstrap_servers
    _create_topics(servers)
    tail = OutputTail(servers)
    stream = _input_stream(settings, servers)
    job = JobSettings(
        bootstrap_servers=servers,
        checkpoint=str(folder / "checkpoint"),
        folder=str(folder),
        delivery=settings.delivery,
        master=settings.master,
        window_seconds=settings.window_seconds,
    )
    supervisor = JobLives(settings, job, screen, stream, tail)
    tail.start()
    try:
        killed = supervisor.run(kill_plan(settings))
    finally:
        stream.stop()
        tail.stop()
    return _verdict(settings, screen, kafka, stream, killed, supervisor.batches)


def _verdict(
    settings: DemoSettings,
    screen: Screen,
    kafka: LocalKafka,
    stream: InputStream,
    killed: list[Killed],
    batches: int,
) -> DemoResult:
    screen.say("reading everything back with an independent read_committed reader (librdkafka)")
    output = read_output(kafka, stream.expected)
    checked = None
    if settings.exactly_once:
        screen.say("asking `onceward verify` about every batch")
        checked = ask_the_checker(kafka)
    return judge(settings, output, checked, killed, batches, screen.seconds)


def _input_stream(settings: DemoSettings, servers: str) -> InputStream:
    everybody = list(people(settings.records - 1, settings.seed))  # the last record closes the windows
    pace = Pace(len(everybody), settings.produce_seconds)
    closing_delay_ms = (settings.window_seconds + WATERMARK_DELAY_SECONDS + 1) * 1_000
    return InputStream(servers, everybody, pace, closing_delay_ms)


def _create_topics(servers: str) -> None:
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 3})
    created = admin.create_topics(
        [NewTopic(topic, PARTITIONS) for topic in (INPUT_TOPIC, OUTPUT_TOPIC)], request_timeout=_CREATE_SECONDS
    )
    for answer in created.values():
        answer.result(_CREATE_SECONDS)
