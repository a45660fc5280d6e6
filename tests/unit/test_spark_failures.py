"""What Spark throws, and what we call it: by class and condition, never by words that a record may
have brought.
"""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from onceward.errors import (
    AccessDenied,
    AuthenticationFailed,
    BrokerUnreachable,
    CheckpointCorrupted,
    Fenced,
    FileUnreadable,
    OncewardError,
    PartitionsAdded,
    Recovery,
    RowRefused,
    SendFailed,
    SourceDataLost,
    SourceFileMissing,
    SourceReplaced,
    WorkerPythonMismatch,
)
from onceward.ids import BatchId
from onceward.spark.batch import file_sources
from onceward.spark.batch.carried import Carried, Carrier, carried_in
from onceward.spark.batch.causes import Thrown
from onceward.spark.batch.failures import RAISED, known_failure
from support.errors import raises

SPARK, PYTHON = "org.apache.spark.SparkException", "org.apache.spark.api.python.PythonException"
ABORTED = (
    "Job aborted due to stage failure: Task 0 in stage 0.0 failed 1 times, most recent "
    "failure: Lost task 0.0: "
)

UNFIT_CONFIG = "org.apache.kafka.common.errors.InvalidConfigurationException"

DAEMON = """
Error from python worker:
  /usr/bin/python3: Error while finding module specification for
  'onceward.spark.session.worker_daemon' (ModuleNotFoundError: No module named 'onceward')
PYTHONPATH was:
"""
DAEMON_KILLED = (
    "EOFException occurred while reading the port number from pyspark.daemon's stdout and "
    "terminated with code: 137.\nThe output was"
)
UNPICKLED = """Traceback (most recent call last):
  File "pyspark/worker.py", line 2028, in main
    func, profiler, deserializer, serializer = read_udfs(pickleSer, infile, eval_type)
  File "pyspark/worker_util.py", line 68, in read_command
    command = serializer._read_with_length(file)
ModuleNotFoundError: No module named 'onceward'
"""
OTHER = """Traceback (most recent call last):
  File "pyspark/worker.py", line 1972, in main
    check_python_version(infile)
  File "pyspark/worker_util.py", line 77, in check_python_version
    raise PySparkRuntimeError(
pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has different version
"""
NO_PROGRAM = 'Cannot run program "/opt/venv/bin/python3.11": error=2, No such file or directory'
STARTS = "java.lang.ProcessBuilder"
NO_ROOM = 'Cannot run program "/usr/bin/python3": Exec failed, error: 12 (Cannot allocate memory)'
NO_HELPER = (
    'Cannot run program "python3": error=0, Failed to exec spawn helper: pid: 2, exit value: 13'
)
NOT_ALLOWED = 'Cannot run program "python3" (in directory "/"): error=13, Permission denied'
WENT_BACK = (
    "[KAFKA_DATA_LOSS.PARTITION_OFFSET_CHANGED] Some data may have been lost because they are not "
    "available in Kafka any more.\nReason:\n  Partition in-0 offset was changed from 9 to 4. "
    "SQLSTATE: 22000"
)
LOST = "[KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE] Some data may have been lost"
ADDED = (
    "[KAFKA_DATA_LOSS.ADDED_PARTITION_DOES_NOT_START_FROM_OFFSET_ZERO] Some data may have been "
    "lost.\nReason:\n  Added partition in-0 starts from 4711 instead of 0. SQLSTATE: 22000"
)
NEVER = (
    "[KAFKA_DATA_LOSS.INITIAL_OFFSET_NOT_FOUND_FOR_PARTITIONS] Some data may have been lost.\n"
    "Reason:\n  Failed to find initial offsets for partitions in-1. They may have been deleted."
)
GONE = (
    "[KAFKA_DATA_LOSS.PARTITIONS_DELETED] Some data may have been lost.\nReason:\n  Partitions "
    "in-1\n are gone"
)
STATE = "org.apache.spark.sql.kafka010.KafkaIllegalStateException"


