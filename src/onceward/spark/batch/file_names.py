"""Names of files that this JVM can write: those of its locale. Driver only; asked by what writes
files and tables, and by :mod:`onceward.spark.batch.write_errors`.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from onceward.errors import ConfigurationError


def names_are_utf8(session: SparkSession | None = None) -> bool:
    """Return whether this JVM, and so executors started alike, can write any text in a file's
    name. :param session: None: the active one."""
    session = session or SparkSession.getActiveSession()
    return session is None or _encoding(session).upper() in ("UTF-8", "UTF8")


def must_write_name(session: SparkSession, path: str) -> None:
    """Raise ConfigurationError if ``path`` is on a disk, in letters not of the JVM's locale."""
    if path.isascii() or names_are_utf8(session):
        return
    inner: Any = session
    place = inner._jvm.org.apache.hadoop.fs.Path(path)
    system = place.getFileSystem(inner._jsparkSession.sessionState().newHadoopConf())
    if str(system.getUri().getScheme()) == "file":
        raise ConfigurationError(
            f"{path} has letters that this JVM cannot write in a file's name: its locale has "
            f"{_encoding(session)}",
            next_step="start Spark's JVMs with a locale of UTF-8 (LC_ALL=C.UTF-8), or choose a "
            "path of ASCII letters",
        )


def _encoding(session: SparkSession) -> str:
    jvm: Any = session._jvm
    return str(jvm.System.getProperty("sun.jnu.encoding"))
