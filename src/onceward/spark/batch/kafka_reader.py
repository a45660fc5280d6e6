"""Spark's own Kafka source: loading it, keeping its secrets out of what Spark prints, and which
topics it reads. Driver only; called by :mod:`onceward.kafka.source` and :mod:`onceward.formats`.

Spark finds a source by name among its jars, and those are named when its JVM starts. In a session
that exists, a notebook's or that of ``spark-submit``, it is too late for ``spark.jars``.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from onceward.errors import ConfigurationError, ConnectorMissing
from onceward.secrecy import unlogged_calls
from onceward.spark.batch.causes import has_condition, has_kind, thrown_by
from onceward.spark.batch.query import kafka_options, leaves
from onceward.spark.session.connector import connector_to_name, other_versions

log = logging.getLogger(__name__)


def whole_names(spark: SparkSession, pattern: str) -> str:
    """Anchor ``pattern`` for ``subscribePattern``, so that it finds topics whose whole name
    matches, and no others.

    Spark takes each topic in whose name the pattern occurs *somewhere*
    (``SubscribePatternStrategy``, ``findFirstIn``), where Kafka's own consumers, and readers of
    the pattern, mean the whole name (``Matcher.matches``): ``orders-.*`` would also read
    ``old-orders-1``.

    :raises ConfigurationError: no regular expression of Java's, or one that cannot be put in
        parentheses.
    """
    anchored = f"\\A(?:{pattern})\\z"
    try:
        # The other alone would accept `a)|(?:b`, which means something else
        _compiled(spark, pattern)
        _compiled(spark, anchored)
    except (
        PySparkException,
        Py4JJavaError,
    ) as error:
        # PatternSyntaxException, as PySpark translates it
        message = str(error).splitlines()[0]
        raise ConfigurationError(
            f"topic_pattern={pattern!r} is no pattern of java.util.regex that can be matched with "
            f"whole names: {message}",
            next_step="correct it; close each group and each \\Q with \\E, and leave out comments "
            "of (?x)",
        ) from error
    return anchored


def matching(spark: SparkSession, anchored: str, names: Iterable[str]) -> list[str]:
    """Return the topic ``names`` that ``anchored`` (:func:`whole_names`) finds, by one call."""
    jvm: Any = spark.sparkContext._jvm
    # Names of topics have no line breaks
    every = _compiled(spark, "\n").splitAsStream("\n".join(names))
    found = every.filter(_compiled(spark, anchored).asPredicate())
    return sorted(str(found.collect(jvm.java.util.stream.Collectors.joining("\n"))).split())


def _compiled(spark: SparkSession, pattern: str) -> Any:
    jvm: Any = spark.sparkContext._jvm
    return jvm.java.util.regex.Pattern.compile(pattern)


def read_topics(frame: DataFrame) -> list[str]:
    """Return the topics that the Kafka sources of ``frame`` subscribe to by name, sorted."""
    plan = frame._jdf.queryExecution().analyzed()
    topics: set[str] = set()
    # And of readers of frames that are no streams
    batches = (leaf.options() for leaf in leaves(plan, "DataSourceV2Relation"))
    for options in (*kafka_options(plan), *batches):
        topics |= {
            name.strip() for name in (options.get("subscribe") or "").split(",") if name.strip()
        }
    return sorted(topics)


_HIDDEN_WORDS = "jaas|password|passphrase|secret|token|credential|keystore"
_SECRET = re.compile(
    _HIDDEN_WORDS.replace("keystore", r"keystore\.(key|certificate)"), re.IGNORECASE
)
# fields to print: all of them
_MANY = 10_000
# Spark's default pattern (spark.redaction.regex) knows a secret by such a word, in its name or in
# itself. A key has neither. Kafka's PEM reader, like others, passes over what stands before a
# BEGIN line.
_PEM_HEADING = "The secret key of a client:\n"
# Nor has a login without a password (Kerberos, a cloud's). JaasConfig passes over comments.
_JAAS_HEADING = "/* secret */ "
_KNOWN_WORD = re.compile(r"secret|password|token", re.IGNORECASE)
_REDACTED = "*********(redacted)"


def is_secret(name: str) -> bool:
    """Return whether an option of Spark's Kafka source is a secret."""
    return bool(_SECRET.search(name))


def with_heading(name: str, value: str) -> str:
    """Return ``value`` in a form that Spark redacts and Kafka reads unchanged."""
    if "-----BEGIN" in value:
        return f"{_PEM_HEADING}{value}"
    if "jaas" in name.lower() and not _KNOWN_WORD.search(value):
        return f"{_JAAS_HEADING}{value}"
    return value


def is_shown(name: str, value: str, printed: str) -> bool:
    """Return whether ``printed`` shows the secret; a short one may be part of other text."""
    return value in printed and f"{name}={_REDACTED}" not in printed


