"""The ledger read against a partition whose leader has just changed: nothing that is committed may be overlooked."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from onceward.ids import ProducerIdentity, TopicPartition
from onceward.records.batch import encode_fragments, stamp
from onceward.records.columns import RecordColumns
from onceward.records.compression import Codec
from onceward.wire import reads

KEY = b"pipeline"
WHERE = TopicPartition("ledger", 0)


def data(offset: int, value: bytes) -> bytes:
    columns = RecordColumns.of(pa.array([value], pa.binary()), key=pa.array([KEY], pa.binary()))
    (fragment,) = encode_fragments(columns, codec=Codec.NONE, batch_bytes=10_000, now_ms=1)
    batch = b"".join(bytes(part) for part in stamp(fragment, ProducerIdentity(7, 1), 0, transactional=False))
    return struct.pack(">q", offset) + batch[8:]


class Leader:
    """Answers fetches from a log up to a high watermark, which rises after so many of them."""

    settings = SimpleNamespace(request_timeout_ms=30_000)

    def __init__(self, log: list[bytes], high_watermarks: list[int]) -> None:
        self._log = log
        self._high_watermarks = high_watermarks

    def leader_of(self, partition: TopicPartition) -> int:
        return 1

    def forget_leaders(self, topics: Any) -> None:
        pass

    def call(self, request: Any, node: int, timeout_ms: float) -> Any:
        high = self._high_watermarks.pop(0) if len(self._high_watermarks) > 1 else self._high_watermarks[0]
        position = request.topics[0].partitions[0].fetch_offset
        found = SimpleNamespace(error_code=0, records=b"".join(self._log[position:high]), high_watermark=high)
        return SimpleNamespace(error_code=0, throttle_time_ms=0, responses=[SimpleNamespace(partitions=[found])])


@pytest.fixture
def offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    """The old leader's word: the log goes from 0 to 2."""
    ends = {reads.EARLIEST: 0, reads.LATEST: 2}
    monkeypatch.setattr(reads, "list_offsets", lambda client, partitions, time_ms: {WHERE: ends[time_ms]})


@pytest.mark.usefixtures("offsets")
def test_a_new_leader_whose_high_watermark_lags_is_waited_for() -> None:
    leader: Any = Leader([data(0, b"old"), data(1, b"new")], high_watermarks=[1, 1, 1, 1, 1, 1, 2])
    assert reads.newest_committed(leader, *WHERE, KEY) == b"new"


@pytest.mark.usefixtures("offsets")
def test_an_end_that_compaction_took_away_is_not_waited_for() -> None:
    leader: Any = Leader([data(0, b"old")], high_watermarks=[2])
    assert reads.newest_committed(leader, *WHERE, KEY) == b"old"
