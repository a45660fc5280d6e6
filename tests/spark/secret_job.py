"""A job with secrets that goes wrong in every way, and shows all that it can be made to show; for
the test beside it.

A process of its own: ``secret_job.py settings.json``. Driver and executors log at DEBUG, the UI
and the event log are on. What is printed or fetched lands in files of ``folder``; ``tokens`` names
a file elsewhere, for the tokens that the sequencer invents. It judges nothing.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import traceback
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession

import onceward
from onceward import events, surroundings
from onceward.kafka.wire.client import KafkaClient
from onceward.kafka.wire.options.settings import settings_from_options
from onceward.kafka.wire.transactions.transaction import Transaction

ENDING_SECONDS = 120


class CanaryToken:
    """A provider of one token. Workers get it by value, as this is the main module."""

    def __init__(self, text: str) -> None:
        self._text = text

    def token(self) -> str:
        return self._text


class Job:
    """See the module. ``given``: the settings, as the test wrote them."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.given = given
        self.folder = Path(given["folder"])
        logging.basicConfig(level=logging.DEBUG, filename=self.folder / "python.log")
        logging.getLogger("kafka").setLevel(logging.DEBUG)
        os.environ["PYSPARK_PYTHON"] = sys.executable
        self.said = (self.folder / "said.txt").open("w", encoding="utf-8")
        self._notes_tokens()
        events.probe(lambda event: self.say("### event", event))
        builder = SparkSession.builder.master("local-cluster[1,1,1024]").appName("secrets")
        self.spark = builder.config(map=self._conf()).getOrCreate()

    def _conf(self) -> dict[str, str]:
        java = f"-Dlog4j2.configurationFile={self.folder}/log4j2.properties -XX:+UseSerialGC"
        (self.folder / "events").mkdir()
        return {
            **onceward.spark_conf(),
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.executor.memory": "1g",
            "spark.driver.extraJavaOptions": java,
            "spark.executor.extraJavaOptions": java,
            "spark.eventLog.enabled": "true",
            "spark.eventLog.compress": "false",
            "spark.eventLog.dir": f"file://{self.folder}/events",
            "spark.ui.enabled": "true",
            "spark.ui.port": "0",
            "spark.local.dir": str(self.folder / "local"),
            "spark.sql.shuffle.partitions": "1",
        }

    def _notes_tokens(self) -> None:
        invent = surroundings.random_bytes

        def noted(size: int) -> bytes:
            token = invent(size)
            with open(self.given["tokens"], "a", encoding="ascii") as notes:
                notes.write(f"{token.hex()}\n")
            return token

        surroundings.random_bytes = noted

    def say(self, *things: object) -> None:
        print(*things, file=self.said, flush=True)

    # ── what a pipeline is made of ──

    def feed(self, records: int) -> None:
        producer = Producer({"bootstrap.servers": self.given["keepers"]})
        for number in range(records):
            producer.produce(self.given["source"], value=b"value-%d" % number)
        assert producer.flush(60) == 0

    def frame(self, **changed: str) -> DataFrame:
        return onceward.kafka_source(
            self.spark,
            bootstrap_servers=self.given["servers"],
            topic=self.given["source"],
            options=self.given["options"] | changed,
        ).selectExpr("value")

    def sink(
        self, topic: str | None = None, delivery: Any = "exactly_once", **changed: str
    ) -> onceward.KafkaSink:
        return onceward.KafkaSink(
            bootstrap_servers=self.given["servers"],
            pipeline_id=self.given["pipeline"],
            topic=topic or self.given["output"],
            ledger_topic=self.given["ledger"],
            delivery=delivery,
            options=self.given["options"] | changed,
            driver_records=0,  # so that settings and the sequencer's token travel to the tasks
        )

    def start(
        self,
        frame: DataFrame,
        sink: onceward.KafkaSink,
        checkpoint: str = "checkpoint",
        **trigger: Any,
    ) -> Any:
        writer = frame.writeStream.option("checkpointLocation", str(self.folder / checkpoint))
        return writer.trigger(**(trigger or {"availableNow": True})).foreachBatch(sink).start()

    # ── what it shows ──

    def shows_itself(self, name: str, query: Any) -> None:
        """Wait for the end of ``query``, and have everything said of it."""
        try:
            query.awaitTermination(ENDING_SECONDS)
        except Exception as error:  # noqa: BLE001 — to be shown, not handled
            self.say(
                f"### {name}: Spark says",
                repr(error),
                error,
                "".join(traceback.format_exception(error)),
            )
        error = onceward.error_of(query)
        self.say(f"### {name}: Onceward says", type(error).__name__)
        if error is not None:
            self.say(repr(error), error, error.details, "".join(traceback.format_exception(error)))
        self.say("### progress", query.lastProgress, query.recentProgress, query.status)

    def shows_values(self) -> None:
        frame, sink = self.frame(), self.sink()
        for mode in ("simple", "extended", "codegen", "cost", "formatted"):
            execution = frame._jdf.queryExecution()
            self.say(
                f"### explain {mode}", frame._sc._jvm.PythonSQLUtils.explainString(execution, mode)
            )
        client, producer = settings_from_options(
            self.given["servers"], self.given["options"], client_id="shown"
        )
        with_token = self._with_token(self.given["token"])
        connected = KafkaClient(client)
        for thing in (
            frame,
            sink,
            sink.settings,
            client,
            producer,
            connected,
            with_token,
            with_token.settings,
        ):
            self.say("### value", repr(thing), str(thing))
        connected.close()
        self._fails(lambda: frame.selectExpr("no_such_column"))
        self._fails(lambda: frame.sort("value").writeStream.format("noop").start())
        self._fails(frame.collect)

    def _fails(self, mistake: Callable[[], object]) -> None:
        try:
            mistake()
        except Exception as error:  # noqa: BLE001
            self.say("### mistake", repr(error), error, "".join(traceback.format_exception(error)))

    def shows_pages(self) -> None:
        """Every page of the UI that there is, found by its links, and the REST interface."""
        base = str(self.spark.sparkContext.uiWebUrl)
        application = f"/api/v1/applications/{self.spark.sparkContext.applicationId}"
        paths = [
            "/jobs/",
            "/stages/",
            "/storage/",
            "/environment/",
            "/executors/",
            "/SQL/",
            "/StreamingQuery/",
        ]
        paths += [f"/SQL/execution/?id={number}" for number in range(40)]
        paths += ["/metrics/json/", "/executors/threadDump/?executorId=driver"]
        rest = (
            "jobs",
            "stages",
            "executors",
            "environment",
            "sql?details=true&planDescription=true&length=1000",
        )
        paths += [f"{application}/{name}" for name in rest]
        with (self.folder / "pages.txt").open("w", encoding="utf-8") as pages:
            for path in paths:
                pages.write(f"### {path}\n{_fetched(base + path)}\n")

    def shows_processes(self) -> None:
        """What ``ps`` tells everybody on the machine, and the environment that children
        inherit.
        """
        with (self.folder / "processes.txt").open("w", encoding="utf-8") as processes:
            for process in psutil.Process().children(recursive=True):
                print(_described(process), file=processes)

    # ── how it goes wrong ──

    def run(self) -> None:
        wrong = {"sasl.password": self.given["options"]["sasl.password"] + "-not"}
        wrong_key = {"ssl.key.password": self.given["options"]["ssl.key.password"] + "-not"}
        failing = self.frame().selectExpr(
            "CAST(raise_error('a task that fails') AS STRING) AS value"
        )
        self.shows_values()
        self.feed(30)
        attempts: dict[str, tuple[DataFrame, onceward.KafkaSink]] = {
            "wrong password of the source": (self.frame(**wrong), self.sink()),
            "wrong password of the sink": (self.frame(), self.sink(**wrong)),
            "wrong key password": (self.frame(), self.sink(**wrong_key)),
            "right missing": (self.frame(), self.sink(topic=self.given["forbidden"])),
            "task error": (failing, self.sink()),
            "token": (self.frame(), self._with_token(self.given["token"])),
        }
        for name, (frame, sink) in attempts.items():
            self.shows_itself(name, self.start(frame, sink))
        self._is_fenced()
        self.feed(10)
        self.shows_itself("good", self.start(self.frame(), self.sink()))
        plain = self.start(self.frame(), self.sink(delivery="at_least_once"), "another-checkpoint")
        self.shows_itself("at least once", plain)
        self.shows_pages()
        self.shows_processes()
        self.spark.stop()

    def _with_token(self, token: str) -> onceward.KafkaSink:
        return onceward.KafkaSink(
            bootstrap_servers=self.given["token_servers"],
            pipeline_id=self.given["pipeline"],
            topic=self.given["output"],
            ledger_topic=self.given["ledger"],
            options={"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"},
            oauth_token_provider=CanaryToken(token),
        )

    def _is_fenced(self) -> None:
        query = self.start(self.frame(), self.sink(), processingTime="0 seconds")
        self.feed(10)
        query.processAllAvailable()
        client = KafkaClient(
            settings_from_options(self.given["servers"], self.given["options"], client_id="taker")[
                0
            ]
        )
        Transaction(client, self.given["pipeline"], 30_000).take_over()
        client.close()
        self.feed(10)
        self.shows_itself("fenced", query)


def _described(process: psutil.Process) -> str:
    try:
        return f"{process.cmdline()} {process.environ()}"
    except psutil.Error as gone:
        return str(gone)


def _fetched(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:  # noqa: S310 — our own UI
            return str(answer.read().decode())
    except urllib.error.HTTPError as missing:
        return f"none: {missing.code}"


if __name__ == "__main__":
    Job(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))).run()
