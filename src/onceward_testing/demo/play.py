"""One demo run from the first broker to the verdict. Called by the command; everything it starts,
it ends.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from onceward.spark.session.connector import spark_connector
from onceward_testing.demo.job_lives import JobLives
from onceward_testing.demo.report import DemoResult
from onceward_testing.demo.scenario import Scenario
from onceward_testing.demo.screen import Screen
from onceward_testing.demo.settings import DemoSettings
from onceward_testing.local_kafka import LocalKafka


def play(settings: DemoSettings, screen: Screen, log_dir: Path | None = None) -> DemoResult:
    """Run the demo and judge it.

    :param log_dir: where the logs of broker and job stay; by default they go with the rest.
    :raises DemoInvalid: the run did not go as planned and proves nothing.
    """
    folder = Path(tempfile.mkdtemp(prefix="onceward-demo-"))
    try:
        screen.say(
            "finding Spark's Kafka connector (the first time it is fetched, which takes a while)"
        )
        spark_connector()
        screen.say(f"starting Kafka {settings.broker_version} with {settings.nodes} node(s)")
        kafka = LocalKafka(settings.nodes, settings.broker_version, log_dir=log_dir)
        with kafka, _scenario(settings, screen, kafka) as scenario:
            return _played(settings, screen, scenario, folder)
    finally:
        if log_dir is not None and (folder / "job.log").exists():
            shutil.copy(folder / "job.log", log_dir / "job.log")
        shutil.rmtree(folder, ignore_errors=True)


def _scenario(settings: DemoSettings, screen: Screen, kafka: LocalKafka) -> Scenario:
    if settings.source == "mysql":
        from onceward_testing.demo.changes.scenario import ChangesOfMySQL  # needs its client

        return ChangesOfMySQL(settings, screen, kafka)
    from onceward_testing.demo.windows import PeopleThroughWindows

    return PeopleThroughWindows(settings, screen, kafka)


def _played(
    settings: DemoSettings, screen: Screen, scenario: Scenario, folder: Path
) -> DemoResult:
    lives = JobLives(settings, scenario.job(folder), screen, scenario.feed, scenario.tail)
    scenario.tail.start()
    try:
        killed = lives.run(scenario.plan())
    finally:
        scenario.feed.stop()
        scenario.tail.stop()
    return scenario.judge(killed, lives.batches)
