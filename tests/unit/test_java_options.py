"""A collector and Avro's limits are added to the Java options that there are, and none of them a
second time.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from onceward.spark.session.settings import AVRO_LIMITS, java_options, spark_defaults

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
