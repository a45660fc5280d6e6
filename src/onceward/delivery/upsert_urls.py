"""Which server the ``url`` of an :class:`onceward.UpsertSink` names, and what else its writer has
to be told.

No error repeats the URL: it may hold a password. Nothing is connected.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs, urlsplit

from onceward.delivery import opensearch_writer, redis_writer
from onceward.delivery.opensearch_writer import OpenSearchWriter
from onceward.delivery.redis_writer import TOMBSTONES, RedisWriter
from onceward.delivery.upsert_writer import UpsertWriter
from onceward.errors import ConfigurationError, ContradictoryOptions

_REDIS = ("redis://", "rediss://", "unix://")
_OPENSEARCH = ("http://", "https://")
_OTHER_BYTES = {"charset", "decode_responses", "encoding", "encoding_errors", "errors"}
"""Words in a URL, of Redis' client library, by which it writes or reads other bytes."""
_NOT_IN_AN_INDEX = frozenset('\\/*?"<>| ,#:')
_INDEX_BYTES = 255


def writer_at(
    url: Any, *, prefix: Any, index: Any, tombstone_s: int, by_column: bool, deletes: bool
) -> UpsertWriter:
    """Return the writer for an address.

    :raises ConfigurationError: it is none, or what it needs is missing or wrong.
    """
    if isinstance(url, str) and url.startswith(_REDIS):
        if index is not None:
            raise ContradictoryOptions(
                "index= is for OpenSearch, and url= leads to Redis",
                next_step="leave it out, and pass prefix=",
            )
        return _redis(url, prefix, tombstone_s)
    if isinstance(url, str) and url.startswith(_OPENSEARCH):
        if prefix is not None:
            raise ContradictoryOptions(
                "prefix= is for keys in Redis, and url= leads to OpenSearch",
                next_step="leave it out, and pass index=",
            )
        return _opensearch(url, index, tombstone_s if deletes else None, by_column)
    raise ConfigurationError(
        "UpsertSink(url=…) is no address of a Redis or OpenSearch server",
        next_step="pass redis://user:password@host:port/database, "
        "https://user:password@host:port, or write= for another target",
    )


def _redis(url: str, prefix: Any, tombstone_s: int) -> RedisWriter:
    if not isinstance(prefix, str) or not prefix or prefix.startswith(TOMBSTONES):
        raise ConfigurationError(
            f"prefix={prefix!r} does not set this sink's keys apart",
            next_step='pass what all of them begin with, such as prefix="customer:"',
        )
    try:
        redis_writer.client_library().Redis.from_url(url)
    except ValueError:
        raise _unreadable() from None
    if words := sorted(_OTHER_BYTES & set(parse_qs(urlsplit(url).query, keep_blank_values=True))):
        raise ConfigurationError(
            f"UpsertSink(url=…) has {', '.join(words)} in it: keys, values and versions would be "
            "others than the sink has said",
            next_step="leave that out of the URL: texts are written in UTF-8",
        )
    return RedisWriter(url, prefix, tombstone_s)


def _opensearch(
    url: str, index: Any, tombstone_s: int | None, by_column: bool
) -> OpenSearchWriter:
    if not isinstance(index, str) or not _names_one_index(index):
        raise ConfigurationError(
            f"index={index!r} is no name of an index",
            next_step='pass one in small letters, such as index="customers", or that of an alias',
        )
    try:
        at = urlsplit(url)
        known = bool(at.hostname) and at.port != 0
    except ValueError:
        known = False
    if not known:
        raise _unreadable()
    if at.query or at.fragment:
        raise ConfigurationError(
            "UpsertSink(url=…) has ? or # in it, and an address of OpenSearch has no options",
            next_step="leave them out; in a password write them as %3F and %23",
        )
    opensearch_writer.client_library()
    return OpenSearchWriter(url, index, by_column, tombstone_s)


def _names_one_index(name: str) -> bool:
    """Return whether it names one index, by the server's rules (OpenSearch, *Create index*, "Index
    naming restrictions")."""
    return (
        bool(name)
        and name == name.lower()
        and not name.startswith(("_", "-", "+"))
        and name not in (".", "..")
        and not _NOT_IN_AN_INDEX & set(name)
        and len(name.encode()) <= _INDEX_BYTES
    )


def _unreadable() -> ConfigurationError:
    return ConfigurationError(
        "UpsertSink(url=…) cannot be read as an address",
        next_step="write special characters as %25 and the like",
    )
