"""Whoever does what an error of a format or of files says is done: each row has what was
wrong, the words of the next step, and what is done with them. No JVM; the registry is a socket.
"""

from __future__ import annotations

import contextlib
import functools
import json
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import types as t

import onceward as ow
from onceward.errors import OncewardError
from onceward.files.target import check as check_columns_of_files
from onceward.formats import validation
from onceward.formats.avro.memory import as_registry
from onceward.formats.avro.schemas import parse_json
from onceward.formats.debezium import changes, decoding
from onceward.formats.json.decoding import parse_schema
from onceward.formats.registry.answers import (
    RegisteredSchema,
    SchemaReference,
    Version,
    schema_in,
    version_in,
)
from onceward.formats.registry.references import self_contained
from onceward.formats.registry.settings import OPTIONS
from support.hostile_http import Behaviour, HostileServer, answer, silent
from support.next_steps import Done, Wrong, case_name, follow_whole

LEDGER = ow.FolderLedger("/ledger")


def calls(function: Callable[..., Any], **always: Any) -> Callable[..., Wrong]:
    """Return a function that makes calls of ``function``; what is ``...`` is left out."""

    def made(**settings: Any) -> Wrong:
        given = {name: value for name, value in {**always, **settings}.items() if value is not ...}
        return functools.partial(function, **given)

    return made


class Frame(DataFrame):
    """A frame of which only the columns are asked for."""

    isStreaming = False  # noqa: N815 — Spark's name

    def __new__(cls, *fields: Any, streams: bool = False) -> Any:
        return object.__new__(cls)

    def __init__(self, *fields: tuple[str, t.DataType], streams: bool = False) -> None:
        self.__dict__["schema"] = t.StructType([t.StructField(*field) for field in fields])
        self.__dict__["isStreaming"] = streams

    @property
    def columns(self) -> list[str]:
        return self.__dict__["schema"].names  # type: ignore[no-any-return]

    @property
    def schema(self) -> t.StructType:
        return self.__dict__["schema"]  # type: ignore[no-any-return]


KEY, VALUE = ("key", t.BinaryType()), ("value", t.BinaryType())
SOURCE = Frame(KEY, VALUE, streams=True)
CHANGES = [(name, kinds[0]()) for name, kinds in changes._COLUMNS.items()]
registry = calls(ow.SchemaRegistry, url="http://r:8081")
refuse = calls(validation.refuse_frame, frame=SOURCE, column="value", on_error="stop")
must_be_envelope: Done = decoding._must_be_envelope
check_changes: Done = changes.check_columns
debezium = calls(
    decoding._check, frame=SOURCE, column="value", on_error="stop", schema="id INT", registry=None
)


def nobody(subject: str, version: int) -> Version:
    raise NotImplementedError


def tables(**metadata: Any) -> Frame:
    frame = Frame(*CHANGES)
    for field in frame.schema.fields:
        field.metadata = metadata
    return frame


