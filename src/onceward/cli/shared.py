"""What commands share: a client by the options of a command line, and tables.

Called by the commands; heavy imports are inside functions, as there.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import logging
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onceward.errors import (
    ConfigurationError,
    ContradictoryOptions,
    OncewardError,
    UnknownOption,
    plain_text,
)

if TYPE_CHECKING:
    from onceward.kafka.wire.client import KafkaClient
    from onceward.kafka.wire.options.settings import ProducerSettings
    from onceward.operate.status import LedgerView

log = logging.getLogger(__name__)

SERVERS_VARIABLE = "ONCEWARD_BOOTSTRAP_SERVERS"
"""Set once in a shell, it makes each command that a log, an alert or an error prints complete."""
CONFIG_VARIABLE = "ONCEWARD_COMMAND_CONFIG"

# kafka.ledger.topic.DEFAULT_TOPIC and, below, sql.ledger.table.DEFAULT_TABLE, which would import
# clients
LEDGER_TOPIC = "onceward-ledger"

Servers = Annotated[str, typer.Option(envvar=SERVERS_VARIABLE, help="Brokers, host:port[,…].")]
Config = Annotated[
    Path | None,
    typer.Option(
        envvar=CONFIG_VARIABLE, metavar="FILE", help="Client settings, for secured clusters."
    ),
]
LedgerTopic = Annotated[
    str, typer.Option(envvar="ONCEWARD_LEDGER_TOPIC", help="The ledger topic.")
]
Pipeline = Annotated[str, typer.Option("--pipeline-id", help="The pipeline.")]
Interval = Annotated[float, typer.Option(min=0.5, max=86_400, help="Seconds between two looks.")]
Json = Annotated[bool, typer.Option("--json", help="For programs.")]

_SERVERS = "bootstrap_servers"
_OF_LEDGERS = {
    r"FolderLedger\(path=(?:PosixPath\()?(.*?)\)+(?= names)": r"--ledger-path=\1",
    r"DatabaseLedger\(url=…\)": "--ledger-url=…",
    r"table=(?=['\"])": "--ledger-table=",
    r"topic name (?=['\"])": "--ledger-topic=",
    r"pipeline_id=(?=.* is not a usable name)": "--pipeline-id=",
}
"""Options by what errors of ledgers call them."""


def renamed(text: str, options: Mapping[str, str]) -> str:
    """Return a text of an error with options in it for what the code calls them.

    :param options: option by a pattern of that name, which no word, ``.`` or ``-`` comes before.
    """
    for pattern, option in options.items():
        text = re.sub(rf"(?<![\w.-]){pattern}", option, text)
    return text


@contextmanager
def errors_in_options(options: Mapping[str, str]) -> Iterator[None]:
    """Raise what is raised in the words of a command line (:func:`renamed`)."""
    try:
        yield
    except OncewardError as error:
        error.message = renamed(error.message, options)
        error.next_step = renamed(error.next_step, options)
        raise


def check_servers(servers: str | None, option: str) -> None:
    """Check brokers that are asked later, and perhaps by a thread that can only note the error.

    :raises ConfigurationError: naming the option that has them.
    """
    if servers is not None:
        from onceward.kafka.wire.options.settings import settings_from_options

        with errors_in_options({_SERVERS: option}):
            settings_from_options(servers, {}, client_id="onceward")


def connect(
    bootstrap_servers: str,
    command_config: Path | None,
    client_id: str,
    options: Mapping[str, Any] | None = None,
) -> tuple[KafkaClient, ProducerSettings]:
    """Return a client, which the caller closes, and the settings for a producer.

    :param command_config: a properties file; what it says comes before ``options``.
    :raises ConfigurationError: wrong settings.
    """
    from onceward.kafka.wire.client import KafkaClient
    from onceward.kafka.wire.options.settings import settings_from_options

    with errors_in_options({_SERVERS: "--bootstrap-servers"}):
        settings, producer = settings_from_options(
            bootstrap_servers,
            {**(options or {}), **client_options(command_config)},
            client_id=client_id,
        )
    return KafkaClient(settings), producer


def client_options(command_config: Path | None) -> dict[str, str]:
    """Return what a properties file says that means something here. Clients of all kinds share
    such a file, and what is for others is passed over, as Kafka's own tools do.

    :raises UnknownOption: a name that is most likely misspelt.
    """
    from onceward.kafka.wire.options.security import NAMED_PROVIDER
    from onceward.kafka.wire.options.settings import OPTIONS, read_properties

    found = {} if command_config is None else read_properties(command_config)
    # A command waits for all in-sync replicas, whatever a producer of the file's may do
    known = {*OPTIONS, NAMED_PROVIDER} - {"acks", "enable.idempotence"}
    others = sorted(found.keys() - known)
    for name in others:
        # Of as many parts: with a prefix the same name is another client's
        alike = [each for each in known if each.count(".") == name.count(".")]
        if nearest := difflib.get_close_matches(name, alike, n=1, cutoff=0.91):
            raise UnknownOption(
                f"option {name!r} of --command-config {command_config} is not known",
                next_step=f"did you mean {nearest[0]!r}?",
            )
    if others:
        log.debug("passed over in %s: %s", command_config, ", ".join(others))
    return {name: value for name, value in found.items() if name in known}


@dataclass(frozen=True, kw_only=True)
class LedgerOptions:
    """Options by which a command line names a ledger; the fields are the options."""

    bootstrap_servers: Annotated[
        str | None,
        typer.Option(envvar=SERVERS_VARIABLE, help="Brokers, host:port[,…], of the ledger."),
    ] = None
    command_config: Config = None
    ledger_topic: LedgerTopic = LEDGER_TOPIC
    ledger_path: Annotated[
        Path | None,
        typer.Option(
            envvar="ONCEWARD_LEDGER_PATH",
            help="Instead of the topic: the folder that has the ledger.",
        ),
    ] = None
    ledger_url: Annotated[
        str | None,
        typer.Option(
            envvar="ONCEWARD_LEDGER_URL",
            help="Instead of the topic: the database that has the ledger's table.",
        ),
    ] = None
    ledger_table: Annotated[str, typer.Option(help="With --ledger-url: the ledger's table.")] = (
        "onceward_ledger"
    )

    def view(self) -> LedgerView:
        """Return the ledger that they name."""
        from onceward.operate.status import open_ledger

        if self.bootstrap_servers is None and self.ledger_path is None and self.ledger_url is None:
            raise ConfigurationError(
                "no ledger is named that can be asked: that in a topic needs brokers",
                next_step="add --bootstrap-servers, --ledger-path or --ledger-url, or set "
                f"{SERVERS_VARIABLE} in the shell",
            )
        if self.ledger_path is not None and self.ledger_url is not None:
            raise ContradictoryOptions(
                "the shell names two ledgers, ONCEWARD_LEDGER_PATH and ONCEWARD_LEDGER_URL",
                next_step="add --ledger-path or --ledger-url, which comes before both",
            )
        check_servers(self.bootstrap_servers, "--bootstrap-servers")
        return open_ledger(
            bootstrap_servers=self.bootstrap_servers,
            options=client_options(self.command_config),
            ledger_topic=self.ledger_topic,
            path=self.ledger_path,
            url=self.ledger_url,
            table=self.ledger_table,
            **self._sources(),
        )

    def _sources(self) -> dict[str, Any]:
        """Return what :func:`open_ledger` takes for another cluster than the ledger's."""
        return {}


