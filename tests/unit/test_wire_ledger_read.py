"""The ledger read against a partition whose leader has just changed: nothing that is committed may
be overlooked.
"""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from onceward.errors import BrokerUnreachable, LedgerUndecided, Recovery
from onceward.ids import ProducerIdentity, TopicPartition
from onceward.kafka.records.batch import encode_fragments, stamp
from onceward.kafka.records.columns import RecordColumns
from onceward.kafka.records.compression import Codec
from onceward.kafka.wire.reads import key_reader as reads
from onceward.kafka.wire.reads.offsets import EARLIEST, LATEST
from support.errors import raises

KEY = b"pipeline"
WHERE = TopicPartition("ledger", 0)


THEIRS, OURS = ProducerIdentity(7, 1), ProducerIdentity(9, 4)


def data(offset: int, value: bytes, identity: ProducerIdentity = THEIRS) -> bytes:
    columns = RecordColumns.of(pa.array([value], pa.binary()), key=pa.array([KEY], pa.binary()))
    (fragment,) = encode_fragments(columns, codec=Codec.NONE, batch_bytes=10_000, now_ms=1)
    batch = b"".join(bytes(part) for part in stamp(fragment, identity, 0, transactional=False))
    return struct.pack(">q", offset) + batch[8:]


class Leader:
    """Answers fetches from a log up to a high watermark, which rises after so many of them."""

    settings = SimpleNamespace(request_timeout_ms=30_000)

    def __init__(self, log: list[bytes], high_watermarks: list[int]) -> None:
        self._log = log
        self._high_watermarks = high_watermarks
        self.positions: list[int] = []

    def deposed_until(self, high_watermark: int) -> None:
        """From now on it is the real leader that answers."""
        self._high_watermarks = [high_watermark]

    def known_leader(self, partition: TopicPartition) -> int:
        return 1

    def forget_leaders(self, topics: Any) -> None:
        pass

    def call(self, request: Any, node: int, timeout_ms: float) -> Any:
        high = (
            self._high_watermarks.pop(0)
            if len(self._high_watermarks) > 1
            else self._high_watermarks[0]
        )
        position = request.topics[0].partitions[0].fetch_offset
        self.positions.append(position)
        found = SimpleNamespace(
            error_code=0, records=b"".join(self._log[position:high]), high_watermark=high
        )
        return SimpleNamespace(
            error_code=0, throttle_time_ms=0, responses=[SimpleNamespace(partitions=[found])]
        )


@pytest.fixture
def offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    """The old leader's word: the log goes from 0 to 2."""
    ends = {EARLIEST: 0, LATEST: 2}
    monkeypatch.setattr(
        reads, "list_offsets", lambda client, partitions, time_ms: {WHERE: ends[time_ms]}
    )


@pytest.mark.usefixtures("offsets")
def test_a_new_leader_whose_high_watermark_lags_is_waited_for() -> None:
    leader: Any = Leader([data(0, b"old"), data(1, b"new")], high_watermarks=[1, 1, 1, 1, 1, 1, 2])
    assert reads.KeyReader(leader, WHERE, KEY).newest() == b"new"


@pytest.mark.usefixtures("offsets")
@pytest.mark.parametrize("damaged", [2, 3])
def test_a_damaged_answer_is_asked_for_again_and_a_damaged_log_is_named(damaged: int) -> None:
    leader: Any = Leader([data(0, b"old"), data(1, b"new")], high_watermarks=[2])
    answers, call = [0], leader.call

    def flip(*asked: Any) -> Any:
        answer, answers[0] = call(*asked), answers[0] + 1
        if answers[0] <= damaged:
            found = answer.responses[0].partitions[0]
            found.records = bytes(
                [*found.records[:70], found.records[70] ^ 4, *found.records[71:]]
            )
        return answer

    leader.call = flip
    reader = reads.KeyReader(leader, WHERE, KEY)
    if damaged == 2:
        assert reader.newest() == b"new"
        return
    with pytest.raises(LedgerUndecided, match="damaged records near offset 0") as undecided:
        reader.newest()
    assert answers == [3]
    # Another leader may have it whole
    assert undecided.value.recovery is Recovery.RESTART


@pytest.mark.usefixtures("offsets")
def test_a_damaged_answer_behind_empty_ones_is_no_end() -> None:
    """A new leader, whose high watermark lags, then shows all; one bit of it is wrong."""
    leader: Any = Leader([data(0, b"old"), data(1, b"new")], high_watermarks=[1, 1, 1, 1, 1, 2])
    flipped, call = [False], leader.call

    def flip(*asked: Any) -> Any:
        answer = call(*asked)
        found = answer.responses[0].partitions[0]
        if found.high_watermark == 2 and found.records and not flipped[0]:
            flipped[0] = True
            found.records = bytes(
                [*found.records[:70], found.records[70] ^ 4, *found.records[71:]]
            )
        return answer

    leader.call = flip
    assert reads.KeyReader(leader, WHERE, KEY).newest() == b"new"
    assert flipped == [True]


@pytest.mark.usefixtures("offsets")
def test_a_process_that_stood_still_while_it_read_has_read() -> None:
    leader: Any = Leader([data(0, b"old"), data(1, b"new")], high_watermarks=[2])
    assert (
        reads.KeyReader(leader, WHERE, KEY).newest(timeout_ms=0) == b"new"
    )  # its time is over when answers come


@pytest.mark.usefixtures("offsets")
def test_an_end_that_compaction_took_away_is_not_waited_for() -> None:
    leader: Any = Leader([data(0, b"old")], high_watermarks=[2])
    assert reads.KeyReader(leader, WHERE, KEY).newest() == b"old"


@pytest.mark.usefixtures("offsets")
def test_a_deposed_leaders_answer_is_corrected() -> None:
    """Its log ends at 2, and it does not know what was committed since; ours was appended behind
    that.
    """
    log = [data(0, b"a"), data(1, b"b"), data(2, b"committed since"), data(3, b"ours", OURS)]
    leader: Any = Leader(log, high_watermarks=[2])
    reader = reads.KeyReader(leader, WHERE, KEY)
    assert reader.newest() == b"b"
    leader.deposed_until(4)
    assert reader.newest_before(3, OURS) == b"committed since"
    assert leader.positions == [0, 2], "the log is not read twice"


@pytest.mark.usefixtures("offsets")
def test_a_leader_without_our_append_proves_nothing() -> None:
    log = [data(0, b"a"), data(1, b"b"), data(2, b"another history"), data(3, b"theirs")]
    reader = reads.KeyReader(Leader(log, high_watermarks=[4]), WHERE, KEY)  # type: ignore[arg-type]
    with raises(BrokerUnreachable):
        reader.newest_before(3, OURS)