@pytest.mark.parametrize(
    ("thrown", "kind", "named"),
    [
        (
            [Thrown(SPARK, ABORTED), Thrown(SPARK, DAEMON)],
            WorkerPythonMismatch,
            "cannot import onceward",
        ),
        (
            [Thrown(SPARK, ABORTED), Thrown(SPARK, "Python worker exited unexpectedly (crashed)")],
            SendFailed,
            "has died",
        ),
        (
            [Thrown(SPARK, DAEMON_KILLED), Thrown("java.io.EOFException")],
            SendFailed,
            "terminated with code: 137",
        ),
        (
            [Thrown(SPARK, ABORTED), Thrown(PYTHON, UNPICKLED)],
            WorkerPythonMismatch,
            "cannot import onceward",
        ),
        (
            [
                Thrown(SPARK, ABORTED),
                Thrown("java.io.IOException", NO_PROGRAM, thrown_in="java.lang.ProcessBuilder"),
            ],
            WorkerPythonMismatch,
            "/opt/venv/bin/python3.11",
        ),
        (
            [Thrown(SPARK, ABORTED), Thrown("java.io.IOException", NO_ROOM, thrown_in=STARTS)],
            SendFailed,
            "cannot be started: Cannot run program",
        ),
        (
            [Thrown("java.io.IOException", NO_HELPER, thrown_in=STARTS)],
            SendFailed,
            "cannot be started: Cannot run program",
        ),
        (
            [Thrown("java.io.IOException", NOT_ALLOWED, thrown_in=STARTS)],
            WorkerPythonMismatch,
            "none that they may run",
        ),
        ([Thrown(PYTHON, OTHER)], WorkerPythonMismatch, "another version"),
        (
            [
                Thrown(STATE, LOST, "KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE"),
                Thrown(
                    "org.apache.kafka.clients.consumer.OffsetOutOfRangeException",
                    "position 5 is out of in-0",
                ),
            ],
            SourceDataLost,
            "position 5 is out of in-0",
        ),
        (
            [Thrown(STATE, WENT_BACK, "KAFKA_DATA_LOSS.PARTITION_OFFSET_CHANGED")],
            SourceDataLost,
            "went back, as Spark was told: Partition in-0 offset was changed from 9 to 4. A",
        ),
        (
            [Thrown(STATE, GONE, "KAFKA_DATA_LOSS.PARTITIONS_DELETED")],
            SourceDataLost,
            "taken out of topic=, no longer fits topic_pattern=, or was deleted: Partitions in-1 are",
        ),
        (
            [Thrown(STATE, NEVER, "KAFKA_DATA_LOSS.INITIAL_OFFSET_NOT_FOUND_FOR_PARTITIONS")],
            SourceDataLost,
            "or was deleted: Failed to find initial offsets for partitions in-1",
        ),
        (
            [Thrown(STATE, ADDED, ADDED[1:].partition("]")[0])],
            SourceDataLost,
            "new to the query does not begin at offset 0: Added partition in-0 starts from 4711",
        ),
        (
            [
                Thrown(SPARK, ABORTED),
                Thrown(
                    "org.apache.kafka.common.errors.TopicAuthorizationException",
                    "Not authorized to access topics: [in]",
                ),
            ],
            AccessDenied,
            "may not read a topic: Not authorized to access topics: [in]. The principal",
        ),
        (
            [
                Thrown(SPARK, ABORTED),
                Thrown(
                    "org.apache.kafka.common.errors.SaslAuthenticationException",
                    "Authentication failed during authentication due to invalid credentials",
                ),
            ],
            AuthenticationFailed,
            "could not log in: SaslAuthenticationException: Authentication failed",
        ),
        (
            [
                Thrown(SPARK, ABORTED),
                Thrown(UNFIT_CONFIG, "Failed to load PEM SSL keystore keystore.pem"),
                Thrown(UNFIT_CONFIG, "Invalid PEM keystore configs"),
                Thrown(
                    "java.security.NoSuchAlgorithmException",
                    "PBES2 SecretKeyFactory not available",
                ),
            ],
            FileUnreadable,
            "certificate and key: NoSuchAlgorithmException: PBES2 SecretKeyFactory not available",
        ),
    ],
)
def test_known_failures(thrown: list[Thrown], kind: type[OncewardError], named: str):
    error = known_failure(thrown)
    assert type(error) is kind
    assert named in error.message
    if kind is WorkerPythonMismatch:
        assert "PYSPARK_PYTHON" in error.next_step
    # Else the sink refuses the next start, and says so then
    assert ('resume="adopt"' in error.next_step) == ("went back" in named)


def test_an_authority_that_only_the_system_trusts_is_to_be_named():
    """Python trusts the system's, and Java those of its own."""
    refused = Thrown("org.apache.kafka.common.errors.SslAuthenticationException", "SSL failed")
    unsigned = Thrown("sun.security.provider.certpath.SunCertPathBuilderException", "no path")
    assert "ssl.ca.location" in known_failure([refused, unsigned]).next_step
    assert "ssl.ca.location" not in known_failure([refused]).next_step


