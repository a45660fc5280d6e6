"""What OpenSearch's answers mean: what may pass, and what it will never take, also before it is
asked; and how it numbers versions. Pure; called by :mod:`opensearch_writer`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from onceward.delivery.upserts import Upsert, place_called, refused
from onceward.errors import (
    AccessDenied,
    AuthenticationFailed,
    ConfigurationError,
    DeliveryRefused,
    PreparedDataLost,
    ServerMisconfigured,
    TableMissing,
)
from onceward.spark.types import types_inside

_PAYLOAD_TOO_LARGE = 413
# A proxy has waited as long as it does.
_NOT_IN_TIME = frozenset({408, 504})
# What the server has against a document or a request itself. Any other kind may pass, whatever its
# status: 400 is also the answer of a closed index and of a cluster that has no shard left.
_NEVER = frozenset(
    {
        "action_request_validation_exception", "document_parsing_exception",
        "illegal_argument_exception", "invalid_index_name_exception", "json_parse_exception",
        "mapper_exception", "mapper_parsing_exception", "parse_exception", "parsing_exception",
        "routing_missing_exception", "settings_exception", "x_content_parse_exception",
    }
)  # fmt: skip
MISSING = "index_not_found_exception"
OF_THE_INDEX = frozenset({MISSING, "security_exception"})
"""Said of each document, it is said of all."""
CONFLICT = "version_conflict_engine_exception"
_AT_CONFLICT = re.compile(r"current version \[(\d+)\] is higher than the one provided \[\d+\]\Z")
# and all from 500 on
_NOT_NOW = frozenset({408, 429})
# A full disk, or a cluster without a manager: for a time, though a server says 403 of the former.
_BLOCKED = frozenset({"cluster_block_exception", "index_create_block_exception"})
# Somebody writes the pipeline anew, by deleting it first; or changes what the index is set to take
# (index.mapping.total_fields.limit and its like), as the mapping of one that is strict; or moves
# an alias by two calls, between which it leads to two (IndexNameExpressionResolver). Or a model
# that a processor of the pipeline asks, or a field was trained with, is not deployed yet on nodes
# that were restarted (TransportPredictionTaskAction, MLTaskDispatcher of ml-commons; ModelUtil of
# k-NN).
# Where a reason may quote a document, only its end is compared, which is the server's.
_MAY_PASS = re.compile(
    r"pipeline with id \[.*\] does not exist|Limit of .* has been exceeded.*|Model not ready.*"
    r"|No eligible node found to execute this request.*|no write index is defined for alias .*"
    r"|(?:.*: )?Model ID '[^']*' is not created\.",
    re.DOTALL,
)
# A dot parts an object and its field
_ODD_NAMES = r"(?s)\s*|\..*|.*\.|.*\.\..*"
_ASK = (
    "see what the server wants, and start the query again: it begins with this chunk, and has "
    "skipped nothing"
)

_DURATION = re.compile(r"(\d+)(nanos|micros|ms|s|m|h|d)")
_UNITS = {"nanos": 1e-9, "micros": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "h": 3_600, "d": 86_400}
MAPPING = (
    "let the index take such a document (change its mapping, with ignore_malformed for the field, "
    "say, or the ingest pipeline that it names; one that requires _routing has to be made anew, "
    "without, and an alias without routing), and start the query again: it begins with this "
    "chunk, and has skipped nothing"
)
PIPELINE = (
    "let the pipeline keep each document with its _index and its _id, and set no _routing, or "
    "take it off the index (index.default_pipeline, index.final_pipeline); remove what it has "
    "written elsewhere, and start the query again: it begins with this chunk, and has skipped "
    "nothing"
)

SEQUENCE_BITS, ROW_BITS = 32, 31
"""Of a version that is made of the ledger's numbers: a batch a second for 136 years, 2,147,483,648
rows in each. Batches count from 1 there: no version is as small as those of a server's own.
"""

# For as long the server waits for a missing shard, and then says so (default 1m: too long).
ANSWER = "timeout=20s&filter_path=errors," + ",".join(
    f"items.*.{name}" for name in ("status", "error", "result", "_index", "_id")
)
IN_A_SHARD = "docs._id,docs._version,docs.error"
# What every index has; for how long it keeps versions of deletes; what one has whose alias a
# policy moves on (OpenSearch's ISM, Elasticsearch's ILM); and what says whether a key may be in
# several of its shards.
_ROLLED = "plugins.index_state_management.rollover_alias", "lifecycle.rollover_alias"
_PIPELINES = "default_pipeline", "final_pipeline"
_ASKED = "uuid", "history.uuid", "number_of_shards", "gc_deletes", *_ROLLED, *_PIPELINES
ASKED_OF_AN_INDEX = ",".join(f"index.{name}" for name in _ASKED)


class NotTaken(Exception):
    """Not now. It is asked again."""


class TooLarge(NotTaken):
    """A request is larger than the server, or a proxy before it, takes."""


class TooSlow(NotTaken):
    """There is no answer in the time that one may take."""


class Index(NamedTuple):
    """The one that is written to. ``uuid`` None: it is not there yet. ``may_route``: an ingest
    pipeline may give a key to another of its shards, where it would be a second time.
    ``history``: another one once it was restored from a snapshot."""

    name: str
    uuid: str | None
    is_alias: bool
    may_route: bool
    history: str | None = None


def setting(found: Mapping[str, Any], name: str) -> dict[str, str | None]:
    """Return ``index.<name>`` of each index that is found."""
    return {index: one.get("settings", {}).get(f"index.{name}") for index, one in found.items()}


def may_route(found: Mapping[str, Any], index: str) -> bool:
    """Return whether an ingest pipeline of the index, which has shards, may set ``_routing``."""
    shards = setting(found, "number_of_shards").get(index)
    pipelines = {setting(found, name).get(index) for name in _PIPELINES}
    return shards not in (None, "1") and not pipelines <= {None, "_none"}


def forgetful(found: Mapping[str, Any], seconds: int | None) -> dict[str, str]:
    """Return for how long each index keeps versions of deletes that does so for less than
    ``seconds``. None: nothing is deleted."""
    kept = {index: said or "60s" for index, said in setting(found, "gc_deletes").items()}
    return {index: said for index, said in kept.items() if parse_seconds(said) < (seconds or 0)}


def one_index(name: str, behind: Mapping[str, Any], found: Mapping[str, Any]) -> Index:
    """Return the one index that ``name`` leads to.

    :param behind: aliases of that name, by index.
    :param found: settings, by index.
    :raises ConfigurationError: there are several, or another one from time to time.
    """
    names = sorted({*behind, *found})
    aliases = [one.get("aliases", {}).get(name, {}) for one in behind.values()]
    policies = {value for each in _ROLLED for value in setting(found, each).values()}
    is_rolled = any("is_write_index" in alias for alias in aliases) or name in policies
    own = f", index={names[-1]!r} say" if names and names[-1][0] != "." else ""
    if len(names) > 1 or is_rolled or (names and not behind and names != [name]):
        raise ConfigurationError(
            f"index={name!r} of OpenSearch leads to {', '.join(names)}, and may lead to "
            "another index later (a rollover): a key that is written again would be there "
            "twice, and what is deleted would come back",
            next_step=f"for a new pipeline, pass an index of its own{own}. Where a batch is "
            "decided already, let the name lead to one index (take a rollover policy off it, "
            "add the alias anew without is_write_index; of a data stream that this sink has "
            "made, by a template that matches its name, remove both), and start the query again",
            details={"index": name, "leads_to": names},
        )
    if any("index_routing" in alias for alias in aliases):
        raise ConfigurationError(
            f"index={name!r} of OpenSearch is an alias with a routing: a key has a "
            "version in each shard, so with another routing it would be there twice",
            next_step="add the alias anew without routing, and start the query again; or, "
            "for a new pipeline, pass an index of its own",
            details={"index": name, "leads_to": names},
        )
    there = names[0] if names else name
    uuid = setting(found, "uuid").get(there)
    history = setting(found, "history.uuid").get(there)
    return Index(there, uuid, there != name, may_route(found, there), history)


def written_to(called: str, then: Mapping[str, Any] | None) -> Index | None:
    """Return the index that rows went to, by the ledger; None: :func:`place_called` says none."""
    known = place_called(called, then)
    return None if known is None else Index(**{name: known[name] for name in Index._fields})


def lost_error(called: str, name: str) -> PreparedDataLost:
    return PreparedDataLost(
        f"the index {name} of OpenSearch, which the pipeline has written to, was deleted, and "
        f"what is called {called} now, if anything, is another one: restored from a snapshot it "
        "lacks the rows delivered since, made anew all of them",
        next_step=f"restore {name} if it is not, and write what it lacks anew under another "
        "pipeline_id, from the source's beginning if need be; to go on with newer rows, or where "
        'it has all of them (it has moved), start once with resume="skip_missing"',
        details={"index": called},
    )


def misled_error(error: ConfigurationError) -> ServerMisconfigured:
    """Return the error for a name that led to one index, and for too long to several."""
    return ServerMisconfigured(error.message, next_step=error.next_step, details=error.details)


def says_missing(kind: str, reason: str) -> bool:
    """Return whether a 404 is the server's word that there is no such index or alias, and not that
    of a gateway before it, which may have an "error", too."""
    return kind == MISSING or (kind == "error" and reason.startswith("alias ["))


def nowhere_error(alias: str, seconds: float) -> TableMissing:
    return TableMissing(
        f"the alias {alias} leads nowhere for {seconds:g} s: its index was deleted, or nobody has "
        "added it to another",
        next_step=f"add {alias} to its index again, restored if it was deleted; the query then "
        "goes on",
        details={"index": alias},
    )


def refusal(
    index: str, where: str, status: int, kind: str, reason: str, *, its_own: bool
) -> Exception:
    """Return what a refusal of a request as a whole means.

    Its rows are judged one by one, so what is said of all of them is about the request, the login
    or the index; or it is the word of a proxy before the server.
    """
    what = f"OpenSearch refuses {where}: {status} {kind}: {reason}"
    details = {"status": status}
    if status == 401:
        return AuthenticationFailed(
            what,
            next_step="pass the login that the server wants in url= (http://user:password@…)",
            details=details,
        )
    if its_own and status == 403 and kind not in _BLOCKED:
        return AccessDenied(
            what,
            next_step=f"grant the login what docs/how-to/upsert.md lists, on {index}",
            details=details,
        )
    if its_own and status == 404 and says_missing(kind, reason):
        return TableMissing(
            what,
            next_step=f"create {index}, or let the server create it by itself",
            details=details,
        )
    if its_own and never_passes(status, kind, reason):
        return DeliveryRefused(what, next_step=_ASK, details=details)
    later = (
        TooLarge if status == _PAYLOAD_TOO_LARGE
        else TooSlow if status in _NOT_IN_TIME
        else NotTaken
    )  # fmt: skip
    return later(f"{where} is not answered now: {status} {kind}: {reason}")


def never_passes(status: int, kind: str, reason: str) -> bool:
    """Return whether it is about the document or request itself, and would be said again."""
    if status >= 500 or status in _NOT_NOW or _MAY_PASS.fullmatch(reason):
        return False
    return kind in _NEVER


def error_in(error: Any) -> tuple[str, str]:
    """Return an error's kind and reason, with the reason behind it, which has the field."""
    if not isinstance(error, dict):
        return "error", str(error)
    reason = str(error.get("reason"))
    behind = error.get("caused_by")
    if isinstance(behind, dict) and behind.get("reason"):
        reason += f": {behind['reason']}"
    return str(error.get("type")), reason


