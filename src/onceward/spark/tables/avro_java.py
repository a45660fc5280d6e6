"""Avro's Java library in the driver's JVM: what it says of schemas, and limits of reading.

Called by :mod:`onceward.formats.avro`, in the driver. It is the library that Spark's ``from_avro``
reads with, so what it refuses here would fail there.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Callable
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import DataType, _parse_datatype_json_string

from onceward.spark.batch.causes import is_verdict
from onceward.spark.session.jars import SUBMITTED_VARIABLE
from onceward.spark.session.settings import AVRO_LIMITS

log = logging.getLogger(__name__)

_NAMED = ("record", "error", "enum", "fixed")
_PART, _OTHER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*"), re.compile(r"[^A-Za-z0-9_]")
_EXECUTOR_OPTIONS = ("spark.executor.extraJavaOptions", "spark.executor.defaultJavaOptions")


def why_not_a_schema(session: SparkSession, text: str) -> str | None:
    """Return what Avro objects to in ``text`` as a schema; None if nothing."""
    return _objection(lambda: _parsed(session, text))


def why_not_a_column(session: SparkSession, text: str) -> str | None:
    """Return what Spark objects to in ``text`` as the schema of a column; None if nothing."""
    converters = _jvm(session).org.apache.spark.sql.avro.SchemaConverters
    return _objection(lambda: converters.toSqlType(_parsed(session, text)))


def avro_column(session: SparkSession, text: str) -> DataType:
    """Return Spark's type for values of the valid schema ``text``. All in it may be null."""
    converters = _jvm(session).org.apache.spark.sql.avro.SchemaConverters
    kind = converters.toSqlType(_parsed(session, text)).dataType().asNullable()
    return _parse_datatype_json_string(kind.json())


def why_not_readable_as(session: SparkSession, writer: str, reader: str) -> str | None:
    """Return what Avro objects to in reading records of ``writer`` as ``reader``; None: nothing.

    Some may be readable all the same: those with a union's member that both have, say.
    """
    compatibility = _jvm(session).org.apache.avro.SchemaCompatibility
    try:
        answer = compatibility.checkReaderWriterCompatibility(
            _parsed(session, reader), _parsed(session, writer)
        )
        if str(answer.getType().toString()) == "COMPATIBLE":
            return None
        found = answer.getResult().getIncompatibilities()
        differences = [
            f"{found.get(n).getLocation()}: {found.get(n).getMessage()}"
            for n in range(found.size())
        ]
    except Exception as error:  # noqa: BLE001 — as below
        return _verdict(error)
    return "; ".join(differences) or "their types do not match"


def why_not_writable(session: SparkSession, kind: DataType, text: str) -> str | None:
    """Return what Spark objects to in writing ``kind`` by the schema ``text``; None: nothing."""
    jvm = _jvm(session)
    serializer = jvm.org.apache.spark.sql.avro.AvroSerializer
    return _objection(lambda: serializer(_from_java(jvm, kind), _parsed(session, text), False))


def schema_for(
    session: SparkSession, kind: DataType, name: str, namespace: str
) -> tuple[str, str | None]:
    """Return the Avro schema that Spark derives from a column of ``kind``, itself not null; or
    why there is none."""
    jvm = _jvm(session)
    converters = jvm.org.apache.spark.sql.avro.SchemaConverters
    try:
        made = converters.toAvroType(_from_java(jvm, kind), False, name, namespace)
        return str(made.toString()), None
    except Exception as error:  # noqa: BLE001 — as below
        return "", _verdict(error)


def with_valid_namespaces(text: str) -> str:
    """Return the schema ``text`` with namespaces that Avro's library takes.

    Before 1.12 (AVRO-3825) it did not look at them, so registries have ``my-server.shop``, which
    Debezium makes of a prefix, and ``com.acme.Outer$``. They are no part of what is written.
    """
    try:
        schema = json.loads(text)
        valid = _valid(schema)
    except (ValueError, RecursionError):
        # As the library will say
        return text
    return text if valid == schema else json.dumps(valid)


