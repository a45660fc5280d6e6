"""A question to the registry, asked until there is an answer that makes sense or the time is up.
Called by :mod:`client`, in the driver; many threads may ask at once.

What may pass is asked again with growing pauses: no answer, 5xx, 408, 429 (and as late as
``Retry-After`` says), and whatever makes no sense, as the page of a proxy whose registry is just
being started. *No* is an answer: a registry that knows no such thing says so with an error code of
its own (Confluent, *Schema Registry API Reference*, "Errors"). A 404 without one comes from
somebody else.
"""

from __future__ import annotations

import json
import logging
import random
import ssl
import time
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import urlsplit

from onceward import patience
from onceward.errors import (
    ConfigurationError,
    InvalidRegistryResponse,
    RegistryRefused,
    RegistryUnreachable,
    UnsupportedSchema,
)
from onceward.formats.registry.http import Answer, NoAnswer, NotFit, NotTrusted, parse_json, send
from onceward.formats.registry.settings import RegistrySettings
from onceward.kafka.wire.options.security import tls_context

T = TypeVar("T")

log = logging.getLogger(__name__)

UNKNOWN = frozenset({40401, 40402, 40403})
"""No such subject, version, schema."""
NO_RIGHT = 403
"""The login is known, and may not do this (``details`` of RegistryRefused: ``status``)."""

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0
# and all from 500 on
_LATER = frozenset({408, 429})
# Incompatible with an older version; no schema
_NOT_TAKEN = frozenset({409, 422})
# By Confluent's code (``Errors.java``): incompatible, as new and older servers say it; below,
# "operation not permitted", in READONLY or IMPORT mode.
_INCOMPATIBLE = (409, 40901)
_READ_ONLY = 42205
_QUOTED_CHARACTERS = 300
_CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"


class NotRegistered(Exception):
    """The registry's own *there is no such thing*, in its words."""


class _Later(Exception):
    """Not now. ``after_s``: how long the server wants to be left alone."""

    def __init__(
        self, reason: str, *, answered: bool = True, nonsense: bool = False, after_s: float = 0.0
    ) -> None:
        super().__init__(reason)
        self.answered = answered
        self.nonsense = nonsense
        self.after_s = after_s


