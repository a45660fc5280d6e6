"""What a network does to single requests, once more over TLS: one transaction, every record once.

The product's own client talks TLS to the proxy. What a fault loses is then lost in a stream that
neither side can take up again, and who connects anew needs an answer to a handshake first.
"""

from __future__ import annotations

import ssl
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Message

from fault_table import fired
from onceward.ids import TopicPartition
from onceward.kafka.wire.client import KafkaClient
from onceward.kafka.wire.options.settings import settings_from_options
from onceward_testing import KafkaProxy, LocalKafka, ProxyFault
from onceward_testing.proxy.faults import On
from support.certificates import make_certificates
from support.wire_fixtures import Writer

pytestmark = pytest.mark.broker

FIRE_SECONDS = 60
HEAL_AFTER_SECONDS = 2.5


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    make_certificates(folder)
    return folder


@pytest.fixture
def proxy(kafka: LocalKafka, certificates: Path) -> Iterator[KafkaProxy]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "here.pem")
    kafka.proxy.serve_tls(context)
    yield kafka.proxy
    kafka.proxy.heal()
    kafka.proxy.serve_tls(None)


@pytest.fixture
def writer(kafka: LocalKafka, proxy: KafkaProxy, certificates: Path) -> Iterator[Writer]:
    options = {
        "security.protocol": "SSL",
        "ssl.ca.location": str(certificates / "authority.crt"),
        "request.timeout.ms": 1_500,
        "socket.connection.setup.timeout.max.ms": 1_500,
    }
    checked, _ = settings_from_options(kafka.proxied_servers, options, client_id="tls")
    client = KafkaClient(checked)
    yield Writer(client, f"tls-{uuid.uuid4().hex[:8]}", patience_ms=60_000)
    client.close()


def after_a_while(what: Callable[[], Any]) -> None:
    timer = threading.Timer(HEAL_AFTER_SECONDS, what)
    timer.daemon = True
    timer.start()


def black_hole(proxy: KafkaProxy, on: On) -> ProxyFault:
    """Everything is swallowed, and no handshake is answered, until the network is whole again."""
    fault = on.black_hole()
    threading.Thread(
        target=lambda: fault.wait(FIRE_SECONDS) and after_a_while(proxy.heal), daemon=True
    ).start()
    return fault


def hold(_: KafkaProxy, on: On) -> ProxyFault:
    fault = on.hold()
    threading.Thread(
        target=lambda: fault.wait(FIRE_SECONDS) and after_a_while(fault.release), daemon=True
    ).start()
    return fault


FAULTS: dict[str, Callable[[KafkaProxy, On], ProxyFault]] = {
    "black hole": black_hole,
    "request lost": lambda _, on: on.drop_request(),
    "request lost, and nobody says so": lambda _, on: on.drop_request(silently=True),
    "answer lost": lambda _, on: on.drop_response(),
    "slow": lambda _, on: on.delay(1.0),
    "held": hold,
    "doubled": lambda _, on: on.duplicate(),
    "reset": lambda _, on: on.reset(),
}
TABLE = [
    (fault, api)
    for api in ("Produce", "EndTxn", "InitProducerId")
    for fault in FAULTS
    if (fault, api)
    != ("doubled", "InitProducerId")  # two takeovers: the second one fences the first, rightly
]


@pytest.mark.parametrize(
    ("fault", "api"),
    [TABLE[0], *(pytest.param(*case, marks=pytest.mark.slow) for case in TABLE[1:])],
)
def test_every_record_is_there_once_whatever_happens_to_a_request(
    kafka: LocalKafka,
    proxy: KafkaProxy,
    writer: Writer,
    new_topic: Callable[..., str],
    read_committed: Callable[[str, str], list[Message]],
    fault: str,
    api: str,
) -> None:
    topic = new_topic(kafka.bootstrap_servers, 1)
    armed = FAULTS[fault](proxy, proxy.on(api, client_id="tls"))
    writer.transaction.take_over()
    writer.commit({TopicPartition(topic, 0): [b"a", b"b"]})
    fired(armed.fired, f"no {api}")
    proxy.heal()
    writer.commit({TopicPartition(topic, 0): [b"c"]})
    assert [message.value() for message in read_committed(kafka.bootstrap_servers, topic)] == [
        b"a",
        b"b",
        b"c",
    ]


def test_what_speaks_plain_text_is_served_at_the_same_port(
    kafka: LocalKafka, proxy: KafkaProxy, new_topic: Callable[..., str]
) -> None:
    plain = KafkaClient(settings_from_options(kafka.proxied_servers, {}, client_id="plain")[0])
    topic = new_topic(kafka.bootstrap_servers, 1)
    assert plain.topic_partitions([topic]) == {topic: {0: 1}}
    plain.close()