def spoken(document: Any) -> tuple[str, str, bool]:
    """Return kind and reason of a refusal, and whether it is the server's own word, and not that
    of a gateway before it. Amazon's service has a ``Message`` of its own where its policy denies a
    request.
    """
    if not isinstance(document, dict):
        return *error_in(document), False
    if "error" in document:
        return *error_in(document["error"]), True
    words = document.get("Message", document.get("message", document))
    return *error_in(str(words)), "Message" in document


def first_error(wrong: Sequence[DeliveryRefused]) -> DeliveryRefused:
    """Return the first error, with how many there are."""
    first = wrong[0]
    if len(wrong) == 1:
        return first
    keys = [error.details["key"] for error in wrong]
    return DeliveryRefused(
        f"{first.message}; and {len(wrong) - 1} more of the chunk cannot be, the next of key "
        f"{keys[1]!r}",
        next_step=first.next_step,
        details={"key": keys[0], "keys": keys[:100]},
    )


def elsewhere(answer: Mapping[str, Any], index: str | None, upsert: Upsert) -> str:
    """Return what has become of a row that is not in the index under its key; empty: it is.

    :param index: None: not known.
    """
    if upsert.row is None:
        return ""
    result, found, key = (str(answer.get(name)) for name in ("result", "_index", "_id"))
    if result not in ("created", "updated"):
        return f"an ingest pipeline of the index has left it out ({result})"
    if key != upsert.key or index not in (None, found):
        return f"an ingest pipeline of the index has written it to {found} as {key!r}"
    return ""


