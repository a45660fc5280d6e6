"""Client settings as a properties file, as Kafka's own tools take them with ``--command-config``.

Called by commands. Values may be secrets: they are in no message.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from onceward.errors import ConfigurationError


def read_properties(file: Path) -> dict[str, str]:
    """``name=value`` lines; those that begin with ``#`` or ``!``, and empty ones, are comments.

    :raises ConfigurationError: there is no such file, or a line of it is something else.
    """
    if not file.is_file():
        raise ConfigurationError(f"there is no file {file}", next_step="correct --command-config")
    return dict(_pairs(file))


def _pairs(file: Path) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        text = line.strip()
        if not text or text[0] in "#!":
            continue
        name, separator, value = text.partition("=")
        if not separator:
            raise ConfigurationError(
                f"{file}, line {number} is not name=value", next_step="correct --command-config"
            )
        yield name.strip(), value.strip()
