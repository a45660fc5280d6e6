"""Spark's file system and file writers, and which paths they take."""

from __future__ import annotations

import os
import re
from pathlib import Path

from onceward.errors import ConfigurationError

STORES = ("s3a",)
"""Schemes where nothing can be renamed."""

_RENAMING = ("", "file", "hdfs")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_OF_THIS_MACHINE = re.compile(r"file:(?://(?:localhost)?)?/(?!/)", re.IGNORECASE)


def path_scheme(path: str) -> str:
    """Return the scheme of a path, ``hdfs`` of ``hdfs://…``; empty where it names none."""
    found = _SCHEME.match(path)
    return found[1].lower() if found else ""


def local_path(uri: str) -> str:
    """Return the local path of a URI: ``/data`` of ``file:/data``, ``file:///data`` and
    ``file://localhost/data``.
    """
    return "/" + re.sub(r"^//[^/]*", "", uri.partition(":")[2]).lstrip("/")


def local_folder(path: object) -> str | None:
    """Return the absolute path of a folder that a setting names by its path, or by its URI
    (``file:/data``); None: it names none, or one of another file system or machine.
    """
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else ""
    if not isinstance(text, str) or not text:
        return None
    if _OF_THIS_MACHINE.match(text):
        text = local_path(text)
    return None if path_scheme(text) else str(Path(text).absolute())


def canonical_folder(path: str) -> str:
    """Return a folder's path with its last ``/``, equal for two spellings of one folder."""
    scheme = path_scheme(path)
    if scheme in ("", "file"):
        return os.path.realpath(local_path(path) if scheme else path).rstrip("/") + "/"
    rest = path.partition(":")[2].rstrip("/")
    return f"{'s3' if scheme in ('s3', 's3n', 's3a') else scheme}:{rest}/"


def refuse_other_schemes(path: str, *, renames: bool = True) -> None:
    """:param renames: files are published by renaming.
    :raises ConfigurationError: ``path`` lies on a file system of which nothing is known, or which
        cannot rename; or it is a URI of another machine's files.
    """
    scheme = path_scheme(path)
    if scheme == "file" and not _OF_THIS_MACHINE.match(path):
        raise ConfigurationError(
            f"path={path!r} is no URI of a folder of this machine: between file:// and the next "
            "slash is a host, and without slashes the path is relative",
            next_step="pass file:///… with three slashes, or an absolute path",
        )
    if scheme in _RENAMING or (scheme in STORES and not renames):
        return
    if not renames:
        raise ConfigurationError(
            f"path={path!r}: of {scheme}: it is not known whether a file is there whole or not at "
            "all, and whether whoever lists sees it; of file:, hdfs: and s3a: it is",
            next_step="write to a path on one of those (for S3 by Hadoop's S3A), or to Kafka or a "
            "database",
        )
    raise ConfigurationError(
        f"path={path!r}: files are published by renaming, of which it is known on local disks "
        f"(file:) and on HDFS (hdfs:) that it is one step; on {scheme}: it is not"
        + (
            ", there it is a copy" if scheme.startswith(("s3", "gs", "oss", "cos", "wasb")) else ""
        ),
        next_step='pass layout="manifest", which renames nothing'
        if scheme in STORES
        else "write to a path on file: or hdfs:, and copy finished batches from there; or with "
        'layout="manifest" to one on s3a:; or to Kafka or a database',
    )
