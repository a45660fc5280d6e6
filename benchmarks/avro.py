"""Framed Avro into columns: ``ow.avro.decode`` beside Spark's own ``from_avro``. Called by
:mod:`__main__`.

Both read the same Parquet file of framed records and give them to nobody (``noop``). ``from_avro``
is given the records without their frames, and one schema; it promises nothing of records that are
not what they should be. The orders have some 125 bytes, five texts among them; the notes are what
looks worst: nothing but short texts, each of which is looked at. The file is a contender, whose
CPU is taken off in the last column.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psutil
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  as everybody writes it
from pyspark.sql.avro.functions import from_avro, to_avro

import onceward as ow
from benchmarks.cpu import CpuMeter
from benchmarks.orders import Orders, java, orders
from benchmarks.plan import in_turns
from onceward.errors import SchemaUnknown
from onceward.formats.registry.answers import RegisteredSchema, Version

_FIRST_ID = 101
_IDS = 10
_MAYBE = ["null", "string"]
_ORDER = {
    "id": "long", "customer": "string", "mail": "string", "city": _MAYBE, "item": "string",
    "amount": "int",
    "price": "double", "placed": {"type": "long", "logicalType": "timestamp-millis"},
    "note": _MAYBE,
}  # fmt: skip
_ORDER_COLUMNS = (
    "id",
    "concat('Customer number ', id) AS customer",
    "concat('someone.', id, '@example.org') AS mail",
    "'Rotterdam' AS city",
    "concat('A thing with a name ', id % 1000) AS item",
    "CAST(id % 100 AS INT) AS amount",
    "id / 7.0D AS price",
    "timestamp_millis(1700000000000 + id) AS placed",
    "CASE WHEN id % 3 = 0 THEN 'please ring twice at the door, thank you' END AS note",
)
_NOTES = {f"t{number}": "string" for number in range(20)}
_NOTES_COLUMNS = tuple(f"concat('text ', id % {7 + number}) AS t{number}" for number in range(20))
SOURCE, PLAIN, OURS, SETTING_ASIDE = (
    "the file alone",
    "from_avro",
    "onceward, stop",
    "onceward, dead_letter",
)
CONTENDERS = (SOURCE, PLAIN, OURS, SETTING_ASIDE)


@dataclass(frozen=True, slots=True)
class AvroFigures:
    """The median over the rounds. ``times`` is to ``from_avro`` of the same records in the same
    rounds, ``times_alone`` the same without what the file costs.
    """

    shape: str
    contender: str
    cpu_us: float
    times: float
    times_alone: float


class _Registry:
    """One schema under as many ids as a topic has."""

    def __init__(self, text: str, ids: int) -> None:
        self._text = text
        self.url = f"bench://{ids} {text}"  # a registry whose answers never change, for each shape

    def schema(self, schema_id: int) -> RegisteredSchema:
        if not _FIRST_ID <= schema_id < _FIRST_ID + _IDS:
            raise SchemaUnknown(f"no schema id {schema_id}")
        return RegisteredSchema(schema_id, "AVRO", self._text)

    def resolved_text(self, schema_id: int) -> str:
        return self.schema(schema_id).text

    def versions(self, subject: str) -> list[Version]:
        return [Version(subject, n + 1, self.schema(_FIRST_ID + n)) for n in range(int(subject))]

    def latest(self, subject: str) -> Version:
        return self.versions(subject)[-1]


def run_avro(records: int, rounds: int, say: Callable[[str], None]) -> list[AvroFigures]:
    """Measure all contenders with orders under one id and under ten, and with notes."""
    with orders(1) as made:
        found = []
        for shape, fields, columns, ids in (
            ("orders, one id", _ORDER, _ORDER_COLUMNS, 1),
            ("orders, ten ids", _ORDER, _ORDER_COLUMNS, _IDS),
            ("20 short texts, one id", _NOTES, _NOTES_COLUMNS, 1),
        ):
            bench = _Bench(made, _schema(shape, fields), columns, ids, records)
            turns = in_turns(CONTENDERS, rounds, bench.turn, say, shape)
            found += _figures(shape, {name: statistics.median(turns[name]) for name in CONTENDERS})
    return found


def _schema(shape: str, fields: dict[str, Any]) -> str:
    each = [{"name": name, "type": kind} for name, kind in fields.items()]
    return json.dumps(
        {"type": "record", "name": f"R{len(shape)}", "namespace": "com.example", "fields": each}
    )


def _figures(shape: str, medians: dict[str, float]) -> list[AvroFigures]:
    file, plain = medians[SOURCE], medians[PLAIN]
    return [
        AvroFigures(shape, name, cpu, cpu / plain, (cpu - file) / (plain - file))
        for name, cpu in medians.items()
    ]


class _Bench:
    def __init__(
        self, made: Orders, schema: str, columns: tuple[str, ...], ids: int, records: int
    ) -> None:
        self._meter = CpuMeter(psutil.Process().pid, java().pid, psutil.Process().pid)
        self._schema = schema
        self._records = records
        self._frame = _framed(made, schema, columns, ids, records)
        self._registry, self._ids = _Registry(schema, ids), ids
        # Defined once, as a query is: its plan has numbers of its own, and with them code that has
        # to get warm.
        self._frames = {name: self._read(name) for name in CONTENDERS}

    def turn(self, contender: str) -> float:
        """CPU in µs a record."""
        before = self._meter.read().pipeline
        self._frames[contender].write.format("noop").mode("overwrite").save()
        return (self._meter.read().pipeline - before) * 1e6 / self._records

    def _read(self, contender: str) -> DataFrame:
        if contender == SOURCE:
            return self._frame
        if contender == PLAIN:
            body = F.substring(F.col("value"), 6, 2**31 - 1)
            return self._frame.withColumn(
                "value", from_avro(body, self._schema, {"mode": "PERMISSIVE"})
            )
        return _decoded(self._frame, self._registry, str(self._ids), contender == SETTING_ASIDE)


def _decoded(frame: DataFrame, registry: Any, subject: str, sets_aside: bool) -> DataFrame:
    if not sets_aside:
        return ow.avro.decode(frame, registry=registry, subject=subject)
    # What on_error="dead_letter" lets through, which is for streams: the same plan, of a frame
    # that is none.
    from onceward.engine import decoding

    ow.avro.decode(frame, registry=registry, subject=subject)
    step: Any = next(reversed(decoding._registered.values()))
    good: DataFrame = step._plan.good(frame)
    return good


def _framed(
    made: Orders, schema: str, columns: tuple[str, ...], ids: int, records: int
) -> DataFrame:
    path = f"{made.folder}/{ids}-{len(columns)}"
    number = F.lpad(F.hex(F.lit(_FIRST_ID) + F.col("id") % ids), 10, "0")
    rows = made.spark.range(0, records, 1, 2)
    value: Column = F.concat(F.unhex(number), to_avro(F.struct(*map(F.expr, columns)), schema))
    rows.select(F.col("id").alias("offset"), value.alias("value")).write.option(
        "compression", "none"
    ).parquet(path)
    return made.spark.read.parquet(path)
