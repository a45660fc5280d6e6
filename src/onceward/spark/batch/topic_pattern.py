"""Patterns of topic names, judged by the Java that Spark's Kafka source matches them with. Driver
only.

Called by :mod:`onceward.kafka.source.source`. Python's ``re`` is another language (possessive
quantifiers, ``\\p{Lower}``, ``[a-z&&[^b]]``, ``\\Q…\\E``), and a name on which the two disagree
would begin at a position that nobody chose.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from onceward.errors import ConfigurationError


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
    # SubscribePatternStrategy matches by `findFirstIn`, so `orders-.*` would also read
    # `old-orders-1`; Kafka's consumers match whole names (Matcher.matches).
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
        said = str(error).splitlines()[0]
        raise ConfigurationError(
            f"topic_pattern={pattern!r} is no pattern of java.util.regex that can be matched with "
            f"whole names: {said}",
            next_step="correct it; close each group and each \\Q with \\E, and leave out comments "
            "of (?x)",
        ) from error
    return anchored


def matching(spark: SparkSession, anchored: str, names: Iterable[str]) -> list[str]:
    """Return those topic ``names`` that ``anchored``, of :func:`whole_names`, finds. One call for
    all of them.
    """
    jvm: Any = spark.sparkContext._jvm
    # Names of topics have no line breaks
    every = _compiled(spark, "\n").splitAsStream("\n".join(names))
    found = every.filter(_compiled(spark, anchored).asPredicate())
    return sorted(str(found.collect(jvm.java.util.stream.Collectors.joining("\n"))).split())


def _compiled(spark: SparkSession, pattern: str) -> Any:
    jvm: Any = spark.sparkContext._jvm
    return jvm.java.util.regex.Pattern.compile(pattern)
