"""The contract over an upsert sink that writes to a real Redis; and what keys, versions and deletes mean there."""

from __future__ import annotations

import re
import sqlite3
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import redis as redis_client
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

import onceward as ow
from onceward.engine import task_job
from onceward.errors import BadColumn, ConfigurationError, DeliveryRefused, Fenced, RowRefused, Unfinished
from onceward.ids import pipeline_id
from onceward.ledger.chain import Ledger
from onceward.sinks.write_ahead.redis_writer import TOMBSTONES
from onceward.testing import LocalRedis
from onceward.testing.sink_contract import FIRST, SECOND, Died, Process, TwoPhaseContract, TwoPhaseKit, run_batch
from tasks_here import ArrowFrame, TasksHere


class RedisKit(TwoPhaseKit):
    """Rows under keys by lot, so that one that is written under two attempts shows twice."""

    def __init__(self, spark: Any, redis: LocalRedis, folder: Path, ledger: Ledger, **settings: Any) -> None:
        self.name = f"contract-{uuid.uuid4().hex[:10]}"
        self.prefix = f"{self.name}:"
        self.settings = {
            "key": "id", "url": redis.url, "prefix": self.prefix, "pipeline_id": self.name, "ledger": ledger,
            "store": folder / "store", "chunk_rows": 2, "commit_timeout_s": 5.0, **settings,
        }  # fmt: skip
        self.client = redis_client.Redis.from_url(redis.url, decode_responses=True)
        super().__init__(spark, lambda: ow.UpsertSink(**self.settings), self._visible)

    def _visible(self) -> Counter[str]:
        return Counter(row["value"] for row in self.rows().values())

    def rows(self) -> dict[str, dict[str, str]]:
        """What a reader finds, by key, without the versions."""
        found = {key: self.client.hgetall(key) for key in self.client.scan_iter(f"{self.prefix}*")}
        return {
            key.removeprefix(self.prefix): {name: value for name, value in row.items() if name != "_version"}
            for key, row in found.items()
        }

    def frame(self, values: Sequence[str], tasks: int = 2) -> Any:
        rows = [(uuid.uuid4().hex, value) for value in values]
        return self._spark.createDataFrame(rows, "id string, value string").repartition(tasks)

    def close(self) -> None:
        super().close()
        self.client.close()


class RedisKitHere(RedisKit):
    """Tasks run here, one after the other."""

    def frame(self, values: Sequence[str], tasks: int = 2) -> ArrowFrame:
        return self.of(id=[uuid.uuid4().hex for _ in values], value=values, tasks=tasks)

    def failing(self, values: Sequence[str]) -> ArrowFrame:
        return replace(self.frame(values), error=ValueError("this plan hurts"))

    def of(self, tasks: int = 1, **columns: Any) -> ArrowFrame:
        """In the order in which they are given."""
        texts = {name: pa.array(column, pa.string()) for name, column in columns.items() if name != "version"}
        counted = {"version": pa.array(columns["version"], pa.int64())} if "version" in columns else {}
        return ArrowFrame(pa.table({**texts, **counted}), tasks=tasks)

    def write(self, process: Process | None = None, **columns: Any) -> Process:
        """One batch of these rows, decided and written."""
        process = process or Process(self).open()
        process.stage(self.of(**columns))
        process.attempt.commit()
        process.newest = process.attempt.record
        return process.finish()

    def tombstones(self) -> list[str]:
        return sorted(key.rpartition(":")[2] for key in self.client.scan_iter(f"{TOMBSTONES}{self.prefix}*"))


@pytest.mark.once_more
class TestOnSpark(TwoPhaseContract):
    @pytest.fixture
    def kit(self, spark: Any, local_redis: LocalRedis, tmp_path: Path) -> RedisKit:
        return RedisKit(spark, local_redis, tmp_path, ow.FolderLedger(tmp_path / "ledger"))


