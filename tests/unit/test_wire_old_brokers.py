"""A broker before 2.5: what it cannot do is said by name, before anything is written.

Such a broker does not run beside the others of the tests. A socket stands in for it, which says
what Kafka 2.4 says: the versions that it speaks (``ApiVersions`` v0), itself (``Metadata`` v7) and
that it is the coordinator (``FindCoordinator`` v1). Of these two a real one speaks newer versions
as well.
"""

from __future__ import annotations

import pytest

from onceward.errors import UnsupportedBroker
from onceward.kafka.wire.client import KafkaClient
from support.handmade_broker import (
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    METADATA,
    SPOKEN,
    HandmadeBroker,
)
from support.wire_fixtures import Writer, settings

END_TXN = 26
SPOKEN_BY_2_4 = {**SPOKEN, METADATA: (7, 7), FIND_COORDINATOR: (1, 1), INIT_PRODUCER_ID: (0, 2)}


def test_a_broker_that_cannot_tell_a_takeover_by_epoch_is_refused_by_name() -> None:
    """``InitProducerId`` before version 3 (KIP-360, Kafka 2.5) does not say whose epoch is to be
    raised.
    """
    with HandmadeBroker(SPOKEN_BY_2_4) as old_broker:
        client = KafkaClient(settings(old_broker.bootstrap_servers)[0])
        try:
            with pytest.raises(UnsupportedBroker) as refused:
                Writer(client, "pipeline").transaction.take_over()
        finally:
            client.close()
    assert "InitProducerId" in refused.value.message
    assert "2.5" in refused.value.next_step
    assert INIT_PRODUCER_ID not in old_broker.asked


@pytest.mark.parametrize(("end_txn", "bounds"), [(3, False), (4, True), (5, True), (None, False)])
def test_a_broker_before_3_8_reads_tiered_storage_for_no_longer_than_a_fetch_waits(
    end_txn: int | None, bounds: bool
) -> None:
    """KIP-1018. What tells it is a version that came with the same release."""
    spoken = SPOKEN if end_txn is None else {**SPOKEN, END_TXN: (0, end_txn)}
    with HandmadeBroker(spoken) as broker:
        client = KafkaClient(settings(broker.bootstrap_servers)[0])
        try:
            assert client.bounds_remote_reads() is bounds
        finally:
            client.close()
