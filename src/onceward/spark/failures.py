"""What Spark says of a failure that we know, as one of our errors. Pure: text in, error or nothing out.

Called by :mod:`onceward.spark.job` for the job of a batch, and by :mod:`onceward.spark.source_errors` for what
failed outside of it: under adaptive execution (Spark 4.1 and later) the stages before a shuffle run before Spark calls
the sink. Runs in the driver.
"""

from __future__ import annotations

import re

from onceward.errors import OncewardError, SourceDataLost, WorkerPythonUnfit
from onceward.spark.carried import carried_in

_LOST_INPUT = ("KAFKA_DATA_LOSS", "data may have been lost")  # how Spark's Kafka source says it, planning or reading
_WHAT_IS_LOST = ("OffsetOutOfRangeException: ", "Reason: ")  # the second: partitions, or a topic, that were deleted

# A daemon that is not there, and a task's function that cannot be unpickled, end in the same words.
_NO_ONCEWARD = re.compile(r"No module named '?onceward\b")
_NO_PROGRAM = re.compile(r'Cannot run program "([^"]*python[^"]*)"')
_OTHER_PYTHON = "PYTHON_VERSION_MISMATCH"


def known_failure(text: str) -> OncewardError | None:
    """The error behind Spark's ``text``, which may be a whole stack trace; None: not one that is known here."""
    return carried_in(text) or _lost_input(text) or _unfit_python(text)


def _lost_input(text: str) -> OncewardError | None:
    lines = text.splitlines()
    said = next((line for line in lines if any(sign in line for sign in _LOST_INPUT)), None)
    if said is None:
        return None
    told = (line.partition(sign)[2] for sign in _WHAT_IS_LOST for line in lines if sign in line)
    where = next(told, said.strip()).partition(" SQLSTATE: ")[0]
    return SourceDataLost(
        f"records of this batch are gone from the source before they were read: {where}",
        next_step="lengthen the source topic's retention (retention.ms, retention.bytes); nothing of the batch was "
        "written; if the topic was deleted and created again, begin anew with another pipeline_id and checkpoint, "
        "or its records below the old offsets are skipped; to go on without the lost records, start once with "
        'kafka_source(spark_options={"failOnDataLoss": False})',
    )


def _unfit_python(text: str) -> OncewardError | None:
    if _NO_ONCEWARD.search(text):
        said = "the Python that Spark's workers run cannot import onceward"
    elif (program := _NO_PROGRAM.search(text)) is not None:
        said = f"Spark's workers cannot start Python: there is no {program[1]} where they run"
    elif _OTHER_PYTHON in text:
        said = "the Python that Spark's workers run is of another version than the driver's"
    else:
        return None
    return WorkerPythonUnfit(
        said,
        next_step="before the session starts, set the environment variable PYSPARK_PYTHON (with spark-submit: --conf "
        "spark.pyspark.python=…) to a Python of the driver's version that has onceward installed on every machine "
        "with an executor; `onceward doctor` looks at the one of this machine",
    )
