"""A collector and Avro's limits are added to the Java options that there are, and none of them a
second time.
"""

from __future__ import annotations

import importlib
import shlex
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from onceward.errors import ConfigurationError
from onceward.spark.batch.kafka_reader import load
from onceward.spark.session import java
from onceward.spark.session.connector import Connector
from onceward.spark.session.jars import SUBMITTED_VARIABLE
from onceward.spark.session.settings import AVRO_LIMITS, java_options, launch_conf, spark_defaults
from onceward.spark.tables.avro_java import keep_within_limits
from support.errors import raises

DRIVER, EXECUTOR = "spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions"
LIMITS = " ".join(f"-D{name}={value}" for name, value in AVRO_LIMITS.items())
OURS = f"-XX:+UseParallelGC {LIMITS}"


def test_without_other_options():
    assert java_options({}, {}) == {DRIVER: OURS, EXECUTOR: OURS}


def test_what_the_defaults_say_stays():
    assert java_options({DRIVER: "-Da=b -Xss4m"}, {}) == {
        DRIVER: f"-Da=b -Xss4m {OURS}",
        EXECUTOR: OURS,
    }


@pytest.mark.parametrize("setting", [DRIVER, "spark.driver.defaultJavaOptions"])
def test_a_chosen_collector_stays_alone(setting: str):
    given = "-Da=b -XX:+UseG1GC"
    driver = f"{given} {LIMITS}" if setting == DRIVER else LIMITS
    assert java_options({setting: given}, {}) == {DRIVER: driver, EXECUTOR: OURS}


def test_a_collector_in_the_environment():
    assert java_options({}, {"JDK_JAVA_OPTIONS": "-XX:+UseZGC"}) == {
        DRIVER: LIMITS,
        EXECUTOR: LIMITS,
    }


def test_a_limit_that_is_set_stays():
    name, *others = AVRO_LIMITS
    given = f"-D{name}=5 -XX:+UseZGC"
    rest = " ".join(f"-D{other}={AVRO_LIMITS[other]}" for other in others)
    assert java_options({EXECUTOR: given}, {})[EXECUTOR] == f"{given} {rest}"
    assert java_options({}, {"JDK_JAVA_OPTIONS": f"{LIMITS} -XX:+UseZGC"}) == {}


def test_spark_defaults_as_spark_reads_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    lines = [
        "# spark.a 1",
        "",
        "spark.b   two words  ",
        "spark.c=3",
        "  spark.d : 4",
        f"{DRIVER} -Da=b -Dc=d",
    ]
    (tmp_path / "spark-defaults.conf").write_text("\n".join(lines))
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    found = spark_defaults()
    assert found == {"spark.b": "two words", "spark.c": "3", "spark.d": "4", DRIVER: "-Da=b -Dc=d"}


def test_no_spark_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert spark_defaults() == {}


COMMAND: Any = importlib.import_module("onceward.cli.jars")


@pytest.fixture
def printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Any:
    """`printed(jar, option, …)`: what ``onceward jars`` prints, and what it notes."""
    monkeypatch.setattr(java, "java_executable", lambda: Path("/java"))
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    (tmp_path / "spark-defaults.conf").write_text(f"{EXECUTOR} -Da='b  c'\n")
    for name in ("JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS"):
        monkeypatch.delenv(name, raising=False)

    def run(jar: str, **options: bool) -> tuple[str, str]:
        # The second, of another release, comes with the first in its own
        coordinates = "g:a:1", "org.apache.spark:spark-token-provider-kafka-0-10_2.13:0"
        connector = Connector((Path(jar),), coordinates)
        monkeypatch.setattr(COMMAND, "_connector", lambda: connector)
        COMMAND.jars(**{"paths": False, "submit": False, "packages": False, **options})
        out, err = capsys.readouterr()
        return out.strip(), err

    return run


@pytest.mark.parametrize(
    ("option", "first"),
    [("submit", ["--jars", "/a b.jar"]), ("packages", ["--packages", "g:a:1"])],
)
def test_a_submitted_job_has_them_in_quotes(printed: Any, option: str, first: list[str]):
    line, notes = printed("/a b.jar", quoted=True, **{option: True})
    words = shlex.split(line)
    assert words[:2] == first
    assert f"{DRIVER}={OURS}" in words
    assert words[-2:] == ["--conf", f"{EXECUTOR}=-Da='b  c' {OURS}"]
    assert notes == ""


@pytest.mark.parametrize("option", ["submit", "packages"])
def test_without_quotes_it_is_said_what_is_not_set(printed: Any, option: str):
    line, notes = printed("/a.jar", quoted=False, **{option: True})
    assert "limits" not in line
    assert shlex.split(line) == line.split(" ")
    assert f"{EXECUTOR}=-Da='b  c' {OURS}" in notes
    assert f'eval "spark-submit $(onceward jars --{option} --quoted) job.py"' in notes


def test_a_path_with_a_blank_needs_quotes(printed: Any):
    with raises(ConfigurationError) as refused:
        printed("/a b.jar", quoted=False, submit=True)
    assert "$(onceward jars --submit --quoted)" in refused.value.next_step


