"""What an upsert sink is told of OpenSearch, and what it makes of a version and of an answer.
Nothing is connected.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
import urllib3

import onceward as ow
from onceward.delivery import opensearch_writer
from onceward.delivery.opensearch_answers import (
    ROW_BITS,
    SEQUENCE_BITS,
    Index,
    NotTaken,
    parse_seconds,
    version_number,
)
from onceward.delivery.opensearch_writer import OpenSearchWriter
from onceward.errors import (
    AccessDenied,
    AuthenticationFailed,
    ConfigurationError,
    DeliveryRefused,
    PreparedDataLost,
    RowRefused,
    ServerMisconfigured,
    TableMissing,
)
from support.errors import raises

UPSERTS: dict[str, Any] = {
    "url": "http://server:9200", "index": "people", "key": "id", "pipeline_id": "p",
    "ledger": ow.FolderLedger("/ledger"), "store": "/store",
}  # fmt: skip
GONE = {"error": {"type": "index_not_found_exception", "reason": "no such index"}, "status": 404}


def upsert(
    key: str = "k", users: int = 0, sequence: int = 8, row: int = 1, deleted: bool = False
) -> ow.delivery.Upsert:
    version = f"{users:019d}.{sequence:012d}.{row:012d}"
    return ow.delivery.Upsert(key, version, "a", "p", None if deleted else {"id": key})


# versions


def test_a_version_is_the_batch_and_then_the_row_in_it():
    rows = [(0, 0), (0, 1), (0, 2**ROW_BITS - 1), (1, 0), (2**SEQUENCE_BITS - 2, 2**ROW_BITS - 1)]
    numbers = [
        version_number(upsert(users=5, sequence=sequence, row=row), by_column=False)
        for sequence, row in rows
    ]
    assert numbers == sorted(set(numbers))
    assert (numbers[0], numbers[-1]) == (2**ROW_BITS, 2**63 - 1)


@pytest.mark.parametrize(("sequence", "row"), [(2**SEQUENCE_BITS - 1, 0), (0, 2**ROW_BITS)])
def test_a_place_in_the_ledger_that_does_not_fit_is_refused_by_name(sequence: int, row: int):
    with pytest.raises(DeliveryRefused, match=f"'k' .*batch {sequence} .*row {row} "):
        version_number(upsert(sequence=sequence, row=row), by_column=False)
    assert version_number(upsert(users=7, sequence=sequence, row=row), by_column=True) == 7


@pytest.mark.parametrize("users", [0, 2**63 - 1])
def test_the_users_version_is_taken_as_it_is(users: int):
    assert version_number(upsert(users=users), by_column=True) == users


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ("60s", 60),
        ("7d", 604_800),
        ("1500ms", 1.5),
        ("2m", 120),
        ("1h", 3_600),
        ("-1", 0),
        ("0", 0),
        ("", 0),
    ],
)
def test_a_setting_in_any_unit_is_understood(said: str, seconds: float):
    assert parse_seconds(said) == seconds


# what no document can have

MAP = pa.map_(pa.string(), pa.float64())


@pytest.mark.parametrize(
    ("kind", "taken", "refused"),
    [
        (pa.float64(), [1e38, -3.4e38, 5e-324, None], [math.nan, -math.inf, 3.5e38, -1e300]),
        (pa.float32(), [1.5, None], [math.nan, math.inf]),
        (pa.list_(pa.float64()), [[], None, [None, 1.5]], [[1.5, math.nan]]),
        (pa.struct([("x", pa.list_(pa.float64()))]), [{"x": [0.5]}, None], [{"x": [1e39]}]),
        (MAP, [[("a.b", 1), ("a.c", 2), ("ab", 3)], None], [[("a", 1e300)], [(".", 1)]]),
        (pa.list_(MAP), [[[("a", 1)], [("a.b", 2)]]], [[[], [("a", 1e300)]]]),
        (pa.string(), ["NaN", "1e300"], []),
        (pa.decimal128(38), [10**37], []),
    ],
)
def test_what_the_server_never_takes_is_refused_before_the_decision(
    kind: pa.DataType, taken: list[Any], refused: list[Any]
):
    """By a mapping that it makes itself a DOUBLE is of 32 bits."""
    columns = ow.UpsertSink(**UPSERTS).columns
    columns.storable(rows_of(kind, taken))
    for value in refused:
        with pytest.raises(RowRefused, match="'x'"):
            columns.storable(rows_of(kind, [*taken, value]))


def rows_of(kind: pa.DataType, values: list[Any]) -> pa.RecordBatch:
    keys = pa.array([f"{number}" for number in range(len(values))])
    return pa.RecordBatch.from_arrays([keys, pa.array(values, kind)], ["id", "x"])


# answers


def keys(body: bytes | None) -> list[str]:
    """Of the rows of a request."""
    lines = [json.loads(line) for line in (body or b"").splitlines()]
    headers = [line.get("index", line.get("delete")) for line in lines]
    return [header["_id"] for header in headers if isinstance(header, dict) and "_id" in header]


class Answering:
    """In the place of the client's pool: gives these answers, one after the other, and keeps what
    was asked.
    """

    def __init__(self, *answers: tuple[int, Any]) -> None:
        self.answers = list(answers)
        self.then: tuple[int, Any] = (200, {"people": {"settings": {"index.uuid": "u"}}})
        """The answer to whoever asks for the index behind all that."""
        self.index = "people"
        """Where rows go."""
        self.asked: list[tuple[str, str, bytes | None, dict[str, str]]] = []

    def placed(self, key: str, item: dict[str, Any]) -> dict[str, Any]:
        [(operation, said)] = item.items()
        return {operation: {"_index": self.index, "_id": key, "result": "created", **said}}

    def urlopen(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str], **_: Any
    ) -> Any:
        self.asked.append((method, path, body, headers))
        is_last = not self.answers and "/_settings/" in path
        status, said = self.then if is_last else self.answers.pop(0)
        if isinstance(said, Exception):
            raise said
        if isinstance(said, dict) and "items" in said:
            said = {**said, "items": [*map(self.placed, keys(body), said["items"])]}
        return SimpleNamespace(
            status=status, data=said if isinstance(said, bytes) else json.dumps(said).encode()
        )


def writer(
    *answers: tuple[int, Any], url: str = "http://here:9200", by_column: bool = False, **more: Any
) -> Any:
    made = OpenSearchWriter(url, "people", by_column, more.get("tombstone_s"))
    made._pool = Answering(*answers)  # type: ignore[assignment]
    if more.get("looked_at", True):
        made._then = made._found = Index("people", "u", False, False)
    return made


def items(*said: tuple[int, str | None]) -> tuple[int, Any]:
    found: list[dict[str, Any]] = []
    for status, error in said:
        kind, _, reason = (error or "").partition(": ")
        why = {"error": {"type": kind, "reason": reason or "why"}} if kind else {}
        found.append({"status": status, **why})
    return 200, {"errors": True, "items": [{"index": item} for item in found]}


def test_a_request_that_is_too_large_goes_in_halves():
    """413 is the word of a server or of a proxy before it. What comes later is no larger."""
    too_large, taken = (413, b""), items((201, None))
    made = writer(too_large, taken, taken)
    made([upsert("a"), upsert("b")])
    made._pool.answers = [taken, taken]
    made([upsert("c"), upsert("d")])
    bulk = [body for _, path, body, _ in made._pool.asked if "/_bulk" in path]
    assert [body.count(b"_id") for body in bulk] == [2, 1, 1, 1, 1]
    made._pool.answers = [too_large]
    with pytest.raises(NotTaken, match="key 'e' has"):
        made([upsert("e")])


def test_a_request_that_is_answered_too_late_goes_in_smaller_ones():
    """A server, or its ingest pipeline, may need time for each row; and one that stood still for a
    moment is sent more again.
    """
    rows = [upsert(chr(ord("a") + number)) for number in range(20)]
    late = (0, urllib3.exceptions.ReadTimeoutError(urllib3.HTTPConnectionPool("here"), "/", ""))
    sent = [2, 4, 8, 6]
    made = writer(late, *(items(*[(201, None)] * count) for count in sent))
    made(rows)
    bulk = [body for _, path, body, _ in made._pool.asked if "/_bulk" in path]
    assert [body.count(b"_id") for body in bulk] == [20, *sent]
    for number, tries in ((1, 1), (20_000, 4)):
        rows = [upsert(f"{row:05}") for row in range(number)]
        made._pool.asked.clear()
        made._pool.answers = [late] * 9
        with pytest.raises(NotTaken, match="no answer within 30 s"):
            made(rows)
        assert len(made._pool.asked) == tries, "a server that stands still is not waited for long"
        made._request_bytes = made._most_bytes


def test_what_goes_again_after_an_answer_that_dripped_is_the_same(
    monkeypatch: pytest.MonkeyPatch,
):
    """The routing is what an alias refuses that was given another one meanwhile."""
    made = writer(items((201, None)), items((201, None)))
    made._found, made._pool.index = Index("people-1", "u", True, False), "people-1"
    made._pool.then = (200, {"people-1": {"settings": {"index.uuid": "u"}}})
    in_time, pool, sent = made._in_time, made._pool, list[int]()

    def late_once(ask: Any, sent_bytes: int) -> Any:
        sent.append(sent_bytes)
        if len(sent) > 1:
            return in_time(ask, sent_bytes)
        made._abandon()
        made._pool = pool
        raise TimeoutError("120 s")

    monkeypatch.setattr(made, "_in_time", late_once)
    made([upsert("a"), upsert("b")])
    bulk = [body for _, path, body, _ in pool.asked if "/_bulk" in path]
    assert len(bulk) == 2
    assert [body.count(b'"routing"') for body in bulk] == [1, 1]


@pytest.mark.parametrize("status", [408, 504])
def test_a_proxy_that_waits_less_long_than_we_do_gets_smaller_requests(status: int):
    made = writer((status, b"<html>"), *(items(*[(201, None)] * count) for count in (1, 2, 4, 3)))
    made([upsert(chr(ord("a") + number)) for number in range(10)])
    bulk = [body for _, path, body, _ in made._pool.asked if "/_bulk" in path]
    assert [body.count(b"_id") for body in bulk] == [10, 1, 2, 4, 3]


def test_a_slow_server_takes_a_chunk_however_often_a_request_is_late():
    """Between late ones are some that are answered."""

    class Slow(Answering):
        def urlopen(self, method: str, path: str, body: bytes | None, **more: Any) -> Any:
            if "_bulk" in path:
                rows = len(keys(body))
                late = urllib3.exceptions.ReadTimeoutError(urllib3.HTTPConnectionPool("x"), "", "")
                self.answers = [(0, late) if rows > 30 else items(*[(201, None)] * rows)]
                self.taken += 0 if rows > 30 else rows
            return super().urlopen(method, path, body, **more)

        taken = 0

    made = writer()
    made._pool = Slow()
    made([upsert(f"{row:04}") for row in range(1_000)])
    assert made._pool.taken == 1_000


@pytest.mark.parametrize("is_made", [True, False])
def test_a_row_of_an_index_that_was_not_there_is_in_it_afterwards(is_made: bool):
    """A pipeline of its template may move it."""
    settings = (200, {"people": {"settings": {"index.uuid": "u"}}}) if is_made else (404, GONE)
    made = writer(items((201, None)), (404, GONE), settings, looked_at=False)
    made._found = Index("people", None, False, False)
    made._pool.index, made._pool.then = "people-of-today", settings
    with raises(DeliveryRefused, "has written it to people-of-today"):
        made([upsert("a")])


def test_an_index_that_is_deleted_again_at_once_has_no_pipeline_to_blame():
    made = writer(items((201, None)), (404, GONE), looked_at=False)
    made._found = Index("people", None, False, False)
    made._pool.then = (404, GONE)
    with pytest.raises(NotTaken, match="was deleted while rows were written"):
        made([upsert("a")])


PIPED = {"index.uuid": "u", "index.number_of_shards": "4", "index.default_pipeline": "by-city"}


@pytest.mark.parametrize("is_alias", [True, False])
@pytest.mark.parametrize(
    ("found", "stray"),
    [
        ({"_version": 0}, False),
        ({"_version": 1}, False),  # the next row, of another thread
        ({}, True),
        ({"_version": -1}, True),  # of before there was a pipeline
    ],
)
def test_a_row_that_an_ingest_pipeline_has_routed_elsewhere_is_not_counted(
    is_alias: bool, found: dict[str, Any], stray: bool
):
    """The key would be there once in each shard, and a delete would leave the others."""
    there = "people-1" if is_alias else "people"
    row = upsert("b")
    found = {name: version_number(row, False) + less for name, less in found.items()}
    answers = {"docs": [{"_id": "b", **found}]}
    made = writer(
        items((200, None), (200, None)), (200, {there: {"settings": PIPED}}), (200, answers)
    )
    made._found, made._pool.index = Index(there, "u", is_alias, False), there
    rows = [upsert("a", deleted=True), row]
    if stray:
        with pytest.raises(DeliveryRefused, match=r"'b' .*given it a routing"):
            made(rows)
    else:
        made(rows)
    [(path, asked)] = [(path, body) for _, path, body, _ in made._pool.asked if "_mget" in path]
    assert path.startswith(f"/{there}/_mget?")
    assert json.loads(asked) == {"docs": [{"_id": "b"} | ({"routing": "b"} if is_alias else {})]}


@pytest.mark.parametrize(
    "answer", [{"docs": [{"_id": "b", "error": {"type": "cluster_block_exception"}}]}, {}]
)
def test_a_row_that_cannot_be_looked_for_now_is_looked_for_again(answer: dict[str, Any]):
    made = writer(items((200, None)), (200, {"people": {"settings": PIPED}}), (200, answer))
    with pytest.raises(NotTaken, match="is not known"):
        made([upsert("b")])


@pytest.mark.parametrize(
    "settings",
    [
        PIPED | {"index.number_of_shards": "1"},
        PIPED | {"index.default_pipeline": "_none"},
        {name: value for name, value in PIPED.items() if "pipeline" not in name},
    ],
)
def test_nothing_is_looked_for_where_a_key_has_one_place(settings: dict[str, str]):
    made = writer(items((200, None)), (200, {"people": {"settings": settings}}))
    made([upsert("b")])
    assert not any("_mget" in path for _, path, _, _ in made._pool.asked)


def test_an_index_that_is_made_as_an_alias_after_the_check_is_taken():
    """By an administrator, say: nothing was there to compare with."""
    settings = (200, {"people-1": {"settings": {"index.uuid": "u"}}})
    alias = (200, {"people-1": {"aliases": {"people": {}}}})
    made = writer(items((201, None)), alias, settings, looked_at=False)
    made._found = Index("people", None, False, False)
    made._pool.index, made._pool.then = "people-1", settings
    made([upsert("a")])
    assert made._found.name == "people-1"


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ({"result": "noop", "_version": -3}, "pipeline of the index has left it out (noop)"),
        ({"_index": "elsewhere-1"}, "has written it to elsewhere-1 as 'b'"),
        ({"_id": "b-1"}, "has written it to people as 'b-1'"),
    ],
)
def test_a_row_that_an_ingest_pipeline_has_taken_elsewhere_is_not_counted(
    answer: dict[str, Any], says: str
):
    item = {"index": {"status": 200, **answer}}
    made = writer((200, {"errors": False, "items": [{"index": {"status": 201}}, item]}))
    with raises(DeliveryRefused, says, "default_pipeline"):
        made([upsert("a"), upsert("b")])


def test_rows_into_an_alias_say_the_routing_that_they_have_without_one():
    """An alias that gets one meanwhile would lead to another shard, and refuses them so."""
    found = [{"people-1": {"aliases": {"people": more}}} for more in ({}, {"index_routing": "2"})]
    settings = (200, {"people-1": {"settings": {"index.uuid": "u"}}})
    made = writer((200, found[0]), settings, items((201, None)), looked_at=False)
    made._pool.index, made._pool.then = "people-1", settings
    made([upsert("a")])
    header = json.loads(made._pool.asked[2][2].splitlines()[0])
    assert header["index"]["routing"] == header["index"]["_id"] == "a"
    with raises(ConfigurationError, "alias with a routing", "without routing"):
        writer((200, found[1]), settings, looked_at=False)([upsert("a")])


def test_each_row_is_a_line_that_says_its_version_and_one_that_says_what_it_is():
    made = writer(
        items((201, None), (404, None)), url="https://a%40b:c%3Ad@here/behind/", by_column=True
    )
    made([upsert("é", users=7), upsert("b", users=2**63 - 1, deleted=True)])
    method, path, body, headers = made._pool.asked[0]
    assert (method, path.partition("?")[0]) == ("POST", "/behind/people/_bulk")
    assert headers == {
        "authorization": "Basic YUBiOmM6ZA==",
        "Content-Type": "application/x-ndjson",
    }
    assert [json.loads(line) for line in body.splitlines()] == [
        {"index": {"_id": "é", "version": 7, "version_type": "external_gte"}},
        {"id": "é"},
        {"delete": {"_id": "b", "version": 2**63 - 1, "version_type": "external_gte"}},
    ]
    assert body.endswith(b"\n")


def test_nothing_is_asked_for_no_rows():
    made = writer()
    made([])
    assert made._pool.asked == []


@pytest.mark.parametrize(
    ("item", "error"),
    [
        ((429, "opensearch_rejected_execution_exception"), NotTaken),
        ((503, "unavailable_shards_exception"), NotTaken),
        ((500, "anything"), NotTaken),
        ((403, "cluster_block_exception"), NotTaken),
        ((403, "index_create_block_exception"), NotTaken),
        ((400, "mapper_parsing_exception"), DeliveryRefused),
        ((400, "routing_missing_exception"), DeliveryRefused),
        ((403, "security_exception"), AccessDenied),
        # Another look says what has become of it
        ((404, "index_not_found_exception"), NotTaken),
        # A closed index and a cluster without a shard left answer so, too
        ((400, "index_closed_exception"), NotTaken),
        ((400, "validation_exception"), NotTaken),
        # Whoever runs the index lets it take the field
        ((400, "strict_dynamic_mapping_exception"), NotTaken),
        (
            (400, "illegal_argument_exception: Limit of total fields [9] has been exceeded"),
            NotTaken,
        ),
        # An alias that is being moved, by one call after the other
        (
            (400, "illegal_argument_exception: no write index is defined for alias [rows]. The …"),
            NotTaken,
        ),
        # A model of the pipeline, on nodes that were restarted
        (
            (
                400,
                "illegal_argument_exception: Model not ready yet. Please deploy the model first.",
            ),
            NotTaken,
        ),
        ((400, "illegal_argument_exception: Model not ready: x"), NotTaken),
        (
            (
                400,
                "illegal_argument_exception: No eligible node found to execute this request. It's "
                "best practice to provision ML nodes to serve your models.",
            ),
            NotTaken,
        ),
        (
            (
                400,
                "mapper_parsing_exception: failed to parse field [vec] of type [knn_vector]: Model "
                "ID 'x' is not created.",
            ),
            NotTaken,
        ),
        # A document's words
        (
            (
                400,
                "mapper_parsing_exception: failed to parse field [n]. Preview of field's value: "
                "'Model ID 'x' is not created.': For input string",
            ),
            DeliveryRefused,
        ),
        ((400, "illegal_argument_exception"), DeliveryRefused),
        ((404, None), NotTaken),  # what is written cannot be missing
        ((409, "anything"), NotTaken),
        (
            (409, "version_conflict_engine_exception"),
            DeliveryRefused,
        ),  # and does not say which version there is
        ((302, None), NotTaken),
    ],
)
def test_no_row_that_is_not_written_is_counted_as_delivered(
    item: tuple[int, str | None], error: type[Exception]
):
    # What may pass is asked for once more, by itself
    again = [items(item)] if error is NotTaken else []
    with pytest.raises(error):
        writer(items((200, None), item), *again)([upsert("a"), upsert("b")])


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ((200, {"items": [{"index": {"status": 200}}]}), NotTaken),
        ((200, {"items": []}), NotTaken),
        ((200, {}), NotTaken),
        ((200, b"<html>"), NotTaken),
        ((502, b"<html>"), NotTaken),
        ((429, {"error": {"type": "circuit_breaking_exception"}}), NotTaken),
        # A proxy's words are not the server's, and the server's on the login or the index may
        # pass.
        ((404, b"default backend - 404"), NotTaken),
        ((403, b"<html>Forbidden</html>"), NotTaken),
        ((301, b""), NotTaken),
        ((403, {"message": "Forbidden"}), NotTaken),
        ((429, {"message": "Too Many Requests"}), NotTaken),
        # Amazon's service, of a request that no policy allows
        ((403, {"Message": "User: anonymous is not authorized to perform"}), AccessDenied),
        ((503, {"Message": "Service Unavailable"}), NotTaken),
        ((401, b"Unauthorized"), AuthenticationFailed),
        (
            (403, {"error": {"type": "security_exception", "reason": "no permissions"}}),
            AccessDenied,
        ),
        ((403, {"error": {"type": "cluster_block_exception"}}), NotTaken),
        ((403, {"error": {"type": "index_create_block_exception"}}), NotTaken),
        (
            (
                400,
                {
                    "error": {
                        "type": "illegal_argument_exception",
                        "reason": "pipeline with id [p] does not exist",
                    }
                },
            ),
            NotTaken,
        ),
        ((404, {"error": {"type": "index_not_found_exception"}}), TableMissing),
        (
            (400, {"error": {"type": "action_request_validation_exception"}}),
            DeliveryRefused,
        ),
        ((400, {"error": {"type": "validation_exception"}}), NotTaken),
    ],
)
def test_an_answer_that_is_not_about_every_row_is_none(
    answer: tuple[int, Any], error: type[Exception]
):
    with pytest.raises(error) as raised:
        writer(answer)([upsert("a"), upsert("b")])
    status, document = answer
    if isinstance(document, dict) and (words := document.get("Message", document.get("message"))):
        assert f"{status} error: {words}" in str(raised.value)


@pytest.mark.parametrize(
    ("behind", "settings", "index"),
    [
        ({}, {}, "people"),  # it is made by the first write
        ({}, {"people": {"settings": {"index.uuid": "u"}}}, "people"),
        (
            {"people-1": {"aliases": {"people": {}}}},
            {"people-1": {"settings": {"index.uuid": "u"}}},
            "people-1",
        ),
        ({"people-1": {"aliases": {"people": {"is_write_index": True}}}}, {"people-1": {}}, None),
        (
            {"people-1": {"aliases": {"people": {}}}, "people-2": {"aliases": {"people": {}}}},
            {"people-1": {}},
            None,
        ),
        (
            {"people-1": {"aliases": {"people": {}}}},
            {"people-1": {"settings": {"index.lifecycle.rollover_alias": "people"}}},
            None,
        ),
        ({}, {".ds-people-000001": {}}, None),  # a data stream
    ],
)
def test_rows_are_compared_within_one_index_for_ever(
    behind: Any, settings: Any, index: str | None
):
    """A rollover alias leads elsewhere from time to time: a key would be there twice, a deleted
    one would come back.
    """
    alias = (200, behind) if behind else (404, {"error": "alias [people] missing", "status": 404})
    found = (200, settings) if settings else (404, GONE)
    behind_it = () if settings else (alias, (200, {"people": {"settings": {"index.uuid": "u"}}}))
    made = writer(alias, found, items((201, None)), *behind_it, looked_at=False)
    made._pool.then = found
    made._pool.index = index
    if index is None:
        with raises(ConfigurationError) as refused:
            made([upsert("a")])
        assert "for a new pipeline, pass an index of its own" in refused.value.next_step
        assert [method for method, *_ in made._pool.asked] == ["GET", "GET"]
    else:
        made([upsert("a")])
        path = made._pool.asked[2][1]
        assert path.startswith("/people/_bulk")
        assert ("require_alias=true" in path) is (index != "people")
        assert made._found.name == index


SAME = {"people": {"settings": {"index.uuid": "u"}}}
ANOTHER = {"people": {"settings": {"index.uuid": "v"}}}
MOVED = {"people-2": {"settings": {"index.uuid": "v"}}}
ALIAS = {"people-2": {"aliases": {"people": {}}}}


def test_an_index_that_was_deleted_meanwhile_is_lost_though_the_server_has_made_another():
    made = writer(items((201, None)), (200, ANOTHER), (404, GONE), (200, ANOTHER))
    with raises(PreparedDataLost, index="people"):
        made([upsert("a")])


@pytest.mark.parametrize("now", [(404, GONE), (200, ANOTHER)])
def test_an_index_that_was_deleted_between_two_runs_is_lost_and_not_made_anew(
    now: tuple[int, object],
):
    before = writer(items((201, None)))
    before([upsert("a")])
    place = json.loads(json.dumps(before.place()))
    made = writer((404, GONE), now, looked_at=False)
    with pytest.raises(PreparedDataLost):
        made.check(place)
    made._pool.answers = [(404, GONE), now]
    with pytest.raises(PreparedDataLost):
        made([upsert("a")])
    assert [method for method, *_ in made._pool.asked] == ["GET"] * 4
    # Of another name, or where somebody says so, nothing is compared
    for then in ({**place, "called": "others"}, None):
        made._pool = Answering((404, GONE), (200, ANOTHER))
        made.check(then)
        assert made.place()["uuid"] == "v"
        made._found = None


def test_what_could_not_be_asked_at_a_start_is_compared_before_rows_go():
    before = writer(items((201, None)))
    before([upsert("a")])
    made = writer((503, b"away"), (404, GONE), (200, ANOTHER), looked_at=False)
    with pytest.raises(NotTaken):
        made.check(before.place())
    assert made.place() == before.place()
    with pytest.raises(PreparedDataLost):
        made([upsert("a")])


def test_a_gateways_404_is_no_word_on_an_index_that_was_written_to():
    page = {"timestamp": "2026", "status": 404, "error": "Not Found", "path": "/people"}
    made = writer((404, page), looked_at=False)
    made._then = Index("people", "u", False, False)
    with pytest.raises(NotTaken):
        made([upsert("a")])


def test_a_name_that_leads_to_several_indices_for_good_is_a_wrong_setting(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(opensearch_writer, "_NOWHERE_SECONDS", 0)
    two = {name: {"aliases": {"people": {}}} for name in ("people-1", "people-2")}
    made = writer((200, two), (200, {**SAME, **MOVED}), looked_at=False)
    made._then = Index("people-1", "u", True, False)
    with pytest.raises(ServerMisconfigured, match="people-1, people-2") as error:
        made([upsert("a")])
    assert "is_write_index" in error.value.next_step


def test_an_index_may_give_way_to_an_alias_of_its_name():
    """As it is written anew: into another one, which then has its name, too."""
    made = writer((200, ALIAS), (200, MOVED), looked_at=False)
    made._then = Index("people", "u", False, False)
    made.check(made.place())
    assert made.place()["name"] == "people-2"


def test_an_index_that_was_restored_from_a_snapshot_in_mid_run_lacks_rows():
    """It keeps its uuid, and has another history."""
    restored = {"people": {"settings": {"index.uuid": "u", "index.history.uuid": "h"}}}
    made = writer(items((201, None)), (200, restored), (404, GONE), (200, restored))
    with pytest.raises(PreparedDataLost):
        made([upsert("a")])


def test_rows_that_a_full_queue_has_refused_go_again_without_the_others():
    made = writer(items((201, None), (429, "rejected")), items((201, None)))
    made([upsert("a"), upsert("b")])
    sent = [body for method, _, body, _ in made._pool.asked if method == "POST"]
    assert [keys(body) for body in sent] == [["a", "b"], ["b"]]
    made = writer(items((429, "rejected"), (429, "rejected")))
    with pytest.raises(NotTaken, match="2 rows"):
        made([upsert("a"), upsert("b")])


def test_rows_are_written_again_where_an_alias_leads_to_now():
    made = writer(items((201, None)), (200, MOVED), (200, ALIAS), (200, MOVED))
    made._then = made._found = Index("people-1", "u", True, False)
    with pytest.raises(NotTaken):
        made([upsert("a")])
    made._pool = Answering((200, ALIAS), (200, MOVED), items((201, None)), (200, MOVED))
    made._pool.index = "people-2"
    made([upsert("a")])
    assert made._found.name == "people-2"


@pytest.mark.parametrize("now", [{"index.gc_deletes": "60s"}, {}])
def test_an_index_that_is_set_to_forget_deletes_is_set_right_behind_the_next_chunk(
    now: dict[str, str], caplog: pytest.LogCaptureFixture
):
    uuid = {"index.uuid": "u"}
    kept = (200, {"people": {"settings": {**uuid, "index.gc_deletes": "7d"}}})
    back = (200, {"people": {"settings": {**uuid, **now}}})
    alias = (404, GONE)
    made = writer(
        items((200, None)), kept, items((200, None)), back, alias, back, back, (200, {}), alias,
        tombstone_s=61,
    )  # fmt: skip
    made._pool.then = kept
    made([upsert("a")])
    assert made._found is not None
    made([upsert("a")])
    assert [
        (path, json.loads(body or "")) for method, path, body, _ in made._pool.asked
        if method == "PUT"
    ] == [("/people/_settings", {"index.gc_deletes": "61s"})]  # fmt: skip
    assert "gc_deletes of people was set back to 60s" in caplog.text


def test_an_alias_of_two_indices_may_be_on_its_way():
    two = {name: {"aliases": {"people": {}}} for name in ("people-1", "people-2")}
    both = {"people-1": SAME["people"], **MOVED}
    made = writer(items((201, None)), (200, both), (200, two), (200, both))
    made._then = made._found = Index("people-1", "u", True, False)
    with pytest.raises(NotTaken):
        made([upsert("a")])
    # Nor is it wrong a moment later
    made._pool = Answering((200, two), (200, both))
    with pytest.raises(NotTaken):
        made([upsert("a")])
    made._pool = Answering((200, ALIAS), (200, MOVED), items((201, None)), (200, MOVED))
    made._pool.index = "people-2"
    made([upsert("a")])


@pytest.mark.parametrize("tombstone_s", [None, 60])
def test_an_alias_that_leads_nowhere_for_a_moment_makes_no_index_of_its_name(
    tombstone_s: int | None, monkeypatch: pytest.MonkeyPatch
):
    made = writer(items((201, None)), (404, GONE), (404, GONE), (404, GONE))
    made.tombstone_s = tombstone_s
    made._then = made._found = Index("people-1", "u", True, False)
    with pytest.raises(NotTaken):
        made([upsert("a")])
    for _ in range(2):
        made._pool = Answering((404, GONE), (404, GONE))
        with pytest.raises(NotTaken):
            made([upsert("a")])
        assert [method for method, *_ in made._pool.asked] == ["GET", "GET"]
    since = made._astray_since
    # Back, and rows go to where it leads
    keeps = {"people-2": {"settings": {"index.gc_deletes": "1h"}}}
    looks = [(200, ALIAS), (200, MOVED)]
    more = [(200, keeps), *looks] if tombstone_s else []
    made._pool = Answering(*looks, *more, items((201, None)), (200, MOVED))
    made._pool.index = "people-2"
    made([upsert("a")])
    assert made._found.name == "people-2"
    # Or it stays away
    made._astray_since, made._found = since, None
    made._pool = Answering((404, GONE), (404, GONE))
    monkeypatch.setattr(opensearch_writer, "_NOWHERE_SECONDS", 0)
    with pytest.raises(TableMissing, match="leads nowhere"):
        made([upsert("a")])


def test_a_proxys_404_is_no_word_on_an_index():
    made = writer((404, b"<html>no backend</html>"), looked_at=False)
    with pytest.raises(NotTaken):
        made([upsert("a")])


def test_a_login_of_any_letters_is_sent_as_servers_read_it():
    made = writer(items((201, None)), url="http://etl:geheim%E2%82%AC@here")
    made([upsert("a")])
    assert made._pool.asked[0][3]["authorization"] == "Basic ZXRsOmdlaGVpbeKCrA=="


@pytest.mark.parametrize(
    ("by_column", "stored", "news"),
    [(True, 2**62, True), (False, 9 << ROW_BITS | 2, True), (False, 10 << ROW_BITS, False)],
)
def test_a_newer_row_is_news_where_the_ledger_can_have_given_it_out(
    by_column: bool, stored: int, news: bool
):
    reason = (
        f"[current version [1] is higher than the one provided [0]]: version conflict, "
        f"current version [{stored}] "
    )
    reason += "is higher than the one provided [1]"
    said = {
        "status": 409,
        "error": {"type": "version_conflict_engine_exception", "reason": reason},
    }
    made = writer((200, {"items": [{"index": said}]}), by_column=by_column)
    if news:
        made([upsert()])
    else:
        with raises(DeliveryRefused, key="k"):
            made([upsert()])


def test_a_refused_row_is_told_before_one_that_may_be_taken_later():
    with raises(DeliveryRefused, key="b"):
        writer(items((429, "busy"), (400, "mapper_parsing_exception")), items((429, "busy")))(
            [upsert("a"), upsert("b")]
        )


# settings


def sink(tmp_path: Path, **settings: Any) -> ow.UpsertSink:
    given = {
        "url": "http://u:secret@here:9200",
        "index": "people",
        "key": "id",
        "pipeline_id": "p",
        **settings,
    }
    return ow.UpsertSink(**given, ledger=ow.FolderLedger(tmp_path / "l"), store=tmp_path / "s")


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"index": None}, "index=None"),
        ({"index": ""}, "index=''"),
        ({"index": "People"}, "index='People'"),
        ({"index": "_people"}, "index="),
        ({"index": "a,b"}, "index="),
        ({"index": "a*"}, "index="),
        ({"index": ".."}, "index="),
        ({"index": "x" * 256}, "index="),
        ({"prefix": "people:"}, "prefix= .*OpenSearch"),
        ({"url": "redis://here/0"}, "index= .*Redis"),
        ({"url": "redis://here/0", "prefix": "p:"}, "index= .*Redis"),
        ({"url": None, "write": print}, "index="),
        ({"url": "http://"}, "url="),
        ({"url": "http://here:port"}, "url="),
        ({"url": "http://here:9200?pretty"}, "url="),
        ({"url": "http://u:se#cret@here"}, "url="),
        ({"url": "opensearch://here"}, "url="),
    ],
)
def test_wrong_settings_are_named_and_no_password(
    tmp_path: Path, wrong: dict[str, Any], named: str
):
    with pytest.raises(ConfigurationError, match=named) as caught:
        sink(tmp_path, **wrong)
    assert "secret" not in str(caught.value)


def test_the_password_is_told_to_nobody(tmp_path: Path):
    made = sink(tmp_path)
    assert "secret" not in f"{made!r} {made.deliver!r} {made.__getstate__()}"


def test_two_that_are_built_alike_are_one(tmp_path: Path):
    first = sink(tmp_path)
    assert first._built_with == sink(tmp_path)._built_with
    for other in (
        {"index": "others"},
        {"key": "value"},
        {"version": "value"},
        {"op_column": "value"},
    ):
        assert first._built_with != sink(tmp_path, **other)._built_with
