"""Run the demo from the first broker to the verdict.

Called by the command; everything it starts, it ends.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from onceward.spark.session.connector import spark_connector
from onceward_testing.demo.changes.scenario import ChangesScenario
from onceward_testing.demo.kill_plan import kill_plan
from onceward_testing.demo.report import DemoResult, Screen
from onceward_testing.demo.scenario import Scenario
from onceward_testing.demo.settings import DemoSettings
from onceward_testing.demo.supervisor import Supervisor
from onceward_testing.demo.windows.scenario import WindowsScenario
from onceward_testing.local_kafka import LocalKafka


def run(settings: DemoSettings, screen: Screen, log_dir: Path | None = None) -> DemoResult:
    """Run the demo and return its verdict.

    :param log_dir: where the logs of broker and job stay; by default they go with the rest.
    :raises DemoInvalid: the run did not go as planned and proves nothing.
    """
    scenario = ChangesScenario if settings.source == "mysql" else WindowsScenario
    folder = Path(tempfile.mkdtemp(prefix="onceward-demo-"))
    try:
        screen.say(
            "finding Spark's Kafka connector (the first time it is fetched, which takes a while)"
        )
        spark_connector()
        screen.say(f"starting Kafka {settings.broker_version} with {settings.nodes} node(s)")
        with (
            LocalKafka(settings.nodes, settings.broker_version, log_dir=log_dir) as kafka,
            scenario(settings, screen, kafka) as opened,
        ):
            return _supervise(settings, screen, opened, folder)
    finally:
        if log_dir is not None and (folder / "job.log").exists():
            shutil.copy(folder / "job.log", log_dir / "job.log")
        shutil.rmtree(folder, ignore_errors=True)


def _supervise(
    settings: DemoSettings, screen: Screen, scenario: Scenario, folder: Path
) -> DemoResult:
    visible = scenario.output.count()
    supervisor = Supervisor(settings, scenario.job(folder), screen, scenario.input, visible)
    visible.start()
    try:
        kills = supervisor.run(kill_plan(settings))
    finally:
        scenario.input.stop()
        visible.stop()
    return scenario.judge(kills, supervisor.batches)
