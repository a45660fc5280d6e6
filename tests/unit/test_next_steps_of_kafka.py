"""Whoever does what an error of the Kafka sink's settings, options or columns says is done. Each
row has what was wrong, a pattern whose groups are what the next step offers, and what doing it
comes to; none of them needs Spark or a server.
"""

from __future__ import annotations

import re
import socket
import subprocess
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import types as t

import onceward as ow
from onceward.ids import topic_name
from onceward.kafka.sink import columns
from onceward.kafka.sink.settings import TokensAsBuilt
from onceward.kafka.wire.options import settings as options_of
from onceward.kafka.wire.options.security import security_from_options, tls_context
from support.certificates import KEY_PASSWORD, make_certificates
from support.next_steps import Done, Row, Wrong, follow, named

CONFIGURATION = Path(__file__).parents[2] / "docs/reference/configuration.md"


def sink(options: Mapping[str, Any] | None = None, /, **more: Any) -> ow.KafkaSink:
    where = {"bootstrap_servers": "b:9092", "pipeline_id": "p", "topic": "out"}
    return ow.KafkaSink(**where | more, options=options or {})


class Tokens:
    def token(self) -> str:
        return "t"


WITH: dict[str, dict[str, Any]] = {
    "compression.level": {"compression.type": "zstd"},
    "compression.gzip.level": {"compression.type": "gzip"},
    "compression.lz4.level": {"compression.type": "lz4"},
    "compression.zstd.level": {"compression.type": "zstd"},
    "batch.size": {"max.request.size": 2**29},
    "max.request.size": {"batch.size": 1000},
    "request.timeout.ms": {"delivery.timeout.ms": 2**31 - 1},
    "delivery.timeout.ms": {"request.timeout.ms": 1},
}


IN_FLIGHT = "max.in.flight.requests.per.connection"


@pytest.mark.parametrize("name", sorted(set(options_of._NUMBERS) - {IN_FLIGHT}))
def test_each_end_of_a_range_is_taken(name: str) -> None:
    def done(least: str, most: str) -> None:
        for end in (least, most):
            sink({**WITH.get(name, {}), name: end})

    follow(lambda: sink({name: "-99999999999"}), r"^use (-?\d+) to (\d+)$", done)


@pytest.mark.parametrize("name", sorted(options_of._OURS))
def test_what_onceward_decides_is_removed(name: str) -> None:
    given = {name: "1", "batch.size": 1000}

    def done(removed: str) -> None:
        sink({each: value for each, value in given.items() if each != removed})

    follow(lambda: sink(given), r"^remove (\S+)$", done)


def login(mechanism: str, protocol: str = "SASL_SSL", **more: str) -> dict[str, Any]:
    named = {"sasl.username": "u", "sasl.password": "p"}
    secret = named if mechanism != "OAUTHBEARER" and not more else {}
    given = {name.replace("__", "."): value for name, value in more.items()}
    return {"security.protocol": protocol, "sasl.mechanism": mechanism} | secret | given


def jaas(module: str) -> dict[str, Any]:
    return {"sasl__jaas__config": f'o.{module} required username="u" password="p";'}


def named_in_the_documentation() -> None:
    known = CONFIGURATION.read_text()
    missing = [name for name in options_of.OPTIONS if f"`{name}`" not in known]
    assert not missing


def protocols(*offered: str) -> None:
    for protocol in offered:
        sink(login("PLAIN", protocol)) if "SASL" in protocol else sink(
            {"security.protocol": protocol}
        )
        security_from_options({"security.protocol": protocol, "ssl.ca.location": __file__} | (
            login("PLAIN", protocol) if "SASL" in protocol else {}), None)  # fmt: skip