OF_ANOTHER_RUN = str(Carried(Fenced("a newer copy has taken over", next_step="obey"), "0" * 32))
FORGED = [
    OF_ANOTHER_RUN,
    OF_ANOTHER_RUN.replace("0" * 32 + ":", ""),
    'onceward raised {"raised": "unfit", "message": "obey"}',
    LOST,
    GONE,
    "Some data may have been lost, KAFKA_DATA_LOSS",
    "cancelled job group",
    ": java.lang.InterruptedException",
    "No module named 'onceward'",
    NO_PROGRAM,
    DAEMON,
    UNPICKLED,
    OTHER,
    "null value for (non-nullable) string at com.x.R.name",
    "Cannot convert SQL field 'a' to Avro field 'a' because it is not defined in enum",
    "org.apache.kafka.common.errors.TopicAuthorizationException: Topic authorization failed",
]
TRACEBACK = """Traceback (most recent call last):
  File "job.py", line 12, in parse
    raise ValueError(f"not a number: {value}")
ValueError: not a number: """


@pytest.mark.parametrize("data", FORGED)
def test_a_record_that_is_quoted_does_not_choose_the_error(data: str):
    quoted = f"{TRACEBACK}{data}\nCaused by: {data}\n"
    for said in (quoted, f"{TRACEBACK}\n{data}\n{data}"):
        assert (
            known_failure([Thrown(SPARK, ABORTED + PYTHON + ": " + said), Thrown(PYTHON, said)])
            is None
        )
        assert known_failure([Thrown(SPARK, ABORTED + said)]) is None
    raised = "org.apache.spark.SparkRuntimeException"
    assert (
        known_failure([Thrown(raised, f"[USER_RAISED_EXCEPTION] {data}", "USER_RAISED_EXCEPTION")])
        is None
    )


def test_what_our_plans_raise_counts_only_where_spark_puts_it():
    """Who has seen the mark, in a log of this driver's, still cannot have it believed by a
    record.
    """
    mark = RAISED + '{"raised": "unfit", "message": "obey"}'
    said = f"[USER_RAISED_EXCEPTION] {mark}"
    raised = Thrown("org.apache.spark.SparkRuntimeException", said, "USER_RAISED_EXCEPTION")
    assert known_failure([raised]) is not None
    assert known_failure([Thrown("java.lang.RuntimeException", mark)]) is not None, (
        "as Spark 3 did, if it is told to"
    )
    assert known_failure([Thrown(PYTHON, TRACEBACK + mark)]) is None
    quoted = f"[USER_RAISED_EXCEPTION] not a number: {mark}"
    assert known_failure([Thrown(raised.kind, quoted, "USER_RAISED_EXCEPTION")]) is None


def test_a_typed_error_is_found_in_sparks_text():
    error = SourceReplaced("ours", next_step="look [onceward:no]", details={"known": "é"})
    there: Carrier = pickle.loads(pickle.dumps(Carrier()))  # noqa: S301 — our own
    with pytest.raises(Carried) as carried, there():
        raise error
    name = "onceward.spark.batch.carried.Carried"
    text = (
        f"[SOME_ERROR] Failed: Traceback …\n  {name}: {carried.value}\n SQLSTATE: 38000\n\tat "
        f"org.apache.spark"
    )
    found = carried_in(text)
    assert type(found) is SourceReplaced
    assert (found.message, found.next_step, found.details) == (
        error.message,
        error.next_step,
        error.details,
    )
    assert carried_in(text[: text.index("SQLSTATE") - 20]) is None, "cut off"
    assert carried_in("nothing") is None
    assert carried_in(text.replace(f"{name}:", "ValueError: not a number:")) is None, (
        "quoted, by who knows the secret"
    )
    row = str(Carried(RowRefused("no such time", next_step="cast it")))
    # spark.sql.legacy.raiseErrorWithoutErrorClass=true
    assert type(carried_in(row)) is RowRefused
    assert type(carried_in(f"[USER_RAISED_EXCEPTION] {row} SQLSTATE: P0001")) is RowRefused
    assert carried_in(f"[USER_RAISED_EXCEPTION] not a number: {row}") is None
    assert there.secret not in repr(there)


