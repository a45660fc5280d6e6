"""Client libraries that an extra brings (``pip install "onceward[redis]"``), imported when they
are used; the release of this one; and the lines of Java's properties files.

Runs everywhere; called by ledgers, sinks and formats, none of which needs more than one of the
libraries, and by whoever reads settings of Kafka's tools or of Spark.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from onceward.errors import LibraryMissing


@cache
def release() -> str:
    """Return Onceward's version; ``unknown`` for sources in a zip (``--py-files``)."""
    try:
        return version("onceward")
    except PackageNotFoundError:
        return "unknown"


@contextmanager
def readable_file(data: bytes) -> Iterator[str]:
    """Lend a path by which this process alone can read ``data``, for a library that takes only
    files. On Linux it needs no disk.
    """
    if not hasattr(os, "memfd_create"):
        # Mode 0600, gone at once
        with tempfile.NamedTemporaryFile() as file:
            file.write(data)
            file.flush()
            yield file.name
        return
    number = os.memfd_create("onceward")
    try:
        with open(number, "wb", closefd=False) as file:
            file.write(data)
        yield f"/proc/self/fd/{number}"
    finally:
        os.close(number)


def library(why: str, extra: str, name: str, *parts: str) -> Any:
    """Return the module ``name``, its ``parts`` imported as well.

    :param why: who needs what, for the error. :param extra: of the package, which brings it.
    :raises LibraryMissing: it is not installed, or cannot be imported.
    """
    try:
        for part in parts:
            import_module(f"{name}.{part}")
        return import_module(name)
    except ImportError as error:
        raise LibraryMissing(
            f"{why}: {error}", next_step=f'pip install "onceward[{extra}]"'
        ) from error


_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_PAIR = re.compile(r"((?:\\.|[^\\=:\s])+)(?:\s*[=:]\s*|\s+)(.*)", re.DOTALL)
_LETTERS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def properties(text: str) -> Iterator[tuple[int, tuple[str, str] | None]]:
    """Yield for each line of a properties file, as Java's ``Properties.load`` has them, its number
    and its name and value; None for one without the two.
    """
    for number, line in _logical_lines(text):
        pair = _PAIR.fullmatch(line)
        yield number, pair and (_unescaped(pair[1]), _unescaped(pair[2]).strip())


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    begun = ""
    for number, natural in enumerate(re.split(r"\r\n?|\n", text), start=1):
        line = natural.lstrip()
        if not begun and (not line or line[0] in "#!"):
            continue
        begun += line
        if (len(line) - len(line.rstrip("\\"))) % 2:
            begun = begun[:-1]
            continue
        yield number, begun.rstrip()
        begun = ""
    if begun:
        yield number, begun.rstrip()


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(
        lambda found: chr(int(found[1], 16)) if found[1] else _LETTERS.get(found[2], found[2]),
        text,
    )