class Conversation:
    """With one registry.

    :param timeout_s: for a question, all its tries and pauses. :param request_timeout_s: for one
        try of it.
    """

    def __init__(
        self, settings: RegistrySettings, timeout_s: float, request_timeout_s: float
    ) -> None:
        self.settings = settings
        self._timeout_s, self._request_timeout_s = timeout_s, request_timeout_s
        if settings.tls is not None:
            # A file that is missing is named now
            tls_context(settings.tls)

    def ask(
        self,
        method: str,
        path: str,
        read: Callable[[Any], T],
        *,
        most_bytes: int,
        body: dict[str, Any] | None = None,
    ) -> T:
        """Return what ``read`` makes of the answer's JSON; it raises :class:`NotFit` where that
        makes no sense.

        :raises NotRegistered: the registry knows no such thing.
        :raises RegistryRefused: it does not let us in.
        :raises UnsupportedSchema: it does not take the schema.
        :raises RegistryUnreachable: no answer in time.
        :raises InvalidRegistryResponse: none that makes sense.
        """
        ends = patience.ends_at(1000 * self._timeout_s)
        allowed = left = max(round(ends - time.monotonic(), 2), _FIRST_PAUSE_S)
        pause = _FIRST_PAUSE_S
        failed: _Later | None = None
        while True:
            seconds = min(self._request_timeout_s, left)
            try:
                return self._once(method, path, read, most_bytes, body, seconds)
            except _Later as later:
                # A try for which there was little time left tells less than the one before it.
                if failed is None or later.answered or seconds >= self._request_timeout_s:
                    failed = later
            # So that many do not come at once.
            wait = max(pause * random.uniform(0.5, 1), failed.after_s)  # noqa: S311
            if time.monotonic() + wait >= ends:
                raise self._timeout_error(method, path, failed, allowed)
            log.debug("%s %s is asked again in %.1f s: %s", method, path, wait, failed)
            patience.pause(wait)
            # A pause may take longer than it should
            left = max(ends - time.monotonic(), _FIRST_PAUSE_S)
            pause = min(pause * 2, _LONGEST_PAUSE_S)

    def _tls(self) -> ssl.SSLContext | None:
        """Make a context for each request: files of certificates are renewed in place."""
        if self.settings.tls is None:
            return None
        try:
            return tls_context(self.settings.tls)
        except ConfigurationError as unreadable:
            raise _Later(self._redact(unreadable.message), answered=False) from None

    def _once(
        self,
        method: str,
        path: str,
        read: Callable[[Any], T],
        most_bytes: int,
        body: dict[str, Any] | None,
        seconds: float,
    ) -> T:
        headers = {"Accept": f"{_CONTENT_TYPE}, application/json"}
        if body is not None:
            headers["Content-Type"] = _CONTENT_TYPE
        if self.settings.login is not None:
            headers["Authorization"] = self.settings.login.header
        try:
            answer = send(
                self.settings.address, self._tls(), method, path,
                headers=headers, seconds=seconds, most_bytes=most_bytes,
                body=None if body is None else json.dumps(body).encode(),
            )  # fmt: skip
            if answer.status == 200:
                return read(parse_json(answer.body))
        except NoAnswer as none:
            raise _Later(self._redact(str(none)), answered=False) from None
        except NotFit as wrong:
            raise _Later(self._redact(str(wrong)), nonsense=True) from None
        except NotTrusted as error:
            raise self._distrust_error(str(error)) from None
        raise self._outcome(method, path, answer)

    def _outcome(self, method: str, path: str, answer: Answer) -> Exception:
        """Return the error that an answer other than 200 means."""
        status = answer.status
        code, words = self._error_in(answer)
        if status in (401, NO_RIGHT):
            return self._refused_error(method, path, status, words)
        if status == 404 and code in UNKNOWN:
            return NotRegistered(words)
        if code == _READ_ONLY:
            return self._read_only_error(path, f"{code} {words}")
        # Apicurio: 1. two find no such subject, or version; 2. both insert it; 3. the second one's
        # key is taken (ArtifactAlreadyExistsException), and asked again it finds the first one's.
        came_second = status == 409 and words.endswith("already exists")
        # Without a code the answer comes from somebody else
        if status in _NOT_TAKEN and code is not None and method == "POST" and not came_second:
            return UnsupportedSchema(
                f"the schema registry at {self.settings.address} does not take the schema "
                f"({path}): {code} {words}",
                next_step="change the schema so that the subject's compatibility level allows it, "
                "or the level"
                if code in _INCOMPATIBLE
                else "mend the schema, or the registry's rule, by what it says",
                details=self._details(path, status=status, error_code=code),
            )
        if status >= 500 or status in _LATER:
            # A date, which it can be as well, counts for nothing
            after = answer.headers.get("Retry-After", "")
            is_number = after.isascii() and after.isdigit()
            return _Later(f"{status} {words}".strip(), after_s=float(after) if is_number else 0.0)
        if 300 <= status < 400:
            return self._redirect_error(method, path, answer)
        return _Later(f"{status} {words}".strip(), nonsense=True)

    def _details(self, path: str, **more: object) -> dict[str, Any]:
        return {"url": str(self.settings.address), "path": path, **more}

    def _error_in(self, answer: Answer) -> tuple[int | None, str]:
        """Return the error code and the words of an answer, which may repeat secrets, without
        these.
        """
        code, words = None, answer.body.decode(errors="replace")
        try:
            content = parse_json(answer.body)
        except NotFit:
            content = None
        if isinstance(content, dict):
            code = content["error_code"] if type(content.get("error_code")) is int else None
            words = str(content.get("message") or words)
        return code, self._redact(words)

    def _redact(self, words: str) -> str:
        """Remove secrets from ``words``, then cut them short: half of a secret is one, too."""
        for secret in self.settings.login.secrets if self.settings.login else ():
            words = words.replace(secret, "***")
        return " ".join(words.split())[:_QUOTED_CHARACTERS].rstrip(" .")

    def _timeout_error(self, method: str, path: str, later: _Later, seconds: float) -> Exception:
        address, details = self.settings.address, self._details(path, timeout_s=self._timeout_s)
        if later.nonsense:
            return InvalidRegistryResponse(
                f"the schema registry at {address} does not answer {method} {path} as it should, "
                f"for {seconds:g} s: {later}",
                next_step="check that url= leads to the registry's API with its whole path, and "
                "what stands between",
                details=details,
            )
        return RegistryUnreachable(
            f"the schema registry at {address} did not answer {method} {path} in {seconds:g} s: "
            f"{later}",
            next_step="see that it runs and can be reached from the driver at url=; a slow one "
            "wants a larger timeout_s=",
            details=details,
        )

    def _redirect_error(self, method: str, path: str, answer: Answer) -> InvalidRegistryResponse:
        try:
            to = urlsplit(answer.headers.get("Location", ""))
            where = f"{to.scheme}://{to.hostname}" if to.hostname else "another path"
        except ValueError:
            where = "somewhere"
        return InvalidRegistryResponse(
            f"the schema registry at {self.settings.address} sends {method} {path} on to "
            f"{self._redact(where)} ({answer.status}), where nobody goes: our login is for this "
            "address alone",
            next_step="pass the address to which it leads as url=, if that is the registry",
            details=self._details(path, status=answer.status),
        )

    def _refused_error(self, method: str, path: str, status: int, words: str) -> RegistryRefused:
        login = self.settings.login
        with_what = f"the login of {login.option}" if login else "a request without a login"
        # Rights may be by subject, and any id in a record
        of_one_id = (
            "; if it may read other schemas, let it read the subject of this one, or see who "
            "writes records with this id"
            if status == NO_RIGHT and path.startswith("/schemas/ids/")
            else ""
        )
        return RegistryRefused(
            f"the schema registry at {self.settings.address} refuses {with_what} for {method} "
            f"{path}: {status} {words}".strip(),
            next_step=f"check {login.option}, and what it may do there{of_one_id}"
            if login
            else "set basic.auth.user.info or bearer.auth.token in options=",
            details=self._details(path, option=login.option if login else None, status=status),
        )

    def _read_only_error(self, path: str, words: str) -> RegistryRefused:
        return RegistryRefused(
            f"the schema registry at {self.settings.address} takes no schemas now ({path}): "
            f"{words}",
            next_step="let the registry's administrator set the mode of the subject, or of the "
            "registry, to READWRITE, or register the schema where it comes from",
            details=self._details(path),
        )

    def _distrust_error(self, reason: str) -> RegistryRefused:
        return RegistryRefused(
            f"the certificate of the schema registry at {self.settings.address} is not trusted: "
            f"{self._redact(reason)}",
            next_step="set ssl.ca.location in options= to the CA that signed it, or correct the "
            "host name in url=",
            details={"url": str(self.settings.address), "option": "ssl.ca.location"},
        )