def with_hidden_options(
    spark: SparkSession, frame: DataFrame, secrets: Mapping[str, str]
) -> DataFrame:
    """Return ``frame``, straight from ``readStream.format("kafka")``, with options no text shows.

    :raises ConfigurationError: Spark is set to print them, or is laid out in a new way.
    """
    gateway = spark.sparkContext._gateway
    assert gateway is not None  # noqa: S101 — a classic session has one
    jvm = gateway.jvm
    relation = frame._jdf.queryExecution().analyzed()
    fields = [relation.productElementName(index) for index in range(relation.productArity())]
    if not {"extraOptions", "v1Relation"} <= set(fields):
        raise ConfigurationError(
            "this Spark holds the options of its Kafka source in "
            f"{relation.getClass().getSimpleName()}({fields}), where {', '.join(secrets)} would "
            "be shown in query plans",
            next_step="log the source in by a JAAS file (-Djava.security.auth.login.config) "
            "instead of options",
        )
    with unlogged_calls():
        arguments: dict[str, Any] = {
            name: getattr(relation, f"copy$default${number}")()
            for number, name in enumerate(fields, start=1)
        }
        options = jvm.java.util.HashMap(arguments["extraOptions"].asCaseSensitiveMap())
        for name, value in secrets.items():
            options.put(name, with_heading(name, value))
        arguments["extraOptions"] = jvm.org.apache.spark.sql.util.CaseInsensitiveStringMap(options)
        # StreamingRelationV2 holds the options twice. Spark redacts `extraOptions` when it prints
        # a plan; TreeNode.argString prints `v1Relation` with every option in clear. Only sources
        # without micro-batch support read that copy (MicroBatchExecution), so Kafka's does without
        # it.
        arguments["v1Relation"] = getattr(jvm.scala, "Option$").__getattr__("MODULE$").empty()
        hiding = relation.copy(*arguments.values())
        printed = str(hiding.argString(_MANY))
    shown = [name for name, value in secrets.items() if is_shown(name, value, printed)]
    if shown:
        raise ConfigurationError(
            f"Spark would show {', '.join(shown)} in its query plans, web pages and event log: "
            "neither spark.redaction.regex nor spark.sql.redaction.options.regex covers it",
            next_step=f"add '{_HIDDEN_WORDS}' to spark.redaction.regex (its default is "
            "'(?i)secret|password|token|access[.]?key')",
        )
    datasets = getattr(jvm.org.apache.spark.sql.classic, "Dataset$").__getattr__("MODULE$")
    return DataFrame(datasets.ofRows(spark._jsparkSession, hiding), spark)


# QueryCompilationErrors: without a condition of its own
_NOT_FOUND = "Failed to find data source: kafka"
_NOT_ENABLED = "KAFKA_DATA_SOURCE_NOT_ENABLED"  # of Spark 4.3
_PARTS = (
    "org/apache/spark/sql/kafka010/KafkaSourceProvider.class",
    "org/apache/kafka/clients/consumer/KafkaConsumer.class",
)
# A connector of another Spark, or without the jars that it needs itself.
_DOES_NOT_LINK = (
    "ServiceConfigurationError",
    "NoClassDefFoundError",
    "ClassNotFoundException",
    "NoSuchMethodError",
    "AbstractMethodError",
    "IncompatibleClassChangeError",
)


def _warn_of_two_versions(spark: SparkSession) -> None:
    """Say that a part of the connector is on the class path more than once."""
    jvm: Any = spark.sparkContext._jvm
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    for name in _PARTS:
        places = jvm.java.util.Collections.list(loader.getResources(name))
        jars = [str(each.getPath()).partition("!")[0] for each in places]
        if other_versions(jars, jars):
            log.warning(
                "Spark's Kafka connector is on this session's class path in several versions, of "
                "which whichever comes first counts, perhaps another one in executors: %s. Next: "
                "name one of them, in spark.jars, in spark.jars.packages or on the command line, "
                "and have no other in Spark's folder of jars",
                ", ".join(jars),
            )


def load(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    """Load ``spark.readStream.format("kafka")`` with ``options``.

    :raises ConnectorMissing: the session cannot; the message has the line that names the jars.
    """
    _warn_of_two_versions(spark)
    try:
        return spark.readStream.format("kafka").options(**options).load()
    except (PySparkException, Py4JJavaError) as error:
        causes = thrown_by(error)
        if has_condition(causes, _NOT_ENABLED) or any(
            one.is_a("AnalysisException") and one.message.startswith(_NOT_FOUND) for one in causes
        ):
            what = "has no Kafka source"
        elif (broken := has_kind(causes, *_DOES_NOT_LINK)) is not None:
            what = f"has a Kafka source that does not fit it ({broken.kind.rpartition('.')[2]})"
        else:
            raise
        coordinate = connector_to_name(spark.version)
        raise ConnectorMissing(
            f"this Spark session ({spark.version}) {what}, and it is too late to give it one: "
            "jars are named before a JVM starts",
            next_step="start the job with `spark-submit $(onceward jars --submit) job.py` or "
            f"`spark-submit --packages {coordinate} job.py`; in a notebook, restart the kernel "
            "and build the session with SparkSession.builder.config(map=onceward.spark_conf()) or "
            f'.config("spark.jars.packages", "{coordinate}") before anything else builds one',
            details={"spark_version": spark.version, "packages": coordinate},
        ) from error