IDENTIFICATION = "ssl.endpoint.identification.algorithm"
ENUM = '{"type": "enum", "name": "x.A", "symbols": ["A"]}'
OF_EU = {"subject": ":.eu:orders-value", "version": 1, "id": 1, "schema": '"int"'}
CIRCLE = RegisteredSchema(1, "AVRO", '"x.A"', (SchemaReference("x.A", "a", 1),))
VERSION = {"subject": "orders-value", "version": 1, "id": 7, "schema": '"int"'}
FORMATS: list[tuple[Wrong, str, Done]] = [
    (
        registry(options={"ssl.key.password": "x"}),
        "write https://, or remove the option",
        lambda: (
            registry(url="https://r:8081", options={IDENTIFICATION: ""})(),
            registry()(),
        ),
    ),
    (
        registry(url="http://r:8081/a?b=c"),
        r"leave out what begins with \? or #, .+; write other characters .+ as (%7B) and the like",
        lambda escaped: registry(url=f"http://r:8081/{escaped}a")(),
    ),
    (
        registry(options="a:b"),
        r"pass options=(\{.+\}), or leave it out",
        lambda options: (registry(options=json.loads(options))(), registry()()),
    ),
    (
        registry(options={"bearer.auth.token": 5}),
        "pass bearer.auth.token as a text",
        registry(options={"bearer.auth.token": "5"}),
    ),
    (
        registry(
            options={"bearer.auth.token": "a", "schema.registry.bearer.auth.token": "b"},
        ),
        "keep one of the two",
        lambda: [
            registry(options={f"{prefix}bearer.auth.token": "a"})()
            for prefix in ("", "schema.registry.")
        ],
    ),
    (
        registry(options={"no.such.thing.at.all": "x"}),
        "use one of (.+)",
        lambda offered: [
            assert_known(name) for name in offered.split(", ")
        ],
    ),
    (
        lambda: registry()().schema(0),
        r"ids and versions are whole numbers from (\d+) to ([\d,]+)",
        lambda least, most: [
            with_registry([SCHEMA], operator.methodcaller("schema", each))
            for each in (int(least), int(most.replace(",", "")))
        ],
    ),
    (
        lambda: registry()().latest(""),
        r"pass its name, such as (\S+) for the topic (\S+)",
        lambda subject, topic: (
            with_registry([answer(body=VERSION)], lambda one: one.latest(subject)),
            subject.startswith(topic) or pytest.fail(subject),
        ),
    ),
    (
        lambda: as_registry(5),  # type: ignore[arg-type]
        r'pass onceward\.(\w+)\("(\S+)", …\), or its address as a text',
        lambda name, address: (as_registry(getattr(ow, name)(address)), as_registry(address)),
    ),
    (
        lambda: parse_json("{"),
        "give the text of an Avro schema, as the registry has it",
        lambda: parse_json('{"type": "string"}'),
    ),
    (
        lambda: self_contained(RegisteredSchema(1, "JSON", "{}"), nobody),
        "read this topic by another format, or correct the schema's type in the registry",
        lambda: self_contained(RegisteredSchema(1, "AVRO", '"int"'), nobody),
    ),
    (
        lambda: self_contained(CIRCLE, lambda *_: Version("a", 1, CIRCLE)),
        "register it anew with references that can be followed, or as one schema without any",
        lambda: (
            self_contained(CIRCLE, lambda *_: Version("a", 1, RegisteredSchema(2, "AVRO", ENUM))),
            self_contained(RegisteredSchema(1, "AVRO", ENUM), nobody),
        ),
    ),
    (
        lambda: self_contained(schema_in({"schema": ENUM}, 1, 8), nobody),
        r"register a smaller, flatter one for its records, or pass a larger (\w+)= to (\w+)",
        lambda setting, name: (
            getattr(ow, name)("http://registry", **{setting: 2_000_000}),
            self_contained(schema_in({"schema": ENUM}, 1, 2_000_000), nobody),
        ),
    ),
    (
        lambda: version_in(OF_EU, "orders-value", 1, 100),
        r'pass subject="(\S+)", under which they and their ids are asked for',
        lambda subject: version_in(OF_EU, subject, 1, 100),
    ),
    (
        # An alias, at an address that leads to the context
        lambda: version_in(OF_EU, "clicks-value", 1, 100, ".eu"),
        r'pass subject="(\S+)", under which they and their ids are asked for',
        lambda subject: version_in(OF_EU, subject, 1, 100, ".eu"),
    ),
    (
        lambda: parse_schema(5),
        r"pass a StructType, or its columns as DDL \(.+\), as schema= of json\.decode\(…\)",
        lambda: parse_schema(t.StructType()),
    ),
    (
        refuse(frame=[1]),
        r"pass the frame that has the records, that of kafka_source\(…\) for one",
        refuse(frame=SOURCE),
    ),
    (
        refuse(column="body"),
        r"name the column that has the records as they came, (\w+)= of decode\(…\)",
        lambda setting: refuse(**{setting: "key"})(),
    ),
    (
        refuse(on_error="skip"),
        "set on_error to one of (.+)",
        lambda offered: [refuse(on_error=word)() for word in offered.split(", ")],
    ),
    (
        refuse(frame=Frame(KEY, VALUE), on_error="dead_letter"),
        r'use on_error="(\w+)", or call decode\(…\) where the streaming query is defined',
        lambda word: (
            refuse(frame=Frame(KEY, VALUE), on_error=word)(),
            refuse(on_error="dead_letter")(),
        ),
    ),
    (
        refuse(frame=Frame(VALUE, ("key", t.StringType()), streams=True), on_error="dead_letter"),
        r"keep the source's columns key and value under their names; .+ and then the other one "
        r'with on_error="(\w+)"',
        lambda word: (
            refuse(on_error="dead_letter")(),
            refuse(frame=Frame(("key", t.StructType()), VALUE, streams=True), on_error=word)(),
        ),
    ),
    (
        debezium(schema=None),
        "pass schema=, the table's columns, where .+ JSON, or registry= where they are Avro",
        lambda: (debezium()(), debezium(schema=None, registry="http://r:8081")()),
    ),
    (
        debezium(registry="http://r:8081"),
        "pass schema=, the table's columns, where .+ JSON, or registry= where they are Avro",
        lambda: (debezium()(), debezium(schema=None, registry="http://r:8081")()),
    ),
    (
        debezium(frame=Frame(VALUE, ("op", t.StringType()))),
        r"rename it, or call decode\(…\) directly on the source's frame",
        lambda: (debezium(frame=Frame(VALUE, ("was", t.StringType())))(), debezium()()),
    ),
    (
        lambda: decoding._must_be_envelope(t.StructType()),
        r"pass the subject of a topic that Debezium writes; .+ by ow\.(avro)\.(decode)\(…\)",
        lambda module, name: (
            must_be_envelope(Frame(*((f, VALUE[1]) for f in decoding._FIELDS)).schema),
            callable(getattr(getattr(ow, module), name)) or pytest.fail(name),
        ),
    ),
    (
        lambda: changes.check_columns(Frame(*CHANGES[1:]), "rows(…)"),
        r"pass the frame of ow\.(mysql_changes)\(…\) to rows\(…\), with all of its columns",
        lambda name: (dir(ow).index(name), check_changes(Frame(*CHANGES), "rows(…)")),
    ),
    (
        lambda: changes.check_values(tables(**{changes.VALUES: "text"}), "debezium", "encode(…)"),
        r"pass values='(\w+)' to ow\.mysql_changes\(…\)",
        lambda word: changes.check_values(tables(**{changes.VALUES: word}), "debezium", "x"),
    ),
]  # fmt: skip


