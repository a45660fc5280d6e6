"""One HTTP request to one address, within a time and a size. Called by :mod:`conversation`, in the
driver.

Nothing is followed, unpacked, kept open or taken from the environment: no redirect, no content
encoding, no connection for later, no proxy. Each request has a connection of its own, which is cut
when its time is up (:func:`onceward.patience.cut_in_time`).

JSON from a server that is not trusted is read within limits, or refused in a few words.
"""

from __future__ import annotations

import functools
import http.client
import json
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from onceward.errors import summary
from onceward.formats.registry.settings import RegistryAddress
from onceward.libraries import library
from onceward.patience import Cut, cut_in_time

if TYPE_CHECKING:
    import urllib3

DEEPEST = 100
"""Levels of brackets. Python's reader gives up at some 1,000, Jackson (in Spark and in registries)
at 1,000.
"""
MOST_BRACKETS = 400_000
"""Of lists and objects: each takes some hundred bytes of memory, and two of the text."""


class NotFit(Exception):
    """What is wrong with an answer or a text, in a few words."""


class BeyondLimits(NotFit):
    """It is more than is read here, and may be right."""


def parse_json(text: str | bytes) -> Any:
    """Return the value of ``text``, which takes a few times its size in memory.

    :raises NotFit: it is no JSON in UTF-8. :raises BeyondLimits: its brackets are nested deeper
        than :data:`DEEPEST`, or there are too many.
    """
    try:
        decoded = text.decode() if isinstance(text, bytes) else text
    except UnicodeDecodeError:
        raise NotFit("not UTF-8") from None
    if decoded.count("[") + decoded.count("{") > MOST_BRACKETS:
        raise BeyondLimits(f"JSON of more than {MOST_BRACKETS:,} lists and objects")
    try:
        value = json.loads(decoded, parse_constant=_no_number)
    except RecursionError:
        raise BeyondLimits(f"JSON nested deeper than {DEEPEST} levels") from None
    except ValueError as error:
        raise NotFit(f"no JSON ({error})" if decoded.strip() else "empty") from None
    _must_be_flat(value)
    return value


def _must_be_flat(value: Any) -> None:
    level = [value] if isinstance(value, (list, dict)) else []
    for _ in range(DEEPEST + 1):
        if not level:
            return
        inside = (one.values() if isinstance(one, dict) else one for one in level)
        level = [inner for part in inside for inner in part if isinstance(inner, (list, dict))]
    raise BeyondLimits(f"JSON nested deeper than {DEEPEST} levels")


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number of JSON")


_PIECE_BYTES = 65_536


class NoAnswer(Exception):
    """There is no whole answer, for the reason that it says."""


class NotTrusted(Exception):
    """The server's certificate is not one that we trust."""


@dataclass(frozen=True)
class Answer:
    """A whole one."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def send(
    address: RegistryAddress,
    tls: ssl.SSLContext | None,
    method: str,
    path: str,
    *,
    headers: Mapping[str, str],
    body: bytes | None,
    seconds: float,
    most_bytes: int,
) -> Answer:
    """Send one request, and return the answer, in ``seconds`` in all.

    :raises NoAnswer: it cannot be reached, or the answer does not come or is not whole.
    :raises NotFit: more than ``most_bytes``, or an encoding nobody asked for.
    :raises NotTrusted: its certificate is not trusted.
    """
    library = client_library()

    def ask(cut: Cut) -> Answer:
        pool = _pool(address, tls, seconds, cut)
        try:
            answer = pool.urlopen(
                method, address.path + path, body=body,
                headers={**headers, "Accept-Encoding": "identity"},
                retries=False, redirect=False, preload_content=False, decode_content=False,
            )  # fmt: skip
            return _whole(answer, most_bytes)
        except (library.exceptions.HTTPError, http.client.HTTPException, OSError) as error:
            reasons = [*error.args, error.__cause__, error.__context__]
            if isinstance(error, library.exceptions.SSLError) and any(
                isinstance(reason, ssl.SSLCertVerificationError) for reason in reasons
            ):
                raise NotTrusted(str(error)) from None
            raise NoAnswer(summary(error)) from None
        finally:
            pool.close()

    late = NoAnswer(f"no whole answer in {seconds:.3g} s")
    return cut_in_time(ask, seconds, "onceward-registry", late=late)


def _whole(answer: urllib3.BaseHTTPResponse, most_bytes: int) -> Answer:
    try:
        encoding = answer.headers.get("Content-Encoding", "identity").strip().lower()
        if encoding not in ("", "identity"):
            # Unpacking it may take a thousand times its size, and whoever keeps to HTTP was told
            # not to send it.
            raise NotFit(f"an answer packed as {encoding[:40]}, which was not asked for")
        body = bytearray()
        while piece := answer.read(_PIECE_BYTES, decode_content=False):
            body += piece
            if len(body) > most_bytes:
                raise NotFit(f"an answer of more than {most_bytes:,} bytes")
        return Answer(answer.status, answer.headers, bytes(body))
    finally:
        answer.close()


def client_library() -> Any:
    """Import urllib3.

    :raises ConfigurationError: it is not installed.
    """
    return library("a schema registry needs an HTTP client", "avro", "urllib3")


def _pool(
    address: RegistryAddress, tls: ssl.SSLContext | None, seconds: float, cut: Cut
) -> urllib3.HTTPConnectionPool:
    library = client_library()
    settings: dict[str, Any] = {"timeout": seconds, "maxsize": 1, "retries": False}
    pool: urllib3.HTTPConnectionPool
    if tls is None:
        pool = library.HTTPConnectionPool(address.host, address.port, **settings)
    else:
        # None: urllib3 compares the name; it would do so even where the context has been told not
        # to.
        name = None if tls.check_hostname else False
        pool = library.HTTPSConnectionPool(
            address.host, address.port, ssl_context=tls, assert_hostname=name, **settings
        )
    connection_class = functools.partial(_connection_classes()[tls is not None], cut=cut)
    # It is only called.
    pool.ConnectionCls = connection_class  # type: ignore[assignment]
    return pool


@functools.cache
def _connection_classes() -> tuple[type, type]:
    """urllib3's two, which report their socket before TLS: a handshake can be drawn out, too."""
    library = client_library()

    def kind(base: Any) -> type:
        class Connection(base):  # type: ignore[misc] # a class that is only known at run time
            def __init__(self, *arguments: Any, cut: Cut, **more: Any) -> None:
                super().__init__(*arguments, **more)
                self._cut = cut

            def _new_conn(self) -> socket.socket:
                made: socket.socket = super()._new_conn()
                self._cut.watch(made)
                return made

        return Connection

    return kind(library.connection.HTTPConnection), kind(library.connection.HTTPSConnection)
