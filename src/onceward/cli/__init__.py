"""The command ``onceward``. Each subcommand is a function in a module of its own, registered at the bottom of this one.

Run by the console script of the package. Subcommand modules keep heavy imports (PySpark, clients, numpy) inside their
functions, so that ``onceward --help`` answers at once.

To add a command: write ``cli/<name>.py`` with one public function whose parameters are Typer options, and add one line
to the list at the bottom.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from onceward.cli.bench import bench
from onceward.cli.broker import broker
from onceward.cli.demo import demo
from onceward.cli.doctor import doctor
from onceward.cli.jars import jars
from onceward.cli.verify import verify
from onceward.errors import BrokerUnreachable, ConfigurationError, OncewardError

USAGE, UNAVAILABLE = 64, 69
"""Exit statuses by BSD's ``sysexits.h``: a command's own 0, 1 and 2 never mean a misspelt option or a dead broker."""


class _TypedErrors(TyperGroup):
    """Shows an error of ours as what it is, a message with a next step; others keep their traceback, because they are
    our mistakes and not the user's.

    Exits with status 64 for wrong options and settings, 69 for brokers that cannot be reached, and else with 1.
    """

    def make_context(self, *arguments: Any, **more: Any) -> Any:
        with _usage_errors_exit_with_their_own_status():
            return super().make_context(*arguments, **more)

    def invoke(self, ctx: Any) -> Any:
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
    """Click's own is 2. Its class is not asked for: Typer brings a Click of its own, or takes the installed one."""
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


app = typer.Typer(
    name="onceward",
    help="End-to-end exactly-once streaming for PySpark.",
    cls=_TypedErrors,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,  # locals may hold secrets
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"onceward {version('onceward')}")
        raise typer.Exit


@app.callback()
def _root(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """End-to-end exactly-once streaming for PySpark."""


# Every subcommand, in the order in which --help lists them.
app.command()(demo)
app.command()(doctor)
app.command()(verify)
app.command()(broker)
app.command()(jars)
app.command()(bench)
