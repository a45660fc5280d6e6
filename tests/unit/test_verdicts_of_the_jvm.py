"""What a library of the JVM says of a schema or a class is told apart from a line to the JVM that
breaks, and from a JVM that is short of memory. The JVM is a stand-in.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyspark
import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.errors import ParseException
from pyspark.sql.types import DataType, StringType

from onceward.errors import ConfigurationError, TableMissing, UnsupportedSchema
from onceward.formats.avro import decoding, encoding
from onceward.formats.json.decoding import parse_schema
from onceward.spark.files.file_writer import must_know
from onceward.spark.session.connector import must_have
from onceward.spark.tables import iceberg_table
from onceward.spark.tables.avro_java import (
    schema_for,
    why_not_a_column,
    why_not_a_schema,
    why_not_readable_as,
    why_not_writable,
)
from support.errors import raises


class JavaError(Exception):
    """A Py4JJavaError, and the Java exception behind it."""

    def __init__(self, kind: str, message: str = "") -> None:
        super().__init__(message)
        self.java_exception, self.kind, self.message = self, kind, message

    def getClass(self) -> Any:  # noqa: N802 — Java's names
        return self

    def getName(self) -> str:  # noqa: N802
        return self.kind

    def getMessage(self) -> str:  # noqa: N802
        return self.message

    def getStackTrace(self) -> list[Any]:  # noqa: N802
        return []

    def getCause(self) -> None:  # noqa: N802
        return None


class Session:
    """Its JVM raises ``error`` at each call."""

    def __init__(self, error: Exception) -> None:
        self._jvm, self.sparkContext, self._error = self, self, error

    def __getattr__(self, name: str) -> Any:
        return self

    def __call__(self, *_: object) -> Any:
        raise self._error


NO_VERDICTS = [
    Py4JNetworkError("Answer from Java side is empty"),
    OSError("Too many open files"),
    JavaError("java.lang.OutOfMemoryError", "Java heap space"),
    JavaError("java.lang.NoClassDefFoundError", "Could not initialize class"),
]
TEXT = '"string"'
ASKED: list[Callable[[Any], object]] = [
    lambda session: why_not_a_schema(session, TEXT),
    lambda session: why_not_a_column(session, TEXT),
    lambda session: why_not_readable_as(session, TEXT, TEXT),
    lambda session: why_not_writable(session, StringType(), TEXT),
    lambda session: schema_for(session, StringType(), "r", "n"),
]


@pytest.mark.parametrize("ask", ASKED)
@pytest.mark.parametrize("error", NO_VERDICTS, ids=repr)
def test_a_failure_of_the_jvm_is_no_verdict_on_a_schema(
    ask: Callable[[Any], object], error: Exception
) -> None:
    """Its records would be dead letters for as long as the query runs."""
    with pytest.raises(type(error)) as met:
        ask(Session(error))
    assert met.value is error


@pytest.mark.parametrize("ask", ASKED)
@pytest.mark.parametrize(
    "kind",
    [
        "org.apache.avro.SchemaParseException",
        "org.apache.spark.sql.avro.IncompatibleSchemaException",
        "java.lang.NullPointerException",
        "java.lang.StackOverflowError",
    ],
)
def test_what_a_library_throws_is_its_verdict(ask: Callable[[Any], object], kind: str) -> None:
    said = ask(Session(JavaError(kind, "not\n  like that")))
    assert said in ("not like that", ("", "not like that"))


@pytest.mark.parametrize("error", NO_VERDICTS[:3], ids=repr)
def test_a_failure_of_the_jvm_is_no_lack_of_a_class(error: Exception) -> None:
    session: Any = Session(error)
    with pytest.raises(type(error)):
        must_have(session, "a.B", "there is no B", "build it with B")
    session = Session(JavaError("java.lang.ClassNotFoundException", "a.B"))
    with pytest.raises(ConfigurationError, match="there is no B"):
        must_have(session, "a.B", "there is no B", "build it with B")


@pytest.mark.parametrize("error", NO_VERDICTS, ids=repr)
def test_a_failure_of_the_jvm_is_no_lack_of_a_table(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is opened anew for each batch."""
    monkeypatch.setattr(iceberg_table, "must_have_lake", lambda *_, **__: None)
    monkeypatch.setattr(iceberg_table, "asked_apart", lambda _jvm, ask, *_: ask())
    monkeypatch.setattr(iceberg_table.IcebergTable, "_names_a_catalog", lambda _: False)
    session: Any = Session(error)
    with pytest.raises(type(error)) as met:
        iceberg_table.IcebergTable(session, "lake.shop.visits")
    assert met.value is error
    session = Session(JavaError("org.apache.iceberg.exceptions.NoSuchTableException", "none"))
    with pytest.raises(TableMissing):
        iceberg_table.IcebergTable(session, "lake.shop.visits")


def test_a_failure_of_the_jvm_is_no_verdict_on_ddl(monkeypatch: pytest.MonkeyPatch) -> None:
    collation = JavaError("org.apache.spark.SparkException", "no collation xx")
    met = [NO_VERDICTS[0], NO_VERDICTS[2], ParseException("\nat 'a'\n== SQL =="), collation]

    def parse(_text: str) -> Any:
        raise met.pop(0)

    monkeypatch.setattr(DataType, "fromDDL", parse)
    with pytest.raises(Py4JNetworkError):
        parse_schema("a int")
    with pytest.raises(JavaError):
        parse_schema("a int")
    with raises(UnsupportedSchema, "is no DDL: at 'a'"):
        parse_schema("a intt")
    with raises(UnsupportedSchema, "is no DDL: SparkException: no collation xx"):
        parse_schema("a string collate xx")


class SparkAlone:
    """A session whose JVM has Spark's own jars, and no package."""

    version = "4.0.0"

    def __init__(self) -> None:
        self.classes = {
            name.removesuffix(".class").replace("/", ".")
            for jar in (Path(pyspark.__path__[0]) / "jars").glob("spark-sql*.jar")
            for name in zipfile.ZipFile(jar).namelist()
        }
        self.sparkContext = self._jvm = self

    def __getattr__(self, _name: str) -> Any:
        return self

    def __call__(self) -> Any:
        return self

    def loadClass(self, name: str) -> None:  # noqa: N802
        if name not in self.classes:
            raise JavaError("java.lang.ClassNotFoundException", name)


@pytest.mark.parametrize("asked", ["decode", "encode", "a file"])
def test_a_session_without_spark_avro_is_told_which_package_it_lacks(
    asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's own jars have its writer of Avro files, and nothing that finds it."""
    session: Any = SparkAlone()
    assert "org.apache.spark.sql.avro.AvroFileFormat" in session.classes
    frame: Any = SimpleNamespace(sparkSession=session)
    monkeypatch.setattr(decoding, "_check", lambda *_: None)
    with raises(ConfigurationError) as met:
        if asked == "decode":
            decoding.decode(frame, registry="http://registry", subject="s")
        elif asked == "encode":
            encoding.encode(frame, registry="http://registry", subject="s")
        else:
            must_know(session, "avro")
    assert '"spark.jars.packages", "org.apache.spark:spark-avro_2.13:4.' in met.value.next_step
    assert "ow.spark_conf()" in met.value.next_step
    must_know(session, "parquet")