def parse_seconds(duration: str) -> float:
    """Parse a setting such as ``60s`` or ``7d``; 0: it is no duration (``-1``, ``0``)."""
    found = _DURATION.fullmatch(duration)
    return 0.0 if found is None else int(found[1]) * _UNITS[found[2]]


def version_number(upsert: Upsert, by_column: bool) -> int:
    """Return the version as one whole number, for the server: the user's, or of batch and row.

    :raises DeliveryRefused: a batch or row has too large a number.
    """
    users, sequence, row = map(int, upsert.version.split("."))
    if by_column:
        # below 2**63, as the server takes it: it comes out of a column of such numbers
        return users
    if sequence + 1 >> SEQUENCE_BITS or row >> ROW_BITS:
        raise refused(
            upsert.key,
            f"batch {sequence} of the ledger and row {row} of it do not fit into a version, which "
            f"has {SEQUENCE_BITS} and {ROW_BITS} bits for them",
            "begin anew under another pipeline_id and index=, with smaller batches if it is the "
            "row, or with version=",
        )
    return sequence + 1 << ROW_BITS | row


def is_news(upsert: Upsert, reason: str, by_column: bool) -> bool:
    """Return whether a newer row stands in the way.

    Of the user's versions any may be. A place behind our own batch is one that the ledger cannot
    have given out; an older copy finds such places, too, and is told that it is fenced. Should the
    server have other words one day, nothing is taken for delivered.
    """
    found = _AT_CONFLICT.search(reason)
    return by_column or (
        found is not None
        and int(found[1]) >> ROW_BITS <= version_number(upsert, by_column) >> ROW_BITS
    )


