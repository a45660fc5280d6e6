"""Writes to OpenSearch, Elasticsearch: a document a row, never by an older version. Driver only.

Compare and replace are the server's own: *external versioning*. With ``version_type=external_gte``
it does "only index the document if the given version is equal or higher than the version of the
stored document" (Elasticsearch reference, *Index API*, "Version types"; OpenSearch has it from
there), and else answers for the row with status 409, ``version_conflict_engine_exception``. That
holds for a delete, too, whose version is kept for ``index.gc_deletes``.

A version is one whole number of 63 bits, and that is all that the server compares. So of the mark
of a write (:mod:`upserts`) only a part is there: the value of the user's column, or the row's
place in the ledger. What the other parts would tell cannot be told here, as the page says
(docs/how-to/upsert.md).

One ``_bulk`` request has many rows, each with an answer of its own. It is all that is needed, and
Elasticsearch and OpenSearch have it alike; so the client is urllib3 alone. Elastic's own client
refuses servers of OpenSearch.
"""

from __future__ import annotations

import base64
import json
import logging
import ssl
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple
from urllib.parse import quote, unquote, urlsplit

from onceward import patience, surroundings
from onceward.delivery.opensearch_answers import (
    ANSWER,
    ASKED_OF_AN_INDEX,
    CONFLICT,
    IN_A_SHARD,
    MAPPING,
    MISSING,
    OF_THE_INDEX,
    PIPELINE,
    Index,
    NotTaken,
    TooLarge,
    TooSlow,
    elsewhere,
    error_in,
    first_error,
    forgetful,
    is_news,
    lost_error,
    may_route,
    misled_error,
    never_passes,
    nowhere_error,
    one_index,
    refusal,
    says_missing,
    setting,
    spoken,
    version_number,
    why_no_documents,
    why_not_in_documents,
    written_to,
)
from onceward.delivery.upserts import (
    RESTORE,
    VERSION_FIELD,
    NeverTaken,
    Upsert,
    UpsertWriter,
    as_json,
    refused,
)
from onceward.errors import ConfigurationError, DeliveryRefused
from onceward.libraries import library

if TYPE_CHECKING:
    import urllib3

log = logging.getLogger(__name__)

_TIMEOUT_SECONDS = 30.0
# A server takes 100 MB (http.max_content_length), 5 to 15 are advised; a proxy may take 1 MB
_REQUEST_BYTES = 5_000_000
_ROUNDS_SECONDS = 20.0
# An alias is moved by one call after the other within so long
_NOWHERE_SECONDS = 30.0


