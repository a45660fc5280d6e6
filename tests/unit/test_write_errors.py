"""What a failure of Spark's own writers means, by what the JVM threw: without a JVM."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from pyspark.errors import AnalysisException

from onceward.errors import (
    ColumnMismatch,
    ConfigurationError,
    OncewardError,
    RowRefused,
    SendFailed,
    WorkerPythonMismatch,
)
from onceward.spark.batch import write_errors
from onceward.spark.batch.causes import Thrown
from support.errors import raises

UNMAPPABLE = Thrown(
    "java.nio.file.InvalidPathException", "Malformed input or input contains unmappable characters"
)
THERE = Thrown(
    "org.apache.hadoop.fs.FileAlreadyExistsException", "File already exists: /data/v=??/part-00000"
)
RULE = Thrown(
    "org.apache.spark.sql.delta.schema.DeltaInvariantViolationException",
    "CHECK constraint short violated by row with values:\n - value : secret",
)
MINE = Thrown(
    "org.apache.hadoop.fs.FileAlreadyExistsException", "File already exists: /data/v=a/part-00000"
)
LONG = Thrown(
    "java.io.IOException",
    f"Mkdirs failed to create file:/data/x=1/v={'é' * 127} (exists=false, cwd=file:/home/x=1)",
)
FITS = Thrown(LONG.kind, LONG.message.replace("é", "e", 1))
SPECIAL = Thrown(
    LONG.kind, f"Mkdirs failed to create file:/a%3Ab={'%25' * 90}/x=1 (exists=false, cwd=file:/)"
)
NUL = Thrown(LONG.kind, "Mkdirs failed to create file:/data/v=a\0b (exists=false, cwd=file:/)")
ELSEWHERE = Thrown(LONG.kind, f"Mkdirs failed to create file:/{'a' * 300}=1/v=1 (exists=false, cw")
OF_A_STORE = Thrown(
    "java.io.InterruptedIOException",
    f"Mkdirs on s3a://out/v={'x' * 300}/part-0: timeout: cwd=file:/data/v={'x' * 300}/ (exists=",
)
ON_HDFS = Thrown(
    "org.apache.hadoop.ipc.RemoteException",
    f"The maximum path component name limit of a%3Ab={'x' * 300} in directory /data/x=1 is "
    "exceeded: limit=255 length=306",
)
OF_ANOTHER = Thrown(ON_HDFS.kind, ON_HDFS.message.replace("a%3Ab", "part"))
IN_S3 = Thrown(
    "org.apache.hadoop.fs.s3a.AWSBadRequestException",
    f"Writing Object on x=1/v={'x' * 1024}: software.amazon.awssdk.services.s3.model.S3Exception: "
    "Your key is too long (Service: S3, Status Code: 400):KeyTooLongError: Your key is too long",
)
CODEC = Thrown(
    "org.apache.spark.SparkIllegalArgumentException", "The codec foo is not available.\nmore",
    "CODEC_NOT_AVAILABLE.WITH_AVAILABLE_CODECS_SUGGESTION",
)  # fmt: skip
FULL = Thrown("java.io.IOException", "No space left on device")


@pytest.mark.parametrize(
    ("thrown", "utf8", "error"),
    [
        ([UNMAPPABLE], False, RowRefused),
        (
            [THERE],
            False,
            RowRefused,
        ),  # the second try of a task, under the name that the first one has mangled
        ([MINE], False, SendFailed),
        ([UNMAPPABLE], True, SendFailed),
        ([THERE], True, SendFailed),
        ([FULL], False, SendFailed),
    ],
)
def test_a_name_that_the_jvm_cannot_write_is_the_datas_fault_where_its_locale_is_not_utf8(
    monkeypatch: pytest.MonkeyPatch,
    thrown: Sequence[Thrown],
    utf8: bool,
    error: type[OncewardError],
):
    monkeypatch.setattr(write_errors, "thrown_by", lambda _: tuple(thrown))
    monkeypatch.setattr(write_errors, "names_are_utf8", lambda: utf8)
    for partition_by, kind in ((["v"], error), ([], SendFailed)):
        with (
            pytest.raises(kind) as told,
            write_errors.failures_told("to it", "/data", partition_by=partition_by),
        ):
            raise RuntimeError("the job failed")
        assert ("LC_ALL" in told.value.next_step) == (kind is RowRefused)


@pytest.mark.parametrize(
    ("thrown", "column"),
    [
        (LONG, "v"),
        (SPECIAL, "a:b"),
        (NUL, "v"),
        (ON_HDFS, "a:b"),
        (IN_S3, "x, v, a:b"),
        (OF_ANOTHER, None),
        (FITS, None),
        (ELSEWHERE, None),
        (OF_A_STORE, None),
    ],
)
def test_a_value_that_names_no_folder_is_the_rows_fault_and_the_column_is_named(
    monkeypatch: pytest.MonkeyPatch, thrown: Thrown, column: str | None
):
    monkeypatch.setattr(write_errors, "thrown_by", lambda _: (thrown,))
    kind = SendFailed if column is None else RowRefused
    with (
        raises(kind) as told,
        write_errors.failures_told("to it", "/data", partition_by=["x", "v", "a:b"]),
    ):
        raise RuntimeError("the job failed")
    if column is not None:
        assert repr(column) in str(told.value)


@pytest.mark.parametrize(
    ("thrown", "error"),
    [
        ([CODEC], ConfigurationError),
        ([Thrown(CODEC.kind, "java.net.UnknownHostException: nn1")], RuntimeError),
        ([Thrown("org.apache.spark.SparkException", "Job aborted"), CODEC], RuntimeError),
    ],
    ids=["driver", "without a condition", "task"],
)
def test_an_option_that_spark_refuses_is_a_wrong_setting(
    monkeypatch: pytest.MonkeyPatch, thrown: Sequence[Thrown], error: type[Exception]
):
    """Which no restart mends."""
    monkeypatch.setattr(write_errors, "thrown_by", lambda _: tuple(thrown))
    told = raises(error, "foo") if error is ConfigurationError else pytest.raises(error)
    with told, write_errors.failures_told("as parquet", "/data"):
        raise RuntimeError("the job failed")


def test_a_rule_of_the_table_that_a_row_breaks_is_the_rows_fault(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        write_errors,
        "thrown_by",
        lambda _: (Thrown("org.apache.spark.SparkException", "failed"), RULE),
    )
    with (
        raises(RowRefused) as refused,
        write_errors.failures_told("as delta", "/data"),
    ):
        raise RuntimeError("the job failed")
    assert "secret" not in str(refused.value)


HIVE = "org.apache.hadoop.hive.ql.metadata.HiveException"
REFUSED = (Thrown(HIVE, "MetaException(message:Could not connect to meta store"),)
OTHER_TYPE = (Thrown("org.apache.spark.sql.delta.DeltaAnalysisException", "incompatible types"),)


@pytest.mark.parametrize(
    ("behind", "error"),
    [(REFUSED, SendFailed), (OTHER_TYPE, ColumnMismatch), ((), ColumnMismatch)],
)
def test_a_catalog_that_is_away_says_nothing_of_the_frame(
    monkeypatch: pytest.MonkeyPatch, behind: Sequence[Thrown], error: type[OncewardError]
):
    """A frame that is joined with a table of the metastore asks it as the job is planned."""
    outer = Thrown("org.apache.spark.sql.AnalysisException", "failed")
    monkeypatch.setattr(write_errors, "thrown_by", lambda _: (outer, *behind))
    with pytest.raises(error) as told, write_errors.failures_told("as parquet", "/data"):
        raise AnalysisException("failed")
    assert ("metastore" in told.value.next_step) == (error is SendFailed)


@pytest.mark.parametrize(
    ("called_by", "names"),
    [
        ("org.apache.spark.storage.TimeTrackingOutputStream", "spark.local.dir"),
        ("org.apache.spark.shuffle.sort.BypassMergeSortShuffleWriter", "spark.local.dir"),
        ("org.apache.spark.sql.execution.datasources.text.TextOutputWriter", "executors write"),
        ("", "executors write"),
    ],
)
def test_the_disk_that_is_full_is_named(
    monkeypatch: pytest.MonkeyPatch, called_by: str, names: str
):
    full = Thrown(FULL.kind, FULL.message, called_by=called_by)
    monkeypatch.setattr(write_errors, "thrown_by", lambda _: (full,))
    with raises(SendFailed) as failed, write_errors.failures_told("to it", "/data"):
        raise RuntimeError("the job failed")
    assert names in failed.value.next_step


JOB = Thrown("org.apache.spark.SparkException", "Job aborted due to stage failure")
REFUSED_HERE = Thrown("java.net.ConnectException", "Connection refused")
OF_THE_SDK = Thrown("software.amazon.awssdk.services.s3.model.S3Exception", "(Status Code: 503)")


@pytest.mark.parametrize(
    ("chain", "named"),
    [
        (
            [
                Thrown("org.apache.hadoop.fs.s3a.AWSServiceThrottledException", "put on x: 503"),
                OF_THE_SDK,
            ],
            "put on x",
        ),
        ([Thrown("org.apache.hadoop.fs.s3a.AWSStatus500Exception", "on y"), OF_THE_SDK], "on y"),
        (
            [
                Thrown("java.net.ConnectException", "Writing Object on z"),
                Thrown("software.amazon.awssdk.core.exception.SdkClientException", "HTTP request"),
                REFUSED_HERE,
            ],
            "on z",
        ),
        ([Thrown("java.net.ConnectException", "Call to nn1:8020 failed"), REFUSED_HERE], "nn1"),
        ([Thrown("java.net.UnknownHostException", "nn1")] * 2, "nn1"),
        ([Thrown("java.net.NoRouteToHostException", "to nn1")] * 2, "nn1"),
        # A name node that was restarted, and no worker that died
        ([Thrown("java.io.EOFException", "End of File Exception to nn1")], "nn1"),
        ([OF_THE_SDK], "503"),
        ([Thrown("org.apache.iceberg.exceptions.CommitStateUnknownException", "of t")], "of t"),
        (
            [
                Thrown("org.apache.iceberg.jdbc.UncheckedSQLException", "of t"),
                Thrown("org.postgresql.util.PSQLException", "refused"),
            ],
            "of t",
        ),
    ],
)
@pytest.mark.parametrize("before", [[JOB], []], ids=["task", "driver"])
def test_a_store_that_fails_is_one_of_the_batchs_attempts_whoever_wraps_its_exception(
    monkeypatch: pytest.MonkeyPatch, before: Sequence[Thrown], chain: Sequence[Thrown], named: str
):
    monkeypatch.setattr(write_errors, "thrown_by", lambda _: (*before, *chain))
    with raises(SendFailed, named), write_errors.failures_told("to it", "/data"):
        raise RuntimeError("the job failed")


@pytest.mark.parametrize(
    ("chain", "error", "named"),
    [
        (
            [
                JOB,
                Thrown(JOB.kind, "Python worker exited unexpectedly (crashed)"),
                Thrown("java.io.EOFException"),
            ],
            SendFailed,
            "runs Python",
        ),
        (
            [
                JOB,
                Thrown(JOB.kind, "cannot read /in/a", "FAILED_READ_FILE.NO_HINT"),
                Thrown("java.io.IOException", "cut off"),
            ],
            SendFailed,
            "/in/a",
        ),
        (
            [
                JOB,
                Thrown(
                    "java.io.IOException",
                    'Cannot run program "python9": error=2, No such file or directory',
                    thrown_in="java.lang.ProcessBuilder",
                ),
                Thrown("java.io.IOException", "error=2, No such file or directory"),
            ],
            WorkerPythonMismatch,
            "python9",
        ),
    ],
    ids=["worker", "source", "python"],
)
def test_what_is_known_of_sparks_failures_is_not_taken_for_the_targets(
    monkeypatch: pytest.MonkeyPatch,
    chain: Sequence[Thrown],
    error: type[OncewardError],
    named: str,
):
    monkeypatch.setattr(write_errors, "thrown_by", lambda _: tuple(chain))
    with raises(error, named), write_errors.failures_told("to it", "/data"):
        raise RuntimeError("the job failed")


CUT_OFF = Thrown("java.io.EOFException")
BAD_URL = Thrown("org.apache.spark.SparkIllegalArgumentException", "not valid", "INVALID_URL")


@pytest.mark.parametrize(
    "chain",
    [
        # from_avro, whose mode is FAILFAST by default; its exception has no condition
        [
            JOB,
            Thrown(
                JOB.kind,
                "Malformed records are detected",
                thrown_in="org.apache.spark.sql.avro.AvroDataToCatalyst",
            ),
            CUT_OFF,
        ],
        [
            Thrown(JOB.kind, "Malformed", "MALFORMED_RECORD_IN_PARSING.WITHOUT_SUGGESTION"),
            Thrown("org.apache.hadoop.shaded.com.ctc.wstx.exc.WstxEOFException"),
        ],
        [Thrown(JOB.kind, "in f(…)", "FAILED_EXECUTE_UDF"), REFUSED_HERE],
        # parse_url, in ANSI mode, Spark's default; what a task throws may be the outermost
        [BAD_URL, Thrown("java.net.URISyntaxException", "Illegal character")],
        [JOB, BAD_URL, Thrown("java.net.URISyntaxException", "Illegal character")],
        # to_number
        [Thrown(BAD_URL.kind, "does not match", "INVALID_FORMAT.MISMATCH_INPUT")],
        # Behind it is what wrote rows to the worker
        [JOB, Thrown("org.apache.spark.api.python.PythonException", "Traceback"), REFUSED_HERE],
    ],
    ids=["avro", "xml", "udf", "url", "url of a task", "number", "python"],
)
def test_what_a_row_or_the_users_function_makes_fail_keeps_its_name(
    monkeypatch: pytest.MonkeyPatch, chain: Sequence[Thrown]
):
    """It is no failure of the target: the same row fails at the next attempt, too."""
    monkeypatch.setattr(write_errors, "thrown_by", lambda _: tuple(chain))
    failure = RuntimeError("the job failed")
    with pytest.raises(RuntimeError) as raised, write_errors.failures_told("to it", "/data"):
        raise failure
    assert raised.value is failure


def test_a_table_that_is_not_found_while_it_is_written_may_come_back(
    monkeypatch: pytest.MonkeyPatch,
):
    """It was there when the batch began: a catalog that is away for a moment says so, too."""
    missing = Thrown("org.apache.spark.sql.AnalysisException", "no t", "TABLE_OR_VIEW_NOT_FOUND")
    monkeypatch.setattr(write_errors, "thrown_by", lambda error: (missing,))
    with pytest.raises(SendFailed), write_errors.failures_told("to t", "table t"):
        raise AnalysisException("no t")
    monkeypatch.setattr(write_errors, "thrown_by", lambda error: ())
    with pytest.raises(ColumnMismatch), write_errors.failures_told("to t", "table t"):
        raise AnalysisException("no column")
