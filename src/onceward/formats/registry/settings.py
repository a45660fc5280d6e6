"""Where the registry is and how to prove who we are, from Confluent's own option names. Called by
:mod:`client`, in the driver; nothing is connected. No secret, and no URL that may hold one, is
part of a ``repr`` or an error.
"""

from __future__ import annotations

import base64
import difflib
import json
import re
import string
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlsplit

from onceward.errors import ConfigurationError, ContradictoryOptions, UnknownOption
from onceward.kafka.wire.options.security import SECURITY_OPTIONS, Security, tls_parts

_PREFIX = "schema.registry."
_USER_INFO, _TOKEN = "basic.auth.user.info", "bearer.auth.token"
_SOURCES = {
    "basic.auth.credentials.source": "USER_INFO",
    "bearer.auth.credentials.source": "STATIC_TOKEN",
}
TLS_OPTIONS = tuple(name for name in SECURITY_OPTIONS if name.startswith("ssl."))
OPTIONS = (_USER_INFO, _TOKEN, *_SOURCES, *TLS_OPTIONS)
"""Each also with ``schema.registry.`` before it."""

_A_HOST = re.compile(r"[\w.:%~-]+", re.ASCII)
_IN_A_PATH = frozenset(string.ascii_letters + string.digits + "-._~/%:@!$&'()*+,;=")


@dataclass(frozen=True)
class RegistryAddress:
    """The one origin that is ever asked, and the path that all requests begin with."""

    scheme: str
    host: str
    port: int
    path: str

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.path}"


@dataclass(frozen=True)
class Login:
    """What goes with each request. ``repr`` shows nothing of it."""

    option: str
    """Which option it comes from, for messages."""
    header: str = field(repr=False)
    secrets: tuple[str, ...] = field(repr=False)
    """What no message may show, the longest first."""


@dataclass(frozen=True)
class RegistrySettings:
    """Of one registry."""

    address: RegistryAddress
    login: Login | None
    tls: Security | None = field(repr=False)


def parse_settings(url: Any, options: Mapping[str, Any] | None) -> RegistrySettings:
    """Check the settings of a registry.

    :raises UnknownOption: an option nobody knows.
    :raises ConfigurationError: one is wrong.
    """
    address = parse_address(url)
    ours, theirs = _split_options(options or {})
    if theirs and address.scheme != "https":
        raise ContradictoryOptions(
            f"{next(iter(theirs))} is set, but the registry's url begins with http://",
            next_step="write https://, or remove the option",
        )
    login = _login(ours)
    tls = Security(protocol="SSL", **tls_parts(theirs)) if address.scheme == "https" else None
    return RegistrySettings(address, login, tls)


def parse_address(url: Any) -> RegistryAddress:
    """Parse the registry's address, which no error repeats: it may hold a password."""
    try:
        at = urlsplit(url if isinstance(url, str) else "")
        host, port = at.hostname, at.port
        login = at.username is not None or at.password is not None
    except ValueError:
        host, port, login = None, None, False
    if login or (isinstance(url, str) and "@" in url.partition("://")[2].partition("/")[0]):
        raise ConfigurationError(
            "SchemaRegistry(url=…) has a login in it, which would end up in logs",
            next_step=f'take it out, and pass options={{"{_USER_INFO}": "user:password"}}',
        )
    if not host or at.scheme not in ("http", "https") or port == 0 or not _A_HOST.fullmatch(host):
        raise ConfigurationError(
            "SchemaRegistry(url=…) is no address of a registry",
            next_step="pass one http://host:port/path or https://host:port/path, as its own "
            "clients take it",
        )
    if at.query or at.fragment or not _IN_A_PATH.issuperset(at.path) or "," in at.path:
        raise ConfigurationError(
            "SchemaRegistry(url=…) has more in it than an address and a path",
            next_step="leave out what begins with ? or #, and further addresses behind a comma; "
            "write other characters of the path as %7B and the like",
        )
    return RegistryAddress(
        at.scheme, host, port or (443 if at.scheme == "https" else 80), at.path.rstrip("/")
    )


def _split_options(options: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
    """Return options of the login, and those of TLS."""
    ours: dict[str, str] = {}
    tls: dict[str, str] = {}
    if not isinstance(options, Mapping):
        raise ConfigurationError(
            f"options= of the schema registry is {type(options).__name__}, no dict",
            next_step=f'pass options={{"{_USER_INFO}": "user:password"}}, or leave it out',
        )
    for name, value in options.items():
        short = str(name).removeprefix(_PREFIX)
        if short not in OPTIONS:
            nearest = difflib.get_close_matches(short, OPTIONS, n=1, cutoff=0.75)
            raise UnknownOption(
                f"option {name!r} of the schema registry is not known",
                next_step=f"did you mean {nearest[0]!r}?"
                if nearest
                else f"use one of {', '.join(OPTIONS)}",
            )
        if not isinstance(value, str):
            raise ConfigurationError(f"{name} is no text", next_step=f"pass {name} as a text")
        where = tls if short in TLS_OPTIONS else ours
        if where.setdefault(short, value) != value:
            raise ContradictoryOptions(
                f"{short} is given twice, also as {_PREFIX}{short}",
                next_step="keep one of the two",
            )
    return ours, tls


def _spellings(*secrets: str) -> tuple[str, ...]:
    """Return each secret as it is, and as it is written where a server or we quote it."""
    spelled = {
        spelling
        for secret in secrets
        for spelling in (
            secret,
            repr(secret)[1:-1],
            json.dumps(secret)[1:-1],
            quote(secret),
            quote(secret, safe=""),
        )
        if spelling
    }
    return tuple(sorted(spelled, key=lambda text: (-len(text), text)))


def _login(parts: Mapping[str, str]) -> Login | None:
    for name, source in _SOURCES.items():
        if parts.get(name, source).upper() != source:
            raise ConfigurationError(
                f"{name}={parts[name]!r} is not supported",
                next_step=f"set it to {source}, and "
                f"{_USER_INFO if name.startswith('basic') else _TOKEN}",
            )
    info, token = parts.get(_USER_INFO), parts.get(_TOKEN)
    if info is not None and token is not None:
        raise ContradictoryOptions(
            f"{_USER_INFO} and {_TOKEN} are both set", next_step="keep one of the two"
        )
    if info is not None:
        user, colon, password = info.partition(":")
        if not user or not colon:
            raise ConfigurationError(
                f"{_USER_INFO} is not user:password", next_step="write it so, with the colon"
            )
        packed = base64.b64encode(info.encode()).decode()
        return Login(_USER_INFO, f"Basic {packed}", _spellings(info, packed, password))
    if token is not None:
        if not token or not token.isascii() or not token.isprintable() or " " in token:
            raise ConfigurationError(
                f"{_TOKEN} is no token",
                next_step="pass the token alone, without spaces or the word Bearer",
            )
        return Login(_TOKEN, f"Bearer {token}", _spellings(token))
    if missing := next((name for name in _SOURCES if name in parts), None):
        raise ConfigurationError(
            f"{missing} is set, and there is no login",
            next_step=f"set {_USER_INFO if missing.startswith('basic') else _TOKEN}, or remove "
            f"{missing}",
        )
    return None
