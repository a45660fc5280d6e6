"""The ledger record: JSON both ways, and what it refuses to read."""

from __future__ import annotations

import json
import os
from importlib.metadata import PackageNotFoundError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceward import libraries
from onceward.engine.ledger.record import (
    VERSION,
    FrameWritten,
    LedgerRecord,
    Output,
    RecordState,
    decode,
    encode,
    this_driver,
)
from onceward.errors import LedgerUnreadable
from onceward.ids import AttemptId, BatchId, PipelineId, SourceRange

OPTIONAL = {"run_id", "supplement"}

numbers = st.integers(0, 2**62)
json_values = st.recursive(
    st.none() | st.integers() | st.text(), lambda inner: st.dictionaries(st.text(), inner)
)
records = st.builds(
    LedgerRecord,
    pipeline=st.just(PipelineId("people-etl")),
    sequence=numbers,
    batch=st.builds(BatchId, st.uuids().map(str), numbers),
    sources=st.lists(
        st.builds(SourceRange, json_values, json_values, json_values), max_size=3
    ).map(tuple),
    attempt=st.builds(AttemptId, numbers, numbers),
    outputs=st.dictionaries(
        st.sampled_from(["kafka", "files"]),
        st.builds(Output, st.text(), numbers, numbers, json_values),
    ),
    committed_at_ms=numbers,
    state=st.sampled_from(RecordState),
    run_id=st.text(),
    frames=st.none()
    | st.lists(st.builds(FrameWritten, st.none() | st.text(), numbers), max_size=3).map(tuple),
    supplement=st.booleans(),
    open_ms=st.none() | numbers,
)


@given(records)
def test_a_record_survives_the_ledger(record: LedgerRecord) -> None:
    """And its total is there for whoever reads the topic by hand."""
    encoded = encode(record)
    assert json.loads(encoded)["records"] == sum(
        output.records for output in record.outputs.values()
    )
    decoded = decode(encoded, where="here")
    assert decoded == record
    assert (decoded.run_id, decoded.frames, decoded.supplement) == (
        record.run_id,
        record.frames,
        record.supplement,
    )
    assert decoded.open_ms == record.open_ms


def example() -> dict[str, object]:
    record = LedgerRecord(PipelineId("p"), 1, BatchId("q", 2), (), AttemptId(3, 4), {}, 5)
    document: dict[str, object] = json.loads(encode(record))
    return document


@pytest.mark.parametrize("version", [VERSION - 1, VERSION + 1])
def test_a_record_of_another_onceward_is_refused_rather_than_guessed(version: int) -> None:
    with pytest.raises(LedgerUnreadable, match=f"version {version}"):
        decode(
            json.dumps(example() | {"version": version, "sequence": "?"}).encode(), where="here"
        )


def test_what_the_store_notes_of_the_place_is_its_own() -> None:
    record = LedgerRecord(PipelineId("p"), 1, BatchId("q", 2), (), AttemptId(3, 4), {}, 5)
    assert json.loads(encode(record, ledger_partitions=16))["ledger_partitions"] == 16
    assert decode(encode(record, ledger_partitions=16), where="here") == record


@pytest.mark.parametrize("told", [None, -1, "12", 1.5, True])
def test_a_time_that_cannot_be_is_not_told_and_refuses_nothing(told: object) -> None:
    """Nothing depends on it. Releases that do not know the field pass it over, as any other."""
    assert decode(json.dumps(example() | {"open_ms": told}).encode(), where="here").open_ms is None


def test_unknown_fields_are_left_alone() -> None:
    assert decode(json.dumps(example() | {"colour": "blue"}).encode(), where="here").sequence == 1


@pytest.mark.parametrize("name", sorted(set(example()) - {"records", *OPTIONAL}))
def test_a_missing_field_is_refused_with_the_place(name: str) -> None:
    document = example()
    del document[name]
    with pytest.raises(LedgerUnreadable, match="onceward-ledger-3"):
        decode(json.dumps(document).encode(), where="onceward-ledger-3")


@pytest.mark.parametrize("name", sorted(OPTIONAL))
def test_records_from_before_a_field_was_there_are_read(name: str) -> None:
    document = example()
    del document[name]
    assert decode(json.dumps(document).encode(), where="here").sequence == 1


@given(st.binary(max_size=200))
def test_nonsense_is_refused_and_nothing_else_escapes(data: bytes) -> None:
    with pytest.raises(LedgerUnreadable):
        decode(data, where="here")


def test_sources_in_a_zip_write_records_without_a_release(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(libraries, "version", missing)
    assert libraries.release.__wrapped__() == "unknown"
    assert this_driver().process_id == os.getpid()
