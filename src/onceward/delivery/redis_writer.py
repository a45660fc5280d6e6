"""Writes to Redis: a hash a row, replaced whole, and never by an older version. Driver only.

Compare and replace are one script, which the server runs as one step (Redis documentation,
*Scripting with Lua*: "atomic execution"). Versions are compared as texts: a Lua number is a
double, which holds 53 bits. A row that is deleted leaves a tombstone with its mark, under a name
of its own so that readers find nothing.

A server that dies within the script may have kept a part of it. So a row's new fields come before
the old ones go, and a tombstone comes before its row goes and goes after the row has come: no part
loses a row that was there, or brings an older one back. Where both are there the newer one counts,
and the same write, repeated, does all of it again.

What Redis itself forgets (a crash with ``appendfsync everysec``, a replica that is promoted and
had not all of it, an eviction) is lost here, too: the ledger has counted it. A server that has
forgotten all is told by a key of the sink's own, whose value the ledger has.
"""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from onceward import surroundings
from onceward.delivery.upserts import (
    MOVE,
    PLACE_LENGTH,
    USERS_LENGTH,
    VERSION_FIELD,
    VERSION_LENGTH,
    Upsert,
    UpsertWriter,
    place_called,
    refused,
    text,
)
from onceward.errors import (
    AccessDenied,
    AuthenticationFailed,
    PreparedDataLost,
    ServerMisconfigured,
)
from onceward.libraries import library

if TYPE_CHECKING:
    import redis

log = logging.getLogger(__name__)

TOMBSTONES = "onceward:deleted:"
PLACES = "onceward:place:"
"""And the prefix: a key with a value that no other server has."""
_TIMEOUT_SECONDS = 30.0
# Fields and values: Lua's stack takes 8,000 (LUAI_MAXCSTACK)
_MOST_UNPACKED = 2_000

# KEYS: the row, its tombstone. ARGV: version, attempt, what it counts by, the tombstone's
# milliseconds where the row is deleted (else empty), then fields and values. Answers what became
# of it, and what stood in the way. What replaces what is Upsert.replaces(), in Lua.
_SCRIPT = f"""
local kind = redis.call('TYPE', KEYS[1]).ok
if kind ~= 'none' and kind ~= 'hash' then return {{'other type', kind}} end
local stored = redis.pcall('GET', KEYS[2])
if type(stored) == 'table' then
  if not string.find(stored.err, 'WRONGTYPE') then return stored end
  return {{'other tombstone', redis.call('TYPE', KEYS[2]).ok}}
end
if kind == 'hash' then
  local of_row = redis.call('HGET', KEYS[1], '{VERSION_FIELD}')
  if not of_row then return {{'no version', ''}} end
  if not stored
    or string.sub(of_row, 1, {VERSION_LENGTH}) >= string.sub(stored, 1, {VERSION_LENGTH}) then
    stored = of_row
  end
end
if stored then
  local version, attempt, counted_by = string.match(stored, '^(%S+) (%S+) (.+)$')
  if not version or #version ~= {VERSION_LENGTH} then return {{'refused', stored}} end
  if counted_by ~= ARGV[3] then return {{'refused', stored}} end
  if string.sub(version, 1, {USERS_LENGTH}) == string.sub(ARGV[1], 1, {USERS_LENGTH}) then
    local place = string.sub(version, 1, {PLACE_LENGTH})
    local ours = string.sub(ARGV[1], 1, {PLACE_LENGTH})
    if place > ours then return {{'refused', stored}} end
    if place == ours and attempt ~= ARGV[2] then return {{'refused', stored}} end
  end
  if version > ARGV[1] then return {{'newer', ''}} end
end
local mark = ARGV[1] .. ' ' .. ARGV[2] .. ' ' .. ARGV[3]
if ARGV[4] ~= '' then
  redis.call('SET', KEYS[2], mark, 'PX', ARGV[4])
  redis.call('DEL', KEYS[1])
else
  local before = kind == 'hash' and redis.call('HKEYS', KEYS[1]) or {{}}
  local stays = {{['{VERSION_FIELD}'] = true}}
  for field = 5, #ARGV, 2 do stays[ARGV[field]] = true end
  redis.call('HSET', KEYS[1], '{VERSION_FIELD}', mark)
  for first = 5, #ARGV, {_MOST_UNPACKED} do
    local last = math.min(first + {_MOST_UNPACKED} - 1, #ARGV)
    redis.call('HSET', KEYS[1], unpack(ARGV, first, last))
  end
  for _, field in ipairs(before) do
    if not stays[field] then redis.call('HDEL', KEYS[1], field) end
  end
  redis.call('PERSIST', KEYS[1])
  redis.call('DEL', KEYS[2])
end
return {{'written', ''}}
"""

