"""The checker is checked: each anomaly is made for real on a broker, and must be named; a clean
run must pass.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as Position
from confluent_kafka.admin import AdminClient
from crc32c import crc32c

from onceward_testing import LocalKafka
from support.handmade_pipeline import Document, HandmadePipeline
from support.verify_process import UNAVAILABLE, verify

VALUES = [b"value %d" % number for number in range(20)]


@pytest.fixture
def new_handmade(
    new_topic: Callable[..., str],
) -> Iterator[Callable[[LocalKafka], HandmadePipeline]]:
    made: list[HandmadePipeline] = []

    def make(kafka: LocalKafka) -> HandmadePipeline:
        made.append(
            HandmadePipeline(
                kafka.bootstrap_servers, f"by-hand-{uuid.uuid4().hex[:10]}", new_topic
            )
        )
        return made[-1]

    yield make
    for pipeline in made:
        pipeline.close()


@pytest.fixture
def handmade(
    kafka: LocalKafka, new_handmade: Callable[[LocalKafka], HandmadePipeline]
) -> HandmadePipeline:
    """A pipeline with one good batch on both output partitions, and one aborted attempt of the
    next.
    """
    pipeline = new_handmade(kafka)
    good_beginning(pipeline)
    return pipeline


def good_beginning(pipeline: HandmadePipeline) -> None:
    pipeline.batch({pipeline.out(0): VALUES[:6], pipeline.out(1): VALUES[6:10]})
    pipeline.batch({pipeline.out(0): VALUES[10:]}, commit=False)


def names(answer: dict[str, Any]) -> set[str]:
    return {anomaly["name"] for anomaly in answer["anomalies"]}


def places(answer: dict[str, Any], name: str) -> list[str]:
    return [anomaly["where"] for anomaly in answer["anomalies"] if anomaly["name"] == name]


def write_plainly(pipeline: HandmadePipeline, *values: bytes) -> None:
    """By somebody else, outside any transaction."""
    producer = Producer({"bootstrap.servers": pipeline.servers})
    for value in values:
        producer.produce(pipeline.output, value, partition=0)
    assert producer.flush(30) == 0


def test_a_clean_run_is_exactly_once(
    any_kafka: LocalKafka, new_handmade: Callable[[LocalKafka], HandmadePipeline]
):
    pipeline = new_handmade(any_kafka)
    good_beginning(pipeline)
    pipeline.batch({pipeline.out(0): VALUES[10:]})
    pipeline.batch({})
    answer = verify(pipeline)
    assert (answer["verdict"], answer["anomalies"]) == ("exactly_once", []), answer
    topic = answer["facts"]["topics"][pipeline.output]
    assert (topic["records"], topic["batches"], topic["aborted_records"]) == (20, 2, 10)
    assert answer["facts"]["ledger"]["batches"] == 3


def test_a_pipeline_that_is_running_is_judged_up_to_where_it_was(handmade: HandmadePipeline):
    enough = threading.Event()

    def go_on() -> None:
        while not enough.is_set():
            handmade.batch({handmade.out(0): VALUES[:6], handmade.out(1): VALUES[6:10]})
            handmade.batch({handmade.out(0): VALUES[10:]}, commit=False)

    writer = threading.Thread(target=go_on, name="pipeline")
    writer.start()
    try:
        seen = [verify(handmade, at_rest=False) for _ in range(3)]
    finally:
        enough.set()
        writer.join()
    assert [(answer["verdict"], answer["anomalies"]) for answer in seen] == [
        ("exactly_once", [])
    ] * 3
    batches = [answer["facts"]["ledger"]["batches"] for answer in seen]
    assert batches == sorted(set(batches)), "INVALID: it stood still"
    assert verify(handmade)["facts"]["ledger"]["batches"] == handmade.sequence


def test_a_record_that_is_missing_is_a_lost_write(handmade: HandmadePipeline):
    def one_more_than_there_is(document: Document) -> None:
        entry = document["outputs"]["kafka"]["data"][handmade.output]["0"]
        entry[0], entry[2] = entry[0] + 1, entry[2] + 1

    told = handmade.batch({handmade.out(0): VALUES[:5]}, edit=one_more_than_there_is)
    _, first, last, _ = told["outputs"]["kafka"]["data"][handmade.output]["0"]
    answer = verify(handmade)
    assert names(answer) == {"lost-write", "fractured-batch"}
    assert places(answer, "lost-write") == [f"{handmade.output}-0@{first}..{last}"]
    assert f"offsets {last}" in answer["anomalies"][0]["detail"]


def test_a_batch_told_outside_its_aborted_transaction_is_lost_whole(handmade: HandmadePipeline):
    handmade.read_ten()
    handmade.begin()
    document = handmade.document(handmade.write({handmade.out(0): VALUES[:5]}))
    handmade.writer.transaction.abort()
    handmade.begin()
    handmade.tell(document)
    handmade.commit()
    answer = verify(handmade)
    assert names(answer) == {"lost-write"}
    assert "5 are in the log and not visible" in answer["anomalies"][0]["detail"]


def test_a_batch_of_which_one_partition_is_missing_is_fractured(handmade: HandmadePipeline):
    def and_a_part_never_sent(document: Document) -> None:
        document["outputs"]["kafka"]["data"][handmade.output]["1"] = [3, 5, 7, "0-0-0-0"]

    handmade.batch({handmade.out(0): VALUES[:5]}, edit=and_a_part_never_sent)
    assert names(verify(handmade)) == {"lost-write", "fractured-batch"}


def test_a_batch_written_twice_is_a_duplicate(handmade: HandmadePipeline):
    """As a sink does whose retry does not know of the attempt before."""
    handmade.batch({handmade.out(0): VALUES[:5]})
    handmade.begin()
    handmade.write({handmade.out(0): VALUES[:5]})
    handmade.writer.transaction.commit()
    answer = verify(handmade)
    assert names(answer) == {"duplicate-write"}
    assert places(answer, "duplicate-write")[0].startswith(f"{handmade.output}-0@")


def test_a_record_twice_within_a_batch_is_a_duplicate(handmade: HandmadePipeline):
    def of_which_one_is_told(document: Document) -> None:
        document["outputs"]["kafka"]["data"][handmade.output]["0"][0] -= 1

    handmade.batch({handmade.out(0): [*VALUES[:5], VALUES[4]]}, edit=of_which_one_is_told)
    assert names(verify(handmade)) == {"duplicate-write"}


def test_records_behind_the_last_one_told_of_belong_to_no_batch(handmade: HandmadePipeline):
    handmade.batch({handmade.out(0): VALUES[:5]}, untold={handmade.out(0): [b"what is this?"]})
    assert names(verify(handmade)) == {"unaccounted-write"}


def test_two_batches_in_one_transaction_are_not_whole_ones(handmade: HandmadePipeline):
    handmade.read_ten()
    handmade.begin()
    handmade.tell(handmade.document(handmade.write({handmade.out(0): VALUES[:5]})))
    handmade.sequence += 1
    handmade.read_ten()
    handmade.tell(handmade.document(handmade.write({handmade.out(0): VALUES[5:10]})))
    handmade.commit()
    assert names(verify(handmade)) == {"zombie-write", "fractured-batch"}


def test_a_foreign_record_is_unaccounted_and_a_matter_of_opinion_on_a_shared_topic(
    handmade: HandmadePipeline,
):
    write_plainly(handmade, b"from somebody else")
    handmade.batch({handmade.out(0): VALUES[:5]})
    answer = verify(handmade)
    assert names(answer) == {"unaccounted-write"}
    assert answer["facts"]["topics"][handmade.output]["unaccounted_records"] == 1
    shared = verify(handmade, "--shared-topic")
    assert (shared["verdict"], shared["anomalies"]) == ("inconclusive", [])
    assert "1 visible records belong to no batch" in shared["facts"]["not_covered"][0]


@pytest.mark.parametrize("wrong", [0, 1, 2, 3], ids=["lengths", "keys", "values", "headers"])
def test_content_that_differs_from_its_checksum_is_a_mismatch(
    handmade: HandmadePipeline, wrong: int
):
    def another_checksum(document: Document) -> None:
        entry = document["outputs"]["kafka"]["data"][handmade.output]["0"]
        parts = entry[3].split("-")
        parts[wrong] = f"{int(parts[wrong], 16) ^ 1:08x}"
        entry[3] = "-".join(parts)

    handmade.batch({handmade.out(0): VALUES[:5]}, edit=another_checksum)
    assert names(verify(handmade)) == {"state-mismatch"}


def test_a_sequence_left_out_is_a_gap(handmade: HandmadePipeline):
    handmade.sequence += 1
    handmade.batch({handmade.out(0): VALUES[:5]})
    answer = verify(handmade)
    assert names(answer) == {"ledger-gap"}
    assert answer["anomalies"][0]["detail"] == "no record of sequence 1 before 2"


def test_records_of_the_source_left_out_are_a_gap(handmade: HandmadePipeline):
    handmade.read_ten()
    handmade.batch({handmade.out(0): VALUES[:5]})
    answer = verify(handmade)
    assert names(answer) == {"ledger-gap"}
    assert places(answer, "ledger-gap") == [f"{handmade.source}-0@10..19"]


def test_a_sequence_told_twice_is_a_fork(handmade: HandmadePipeline):
    told = handmade.batch({handmade.out(0): VALUES[:5]})
    handmade.begin()
    handmade.tell(told)
    handmade.commit()
    assert names(verify(handmade)) == {"ledger-fork"}


def test_source_offsets_that_go_back_are_not_monotonic(handmade: HandmadePipeline):
    handmade.position -= 5
    handmade.batch({handmade.out(0): VALUES[:5]})
    answer = verify(handmade, settle_s=1)
    assert names(answer) == {"non-monotonic", "lag"}
    assert places(answer, "non-monotonic") == [f"{handmade.source}-0@5"]


def test_two_batches_under_one_epoch_are_a_zombies_work(handmade: HandmadePipeline):
    earlier = handmade.batch({handmade.out(0): VALUES[:5]})

    def the_same_epoch(document: Document) -> None:
        document["attempt"][1] = earlier["attempt"][1]

    handmade.batch({handmade.out(0): VALUES[5:10]}, edit=the_same_epoch)
    assert names(verify(handmade)) == {"zombie-write"}


def test_a_transaction_that_never_ends_is_named_and_hides_nothing_else(handmade: HandmadePipeline):
    handmade.read_ten()
    handmade.begin()
    handmade.tell(handmade.document(handmade.write({handmade.out(0): VALUES[:5]})))
    answer = verify(handmade, settle_s=1)
    assert names(answer) == {"open-transaction", "lag"}
    assert {place.split("@")[0] for place in places(answer, "open-transaction")} == {
        f"{handmade.output}-0",
        f"{handmade.ledger}-0",
    }
    handmade.commit()
    assert verify(handmade)["verdict"] == "exactly_once"


def test_a_source_that_goes_on_is_a_lag(handmade: HandmadePipeline):
    handmade.read_ten()
    answer = verify(handmade)
    assert names(answer) == {"lag"}
    assert places(answer, "lag") == [f"{handmade.source}-0@10..19"]


def test_what_retention_has_deleted_is_not_judged(handmade: HandmadePipeline):
    handmade.batch({handmade.out(0): VALUES[:5]})
    admin = AdminClient({"bootstrap.servers": handmade.servers})
    admin.delete_records([Position(handmade.output, 0, 3)])[
        Position(handmade.output, 0, 3)
    ].result(30)
    answer = verify(handmade)
    assert (answer["verdict"], answer["anomalies"]) == ("inconclusive", [])
    assert "deleted by retention" in answer["facts"]["not_covered"][0]


def test_a_ledger_that_begins_later_is_not_taken_for_a_whole_one(handmade: HandmadePipeline):
    handmade.batch({handmade.out(0): VALUES[:5]})
    admin = AdminClient({"bootstrap.servers": handmade.servers})
    admin.delete_records([Position(handmade.ledger, 0, 1)])[
        Position(handmade.ledger, 0, 1)
    ].result(30)
    answer = verify(handmade)
    assert (answer["verdict"], answer["anomalies"]) == ("inconclusive", [])
    assert len(answer["facts"]["not_covered"]) == 1
    assert "batches before sequence 1" in answer["facts"]["not_covered"][0]
    rest = verify(handmade, "--ignore-expired")
    assert (rest["verdict"], rest["facts"]["ledger"]["first_sequence"]) == ("exactly_once", 1)
    assert "batches before sequence 1" in rest["facts"]["gone"][0]


def test_a_pipeline_that_nobody_knows_is_not_exactly_once(handmade: HandmadePipeline):
    handmade.pipeline_id = "never-heard-of"
    answer = verify(handmade)
    assert (answer["verdict"], answer["anomalies"]) == ("inconclusive", [])


def test_a_broker_that_is_not_there_is_no_verdict(handmade: HandmadePipeline):
    handmade.servers = "127.0.0.1:1"
    answer = verify(handmade)
    assert (answer["verdict"], answer["exit_status"]) == ("inconclusive", UNAVAILABLE)
    assert "no broker answers" in answer["facts"]["not_covered"][0]


def test_the_command_answers_people_in_a_sentence(handmade: HandmadePipeline):
    def ask() -> subprocess.CompletedProcess[str]:
        arguments = [
            "--bootstrap-servers",
            handmade.servers,
            "--pipeline-id",
            handmade.pipeline_id,
        ]
        command = [
            sys.executable,
            "-c",
            "from onceward.cli import app; app()",
            "verify",
            *arguments,
        ]
        return subprocess.run(
            [*command, "--ledger-topic", handmade.ledger],
            capture_output=True,
            text=True,
            check=False,
        )

    good = ask()
    assert good.returncode == 0, good.stderr
    assert good.stdout.startswith(
        f"EXACTLY ONCE: pipeline {handmade.pipeline_id}: 10 records in 1 batches"
    )
    assert "10 aborted records hidden" in good.stdout
    write_plainly(handmade, b"from somebody else")
    bad = ask()
    assert bad.returncode == 1, bad.stderr
    assert "unaccounted-write (I2) at" in bad.stdout


# ── with the brokers' files ──


def log_dirs(kafka: LocalKafka) -> list[str]:
    return ["--log-dirs", *(str(node.data_folder) for node in kafka.nodes)]


def test_the_epochs_of_a_clean_run_are_those_of_its_batches(
    any_kafka: LocalKafka, new_handmade: Callable[[LocalKafka], HandmadePipeline]
):
    pipeline = new_handmade(any_kafka)
    good_beginning(pipeline)
    pipeline.batch({pipeline.out(0): VALUES[10:]})
    answer = verify(pipeline, *log_dirs(any_kafka))
    assert (answer["verdict"], answer["anomalies"]) == ("exactly_once", []), answer
    epochs = answer["facts"]["epochs"]
    assert (epochs["committed_identities"], epochs["aborted_identities"]) == (2, 1)
    assert epochs["record_batches"] == 4


def test_a_batch_that_names_another_epoch_than_its_records_have_is_a_zombies_work(
    kafka: LocalKafka, handmade: HandmadePipeline
):
    def the_epoch_after(document: Document) -> None:
        document["attempt"][1] += 5

    handmade.batch({handmade.out(0): VALUES[:5]}, edit=the_epoch_after)
    assert verify(handmade)["verdict"] == "exactly_once", (
        "INVALID: this was to be seen by the epochs alone"
    )
    answer = verify(handmade, *log_dirs(kafka))
    assert names(answer) == {"zombie-write"}
    assert {place.split("@")[0] for place in places(answer, "zombie-write")} == {
        f"{handmade.output}-0",
        f"{handmade.ledger}-0",
    }


def test_an_attempt_aborted_under_the_epoch_of_a_batch_is_a_zombies_work(
    kafka: LocalKafka, handmade: HandmadePipeline
):
    aborted = handmade.batch({handmade.out(1): VALUES[:5]}, commit=False)

    def the_epoch_of_the_aborted_one(document: Document) -> None:
        document["attempt"][1] = aborted["attempt"][1]

    handmade.batch({}, edit=the_epoch_of_the_aborted_one)
    answer = verify(handmade, *log_dirs(kafka))
    assert f"{handmade.output}-1@" in "".join(places(answer, "zombie-write"))


def test_a_transaction_of_ours_that_no_batch_tells_of_is_a_zombies_also_on_a_shared_topic(
    kafka: LocalKafka, handmade: HandmadePipeline
):
    write_plainly(handmade, b"from somebody else")
    handmade.batch({handmade.out(0): VALUES[:5]})
    clean = verify(handmade, "--shared-topic", *log_dirs(kafka))
    assert (clean["verdict"], clean["anomalies"]) == ("exactly_once", []), clean
    handmade.begin()
    handmade.write({handmade.out(0): VALUES[5:10]})
    handmade.writer.transaction.commit()
    assert names(verify(handmade, "--shared-topic", *log_dirs(kafka))) == {"zombie-write"}


def test_what_is_visible_although_its_transaction_was_aborted_is_a_dirty_read(
    kafka: LocalKafka, handmade: HandmadePipeline, tmp_path: Path
):
    """No broker does this, so a copy of its files is made to say so: commit markers become abort
    markers.
    """
    (node,) = kafka.nodes
    handmade.batch({})
    assert verify(handmade)["verdict"] == "exactly_once"  # and every marker is written
    for partition in (f"{handmade.output}-0", f"{handmade.output}-1", f"{handmade.ledger}-0"):
        shutil.copytree(node.data_folder / partition, tmp_path / partition)
    segment = tmp_path / f"{handmade.output}-0" / f"{0:020d}.log"
    segment.write_bytes(with_abort_markers_only(segment.read_bytes()))
    answer = verify(handmade, "--log-dirs", str(tmp_path))
    assert places(answer, "aborted-read") == [f"{handmade.output}-0@0..5"]


def with_abort_markers_only(log: bytes) -> bytes:
    """A control batch is a header of 61 bytes and one record, whose key ends in the marker's type
    (KIP-98).
    """
    data = bytearray(log)
    position = 0
    while position < len(data):
        end = position + 12 + int.from_bytes(data[position + 8 : position + 12], "big")
        if data[position + 22] & 0x20:
            data[position + 68 : position + 70] = (0).to_bytes(2, "big")
            data[position + 17 : position + 21] = crc32c(
                bytes(data[position + 21 : end])
            ).to_bytes(4, "big")
        position = end
    return bytes(data)


def test_epochs_that_cannot_be_looked_up_are_not_taken_for_right(
    handmade: HandmadePipeline, tmp_path: Path
):
    handmade.batch({})
    answer = verify(handmade, "--log-dirs", str(tmp_path))
    assert (answer["verdict"], answer["anomalies"]) == ("inconclusive", [])
