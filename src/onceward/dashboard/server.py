"""The dashboard over HTTP: who may look, and which page is which.

Read-only: nothing but a login is sent to it. On a loopback address whoever is on the machine may
look; on any other a token is needed. Against pages of others: ``Host`` and ``Origin`` must be ours
(DNS rebinding), no script or style but our own files (CSP), no frame.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
import secrets
from collections.abc import AsyncIterator, Callable, Collection
from importlib import resources
from typing import Any
from urllib.parse import parse_qs, urlsplit

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route

from onceward import surroundings
from onceward.dashboard import pages
from onceward.dashboard.watch import RecordQuery, Watcher
from onceward.errors import ConfigurationError
from onceward.ids import TopicPartition, topic_name

LOOPBACK = ("127.0.0.1", "::1", "localhost")
_MOST_STREAMS = 32
_LOOK_SECONDS = 0.5
_HEARTBEAT_LOOKS = 30
_MOST_LOGIN_BYTES = 4_096
_KINDS = {".css": "text/css", ".js": "text/javascript"}
_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    # Not "no-referrer", with which browsers send the login form as from nowhere (Origin: null)
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


def dashboard_app(
    watcher: Watcher,
    hosts: Collection[str],
    token: str = "",
    is_ending: Callable[[], bool] = lambda: False,
) -> Any:
    """Return the application, for uvicorn.

    :param hosts: names by which it may be asked, without port; beside those of the loopback.
    :param token: what a visitor has to know; empty: nothing.
    :param is_ending: whether the server is being stopped: it waits for each open page, which asks
        for news as long as it is open.
    """
    site = _Site(watcher, token, is_ending)
    app = Starlette(
        routes=[
            Route("/", site.overview),
            Route("/pipeline/{name}", site.pipeline),
            Route("/pipeline/{name}/ledger/{sequence:int}", site.ledger_entry),
            Route("/messages", site.messages),
            Route("/events", site.events),
            Route("/status.json", site.status),
            Route("/login", site.login, methods=["GET", "POST"]),
            Route("/assets/{name}", site.asset),
        ]
    )
    return _Guard(app, site, {*LOOPBACK, *hosts})


def must_be_safe(host: str, token: str) -> None:
    """Check that an address that others can reach has a token."""
    if host not in LOOPBACK and not token:
        raise ConfigurationError(
            f"--host {host} can be reached from other machines, and there is no token",
            next_step="set ONCEWARD_DASHBOARD_TOKEN, or name a file by --token-file",
        )


class _Guard:
    """Answers whoever may not look, and puts headers on every answer."""

    def __init__(self, app: Any, site: _Site, hosts: Collection[str]) -> None:
        self._app, self._site = app, site
        self._hosts = {host.lower() for host in hosts}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Any) -> None:
            if message["type"] == "http.response.start":
                ours = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
                message["headers"] = [*message.get("headers", []), *ours]
            await send(message)

        refusal = self._refusal(Request(scope, receive))
        await (refusal or self._app)(scope, receive, guarded)

    def _refusal(self, request: Request) -> Response | None:
        if _name(f"//{request.headers.get('host', '')}") not in self._hosts:
            text = "the Host header names another site; this one answers to a name that\n"
            return PlainTextResponse(f"{text}onceward dashboard --allowed-host NAME gives it", 421)
        origin = request.headers.get("origin")
        if origin is not None and _name(origin) not in self._hosts:
            return PlainTextResponse("the Origin header names another site", 403)
        path = request.url.path
        if request.method not in ("GET", "HEAD") and path != "/login":
            return PlainTextResponse("this site is only read", 405)
        if path == "/login" or path.startswith("/assets/") or self._site.may_look(request):
            return None
        if "text/html" in request.headers.get("accept", ""):
            return RedirectResponse("/login", 303)
        return PlainTextResponse("a token is needed: Authorization: Bearer …", 401)


def _name(url: str) -> str:
    try:
        return (urlsplit(url).hostname or "").lower()
    except ValueError:
        return ""


def _cookie(request: Request) -> str:
    """Return the cookie's name, with the port: browsers send a host's cookies to all its ports."""
    return re.sub(r"[^A-Za-z0-9.-]", "-", f"onceward-{request.headers.get('host', '')}")


class _Site:
    def __init__(self, watcher: Watcher, token: str, is_ending: Callable[[], bool]) -> None:
        self._watcher, self._is_ending = watcher, is_ending
        self._token = token
        # Not the token itself: a cookie is kept on a disk
        self._session = hmac.new(
            secrets.token_bytes(32), token.encode(), hashlib.sha256
        ).hexdigest()
        self._streams = 0
        folder = resources.files("onceward.dashboard").joinpath("assets")
        self._assets = {
            each.name: each.read_bytes()
            for each in folder.iterdir()
            if each.name.endswith(tuple(_KINDS))
        }

    def may_look(self, request: Request) -> bool:
        """Return whether the visitor knows the token, or none is needed."""
        if not self._token:
            return True
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        # Headers are read as Latin-1; programs send a token in that, or in UTF-8 as forms do
        sent = token.encode("latin-1").decode(errors="replace")
        if scheme.lower() == "bearer" and (_same(token, self._token) or _same(sent, self._token)):
            return True
        return _same(request.cookies.get(_cookie(request), ""), self._session)

    async def login(self, request: Request) -> Response:
        if request.method == "POST":
            body = b""
            async for chunk in request.stream():
                body += chunk
                if len(body) > _MOST_LOGIN_BYTES:
                    return PlainTextResponse("that is no token", 413)
            token = parse_qs(body.decode(errors="replace")).get("token", [""])[0]
            if self._token and _same(token, self._token):
                answer = RedirectResponse("/", 303)
                cookie = _cookie(request)
                answer.set_cookie(cookie, self._session, httponly=True, samesite="strict")
                return answer
            await asyncio.sleep(1)
        wrong = '<p class="trouble" role="alert">That is not the token.</p>'
        form = (
            '<form method="post" action="/login"><label>Token <input type="password" name="token" '
            'required autocomplete="current-password"></label> <button>Log in</button></form>'
        )
        is_wrong = request.method == "POST"
        return self._page("Log in", f"{wrong if is_wrong else ''}{form}", 403 if is_wrong else 200)

    async def overview(self, request: Request) -> Response:
        snapshot = self._watcher.snapshot
        return self._page("Pipelines", pages.overview(snapshot, _now_ms()), request=request)

    async def pipeline(self, request: Request) -> Response:
        name = request.path_params["name"]
        view = self._watcher.snapshot.pipelines.get(name)
        tab = request.query_params.get("tab", pages.TABS[0])
        if view is None or tab not in pages.TABS:
            return self._page("No such pipeline", "<p>It is not in the ledgers.</p>", 404)
        return self._page(name, pages.pipeline(view, tab, _now_ms()), request=request)

    async def ledger_entry(self, request: Request) -> Response:
        name, sequence = request.path_params["name"], request.path_params["sequence"]
        view = self._watcher.snapshot.pipelines.get(name)
        body = None if view is None else pages.ledger_entry(view, sequence)
        if body is None:
            return self._page("No such record", "<p>The ledger does not keep it.</p>", 404)
        return self._page(f"{name}, record {sequence}", body, request=request)

    async def messages(self, request: Request) -> Response:
        parameters = {
            name: request.query_params.get(name, "")[:300]
            for name in ("topic", "partition", "offset")
            if name in request.query_params
        }
        answer: Any = None
        if parameters.get("topic"):
            try:
                partition = int(parameters.get("partition", "0"))
                offset = int(parameters.get("offset", "-50"))
                where = TopicPartition(topic_name(parameters["topic"]), partition)
                if not (0 <= partition < 1 << 31 and -(1 << 31) < offset < 1 << 62):
                    raise ValueError("out of range")
            except ValueError:
                answer = "partition and offset are numbers"
            except ConfigurationError as error:
                answer = error.message
            else:
                answer = self._watcher.ask(RecordQuery(where, offset))
        pipelines = self._watcher.snapshot.pipelines
        return self._page(
            "Messages", pages.messages(parameters, answer, pipelines), request=request
        )

    async def status(self, _: Request) -> Response:
        snapshot = self._watcher.snapshot
        found = [
            {"pipeline_id": name, "state": view.status.state.value, "lag": view.status.lag}
            for name, view in snapshot.pipelines.items()
        ]
        return JSONResponse({"taken_at_ms": snapshot.taken_at_ms, "pipelines": found})

    async def events(self, _: Request) -> Response:
        if self._streams >= _MOST_STREAMS:
            return PlainTextResponse("too many pages are open", 503)
        return StreamingResponse(self._changes(), media_type="text/event-stream")

    async def _changes(self) -> AsyncIterator[str]:
        """Tell that there is news, never what: a slow page misses nothing, and nothing is kept."""
        self._streams += 1
        try:
            sent, quiet = -1, 0
            while not self._is_ending():
                number = self._watcher.snapshot.number
                if number != sent:
                    sent, quiet = number, 0
                    yield f"data: {number}\n\n"
                elif (quiet := quiet + 1) % _HEARTBEAT_LOOKS == 0:
                    yield ": still here\n\n"
                await asyncio.sleep(_LOOK_SECONDS)
        finally:
            self._streams -= 1

    async def asset(self, request: Request) -> Response:
        name = request.path_params["name"]
        data = self._assets.get(name)
        if data is None:
            return PlainTextResponse("no such file", 404)
        return Response(data, media_type=_KINDS[f".{name.rpartition('.')[2]}"])

    def _page(
        self, title: str, body: str, status: int = 200, *, request: Request | None = None
    ) -> Response:
        make: Callable[..., str] = pages.page
        if request is not None and "x-fragment" in request.headers:
            make = pages.fragment
        return HTMLResponse(make(title, body, self._watcher.snapshot, _now_ms()), status)


def _same(token: str, secret: str) -> bool:
    return hmac.compare_digest(token.encode(), secret.encode())


def _now_ms() -> int:
    return surroundings.wall_clock_ns() // 1_000_000
