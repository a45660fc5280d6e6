"""I16: the contract over upserts in a real OpenSearch; what versions and deletes mean."""

from __future__ import annotations

import re
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import urllib3
from pyspark.sql.types import StringType, StructField, StructType
from upsert_kits import TasksOfUpsertsHere, UpsertKit

import onceward as ow
from onceward.delivery import opensearch_writer
from onceward.delivery.opensearch_answers import NotTaken
from onceward.delivery.upserts import Upsert
from onceward.engine import spark_jobs
from onceward.engine.ledger.chain import Ledger
from onceward.errors import (
    ConfigurationError,
    DeliveryRefused,
    Fenced,
    InvalidColumn,
    PreparedDataLost,
    PublishIncomplete,
    RowRefused,
    TableMissing,
)
from onceward_testing import LocalOpenSearch
from onceward_testing.sink_contract import Process, TwoPhaseContract
from support.tasks_here import ArrowFrame, TasksHere

pytestmark = pytest.mark.once_more  # another server beside Redis, and a download of its own


class OpenSearchKit(UpsertKit):
    """Documents in an index of their own, which is gone afterwards: a node has room for a
    thousand.
    """

    def __init__(
        self, spark: Any, server: LocalOpenSearch, folder: Path, ledger: Ledger, **settings: Any
    ) -> None:
        name = f"contract-{uuid.uuid4().hex[:10]}"
        self.url = server.url
        self.index = name
        super().__init__(
            spark, name, folder, ledger, **{"url": server.url, "index": name, **settings}
        )

    def asked(self, method: str, path: str, body: Any = None) -> Any:
        return urllib3.request(
            method, f"{self.url}/{path}", json=body, retries=False, timeout=60
        ).json()

    def make(self, **settings: Any) -> None:
        """The index, instead of the server, or of the sink."""
        assert self.asked("PUT", self.index, settings)["acknowledged"]

    def rows(self) -> dict[str, dict[str, Any]]:
        self.asked("POST", f"{self.index}/_refresh?ignore_unavailable=true")
        found = self.asked("GET", f"{self.index}/_search?ignore_unavailable=true&size=10000")
        return {hit["_id"]: hit["_source"] for hit in found["hits"]["hits"]}

    def close(self) -> None:
        super().close()
        self.asked("DELETE", f"{self.index}?ignore_unavailable=true")


class OpenSearchKitHere(TasksOfUpsertsHere, OpenSearchKit):
    """Tasks run here."""


@pytest.mark.once_more
class TestOnSpark(TwoPhaseContract):
    @pytest.fixture
    def kit(self, spark: Any, opensearch: LocalOpenSearch, tmp_path: Path) -> OpenSearchKit:
        kit = OpenSearchKit(spark, opensearch, tmp_path, ow.FolderLedger(tmp_path / "ledger"))
        kit.make()  # which takes seconds on a machine that has much to do
        return kit


