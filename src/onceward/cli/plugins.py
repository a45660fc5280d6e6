"""Commands of other packages, by the entry-point group ``onceward.commands``: ``verify``, ``demo``
and ``broker``.

``onceward`` imports none of them. An entry point names a command, and as its object a function
whose parameters are Typer options, or a Typer with one command.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Any

import typer

from onceward.cli.typed_errors import UNAVAILABLE, TypedErrors

GROUP = "onceward.commands"


class Commands(TypedErrors):
    """The commands of this package, and behind them those of others, which are loaded when they
    are asked for.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands, this package's first."""
        own = super().list_commands(ctx)
        return [*own, *sorted({entry.name for entry in entry_points(group=GROUP)}.difference(own))]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command of that name, or None; of several entry points the first."""
        own = super().get_command(ctx, cmd_name)
        if own is not None:
            return own
        return next((_command(entry) for entry in entry_points(group=GROUP, name=cmd_name)), None)


def _command(entry: EntryPoint) -> Any:
    try:
        loaded = entry.load()
        app = loaded if isinstance(loaded, typer.Typer) else _app(loaded)
        command: Any = typer.main.get_command(app)
    # Whatever another package fails with, the other commands work.
    except Exception as error:  # noqa: BLE001
        command = typer.main.get_command(
            _app(_unavailable(entry, error), ignore_unknown_options=True)
        )
    command.name = entry.name
    return command


def _app(function: Any, *, ignore_unknown_options: bool = False) -> typer.Typer:
    app = typer.Typer(add_completion=False)
    lenient = {
        "ignore_unknown_options": ignore_unknown_options,
        "allow_extra_args": ignore_unknown_options,
    }
    app.command(context_settings=lenient)(function)
    return app


def _unavailable(entry: EntryPoint, error: Exception) -> Any:
    reason = (
        f"{entry.name} is not available: {entry.value} cannot be imported: "
        f"{type(error).__name__}: {error}"
    )

    def command() -> None:
        typer.secho(reason, fg=typer.colors.RED, err=True)
        typer.secho(
            f"Next: install {entry.dist.name if entry.dist else 'its package'} again.", err=True
        )
        raise typer.Exit(UNAVAILABLE)

    command.__doc__ = reason
    return command
