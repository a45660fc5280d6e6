"""What a fan-out refuses when it is built. Nothing is connected."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import onceward as ow
from onceward.engine.calls.foreach_batch import ForeachBatchSink
from onceward.engine.fan_out import FanOutAttempt
from onceward.errors import ConfigurationError, ContradictoryOptions
from onceward.ids import AttemptId
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
    target = ow.FanOut(
        {name: folder_sink(tmp_path / name) for name in ("one", "two")}
    ).new_target()
    assert target.chain not in closed
    assert len(closed) == 1


LEDGER = ow.KafkaLedger("b:9092")


def upserts(**place: str) -> ow.UpsertSink:
    return ow.UpsertSink(key="id", pipeline_id="p", store="/store", ledger=LEDGER, **place)  # type: ignore[arg-type]


def folder_sink(path: str) -> ow.FileSink:
    return ow.FileSink(path=path, pipeline_id="p", ledger=LEDGER, layout="manifest")


def delta(**place: str) -> ow.DeltaSink:
    return ow.DeltaSink(pipeline_id="p", ledger=LEDGER, **place)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("one", "other", "meet"),
    [
        (
            upserts(url="redis://h", prefix="c:"),
            upserts(url="redis://H:6379/0", prefix="c:"),
            True,
        ),
        (
            upserts(url="redis://h", prefix="c:"),
            upserts(url="redis://h?db=0", prefix="c:d:"),
            True,
        ),
        (upserts(url="redis://h", prefix="c:"), upserts(url="redis://h/1", prefix="c:"), False),
        (upserts(url="redis://h", prefix="c:"), upserts(url="redis://h", prefix="d:"), False),
        (upserts(url="https://h", index="c"), upserts(url="https://h:443/", index="c"), True),
        (upserts(url="https://h", index="c"), upserts(url="https://h", index="cd"), False),
        (folder_sink("/files"), folder_sink("/files/errors"), True),
        (folder_sink("/files"), folder_sink("/files-2"), False),
        (folder_sink("s3a://b/files"), folder_sink("s3a://b/files/"), True),
        (delta(path="/d"), delta(path="file:///d/"), True),
        (delta(path="s3a://b/d"), delta(path="s3://b/d"), True),
        (delta(path="/d"), folder_sink("/d/files"), True),
        (delta(table="db.T"), delta(table="db.t"), True),
        (delta(table="db.t"), delta(table="db.u"), False),
    ],
)
def test_two_sinks_of_one_place_are_refused_however_it_is_spelled(
    one: ForeachBatchSink, other: ForeachBatchSink, meet: bool
) -> None:
    if meet:
        with pytest.raises(ContradictoryOptions):
            ow.FanOut({"one": one, "other": other})
    else:
        ow.FanOut({"one": one, "other": other})


def test_an_interrupted_abort_leaves_no_other_attempt_open():
    """The transaction of the one that decides, above all."""
    ended: list[str] = []

    def attempt(name: str, error: Exception | None = None) -> Any:
        def abort() -> None:
            ended.append(name)
            if error is not None:
                raise error

        return SimpleNamespace(abort=abort)

    branches = {"@a": attempt("a", RuntimeError("stopped")), "@b": attempt("b")}
    target: Any = SimpleNamespace(chain=attempt("the chain"), _branches={})
    for atomic, last in ((attempt("topic"), "topic"), (None, "the chain")):
        ended.clear()
        with pytest.raises(RuntimeError, match="stopped"):
            FanOutAttempt(target, AttemptId(1, 1), atomic, branches).abort()
        assert ended == ["a", "b", last]
