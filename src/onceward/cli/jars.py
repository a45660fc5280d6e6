"""``onceward jars``: fetches every jar that tests, demo and benchmarks need, so that nothing later
has to wait for it; or prints what ``spark-submit`` needs.

Registered in :mod:`onceward.cli`; ``make setup`` runs it. What is to be pasted goes to stdout, the
rest to stderr.
"""

from __future__ import annotations

import os
import shlex
import sys
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Annotated

import typer

from onceward.cli.shared import say
from onceward.errors import ConfigurationError

if TYPE_CHECKING:
    from onceward.spark.session.connector import Connector

GROUP = "onceward.jars"
"""Entry points: functions that return Maven coordinates by the name of what they are for."""

_SPLIT = frozenset(" \t*?[\\'\"$`")
_IN_QUOTES = {
    "--jars": 'eval "spark-submit $(onceward jars --submit --quoted) job.py"',
    "--packages": 'eval "spark-submit $(onceward jars --packages --quoted) job.py"',
}


def jars(
    paths: Annotated[
        bool, typer.Option("--paths", help="Print the path of every jar to stdout.")
    ] = False,
    submit: Annotated[
        bool,
        typer.Option(
            "--submit",
            help="Print options for spark-submit in client mode: spark-submit $(onceward jars "
            "--submit) job.py",
        ),
    ] = False,
    packages: Annotated[
        bool,
        typer.Option(
            "--packages",
            help="Print the --packages option, for where the jars' paths mean nothing.",
        ),
    ] = False,
    quoted: Annotated[
        bool,
        typer.Option(
            "--quoted",
            help="With --submit or --packages: all options, also those with blanks, in quotes: "
            'eval "spark-submit $(onceward jars --submit --quoted) job.py"',
        ),
    ] = False,
) -> None:
    """Resolve the jars of Spark's Kafka and Avro connectors and of both tested Kafka releases,
    through Spark's Ivy.
    """
    from onceward.spark.session.java import java_executable

    java_executable()
    connector = _connector()
    if packages:
        # The connector brings its own token provider
        named = [each for each in connector.coordinates if "token-provider" not in each]
        say(_line(["--packages", ",".join(named)], {}, quoted))
    elif submit:
        say(_submit(connector, quoted))
    else:
        found = [*connector.jars, *_others()]
        if paths:
            for jar in found:
                say(str(jar))


def _connector() -> Connector:
    from onceward.spark.session.connector import spark_connector

    say("Spark's Kafka and Avro connectors … ", nl=False, err=True)
    connector = spark_connector()
    say(f"{len(connector.jars)} jars of {', '.join(connector.coordinates)}", err=True)
    return connector


def _others() -> list[object]:
    """Resolve the jars that other packages need: ``onceward_testing`` those of Kafka's brokers."""
    from onceward.spark.session.jars import resolve

    all_jars: list[object] = []
    for entry in entry_points(group=GROUP):
        for name, coordinates in entry.load()().items():
            say(f"{name} … ", nl=False, err=True)
            found = resolve(*coordinates)
            say(f"{len(found)} jars", err=True)
            all_jars += found
    return all_jars


def _submit(connector: Connector, quoted: bool) -> str:
    from onceward.spark.session.settings import JARS, PACKAGES, WORKER_DAEMON, launch_conf

    conf = launch_conf(connector)
    settings = {
        **({PACKAGES: conf[PACKAGES]} if PACKAGES in conf else {}),
        # The interpreter with onceward; local workers follow it, else it is PYSPARK_PYTHON.
        "spark.pyspark.driver.python": sys.executable,
        "spark.python.daemon.module": WORKER_DAEMON,
    }
    return _line(["--jars", conf[JARS]], settings, quoted)


def _line(words: list[str], settings: dict[str, str], quoted: bool) -> str:
    """Return ``words``, ``settings`` and the JVM's options for a shell: for ``eval``, or to be
    split into words as they are, without what that would take apart.
    """
    from onceward.spark.session.settings import java_options, spark_defaults

    in_quotes = _IN_QUOTES[words[0]]
    for name, value in settings.items():
        words += ["--conf", f"{name}={value}"]
    if not quoted and any(set(word) & _SPLIT for word in words):
        raise ConfigurationError(
            "the shell would take apart the path of a jar (also of those that spark-defaults.conf "
            "names in spark.jars) or of Python",
            next_step="install Onceward and Python below a path without spaces, or have them in "
            f"quotes: {in_quotes}",
        )
    for name, value in java_options(spark_defaults(), os.environ).items():
        if quoted or not set(value) & _SPLIT:
            words += ["--conf", f"{name}={value}"]
        else:
            say(
                f"note: not printed, the shell would take it apart: {name}={value}; in quotes it "
                f"is: {in_quotes}",
                err=True,
            )
    return shlex.join(words) if quoted else " ".join(words)
