"""Client libraries that an extra brings (``pip install "onceward[redis]"``), imported when they
are used; and the release of this one.

Runs everywhere; called by ledgers, sinks and formats, none of which needs more than one of them.
"""

from __future__ import annotations

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
