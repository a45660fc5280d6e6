"""``--conserves`` and ``--since`` on a real broker: what the output lost or doubled of its input
is named.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as Position
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from onceward.ids import TopicPartition
from onceward.kafka.records.batch import Fragment, encode_fragments
from onceward.kafka.records.columns import HEADERS_TYPE, RecordColumns
from onceward.kafka.records.compression import Codec
from onceward_testing import LocalKafka
from onceward_verify.conservation import Conservation
from onceward_verify.topics import TopicsQuestion, check_topics
from support.handmade_pipeline import Document, HandmadePipeline
from support.verify_process import verify

EXACTLY = ("--conserves", "exactly")


@pytest.fixture
def handmade(kafka: LocalKafka, new_topic: Callable[..., str]) -> Iterator[HandmadePipeline]:
    pipeline = HandmadePipeline(
        kafka.bootstrap_servers, f"by-hand-{uuid.uuid4().hex[:10]}", new_topic
    )
    yield pipeline
    pipeline.close()


def naming(pipeline: HandmadePipeline, offsets: Iterable[int]) -> list[Fragment]:
    """Output records with the headers that name these offsets of the source."""
    named = [
        [
            {"key": "onceward.topic", "value": pipeline.source.encode()},
            {"key": "onceward.partition", "value": b"0"},
            {"key": "onceward.offset", "value": b"%d" % offset},
        ]
        for offset in offsets
    ]
    values = pa.array([b"out"] * len(named), pa.binary())
    columns = RecordColumns.of(values, headers=pa.array(named, HEADERS_TYPE))
    return encode_fragments(
        columns, codec=Codec.NONE, batch_bytes=1_000_000, now_ms=int(time.time() * 1000)
    )


def in_json(offsets: Iterable[int]) -> list[bytes]:
    return [
        json.dumps({"from": {"partition": 0, "offset": offset}}).encode() for offset in offsets
    ]


def found(answer: dict[str, Any]) -> list[tuple[str, str]]:
    return sorted((anomaly["name"], anomaly["where"]) for anomaly in answer["anomalies"])


def judged(pipeline: HandmadePipeline, *options: str) -> tuple[str, list[tuple[str, str]]]:
    answer = verify(pipeline, *options)
    return answer["verdict"], found(answer)


def test_every_input_named_once(handmade: HandmadePipeline):
    handmade.batch(
        {
            handmade.out(0): naming(handmade, range(5)),
            handmade.out(1): naming(handmade, range(5, 10)),
        }
    )
    handmade.batch({handmade.out(0): naming(handmade, range(10, 20))}, commit=False)
    handmade.batch({handmade.out(1): naming(handmade, range(10, 20))})
    answer = verify(handmade, *EXACTLY)
    assert (answer["verdict"], found(answer)) == ("exactly_once", []), answer
    facts = answer["facts"]["conservation"]
    assert (facts["input_records"], facts["output_records"], facts["skipped_records"]) == (
        20,
        20,
        0,
    )
    assert facts["counts"] == {
        "all topics": {"named": 20, "never_named": 0, "named_again": 0, "not_judged": 0}
    }


@pytest.mark.lengthy("chaos")
def test_what_two_computations_mix_is_named(handmade: HandmadePipeline):
    """Rows that change tasks when a stage is repeated: the log agrees with the ledger, and the
    input with neither.
    """
    handmade.batch({handmade.out(0): naming(handmade, range(10))})
    mixed = [10, 11, 12, 14, 15, 15, 16, 17, 19]
    handmade.batch(
        {
            handmade.out(0): naming(handmade, mixed[:4]),
            handmade.out(1): naming(handmade, mixed[4:]),
        }
    )
    assert judged(handmade) == ("exactly_once", []), (
        "INVALID: without --conserves nothing is to be seen"
    )
    source = handmade.source
    lost = [("lost-input", f"{source}-0@13"), ("lost-input", f"{source}-0@18")]
    assert judged(handmade, *EXACTLY) == (
        "violated",
        [("duplicate-input", f"{source}-0@15"), *lost],
    )
    assert judged(handmade, "--conserves", "at-most") == (
        "violated",
        [("duplicate-input", f"{source}-0@15")],
    )
    assert judged(handmade, "--conserves", "at-least") == ("violated", lost)
    (repeated, *_) = verify(handmade, *EXACTLY)["anomalies"][2:]
    assert (
        f"named 2 times by records of all topics, among them {handmade.output}-1@"
        in repeated["detail"]
    )


def test_filters_and_fan_outs_have_rules(handmade: HandmadePipeline):
    handmade.batch({handmade.out(0): naming(handmade, [1, 3, 5])})
    answer = verify(handmade, "--conserves", "at-most")
    assert (
        answer["verdict"],
        answer["facts"]["conservation"]["counts"]["all topics"]["never_named"],
    ) == (
        "exactly_once",
        7,
    )
    handmade.batch({handmade.out(0): naming(handmade, [*range(10, 20), 12, 12])})
    answer = verify(handmade, "--conserves", "at-least", "--since", "1")
    assert (
        answer["verdict"],
        answer["facts"]["conservation"]["counts"]["all topics"]["named_again"],
    ) == (
        "exactly_once",
        1,
    )


def test_an_input_of_another_batch(handmade: HandmadePipeline):
    """A batch written again under another number names what it has not read, whatever the rule
    allows.
    """
    handmade.batch({handmade.out(0): naming(handmade, range(10))})
    told = handmade.batch({handmade.out(0): naming(handmade, [*range(10, 20), 7])})
    last = told["outputs"]["kafka"]["data"][handmade.output]["0"][2]
    answer = verify(handmade, "--conserves", "at-least")
    assert found(answer) == [("foreign-input", f"{handmade.output}-0@{last}")]
    source = handmade.source
    assert (
        f"names {source}-0@7, and is of batch 1 (sequence 1), which read {source}-0@10..19"
        in str(answer)
    )


def test_a_second_sink_that_wrote_nothing(
    handmade: HandmadePipeline, new_topic: Callable[..., str]
):
    other = new_topic(handmade.servers, 1)
    both = ["--topic", handmade.output, "--topic", other, "--each-topic"]
    everything = naming(handmade, range(10))
    handmade.batch({handmade.out(0): everything, TopicPartition(other, 0): everything})
    assert judged(handmade, *EXACTLY, *both) == ("exactly_once", [])
    assert judged(handmade, *EXACTLY) == (
        "violated",
        [("duplicate-input", f"{handmade.source}-0@0..9")],
    )
    handmade.batch({handmade.out(0): naming(handmade, range(10, 20))})
    answer = verify(handmade, *EXACTLY, *both)
    assert found(answer) == [("lost-input", f"{handmade.source}-0@10..19")]
    assert f"named by no record of {other}" in str(answer)


def test_names_in_json_fields(handmade: HandmadePipeline):
    handmade.batch({handmade.out(0): in_json(range(9))})
    fields = ("--lineage-json", "partition=from.partition,offset=from.offset")
    assert judged(handmade, *EXACTLY, *fields) == (
        "violated",
        [("lost-input", f"{handmade.source}-0@9")],
    )


def half_aborted(pipeline: HandmadePipeline) -> None:
    """Ten offsets of the source for the next batch: four records, a marker, four aborted ones, a
    marker.
    """
    producer = Producer(
        {"bootstrap.servers": pipeline.servers, "transactional.id": pipeline.source}
    )
    producer.init_transactions(30)
    for end in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        for _ in range(4):
            producer.produce(pipeline.source, b"in", partition=0)
        assert producer.flush(30) == 0
        end(30)
    pipeline._produced = 10  # what the batch reads is there


def test_only_committed_records_are_input(handmade: HandmadePipeline):
    half_aborted(handmade)
    handmade.batch({handmade.out(0): naming(handmade, range(4))})
    assert judged(handmade, *EXACTLY) == ("exactly_once", [])
    handmade.batch({handmade.out(0): naming(handmade, range(10, 20))})
    assert judged(handmade, *EXACTLY) == ("exactly_once", [])


def test_an_aborted_record_that_was_read(handmade: HandmadePipeline):
    """By a source that does not read committed records only."""
    half_aborted(handmade)
    handmade.batch({handmade.out(0): naming(handmade, [*range(4), 6, 7, 9])})
    foreign = [
        ("foreign-input", f"{handmade.source}-0@6..7"),
        ("foreign-input", f"{handmade.source}-0@9"),
    ]
    assert judged(handmade, *EXACTLY) == ("violated", foreign)


def test_an_expired_input_cannot_be_judged(handmade: HandmadePipeline):
    handmade.batch({handmade.out(0): naming(handmade, [0, *range(4, 10)])})
    expired = Position(handmade.source, 0, 4)
    admin = AdminClient({"bootstrap.servers": handmade.servers})
    admin.delete_records([expired])[expired].result(30)
    answer = verify(handmade, *EXACTLY)
    assert (answer["verdict"], found(answer)) == ("inconclusive", [])
    assert f"4 offsets of {handmade.source}-0@0..3: the source holds 4 to 9 only" in str(answer)
    assert judged(handmade, *EXACTLY, "--ignore-expired") == ("exactly_once", [])


def test_holes_of_a_compacted_input(handmade: HandmadePipeline):
    """What is not there and what nobody names may have been a record."""
    half_aborted(handmade)
    handmade.batch({handmade.out(0): naming(handmade, range(4))})
    handmade.batch({handmade.out(0): naming(handmade, range(10, 20))})
    admin = AdminClient({"bootstrap.servers": handmade.servers})
    entry = ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(
        ConfigResource.Type.TOPIC, handmade.source, incremental_configs=[entry]
    )
    admin.incremental_alter_configs([resource])[resource].result(30)
    answer = verify(handmade, *EXACTLY)
    assert (answer["verdict"], found(answer)) == ("inconclusive", [])
    assert f"6 offsets of {handmade.source}-0@4..9: the source is, or may be, compacted" in str(
        answer
    )
    assert judged(handmade, *EXACTLY, "--ignore-expired") == ("exactly_once", [])
    assert judged(handmade, "--conserves", "at-most") == ("exactly_once", [])


def test_records_that_name_nothing(handmade: HandmadePipeline):
    handmade.batch({handmade.out(0): naming(handmade, range(10))})
    handmade.batch(
        {handmade.out(0): naming(handmade, range(10, 19)), handmade.out(1): [b"of what?"]}
    )
    answer = verify(handmade, *EXACTLY)
    assert (answer["verdict"], found(answer)) == ("inconclusive", [])
    assert f"1 records of {handmade.output}-1 name no input by headers onceward.topic" in str(
        answer
    )
    assert answer["facts"]["conservation"]["counts"]["all topics"]["not_judged"] == 1


def skips_a_number(document: Document) -> None:
    document["batch_id"] += 1


def test_skipped_batches_are_no_loss(handmade: HandmadePipeline):
    handmade.batch({handmade.out(0): naming(handmade, range(10))})
    handmade.read_ten()  # by a batch that the user's function does not hand over
    handmade.batch({handmade.out(0): naming(handmade, range(20, 30))}, edit=skips_a_number)
    answer = verify(handmade, *EXACTLY)
    assert (answer["verdict"], found(answer)) == ("exactly_once", [])
    (skipped,) = answer["facts"]["ledger"]["skipped"]
    assert (skipped["batches"], skipped["read"]) == ([1, 1], [f"{handmade.source}-0@10..19"])
    assert answer["facts"]["conservation"]["skipped_records"] == 10


def test_a_supplement_completes_its_batch(handmade: HandmadePipeline):
    first = handmade.batch({handmade.out(0): naming(handmade, range(7))})
    assert judged(handmade, *EXACTLY) == (
        "violated",
        [("lost-input", f"{handmade.source}-0@7..9")],
    )
    handmade.begin()
    added = handmade.document(handmade.write({handmade.out(0): naming(handmade, range(7, 10))}))
    handmade.tell(
        added | {"batch_id": first["batch_id"], "sources": first["sources"], "supplement": True}
    )
    handmade.commit()
    answer = verify(handmade, *EXACTLY)
    assert (answer["verdict"], found(answer)) == ("exactly_once", []), answer
    assert answer["facts"]["ledger"]["supplements"] == 1


def test_counting_in_turns_agrees(handmade: HandmadePipeline):
    """As with inputs that do not fit into memory: three cells at a time, here."""
    handmade.batch(
        {
            handmade.out(0): naming(handmade, [0, 1, 2, 4, 5, 5, 6]),
            handmade.out(1): naming(handmade, [7, 8]),
        }
    )
    handmade.batch({handmade.out(0): naming(handmade, [*range(10, 20), 3])})
    answers = []
    for cell_bytes in (6, 1_000):
        conserves = Conservation("exactly", cell_bytes=cell_bytes)
        question = TopicsQuestion(
            bootstrap_servers=handmade.servers,
            pipeline_id=handmade.pipeline_id,
            ledger_topic=handmade.ledger,
            conserves=conserves,
        )
        answers.append(check_topics(question).as_json())
    in_turns, at_once = answers
    assert sorted(map(str, in_turns["anomalies"])) == sorted(map(str, at_once["anomalies"]))
    assert in_turns["facts"]["conservation"] == at_once["facts"]["conservation"]
    assert {name for name, _ in found(at_once)} == {
        "lost-input",
        "duplicate-input",
        "foreign-input",
    }


# ── since ──


def adopted(document: Document) -> None:
    document["batch_id"] += 12


def test_an_adopted_pipeline_since_its_first_batch(handmade: HandmadePipeline):
    """The sink before it has written to the same topic."""
    producer = Producer({"bootstrap.servers": handmade.servers})
    producer.produce(handmade.output, b"by the sink before", partition=0)
    assert producer.flush(30) == 0
    handmade.batch({handmade.out(0): naming(handmade, range(10))}, edit=adopted)
    handmade.batch({handmade.out(1): naming(handmade, range(10, 20))}, edit=adopted)
    assert judged(handmade) == ("inconclusive", [])
    assert judged(handmade, "--since", "12", *EXACTLY) == ("exactly_once", [])
    answer = verify(handmade, "--since", "sequence:1", *EXACTLY)
    assert (answer["verdict"], answer["facts"]["ledger"]["first_sequence"]) == ("exactly_once", 1)
    assert answer["facts"]["conservation"]["input_records"] == 10


def test_since_leaves_old_anomalies_out(handmade: HandmadePipeline):
    handmade.batch(
        {handmade.out(0): naming(handmade, range(10))}, untold={handmade.out(0): [b"of no batch"]}
    )
    handmade.batch({handmade.out(0): naming(handmade, range(10, 20))})
    assert judged(handmade)[0] == "violated"
    handmade.batch({handmade.out(0): naming(handmade, range(20, 29))})
    assert judged(handmade, "--since", "2") == ("exactly_once", [])
    assert judged(handmade, "--since", "2", *EXACTLY) == (
        "violated",
        [("lost-input", f"{handmade.source}-0@29")],
    )


def test_since_a_batch_to_come_cannot_tell(handmade: HandmadePipeline):
    handmade.batch({handmade.out(0): naming(handmade, range(10))})
    answer = verify(handmade, "--since", "1")
    assert (answer["verdict"], answer["exit_status"]) == ("inconclusive", 2)