def _valid(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_valid(member) for member in schema]
    if isinstance(schema, str):
        return _valid_name(schema)
    if not isinstance(schema, dict):
        return schema
    made = schema | {
        name: _valid(schema[name]) for name in ("type", "items", "values") if name in schema
    }
    if schema.get("type") not in _NAMED:
        return made
    for name, change in (("name", _valid_name), ("namespace", _valid_namespace)):
        if isinstance(schema.get(name), str):
            made[name] = change(schema[name])
    if isinstance(aliases := schema.get("aliases"), list):
        made["aliases"] = [_valid_name(one) if isinstance(one, str) else one for one in aliases]
    if isinstance(fields := schema.get("fields"), list):
        made["fields"] = [
            one | {"type": _valid(one["type"])} if isinstance(one, dict) and "type" in one else one
            for one in fields
        ]
    return made


def _valid_name(name: str) -> str:
    space, dot, last = name.rpartition(".")
    return f"{_valid_namespace(space)}{dot}{last}"


def _valid_namespace(space: str) -> str:
    parts = space.split(".") if space else []
    return ".".join(
        part if _PART.fullmatch(part) else "_" + _OTHER.sub(lambda it: f"_{ord(it[0]):x}_", part)
        for part in parts
    )


def keep_within_limits(session: SparkSession) -> None:
    """Let Avro refuse lengths that no record has, in this JVM; and warn where executors do not.

    Avro makes room for as many bytes as a text says that it has before it looks whether they are
    there. Five bytes say two billion, and a JVM that runs out of memory ends.
    """
    jvm = _jvm(session)
    missing = {
        name: value for name, value in AVRO_LIMITS.items() if jvm.System.getProperty(name) is None
    }
    for name, value in missing.items():
        jvm.System.setProperty(name, value)
    if missing:
        _read_limits_again(jvm)
    context = session.sparkContext
    options = " ".join(context._conf.get(name) or "" for name in _EXECUTOR_OPTIONS)
    if not str(context.master).startswith("local") and any(
        f"-D{name}=" not in options for name in AVRO_LIMITS
    ):
        log.warning(
            "a record that is not what it should be can take the memory of a whole executor: set "
            "%s to %s, or %s",
            _EXECUTOR_OPTIONS[0],
            " ".join(f"-D{name}={value}" for name, value in AVRO_LIMITS.items()),
            'start the job with eval "spark-submit $(onceward jars --submit --quoted) job.py"'
            if SUBMITTED_VARIABLE in os.environ
            else "build the session with ow.spark_conf()",
        )


def _read_limits_again(jvm: Any) -> None:
    """Make Avro read its limits again: it reads them at its first use, which may be over."""
    try:
        loader = jvm.Thread.currentThread().getContextClassLoader()
        limits = jvm.java.lang.Class.forName("org.apache.avro.SystemLimitException", True, loader)
        again = limits.getDeclaredMethod("resetLimits", None)
        again.setAccessible(True)
        again.invoke(None, None)
    except Exception as error:  # noqa: BLE001
        # Another Avro than those tried; then the limits hold from the start only.
        log.warning(
            "Avro could not be told its limits in this JVM; build the session with "
            "ow.spark_conf(): %s",
            error,
        )


def _from_java(jvm: Any, kind: DataType) -> Any:
    return jvm.org.apache.spark.sql.types.DataType.fromJson(kind.json())


def _parsed(session: SparkSession, text: str) -> Any:
    # Defaults as from_avro takes them, whatever they are (SPARK-39775)
    parser = _jvm(session).org.apache.avro.Schema.Parser().setValidateDefaults(False)
    return parser.parse(with_valid_namespaces(text))


def _jvm(session: SparkSession) -> Any:
    return session._jvm


def _objection(attempt: Callable[[], object]) -> str | None:
    try:
        attempt()
    except Exception as error:  # noqa: BLE001
        # Py4JJavaError, of whatever kind: its words are what is wanted.
        return _verdict(error)
    return None


def _verdict(error: Exception) -> str:
    """Return the message of Java's exception as one line.

    :raises Exception: ``error``, where it says nothing of the schema: valid records would be
        dead letters for as long as the query runs.
    """
    if not is_verdict(error):
        raise error
    if isinstance(error, PySparkException):
        return " ".join(str(error).split())[:500]
    cause = getattr(error, "java_exception", None)
    message = cause.getMessage() if cause is not None else str(error)
    return " ".join(str(message).split())[:500]