@dataclass
class OpenSearchWriter(UpsertWriter):
    """Of one server, into one index.

    :param url: ``http://user:password@host:port/path`` (``https``); login and path are optional.
    :param index: its name, or that of an alias.
    :param by_column: a version is what the user's column says; else the row's place in the ledger.
    :param tombstone_s: how long the index has to keep versions of deletes. None: there are none.
    """

    # Of documents in general, not of rows (Elasticsearch, *Metadata fields*): refused within one.
    reserved: ClassVar[frozenset[str]] = frozenset(
        {
            "_data_stream_timestamp", "_field_names", "_id", "_ignored", "_index", "_nested_path",
            "_primary_term", "_routing", "_seq_no", "_source", "_tier", "_type", VERSION_FIELD,
        }
    )  # fmt: skip
    # The server refuses the whole request of a longer _id
    key_bytes: ClassVar[int | None] = 512
    never_taken: ClassVar[NeverTaken | None] = NeverTaken(why_no_documents, why_not_in_documents)

    url: str = field(repr=False)
    index: str
    by_column: bool
    tombstone_s: int | None
    _pool: urllib3.HTTPConnectionPool | None = field(
        default=None, init=False, repr=False, compare=False
    )
    _most_bytes: int = field(default=_REQUEST_BYTES, init=False, repr=False, compare=False)
    """What the server, and a proxy before it, takes in a request, as far as known."""
    _request_bytes: int = field(default=_REQUEST_BYTES, init=False, repr=False, compare=False)
    """What they answer in time: less where they were too slow, and growing."""
    _late: int = field(default=0, init=False, repr=False, compare=False)
    """So many requests in a row were not answered in time."""
    _found: Index | None = field(default=None, init=False, repr=False, compare=False)
    """What :attr:`index` leads to, once it was looked at; looked at again behind each chunk."""
    _then: Index | None = field(default=None, init=False, repr=False, compare=False)
    """What it has led to, as far as known; also what the ledger has of earlier runs."""
    _astray_since: float | None = field(default=None, init=False, repr=False, compare=False)
    """Since when the name has been an alias that leads nowhere, or to several indices."""

    def __call__(self, upserts: Iterable[Upsert]) -> None:
        upserts = list(upserts)
        if not upserts:
            return
        index = self._checked()
        wrong: list[DeliveryRefused] = []
        later = [(each, "") for each in upserts]
        went: dict[str, tuple[str, Upsert]] = {}
        rounds = patience.GrowingPauses(_ROUNDS_SECONDS)
        while later:
            pending, later = [upsert for upsert, _ in later], []
            for part in self._requests(pending, index):
                for rows, answers in self._send(part, index):
                    self._judge(rows, answers, index, wrong, later, went)
            # It takes some: the others go without them, later, and fewer at a time
            if not later or len(later) == len(pending) or not rounds.wait():
                break
            self._request_bytes = max(1, self._request_bytes // 4)
        self._must_be_the_same(index)
        now = self._checked()
        for key, (name, _) in went.items():
            if index.uuid is None and name not in (now.name, self.index):
                text = f"an ingest pipeline of the index has written it to {name}"
                wrong.append(refused(key, text, PIPELINE))
            elif now.uuid is None:
                raise NotTaken(f"the index {name} was deleted while rows were written to it")
        if now.may_route and went:
            wrong += self._routed(now, [upsert for _, upsert in went.values()])
        if wrong:
            raise first_error(wrong)
        if later:
            raise NotTaken(f"{len(later)} rows were not taken now: {later[0][1]}")

    def check(self, then: Mapping[str, Any] | None) -> None:
        """Find the one index behind the name, and check that it keeps versions of deletes."""
        self._then, self._found = written_to(self.index, then), None
        self._checked()

    def place(self) -> dict[str, Any] | None:
        """Return the index, with the ids that no other one of its name has."""
        return None if self._then is None else {"called": self.index, **self._then._asdict()}

    def _checked(self) -> Index:
        """Return the index that rows go to. :raises NotTaken: the name is being moved."""
        if self._found is None:
            index = self._compared()
            if self.tombstone_s is not None:
                self._must_keep_versions_of_deletes(self.tombstone_s)
                index = self._compared()
            self._found = index
        return self._found

    def _compared(self) -> Index:
        """Return what the name leads to, if that is what it has led to, or an alias was moved.

        :raises NotTaken: an alias is being moved, by one call after the other.
        :raises PreparedDataLost: the index was deleted, and maybe made anew.
        """
        then = self._then
        try:
            now = self._one_index()
        except ConfigurationError as error:
            if then is None:
                raise
            raise self._not_yet(error.message, misled_error(error)) from error
        if then is not None and (then.uuid, then.history) != (now.uuid, now.history):
            if now.uuid is None and then.is_alias:
                # Nothing is asked that would make an index of the alias's name
                for_good = nowhere_error(self.index, _NOWHERE_SECONDS)
                raise self._not_yet(f"the alias {self.index} leads nowhere now", for_good)
            if not now.is_alias or now.name == then.name:
                raise lost_error(self.index, then.name)
            log.warning("%s leads to %s now, before to %s", self.index, now.name, then.name)
        self._astray_since = None
        self._then = None if now.uuid is None else now
        return now

    def _not_yet(self, what: str, for_good: Exception) -> Exception:
        """Return the error of an alias that is being moved, or was not in time."""
        now = surroundings.monotonic()
        self._astray_since = self._astray_since or now
        return for_good if now - self._astray_since >= _NOWHERE_SECONDS else NotTaken(what)

    def _must_be_the_same(self, index: Index) -> None:
        """Check that ``index`` was written to: a missing one is made, and an alias may be moved.
        :raises NotTaken, PreparedDataLost: as :meth:`_compared` says, or the alias was moved."""
        found = {} if index.uuid is None else self._settings()
        same = index.history in setting(found, "history.uuid").values()
        if same and setting(found, "uuid") == {index.name: index.uuid}:
            self._found = index._replace(may_route=may_route(found, index.name))
            for name, kept in forgetful(found, self.tombstone_s).items():
                log.warning("gc_deletes of %s was set back to %s, and is put right now: rows that "
                            "come late may bring back what was deleted", name, kept)  # fmt: skip
                self._found = None
            return
        self._found = None
        now = self._compared()
        if index.uuid not in (None, now.uuid):
            raise NotTaken(f"the alias {self.index} was moved from {index.name} to {now.name}")
        self._found = now

    def describe(self, setting: str) -> tuple[str, str | None]:
        """Return the one index behind the name, and a setting of it; None: there is none yet.

        :raises ConfigurationError: the name leads to several.
        """
        there = self._one_index().name
        path = f"/{quote(there, safe='')}/_settings?flat_settings=true"
        found = self._asked("GET", path, missing={})
        return there, found.get(there, {}).get("settings", {}).get(setting)

    def _abandon(self) -> None:
        self._pool, self._found = None, None

    def close(self) -> None:
        """Close the pool; the next call opens another."""
        pool, self._pool, self._found = self._pool, None, None
        if pool is not None:
            pool.close()

    def _requests(self, upserts: Iterable[Upsert], index: Index) -> Iterator[_Request]:
        rows: list[Upsert] = []
        lines: list[bytes] = []
        size = 0
        for upsert in upserts:
            line = self._lines(upsert, index)
            if rows and size + len(line) > self._request_bytes:
                yield _Request(rows, b"".join(lines))
                rows, lines, size = [], [], 0
            rows.append(upsert)
            lines.append(line)
            size += len(line)
        if rows:
            yield _Request(rows, b"".join(lines))

    def _send(self, part: _Request, index: Index) -> Iterator[tuple[list[Upsert], dict[str, Any]]]:
        """Send a request, in smaller ones where it is more than the server or a proxy takes, or
        answers in time, and yield the answers.

        :raises NotTaken: it is one row, or no answer came so often that the server stands still.
        """
        is_one, size = len(part.upserts) == 1, len(part.body)
        # An alias, so that nothing makes an index that was deleted meanwhile
        path = f"/{self._path}/_bulk?{ANSWER}" + "&require_alias=true" * index.is_alias
        try:
            answers = self._asked("POST", path, part.body)
        except TooLarge as large:
            if is_one:
                text = f"the row of key {part.upserts[0].key!r} has {size} bytes, more than the"
                raise NotTaken(
                    f"{text} server, or a proxy before it, takes in a request; raise its limit "
                    f"(http.max_content_length, client_max_body_size): {large}"
                ) from large
            self._request_bytes = self._most_bytes = size // 2
        except TooSlow as slow:
            # It may work on each row, or stand still: the next try begins with fewer.
            self._request_bytes = max(1, size // 10)
            self._late += 1
            if is_one or self._late * _TIMEOUT_SECONDS >= self.answer_s:
                self._late = 0
                raise
            log.warning("%d rows in smaller requests: %s", len(part.upserts), slow)
        else:
            self._late = 0
            self._request_bytes = min(self._most_bytes, 2 * self._request_bytes)
            yield part.upserts, answers
            return
        for smaller in self._requests(part.upserts, index):
            yield from self._send(smaller, index)

    def _lines(self, upsert: Upsert, index: Index) -> bytes:
        version = version_number(upsert, self.by_column)
        header = {"_id": upsert.key, "version": version, "version_type": "external_gte"}
        if index.is_alias:
            # What it is without. An alias that gets another one meanwhile, with which the key
            # would be there twice, refuses the row.
            header["routing"] = upsert.key
        text = as_json({"delete" if upsert.row is None else "index": header}) + "\n"
        if upsert.row is not None:
            text += (
                as_json({name: value for name, value in upsert.row.items() if value is not None})
                + "\n"
            )
        return text.encode()

    def _judge(
        self,
        upserts: Sequence[Upsert],
        answers: dict[str, Any],
        index: Index,
        wrong: list[DeliveryRefused],
        later: list[tuple[Upsert, str]],
        went: dict[str, tuple[str, Upsert]],
    ) -> None:
        """Sort answers: ``wrong`` is never written, ``later`` may be taken yet; ``went``: by key
        the index that took a row.
        """
        items = answers.get("items")
        if not isinstance(items, list) or len(items) != len(upserts):
            raise NotTaken(f"{len(upserts)} rows were sent; the answer is not about each of them")
        for upsert, item in zip(upserts, items, strict=True):
            [answer] = item.values()
            status, error = answer["status"], answer.get("error")
            if error is None and (status < 300 or (status == 404 and upsert.row is None)):
                # 404: there was nothing to delete, and the version is kept all the same
                went.pop(upsert.key, None)
                if upsert.row is not None:
                    went[upsert.key] = str(answer.get("_index")), upsert
                name = None if index.uuid is None else index.name
                stray = elsewhere(answer, name, upsert)
                if stray:
                    wrong.append(refused(upsert.key, stray, PIPELINE))
                continue
            kind, reason = error_in(error)
            if kind == CONFLICT:
                if not is_news(upsert, reason, self.by_column):
                    wrong.append(refused(upsert.key, _NEWER.format(reason), RESTORE))
            elif never_passes(status, kind, reason):
                text = f"{self.index} refuses it ({status} {kind}: {reason})"
                wrong.append(refused(upsert.key, text, MAPPING))
            elif kind == MISSING and index.uuid is not None:
                # What has become of it is looked at before the next try
                self._found = None
                raise NotTaken(f"{self.index} is not there now: {reason}")
            elif kind in OF_THE_INDEX:
                where = f"rows into {self.index}"
                raise refusal(self.index, where, status, kind, reason, its_own=True)
            else:
                later.append((upsert, f"{status} {kind}: {reason}"))

    def _routed(self, index: Index, upserts: list[Upsert]) -> list[DeliveryRefused]:
        """Return the errors for rows that are in another shard than their key leads to."""
        documents = [
            {"_id": upsert.key} | ({"routing": upsert.key} if index.is_alias else {})
            for upsert in upserts
        ]
        question = f"/{quote(index.name, safe='')}/_mget?_source=false&filter_path={IN_A_SHARD}"
        found = self._asked("POST", question, as_json({"docs": documents}).encode()).get(
            "docs", []
        )
        unread = next((one["error"] for one in found if "error" in one), None)
        if unread is not None or len(found) != len(upserts):
            raise NotTaken(f"whether all rows are in their shards is not known: {unread or found}")
        text = "an ingest pipeline of the index has given it a routing, and so to another shard"
        return [
            refused(upsert.key, text, PIPELINE)
            for upsert, one in zip(upserts, found, strict=True)
            if one.get("_version", -1) < version_number(upsert, self.by_column)
        ]

    def _one_index(self) -> Index:
        """Return the one index that rows are compared in: a key has a version in each.

        :raises ConfigurationError: :attr:`index` leads to several, or to others later.
        """
        # Not /_alias/…, which asks the indices of others, too
        behind = self._asked("GET", f"/{self._path}/_alias/{self._path}", missing={})
        return one_index(self.index, behind, self._settings())

    def _settings(self) -> dict[str, Any]:
        """Return by index what is asked of each that the name leads to."""
        path = f"/{self._path}/_settings/{ASKED_OF_AN_INDEX}?flat_settings=true"
        return self._asked("GET", path, missing={})

    def _must_keep_versions_of_deletes(self, seconds: int) -> None:
        """Make the index keep versions of deletes; a missing one is made, as templates say."""
        body = as_json({"index.gc_deletes": f"{seconds}s"}).encode()
        found = self._settings()
        if not found:
            self._asked("PUT", f"/{self._path}", b'{"settings":%s}' % body)
            log.debug("made the index %s, which keeps versions of deletes for %d s",
                      self.index, seconds)  # fmt: skip
        for name, retention in forgetful(found, seconds).items():
            self._asked("PUT", f"/{quote(name, safe='')}/_settings", body)
            log.debug("index %s keeps versions of deletes for %d s, no longer for %s",
                      name, seconds, retention)  # fmt: skip

    def _asked(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        missing: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Send a request, and return the answer. :param missing: the answer if there is no such
        thing (404); None: that is an error.

        :raises DeliveryRefused: it refuses the request as a whole, and would again.
        :raises Exception: it does not answer, or not now.
        """
        headers = self._headers()
        if body is not None:
            kind = "x-ndjson" if "/_bulk?" in path else "json"
            headers["Content-Type"] = f"application/{kind}"
        pool, library = self._connected(), client_library()
        base = urlsplit(self.url).path.rstrip("/")

        def ask() -> Any:
            try:
                return pool.urlopen(
                    method, base + path, body=body, headers=headers, retries=False,
                    redirect=False,
                )  # fmt: skip
            except library.exceptions.ReadTimeoutError as late:
                raise TooSlow(f"no answer within {_TIMEOUT_SECONDS:g} s: {late}") from late

        try:
            answer = self._in_time(ask, len(body or b""))
        except TimeoutError as late:
            raise TooSlow(str(late)) from late
        where = f"{method} {path.partition('?')[0]}"
        try:
            document = json.loads(answer.data)
        except ValueError:
            document = answer.data[:200].decode(errors="replace")
        if answer.status < 300:
            if not isinstance(document, dict):
                raise NotTaken(f"{where} is not answered as OpenSearch does: {document}")
            return document
        kind, reason, its_own = spoken(document)
        if answer.status == 404 and missing is not None and says_missing(kind, reason):
            return missing
        raise refusal(self.index, where, answer.status, kind, reason, its_own=its_own)

    def _headers(self) -> dict[str, str]:
        if (at := urlsplit(self.url)).username is None:
            return {}
        # In UTF-8, as servers read it. urllib3 takes Latin-1, and its error repeats the password.
        login = f"{unquote(at.username)}:{unquote(at.password or '')}".encode()
        return {"authorization": f"Basic {base64.b64encode(login).decode()}"}

    @property
    def _path(self) -> str:
        return quote(self.index, safe="")

    def _connected(self) -> urllib3.HTTPConnectionPool:
        library = client_library()
        if self._pool is None:
            at = urlsplit(self.url)
            more: dict[str, Any] = {"timeout": _TIMEOUT_SECONDS, "maxsize": 1}
            kind, port = library.HTTPConnectionPool, 80
            if at.scheme == "https":
                more["ssl_context"] = ssl.create_default_context()
                kind, port = library.HTTPSConnectionPool, 443
            self._pool = kind(at.hostname, at.port or port, **more)
        return self._pool


class _Request(NamedTuple):
    upserts: list[Upsert]
    body: bytes


_NEWER = "it has a newer version than the ledger can have given out ({})"


def client_library() -> Any:
    """Import urllib3. :raises ConfigurationError: it is not installed."""
    return library("writing to OpenSearch needs an HTTP client", "opensearch", "urllib3")