@pytest.mark.once_more
class TestInThisProcess(TwoPhaseContract):
    @pytest.fixture
    def kit(
        self, opensearch: LocalOpenSearch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> OpenSearchKit:
        monkeypatch.setattr(spark_jobs, "run", TasksHere().run)
        kit = OpenSearchKitHere(None, opensearch, tmp_path, ow.FolderLedger(tmp_path / "ledger"))
        kit.make()
        return kit


@pytest.fixture
def here(
    opensearch: LocalOpenSearch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[OpenSearchKitHere]:
    monkeypatch.setattr(spark_jobs, "run", TasksHere().run)
    kit = OpenSearchKitHere(
        None, opensearch, tmp_path, ow.FolderLedger(tmp_path / "ledger"), commit_timeout_s=30.0
    )
    yield kit
    kit.close()


# what a row becomes


def test_of_a_key_that_comes_twice_in_a_chunk_the_last_row_stays(here: OpenSearchKitHere):
    here.settings["chunk_rows"] = 10
    process = here.write(id=["a", "b", "a"], value=["1", "2", "3"])
    assert here.rows() == {"a": {"id": "a", "value": "3"}, "b": {"id": "b", "value": "2"}}
    here.write(process, id=["b", "b"], value=["4", None])
    assert here.rows()["b"] == {"id": "b"}, "a row is replaced whole, and null is no field"


def test_values_are_written_as_json(here: OpenSearchKitHere):
    columns = {
        "id": pa.array([7], pa.int64()),
        "on": [True],
        "half": [0.5],
        "price": pa.array(["1.50"]).cast(pa.decimal128(10, 2)),
        "raw": [b"\xff\x00"],
        "day": pa.array([0], pa.int32()).cast(pa.date32()),
        "at": pa.array([1_500_000], pa.timestamp("us", "UTC")),
        "parts": pa.array(
            [[{"x": 1, "y": None}]], pa.list_(pa.struct([("x", pa.int32()), ("y", pa.int32())]))
        ),
        "map": pa.array([[("é\n", [1])]], pa.map_(pa.string(), pa.list_(pa.int32()))),
        "big": pa.array([2**63 - 1], pa.int64()),
        "nothing": pa.array([None], pa.string()),
    }
    here.write_frame(None, ArrowFrame(pa.table(columns), tasks=1))
    assert here.rows() == {
        "7": {
            "id": 7, "on": True, "half": 0.5, "price": "1.50", "raw": "/wA=",
            "day": "1970-01-01",
            "at": "1970-01-01T00:00:01.500000+00:00", "parts": [{"x": 1, "y": None}],
            "map": {"é\n": [1]},
            "big": 2**63 - 1,
        }
    }  # fmt: skip


def test_a_chunk_is_sent_in_requests_that_a_server_takes(
    here: OpenSearchKitHere, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(opensearch_writer, "_REQUEST_BYTES", 200)
    here.settings["chunk_rows"] = 100
    here.write(
        id=[str(number) for number in range(20)], value=["é" * number * 10 for number in range(20)]
    )
    assert here.values() == {str(number): "é" * number * 10 for number in range(20)}


# versions


def standing_still(here: OpenSearchKitHere, meanwhile: Any, **late: Any) -> None:
    """An older copy stops within its delivery, its heir writes that chunk, and ``meanwhile`` more;
    then it goes on.
    """
    old = Process(here).open()
    deliver = old.target.deliver  # type: ignore[attr-defined]

    def after_its_heir(chunk: ow.delivery.Chunk) -> object:
        meanwhile(Process(here).open())
        return deliver(chunk)

    old.target.deliver = after_its_heir  # type: ignore[attr-defined]
    with pytest.raises(Fenced):
        here.write(old, **late)


@pytest.mark.fault("upsert-late-write")
@pytest.mark.parametrize("version", [None, "version"])
def test_a_late_write_of_an_older_copy_changes_nothing(
    here: OpenSearchKitHere, version: str | None
):
    here.settings["version"] = version
    standing_still(
        here,
        lambda heir: here.write(heir, id=["a", "b"], value=["new", "new"], version=[8, 8]),
        id=["a", "b", "c"], value=["old", "old", "old"], version=[7, 7, 7],
    )  # fmt: skip
    assert here.values() == {"a": "new", "b": "new", "c": "old"}


@pytest.mark.fault("upsert-late-write")
@pytest.mark.parametrize("version", [None, "version"])
def test_a_late_write_of_an_older_copy_does_not_bring_back_what_is_deleted(
    here: OpenSearchKitHere, version: str | None
):
    here.settings |= {"op_column": "op", "version": version}
    standing_still(
        here,
        lambda heir: here.write(heir, id=["a"], value=[None], op=["d"], version=[8]),
        id=["a"], value=["old"], op=["c"], version=[7],
    )  # fmt: skip
    assert here.rows() == {}


def test_where_the_users_versions_are_equal_the_last_to_come_stays(here: OpenSearchKitHere):
    """As the page says: also one of an older copy."""
    here.settings["version"] = "version"
    standing_still(
        here,
        lambda heir: here.write(heir, id=["a"], value=["new"], version=[7]),
        id=["a"], value=["old"], version=[7],
    )  # fmt: skip
    assert here.values() == {"a": "old"}


@pytest.mark.parametrize("moment", ["before", "after"])
def test_what_is_written_again_after_a_death_changes_nothing(here: OpenSearchKitHere, moment: str):
    here.die_around_the_second_chunk(moment)
    Process(here).open()
    assert here.values() == {"a": "4", "b": "5"}


def test_what_a_later_chunk_of_the_batch_has_written_stands(here: OpenSearchKitHere):
    """The ledger counts one chunk less than there were (it was restored from a moment before)."""
    process = Process(here).open()
    deliver = process.target.deliver  # type: ignore[attr-defined]
    chunks: list[ow.delivery.Chunk] = []

    def keeping(chunk: ow.delivery.Chunk) -> object:
        chunks.append(chunk)
        return deliver(chunk)

    process.target.deliver = keeping  # type: ignore[attr-defined]
    here.write(process, id=["a", "b", "a", "c"], value=["1", "2", "3", "4"])
    for chunk in chunks:
        deliver(chunk)
    assert here.values() == {"a": "3", "b": "2", "c": "4"}


def test_a_column_can_be_the_version(here: OpenSearchKitHere):
    here.settings["version"] = "version"
    big = 2**63 - 1
    process = here.write(id=["a", "a", "b"], value=["new", "old", "1"], version=[big, big - 1, 9])
    here.write(process, id=["a", "b"], value=["older", "2"], version=[7, 10])
    assert here.values() == {"a": "new", "b": "2"}
    here.write(process, id=["a"], value=["same version, later"], version=[big])
    assert here.values()["a"] == "same version, later"


def test_a_column_of_timestamps_counts_microseconds(here: OpenSearchKitHere):
    here.settings["version"] = "version"
    at = pa.array([1_500_000], pa.timestamp("us", "UTC"))
    here.write_frame(
        None, ArrowFrame(pa.table({"id": ["a"], "value": ["1"], "version": at}), tasks=1)
    )
    assert here.asked("GET", f"{here.index}/_doc/a")["_version"] == 1_500_000


@pytest.mark.fault("upsert-ledger-lost")
@pytest.mark.parametrize("deleted", [False, True])
def test_a_ledger_that_begins_anew_is_noticed_where_its_numbers_are_the_smaller_ones(
    here: OpenSearchKitHere, tmp_path: Path, deleted: bool
):
    """Every write would be taken for a late one, and would be counted as delivered."""
    here.settings["op_column"] = "op"
    process = here.write(id=["a"], value=["1"], op=["c"])
    here.write(process, id=["a"], value=["2"], op=["d" if deleted else "c"])
    here.with_another_ledger(tmp_path)
    with pytest.raises(
        DeliveryRefused, match=r"key 'a' .* newer version than the ledger can have given out"
    ):
        here.write(id=["a"], value=["3"], op=["c"])
    assert here.values() == ({} if deleted else {"a": "2"})


def test_a_document_of_somebody_else_is_replaced(here: OpenSearchKitHere):
    """Also by the first row of the first batch: its version is larger than any that a server
    counts by itself.
    """
    for number in range(3):
        here.asked("PUT", f"{here.index}/_doc/a", {"value": f"theirs {number}"})
    here.write(id=["a"], value=["ours"])
    assert here.values() == {"a": "ours"}


# deletes


def gc_deletes(here: OpenSearchKitHere) -> str | None:
    said: dict[str, str] = here.asked("GET", f"{here.index}/_settings?flat_settings=true")[
        here.index
    ]["settings"]
    return said.get("index.gc_deletes")


def test_a_delete_leaves_nothing_and_its_version_is_kept(here: OpenSearchKitHere):
    here.settings |= {"op_column": "op", "version": "version"}
    process = here.write(id=["a", "b"], value=["1", "1"], op=["c", "insert"], version=[1, 1])
    here.write(process, id=["a"], value=[None], op=["d"], version=[5])
    assert list(here.rows()) == ["b"]
    here.write(process, id=["a"], value=["late"], op=["u"], version=[4])
    assert list(here.rows()) == ["b"]
    here.write(process, id=["a"], value=["again"], op=["c"], version=[6])
    assert here.rows()["a"] == {"id": "a", "value": "again", "version": 6}


@pytest.mark.parametrize(
    ("before", "after"),
    [(None, "100s"), ("60s", "100s"), ("-1", "100s"), ("99999ms", "100s"), ("1d", "1d")],
)
def test_the_index_keeps_versions_of_deletes_for_as_long_as_is_asked(
    here: OpenSearchKitHere, before: str | None, after: str
):
    if before is not None:
        here.make(settings={"index.gc_deletes": before})
    here.settings |= {"op_column": "op", "tombstone_s": 100}
    here.write(id=["a"], value=[None], op=["d"])
    assert gc_deletes(here) == after


def test_without_deletes_the_index_is_left_alone(here: OpenSearchKitHere):
    here.write(id=["a"], value=["1"])
    assert gc_deletes(here) is None


def test_after_its_time_a_deletes_version_is_forgotten(here: OpenSearchKitHere):
    """As the page says: what is later than that is taken for new."""
    here.make(settings={"index.gc_deletes": "1s"})
    here.settings |= {"op_column": "op", "version": "version", "tombstone_s": 1}
    process = here.write(id=["a"], value=[None], op=["d"], version=[5])
    ends = time.monotonic() + 60
    while not here.rows() and time.monotonic() < ends:
        time.sleep(0.5)
        here.write(
            process, id=["a"], value=["late"], op=["u"], version=[4]
        )  # a refresh comes between, in rows()
    assert list(here.rows()) == ["a"]


# what cannot be written


@pytest.mark.fault("upsert-row-unfit")
def test_a_mapping_conflict_names_the_key_and_the_other_rows_are_written(here: OpenSearchKitHere):
    here.make(mappings={"properties": {"value": {"type": "integer"}}})
    here.settings["chunk_rows"] = 10
    with pytest.raises(
        DeliveryRefused, match=r"chunk 0 of 1 .*key 'b' .*\[value\].*and 1 more .*'d'"
    ) as caught:
        here.write(id=["a", "b", "c", "d"], value=["1", "not a number", "3", "nor this"])
    assert caught.value.details["keys"] == ["b", "d"]
    assert here.values() == {"a": "1", "c": "3"}
    with pytest.raises(DeliveryRefused, match="key 'b'"):  # nothing is skipped at the next start
        Process(here).open()
    here.asked(
        "PUT",
        f"{here.index}/_mapping",
        {"properties": {"value": {"type": "integer", "ignore_malformed": True}}},
    )
    Process(here).open()
    assert here.values()["b"] == "not a number"


@pytest.mark.fault("upsert-row-unfit")
@pytest.mark.parametrize("key", ["", "x" * 513, "é" * 257])
def test_a_key_that_can_be_no_id_is_refused_before_the_decision(here: OpenSearchKitHere, key: str):
    with pytest.raises(RowRefused, match="a key of 0, or more than 512, bytes"):
        here.write(id=[key], value=["1"])
    assert here.new_target().peek() is None


def test_keys_of_any_text_are_told_apart(here: OpenSearchKitHere):
    keys = ["é" * 256, "a b/c?d#e%", '"\\\n', "_all", "*", ".."]
    here.write(id=keys, value=keys)
    assert here.values() == {key: key for key in keys}


def test_columns_that_a_document_cannot_have_are_named(here: OpenSearchKitHere):
    sink = ow.UpsertSink(**here.settings)
    key = StructField("id", StringType())
    for name in ("_id", "_source", "_version", "", ".", ".a", "a.", "a..b", " "):
        wrong = StructField(name, StringType())
        with pytest.raises(InvalidColumn, match=re.escape(repr(name))):
            sink.columns.check(StructType([key, wrong]))
        if name[:1] != "_":
            with pytest.raises(InvalidColumn, match=re.escape(repr(name))):
                sink.columns.check(StructType([key, StructField("x", StructType([wrong]))]))
    sink.columns.check(StructType([key, StructField("a.b", StringType())]))


@pytest.mark.parametrize("name", ["", " ", ".", "a..b", "a."])
def test_a_key_of_a_map_that_is_no_field_is_refused_before_the_batch_is_decided(
    here: OpenSearchKitHere, name: str
):
    maps = pa.array([[("good", 1)], [("a.b", 1), (name, 2)]], pa.map_(pa.string(), pa.int64()))
    nested = pa.StructArray.from_arrays([pa.ListArray.from_arrays([0, 1, 2], maps)], ["many"])
    columns = ow.UpsertSink(**here.settings).columns
    for column in (maps, nested):
        rows = pa.RecordBatch.from_pydict({"id": pa.array(["a", "b"]), "labels": column})
        with pytest.raises(RowRefused, match="'labels'"):
            columns.storable(rows)


@pytest.mark.parametrize(
    "rolled", [False, True], ids=["an alias of two indices", "a rollover alias"]
)
def test_an_index_that_leads_to_several_is_refused_by_name(here: OpenSearchKitHere, rolled: bool):
    """After a rollover a key that is written again would be there twice, and what is deleted would
    come back.
    """
    alias = f"{here.index}-all"
    here.make(aliases={alias: {"is_write_index": True} if rolled else {}})
    if not rolled:
        here.asked("PUT", f"{here.index}-2", {"aliases": {alias: {}}})
    index, here.settings["index"] = here.index, alias
    with pytest.raises(ConfigurationError, match="may lead to another index"):
        Process(here).open()
    here.settings["index"] = index  # as the error advises; nothing was decided
    here.write(id=["a"], value=["1"])
    assert here.values() == {"a": "1"}


def test_what_a_server_blocks_for_a_time_is_waited_for(here: OpenSearchKitHere):
    """As it does when its disk is full."""
    process = here.write(id=["a"], value=["1"])
    block = {"index.blocks.read_only_allow_delete": True}
    here.asked("PUT", f"{here.index}/_settings", block)
    unblocking = threading.Timer(
        1.0, here.asked, ("PUT", f"{here.index}/_settings", dict.fromkeys(block))
    )
    unblocking.start()
    here.write(process, id=["a"], value=["2"])
    unblocking.join()
    assert here.values() == {"a": "2"}


def test_a_closed_index_is_waited_for(here: OpenSearchKitHere):
    """As its analyzer is changed: the server answers 400."""
    process = here.write(id=["a"], value=["1"])
    here.asked("POST", f"{here.index}/_close")
    opening = threading.Timer(1.0, here.asked, ("POST", f"{here.index}/_open"))
    opening.start()
    here.write(process, id=["a"], value=["2"])
    opening.join()
    assert here.values() == {"a": "2"}


def test_an_alias_that_is_moved_is_followed(here: OpenSearchKitHere):
    """As a mapping is changed: into a copy, whose name is exchanged; then the old one goes."""
    alias, old, new = f"{here.index}-all", here.index, f"{here.index}-2"
    here.make(aliases={alias: {}})
    here.settings["index"] = alias
    process = here.write(id=["a", "b"], value=["1", "1"])
    here.asked("POST", f"{old}/_refresh")
    copy = {"source": {"index": old}, "dest": {"index": new, "version_type": "external"}}
    here.asked("POST", "_reindex?refresh=true", copy)
    moves = [{"remove": {"index": old, "alias": alias}}, {"add": {"index": new, "alias": alias}}]
    here.asked("POST", "_aliases", {"actions": moves})
    here.asked("DELETE", old)
    here.index = new
    here.write(process, id=["a", "c"], value=["2", "2"])
    assert here.values() == {"a": "2", "b": "1", "c": "2"}
    assert "error" in here.asked("GET", old), "nobody made it again"


def test_an_alias_that_gets_a_routing_takes_no_row_into_another_shard(here: OpenSearchKitHere):
    """There the key would be a second time, and what is deleted would not be found."""
    alias = f"{here.index}-all"
    here.make(aliases={alias: {}}, settings={"number_of_shards": 3})
    index, here.settings["index"] = here.index, alias
    process = here.write(id=["a", "b"], value=["1", "1"])

    def add(**more: str) -> None:
        action = {"add": {"index": index, "alias": alias, **more}}
        assert here.asked("POST", "_aliases", {"actions": [action]})["acknowledged"]

    add(routing="2")
    with pytest.raises(DeliveryRefused, match="routing"):
        here.write(process, id=["a", "b"], value=["2", "2"])
    add()  # as the error says
    here.write(id=["b"], value=["3"])
    assert here.values() == {"a": "2", "b": "3"}


@pytest.mark.fault("upsert-lost")
@pytest.mark.parametrize("runs", [True, False])
def test_an_index_that_is_deleted_is_lost_and_stays_so(here: OpenSearchKitHere, runs: bool):
    """While the pipeline runs, and while it does not."""
    process = here.write(id=["a"], value=["1"])
    if not runs:
        process.target.close()
    here.asked("DELETE", here.index)
    with pytest.raises(PreparedDataLost):
        here.write(process if runs else None, id=["b"], value=["1"])
    with pytest.raises(PreparedDataLost):
        Process(here).open()
    here.settings["resume"] = "skip_missing"  # as the error says
    process = here.write(id=["c"], value=["1"])
    process.target.close()
    here.settings["resume"] = "checkpoint"
    here.write(id=["d"], value=["1"])
    assert here.values() == {**({"b": "1"} if runs else {}), "c": "1", "d": "1"}


@pytest.mark.fault("upsert-lost")
def test_an_alias_that_is_away_as_rows_come_makes_no_index_of_its_name(here: OpenSearchKitHere):
    """Moved by two calls, with a restart between them."""
    alias = f"{here.index}-all"
    here.make(aliases={alias: {}})
    index, here.settings["index"] = here.index, alias
    process = here.write(id=["a"], value=["1"])

    def move(verb: str) -> None:
        action = {verb: {"index": index, "alias": alias}}
        assert here.asked("POST", "_aliases", {"actions": [action]})["acknowledged"]

    move("remove")
    here.settings["commit_timeout_s"] = 0.5
    process.target.commit_timeout_s = 0.5
    with pytest.raises(PublishIncomplete, match=r"leads nowhere now|is not there now"):
        here.write(process, id=["b"], value=["2"])
    process.target.close()
    with pytest.raises(PublishIncomplete, match="leads nowhere now"):
        Process(here).open()
    move("add")
    here.write(id=["c"], value=["3"])
    assert here.values() == {"a": "1", "b": "2", "c": "3"}


@pytest.mark.fault("upsert-lost")
def test_an_alias_of_two_indices_stops_no_pipeline_that_has_worked(here: OpenSearchKitHere):
    alias, other = f"{here.index}-all", f"{here.index}-2"
    here.make(aliases={alias: {}})
    here.settings["index"] = alias
    here.write(id=["a"], value=["1"]).target.close()
    here.asked("PUT", other, {"aliases": {alias: {}}})
    here.settings["commit_timeout_s"] = 0.5
    with pytest.raises(PublishIncomplete):
        here.write(id=["b"], value=["2"])
    here.asked("DELETE", other)
    Process(here).open()
    assert here.values() == {"a": "1", "b": "2"}


def test_an_index_that_nothing_makes_is_missing(here: OpenSearchKitHere):
    here.asked("PUT", "_cluster/settings", {"transient": {"action.auto_create_index": "false"}})
    try:
        with pytest.raises(TableMissing):
            here.write(id=["a"], value=["1"])
    finally:
        here.asked("PUT", "_cluster/settings", {"transient": {"action.auto_create_index": None}})


# the server


@pytest.mark.fault("upsert-server-down")
def test_a_server_that_is_killed_in_mid_delivery_is_waited_for_and_has_it_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Also the versions of what was deleted, as long as they are in its log."""
    monkeypatch.setattr(spark_jobs, "run", TasksHere().run)
    with LocalOpenSearch() as server:
        settings: dict[str, Any] = {
            "commit_timeout_s": 1.0,
            "op_column": "op",
            "version": "version",
        }
        kit = OpenSearchKitHere(
            None, server, tmp_path, ow.FolderLedger(tmp_path / "ledger"), **settings
        )
        process = kit.write(id=["a", "z"], value=["1", None], op=["c", "d"], version=[1, 9])
        deliver = process.target.deliver  # type: ignore[attr-defined]

        def and_killed(chunk: ow.delivery.Chunk) -> object:
            if chunk.number == 1 and server.pid:
                server.kill()
            return deliver(chunk)

        process.target.deliver = and_killed  # type: ignore[attr-defined]
        with pytest.raises(PublishIncomplete, match="chunk 1 of 2"):
            kit.write(
                process, id=["b", "c", "a"], value=["2", "2", "2"], op=["c"] * 3, version=[2] * 3
            )
        server.start()
        process = Process(kit).open()
        assert kit.values() == {"a": "2", "b": "2", "c": "2"}
        kit.write(process, id=["z"], value=["late"], op=["u"], version=[8])
        assert "z" not in kit.values()
        kit.asked("POST", f"{kit.index}/_flush")
        server.stop()
        server.start()
        kit.write(process, id=["z"], value=["late"], op=["u"], version=[8])
        assert kit.values()["z"] == "late", (
            "as the page says: of a delete that is in no log any more nobody knows"
        )
        kit.close()


def test_what_was_closed_is_opened_again(here: OpenSearchKitHere):
    sink = ow.UpsertSink(**here.settings)
    here._new_sink = lambda: sink
    process = here.write(id=["a"], value=["1"])
    process.target.close()
    assert sink.deliver.write._pool is None  # type: ignore[attr-defined]
    here.write(id=["a"], value=["2"])
    assert here.values() == {"a": "2"}


# settings


@pytest.mark.parametrize(
    "change", [{"index": "elsewhere"}, {"url": "redis://here/0", "index": None, "prefix": "p:"}]
)
def test_what_is_decided_is_not_written_into_another_place(
    here: OpenSearchKitHere, change: dict[str, Any]
):
    process = Process(here).open()
    process.stage(here.of(id=["a"], value=["1"]))
    process.attempt.commit()
    then = here.settings
    here.settings = {**then, **change}
    with pytest.raises(ConfigurationError, match=r"decided and not delivered.*index="):
        Process(here).open()
    here.settings = then
    Process(here).open()
    assert here.values() == {"a": "1"}


def test_rows_go_in_requests_as_large_as_the_server_takes():
    """A proxy of nginx takes 1 MB by default. What is decided keeps the size of its chunks."""
    with LocalOpenSearch({"http.max_content_length": "1mb"}) as server:
        writer = opensearch_writer.OpenSearchWriter(server.url, "people", False, None)
        rows = [
            Upsert(f"k{number}", f"0.0.{number}", "attempt", "people", {"v": "x" * 2_000})
            for number in range(1_200)
        ]
        writer(rows)
        large = Upsert("large", "0.1.0", "attempt", "people", {"v": "x" * 2_000_000})
        with pytest.raises(NotTaken, match=r"key 'large' has 2000.* bytes"):
            writer([rows[0], large])
        writer.close()
        urllib3.request("POST", f"{server.url}/people/_refresh", timeout=60)
        count = urllib3.request("GET", f"{server.url}/people/_count", timeout=60)
        assert count.json()["count"] == 1_200
