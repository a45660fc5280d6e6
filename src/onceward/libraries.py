"""Client libraries that an extra brings (``pip install "onceward[redis]"``), imported when they
are used; and the release of this one.

Runs everywhere; called by ledgers, sinks and formats, none of which needs more than one of them.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from onceward.errors import ConfigurationError


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
    :raises ConfigurationError: it is not installed, or cannot be imported.
    """
    try:
        for part in parts:
            import_module(f"{name}.{part}")
        return import_module(name)
    except ImportError as error:
        raise ConfigurationError(
            f"{why}: {error}", next_step=f'pip install "onceward[{extra}]"'
        ) from error