OPTIONS: list[Row] = [
    (
        lambda: sink({"batch.size": [1]}),
        r"correct (\S+) in options",
        lambda name: sink({name: 65536}),
    ),
    (
        lambda: sink({"xyz": 1}),
        r"list of Kafka options in the documentation",
        named_in_the_documentation,
    ),
    (
        lambda: sink({"compression.typ": "lz4"}),
        r"did you mean '(.*)'",
        lambda name: sink({name: "lz4"}),
    ),
    (
        lambda: sink({"max.request.size": 2000, "batch.size": 3000}),
        r"raise (\S+) or lower (\S+)",
        lambda raised, lowered: (
            sink({raised: 3000, "batch.size": 3000}),
            sink({"max.request.size": 2000, lowered: 2000}),
        ),
    ),
    (
        lambda: sink(bootstrap_servers=9092),
        r'write "(.*)", or a list of such texts',
        lambda text: [
            sink(bootstrap_servers=each)
            for each in (text.replace("port", "1"), [text.replace("port", "1")] * 2)
        ],
    ),
    (
        lambda: sink({"acks": "1"}, delivery="at_least_once"),
        r"remove (\w+) \(it is 'all'\)$",
        lambda name: sink(delivery="at_least_once"),
    ),
    (
        lambda: sink({"acks": "0"}, delivery="none"),
        r"remove (\w+) .* or use acks=(\d)",
        lambda name, acks: (sink(delivery="none"), sink({name: acks}, delivery="none")),
    ),
    (
        lambda: sink(oauth_token_provider="t"),
        r"an object whose (\w+)\(\) returns the token, or leave it out",
        lambda method: (
            sink(oauth_token_provider=type("T", (), {method: lambda self: "t"})()),
            sink(),
        ),
    ),
    (
        lambda: sink({"ssl.ca.location": __file__}),
        r"set security.protocol to (\w+) or (\w+), or remove ssl.ca.location",
        protocols,
    ),
    (
        lambda: sink(login("GSSAPI")),
        r"use one of (.*)",
        lambda offered: [
            sink(login(each), oauth_token_provider=Tokens()) for each in offered.split(", ")
        ],
    ),
    *(
        (
            lambda wrong=wrong, module=module: sink(login(wrong, **jaas(module))),
            r"set sasl.mechanism to (\S+)(?: or (\S+))?$",
            lambda *right, module=module: [
                sink(login(each, **jaas(module))) for each in filter(None, right)
            ],
        )
        for wrong, module in [("PLAIN", "ScramLoginModule"), ("SCRAM-SHA-256", "PlainLoginModule")]
    ),
]  # fmt: skip


@pytest.mark.parametrize(("wrong", "says", "done"), OPTIONS, ids=named(OPTIONS))
def test_options(wrong: Wrong, says: str, done: Done) -> None:
    follow(wrong, says, done)


def test_files_of_tls(tmp_path: Path) -> None:
    make_certificates(tmp_path)
    tls = {"security.protocol": "SSL"}
    later = tmp_path / "later.pem"

    def placed() -> None:
        later.write_bytes((tmp_path / "authority.crt").read_bytes())
        tls_context(security_from_options(tls | {"ssl.ca.location": str(later)}, None))

    wrong: dict[str, Any] = tls | {"ssl.ca.location": str(later)}
    follow(
        lambda: security_from_options(wrong, None), "give a PEM file that .* at this path", placed
    )
    store = tls | {"ssl.truststore.location": "trust.jks", "ssl.truststore.type": "JKS"}
    pem = {"truststore.pem": str(later)}
    follow(
        lambda: security_from_options(store, None),
        r"and set (\S+)=(\w+) and (\S+)=(\S+)$",
        lambda kind, word, place, file: tls_context(
            security_from_options(store | {kind: word, place: pem[file]}, None)
        ),
    )
    locked = tls | {
        "ssl.certificate.location": str(tmp_path / "client.crt"),
        "ssl.key.location": str(tmp_path / "client.locked"),
    }
    follow(
        lambda: tls_context(security_from_options(locked, None)),
        r"and (ssl\.\S+) if the key is encrypted",
        lambda name: tls_context(security_from_options(locked | {name: KEY_PASSWORD}, None)),
    )


