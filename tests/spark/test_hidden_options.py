"""Secrets among the options of the source: no text of Spark shows them, or the source is
refused.
"""

from __future__ import annotations

import logging
from typing import Any

import pytest
from pyspark.errors import AnalysisException

import onceward
import onceward.kafka.source.source
from onceward.errors import ConfigurationError

CANARY = "the-canary-sings-Pw7"
KEY = f"-----BEGIN PRIVATE KEY-----\n{CANARY}\n-----END PRIVATE KEY-----"
LOGIN = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "etl",
    "sasl.password": CANARY,
    "ssl.keystore.type": "PEM",
    "ssl.keystore.certificate.chain": "-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----",
    "ssl.keystore.key": KEY,
    "ssl.key.password": CANARY,
}


@pytest.fixture(autouse=True)
def no_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """What Spark prints of a source is all that counts here. The keys are no keys, and nobody is
    there.
    """
    monkeypatch.setattr(onceward.kafka.source.source, "KafkaClient", lambda settings: Nobody())


class Nobody:
    def reach(self, topics: object) -> int:
        return 0

    def bounds_remote_reads(self) -> bool:
        return False

    def close(self) -> None:
        pass


def source(spark: Any) -> Any:
    return onceward.kafka_source(spark, bootstrap_servers="127.0.0.1:1", topic="t", options=LOGIN)


def test_plans_and_errors_show_none(
    spark: Any, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        frame = source(spark)
    frame.explain(True)
    shown = capsys.readouterr().out
    assert "kafka.sasl.jaas.config=*********(redacted)" in shown
    assert "kafka.ssl.keystore.key=*********(redacted)" in shown
    with pytest.raises(AnalysisException) as unknown:
        frame.selectExpr("no_such_column")
    assert "redacted" in str(unknown.value)
    assert "py4j" in caplog.text
    for text in (shown, str(unknown.value), repr(unknown.value), caplog.text):
        assert CANARY not in text


def test_the_options_arrive_all_the_same(spark: Any) -> None:
    relation = source(spark)._jdf.queryExecution().analyzed()
    options = relation.extraOptions()
    assert f'password="{CANARY}"' in options.get("kafka.sasl.jaas.config")
    assert options.get("kafka.ssl.keystore.key").endswith(KEY)
    assert options.get("kafka.isolation.level") == "read_committed"


def test_a_spark_that_is_told_to_print_them_is_refused(spark: Any) -> None:
    conf = spark._jsparkSession.sessionState().conf()
    conf.setConfString("spark.redaction.regex", "nothing-at-all")
    try:
        with pytest.raises(ConfigurationError, match="redaction") as refused:
            source(spark)
    finally:
        conf.unsetConf("spark.redaction.regex")
    assert CANARY not in str(refused.value)
