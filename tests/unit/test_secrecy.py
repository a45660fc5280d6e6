"""What keeps secrets out of texts: log filters, and values that Spark knows for secrets. No
JVM.
"""

from __future__ import annotations

import logging
import threading

import pytest

from onceward.secrecy import unlogged_calls
from onceward.spark.batch.kafka_reader import is_shown, with_heading

LOGGER = logging.getLogger("py4j.clientserver")


def test_calls_of_this_thread_are_not_logged_and_others_are(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.DEBUG):
        with unlogged_calls():
            with unlogged_calls():
                LOGGER.debug("inner secret")
            LOGGER.debug("outer secret")
            other = threading.Thread(target=LOGGER.debug, args=("of another thread",))
            other.start()
            other.join()
        LOGGER.debug("afterwards")
    assert caplog.messages == ["of another thread", "afterwards"]


def test_the_filter_is_there_once() -> None:
    for _ in range(3):
        with unlogged_calls():
            pass
    assert len(LOGGER.filters) == len(set(LOGGER.filters))


@pytest.mark.parametrize(
    ("name", "value", "heading"),
    [
        ("kafka.sasl.jaas.config", 'm.PlainLoginModule required username="u" password="p";', ""),
        (
            "kafka.sasl.jaas.config",
            "software.amazon.msk.auth.iam.IAMLoginModule required;",
            "/* secret */ ",
        ),
        (
            "kafka.sasl.jaas.config",
            "com.sun.security.auth.module.Krb5LoginModule required;",
            "/* secret */ ",
        ),
        ("kafka.ssl.keystore.key", "-----BEGIN PRIVATE KEY-----", "The secret key of a client:\n"),
        ("kafka.ssl.key.password", "p", ""),
    ],
)
def test_a_value_without_a_telling_word_gets_one(name: str, value: str, heading: str) -> None:
    assert with_heading(name, value) == heading + value


def test_a_short_secret_is_not_found_in_other_texts() -> None:
    printed = "[kafka.ssl.key.password=*********(redacted), kafka.bootstrap.servers=kafka:9092]"
    for value in ("", "kafka", "password", "redacted"):
        assert not is_shown("kafka.ssl.key.password", value, printed)
    assert is_shown("kafka.ssl.key.password", "kafka", "[kafka.ssl.key.password=kafka]")
    assert is_shown("kafka.sasl.jaas.config", "Pw7", "[kafka.sasl.jaas.config=Pw7]")