def assert_known(name: str) -> object:
    assert name in OPTIONS
    with contextlib.suppress(OncewardError):
        registry(url="https://r:8081", options={name: "x:y"})()
    return name


def with_registry(
    behaviour: list[Behaviour], ask: Callable[[ow.SchemaRegistry], Any], **settings: Any
) -> Any:
    with HostileServer(behaviour) as server:
        return ask(ask_at(server.url, **{"timeout_s": 5.0, **settings}))


@pytest.mark.parametrize(("wrong", "says", "does"), FORMATS, ids=case_name)
def test_a_format_as_it_is_asked_for(wrong: Wrong, says: str, does: Done):
    follow_whole(wrong, says, does)


ask_at: Callable[..., ow.SchemaRegistry] = ow.SchemaRegistry
SCHEMA: Behaviour = answer(body={"schema": '"int"'})
ADDRESS_BEHIND = answer(302, headers=["Location: http://elsewhere:8081/"])
REGISTRIES: list[tuple[list[Behaviour], str, Callable[[str], Done]]] = [
    (
        [answer(404, {"error_code": 40403, "message": "Schema 7 not found"})],
        "register it there, or check that (url)= leads to the registry whose ids the topic has",
        lambda url: lambda setting: ask_at(**{setting: url}).schema(7),
    ),
    (
        [answer(401, {"error_code": 401, "message": "who?"})],
        r"set (\S+) or (\S+) in (options)=",
        lambda url: (
            lambda info, token, setting: [
                ask_at(url, **{setting: {name: value}}).schema(7)
                for name, value in ((info, "u:p"), (token, "t"))
            ]
        ),
    ),
    (
        [ADDRESS_BEHIND],
        "pass the address to which it leads as (url)=, if that is the registry",
        lambda url: lambda setting: ask_at(**{setting: url}).schema(7),
    ),
    (
        [answer(200, b"<html>")],
        "check that (url)= leads to the registry's API with its whole path, and what .+",
        lambda url: lambda setting: ask_at(**{setting: url}).schema(7),
    ),
    (
        [silent],
        r"see that it runs and can be reached .+ at (url)=; a slow one wants .+ (timeout_s)=",
        lambda url: lambda where, limit: ask_at(**{where: url, limit: 9}).schema(7),
    ),
]


@pytest.mark.parametrize(("behaviour", "says", "does"), REGISTRIES, ids=case_name)
def test_a_registry_is_asked_as_it_is_said(
    behaviour: list[Behaviour], says: str, does: Callable[[str], Done]
):
    with HostileServer([SCHEMA]) as right:
        follow_whole(
            lambda: with_registry(behaviour, lambda one: one.schema(7), timeout_s=0.2),
            says,
            does(right.url),
        )


def files(**more: Any) -> Wrong:
    return calls(ow.FileSink, path="/files", pipeline_id="p")(**more)


def frame_of_files(*fields: tuple[str, t.DataType], **more: Any) -> Wrong:
    return lambda: check_columns_of_files(Frame(*fields).schema, files(**more)().settings)