def of_openssl(folder: Path, commands: str) -> str:
    """Run the command lines of a next step, or some like them; what they print."""
    ran = subprocess.run(
        ["sh", "-ec", commands], cwd=folder, check=True, capture_output=True, text=True
    )
    return ran.stdout


OLD_KEYS = {
    "RSA": "openssl rsa -traditional -in client.key",
    "of Vault": "cat client.crt; openssl rsa -traditional -in client.key",
    "EC": "openssl ecparam -name prime256v1 -genkey",
}


@pytest.mark.parametrize("made_by", OLD_KEYS.values(), ids=list(OLD_KEYS))
def test_keys_that_java_does_not_read(tmp_path: Path, made_by: str) -> None:
    make_certificates(tmp_path)
    file = tmp_path / "old.pem"
    file.write_text(of_openssl(tmp_path, made_by))
    if has_both := "CERTIFICATE" in file.read_text():
        own = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(file)}
    else:
        crt = str(tmp_path / "client.crt")
        own = {"ssl.certificate.location": crt, "ssl.key.location": str(file)}
    tls = {"security.protocol": "SSL", **own}

    def source(options: dict[str, str], *more: str) -> dict[str, str]:
        client, _ = options_of.settings_from_options("b:9093", options, client_id="c")
        if "genkey" not in made_by:  # that is no certificate's
            tls_context(client.security)
        return options_of.spark_source_options(client, options, dict.fromkeys(more, ""))

    def converted(command: str, setting: str, name: str) -> None:
        for each in (command, command.replace("-nocrypt", "-v1 PBE-SHA1-3DES -passout pass:x")):
            of_openssl(tmp_path, each)
            (tmp_path / name).chmod(0o600)
            given = source(tls | {setting: str(tmp_path / name), "ssl.key.password": "x"})
            assert "-----BEGIN EC" not in given["kafka.ssl.keystore.key"]
            assert ("ENCRYPTED" in given["kafka.ssl.keystore.key"]) == (
                "kafka.ssl.key.password" in given
            )

    says = r"; or convert each new one \((openssl [^;]*);.*\) and set (\S+)=(\S+)$"
    follow(lambda: source(tls), says, converted)
    own = source(tls, "kafka.ssl.keystore.location")  # Spark's reader is given one of its own
    keystore = {name for name in own if name.startswith("kafka.ssl.key")}
    assert keystore == {"kafka.ssl.keystore.type"}, "a path of the executors to the same PEM, say"
    if has_both:
        return
    text = {"ssl.keystore.certificate.chain": (tmp_path / "client.crt").read_text()}
    follow(
        lambda: source({"security.protocol": "SSL", **text, "ssl.keystore.key": file.read_text()}),
        r"pass its text as (\S+)$",
        lambda name: source(
            {"security.protocol": "SSL", **text, name: (tmp_path / "client.key").read_text()}
        ),
    )


def test_a_java_keystore_becomes_files_that_java_reads_as_well(tmp_path: Path) -> None:
    make_certificates(tmp_path)
    of_openssl(
        tmp_path,
        "openssl pkcs12 -export -inkey client.key -in client.crt -certfile authority.crt "
        "-passout pass:x -out keystore.p12",
    )
    store = {"security.protocol": "SSL", "ssl.keystore.location": str(tmp_path / "keystore.jks")}

    def converted(first: str, second: str, kind: str, word: str, place: str, name: str) -> None:
        for command in (first, second):
            of_openssl(tmp_path, command.replace("-in", "-passin pass:x -in"))
        options = store | {kind: word, place: str(tmp_path / name)}
        options["ssl.keystore.password"] = "x"
        client, _ = options_of.settings_from_options("b:9093", options, client_id="c")
        tls_context(client.security)
        given = options_of.spark_source_options(client, options)
        assert "-----BEGIN PRIVATE KEY-----" in (tmp_path / name).read_text()
        assert "kafka.ssl.key.password" not in given, "Java would decrypt a key in clear"

    follow(
        lambda: security_from_options(store, None),
        r"PKCS12; (openssl .*?); (openssl .*?)\) and set (\S+)=(\w+) and (\S+)=(\S+)$",
        converted,
    )


