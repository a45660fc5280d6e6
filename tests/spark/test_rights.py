"""ACLs: what ``onceward doctor --acls`` prints is enough, and each of its lines is needed."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from secured_cluster import PRINCIPAL, SecuredKafka, SecuredPipeline
from typer.testing import CliRunner

import fault_table
import onceward
from onceward.cli import app
from onceward.cli.doctor.consumers import check_consumers
from onceward.cli.doctor.kinds import CheckResult
from onceward.errors import AccessDenied, CommitInDoubt, PartitionsAdded
from onceward.kafka.wire.acls import Acl, Kind, Need, minimal_acls
from support.errors import raises

RECORDS = 60  # two batches

_EXAMPLE = minimal_acls(
    pipeline_id="p", topics=["out"], source_topics=["in"], ledger_topic="ledger"
)
NEEDED = [acl for acl in _EXAMPLE if acl.need is not Need.OPTIONAL]
NAMES = [f"{acl.operation}-{acl.kind.value}-{acl.name}" for acl in NEEDED]


def printed(pipeline: SecuredPipeline, *more: str) -> list[list[str]]:
    """The arguments of every ``kafka-acls`` line that the doctor prints; comments are none."""
    arguments = ["doctor", "--acls", "--pipeline-id", pipeline.name, "--topic", pipeline.output]
    arguments += [
        "--source-topic",
        pipeline.source,
        "--ledger-topic",
        pipeline.ledger_topic,
        "--principal",
        PRINCIPAL,
    ]
    result = CliRunner().invoke(app, [*arguments, *more])
    assert result.exit_code == 0, result.output
    lines = [shlex.split(line, comments=True) for line in result.output.splitlines()]
    commands = [line for line in lines if line]
    assert all(line[:3] == ["kafka-acls", "--bootstrap-server", "$BOOTSTRAP"] for line in commands)
    return [line[3:] for line in commands]


@pytest.mark.fault("acl-denied")
def test_the_printed_lines_are_enough(
    secured: SecuredKafka, secured_pipeline: SecuredPipeline
) -> None:
    pipeline = secured_pipeline
    pipeline.feed(RECORDS)
    for line in printed(pipeline):
        secured.kafka.kafka_tool("kafka-acls", *line)
    pipeline.run()
    pipeline.assert_exactly_once()
    assert pipeline.lag() == {(pipeline.source, 0): 0, (pipeline.source, 1): 0}
    # And the right to create the ledger is not needed any longer.
    secured.revoke(acl for acl in pipeline.acls() if acl.need is Need.FIRST_START)
    pipeline.feed(20)
    pipeline.run()
    pipeline.assert_exactly_once()
    assert printed(pipeline, "--ledger-exists") == [
        line for line in printed(pipeline) if "Create" not in line
    ]


@pytest.mark.fault("acl-denied")
def test_a_pattern_finds_what_its_prefix_allows_and_nothing_else(
    secured: SecuredKafka, secured_pipeline: SecuredPipeline
) -> None:
    """Brokers leave out what may not be described: neither Spark nor anybody else hears of it."""
    pipeline = secured_pipeline
    prefix, pattern = f"{pipeline.name}-mine", f"{pipeline.name}-.*"
    pipeline.source = pipeline.topic(2, prefix=prefix)
    pipeline.feed(RECORDS)
    pipeline.feed(
        [(b"of another", b"topic")], topic=pipeline.topic(1, prefix=f"{pipeline.name}-others")
    )
    pipeline.fed.pop()
    secured.grant(
        acl
        for acl in pipeline.acls(source_topics=[], source_prefixes=[prefix])
        if acl.need is not Need.OPTIONAL
    )
    pipeline.run(frame=pipeline.frame(topic_pattern=pattern))
    pipeline.assert_exactly_once()
    pipeline.feed(20)
    group = {
        "topic_pattern": pattern,
        "starting": "group",
        "pipeline_id": pipeline.name,
        "otherwise": "error",
    }
    pipeline.run(
        frame=pipeline.frame(**group),
        resume="ledger",
        checkpoint=pipeline.checkpoint.with_name("another"),
    )
    pipeline.assert_exactly_once()


@pytest.mark.fault("acl-denied")
@pytest.mark.parametrize("passes_over", [False, True], ids=["fails on loss", "passes it over"])
def test_a_right_to_one_topic_of_a_pattern_that_is_away_for_a_while(
    secured: SecuredKafka, secured_pipeline: SecuredPipeline, passes_over: bool
) -> None:
    """Spark logs a batch without the topic, would stop for good, or read it from its first record
    once more.
    """
    pipeline = secured_pipeline
    pattern = f"{pipeline.name}-.*"
    mine, others = (pipeline.topic(1, prefix=f"{pipeline.name}-{each}") for each in "ab")
    needed = pipeline.acls(source_topics=[mine, others])
    secured.grant(acl for acl in needed if acl.need is not Need.OPTIONAL)
    options = {"spark_options": {"failOnDataLoss": not passes_over}, "topic_pattern": pattern}
    for topic in (mine, others):
        pipeline.feed([(b"key", b"1 of " + topic.encode())], topic=topic)
    pipeline.run(frame=pipeline.frame(**options))
    gone = [acl for acl in needed if acl.name == others]
    secured.revoke(gone)
    pipeline.feed([(b"key", b"2 of " + mine.encode())], topic=mine)
    pipeline.feed([(b"key", b"2 of " + others.encode())], topic=others)
    denied = pipeline.refused(frame=pipeline.frame(**options))
    assert type(denied) is AccessDenied
    assert denied.details["resource"] == f"topic {others}"
    assert "remove the file offsets/1" in denied.next_step
    with raises(AccessDenied, others):
        ledger = {"starting": "ledger", "ledger_topic": pipeline.ledger_topic}
        pipeline.frame(**options, **ledger, pipeline_id=pipeline.name)
    secured.grant(gone)
    for trigger in ({"availableNow": True}, {"processingTime": "0 seconds"}):
        planned = pipeline.refused(frame=pipeline.frame(**options), trigger=trigger)
        assert type(planned) is PartitionsAdded
        assert planned.details["topics"] == [others]
    onceward.supervise(lambda: pipeline.start(frame=pipeline.frame(**options)))
    pipeline.assert_exactly_once()


@pytest.mark.fault("acl-denied")
def test_the_doctor_warns_of_readers_that_it_may_not_look_at(
    secured: SecuredKafka, secured_pipeline: SecuredPipeline, tmp_path: Path
) -> None:
    pipeline, group = secured_pipeline, f"readers-of-{secured_pipeline.output}"
    pipeline.feed(10, topic=pipeline.output)
    consumer = Consumer({"bootstrap.servers": pipeline.bootstrap, "group.id": group})
    consumer.commit(offsets=[TopicPartition(pipeline.output, 0, 5)], asynchronous=False)
    consumer.close()
    login = tmp_path / "client.properties"
    login.write_text("".join(f"{name}={value}\n" for name, value in secured.options().items()))

    def found() -> list[CheckResult]:
        every = check_consumers(secured.bootstrap(), login, [pipeline.output])
        assert "fail" not in {finding.status for finding in every}, every
        return every

    (hidden,) = [one for one in found() if "brokers do not tell of others" in one.what]
    assert hidden.status == "warn"
    assert "Describe on the cluster" in hidden.next_step
    describe = [(Kind.GROUP, group), (Kind.TOPIC, pipeline.output)]
    secured.grant([Acl("Describe", kind, name, Need.ALWAYS, "") for kind, name in describe])
    (unread,) = [finding for finding in found() if "Read on topic" in finding.what]
    assert unread.status == "warn"
    assert pipeline.output in unread.what
    secured.grant([Acl("Read", Kind.TOPIC, pipeline.output, Need.ALWAYS, "")])
    (told,) = [finding for finding in found() if group in finding.what]
    assert "its isolation level cannot be told" in told.what


def assert_names(error: onceward.OncewardError, acl: Acl) -> None:
    """Resource and operation; ``Describe``, which ``acl`` would have included, is said to be
    included.
    """
    assert isinstance(error, AccessDenied | CommitInDoubt), error
    assert acl.name in str(error)
    assert acl.operation in str(error)
    assert "doctor --acls" in str(error)


@pytest.mark.fault("acl-denied")
@pytest.mark.parametrize("position", range(len(NEEDED)), ids=NAMES)
def test_without_any_one_of_them_it_fails_closed_and_says_which(
    secured: SecuredKafka, secured_pipeline: SecuredPipeline, position: int
) -> None:
    pipeline = secured_pipeline
    pipeline.feed(RECORDS)
    missing = pipeline.needed()[position]
    secured.grant(acl for acl in pipeline.needed() if acl != missing)
    assert_names(pipeline.refused(), missing)
    assert pipeline.visible() == []
    secured.grant([missing])
    pipeline.run()
    pipeline.assert_exactly_once()


WITHDRAWN = [
    pytest.param("plan", "Read", "topic", "source", id="source-plan", marks=pytest.mark.slow),
    pytest.param("plan", "Write", "topic", "output", id="output-plan", marks=pytest.mark.slow),
    pytest.param("offsets", "Read", "group", "name", id="group-offsets", marks=pytest.mark.slow),
    pytest.param(
        "ledger", "Write", "topic", "ledger_topic", id="ledger-ledger", marks=pytest.mark.slow
    ),
    pytest.param(
        "send",
        "Write",
        "transactional-id",
        "name",
        id="transactional-id-send",
        marks=pytest.mark.slow,
    ),
    pytest.param("commit", "Write", "transactional-id", "name", id="transactional-id-commit"),
]


@pytest.mark.fault("acl-denied")
@pytest.mark.parametrize(("step", "operation", "kind", "named"), WITHDRAWN)
def test_a_right_that_is_withdrawn_in_the_middle_stops_the_batch_whole(
    secured: SecuredKafka,
    secured_pipeline: SecuredPipeline,
    at_step: Any,
    step: str,
    operation: str,
    kind: str,
    named: str,
) -> None:
    pipeline = secured_pipeline
    pipeline.feed(RECORDS)
    secured.grant(pipeline.needed())
    resource = getattr(pipeline, named)
    (gone,) = [
        a
        for a in pipeline.needed()
        if (a.operation, a.kind.value, a.name) == (operation, kind, resource)
    ]
    withdrawn = at_step(step, "started", lambda _: secured.revoke([gone]), nth=2)
    error = pipeline.refused()
    assert isinstance(error, CommitInDoubt if step == "commit" else AccessDenied)
    fault_table.fired(withdrawn.fired.is_set(), "the right was withdrawn in the second batch")
    assert_names(error, gone)
    assert len(pipeline.visible()) == 40
    secured.grant([gone])
    pipeline.run()
    pipeline.assert_exactly_once()