@dataclass(frozen=True, kw_only=True)
class LagOptions(LedgerOptions):
    """The same of a command that says how far pipelines are behind their sources."""

    bootstrap_servers: Annotated[
        str | None,
        typer.Option(
            envvar=SERVERS_VARIABLE, help="Brokers, host:port[,…], of the ledger or the sources."
        ),
    ] = None
    source_bootstrap_servers: Annotated[
        str | None,
        typer.Option(
            envvar="ONCEWARD_SOURCE_BOOTSTRAP_SERVERS",
            help="Brokers of sources on another cluster than the ledger, for the lag.",
        ),
    ] = None
    source_command_config: Annotated[
        Path | None,
        typer.Option(
            envvar="ONCEWARD_SOURCE_COMMAND_CONFIG",
            metavar="FILE",
            help="Client settings for these brokers, if they differ.",
        ),
    ] = None

    def _sources(self) -> dict[str, Any]:
        config = self.source_command_config
        if config is not None and self.source_bootstrap_servers is None:
            raise ConfigurationError(
                "--source-command-config is for other brokers than the ledger's, and none are "
                "named",
                next_step="add --source-bootstrap-servers, or name it with --command-config",
            )
        check_servers(self.source_bootstrap_servers, "--source-bootstrap-servers")
        return {
            "source_servers": self.source_bootstrap_servers,
            "source_options": None if config is None else client_options(config),
        }