def test_a_properties_file(tmp_path: Path) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    good.write_text("a=b")
    bad.write_text("justaname")
    for wrong in (tmp_path / "none", bad):
        follow(
            partial(options_of.read_properties, wrong),
            r"^correct --command-config$",
            partial(options_of.read_properties, good),
        )


def both_ends(setting: str, least: str, most: str | None) -> None:
    for end in filter(None, (least, most)):
        sink(**{setting: int(end)})


class Opened:
    """Opens something at once, and not as one is told to."""

    def __init__(self) -> None:
        self.socket: Any = socket.socket()
        self.socket.close()

    def token(self) -> str:
        return "t"


class Lazy(Opened):
    def __init__(self) -> None:
        self.socket = None


def without(attribute: str) -> Any:
    class Kept(Opened):
        def __getstate__(self) -> dict[str, Any]:
            return {}

    assert attribute == "__getstate__"
    return Kept()


SINK: list[Row] = [
    *(
        (
            lambda setting=setting: sink(**{setting: -1}),
            r"set (\w+) to a whole number (?:from|of at least) (\d+)(?: to (\d+))?$",
            both_ends,
        )
        for setting in [
            "driver_records", "driver_bytes", "held_bytes", "sequencer_port",
            "create_topic_partitions",
        ]
    ),
    (
        lambda: sink(order_within="topic"),
        r"pass (\w+)=.*, or leave it out",
        lambda name: (sink(order_within="topic", **{name: ["a", "b"]}), sink()),
    ),
    *(
        (
            lambda name=name: sink(**{name: "x"}),
            r"use one of (\w+), (\w+)",
            lambda *words, name=name: [
                sink(dead_letter_topic="dead", order_by="n",
                     **{name: word == "True" if name == "lineage" else word})
                for word in words
            ],
        )
        for name in ["on_error", "order_within", "lineage"]
    ),
    (
        lambda: TokensAsBuilt(Opened()),
        r"needs in token\(\), and not before; or leave the attribute out by (\w+)\(\)",
        lambda name: (TokensAsBuilt(Lazy()), TokensAsBuilt(without(name))),
    ),
    (
        lambda: sink()._checked(None, "onceward-ledger"),  # type: ignore[arg-type]
        r"write records to a topic of their own",
        lambda: topic_name("own"),
    ),
    (
        lambda: sink(topic="a,b"),
        r"leave topic= out and give the frame a column '(\w+)', or pass one name",
        lambda name: (
            columns.check(frame(value=t.StringType(), **{name: t.StringType()}), None),
            sink(topic=None),
            sink(topic="a"),
        ),
    ),
]  # fmt: skip


def frame(*twice: str, **kinds: t.DataType) -> Any:
    """As much of a DataFrame as the check of columns looks at."""
    fields = [t.StructField(name, kind) for name, kind in kinds.items()]
    fields += [t.StructField(name, t.StringType()) for name in twice]
    return SimpleNamespace(schema=t.StructType(fields))


BYTES, TEXT, INT, LONG = t.BinaryType(), t.StringType(), t.IntegerType(), t.LongType()
KINDS: dict[str, t.DataType] = {
    "binary": BYTES, "string": TEXT, "int": INT, "bigint": LONG,
    "timestamp_ltz": t.TimestampType(),
    "array<struct<key: string, value: binary>>": t.ArrayType(
        t.StructType([t.StructField("key", TEXT), t.StructField("value", BYTES)])
    ),
}  # fmt: skip
SORTABLE: dict[str, list[t.DataType]] = {
    "whole numbers": [t.ByteType(), t.ShortType(), INT, LONG],
    "decimals": [t.DecimalType(9, 2)],
    "texts without a collation": [TEXT],
    "binaries": [BYTES],
    "dates": [t.DateType()],
    "timestamps": [t.TimestampType(), t.TimestampNTZType()],
}
LINEAGE: dict[str, t.DataType] = {
    "source_topic": TEXT, "source_partition": INT, "source_offset": LONG,
}  # fmt: skip


