"""The cluster goes from transaction version 1 to 2 while a pipeline runs: in the middle of a
transaction, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from streaming_pipeline import Pipeline

from fault_table import fired
from onceward_testing import LocalKafka, ProxyFault

FIRE_SECONDS = 120


@pytest.fixture
def upgradable() -> Iterator[LocalKafka]:
    with LocalKafka(
        format_arguments=("--feature", "transaction.version=1"), proxied=True
    ) as kafka:
        yield kafka


@pytest.mark.fault("brokers-upgraded")
@pytest.mark.parametrize("api", ["EndTxn", pytest.param("Produce", marks=pytest.mark.slow)])
def test_an_upgrade_under_a_running_pipeline(
    upgradable: LocalKafka, pipeline_on: Callable[..., Pipeline], api: str
):
    pipeline = pipeline_on(upgradable)
    pipeline.job_servers = upgradable.proxied_servers
    pipeline.feed(120)

    on_its_way = upgradable.proxy.on(api, nth=3).hold()
    query = pipeline.start()
    fired(on_its_way.wait(FIRE_SECONDS), f"no third {api}")
    upgradable.kafka_tool("kafka-features", "upgrade", "--feature", "transaction.version=2")
    described = upgradable.kafka_tool("kafka-features", "describe")
    (line,) = [line for line in described.splitlines() if "transaction.version" in line]
    fired("FinalizedVersionLevel: 2" in line, line)
    on_its_way.release()
    assert pipeline.ended(query) == ""
    pipeline.assert_exactly_once(ledger_records=3)

    pipeline.feed(80)
    seen = upgradable.proxy.on("EndTxn").hold()
    query = pipeline.start()
    fired(seen.wait(FIRE_SECONDS), "no EndTxn after the upgrade")
    seen.release()
    assert pipeline.ended(query) == ""
    pipeline.assert_exactly_once(ledger_records=5)
    assert version(seen) >= 5, "the next start speaks transaction version 2"
    if api == "EndTxn":
        assert version(on_its_way) <= 4, (
            "INVALID: the pipeline did not begin with transaction version 1"
        )


def version(fault: ProxyFault) -> int:
    return fault.held[0].head.version
