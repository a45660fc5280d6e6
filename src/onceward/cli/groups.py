"""Groups of commands: errors of ours as messages with a status, and commands of other packages.

Used by :mod:`onceward.cli`, and by commands outside the package. ``onceward`` imports none of the
packages beside it: they register ``verify``, ``demo`` and ``broker`` in the entry-point group
``onceward.commands``. An entry point names a command, and as its object a function whose
parameters are Typer options, or a Typer with one command.
"""

from __future__ import annotations

import codecs
import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import typer
from typer.core import TyperGroup

from onceward.cli.shared import say
from onceward.errors import (
    AccessDenied,
    AuthenticationFailed,
    BrokerUnreachable,
    ConfigurationError,
    InvalidTopicName,
    LedgerUnreachable,
    OncewardError,
    RegistryRefused,
    RegistryUnreachable,
    ServerUnreachable,
    TargetUnreachable,
    summary,
)

# Exit statuses by BSD's sysexits.h: a command's own 0, 1 and 2 never mean a misspelt option, a
# dead broker, or a right that the command itself lacks.
USAGE, UNAVAILABLE, OUTPUT_LOST, DENIED = 64, 69, 74, 77
_OUTPUT_LOST = (errno.EPIPE, errno.ENOSPC, errno.EIO)
_UNREACHABLE = (
    BrokerUnreachable,
    LedgerUnreachable,
    RegistryUnreachable,
    ServerUnreachable,
    TargetUnreachable,
)
_DENIED = (AccessDenied, AuthenticationFailed, RegistryRefused)
COMMANDS = "onceward.commands"
_CLICKS_USAGE = 2


class TypedErrors(TyperGroup):
    """Group that shows an error of ours as a message with a next step.

    Others keep their traceback, because they are our mistakes and not the user's. Exits with
    status 64 for wrong options and settings, 69 for servers that cannot be reached,
    74 for an output that cannot be written, 77 for a missing login or right, else with 1.
    """

    def make_context(self, *arguments: Any, **more: Any) -> Any:
        """Parse the command line."""
        with suppress(AttributeError):
            sys.stdout.reconfigure(errors=_ANYTHING)  # type: ignore[union-attr]
        with _usage_status():
            return super().make_context(*arguments, **more)

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            with _usage_status():
                result = super().invoke(ctx)
            # None where it is closed
            if sys.stdout is not None:
                sys.stdout.flush()
            return result
        except OSError as error:
            if error.errno not in _OUTPUT_LOST or not _was_printing(error):
                raise
            with suppress(OSError, ValueError):
                # Python would try once more at its end
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            say(f"the output cannot be written: {error.strerror}", err=True)
            raise typer.Exit(OUTPUT_LOST) from error
        except OncewardError as error:
            raise typer.Exit(tell(error)) from error


def _or_replaced(error: UnicodeError) -> tuple[str | bytes, int]:
    """Print what the encoding of a terminal lacks as ``?``; the name of a file keeps its bytes."""
    try:
        return codecs.lookup_error("surrogateescape")(error)
    except UnicodeError:
        return codecs.replace_errors(error)


_ANYTHING = "onceward"
codecs.register_error(_ANYTHING, _or_replaced)


def tell(error: OncewardError) -> int:
    """Print an error of ours with its next step; return the exit status for it."""
    say(f"{type(error).__name__}: {error.message}", colour=typer.colors.RED, err=True)
    if error.next_step:
        say(f"Next: {error.next_step}.", err=True)
    return status_of(error)


class Commands(TypedErrors):
    """Group of the commands of this package, and behind them those of others.

    The latter are loaded when they are asked for; one that cannot be imported says so.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands, this package's first."""
        own = super().list_commands(ctx)
        others = {entry.name for entry in entry_points(group=COMMANDS)}
        return [*own, *sorted(others.difference(own))]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command of that name, or None; of several entry points the first."""
        own = super().get_command(ctx, cmd_name)
        if own is not None:
            return own
        entries = entry_points(group=COMMANDS, name=cmd_name)
        return next((_load(entry) for entry in entries), None)


@contextmanager
def _usage_status() -> Iterator[None]:
    """Give usage errors a status of their own: Click's is 2."""
    try:
        yield
    except Exception as error:
        # Click's class is not asked for: Typer brings a Click of its own, or takes the installed.
        if getattr(error, "exit_code", None) == _CLICKS_USAGE and hasattr(error, "format_message"):
            error.exit_code = USAGE  # type: ignore[attr-defined]  # it was just looked at
        raise


def _was_printing(error: OSError) -> bool:
    """Return whether ``error`` is of a print: what was raised elsewhere keeps its traceback."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    module = "" if trace is None else str(trace.tb_frame.f_globals.get("__name__"))
    return module == __name__ or module.split(".")[0] in ("click", "rich", "typer")


def status_of(error: OncewardError) -> int:
    """Return the exit status of a command that ends with an error of ours."""
    # No command asks for a topic that no option names
    if isinstance(error, ConfigurationError | InvalidTopicName):
        return USAGE
    if isinstance(error, _UNREACHABLE):
        return UNAVAILABLE
    return DENIED if isinstance(error, _DENIED) else 1


def _load(entry: EntryPoint) -> Any:
    try:
        app = entry.load()
        if not isinstance(app, typer.Typer):
            function, app = app, typer.Typer(add_completion=False)
            app.command()(function)
        command: Any = typer.main.get_command(app)
    # Whatever another package fails with, the other commands work.
    except Exception as error:  # noqa: BLE001
        command = _unavailable(entry, error)
    command.name = entry.name
    return command


def _unavailable(entry: EntryPoint, error: Exception) -> Any:
    """Return a command that takes any options, and says why it cannot run."""
    reason = f"{entry.name} is not available: {entry.value} cannot be imported: {summary(error)}"
    package = entry.dist.name if entry.dist else "its package"
    app = typer.Typer(add_completion=False)

    @app.command(
        help=reason, context_settings={"ignore_unknown_options": True, "allow_extra_args": True}
    )
    def unavailable() -> None:
        say(reason, colour=typer.colors.RED, err=True)
        say(f"Next: install {package} again.", err=True)
        raise typer.Exit(UNAVAILABLE)

    return typer.main.get_command(app)
