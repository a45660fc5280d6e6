"""Framed Avro from a topic into a topic: schemas that come later, records that are none,
registries that change.
"""

from __future__ import annotations

import json
import struct
import uuid
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  as everybody writes it
from streaming_pipeline import Pipeline

import onceward as ow
from onceward.errors import InvalidRecord, NewSchemaId, RegistryReplaced, RegistryUnreachable
from onceward.formats.avro import memory as schema_memory
from onceward_testing import LocalRegistry
from support.avro_codec import read, write
from support.memory_registry import MemoryRegistry
from support.verify_process import verify_at

NO_PAUSE = ow.restart.FixedDelay(attempts=1, delay_s=0)


def person(*more: dict[str, Any], name: str = "Person") -> dict[str, Any]:
    fields = [{"name": "id", "type": "long"}, {"name": "name", "type": "string"}, *more]
    return {"type": "record", "name": name, "fields": fields}


MAIL = {"name": "mail", "type": ["null", "string"], "default": None}
AGE = {"name": "age", "type": "int", "default": 0}


def framed(number: int, schema: Any, **value: Any) -> bytes:
    return b"\x00" + struct.pack(">I", number) + write(schema, value)


class Job:
    """A query that decodes, as often as it is started."""

    def __init__(self, pipeline: Pipeline, registry: Any, subject: str, **decode: Any) -> None:
        self.pipeline, self.registry, self.subject, self.given = (
            pipeline,
            registry,
            subject,
            decode,
        )
        self.dead = pipeline.topic(1)
        self.sink = pipeline.sink(dead_letter_topic=self.dead, lineage=True)
        self.starts = 0
        self.transform: Callable[[DataFrame], DataFrame] = lambda frame: frame

    def start(self) -> Any:
        self.starts += 1
        more = {"on_error": "dead_letter", "unknown_id_wait_s": 0.0, **self.given}
        people = ow.avro.decode(
            self.pipeline.frame(), registry=self.registry, subject=self.subject, **more
        )
        rows = people.select("key", F.to_json("value").alias("value"), *ow.lineage())
        return self.pipeline.start(frame=rows, transform=self.transform, sink=self.sink)

    def run(self) -> None:
        ow.supervise(self.start, NO_PAUSE)

    def written(self) -> list[dict[str, Any]]:
        return [json.loads(message.value()) for message in self.pipeline.visible()]

    def letters(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for message in self.pipeline.visible(self.dead):
            found[dict(message.headers())["onceward.error.class"].decode()] += 1
        return found


@pytest.fixture
def memory() -> MemoryRegistry:
    found = MemoryRegistry()
    found.add("people", person(), 1)
    return found


def feed(pipeline: Pipeline, *values: bytes | None) -> None:
    pipeline.feed([(b"k%d" % n, value) for n, value in enumerate(values)])


@pytest.mark.lengthy("ci")
@pytest.mark.fault("avro-poison", "avro-unknown-id")
def test_records_of_every_kind_end_in_one_of_two_topics(
    pipeline: Pipeline, registry: LocalRegistry
):
    """With a real registry; a schema of another subject comes while the query runs, which starts
    once more for it.
    """
    schemas, subject = ow.SchemaRegistry(registry.url), f"people-{uuid.uuid4().hex}"
    name = f"P{uuid.uuid4().hex}"
    first, second = person(name=name), person(MAIL, name=name)
    one, two = (schemas.register(subject, json.dumps(schema)) for schema in (first, second))
    ada = framed(one, first, id=1, name="Ada")
    feed(
        pipeline, ada, framed(two, second, id=2, name="Bo", mail=(1, "bo@x")), None, b"text",
        ada[:-1], ada + b"x",
        framed(one, first, id=3, name=b"\xff"), framed(2_000_000_000, first, id=4, name="Cy"),
    )  # fmt: skip
    job = Job(pipeline, schemas, subject)
    ow.supervise(job.start, ow.restart.NoRestart())
    assert job.starts == 2  # the first met an id that it could not know
    assert job.letters() == {"BadFraming": 1, "DoesNotFit": 3, "UnknownSchemaId": 1}
    third = person(AGE, name=name)
    three = schemas.register(f"elsewhere-{uuid.uuid4().hex}", json.dumps(third))
    feed(pipeline, framed(three, third, id=5, name="Di", age=9), b"")
    ow.supervise(job.start, ow.restart.NoRestart())
    assert job.starts == 4
    values = [
        json.loads(message.value())
        for message in pipeline.visible()
        if message.value() is not None
    ]
    assert sorted(values, key=lambda value: value["id"]) == [
        {"id": 1, "name": "Ada"}, {"id": 2, "name": "Bo", "mail": "bo@x"}, {"id": 5, "name": "Di"},
    ]  # fmt: skip
    assert sum(message.value() is None for message in pipeline.visible()) == 1
    assert job.letters() == {"BadFraming": 2, "DoesNotFit": 3, "UnknownSchemaId": 1}
    answer = verify_at(
        pipeline.bootstrap, pipeline.name, pipeline.ledger_topic, "--conserves", "exactly"
    )
    assert (answer["verdict"], answer["anomalies"]) == ("exactly_once", []), answer


@pytest.mark.lengthy("chaos")
def test_behind_a_window_nothing_bad_is_forgotten(pipeline: Pipeline, memory: MemoryRegistry):
    job = Job(pipeline, memory, "people")
    values = [framed(1, person(), id=n, name="x") if n % 3 else b"bad %d" % n for n in range(100)]
    feed(pipeline, *values)
    rows = ow.avro.decode(
        pipeline.frame(), registry=memory, subject="people", on_error="dead_letter"
    )
    counted = rows.groupBy(F.expr("value.id % 2").alias("odd")).count()
    written = counted.selectExpr("CAST(odd AS STRING) AS key", "CAST(count AS STRING) AS value")
    sink = pipeline.sink(dead_letter_topic=job.dead)
    pipeline.run(frame=written, transform=lambda frame: frame, sink=sink, mode="update")
    good = sum(value.startswith(b"\x00") for value in values)
    newest = {message.key(): int(message.value()) for message in pipeline.visible()}
    assert sum(newest.values()) == good
    assert job.letters() == {"BadFraming": 100 - good}


@pytest.mark.fault("avro-poison")
def test_a_poison_record_stops_the_query_by_name(pipeline: Pipeline, memory: MemoryRegistry):
    feed(
        pipeline,
        *[framed(1, person(), id=n, name="x") for n in range(7)],
        framed(1, person(), id=8, name="y") + b"\x01",
    )
    rows = ow.avro.decode(pipeline.frame(), registry=memory, subject="people")
    error = pipeline.refused(lambda frame: frame, frame=rows.selectExpr("key", "'seen' AS value"))
    assert isinstance(error, InvalidRecord)
    assert (error.details["topic"], error.details["partition"], error.details["offset"]) == (
        pipeline.source,
        1,
        3,
    )
    assert error.details["class"] == "DoesNotFit"
    assert pipeline.visible() == []


def test_the_subject_is_that_of_the_topic(pipeline: Pipeline, memory: MemoryRegistry):
    memory.add(f"{pipeline.source}-value", person(AGE), 3)
    memory.add(f"{pipeline.source}-key", "string", 4)
    decoded = ow.avro.decode(pipeline.frame(), registry=memory)
    assert decoded.schema["value"].dataType.fieldNames() == ["id", "name", "age"]
    assert (
        ow.avro.decode(pipeline.frame(), registry=memory, column="key")
        .schema["key"]
        .dataType.simpleString()
        == "string"
    )


@pytest.fixture
def forget(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """As a new process: nothing is known of any registry."""
    return lambda: monkeypatch.setattr(schema_memory, "_memories", {})


@pytest.mark.lengthy("chaos")
@pytest.mark.fault("avro-unknown-id")
def test_what_is_beside_the_checkpoint_another_process_knows(
    pipeline: Pipeline, memory: MemoryRegistry, forget: Callable[[], None]
):
    """Ids of another subject, and ids that the registry does not have."""
    memory.add("elsewhere", person(AGE), 9)
    unknown = [framed(n, person(), id=n, name="x") for n in (77, 78)]
    feed(pipeline, framed(1, person(), id=1, name="x"), *unknown,
         framed(9, person(AGE), id=2, name="y", age=1))  # fmt: skip
    job = Job(pipeline, memory, "people", checkpoint=pipeline.checkpoint)
    pipeline.failed(query := job.start())
    assert isinstance(error := ow.error_of(query), NewSchemaId)
    assert "beside the checkpoint" in str(error)
    forget()
    memory.add("late", person(), 78)
    query = job.start()
    assert query.awaitTermination(150)
    assert ow.error_of(query) is None
    assert sorted(row["id"] for row in job.written()) == [1, 2, 78]
    assert job.letters() == {"UnknownSchemaId": 1}


@pytest.mark.fault("avro-registry-replaced")
def test_a_registry_that_is_set_up_anew_between_two_processes_is_noticed(
    pipeline: Pipeline, memory: MemoryRegistry, forget: Callable[[], None]
):
    """Also where no batch has met a new id."""
    feed(pipeline, framed(1, person(), id=1, name="x"))
    job = Job(pipeline, memory, "people", checkpoint=pipeline.checkpoint)
    query = job.start()
    assert query.awaitTermination(150)
    forget()
    memory.add("people", person(AGE), 1)
    with pytest.raises(RegistryReplaced):
        job.start()


def test_registries_without_an_address_are_not_taken_for_one_another(
    pipeline: Pipeline, memory: MemoryRegistry, forget: Callable[[], None]
):
    """Two wrappers, of two registries, for key and value of one topic."""
    keys = MemoryRegistry()
    keys.add("keys", person(name="Key"), 1)
    memory.url = keys.url = ""
    pipeline.feed(
        [(framed(1, person(name="Key"), id=7, name="k"), framed(1, person(), id=1, name="x"))]
    )

    def start() -> Any:
        at: dict[str, Any] = {"checkpoint": pipeline.checkpoint, "unknown_id_wait_s": 0.0}
        people = ow.avro.decode(pipeline.frame(), registry=memory, subject="people", **at)
        people = ow.avro.decode(people, registry=keys, subject="keys", column="key", **at)
        rows = people.select(F.to_json("key").alias("key"), F.to_json("value").alias("value"))
        return pipeline.start(frame=rows, transform=lambda frame: frame)

    for _ in range(2):
        query = start()
        assert query.awaitTermination(150)
        assert ow.error_of(query) is None
        forget()
    assert [json.loads(message.key())["id"] for message in pipeline.visible()] == [7]


@pytest.mark.lengthy("chaos")
@pytest.mark.fault("avro-registry-replaced")
def test_envelopes_have_their_registry_beside_the_checkpoint_too(
    pipeline: Pipeline, memory: MemoryRegistry, forget: Callable[[], None]
):
    row = person()
    place = {"type": "record", "name": "Place", "fields": [{"name": "table", "type": "string"}]}
    envelope = {
        "type": "record",
        "name": "Envelope",
        "fields": [
            {"name": "before", "type": ["null", row]},
            {"name": "after", "type": ["null", person(name="After")]},
            {"name": "source", "type": place},
            {"name": "op", "type": "string"},
            {"name": "ts_ms", "type": "long"},
        ],
    }
    memory.add("elsewhere", envelope, 9)
    memory.add("changes", envelope, 10)
    after = (1, {"id": 7, "name": "x"})
    feed(pipeline, framed(9, envelope, before=(0, None), after=after, source={"table": "t"},
         op="c", ts_ms=5))  # fmt: skip

    def start() -> Any:
        changes = ow.debezium.decode(
            pipeline.frame(), registry=memory, subject="changes", refresh_s=0,
            unknown_id_wait_s=0.0, checkpoint=pipeline.checkpoint,
        )  # fmt: skip
        return pipeline.start(
            frame=changes.select("key", F.to_json("after").alias("value")),
            transform=lambda frame: frame,
        )

    pipeline.failed(query := start())
    assert isinstance(ow.error_of(query), NewSchemaId)
    forget()
    query = start()
    assert query.awaitTermination(150)
    assert [json.loads(m.value())["id"] for m in pipeline.visible()] == [7]
    forget()
    memory.add("changes", row, 10)
    with pytest.raises(RegistryReplaced):
        start()


@pytest.mark.lengthy("chaos")
def test_without_the_checkpoint_each_process_meets_new_ids_itself(
    pipeline: Pipeline, memory: MemoryRegistry, forget: Callable[[], None]
):
    """Which the error says."""
    memory.add("elsewhere", person(AGE), 9)
    feed(pipeline, framed(9, person(AGE), id=2, name="y", age=1))
    job = Job(pipeline, memory, "people")
    for _ in range(2):
        pipeline.failed(query := job.start())
        assert isinstance(error := ow.error_of(query), NewSchemaId)
        assert "pass the query's checkpointLocation as checkpoint=" in str(error)
        forget()


@pytest.mark.fault("avro-unknown-id")
def test_an_unknown_id_stops_the_query_by_name(pipeline: Pipeline, memory: MemoryRegistry):
    """At once: a new plan would say no more."""
    feed(pipeline, framed(1, person(), id=1, name="x"), framed(9, person(), id=2, name="y"))
    job = Job(pipeline, memory, "people", on_error="stop")
    pipeline.failed(query := job.start())
    assert isinstance(error := ow.error_of(query), InvalidRecord)
    assert "the registry knows no schema id 9" in str(error)
    assert error.details["class"] == "UnknownSchemaId"
    assert (error.details["id"], error.details["topic"]) == (9, pipeline.source)
    assert isinstance(error.details["offset"], int)


@pytest.mark.lengthy("chaos")
@pytest.mark.fault("avro-unknown-id")
@pytest.mark.parametrize("on_error", ["stop", "dead_letter"])
def test_an_id_that_a_copy_of_the_registry_lacks_for_a_while_comes_back(
    pipeline: Pipeline, memory: MemoryRegistry, on_error: str
):
    """Its records were read before: with "stop" they wait for it, else they are dead letters until
    the registry has it, and no longer."""
    memory.add("elsewhere", person(AGE), 9)
    job = Job(pipeline, memory, "people", on_error=on_error, refresh_s=0)
    late = [framed(9, person(AGE), id=n, name="y", age=1) for n in range(2, 5)]
    feed(pipeline, framed(1, person(), id=1, name="x"), late[0])
    job.run()
    schema = memory.schemas.pop(9)
    feed(pipeline, late[1])
    query = job.start()
    if on_error == "stop":
        pipeline.failed(query)
        assert isinstance(error := ow.error_of(query), RegistryUnreachable)
        assert "does not have 9 now, which it had" in str(error)
        memory.schemas[9] = schema
    else:
        assert query.awaitTermination(150)

    def it_is_back(frame: DataFrame) -> DataFrame:
        """Once the query is defined."""
        memory.schemas[9] = schema
        return frame

    job.transform = it_is_back
    feed(pipeline, late[2])
    if on_error == "dead_letter":
        pipeline.failed(query := job.start())
        assert isinstance(error := ow.error_of(query), NewSchemaId)
        assert "has 9 now, which it did not have" in str(error)
    job.run()
    good = [1, 2, 3, 4] if on_error == "stop" else [1, 2, 4]
    assert sorted(row["id"] for row in job.written()) == good
    assert job.letters() == ({} if on_error == "stop" else {"UnknownSchemaId": 1})


@pytest.mark.lengthy("chaos")
@pytest.mark.fault("avro-unknown-id")
def test_thousands_of_ids_that_nobody_knows_cost_one_restart(
    pipeline: Pipeline, memory: MemoryRegistry
):
    feed(pipeline, *[framed(n, person(), id=n, name="x") for n in range(1, 3001)])
    job = Job(pipeline, memory, "people")
    job.pipeline.frame = lambda **_: Pipeline.frame(pipeline, max_offsets_per_trigger=10_000)  # type: ignore[method-assign]
    ow.supervise(job.start, ow.restart.NoRestart())
    assert job.starts == 2
    assert job.letters() == {"UnknownSchemaId": 2999}
    assert len(job.written()) == 1


@pytest.mark.fault("avro-registry-away")
def test_a_registry_that_is_away_loses_nothing(pipeline: Pipeline, memory: MemoryRegistry):
    """Known schemas need none; an id that is new waits for it, by name."""
    job = Job(pipeline, memory, "people", refresh_s=0)
    feed(pipeline, framed(1, person(), id=1, name="x"))
    query = job.start()
    memory.away = RegistryUnreachable("the registry is away")
    assert query.awaitTermination(150)
    assert ow.error_of(query) is None
    assert len(job.written()) == 1
    memory.away = None
    memory.add("elsewhere", person(AGE), 9)
    feed(pipeline, framed(9, person(AGE), id=2, name="y", age=1))
    query = job.start()
    memory.away = RegistryUnreachable("the registry is away")
    pipeline.failed(query)
    assert isinstance(ow.error_of(query), RegistryUnreachable)
    assert len(job.written()) == 1
    assert not job.letters()
    memory.away = None
    ow.supervise(job.start, ow.restart.NoRestart())
    assert [row["id"] for row in job.written()] == [1, 2]
    assert not job.letters()


@pytest.mark.fault("avro-registry-replaced")
def test_a_registry_that_is_another_one_stops_before_a_batch(
    pipeline: Pipeline, memory: MemoryRegistry
):
    job = Job(pipeline, memory, "people", refresh_s=0)
    feed(pipeline, framed(1, person(), id=1, name="x"))
    query = job.start()
    del memory.schemas[1]
    pipeline.failed(query)
    assert isinstance(ow.error_of(query), RegistryReplaced)
    assert pipeline.visible() == []


@pytest.mark.lengthy("chaos")
def test_an_id_that_is_new_under_adaptive_execution(pipeline: Pipeline, memory: MemoryRegistry):
    """Then stages run before the batch's function is called, and what they meet is Spark's to
    tell.
    """
    memory.add("elsewhere", person(AGE), 9)
    feed(pipeline, *[framed(9, person(AGE), id=n, name="y", age=1) for n in range(10)])
    job = Job(pipeline, memory, "people")
    job.transform = lambda frame: frame.repartition(2, "value")
    ow.supervise(job.start, ow.restart.NoRestart())
    assert sorted(row["id"] for row in job.written()) == list(range(10))
    assert job.starts == 2


def test_what_is_encoded_is_decoded(pipeline: Pipeline, memory: MemoryRegistry):
    memory.add("out", person(MAIL, name="Out"), 21)
    feed(pipeline, framed(1, person(), id=1, name="é"), None)
    rows = ow.avro.decode(pipeline.frame(), registry=memory, subject="people")
    full = F.struct(
        F.col("value.name").alias("name"),
        F.col("value.id").alias("id"),
        F.lit(None).cast("string").alias("mail"),
    )
    made = rows.select("key", F.when(F.col("value").isNotNull(), full).alias("value"))
    pipeline.run(
        frame=ow.avro.encode(made, registry=memory, subject="out"), transform=lambda frame: frame
    )
    values = [message.value() for message in pipeline.visible()]
    assert sorted(values, key=lambda value: value is None) == [
        framed(21, person(MAIL), id=1, name="é", mail=(0, None)),
        None,
    ]
    assert read(person(MAIL), values[0][5:] if values[0] else values[1][5:]) == {
        "id": 1,
        "name": "é",
        "mail": (0, None),
    }
