"""Options of Spark's Kafka source that nobody may read: how they get into a query without getting
into its texts.

Called by :mod:`onceward.kafka.source.source`; runs in the driver.

Spark replaces a secret among the options of a relation by ``*********(redacted)`` wherever it
prints a plan (``TreeNode.argString``, ``SQLConf.redactOptions``): in ``explain``, in error texts,
in the UI and the event log. But the relation of ``spark.readStream.format("kafka")`` holds its
options twice. The second copy, for the older interface of sources
(``StreamingRelationV2.v1Relation``), is printed as it is. So the source is loaded without the
secrets, and its relation is then copied with them and without the second one, which nothing uses:
``MicroBatchExecution`` turns to it only for sources that cannot do better.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from onceward.errors import ConfigurationError
from onceward.secrecy import unlogged_calls

_SECRET = re.compile(
    r"jaas|password|secret|token|credential|keystore\.(key|certificate)", re.IGNORECASE
)
# fields to print: all of them
_MANY = 10_000
# Spark's default pattern (spark.redaction.regex) knows a secret by such a word, in its name or in
# itself. A key has neither. Kafka's PEM reader, like others, passes over what stands before a
# BEGIN line.
_PEM_HEADING = "The secret key of a client:\n"
# Nor has a login without a password (Kerberos, a cloud's own). Kafka's JaasConfig passes over
# comments.
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
    """Return whether ``printed`` shows the secret. A short one may be part of other text, such as
    an option's name.
    """
    return value in printed and f"{name}={_REDACTED}" not in printed


def with_hidden_options(
    spark: SparkSession, frame: DataFrame, secrets: Mapping[str, str]
) -> DataFrame:
    """Return ``frame``, straight from ``readStream.format("kafka").load()``, with further options
    that no text shows.

    :raises ConfigurationError: Spark is set to print them, or is laid out in a way that nobody
        foresaw.
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
            next_step="leave spark.redaction.regex at its default, or add "
            "'jaas|password|secret|keystore' to it",
        )
    datasets = getattr(jvm.org.apache.spark.sql.classic, "Dataset$").__getattr__("MODULE$")
    return DataFrame(datasets.ofRows(spark._jsparkSession, hiding), spark)
