"""What a command prints and returns when it fails: an error of ours as a message, with a status
that a gate can trust.

Used by :mod:`onceward.cli`, and by commands outside the package.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperGroup

from onceward.errors import BrokerUnreachable, ConfigurationError, OncewardError

USAGE, UNAVAILABLE = 64, 69
"""Exit statuses by BSD's ``sysexits.h``: a command's own 0, 1 and 2 never mean a misspelt option
or a dead broker.
"""


class TypedErrors(TyperGroup):
    """Shows an error of ours as what it is, a message with a next step; others keep their
    traceback, because they are our mistakes and not the user's.

    Exits with status 64 for wrong options and settings, 69 for brokers that cannot be reached, and
    else with 1.
    """

    def make_context(self, *arguments: Any, **more: Any) -> Any:
        """Parse the command line; wrong options exit with :data:`USAGE`."""
        with _usage_errors_exit_with_their_own_status():
            return super().make_context(*arguments, **more)

    def invoke(self, ctx: Any) -> Any:
        """Run the command, and print an error of ours as a message."""
        try:
            with _usage_errors_exit_with_their_own_status():
                return super().invoke(ctx)
        except OncewardError as error:
            typer.secho(f"{type(error).__name__}: {error.message}", fg=typer.colors.RED, err=True)
            if error.next_step:
                typer.secho(f"Next: {error.next_step}.", err=True)
            raise typer.Exit(_status(error)) from error


@contextmanager
def _usage_errors_exit_with_their_own_status() -> Iterator[None]:
    """Replace Click's exit status 2 by ours.

    Click's class cannot be named: Typer brings a Click of its own, or takes the installed one.
    """
    try:
        yield
    except Exception as error:
        if getattr(error, "exit_code", None) == _CLICKS_USAGE and hasattr(error, "format_message"):
            error.exit_code = USAGE  # type: ignore[attr-defined]  # it was just looked at
        raise


_CLICKS_USAGE = 2


def _status(error: OncewardError) -> int:
    if isinstance(error, ConfigurationError):
        return USAGE
    return UNAVAILABLE if isinstance(error, BrokerUnreachable) else 1
