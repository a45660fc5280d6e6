"""One demo run from the first broker to the verdict. Called by the command; everything it starts, it ends."""

from __future__ import annotations

import random
import shutil
import tempfile
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from onceward.demo.encodings import AsAvro, AsJson, Encoding, poisoned
from onceward.demo.input_stream import InputStream
from onceward.demo.job_lives import JobLives, Killed
from onceward.demo.kill_plan import kill_plan
from onceward.demo.outputs.kafka import KafkaOutput, create_topic
from onceward.demo.outputs.output import Output
from onceward.demo.pace import Pace
from onceward.demo.people import people
from onceward.demo.report import DemoResult, judge
from onceward.demo.screen import Screen
from onceward.demo.settings import INPUT_TOPIC, WATERMARK_DELAY_SECONDS, DemoSettings, JobSettings
from onceward.formats.registry.client import SchemaRegistry
from onceward.spark.connector import spark_connector
from onceward.testing.local_kafka import LocalKafka
from onceward.testing.local_registry import VERSION, LocalRegistry


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
        kafka = LocalKafka(settings.nodes, settings.broker_version, log_dir=log_dir)
        with kafka, _registry(settings, screen) as registry, _output(settings, kafka) as output:
            return _with_output(settings, screen, kafka, registry, output, folder)
    finally:
        if log_dir is not None and (folder / "job.log").exists():
            shutil.copy(folder / "job.log", log_dir / "job.log")
        shutil.rmtree(folder, ignore_errors=True)


def _registry(settings: DemoSettings, screen: Screen) -> AbstractContextManager[LocalRegistry | None]:
    if not settings.avro:
        return nullcontext()
    screen.say(f"starting a schema registry, Apicurio {VERSION} (the first time it is fetched)")
    return LocalRegistry()


def _output(settings: DemoSettings, kafka: LocalKafka) -> Output:
    if settings.sink == "postgres":
        from onceward.demo.outputs.postgres import PostgresOutput  # needs its client

        return PostgresOutput(kafka.bootstrap_servers)
    if settings.sink == "mysql":
        from onceward.demo.outputs.mysql import MySQLOutput  # needs its client

        return MySQLOutput(kafka.bootstrap_servers)
    if settings.sink == "files":
        from onceward.demo.outputs.files import FilesOutput  # needs pyarrow, which a demo into Kafka does not read with

        return FilesOutput()
    return KafkaOutput(kafka, dead_letters=settings.avro)


def _with_output(
    settings: DemoSettings,
    screen: Screen,
    kafka: LocalKafka,
    registry: LocalRegistry | None,
    output: Output,
    folder: Path,
) -> DemoResult:
    servers = kafka.bootstrap_servers
    create_topic(servers, INPUT_TOPIC)
    output.make()
    tail = output.tail()
    address = "" if registry is None else registry.url
    stream = _input_stream(settings, servers, address)
    job = JobSettings(
        bootstrap_servers=servers,
        checkpoint=str(folder / "checkpoint"),
        folder=str(folder),
        delivery=settings.delivery,
        master=settings.master,
        window_seconds=settings.window_seconds,
        sink=settings.sink,
        address=output.address,
        registry=address,
    )
    supervisor = JobLives(settings, job, screen, stream, tail)
    tail.start()
    try:
        killed = supervisor.run(kill_plan(settings))
    finally:
        stream.stop()
        tail.stop()
    return _verdict(settings, screen, output, stream, killed, supervisor.batches)


def _verdict(
    settings: DemoSettings,
    screen: Screen,
    output: Output,
    stream: InputStream,
    killed: list[Killed],
    batches: int,
) -> DemoResult:
    screen.say(f"reading everything back with {output.reader} of an independent client")
    read = output.read(stream.expected, stream.poison)
    checked = None
    if settings.exactly_once:
        screen.say("asking `onceward verify` about every batch")
        checked = output.ask_the_checker()
    return judge(settings, read, checked, killed, batches, screen.seconds)


def _input_stream(settings: DemoSettings, servers: str, registry: str) -> InputStream:
    everybody = list(people(settings.records - 1, settings.seed))  # the last record closes the windows
    encoding: Encoding = AsJson()
    if registry:
        chance = random.Random(settings.seed)  # noqa: S311  which are spoilt, no secret
        everybody = poisoned(everybody, settings.poison_per_thousand, chance.random)
        encoding = AsAvro(SchemaRegistry(registry), evolves_at=len(everybody) // 2)
    pace = Pace(len(everybody), settings.produce_seconds, settings.kills or 0)
    closing_delay_ms = (settings.window_seconds + WATERMARK_DELAY_SECONDS + 1) * 1_000
    return InputStream(servers, everybody, encoding, pace, closing_delay_ms)
