"""I16: the contract over upserts in a real Redis; what keys, versions and deletes mean there."""

from __future__ import annotations

import re
import sqlite3
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import redis as redis_client
from pyspark.sql.types import (
    ArrayType,
    IntegerType,
    StringType,
    StructField,
    StructType,
    VariantType,
)
from upsert_kits import TasksOfUpsertsHere, UpsertKit

import onceward as ow
from onceward.delivery.redis_writer import PLACES, TOMBSTONES, RedisWriter
from onceward.delivery.upserts import Upsert
from onceward.engine import spark_jobs
from onceward.engine.ledger.chain import Ledger
from onceward.errors import (
    AccessDenied,
    AuthenticationFailed,
    ConfigurationError,
    DeliveryRefused,
    Fenced,
    InvalidColumn,
    PreparedDataLost,
    PublishIncomplete,
    RowRefused,
)
from onceward.ids import pipeline_id
from onceward_testing import LocalRedis
from onceward_testing.sink_contract import (
    FIRST,
    SECOND,
    Died,
    Process,
    TwoPhaseContract,
    run_batch,
)
from support.errors import raises
from support.tasks_here import ArrowFrame, TasksHere

pytestmark = pytest.mark.lengthy("ci")


class RedisKit(UpsertKit):
    """Hashes below a prefix of their own."""

    def __init__(
        self, spark: Any, redis: LocalRedis, folder: Path, ledger: Ledger, **settings: Any
    ) -> None:
        name = f"contract-{uuid.uuid4().hex[:10]}"
        self.prefix = f"{name}:"
        self.client = redis_client.Redis.from_url(redis.url, decode_responses=True)
        super().__init__(
            spark, name, folder, ledger, **{"url": redis.url, "prefix": self.prefix, **settings}
        )

    def rows(self) -> dict[str, dict[str, str]]:
        found = {key: self.client.hgetall(key) for key in self.client.scan_iter(f"{self.prefix}*")}
        return {
            key.removeprefix(self.prefix): {
                name: value for name, value in row.items() if name != "_version"
            }
            for key, row in found.items()
        }

    def close(self) -> None:
        super().close()
        self.client.close()


class RedisKitHere(TasksOfUpsertsHere, RedisKit):
    """Tasks run here."""

    def tombstones(self) -> list[str]:
        return sorted(
            key.rpartition(":")[2] for key in self.client.scan_iter(f"{TOMBSTONES}{self.prefix}*")
        )


@pytest.mark.once_more
class TestOnSpark(TwoPhaseContract):
    @pytest.fixture
    def kit(self, spark: Any, local_redis: LocalRedis, tmp_path: Path) -> RedisKit:
        return RedisKit(spark, local_redis, tmp_path, ow.FolderLedger(tmp_path / "ledger"))