@pytest.mark.parametrize(
    "said", ["", "No module named 'pandas'", "No module named 'oncewards'", "ZeroDivisionError"]
)
def test_other_failures_stay_what_they_are(said: str):
    assert known_failure([Thrown(SPARK, ABORTED), Thrown(PYTHON, said)]) is None
    assert known_failure([]) is None


MISMATCH = "MISMATCHED_TOPIC_PARTITIONS_BETWEEN_END_OFFSET_AND_PREFETCHED"
IN_SPARK = "org.apache.spark.sql.execution.streaming.MicroBatchExecution"
ILLEGAL = "java.lang.IllegalStateException"


SAME = (
    "Kafka data source in Trigger.AvailableNow should provide the same topic partitions in …: "
    "Set(in-0), Set(in-1)"
)


@pytest.mark.parametrize(
    "thrown",
    [
        Thrown(STATE, f"[{MISMATCH}] {SAME}", MISMATCH),
        Thrown(
            SPARK, SAME, thrown_in="org.apache.spark.sql.kafka010.KafkaExceptions$"
        ),  # Spark 4.0
    ],
)
def test_partitions_that_came_in_mid_batch_are_named_with_what_mends_it(thrown: Thrown):
    error = known_failure([thrown])
    assert isinstance(error, PartitionsAdded)
    assert "without availableNow" in error.next_step
    assert "Set(in-0), Set(in-1)" in error.message
    assert error.recovery is Recovery.RESTART


PREFETCHED = "END_OFFSET_HAS_GREATER_OFFSET_FOR_TOPIC_PARTITION_THAN_PREFETCHED"
LESS = (
    "For Kafka data source with Trigger.AvailableNow, end offset should have lower or equal "
    "offset per each topic partition than pre-fetched offset: Map(in-0 -> 30), Map(in-0 -> 50)"
)


@pytest.mark.parametrize(
    "thrown",
    [
        Thrown(STATE, f"[{PREFETCHED}] {LESS}", PREFETCHED),
        Thrown(SPARK, LESS, thrown_in="org.apache.spark.sql.kafka010.KafkaExceptions$"),
    ],
)
def test_a_log_that_has_less_than_spark_was_told_is_asked_again(thrown: Thrown):
    error = known_failure([thrown])
    assert isinstance(error, BrokerUnreachable)
    assert "Map(in-0 -> 30)" in error.message
    assert "without availableNow" in error.next_step


@pytest.mark.parametrize("message", ["batch 8 doesn't exist", "Incomplete log file"])
def test_a_checkpoint_with_a_missing_file_is_named(message: str):
    error = known_failure([Thrown(ILLEGAL, message, thrown_in=IN_SPARK)])
    assert isinstance(error, CheckpointCorrupted)
    assert message in error.message
    assert 'resume="ledger"' in error.next_step


@pytest.mark.parametrize(
    "thrown",
    [
        Thrown(ILLEGAL, "batch 8 doesn't exist", thrown_in="com.shop.Orders"),
        Thrown("com.shop.NoSuchBatch", "batch 8 doesn't exist", thrown_in=IN_SPARK),
        Thrown(ILLEGAL, "order: batch 8 doesn't exist", thrown_in=IN_SPARK),
        Thrown(SPARK, SAME, thrown_in="com.shop.Orders"),
    ],
)
def test_words_alone_say_nothing(thrown: Thrown):
    assert known_failure([thrown]) is None


def test_a_file_system_that_is_away_when_a_file_is_looked_for_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Spark has left the file out; whether it is gone decides no more than the next step."""
    file, away = "hdfs://nn1/in/a", Thrown("java.net.ConnectException", "to nn1")
    session = MagicMock()
    place = session._jvm.org.apache.hadoop.fs.Path.return_value
    place.getFileSystem.side_effect = ArithmeticError("as py4j raises it")
    monkeypatch.setattr(file_sources, "SparkSession", SimpleNamespace(active=lambda: session))
    monkeypatch.setattr(file_sources, "thrown_by", lambda _: (away,))
    monkeypatch.setattr(file_sources, "_options", lambda _: iter([{}]))
    monkeypatch.setattr(file_sources, "_planned", lambda _: iter(()))
    running: Any = SimpleNamespace(batch=BatchId("q", 7), history=MagicMock())
    with raises(SourceFileMissing, file, "nn1", files=[file]) as met:
        file_sources.must_have_files(running, {0: {file: 1}})
    assert met.value.recovery is Recovery.RESTART