@pytest.mark.parametrize("submitted", [True, False])
def test_a_cluster_without_limits_is_told_how_this_job_gets_them(
    submitted: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.delenv(SUBMITTED_VARIABLE, raising=False)
    if submitted:
        monkeypatch.setenv(SUBMITTED_VARIABLE, "1")
    session = MagicMock()
    session.sparkContext.master = "yarn"
    session.sparkContext._conf.get = lambda name: None
    keep_within_limits(session)
    assert ("onceward jars --submit --quoted" in caplog.text) is submitted
    assert ("ow.spark_conf()" in caplog.text) is not submitted


OF_SPARK = r"""# größe des Heaps
spark.driver.extraJavaOptions -Djavax.net.ssl.trustStore=/etc/pki/corp.jks \
    -Djava.security.auth.login.config=/etc/kafka/jaas.conf
spark.executor.extraJavaOptions=-Dpath=C\:\\temp -Dname=a\=b
spark.jars /opt/hadoop-aws.jar, /opt/postgresql.jar
spark.alone
""".encode("latin-1")


def test_lines_that_go_on_escapes_and_other_encodings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """As Spark reads them, by ``Properties.load``: what is set in a session replaces them."""
    (tmp_path / "spark-defaults.conf").write_bytes(OF_SPARK)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert spark_defaults() == {
        DRIVER: "-Djavax.net.ssl.trustStore=/etc/pki/corp.jks "
        "-Djava.security.auth.login.config=/etc/kafka/jaas.conf",
        EXECUTOR: r"-Dpath=C:\temp -Dname=a=b",
        "spark.jars": "/opt/hadoop-aws.jar, /opt/postgresql.jar",
    }


THEIRS = (
    "/opt/org.apache.spark_spark-sql-kafka-0-10_2.13-3.5.1.jar",
    "/opt/kafka-clients-3.4.1.jar",
)
OURS_OF_KAFKA = (
    "/i/org.apache.spark_spark-sql-kafka-0-10_2.13-4.0.0.jar",
    "/i/kafka-clients-3.9.0.jar",
)


def test_of_the_connector_one_version_is_on_the_class_path(
    printed: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    """Of two the first counts, which need not be the same one in driver and executors."""
    connector = Connector(tuple(map(Path, OURS_OF_KAFKA)), ("g:a:1",))
    same = [
        "/opt/kafka-clients-3.9.0.jar",
        "/opt/my_kafka-clients-1.0.jar",
        "/opt/delta-4.0.0.jar",
    ]
    named = "org.apache.spark:spark-sql-kafka-0-10_2.12:4.0.0,io.delta:delta-spark_2.13:4.0.0"
    defaults = tmp_path / "spark-defaults.conf"
    defaults.write_text(f"spark.jars {','.join(same)}\nspark.jars.packages io.delta:delta:1\n")
    found = launch_conf(connector)
    assert found["spark.jars"] == ",".join([*OURS_OF_KAFKA, *same])
    assert "spark.jars.packages" not in found
    assert caplog.text == ""
    defaults.write_text(f"spark.jars {', '.join([*THEIRS, *same])}\nspark.jars.packages {named}\n")
    found = launch_conf(connector)
    assert found["spark.jars"] == ",".join([*OURS_OF_KAFKA, *same])
    assert found["spark.jars.packages"] == "io.delta:delta-spark_2.13:4.0.0"
    assert all(each in caplog.text for each in (*THEIRS, named.partition(",")[0]))
    line, _ = printed(OURS_OF_KAFKA[0], quoted=False, submit=True)
    assert "--conf spark.jars.packages=io.delta:delta-spark_2.13:4.0.0" in line
    assert THEIRS[0] not in line


def test_jars_of_the_defaults_stay(printed: Any, tmp_path: Path):
    line, _ = printed("/a.jar", quoted=False, submit=True)
    assert line.startswith("--jars /a.jar --conf")
    (tmp_path / "spark-defaults.conf").write_bytes(OF_SPARK)
    line, _ = printed("/a.jar", quoted=False, submit=True)
    assert line.startswith("--jars /a.jar,/opt/hadoop-aws.jar,/opt/postgresql.jar --conf")
    found = launch_conf(Connector((Path("/a.jar"),), ("g:a:1",)))
    assert found["spark.jars"] == "/a.jar,/opt/hadoop-aws.jar,/opt/postgresql.jar"


@pytest.mark.parametrize(
    ("jars", "warns"),
    [
        (OURS_OF_KAFKA[1:], False),
        (("/i/org.apache.kafka_kafka-clients-3.9.0.jar", OURS_OF_KAFKA[1]), False),
        ((OURS_OF_KAFKA[1], THEIRS[1]), True),
    ],
    ids=["one", "one, twice", "two"],
)
def test_a_source_with_two_connectors_on_its_class_path_names_them(
    jars: tuple[str, ...], warns: bool, caplog: pytest.LogCaptureFixture
):
    session = MagicMock()
    session.sparkContext._jvm.java.util.Collections.list.return_value = [
        MagicMock(getPath=lambda jar=jar: f"file:{jar}!/org/apache/A.class") for jar in jars
    ]
    load(session, {})
    assert all(jar in caplog.text for jar in jars) is warns