class TestInThisProcess(TwoPhaseContract):
    @pytest.fixture
    def kit(self, local_redis: LocalRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RedisKit:
        monkeypatch.setattr(task_job, "run", TasksHere().run)
        return RedisKitHere(None, local_redis, tmp_path, ow.FolderLedger(tmp_path / "ledger"))


@pytest.fixture
def here(local_redis: LocalRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RedisKitHere]:
    monkeypatch.setattr(task_job, "run", TasksHere().run)
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


def test_values_are_written_as_text(here: RedisKitHere):
    process = Process(here).open()
    rows = pa.table(
        {
            "id": pa.array([7], pa.int64()),
            "on": [True],
            "price": pa.array(["1.50"]).cast(pa.decimal128(10, 2)),
            "raw": [b"\xff\x00"],
            "at": pa.array([1_500_000], pa.timestamp("us", "UTC")),
            "parts": pa.array([[{"x": 1}]], pa.list_(pa.struct([("x", pa.int32())]))),
            "bytes": pa.array([[b"\xff"]], pa.list_(pa.binary())),
        }
    )
    process.stage(ArrowFrame(rows, tasks=1))
    process.attempt.commit()
    Process(here).open()
    with closing(redis_client.Redis.from_url(here.settings["url"])) as raw:
        found = raw.hgetall(f"{here.prefix}7")
    assert found.pop(b"_version").startswith(b"0")
    assert found == {
        b"id": b"7", b"on": b"true", b"price": b"1.50", b"raw": b"\xff\x00",
        b"at": b"1970-01-01T00:00:01.500000+00:00", b"parts": b'[{"x":1}]',
        b"bytes": b'["/w=="]',
    }  # fmt: skip


def test_keys_of_several_columns_do_not_run_together(here: RedisKitHere):
    here.settings["key"] = ["id", "value"]
    here.write(id=["a:b", "a", "a%3Ab"], value=["c", "b:c", "c"])
    assert len(here.rows()) == 3


# versions


@pytest.mark.fault("upsert-late-write")
def test_a_late_write_of_an_older_copy_changes_nothing(here: RedisKitHere):
    """It stands still within its delivery; its heir writes the chunk, and the next batch over it."""
    old = Process(here).open()
    target = old.target
    deliver = target.deliver  # type: ignore[attr-defined]

    def standing_still(chunk: ow.Chunk) -> object:
        heir = Process(here).open()
        here.write(heir, id=["a", "b"], value=["new", "new"])
        return deliver(chunk)

    target.deliver = standing_still  # type: ignore[attr-defined]
    with pytest.raises(Fenced):
        here.write(old, id=["a", "b", "c"], value=["old", "old", "old"])
    assert {key: row["value"] for key, row in here.rows().items()} == {"a": "new", "b": "new", "c": "old"}


@pytest.mark.fault("upsert-late-write")
def test_a_late_write_of_an_older_copy_does_not_bring_back_what_is_deleted(here: RedisKitHere):
    here.settings["op_column"] = "op"
    old = Process(here).open()
    deliver = old.target.deliver  # type: ignore[attr-defined]

    def standing_still(chunk: ow.Chunk) -> object:
        here.write(Process(here).open(), id=["a"], value=[None], op=["d"])
        return deliver(chunk)

    old.target.deliver = standing_still  # type: ignore[attr-defined]
    with pytest.raises(Fenced):
        here.write(old, id=["a"], value=["old"], op=["c"])
    assert here.rows() == {}


@pytest.mark.parametrize("moment", ["before", "after"])
def test_what_is_written_again_after_a_death_changes_nothing(here: RedisKitHere, moment: str):
    process = Process(here).open()
    deliver = process.target.deliver  # type: ignore[attr-defined]

    def dying(chunk: ow.Chunk) -> None:
        if chunk.number == 1:
            if moment == "after":
                deliver(chunk)
            raise Died
        deliver(chunk)

    process.target.deliver = dying  # type: ignore[attr-defined]
    with pytest.raises(Died):  # a key in two chunks, and twice in one
        here.write(process, id=["a", "b", "a", "a", "b"], value=["1", "2", "3", "4", "5"])
    Process(here).open()
    assert {key: row["value"] for key, row in here.rows().items()} == {"a": "4", "b": "5"}


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
def test_a_ledger_that_begins_anew_is_noticed_by_what_redis_knows(here: RedisKitHere, tmp_path: Path):
    """Its versions begin anew, too, and every write would be taken for a late one."""
    process = here.write(id=["a"], value=["1"])
    here.write(process, id=["a"], value=["2"])
    here.settings["ledger"] = ow.FolderLedger(tmp_path / "another")
    with pytest.raises(DeliveryRefused, match="newer version"):
        here.write(id=["a"], value=["3"])
    assert here.rows()["a"]["value"] == "2"


@pytest.mark.parametrize("change", [{"pipeline_id": "another"}, {"version": "version"}])
def test_versions_that_count_by_something_else_are_not_compared(here: RedisKitHere, tmp_path: Path, change: Any):
    here.write(id=["a"], value=["1"], version=[1])
    here.settings |= {**change, "ledger": ow.FolderLedger(tmp_path / "another"), "store": tmp_path / "another-store"}
    here.pipeline = pipeline_id(here.settings["pipeline_id"])
    with pytest.raises(DeliveryRefused, match="count by something else"):
        here.write(id=["a"], value=["2"], version=[2])
    assert here.rows()["a"]["value"] == "1"


@pytest.mark.fault("upsert-server-down")
def test_a_server_that_is_down_is_waited_for_and_one_that_crashed_has_it_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(task_job, "run", TasksHere().run)
    with LocalRedis() as server:
        kit = RedisKitHere(None, server, tmp_path, ow.FolderLedger(tmp_path / "ledger"), commit_timeout_s=0.3)
        process = kit.write(id=["a"], value=["1"])
        server.kill()
        with pytest.raises(Unfinished, match="chunk 0 of 1"):
            kit.write(process, id=["b"], value=["2"])
        server.start()
        Process(kit).open()
        assert {key: row["value"] for key, row in kit.rows().items()} == {"a": "1", "b": "2"}
        kit.close()


def test_a_script_that_the_server_has_forgotten_is_sent_again(here: RedisKitHere):
    process = here.write(id=["a"], value=["1"])
    here.client.script_flush()
    here.write(process, id=["a"], value=["2"])
    assert here.rows()["a"]["value"] == "2"


def test_the_rights_that_the_page_names_suffice(here: RedisKitHere):
    page = (Path(__file__).resolve().parents[2] / "docs" / "upsert.md").read_text()
    rights = page.partition("\n## Rights\n")[2].partition("\n## ")[0]
    commands = [f"+{name.lower().replace(' ', '|')}" for name in re.findall(r"`([A-Z ]+)`", rights)]
    assert "+evalsha" in commands
    user = f"user-{uuid.uuid4().hex[:10]}"
    keys = [f"~{start}{here.prefix}*" for start in ("", TOMBSTONES)]
    here.client.execute_command("ACL", "SETUSER", user, "on", ">a-password", "-@all", *keys, *commands)
    address = here.settings["url"].partition("@")[2]
    here.settings |= {"url": f"redis://{user}:a-password@{address}", "op_column": "op"}
    here.write(id=["a", "b"], value=["1", None], op=["c", "d"])
    assert list(here.rows()) == ["a"]
    assert here.tombstones() == ["b"]


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
        ({"url": None}, "url= or write="),
        ({"write": print}, "url= or write="),
        ({"prefix": ""}, "prefix="),
        ({"prefix": f"{TOMBSTONES}x"}, "prefix="),
        ({"key": []}, "key="),
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
    for other in ({"prefix": "other:"}, {"key": "value"}, {"version": "value"}, {"op_column": "value"}):
        assert first._built_with != ow.UpsertSink(**{**here.settings, **other})._built_with


@pytest.mark.parametrize(
    ("settings", "columns", "named"),
    [
        ({}, [("value", StringType())], "'id'"),
        ({"version": "value"}, [("id", StringType()), ("value", StringType())], "'value'"),
        ({"op_column": "value"}, [("id", StringType()), ("value", IntegerType())], "'value'"),
    ],
)
def test_columns_that_are_missing_or_of_other_types_are_named(
    here: RedisKitHere, settings: dict[str, Any], columns: list[Any], named: str
):
    sink = ow.UpsertSink(**{**here.settings, **settings})
    with pytest.raises(BadColumn, match=named):
        sink.columns.check(StructType([StructField(*column) for column in columns]))


# another target


def test_a_function_of_ones_own_writes_to_a_table(here: RedisKitHere, tmp_path: Path):
    database = tmp_path / "database"
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("CREATE TABLE rows (key TEXT PRIMARY KEY, value TEXT, version TEXT, deleted INTEGER)")

    def write(upserts: list[ow.Upsert]) -> None:
        with closing(sqlite3.connect(database)) as connection, connection:
            connection.executemany(
                "INSERT INTO rows VALUES (?, ?, ?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value, "
                "version = excluded.version, deleted = excluded.deleted WHERE excluded.version > rows.version",
                [(u.key, None if u.row is None else u.row["value"], u.version, u.row is None) for u in upserts],
            )

    here.settings |= {"url": None, "prefix": None, "write": write, "op_column": "op"}
    process = here.write(id=["a", "b", "a"], value=["1", "2", "3"], op=["c", "c", "u"])
    here.write(process, id=["b"], value=[None], op=["d"])
    with closing(sqlite3.connect(database)) as connection:
        found = connection.execute("SELECT key, value, deleted FROM rows ORDER BY key").fetchall()
    assert found == [("a", "3", 0), ("b", None, 1)]


def test_the_contract_was_over_rows_under_keys(here: RedisKitHere):
    """So that it does not pass because nothing was there to see."""
    run_batch(here, 0, FIRST)
    run_batch(here, 1, SECOND)
    assert len(here.rows()) == len(FIRST + SECOND)
    assert all(set(row) == {"id", "value"} for row in here.rows().values())
