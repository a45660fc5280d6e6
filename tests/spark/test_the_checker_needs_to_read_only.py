"""``onceward verify`` on a cluster that trusts nobody: a login in Kafka's own client properties,
and rights to read.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from secured_cluster import PASSWORD, SecuredKafka

from onceward.kafka.wire.acls import Acl, Kind, Need
from support.handmade_pipeline import HandmadePipeline
from support.verify_process import verify

pytestmark = pytest.mark.slow


def test_the_checker_is_content_with_reading_and_names_what_it_may_not_read(
    secured: SecuredKafka, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    pipeline = HandmadePipeline(
        secured.kafka.bootstrap_servers, f"by-hand-{uuid.uuid4().hex[:10]}", new_topic
    )
    pipeline.batch({pipeline.out(0): [b"one", b"two"], pipeline.out(1): [b"three"]})
    pipeline.close()
    pipeline.servers = secured.bootstrap()
    login = tmp_path / "client.properties"
    login.write_text(
        "security.protocol=SASL_SSL\n"
        "sasl.mechanism=SCRAM-SHA-512\n"
        "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required "
        f'username="etl" password="{PASSWORD}";\n'
        "ssl.truststore.type=PEM\n"
        f"ssl.truststore.location={secured.folder / 'authority.crt'}\n"
    )

    def ask() -> dict[str, object]:
        return verify(pipeline, "--command-config", str(login))

    for topic in (pipeline.ledger, pipeline.output, pipeline.source):
        refused = ask()
        assert refused["verdict"] == "inconclusive"
        assert topic in str(refused["facts"]), refused
        secured.grant([Acl("Read", Kind.TOPIC, topic, Need.ALWAYS, "")])
    refused = ask()
    assert (refused["verdict"], refused["anomalies"]) == ("inconclusive", [])
    assert pipeline.pipeline_id in str(refused["facts"])
    secured.grant([Acl("Read", Kind.GROUP, pipeline.pipeline_id, Need.ALWAYS, "")])
    answer = ask()
    assert (answer["verdict"], answer["anomalies"]) == ("exactly_once", []), answer
    assert PASSWORD not in str(answer)
