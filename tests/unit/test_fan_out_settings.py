"""What a fan-out refuses when it is built. Nothing is connected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import onceward as ow
from onceward.errors import ConfigurationError
from onceward.kafka.ledger.chain import KafkaChain

SERVERS = "localhost:9092"


def kafka(**more: Any) -> ow.KafkaSink:
    return ow.KafkaSink(
        **{"bootstrap_servers": SERVERS, "topic": "out", "pipeline_id": "p", **more}
    )


def database(**more: Any) -> ow.DatabaseSink:
    return ow.DatabaseSink(
        **{"url": "postgresql://u:p@h/d", "table": "t", "pipeline_id": "p", **more}
    )


def files(tmp_path: Path, **more: Any) -> ow.FileSink:
    given = {"path": tmp_path, "pipeline_id": "p", "ledger": ow.KafkaLedger(SERVERS)}
    return ow.FileSink(**{**given, **more})


def test_one_decides_and_comes_last(tmp_path: Path):
    sink = ow.FanOut(
        {"topic": kafka(), "files": files(tmp_path)}, select={"files": lambda frame: frame}
    )
    assert repr(sink) == "FanOut(pipeline_id='p', files, topic; decided by topic)"
    target = sink.new_target()
    target.close()


def test_a_ledger_may_decide(tmp_path: Path):
    ledger = ow.FolderLedger(tmp_path / "ledger")
    sinks = {name: files(tmp_path / name, ledger=ledger) for name in ("one", "two")}
    assert repr(ow.FanOut(sinks)).endswith("one, two; decided by the ledger)")


def test_a_database_may_decide(tmp_path: Path):
    ledger = ow.DatabaseLedger("postgresql://u:p@h/d")
    assert "decided by table" in repr(
        ow.FanOut({"table": database(), "files": files(tmp_path, ledger=ledger)})
    )


@pytest.mark.parametrize(
    ("sinks", "said"),
    [
        (lambda path: [kafka(), files(path)], "two sinks or more, by names"),
        (lambda path: {"one": kafka()}, "two sinks or more, by names"),
        (lambda path: {"a topic": kafka(), "files": files(path)}, "named 'a topic'"),
        (lambda path: {"topic": kafka(), "files": print}, "files: a builtin_function_or_method"),
        (
            lambda path: {
                "topic": kafka(),
                "more": ow.FanOut({"topic": kafka(), "files": files(path)}),
            },
            "more: a FanOut",
        ),
        (
            lambda path: {"topic": kafka(), "other": kafka(topic="other")},
            "topic and other would each decide",
        ),
        (
            lambda path: {"topic": kafka(), "table": database()},
            "topic and table would each decide",
        ),
        (
            lambda path: {"topic": kafka(), "files": files(path, pipeline_id="q")},
            "are one pipeline",
        ),
        (
            lambda path: {"topic": kafka(), "files": files(path, batch_attempts=1)},
            "are one pipeline",
        ),
        (lambda path: {"topic": kafka(), "files": files(path, ledger=None)}, "keep one ledger"),
        (
            lambda path: {"topic": kafka(ledger_topic="other"), "files": files(path)},
            "keep one ledger",
        ),
        (
            lambda path: {"topic": kafka(delivery="at_least_once"), "files": files(path)},
            "are one pipeline",
        ),
    ],
)
def test_what_cannot_be_decided_in_one_step_is_refused(tmp_path: Path, sinks: Any, said: str):
    with pytest.raises(ConfigurationError, match=said):
        ow.FanOut(sinks(tmp_path))


@pytest.mark.parametrize(
    ("select", "said"),
    [
        ({"file": lambda frame: frame}, "'file', which is none of the sinks"),
        ({"files": "value"}, "is no function"),
    ],
)
def test_functions_are_for_sinks_that_are_there(tmp_path: Path, select: Any, said: str):
    with pytest.raises(ConfigurationError, match=said):
        ow.FanOut({"topic": kafka(), "files": files(tmp_path)}, select=select)


def test_the_chain_of_all_stays_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    closed: list[KafkaChain] = []
    monkeypatch.setattr(KafkaChain, "close", lambda chain: closed.append(chain))
    target = ow.FanOut({name: files(tmp_path / name) for name in ("one", "two")}).new_target()
    assert target.chain not in closed
    assert len(closed) == 1