class TestInThisProcess(TwoPhaseContract):
    @pytest.fixture
    def kit(
        self, local_redis: LocalRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> RedisKit:
        monkeypatch.setattr(spark_jobs, "run", TasksHere().run)
        return RedisKitHere(None, local_redis, tmp_path, ow.FolderLedger(tmp_path / "ledger"))


@pytest.fixture
def here(
    local_redis: LocalRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[RedisKitHere]:
    monkeypatch.setattr(spark_jobs, "run", TasksHere().run)
    kit = RedisKitHere(None, local_redis, tmp_path, ow.FolderLedger(tmp_path / "ledger"))
    yield kit
    kit.close()


# what a row becomes


def test_the_last_row_of_a_key_stays(here: RedisKitHere):
    process = here.write(id=["a", "b", "a"], value=["1", "2", "3"])
    assert here.rows() == {"a": {"id": "a", "value": "3"}, "b": {"id": "b", "value": "2"}}
    here.write(process, id=["b"], value=["4"])
    assert here.rows()["b"] == {"id": "b", "value": "4"}


def test_a_row_is_replaced_whole(here: RedisKitHere):
    process = here.write(id=["a"], value=["1"], note=["old"])
    here.write(process, id=["a"], value=["2"], note=[None])
    assert here.rows() == {"a": {"id": "a", "value": "2"}}


def test_a_row_may_have_thousands_of_columns(here: RedisKitHere):
    """More than a script of Redis may hand to a command at once."""
    wide = {f"c{number}": ["x"] for number in range(5_003)}
    process = here.write(id=["a"], value=["1"], **wide)
    assert len(here.rows()["a"]) == 5_005
    here.write(process, id=["a"], value=["2"])
    assert here.rows() == {"a": {"id": "a", "value": "2"}}


def stored_of(here: RedisKitHere, rows: pa.Table) -> dict[bytes, bytes]:
    """The fields of the one row, whose key is 7, when it is written."""
    process = Process(here).open()
    process.stage(ArrowFrame(rows, tasks=1))
    process.attempt.commit()
    Process(here).open()
    with closing(redis_client.Redis.from_url(here.settings["url"])) as raw:
        found: dict[bytes, bytes] = raw.hgetall(f"{here.prefix}7")
    assert found.pop(b"_version").startswith(b"0")
    return found


def test_values_are_written_as_text(here: RedisKitHere):
    columns = {
        "id": pa.array([7], pa.int64()),
        "on": [True],
        "half": [0.5],
        "price": pa.array(["1.50"]).cast(pa.decimal128(10, 2)),
        "tiny": pa.array(["0.0000001000"]).cast(pa.decimal128(20, 10)),
        "nothing": pa.array(["0"]).cast(pa.decimal128(38, 18)),
        "raw": [b"\xff\x00"],
        "day": pa.array([0], pa.int32()).cast(pa.date32()),
        "at": pa.array([1_500_000], pa.timestamp("us", "UTC")),
        "parts": pa.array([[{"x": 1}]], pa.list_(pa.struct([("x", pa.int32())]))),
        "bytes": pa.array([[b"\xff"]], pa.list_(pa.binary())),
        "prices": pa.array([["1E-7", None]], pa.list_(pa.string())).cast(
            pa.list_(pa.decimal128(20, 10))
        ),
        "floats": [[0.5, float("nan")]],
        "map": pa.array([[("é", [1])]], pa.map_(pa.string(), pa.list_(pa.int32()))),
        "empty": pa.array([[]], pa.map_(pa.string(), pa.int32())),
        "numbered": pa.array([[(1, "a")]], pa.map_(pa.int64(), pa.string())),
    }
    assert stored_of(here, pa.table(columns)) == {
        b"id": b"7", b"on": b"true", b"half": b"0.5", b"price": b"1.50", b"tiny": b"0.0000001000",
        b"nothing": b"0.000000000000000000", b"raw": b"\xff\x00", b"day": b"1970-01-01",
        b"at": b"1970-01-01T00:00:01.500000+00:00", b"parts": b'[{"x":1}]', b"bytes": b'["/w=="]',
        b"prices": b'["0.0000001000",null]', b"floats": b'[0.5,"nan"]',
        b"map": '{"é":[1]}'.encode(),
        b"empty": b"{}", b"numbered": b'[[1,"a"]]',
    }  # fmt: skip


def test_keys_of_several_columns_do_not_run_together(here: RedisKitHere):
    here.settings["key"] = ["id", "value"]
    here.write(id=["a:b", "a", "a%3Ab"], value=["c", "b:c", "c"])
    assert len(here.rows()) == 3


# versions


@pytest.mark.fault("upsert-late-write")
@pytest.mark.parametrize("version", [None, "version"])
def test_a_late_write_of_an_older_copy_changes_nothing(here: RedisKitHere, version: str | None):
    """It stands still within its delivery; its heir writes the chunk, and the next batch over
    it.
    """
    here.settings["version"] = version
    old = Process(here).open()
    target = old.target
    deliver = target.deliver  # type: ignore[attr-defined]

    def standing_still(chunk: ow.delivery.Chunk) -> object:
        heir = Process(here).open()
        here.write(heir, id=["a", "b"], value=["new", "new"], version=[7, 7])
        return deliver(chunk)

    target.deliver = standing_still  # type: ignore[attr-defined]
    with pytest.raises(Fenced):
        here.write(old, id=["a", "b", "c"], value=["old", "old", "old"], version=[7, 7, 7])
    assert {key: row["value"] for key, row in here.rows().items()} == {
        "a": "new",
        "b": "new",
        "c": "old",
    }


@pytest.mark.fault("upsert-late-write")
def test_a_late_write_of_an_older_copy_does_not_bring_back_what_is_deleted(here: RedisKitHere):
    here.settings["op_column"] = "op"
    old = Process(here).open()
    deliver = old.target.deliver  # type: ignore[attr-defined]

    def standing_still(chunk: ow.delivery.Chunk) -> object:
        here.write(Process(here).open(), id=["a"], value=[None], op=["d"])
        return deliver(chunk)

    old.target.deliver = standing_still  # type: ignore[attr-defined]
    with pytest.raises(Fenced):
        here.write(old, id=["a"], value=["old"], op=["c"])
    assert here.rows() == {}


@pytest.mark.parametrize("moment", ["before", "after"])
def test_what_is_written_again_after_a_death_changes_nothing(here: RedisKitHere, moment: str):
    here.die_around_the_second_chunk(moment)
    Process(here).open()
    assert {key: row["value"] for key, row in here.rows().items()} == {"a": "4", "b": "5"}


def test_a_write_of_which_a_server_has_kept_a_part_is_done_whole_when_it_is_repeated(
    here: RedisKitHere,
):
    """It died within the script: new fields were there before the old ones and the tombstone had
    gone.
    """
    here.settings["op_column"] = "op"
    process = here.write(id=["a"], value=["1"], note=["old"], op=["c"])
    deliver = process.target.deliver  # type: ignore[attr-defined]

    def in_part(chunk: ow.delivery.Chunk) -> object:
        deliver(chunk)
        here.client.hset(f"{here.prefix}a", "note", "old")
        here.client.set(f"{TOMBSTONES}{here.prefix}a", f"{0:019d}.{0:012d}.{0:012d} x {here.name}")
        raise Died

    process.target.deliver = in_part  # type: ignore[attr-defined]
    with pytest.raises(Died):
        here.write(process, id=["a"], value=["2"], note=[None], op=["c"])
    Process(here).open()
    assert here.rows() == {"a": {"id": "a", "value": "2"}}
    assert here.tombstones() == []


def test_a_delete_of_which_a_server_has_kept_a_part_lets_no_late_write_in_between(
    here: RedisKitHere,
):
    """It died within the script: the tombstone was there before the row had gone."""
    here.settings |= {"op_column": "op", "version": "version"}
    process = here.write(id=["a"], value=["1"], op=["c"], version=[1])
    row = here.client.hgetall(f"{here.prefix}a")
    deliver = process.target.deliver  # type: ignore[attr-defined]

    def in_part(chunk: ow.delivery.Chunk) -> object:
        deliver(chunk)
        here.client.hset(f"{here.prefix}a", mapping=row)
        late = pa.RecordBatch.from_pylist([{"id": "a", "value": "late", "op": "u", "version": 4}])
        deliver(replace(chunk, sequence=0, first_row=9, rows=late))
        assert here.rows()["a"]["value"] == "1"
        raise Died

    process.target.deliver = in_part  # type: ignore[attr-defined]
    with pytest.raises(Died):
        here.write(process, id=["a"], value=["2"], op=["d"], version=[5])
    Process(here).open()
    assert here.rows() == {}
    assert here.tombstones() == ["a"]


def test_a_row_that_was_to_expire_stays_when_it_is_written_again(here: RedisKitHere):
    process = here.write(id=["a"], value=["1"])
    here.client.expire(f"{here.prefix}a", 1000)
    here.write(process, id=["a"], value=["2"])
    assert here.client.ttl(f"{here.prefix}a") == -1


def test_a_column_can_be_the_version(here: RedisKitHere):
    here.settings["version"] = "version"
    big = 2**62  # two of them differ where a double does not
    process = here.write(id=["a", "a", "b"], value=["new", "old", "1"], version=[big + 1, big, 9])
    here.write(process, id=["a", "b"], value=["older", "2"], version=[7, 10])
    assert {key: row["value"] for key, row in here.rows().items()} == {"a": "new", "b": "2"}
    here.write(process, id=["a"], value=["same version, later"], version=[big + 1])
    assert here.rows()["a"]["value"] == "same version, later"


# deletes


def test_a_delete_leaves_nothing_for_a_reader_and_a_tombstone_for_late_writes(here: RedisKitHere):
    here.settings |= {"op_column": "op", "version": "version", "tombstone_s": 100}
    process = here.write(id=["a", "b"], value=["1", "1"], op=["c", "insert"], version=[1, 1])
    here.write(process, id=["a"], value=[None], op=["d"], version=[5])
    assert list(here.rows()) == ["b"]
    assert here.tombstones() == ["a"]
    assert 90_000 < here.client.pttl(f"{TOMBSTONES}{here.prefix}a") <= 100_000
    here.write(process, id=["a"], value=["late"], op=["u"], version=[4])
    assert list(here.rows()) == ["b"]
    here.write(process, id=["a"], value=["again"], op=["c"], version=[6])
    assert here.rows()["a"] == {"id": "a", "value": "again", "version": "6"}
    assert here.tombstones() == []


def test_after_its_time_a_tombstone_is_forgotten(here: RedisKitHere):
    """As the page says: what is later than that is taken for new."""
    here.settings |= {"op_column": "op", "version": "version", "tombstone_s": 1}
    process = here.write(id=["a"], value=[None], op=["d"], version=[5])
    here.client.pexpire(f"{TOMBSTONES}{here.prefix}a", 1)
    while here.tombstones():
        pass
    here.write(process, id=["a"], value=["late"], op=["u"], version=[4])
    assert list(here.rows()) == ["a"]


# settings that are others by the next start


def decided_and_not_written(here: RedisKitHere, **settings: Any) -> None:
    here.settings = {**here.settings, **settings}
    process = Process(here).open()
    process.stage(here.of(id=["a"], value=["1"], op=["d"], version=[5]))
    process.attempt.commit()


@pytest.mark.parametrize(
    "change",
    [
        {"key": "value"},
        {"key": ["id", "value"]},
        {"version": "version"},
        {"op_column": None},
        {"prefix": "elsewhere:"},
        {"url": None, "prefix": None, "write": print},
    ],
)
def test_what_is_decided_is_not_written_by_other_settings(
    here: RedisKitHere, change: dict[str, Any]
):
    decided_and_not_written(here, op_column="op")
    then = here.settings
    here.settings = {**then, **change}
    named = next(name for name in ("prefix", *change) if name in change)
    with pytest.raises(
        ConfigurationError,
        match=f"decided and not delivered.*{named}=.*; this sink has .*{named}=",
    ):
        Process(here).open()
    assert here.tombstones() == []
    here.settings = then
    process = Process(here).open()
    assert here.tombstones() == ["a"]
    here.settings = {**then, **change}
    assert Process(here).open().newest == process.newest, (
        "nothing is left to be written: they may change"
    )


@pytest.mark.parametrize(
    "change", [{"chunk_rows": 7}, {"tombstone_s": 9}, {"commit_timeout_s": 9.0}]
)
def test_settings_that_say_nothing_of_rows_may_change(here: RedisKitHere, change: dict[str, Any]):
    decided_and_not_written(here, op_column="op")
    here.settings |= change
    Process(here).open()
    assert here.tombstones() == ["a"]


def test_what_is_decided_by_key_is_not_delivered_without_keys(here: RedisKitHere):
    decided_and_not_written(here)
    settings = {name: here.settings[name] for name in ("pipeline_id", "ledger", "store")}
    here._new_sink = lambda: ow.WriteAheadSink(deliver=print, **settings)
    with pytest.raises(ConfigurationError, match=r"key=\['id'\]"):
        Process(here).open()


# what cannot be written


@pytest.mark.fault("upsert-row-unfit")
@pytest.mark.parametrize(
    ("columns", "named"),
    [
        ({"id": [None], "value": ["1"], "op": ["c"], "version": [1]}, "'id'"),
        ({"id": ["a"], "value": ["1"], "op": ["x"], "version": [1]}, "'op'"),
        ({"id": ["a"], "value": ["1"], "op": [None], "version": [1]}, "'op'"),
        ({"id": ["a"], "value": ["1"], "op": ["c"], "version": [None]}, "'version'"),
        ({"id": ["a"], "value": ["1"], "op": ["c"], "version": [-1]}, "'version'"),
    ],
)
def test_what_cannot_be_written_is_refused_before_the_decision(
    here: RedisKitHere, columns: dict[str, list[Any]], named: str
):
    here.settings |= {"op_column": "op", "version": "version"}
    with pytest.raises(RowRefused, match=named):
        here.write(**columns)
    found = here.new_target().peek()
    assert found is None
    assert here.rows() == {}


def no_utf8() -> pa.Array:
    return pa.Array.from_buffers(
        pa.string(), 1, [*pa.array(["ab"]).buffers()[:2], pa.py_buffer(b"a\xff")]
    )


@pytest.mark.fault("upsert-row-unfit")
@pytest.mark.parametrize(
    "value",
    [
        pytest.param(no_utf8(), id="text"),
        pytest.param(pa.ListArray.from_arrays([0, 1], no_utf8()), id="text within"),
        pytest.param(pa.array([10**7], pa.int32()).cast(pa.date32()), id="date"),
        pytest.param(pa.array([-(2**62)], pa.timestamp("us")), id="timestamp"),
        pytest.param(pa.array([0], pa.timestamp("us", "GMT+8")), id="time zone"),
        pytest.param(pa.array([[("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int32())), id="map"),
    ],
)
def test_what_python_cannot_hold_is_refused_before_the_decision(
    here: RedisKitHere, value: pa.Array
):
    process = Process(here).open()
    with pytest.raises(RowRefused, match="'odd' that Python cannot hold"):
        process.stage(ArrowFrame(pa.table({"id": ["a"], "odd": value}), tasks=1))
    assert here.new_target().peek() is None
    process.attempt.abort()
    here.write(process, id=["a"], value=["1"])
    assert list(here.rows()) == ["a"]


@pytest.mark.fault("upsert-key-of-others")
@pytest.mark.parametrize("value", ["a string", {"a": "hash"}])
def test_what_others_have_put_under_a_key_is_left_alone(here: RedisKitHere, value: Any):
    key = f"{here.prefix}a"
    if isinstance(value, str):
        here.client.set(key, value)
    else:
        here.client.hset(key, mapping=value)
    with pytest.raises(DeliveryRefused, match=key):
        here.write(id=["a"], value=["1"])
    assert (here.client.get(key) if isinstance(value, str) else here.client.hgetall(key)) == value
    here.client.delete(key)
    Process(here).open()
    assert here.rows() == {"a": {"id": "a", "value": "1"}}


@pytest.mark.fault("upsert-ledger-lost")
@pytest.mark.parametrize("version", [None, "version"])
def test_a_ledger_that_begins_anew_is_noticed_by_what_redis_knows(
    here: RedisKitHere, tmp_path: Path, version: str | None
):
    """Its versions begin anew, too, and every write would be taken for a late one."""
    here.settings["version"] = version
    process = here.write(id=["a"], value=["1"], version=[7])
    here.write(process, id=["a"], value=["2"], version=[7])
    here.with_another_ledger(tmp_path)
    with pytest.raises(DeliveryRefused, match="newer version"):
        here.write(id=["a"], value=["3"], version=[7])
    assert here.rows()["a"]["value"] == "2"


@pytest.mark.fault("upsert-ledger-lost")
@pytest.mark.parametrize("version", [None, "version"])
@pytest.mark.parametrize("deleted", [False, True])
@pytest.mark.parametrize("before", [1, 2, 3])
def test_another_batch_at_the_same_place_of_the_ledger_is_not_taken_for_the_same_write(
    here: RedisKitHere, tmp_path: Path, version: str | None, deleted: bool, before: int
):
    """As row 0, 1 or 2 of the first batch there is ``a`` already, of a ledger that is gone; ours
    has it as row 1.
    """
    here.settings |= {"version": version, "op_column": "op"}
    others = [f"x{number}" for number in range(before - 1)]
    op = ["c"] * len(others) + ["d" if deleted else "c"]
    here.write(id=[*others, "a"], value=["1"] * before, version=[7] * before, op=op)
    here.with_another_ledger(tmp_path)
    with pytest.raises(DeliveryRefused, match="another batch"):
        here.write(id=["b", "a"], value=["2", "2"], version=[7, 7], op=["c", "c"])
    with pytest.raises(DeliveryRefused, match="another batch"):
        Process(here).open()
    assert {key for key, row in here.rows().items() if row["value"] == "2"} == {"b"}
    here.client.delete(f"{here.prefix}a", f"{TOMBSTONES}{here.prefix}a")  # as the error advises
    Process(here).open()
    assert here.rows()["a"]["value"] == "2"


def test_where_the_users_versions_differ_they_alone_decide_whatever_the_ledger(
    here: RedisKitHere, tmp_path: Path
):
    here.settings["version"] = "version"
    process = here.write(id=["x"], value=["1"], version=[1])
    here.write(process, id=["a", "b"], value=["1", "1"], version=[5, 5])
    here.with_another_ledger(tmp_path)
    here.write(id=["a", "b"], value=["older", "newer"], version=[4, 6])
    assert {key: row["value"] for key, row in here.rows().items()} == {
        "x": "1",
        "a": "1",
        "b": "newer",
    }


def test_what_a_later_chunk_of_the_batch_has_written_stands(here: RedisKitHere):
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
    assert {key: row["value"] for key, row in here.rows().items()} == {
        "a": "3",
        "b": "2",
        "c": "4",
    }


def test_the_server_decides_as_the_rule_says(here: RedisKitHere):
    """Of any two marks."""
    marks = [
        (f"{users:019d}.{sequence:012d}.{row:012d}", attempt, counted_by)
        for users, sequence, row in ((0, 8, 0), (0, 8, 1), (0, 10, 0), (2**63 - 1, 8, 0))
        for attempt in ("a", "b")
        for counted_by in ("p", "p integer x", "p integer\nx y")
    ]
    write = ow.UpsertSink(**here.settings).deliver.write  # type: ignore[attr-defined]
    seen = set()
    for stored in marks:
        for given in marks:
            upsert = ow.delivery.Upsert("k", *given, {"is": "given"})
            self_said = " ".join(stored)
            here.client.delete(f"{here.prefix}k")
            here.client.hset(f"{here.prefix}k", mapping={"_version": self_said, "is": "stored"})
            try:
                wanted = {True: "given", False: "stored"}[upsert.replaces(self_said)]
                write([upsert])
            except DeliveryRefused as refused:
                wanted = "refused"
                with pytest.raises(DeliveryRefused, match=refused.next_step[:20]):
                    write([upsert])
            assert here.client.hget(f"{here.prefix}k", "is") == wanted.replace(
                "refused", "stored"
            ), (stored, given)
            seen.add(wanted)
    assert seen == {"given", "stored", "refused"}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {"pipeline_id": "another"}),
        ({}, {"version": "version"}),
        ({"version": "version"}, {}),
        ({"version": "version"}, {"version": "value"}),
        ({"version": "version"}, {"version": "version", "pipeline_id": "another"}),
    ],
)
def test_versions_that_count_by_something_else_are_not_compared(
    here: RedisKitHere, tmp_path: Path, before: dict[str, str], after: dict[str, str]
):
    ours = here.settings
    here.settings = {**ours, **before}
    here.write(id=["a"], value=["1"], version=[1])
    here.settings = {**ours, **after}
    here.with_another_ledger(tmp_path)
    here.pipeline = pipeline_id(here.settings["pipeline_id"])
    rows = pa.table(
        {"id": ["a"], "value": pa.array([2], pa.int64()), "version": pa.array([2], pa.int64())}
    )
    process = Process(here).open()
    process.stage(ArrowFrame(rows, tasks=1))
    process.attempt.commit()
    with pytest.raises(DeliveryRefused, match="count by something else"):
        Process(here).open()
    assert here.rows()["a"]["value"] == "1"


def test_a_column_of_timestamps_is_not_compared_with_the_numbers_that_it_was(here: RedisKitHere):
    """Microseconds since 1970 are larger than any number that somebody counts."""
    here.settings["version"] = "version"
    process = here.write(id=["a"], value=["1"], version=[1])
    at = pa.array([1_500_000], pa.timestamp("us", "UTC"))
    process.stage(ArrowFrame(pa.table({"id": ["a"], "value": ["2"], "version": at}), tasks=1))
    process.attempt.commit()
    with pytest.raises(DeliveryRefused, match="count by something else"):
        Process(here).open()
    assert here.rows()["a"]["value"] == "1"


@pytest.fixture
def server() -> Iterator[LocalRedis]:
    """The test's own."""
    with LocalRedis() as started:
        yield started


@pytest.fixture
def at_server(
    server: LocalRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[float], RedisKitHere]]:
    """By ``commit_timeout_s``."""
    monkeypatch.setattr(spark_jobs, "run", TasksHere().run)
    with ExitStack() as kits:

        def kit(commit_timeout_s: float) -> RedisKitHere:
            ledger = ow.FolderLedger(tmp_path / "ledger")
            made = RedisKitHere(None, server, tmp_path, ledger, commit_timeout_s=commit_timeout_s)
            kits.callback(made.close)
            return made

        yield kit


@pytest.mark.fault("upsert-server-down")
def test_a_server_that_is_down_is_waited_for_and_one_that_crashed_has_it_all(
    server: LocalRedis, at_server: Callable[[float], RedisKitHere]
):
    kit = at_server(0.3)
    process = kit.write(id=["a"], value=["1"])
    server.kill()
    with pytest.raises(PublishIncomplete, match="chunk 0 of 1"):
        kit.write(process, id=["b"], value=["2"])
    server.start()
    Process(kit).open()
    assert {key: row["value"] for key, row in kit.rows().items()} == {"a": "1", "b": "2"}


@pytest.mark.fault("upsert-lost")
@pytest.mark.parametrize("runs", [True, False])
def test_a_server_that_has_forgotten_all_is_named(here: RedisKitHere, runs: bool):
    """Another volume, say; while the pipeline runs, and while it does not."""
    process = here.write(id=["a"], value=["1"])
    if not runs:
        process.target.close()
    here.client.delete(*here.client.keys(f"*{here.prefix}*"))
    with pytest.raises(PreparedDataLost, match=here.prefix):
        here.write(process if runs else None, id=["b"], value=["1"])
    with pytest.raises(PreparedDataLost):
        Process(here).open()
    here.settings["resume"] = "skip_missing"  # as the error says
    process = here.write(id=["c"], value=["1"])
    # Of what is lost since this run began nobody has said that it may be
    here.client.delete(*here.client.keys(f"*{here.prefix}*"))
    target: Any = here.new_target()
    before, newest = target.list_prepared(), target.peek()
    running = replace(process.next_batch(), run_id=newest.run_id)
    with pytest.raises(PreparedDataLost):
        target.find_undecided(before, newest, running)
    process.target.close()
    here.write(id=["c"], value=["1"]).target.close()
    here.settings["resume"] = "checkpoint"
    here.write(id=["d"], value=["1"])
    assert {"c", "d"} <= set(here.rows()) <= {"b", "c", "d"}


def test_a_script_that_the_server_has_forgotten_is_sent_again(here: RedisKitHere):
    process = here.write(id=["a"], value=["1"])
    here.client.script_flush()
    here.write(process, id=["a"], value=["2"])
    assert here.rows()["a"]["value"] == "2"


def test_a_master_that_became_a_replica_is_left_for_the_one_the_address_leads_to(
    at_server: Callable[[float], RedisKitHere],
):
    """Its connection lives on, and would say READONLY for ever: each try connects anew."""
    kit = at_server(1.0)
    process = kit.write(id=["a"], value=["1"])
    kit.client.replicaof("127.0.0.1", "1")
    before = kit.client.info("stats")["total_connections_received"]
    with pytest.raises(PublishIncomplete):
        kit.write(process, id=["b"], value=["2"])
    assert kit.client.info("stats")["total_connections_received"] >= before + 2
    kit.client.replicaof("NO", "ONE")
    Process(kit).open()
    assert kit.values() == {"a": "1", "b": "2"}


def test_a_start_that_meets_a_replica_before_it_is_filled_waits_for_the_master(
    server: LocalRedis, at_server: Callable[[float], RedisKitHere]
):
    """It answers reads from what it has, by default (replica-serve-stale-data)."""
    kit = at_server(1.0)
    process = kit.write(id=["a"], value=["1"])
    process.target.close()
    row = kit.client.dump(f"{PLACES}{kit.prefix}")
    kit.client.delete(f"{PLACES}{kit.prefix}")
    kit.client.replicaof("127.0.0.1", "1")
    with pytest.raises(PublishIncomplete, match="replica"):
        kit.write(id=["b"], value=["2"])
    kit.client.replicaof("NO", "ONE")
    kit.client.restore(f"{PLACES}{kit.prefix}", 0, row)
    Process(kit).open()
    assert kit.values() == {"a": "1", "b": "2"}


@pytest.mark.parametrize("wrong", ["password", "rights"])
def test_a_login_that_is_refused_is_named_before_anything_is_decided(
    here: RedisKitHere, wrong: str
):
    address = here.settings["url"].partition("@")[2]
    user = f"user-{uuid.uuid4().hex[:10]}"
    here.client.execute_command("ACL", "SETUSER", user, "on", ">a-password", "-@all", "+info")
    password = "another" if wrong == "password" else "a-password"
    here.settings |= {"url": f"redis://{user}:{password}@{address}"}
    with raises(AuthenticationFailed if wrong == "password" else AccessDenied):
        here.write(id=["a"], value=["1"])
    assert Process(here).target.peek() is None
    assert list(here.rows()) == []


@pytest.mark.parametrize("database", [3, 0])
def test_the_rights_that_the_page_names_suffice(here: RedisKitHere, database: int):
    page = (Path(__file__).resolve().parents[2] / "docs" / "how-to" / "upsert.md").read_text()
    rights = page.partition("\n## Rights in Redis\n")[2].partition("\n## ")[0]
    commands = [
        f"+{name.lower().replace(' ', '|')}" for name in re.findall(r"`([A-Z ]+)`", rights)
    ]
    assert "+evalsha" in commands
    user = f"user-{uuid.uuid4().hex[:10]}"
    keys = [f"~{start}{here.prefix}*" for start in ("", TOMBSTONES)] + [f"~{PLACES}{here.prefix}"]
    here.client.execute_command(
        "ACL", "SETUSER", user, "on", ">a-password", "-@all", *keys, *commands
    )
    place = f"{here.settings['url'].partition('@')[2].partition('/')[0]}/{database}"
    here.client.close()
    here.client = redis_client.Redis.from_url(
        f"{here.settings['url'].partition('@')[0]}@{place}", decode_responses=True
    )
    here.settings |= {"url": f"redis://{user}:a-password@{place}", "op_column": "op"}
    here.write(id=["a", "b"], value=["1", None], op=["c", "d"])
    assert list(here.rows()) == ["a"]
    assert here.tombstones() == ["b"]


LACKING = ["+type", "+get", "+set", "+hget", "+hset", "+hkeys", "+hdel", "+persist", "+del",
    "+evalsha", "~tombstones", "~place"]  # fmt: skip


@pytest.mark.parametrize("right", LACKING)
def test_a_right_that_the_script_lacks_is_named_before_anything_is_decided(
    here: RedisKitHere, right: str
):
    """The server finds out inside the script only, and would be asked again for ever."""
    user = f"user-{uuid.uuid4().hex[:10]}"
    keys = {f"~{name}": f"~{start}{here.prefix}*" for name, start in
            (("", ""), ("tombstones", TOMBSTONES), ("place", PLACES))}  # fmt: skip
    rights = [*LACKING[:-2], "+script|load", "+info", *keys.values()]
    rights.remove(keys.get(right, right))
    here.client.execute_command("ACL", "SETUSER", user, "on", ">a-password", "-@all", *rights)
    address = here.settings["url"].partition("@")[2]
    here.settings |= {"url": f"redis://{user}:a-password@{address}"}
    with pytest.raises(AccessDenied, match="docs/how-to/upsert"):
        here.write(id=["a"], value=["1"])
    assert Process(here).target.peek() is None
    assert list(here.rows()) == []


@pytest.mark.parametrize("right", ["-hset", "-get"])
def test_a_right_that_is_taken_away_is_named(here: RedisKitHere, right: str):
    """Once the login was checked."""
    user = f"user-{uuid.uuid4().hex[:10]}"
    here.client.execute_command("ACL", "SETUSER", user, "on", ">a-password", "+@all", "~*")
    address = here.settings["url"].partition("@")[2]
    writer = RedisWriter(f"redis://{user}:a-password@{address}", here.prefix, 60)
    writer.check(None)
    here.client.execute_command("ACL", "SETUSER", user, right)
    with pytest.raises(AccessDenied, match="docs/how-to/upsert"):
        writer([Upsert("a", f"{'0' * 19}.{'0' * 12}.{'0' * 12}", "a", "p", {"id": "a"})])


def test_what_others_have_put_in_the_place_of_a_tombstone_is_named(here: RedisKitHere):
    here.client.lpush(f"{TOMBSTONES}{here.prefix}a", "x")
    with raises(DeliveryRefused, key=f"{here.prefix}a"):
        here.write(id=["a"], value=["1"])


def test_a_server_that_forgets_what_it_has_is_warned_of(
    here: RedisKitHere, caplog: pytest.LogCaptureFixture
):
    writer = RedisWriter(here.settings["url"], here.prefix, 60)
    writer.check(None)
    assert not caplog.records
    with LocalRedis({"appendonly": "no", "maxmemory-policy": "allkeys-lru"}) as server:
        writer = RedisWriter(server.url, here.prefix, 60)
        writer.check(None)
        writer.check(None)
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "Redis has appendonly no", "Redis has maxmemory-policy allkeys-lru",
    ]  # fmt: skip


def test_what_was_closed_is_opened_again(here: RedisKitHere):
    sink = ow.UpsertSink(**here.settings)
    here._new_sink = lambda: sink
    process = here.write(id=["a"], value=["1"])
    assert here.client.info("clients")["connected_clients"] >= 2
    process.target.close()
    assert sink.deliver.write._client is None  # type: ignore[attr-defined]
    here.write(id=["a"], value=["2"])
    assert here.rows()["a"]["value"] == "2"


# settings


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"url": "http://somewhere"}, "url="),
        ({"url": "redis://here/0?encoding=latin-1"}, "url=.* encoding in it"),
        (
            {"url": "redis://here/0?db=1&decode_responses=&encoding_errors=replace"},
            "decode_responses, encoding_errors",
        ),
        ({"url": None}, "url= or write="),
        ({"write": print}, "url= or write="),
        ({"prefix": ""}, "prefix="),
        ({"prefix": f"{TOMBSTONES}x"}, "prefix="),
        ({"prefix": TOMBSTONES}, "prefix="),
        ({"prefix": "onceward:"}, "prefix="),
        ({"key": []}, "key="),
        ({"key": None}, "key="),
        ({"key": ["a", "a"]}, "key="),
        ({"tombstone_s": 0}, "tombstone_s"),
        ({"url": None, "prefix": None, "write": "sqlite"}, "write="),
        ({"url": None, "write": print}, "prefix="),
    ],
)
def test_wrong_settings_are_named(here: RedisKitHere, wrong: dict[str, Any], named: str):
    with pytest.raises(ConfigurationError, match=named):
        ow.UpsertSink(**{**here.settings, **wrong})


