"""I12: passwords, keys and tokens of a whole pipeline, its failures included, are in nothing that
anybody reads.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from secured_cluster import PASSWORD, SecuredKafka
from test_logins import encoded

import fault_table
from onceward.kafka.wire.acls import minimal_acls
from onceward_testing.job_process import spark_home
from support.certificates import KEY_PASSWORD

JOB = Path(__file__).with_name("secret_job.py")
JOB_SECONDS = 600
LOG4J = """
rootLogger.level = info
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d %p %c: %m%n%ex
logger.kafka.name = org.apache.kafka
logger.kafka.level = debug
logger.connector.name = org.apache.spark.sql.kafka010
logger.connector.level = trace
logger.spark.name = org.apache.spark
logger.spark.level = debug
logger.plans.name = org.apache.spark.sql.catalyst.rules
logger.plans.level = trace
"""
ENDINGS = {
    "wrong password of the source": "AuthenticationFailed",
    "wrong password of the sink": "AuthenticationFailed",
    "wrong key password": "FileUnreadable",
    "right missing": "AccessDenied",
    "task error": "NoneType",
    "token": "NoneType",
    "fenced": "Fenced",
    "good": "NoneType",
    "at least once": "NoneType",
}


def disguises(raw: bytes) -> dict[str, bytes]:
    """The secret as it is, and as bytes are printed: base64 wherever it may begin, hexadecimal,
    lists of numbers.
    """
    forms = {
        "plain": raw,
        "Python's": repr(raw)[2:-1].encode(),
        "hex": raw.hex().encode(),
        "numbers": ", ".join(map(str, raw)).encode(),
        "Java's": ", ".join(str(byte - 256 if byte > 127 else byte) for byte in raw).encode(),
    }
    for shift in range(3):
        text = base64.b64encode(b"\0" * shift + raw)
        forms[f"base64+{shift}"] = text[4 if shift else 0 : -4]
    return forms


def everything(folder: Path) -> Iterator[tuple[Path, bytes]]:
    for file in sorted(folder.rglob("*")):
        if file.is_file() and not file.is_symlink() and file.suffix != ".jar":
            yield file, file.read_bytes()


def a_token() -> str:
    claims = {
        "sub": "etl",
        "iat": time.time() - 60,
        "exp": time.time() + 3_600,
        "canary": "the-canary-sings-Tok3",
    }
    return ".".join([encoded({"alg": "none"}), encoded(claims), ""])


@pytest.mark.slow
@pytest.mark.timeout(JOB_SECONDS + 100)
@pytest.mark.fault("wrong-password")
@pytest.mark.fault("acl-denied")
@pytest.mark.parametrize("secured", ["4.3.1"], indirect=True)
def test_no_secret_is_anywhere(
    secured: SecuredKafka, new_topic: Any, tmp_path: Path, read_uncommitted: Any
) -> None:
    folder, settings = tmp_path / "job", tmp_path / "settings.json"
    folder.mkdir()
    given = job_settings(secured, new_topic, folder) | {"tokens": str(tmp_path / "tokens")}
    settings.write_text(json.dumps(given))
    (folder / "log4j2.properties").write_text(LOG4J)
    with (folder / "console.log").open("w") as console:
        environment = {
            **os.environ,
            "SPARK_HOME": str(spark_home(folder)),
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        command = [sys.executable, str(JOB), str(settings)]
        ended = subprocess.run(
            command,
            env=environment,
            stdout=console,
            stderr=subprocess.STDOUT,
            timeout=JOB_SECONDS,
            check=False,
        )
    assert ended.returncode == 0, (folder / "console.log").read_text()[-4_000:]

    said = (folder / "said.txt").read_text()
    for name, error in ENDINGS.items():
        fault_table.fired(
            f"### {name}: Onceward says {error}\n" in said, f"{name} ended with {error}"
        )
    for topic in (given["ledger"], given["output"]):
        records = read_uncommitted(secured.kafka.bootstrap_servers, topic)
        fault_table.fired(records, f"there is something in {topic}")
        (folder / f"topic-{topic}").write_bytes(
            b"\n".join((m.key() or b"") + (m.value() or b"") for m in records)
        )
    texts = dict(everything(folder))
    assert_all_was_seen(texts)
    sequencers = [bytes.fromhex(line) for line in Path(given["tokens"]).read_text().split()]
    secrets = [
        text.encode()
        for text in (PASSWORD, KEY_PASSWORD, given["token"].split(".")[1], key_of(given))
    ]
    found = [
        f"{secret[:12]!r}… as {form} in {file.relative_to(folder)}"
        for secret in [*secrets, *sequencers]
        for form, looked_for in disguises(secret).items()
        for file, text in texts.items()
        if looked_for in text
    ]
    assert not found, "\n".join(found)


def assert_all_was_seen(texts: dict[Path, bytes]) -> None:
    """Every place where a secret might be has been looked at, and looked as it had to."""
    wanted = {
        "said.txt": b"*********(redacted)",
        "python.log": b"DEBUG:py4j",
        "console.log": b" DEBUG org.apache.kafka",
        "pages.txt": b"MapInArrow",
        "stderr": b" DEBUG org.apache.kafka",
        "events": b"SparkListenerSQLExecutionStart",
        "checkpoint": b"batchWatermarkMs",
        "processes.txt": b"worker_daemon",
    }
    for place, sign in wanted.items():
        seen = [text for file, text in texts.items() if place in file.parts or file.name == place]
        fault_table.fired(any(sign in text for text in seen), f"{place} holds {sign!r}")
    console = b"".join(text for file, text in texts.items() if file.name == "console.log")
    fault_table.fired(
        b"sasl.jaas.config = [hidden]" in console, "Kafka's clients log their settings"
    )


def job_settings(secured: SecuredKafka, new_topic: Any, folder: Path) -> dict[str, Any]:
    keepers = secured.kafka.bootstrap_servers
    topics = {name: new_topic(keepers, prefix=name) for name in ("source", "output", "forbidden")}
    ledger = new_topic(keepers, prefix="ledger", cleanup_policy="compact")
    pipeline = f"secret-{topics['source']}"
    secured.grant(
        minimal_acls(
            pipeline_id=pipeline,
            topics=[topics["output"]],
            source_topics=[topics["source"]],
            ledger_topic=ledger,
            ledger_exists=True,
        )
    )
    return {
        "folder": str(folder),
        "keepers": keepers,
        "servers": secured.bootstrap(),
        "token_servers": secured.bootstrap("TOKEN"),
        "options": {**secured.options(), **secured.client_certificate()},
        "token": a_token(),
        "pipeline": pipeline,
        "ledger": ledger,
        **topics,
    }


def key_of(given: dict[str, Any]) -> str:
    """A line out of the middle of the client's key."""
    lines: list[str] = given["options"]["ssl.keystore.key"].splitlines()
    return lines[len(lines) // 2]


def test_a_secret_would_be_found() -> None:
    text = f"password={PASSWORD}!".encode()
    for form, looked_for in disguises(PASSWORD.encode()).items():
        ways = (
            text,
            text.hex().encode(),
            str(list(text)).encode(),
            *(base64.b64encode(b"x" * n + text) for n in range(3)),
        )
        assert any(looked_for in way for way in ways), form
