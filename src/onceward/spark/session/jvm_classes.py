"""Which libraries a session's JVM has. Driver only."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from onceward.errors import ConfigurationError


def must_have(session: SparkSession, name: str, message: str, next_step: str) -> None:
    """Check that a class is on the driver's class path.

    :raises ConfigurationError: the class, by its full name, is not there.
    """
    jvm: Any = session.sparkContext._jvm
    try:
        jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(name)
    except Exception as error:
        raise ConfigurationError(message, next_step=next_step) from error