def test_the_password_is_told_to_nobody(here: RedisKitHere):
    sink = ow.UpsertSink(**here.settings)
    password = here.settings["url"].partition("@")[0].rpartition(":")[2]
    assert len(password) == 32
    assert password not in f"{sink!r} {sink.deliver!r} {sink.__getstate__()}"


def test_two_that_are_built_alike_are_one(here: RedisKitHere):
    first = ow.UpsertSink(**here.settings)
    assert first._built_with == ow.UpsertSink(**here.settings)._built_with
    for other in (
        {"prefix": "other:"},
        {"key": "value"},
        {"version": "value"},
        {"op_column": "value"},
    ):
        assert first._built_with != ow.UpsertSink(**{**here.settings, **other})._built_with


@pytest.mark.parametrize(
    ("settings", "columns", "named"),
    [
        ({}, [("value", StringType())], "'id'"),
        ({"version": "value"}, [("id", StringType()), ("value", StringType())], "'value'"),
        ({"op_column": "value"}, [("id", StringType()), ("value", IntegerType())], "'value'"),
        ({}, [("id", StringType()), ("doc", VariantType())], "'doc'.*to_json"),
        ({}, [("id", StringType()), ("docs", ArrayType(VariantType()))], "'docs'.*to_json"),
    ],
)
def test_columns_that_are_missing_or_of_other_types_are_named(
    here: RedisKitHere, settings: dict[str, Any], columns: list[Any], named: str
):
    sink = ow.UpsertSink(**{**here.settings, **settings})
    with pytest.raises(InvalidColumn, match=named):
        sink.columns.check(StructType([StructField(*column) for column in columns]))


