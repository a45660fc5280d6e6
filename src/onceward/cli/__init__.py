"""The command ``onceward``: each subcommand is a function in a module, registered at the bottom.

Run by the console script of the package. Subcommand modules keep heavy imports (PySpark, clients,
numpy) inside their functions, so that ``onceward --help`` answers at once.

To add a command: write ``cli/<name>.py`` with one public function whose parameters are Typer
options, and add one line to the list at the bottom. Packages beside this one add theirs by the
entry-point group of :mod:`onceward.cli.groups`.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated

import typer

from onceward.cli.dashboard import dashboard, report
from onceward.cli.dead_letters import dead_letters
from onceward.cli.doctor.command import doctor
from onceward.cli.groups import Commands
from onceward.cli.jars import jars
from onceward.cli.run import run
from onceward.cli.shared import say
from onceward.cli.status import lag, ledger, status
from onceward.cli.transactions import transactions
from onceward.cli.upgrade import plan, savepoint

app = typer.Typer(
    name="onceward",
    help="End-to-end exactly-once streaming for PySpark.",
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    # locals may hold secrets
    pretty_exceptions_show_locals=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        say(f"onceward {version('onceward')}")
        raise typer.Exit


@app.callback()
def _root(
    show_version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Run end-to-end exactly-once streaming for PySpark."""


# Every subcommand of this package, in the order in which --help lists them.
app.command(context_settings={"allow_interspersed_args": False})(run)
app.command(context_settings={"allow_interspersed_args": False})(plan)
app.command()(status)
app.command()(lag)
app.add_typer(ledger)
app.add_typer(transactions)
app.add_typer(savepoint)
app.command()(dashboard)
app.command()(report)
app.command()(doctor)
app.add_typer(dead_letters)
app.command()(jars)