# Each command of the script, so that it writes nothing: the key is nobody's, and what would write
# to it is wrong in a way that the server sees behind the login's rights.
_DRY_SCRIPT = """
local row, tombstone, place = KEYS[1], KEYS[2], KEYS[3]
for _, call in ipairs({
  {'TYPE', row}, {'TYPE', tombstone}, {'GET', tombstone}, {'HGET', row, 'f'}, {'HKEYS', row},
  {'SET', tombstone, '', 'neither'}, {'HSET', row, 'f', '', 'odd'}, {'HDEL', row, 'f'},
  {'PERSIST', row}, {'DEL', row}, {'DEL', tombstone}, {'GET', place}, {'SET', place, '', 'neither'}
}) do
  local answer = redis.pcall(unpack(call))
  local text = type(answer) == 'table' and answer.err or ''
  if string.find(text, 'NOPERM') or string.find(text, 'ACL failure in script')
      or string.find(text, 'user executing the script')
      or string.find(text, 'Unknown Redis command') then
    return redis.error_reply('NOPERM ' .. call[1] .. ': ' .. text)
  end
end
return 'OK'
"""
_DENIED = (
    "ACL failure in script", "user executing the script", "unknown command",
    "Unknown Redis command",
)  # fmt: skip
"""What a server says where the login has no right to what the script does, or a service has taken
a command away.
"""
_IN_A_PIPELINE = "of pipeline caused error: "
"""Ends what redis-py puts before the server's words: the command, with the row's key and values."""
_OF_A_CLUSTER = re.compile(r"(?:CROSSSLOT|MOVED) ")
"""What a cluster says that does not tell that it is one: a proxy's, or a service's."""