# another target


def test_a_function_of_ones_own_writes_to_a_table(here: RedisKitHere, tmp_path: Path):
    """And knows another batch at the same place of the ledger as well as Redis does."""
    with closing(sqlite3.connect(tmp_path / "database", isolation_level=None)) as database:
        database.execute(
            "CREATE TABLE rows (key TEXT PRIMARY KEY, value TEXT, mark TEXT, deleted INTEGER)"
        )

        def write(upserts: list[ow.delivery.Upsert]) -> None:
            for u in upserts:
                (mark,) = database.execute(
                    "SELECT max(mark) FROM rows WHERE key = ?", (u.key,)
                ).fetchone()
                if u.replaces(mark):
                    row = (u.key, None if u.row is None else u.row["value"], u.mark, u.row is None)
                    database.execute("INSERT OR REPLACE INTO rows VALUES (?, ?, ?, ?)", row)

        here.settings |= {"url": None, "prefix": None, "write": write, "op_column": "op"}
        process = here.write(id=["a", "b", "a"], value=["1", "2", "3"], op=["c", "c", "u"])
        here.write(process, id=["b"], value=[None], op=["d"])
        stored = database.execute("SELECT key, value, deleted FROM rows ORDER BY key").fetchall()
        assert stored == [("a", "3", 0), ("b", None, 1)]
        here.with_another_ledger(tmp_path)
        with pytest.raises(DeliveryRefused, match="another batch"):
            here.write(id=["c", "x", "a"], value=["4", "4", "4"], op=["c", "c", "c"])
        assert database.execute("SELECT value FROM rows WHERE key = 'a'").fetchone() == ("3",)


def test_the_contract_was_over_rows_under_keys(here: RedisKitHere):
    """So that it does not pass because nothing was there to see."""
    run_batch(here, 0, FIRST)
    run_batch(here, 1, SECOND)
    assert len(here.rows()) == len(FIRST + SECOND)
    assert all(set(row) == {"id", "value"} for row in here.rows().values())