TEXT, A_DATE = ("x", t.StringType()), ("day", t.DateType())
MANIFEST = {"layout": "manifest", "pipeline_id": "_p"}
FILES: list[tuple[Wrong, str, Done]] = [
    (
        files(path=" "),
        "pass the path of a folder, or its URI",
        lambda: [files(path=path)() for path in ("/files", "file:///files", Path("/files"))],
    ),
    (
        files(path="s3a://bucket/files", layout="manifest"),
        r"pass ledger=ow\.(\w+)\(…\) or ow\.(\w+)\(…\)",
        lambda one, two: [
            files(path="s3a://bucket/files", layout="manifest", ledger=ledger)()
            for ledger in (getattr(ow, one)("b:9092"), getattr(ow, two)("postgresql://h/d"))
        ],
    ),
    (
        files(partition_by=3),
        "pass a column's name, or a list of different ones",
        lambda: [files(partition_by=names)() for names in ("a", ["a", "b"])],
    ),
    (
        files(options=["zstd"]),
        r"pass Spark's options of the format by their names: (\{.+\})",
        lambda offered: files(options=json.loads(offered))(),
    ),
    (
        files(options={"maxRecordsPerFile": 5}),
        r"leave it out; pass (\w+)=",
        lambda setting: files(**{setting: 5})(),
    ),
    (files(options={"path": "/x"}), "leave it out", files()),
    (
        files(options={"compression": None}),
        "pass text or a number",
        lambda: [files(options={"compression": value})() for value in ("zstd", 3)],
    ),
    (
        files(partition_by="_day"),
        "give the column another name in the query, or batch_column=, or partition by another one",
        lambda: [files(partition_by=name)() for name in ("day", "other")],
    ),
    (
        files(batch_column=".b"),
        "give the column another name in the query, or (batch_column)=, or partition by .+",
        lambda setting: files(**{setting: "b"})(),
    ),
    (
        files(batch_column="a/b"),
        "pass a name of letters, digits and _",
        files(batch_column="a_1"),
    ),
    (
        files(partition_by=["a", "A"]),
        "name each column once in partition_by, and give batch_column= a name of its own",
        files(partition_by=["a", "b"], batch_column="c"),
    ),
    (
        files(**MANIFEST),
        r'choose another pipeline_id, or layout="(\w+)", whose folders begin .+',
        lambda layout: (
            files(**{**MANIFEST, "pipeline_id": "p"})(),
            files(**{**MANIFEST, "layout": layout})(),
        ),
    ),
    (
        lambda: ow.FolderLedger("s3://bucket/ledger"),
        r"pass the path of a folder, or its URI \((file:///)…\), absolute where a name has a colon; "
        r"for a ledger that several machines see, use (\w+)",
        lambda uri, name: (
            ow.FolderLedger(f"{uri}ledger"),
            # As a command line has it, too
            ow.FolderLedger(Path("/a:b")),
            getattr(ow, name)("b:9092"),
        ),
    ),
    (
        frame_of_files(TEXT, partition_by="day"),
        "select it in the query, or correct partition_by",
        lambda: (
            frame_of_files(TEXT, A_DATE, partition_by="day")(),
            frame_of_files(TEXT, A_DATE, partition_by="x")(),
        ),
    ),
    (
        frame_of_files(TEXT, ("day", t.TimestampType()), partition_by="day"),
        r"partition by a date or a text that the query makes of it \(to_date, .+\)",
        lambda: [
            frame_of_files(TEXT, ("day", kind()), partition_by="day")()
            for kind in (t.DateType, t.StringType)
        ],
    ),
    (
        frame_of_files(TEXT, ("batch", t.LongType())),
        r"pass another name as (\w+)=, or rename the column",
        lambda setting: (
            frame_of_files(TEXT, ("batch", t.LongType()), **{setting: "b"})(),
            frame_of_files(TEXT, ("b", t.LongType()))(),
        ),
    ),
    (
        frame_of_files(A_DATE, partition_by="day"),
        "leave at least one column to the files",
        frame_of_files(A_DATE, TEXT, partition_by="day"),
    ),
    (
        frame_of_files(TEXT, A_DATE, format="text"),
        "make one string of each row, or use another format",
        lambda: (
            frame_of_files(TEXT, format="text")(),
            frame_of_files(TEXT, A_DATE, format="json")(),
        ),
    ),
    (
        frame_of_files(VALUE, format="csv"),
        r"select base64\(…\) or hex\(…\) of it in the query, or use another format",
        lambda: (
            frame_of_files(TEXT, format="csv")(),
            frame_of_files(VALUE, format="parquet")(),
        ),
    ),
    *(
        (
            frame_of_files(("x", kind), format="json"),
            r'make a text of it in the query, to_json\(`x`\), or use format="(\w+)"',
            lambda kept: (
                frame_of_files(TEXT, format="json")(),
                frame_of_files(("x", t.VariantType()), format=kept)(),
            ),
        )
        for kind in (t.VariantType(), t.ArrayType(t.VariantType()))
    ),
    (
        frame_of_files(("x", t.ByteType()), format="avro"),
        "cast it to (int) in the query",
        lambda kind: frame_of_files(("x", t.IntegerType()), format="avro")(),
    ),
]


@pytest.mark.parametrize(("wrong", "says", "does"), FILES, ids=case_name)
def test_files_as_they_are_asked_for(wrong: Wrong, says: str, does: Done):
    follow_whole(wrong, says, does)
