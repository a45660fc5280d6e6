"""What Spark says, word for word, and what we call it."""

from __future__ import annotations

import pytest

from onceward.errors import OncewardError, SourceDataLost, WorkerPythonUnfit
from onceward.spark.failures import known_failure

DAEMON = """Job aborted due to stage failure: Task 0 in stage 0.0 failed 1 times, most recent failure:
org.apache.spark.SparkException:
Error from python worker:
  /usr/bin/python3: Error while finding module specification for 'onceward.spark.worker_daemon' (ModuleNotFoundError:
  No module named 'onceward')
PYTHONPATH was:
"""
UNPICKLED = "ModuleNotFoundError: No module named 'onceward.sinks'"
NO_PROGRAM = 'java.io.IOException: Cannot run program "/opt/venv/bin/python3.11": error=2, No such file or directory'
OTHER = "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9 than that in driver: 3.11"
LOST = """[KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE] Some data may have been lost
Caused by: org.apache.kafka.clients.consumer.OffsetOutOfRangeException: Fetch position 5 is out of range for in-0"""


@pytest.mark.parametrize(
    ("text", "kind", "named"),
    [
        (DAEMON, WorkerPythonUnfit, "cannot import onceward"),
        (UNPICKLED, WorkerPythonUnfit, "cannot import onceward"),
        (NO_PROGRAM, WorkerPythonUnfit, "/opt/venv/bin/python3.11"),
        (OTHER, WorkerPythonUnfit, "another version"),
        (LOST, SourceDataLost, "Fetch position 5 is out of range for in-0"),
    ],
)
def test_known_failures(text: str, kind: type[OncewardError], named: str):
    error = known_failure(text)
    assert type(error) is kind
    assert named in error.message
    if kind is WorkerPythonUnfit:
        assert "PYSPARK_PYTHON" in error.next_step


@pytest.mark.parametrize("text", ["", "No module named 'pandas'", "No module named 'oncewards'", "ZeroDivisionError"])
def test_other_failures_stay_what_they_are(text: str):
    assert known_failure(text) is None
