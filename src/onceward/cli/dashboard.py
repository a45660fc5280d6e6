"""``onceward dashboard`` and ``onceward report``: pipelines as pages.

Registered in :mod:`onceward.cli`; the pages are in :mod:`onceward.dashboard`.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Annotated

import typer

from onceward.cli.shared import LEDGER_TOPIC, Interval, LagOptions, Pipeline, names_a_ledger, say
from onceward.errors import ConfigurationError
from onceward.libraries import library

TOKEN_VARIABLE = "ONCEWARD_DASHBOARD_TOKEN"  # noqa: S105 — a name
_MOST_CONNECTIONS = 100
Metrics = Annotated[
    list[str] | None,
    typer.Option(
        metavar="URL", help="A pipeline's /metrics, for steps and failures; may be repeated."
    ),
]


@names_a_ledger
def dashboard(
    *,
    at: LagOptions,
    port: Annotated[int, typer.Option(min=0, max=65_535, help="0: a free one.")] = 9465,
    host: Annotated[
        str,
        typer.Option(help="The address to listen on. Others than this machine's need a token."),
    ] = "127.0.0.1",
    allowed_host: Annotated[
        list[str] | None, typer.Option(help="A name by which visitors call it; may be repeated.")
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(help=f"A file with the token; else {TOKEN_VARIABLE} has it.")
    ] = None,
    interval: Interval = 2.0,
    metrics: Metrics = None,
    ledger_topic: Annotated[
        list[str] | None,
        typer.Option(envvar="ONCEWARD_LEDGER_TOPIC", help="A ledger topic; may be repeated."),
    ] = None,
) -> None:
    """Serve pages of all pipelines of one or several ledgers. They only read.

    Needs the extra dashboard.
    """
    library("the pages need Starlette", "dashboard", "starlette", "applications")
    uvicorn = library("the pages need uvicorn", "dashboard", "uvicorn")
    from onceward.dashboard.server import dashboard_app, must_be_safe
    from onceward.dashboard.watch import Watcher

    token = _token(token_file)
    must_be_safe(host, token)
    topics = ledger_topic or [LEDGER_TOPIC]
    views = [dataclasses.replace(at, ledger_topic=topic).view() for topic in topics]
    watcher = Watcher(views, interval, metrics or ()).start()
    try:
        app = dashboard_app(
            watcher, {host, *(allowed_host or ())}, token, lambda: server.should_exit
        )
        server = uvicorn.Server(
            uvicorn.Config(
                app,
                host=host,
                port=port,
                log_level="info",
                access_log=False,
                server_header=False,
                limit_concurrency=_MOST_CONNECTIONS,
                # For a visitor who reads slowly
                timeout_graceful_shutdown=5,
            )
        )
        server.run()
    finally:
        watcher.stop()


@names_a_ledger
def report(
    *,
    at: LagOptions,
    pipeline_id: Pipeline,
    html: Annotated[Path, typer.Option(metavar="FILE", help="The page to write.")],
    metrics: Metrics = None,
) -> None:
    """Write one page about a pipeline, complete in itself, to attach to a ticket."""
    from importlib import resources

    from onceward import surroundings
    from onceward.dashboard.pages import report as page
    from onceward.dashboard.watch import Watcher

    if os.path.isdir(html) or not os.path.isdir(html.parent):
        raise ConfigurationError(
            f"--html {html} can be no file", next_step="name a file in a folder that is there"
        )
    view = at.view()
    watcher = Watcher([view], 1.0, metrics or ())
    watcher.look()
    found = watcher.snapshot.pipelines.get(pipeline_id)
    if found is None:
        view.pipelines()  # raises what the look could only note
        raise ConfigurationError(
            f"the ledger has no pipeline {pipeline_id}",
            next_step="`onceward status` lists those that it has",
        )
    style = resources.files("onceward.dashboard").joinpath("assets/style.css").read_text()
    text = page(found, style, surroundings.wall_clock_ns() // 1_000_000)
    try:
        html.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(
            f"--html {html} cannot be written: {error.strerror}",
            next_step="name a file that this user can write, on a disk with room",
        ) from error
    say(str(html))


def _token(file: Path | None) -> str:
    if file is None:
        # A secret that was made of a file has its line's end
        return os.environ.get(TOKEN_VARIABLE, "").strip()
    try:
        token = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ConfigurationError(
            f"--token-file {file} cannot be read: {why}",
            next_step="name a file with it, of one line of text",
        ) from error
    if not token:
        raise ConfigurationError(
            f"--token-file {file} is empty", next_step="write a token into it"
        )
    return token