@dataclass
class RedisWriter(UpsertWriter):
    """Of one server, under one prefix.

    :param url: as ``redis.Redis.from_url`` takes it.
    :param prefix: of all keys.
    :param tombstone_s: how long the version of a deleted row is kept.
    """

    reserved: ClassVar[frozenset[str]] = frozenset({VERSION_FIELD})
    url: str = field(repr=False)
    prefix: str
    tombstone_s: int
    _client: redis.Redis | None = field(default=None, init=False, repr=False, compare=False)
    _script: str = field(default="", init=False, repr=False, compare=False)
    _is_warned: bool = field(default=False, init=False, repr=False, compare=False)
    _then: str | None = field(default=None, init=False, repr=False, compare=False)
    """What the server had under :data:`PLACES`, also in earlier runs, as far as known."""

    def __call__(self, upserts: Iterable[Upsert]) -> None:
        upserts = list(upserts)
        if not upserts:
            return
        with self._naming_refusals():
            client = self._in_time(self._connected)
            if self._then is None:
                fresh = surroundings.random_bytes(16).hex()
                self._in_time(lambda: client.set(self._place_key, fresh, nx=True))
                found = self._in_time(lambda: client.get(self._place_key))
                self._then = _as_text(found) or None
        pipe, sent_bytes = client.pipeline(transaction=False), 0
        pipe.get(self._place_key)
        for upsert in upserts:
            key = self.prefix + upsert.key
            deleted = "" if upsert.row is not None else str(1000 * self.tombstone_s)
            arguments = [
                upsert.version,
                upsert.attempt,
                upsert.counted_by,
                deleted,
                *fields(upsert.row),
            ]
            pipe.evalsha(self._script, 2, key, TOMBSTONES + key, *arguments)
            sent_bytes += sum(map(len, arguments))
        with self._naming_refusals():
            place, *answers = self._in_time(pipe.execute, sent_bytes)
        self._must_have(place)
        self._must_be_written(upserts, answers)

    def _must_have(self, place: Any) -> None:
        """Check what the server has under :data:`PLACES`: an empty one has nothing."""
        if self._then not in (None, _as_text(place)):
            raise PreparedDataLost(
                f"the Redis server has lost what was written under prefix={self.prefix!r}, as "
                "after FLUSHALL, a crash without appendonly, with another volume, or by evictions "
                f"(maxmemory-policy): the key {self._place_key} is gone, or another",
                next_step="restore the server's data, and write what it lacks anew under another "
                "pipeline_id, from the source's beginning if need be; to go on with newer rows, "
                'start once with resume="skip_missing"',
                details={"prefix": self.prefix},
            )

    def place(self) -> dict[str, Any] | None:
        return None if self._then is None else {"called": self.prefix, "id": self._then}

    @property
    def _place_key(self) -> str:
        return PLACES + self.prefix

    def check(self, then: Mapping[str, Any] | None) -> None:
        """Check that the server stands alone, and takes the login and what the script does; warn
        where it may forget what it has."""
        known = place_called(self.prefix, then)
        self._then = None if known is None else str(known["id"])
        with self._naming_refusals():
            client = self._in_time(self._connected)
            key = f"{self.prefix}{uuid.uuid4().hex}"
            script = self._in_time(lambda: client.script_load(_DRY_SCRIPT))
            self._in_time(
                lambda: client.evalsha(script, 3, key, TOMBSTONES + key, self._place_key)
            )
            if not self._is_warned:
                self._warn(self._in_time(client.info))
            found = self._in_time(lambda: client.get(self._place_key))
        self._must_have(found)

    def _warn(self, facts: dict[str, Any]) -> None:
        self._is_warned = True
        if not int(facts.get("aof_enabled", 1)):
            log.warning(
                "Redis has appendonly no: a crash loses what was delivered since its last "
                "snapshot, and the ledger has counted it. Set appendonly yes and appendfsync "
                "always (docs/how-to/upsert.md, Durability of Redis)"
            )
        policy = str(facts.get("maxmemory_policy", "noeviction"))
        if policy != "noeviction":
            log.warning(
                "Redis has maxmemory-policy %s: it drops rows or tombstones once its memory is "
                "full. Set maxmemory-policy noeviction",
                policy,
            )

    @contextmanager
    def _naming_refusals(self) -> Iterator[None]:
        """Give the connection up with whatever fails: it may lead to a server that has no script
        any more, or is the replica of another now.

        :raises AuthenticationFailed, AccessDenied: the server refuses the login, or its rights.
        :raises ServerMisconfigured: it is a cluster.
        """
        library = client_library().exceptions
        try:
            yield
        except library.AuthenticationError as error:
            self.close()
            raise AuthenticationFailed(
                f"Redis refuses the login: {error}",
                next_step="pass the login that the server wants in url= (redis://user:password@…)",
            ) from error
        except Exception as error:
            self.close()
            said = str(error).rpartition(_IN_A_PIPELINE)[2]
            of_cluster = (library.ClusterCrossSlotError, library.MovedError)
            if isinstance(error, of_cluster) or _OF_A_CLUSTER.match(said):
                raise _cluster_error(f": {error}") from error
            denied = (library.NoPermissionError, library.AuthorizationError)
            in_script = isinstance(error, library.ResponseError) and any(
                words in said for words in _DENIED
            )
            if isinstance(error, denied) or in_script:
                raise AccessDenied(
                    f"Redis refuses the login a command or a key: {error}",
                    next_step="grant the login what docs/how-to/upsert.md lists, or take a "
                    "service that has these commands",
                ) from error
            raise

    def _abandon(self) -> None:
        self._client, self._script = None, ""

    def close(self) -> None:
        """Close the client; the next call opens another."""
        client, self._client, self._script = self._client, None, ""
        if client is not None:
            client.close()

    def _must_be_written(self, upserts: Sequence[Upsert], answers: Sequence[Any]) -> None:
        for upsert, answer in zip(upserts, answers, strict=True):
            word, more = (part.decode(errors="replace") for part in answer)
            if word in ("written", "newer"):
                continue
            key = self.prefix + upsert.key
            if word == "refused":
                upsert._replace(key=key).replaces(more)  # raises
            raise refused(key, _WHY.get(word, word).format(more), MOVE)

    def _connected(self) -> redis.Redis:
        library = client_library()
        if self._client is None:
            self._client = library.Redis.from_url(
                self.url,
                # A row's writes are tried again by whoever calls us, and that is said in the log.
                socket_timeout=_TIMEOUT_SECONDS,
                socket_connect_timeout=_TIMEOUT_SECONDS,
                decode_responses=False,
            )
        if not self._script:
            if self._client.info("replication").get("role") == "slave":
                raise library.ReadOnlyError(
                    "the Redis server is a replica, which may not have been filled yet"
                )
            if int(self._client.info("cluster").get("cluster_enabled", 0)):
                raise _cluster_error()
            self._script = str(self._client.script_load(_SCRIPT))
        return self._client


def _cluster_error(words: str = "") -> ServerMisconfigured:
    return ServerMisconfigured(
        "the Redis server is part of a cluster, where a row and its tombstone may lie on different "
        f"nodes{words}",
        next_step="use a server that stands alone, or has replicas (of a managed service one with "
        "cluster mode disabled, and none that is serverless)",
    )


_WHY = {
    "other tombstone": "the key of its tombstone, " + TOMBSTONES + "…, holds a {}, not a string",
    "other type": "it holds a {}, not a hash",
    "no version": "it holds a hash that this sink has not written",
}


def fields(row: Any) -> list[str | bytes]:
    """Return ``row`` as fields and values of a hash; columns that are null have none."""
    given = [(name, value) for name, value in (row or {}).items() if value is not None]
    return [part for name, value in given for part in (name, text(value))]


def _as_text(value: Any) -> str:
    return "" if value is None else value.decode(errors="replace")


def client_library() -> Any:
    """Import redis-py. :raises ConfigurationError: it is not installed."""
    return library("writing to Redis needs its client", "redis", "redis")