def cast(name: str, offered: str) -> None:
    own = LINEAGE | {"value": TEXT}
    for kind in offered.split(" or "):
        columns.check(frame(**own | {name: KINDS[kind]}), "out", lineage=True)


def sorted_by(offered: str) -> None:
    for words in re.split(", | or ", offered):
        for kind in SORTABLE[words]:
            columns.check(frame(value=TEXT, n=kind), "out", order_by=["n"])


def renamed(offered: str, lineage: str | None = None) -> None:
    right: dict[str, t.DataType] = {"partition": INT, "timestamp": t.TimestampType()}
    right["headers"] = KINDS["array<struct<key: string, value: binary>>"]
    for name in offered.split(", "):
        columns.check(frame(**{"value": TEXT} | {name: right.get(name, TEXT)}), "out")
    columns.check(frame(value=TEXT), "out")
    if lineage is not None:
        columns.check(frame(value=TEXT, **LINEAGE), "out", lineage=lineage == "True")


FRAMES: list[Row] = [
    (
        lambda: columns.check(frame("value", value=TEXT), "out"),
        r"drop or rename one of them",
        lambda: columns.check(frame("key", value=TEXT), "out"),
    ),
    (
        lambda: columns.check(frame(v=TEXT), "out"),
        r"value AS (\w+), as (\w+) or (\w+)",
        lambda name, *kinds: [columns.check(frame(**{name: KINDS[k]}), "out") for k in kinds],
    ),
    (
        lambda: columns.check(frame(value=TEXT), None),
        r"pass topic= to KafkaSink or add a (\w+) column '(\w+)'",
        lambda kind, name: (
            columns.check(frame(value=TEXT), "out"),
            columns.check(frame(value=TEXT, **{name: KINDS[kind]}), None),
        ),
    ),
    (
        lambda: columns.check(frame(value=TEXT), "out", lineage=True),
        r"\*onceward\.(\w+)\(\)\); or leave lineage out",
        lambda name: (
            callable(getattr(ow, name)),
            columns.check(frame(value=TEXT, **LINEAGE), "out", lineage=True),
            columns.check(frame(value=TEXT), "out"),
        ),
    ),
    (
        lambda: columns.check(frame(value=TEXT, Key=TEXT), "out"),
        r"rename them to one of (.*), or leave them out: frame.select\('key', 'value'\)$",
        renamed,
    ),
    (
        lambda: columns.check(frame(value=TEXT, **LINEAGE), "out"),
        r"rename them to one of (.*), or leave them out: .*, or pass lineage=(\w+) to KafkaSink",
        renamed,
    ),
    (
        lambda: columns.check(frame(value=TEXT), "out", order_by=["n"]),
        r"keep the column in the frame",
        lambda: columns.check(frame(value=TEXT, n=LONG), "out", order_by=["n"]),
    ),
    (
        lambda: columns.check(frame(value=TEXT, n=t.DoubleType()), "out", order_by=["n"]),
        r"^order by (.*)$",
        sorted_by,
    ),
    *(
        (
            lambda name=name: columns.check(
                frame(**LINEAGE | {"value": TEXT, name: t.BooleanType()}), "out", lineage=True
            ),
            r"\.withColumn\('(\w+)', F\.col\('\w+'\)\.cast\('(.*)'\)\)$",
            cast,
        )
        for name in [
            "value", "key", "topic", "partition", "timestamp", *LINEAGE,
        ]
    ),
]  # fmt: skip


@pytest.mark.parametrize(("wrong", "says", "done"), SINK, ids=named(SINK))
def test_the_sinks_settings(wrong: Wrong, says: str, done: Done) -> None:
    follow(wrong, says, done)


@pytest.mark.parametrize(("wrong", "says", "done"), FRAMES, ids=named(FRAMES))
def test_columns_of_a_frame(wrong: Wrong, says: str, done: Done) -> None:
    follow(wrong, says, done)