def names_a_ledger(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command, which takes keywords only, the options that name a ledger beside its own. It
    is called with them as ``at``, :class:`LedgerOptions`, or :class:`LagOptions` where it declares
    that; one that it declares itself is its own.
    """
    own = dict(inspect.signature(command, eval_str=True).parameters)
    kind = own.pop("at").annotation
    shared = inspect.signature(kind, eval_str=True).parameters
    added = {name: option for name, option in shared.items() if name not in own}

    @functools.wraps(command)
    def call(ctx: typer.Context, **parameters: Any) -> None:
        # A ledger that the command line names comes before one that the shell does
        sources = ((name, ctx.get_parameter_source(name)) for name in _LEDGERS)
        typed = [name for name, at in sources if at is not None and at.name == "COMMANDLINE"]
        if len(typed) > 1:
            options = (f"--{name.replace('_', '-')}" for name in typed)
            raise ContradictoryOptions(
                "two ledgers are named", next_step=f"leave out {' or '.join(options)}"
            )
        for name in set(_LEDGERS) - set(typed) if typed else ():
            parameters[name] = defaults[name]
        at = kind(**{name: parameters.pop(name) for name in added})
        with errors_in_options(_OF_LEDGERS):
            command(at=at, **parameters)

    context = inspect.Parameter(
        "ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context
    )
    options = [context, *own.values(), *added.values()]
    defaults = {option.name: option.default for option in options}
    call.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    call.__annotations__ = {option.name: option.annotation for option in options}
    return call


_LEDGERS = ("ledger_topic", "ledger_path", "ledger_url")


def say(text: str, *, err: bool = False, nl: bool = True, colour: str | None = None) -> None:
    """Print a text. What others have put into it is shown as it is, and nothing in it obeyed."""
    plain = plain_text(text)
    typer.echo(typer.style(plain, fg=colour) if colour else plain, err=err, nl=nl)


def table(*columns: str, rows: Iterable[Sequence[Any]] = ()) -> Any:
    """Return a table of rich; a column whose name ends in ``>`` has numbers. Texts in its rows are
    others': shown as they are, and nothing in them is obeyed.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from onceward.kafka.dead_letters.text import printable

    class PlainTable(Table):
        def add_row(self, *cells: Any, **how: Any) -> None:
            plain = (
                each if isinstance(each, Text) else Text(printable(str(each))) for each in cells
            )
            super().add_row(*plain, **how)

    plain_table = PlainTable(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        right = column.endswith(">")
        plain_table.add_column(
            column.rstrip(">"), justify="right" if right else "left", no_wrap=True
        )
    for row in rows:
        plain_table.add_row(*row)
    return plain_table


def print_table(renderable: Any) -> None:
    """Print a table; for a program that reads it, nothing is cut."""
    from rich.console import Console

    shown = is_terminal()
    console = Console(force_terminal=shown, width=None if shown else 500)
    # Printed as all else is: rich ends a program whose reader is gone with 1
    with console.capture() as text:
        console.print(renderable)
    typer.echo(text.get(), nl=False)


def is_terminal() -> bool:
    """Return whether a person reads stdout. rich takes anything for a terminal where FORCE_COLOR
    is set, as CI does."""
    return sys.stdout is not None and sys.stdout.isatty()