def why_no_documents(schema: StructType) -> str | None:
    """Return which field of a frame no document can have; None: there is none."""
    for struct in types_inside(schema):
        if not isinstance(struct, StructType):
            continue
        if odd := [name for name in struct.names if re.fullmatch(_ODD_NAMES, name)]:
            return f"a field {odd[0]!r}, a name that the server refuses"
    return None


def why_not_in_documents(values: pa.Array) -> str | None:
    """Return what of a column's values no document can have; None: there is nothing.

    A number with a point becomes a field of 32 bits where the server makes the mapping by itself,
    whatever the column's type, and no field of numbers takes others than finite ones.
    """
    for part in _parts(values):
        if pa.types.is_floating(part.type):
            finite = pc.is_finite(part.cast(pa.float32(), safe=False))
            if not pc.all(finite, min_count=0).as_py():
                return (
                    "a number that is none (NaN, Infinity), or beyond ±3.4e38, which OpenSearch "
                    "does not take by a mapping of its own"
                )
        is_object = pa.types.is_map(part.type) and _is_text(part.type.key_type)
        if (
            is_object
            and pc.any(pc.match_substring_regex(part.keys, f"^(?:{_ODD_NAMES})$")).as_py()
        ):
            return "a map with a key that is no name of a field"
    return None


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _parts(array: pa.Array) -> Iterator[pa.Array]:
    """Yield ``array``, and all arrays in it, however deep."""
    yield array
    inside: list[pa.Array] = []
    if pa.types.is_map(array.type):
        inside = [array.keys, array.items]
    elif pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        inside = [array.flatten()]
    elif pa.types.is_struct(array.type):
        inside = list(array.flatten())
    for one in inside:
        yield from _parts(one)
