"""Makes golden.json: what the Java client and librdkafka write for the same records. Run by hand,
once a Kafka version.

    python tests/records/golden/make_golden.py

Needs a JDK (the Java part is a single source file) and starts a broker, whose log segments hold
librdkafka's batches as they came.
"""

from __future__ import annotations

import json
import random
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from onceward_testing import LocalKafka
from onceward_testing.kafka_distribution import class_path

HERE = Path(__file__).parent
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
FIRST_MS = 1_700_000_000_000


def golden_records() -> list[dict[str, Any]]:
    """Every edge of the format at least once: nulls, empties, each varint width, headers, times
    going back.
    """
    rng = random.Random(20_240_607)
    records = []
    for i in range(160):
        key = None if i % 7 == 3 else rng.randbytes((0, 3, 10, 11, 12, 13, 40, 64, 200)[i % 9])
        value = None if i % 11 == 5 else (b"%d:" % i) * rng.choice((0, 1, 5, 20, 30, 60))
        headers = [
            (f"h{j}é" * j, None if j == 2 else rng.randbytes(j * 5))
            for j in range((0, 0, 0, 1, 4)[i % 5])
        ]
        moment = FIRST_MS + (
            0 if i == 0 else rng.choice((0, -1, 63, 64, -65, 9_000, -2_000_000, 40_000_000_000))
        )
        records.append(
            {
                "timestamp": moment,
                "key": _hex(key),
                "value": _hex(value),
                "headers": _pairs(headers),
            }
        )
    records.append(
        {"timestamp": FIRST_MS, "key": _hex(b"long"), "value": _hex(b"ab" * 10_000), "headers": []}
    )
    return records


def _hex(data: bytes | None) -> str | None:
    return None if data is None else data.hex()


def _pairs(headers: list[tuple[str, bytes | None]]) -> list[list[str | None]]:
    return [[name, _hex(value)] for name, value in headers]


def of_java(records: list[dict[str, Any]]) -> dict[str, Any]:
    """Names to hex, and the murmur2 hashes."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as lines:
        for record in records:
            headers = [
                f"x{name.encode().hex()}={_field(value)}" for name, value in record["headers"]
            ]
            print(
                record["timestamp"],
                _field(record["key"]),
                _field(record["value"]),
                *headers,
                file=lines,
            )
        lines.flush()
        command = [
            "java",
            "-Xmx128m",
            "-cp",
            class_path("4.3.1"),
            str(HERE / "Golden.java"),
            lines.name,
        ]
        out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    made: dict[str, Any] = {"murmur2": []}
    for line in out.splitlines():
        name, *rest = line.split(" ")
        if name == "murmur2":
            made["murmur2"].append([rest[0].removeprefix("x"), int(rest[1])])
        else:
            made[name] = rest[0]
    return made


def of_librdkafka(records: list[dict[str, Any]]) -> dict[str, str]:
    """Codec names to the hex of what the broker stored."""
    made = {}
    with LocalKafka() as kafka:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        for created in admin.create_topics([NewTopic(codec, 1, 1) for codec in CODECS]).values():
            created.result()
        for codec in CODECS:
            producer = Producer(
                {
                    "bootstrap.servers": kafka.bootstrap_servers,
                    "compression.type": codec,
                    "linger.ms": 500,
                }
            )
            for record in records:
                producer.produce(
                    codec,
                    key=_bytes(record["key"]),
                    value=_bytes(record["value"]),
                    headers=[(name, _bytes(value)) for name, value in record["headers"]],
                    timestamp=record["timestamp"],
                )
            producer.flush()
            dump = kafka.kafka_tool("kafka-log-dirs", "--describe", "--topic-list", codec)
            folder = json.loads(dump[dump.index("{") :])["brokers"][0]["logDirs"][0]["logDir"]
            made[codec] = Path(folder, f"{codec}-0", "00000000000000000000.log").read_bytes().hex()
    return made


def _field(text: str | None) -> str:
    return "-" if text is None else f"x{text}"


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text)


def main() -> None:
    """Write golden.json beside this file."""
    records = golden_records()
    golden = {"records": records, "java": of_java(records), "librdkafka": of_librdkafka(records)}
    HERE.joinpath("golden.json").write_text(json.dumps(golden, indent=0) + "\n")


if __name__ == "__main__":
    main()
