"""Setting a connection up: each step ends by a deadline of ours, and the next try begins anew,
with what holds by then.

The broker is a socket that falls silent where a test wants it; TLS and our client are real.
"""

from __future__ import annotations

import pickle
import shutil
import socket
import ssl
import struct
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.net.sasl import get_sasl_mechanism
from kafka.protocol.metadata import MetadataRequest

from onceward.errors import (
    AuthenticationFailed,
    BrokerUnreachable,
    OncewardError,
    TokenUnavailable,
)
from onceward.kafka.sink.settings import TokensAsBuilt
from onceward.kafka.wire.client import KafkaClient
from onceward.kafka.wire.connections import ConnectionLost, NoToken
from onceward.kafka.wire.kafka_python import _Token
from onceward.kafka.wire.options.settings import settings_from_options
from support.certificates import make_certificates
from support.errors import raises
from support.handmade_broker import (
    API_VERSIONS,
    METADATA,
    SASL_AUTHENTICATE,
    SASL_AUTHENTICATION_FAILED,
    SASL_HANDSHAKE,
    SPOKEN,
    TLS,
    HandmadeBroker,
    text,
)

pytestmark = pytest.mark.lengthy("ci")

PATIENCE_SECONDS = 30
LOGIN = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "u",
    "sasl.password": "p",
}
WITH_TOKEN = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}


@pytest.fixture
def client_of() -> Iterator[Callable[..., KafkaClient]]:
    made = []

    def make(
        servers: str, options: dict[str, Any] | None = None, provider: Any = None
    ) -> KafkaClient:
        quick = {"socket.connection.setup.timeout.max.ms": 1_000, "request.timeout.ms": 1_000}
        checked, _ = settings_from_options(
            servers, {**quick, **(options or {})}, client_id="t", oauth_token_provider=provider
        )
        made.append(KafkaClient(checked))
        return made[-1]

    yield make
    for client in made:
        client.close()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    make_certificates(folder)
    (another := folder / "another").mkdir()
    make_certificates(another)
    return folder


def server_context(folder: Path, *, clients: str | None = None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "here.pem")
    if clients is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(folder / clients)
    return context


def tried_until_answered(client: KafkaClient) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        with suppress(BrokerUnreachable):
            client.call_any(about_nothing())
            return
        assert time.monotonic() < deadline, "the broker answers again, and is not asked"


def about_nothing() -> Any:
    return MetadataRequest(topics=[], min_version=4, max_version=12)


@pytest.mark.parametrize(
    ("step", "options"),
    [
        (TLS, {"security.protocol": "SSL"}),
        (API_VERSIONS, {}),
        (SASL_HANDSHAKE, LOGIN),
        (SASL_AUTHENTICATE, LOGIN),
        (METADATA, {}),
    ],
)
def test_a_step_that_nobody_answers_ends_and_the_next_try_opens_another_connection(
    certificates: Path, client_of: Callable[..., KafkaClient], step: int, options: dict[str, str]
) -> None:
    if step == TLS:
        options = {**options, "ssl.ca.location": str(certificates / "authority.crt")}
    with HandmadeBroker(tls=server_context(certificates) if step == TLS else None) as broker:
        client = client_of(broker.bootstrap_servers, options)
        broker.silent_at = step
        with pytest.raises(BrokerUnreachable):
            client.cluster_id()
        broker.silent_at = None
        tried_until_answered(client)
        kept = [
            connection._request_buffer
            for connection in client._connections._loop.manager._conns.values()
        ]
        assert not any(kept), "what was given up is not sent any more"


def test_a_request_that_waited_for_a_set_up_is_not_sent_when_its_time_is_over(
    client_of: Callable[..., KafkaClient],
) -> None:
    with HandmadeBroker() as broker:
        client = client_of(
            broker.bootstrap_servers, {"socket.connection.setup.timeout.max.ms": 20_000}
        )
        broker.silent_at = API_VERSIONS
        with pytest.raises(BrokerUnreachable):
            client.call(about_nothing(), "bootstrap-0", 300)
        broker._healed.set()  # the connection goes on
        broker.silent_at = None
        tried_until_answered(client)
        assert broker.asked[METADATA] == 1


class Hanging:
    def __init__(self) -> None:
        self.answers = threading.Event()

    def token(self) -> str:
        assert self.answers.wait(PATIENCE_SECONDS)
        return "a-token"


def test_an_identity_provider_that_does_not_answer_holds_nothing_else_up_and_is_named(
    client_of: Callable[..., KafkaClient],
) -> None:
    with HandmadeBroker() as broker:
        provider = Hanging()
        client = client_of(broker.bootstrap_servers, WITH_TOKEN, provider)
        with raises(TokenUnavailable) as unavailable:
            client.cluster_id()
        assert "identity provider" in unavailable.value.next_step
        assert broker.asked[SASL_AUTHENTICATE] == 0
        provider.answers.set()
        tried_until_answered(client)


def test_a_provider_that_fails_is_quoted_and_a_broker_that_refuses_a_token_is_another_matter(
    client_of: Callable[..., KafkaClient],
) -> None:
    class Failing:
        def token(self) -> str:
            raise ConnectionRefusedError("idp.example:443 is down")

    with HandmadeBroker() as broker:
        failing = client_of(broker.bootstrap_servers, WITH_TOKEN, Failing())
        with raises(TokenUnavailable):
            failing.cluster_id()
        given = Hanging()
        given.answers.set()
        broker.refuses_logins = True
        refused = client_of(broker.bootstrap_servers, WITH_TOKEN, given)
        with raises(AuthenticationFailed):
            refused.cluster_id()


def test_a_refused_password_is_said_to_be_the_one_of_then_and_a_token_is_not(
    client_of: Callable[..., KafkaClient],
) -> None:
    """A sink keeps the password with which it was built, and asks for a token each time."""
    tokens = Hanging()
    tokens.answers.set()
    with HandmadeBroker() as broker:
        for options, provider in ((LOGIN, None), (WITH_TOKEN, tokens)):
            broker.refuses_logins = True
            client = client_of(broker.bootstrap_servers, options, provider)
            with pytest.raises(AuthenticationFailed) as refused:
                client.cluster_id()
            broker.refuses_logins = False
            assert client.cluster_id(), "asked again, it logs in again"
            assert ("under supervise, inside" in refused.value.next_step) is (provider is None)


@pytest.mark.parametrize(
    "given", [None, b"a-token", ("a-token", 3600), "Bearer a-token", "a-token\n", ""]
)
def test_a_provider_that_returns_something_else_is_named_and_its_token_is_not(
    client_of: Callable[..., KafkaClient], given: Any
) -> None:
    class Other:
        def token(self) -> Any:
            return given

    with HandmadeBroker() as broker:
        client = client_of(broker.bootstrap_servers, WITH_TOKEN, Other())
        with pytest.raises(TokenUnavailable, match="the text of the token alone") as unavailable:
            client.cluster_id()
        assert "a-token" not in str(unavailable.value)
        assert broker.asked[SASL_AUTHENTICATE] == 0


class Bare:
    def token(self) -> str:
        return "a-token"


class Cloud(Bare):
    """As Confluent Cloud wants it: a token, and whose it is."""

    def __init__(self, given: Any) -> None:
        self.given = given

    def extensions(self) -> Any:
        return self.given


def test_extensions_of_a_provider_go_to_the_broker_with_its_token() -> None:
    provider = TokensAsBuilt(Cloud({"logicalCluster": "lkc-abc12", "identityPoolId": "pool-x"}))
    arrived = pickle.loads(pickle.dumps(provider))  # noqa: S301 - our own bytes
    said = get_sasl_mechanism("OAUTHBEARER")(sasl_oauth_token_provider=_Token(arrived))
    assert said.auth_bytes() == (
        b"n,,\x01auth=Bearer a-token\x01logicalCluster=lkc-abc12\x01identityPoolId=pool-x\x01\x01"
    )
    assert _Token(Bare()).extensions() == _Token(TokensAsBuilt(Bare())).extensions() == {}
    assert (
        _Token(Cloud(None)).extensions() == _Token(TokensAsBuilt(Cloud(None))).extensions() == {}
    )
    # An attribute, too; one of another meaning is nobody's
    for given, sent in (({"logicalCluster": "lkc-abc12"},) * 2, (["a plugin"], {})):
        other = Bare()
        vars(other)["extensions"] = given
        assert _Token(other).extensions() == _Token(TokensAsBuilt(other)).extensions() == sent


@pytest.mark.parametrize(
    "given", ["lkc", {"auth": "x"}, {"a_b": "x"}, {"a": "b\x01auth=c"}, {"a": 1}, {"a": ""}]
)
def test_extensions_that_no_broker_could_read_are_named(
    client_of: Callable[..., KafkaClient], given: Any
) -> None:
    with HandmadeBroker() as broker:
        client = client_of(broker.bootstrap_servers, WITH_TOKEN, Cloud(given))
        with pytest.raises(TokenUnavailable, match=r"extensions\(\) of oauth_token_provider="):
            client.cluster_id()
        assert broker.asked[SASL_AUTHENTICATE] == 0


def test_a_pause_that_a_quota_asks_for_is_no_broker_that_is_away(
    client_of: Callable[..., KafkaClient],
) -> None:
    with HandmadeBroker() as broker:
        client = client_of(broker.bootstrap_servers)
        broker.throttle_ms = 60_000
        client.call(about_nothing(), "bootstrap-0", 5_000)
        with pytest.raises(BrokerUnreachable, match="a quota"):
            client.call(about_nothing(), "bootstrap-0", 300)
        assert broker.asked[METADATA] == 1


def test_a_client_that_is_kept_uses_a_certificate_that_was_renewed_in_its_place(
    certificates: Path, client_of: Callable[..., KafkaClient], tmp_path: Path
) -> None:
    """As cert-manager and Vault do it. The broker trusts another authority by then, as if the old
    one had expired.
    """
    mine, trusted = tmp_path / "client.pem", tmp_path / "trusted.crt"
    shutil.copy(certificates / "another" / "authority.crt", trusted)
    mine.write_text(
        (certificates / "client.key").read_text() + (certificates / "client.crt").read_text()
    )
    renewed = (certificates / "another" / "client.key").read_text() + (
        certificates / "another" / "client.crt"
    ).read_text()
    options = {
        "security.protocol": "SSL",
        "ssl.ca.location": str(certificates / "authority.crt"),
        "ssl.certificate.location": str(mine),
    }
    with HandmadeBroker(
        tls=server_context(certificates, clients="another/authority.crt")
    ) as broker:
        client = client_of(broker.bootstrap_servers, options)
        with pytest.raises(OncewardError):
            client.cluster_id()
        # The client hears of it before the broker's thread has noted it.
        until = time.monotonic() + 20
        while not broker.refused:
            assert time.monotonic() < until, "the broker has refused nothing"
            time.sleep(0.02)
        mine.write_text(renewed)
        tried_until_answered(client)


def test_another_authority_in_the_file_is_believed_from_then_on(
    certificates: Path, client_of: Callable[..., KafkaClient], tmp_path: Path
) -> None:
    trusted = tmp_path / "ca.crt"
    shutil.copy(certificates / "another" / "authority.crt", trusted)
    with HandmadeBroker(tls=server_context(certificates)) as broker:
        client = client_of(
            broker.bootstrap_servers, {"security.protocol": "SSL", "ssl.ca.location": str(trusted)}
        )
        with raises(AuthenticationFailed, "CERTIFICATE_VERIFY_FAILED"):
            client.cluster_id()
        shutil.copy(certificates / "authority.crt", trusted)
        tried_until_answered(client)


def test_files_that_do_not_fit_each_other_yet_leave_the_old_certificate_in_use(
    certificates: Path,
    client_of: Callable[..., KafkaClient],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    names = ("client.crt", "client.key")
    for name in names:
        shutil.copy(certificates / name, tmp_path / name)
    options = {
        "security.protocol": "SSL",
        "ssl.ca.location": str(certificates / "authority.crt"),
        "ssl.certificate.location": str(tmp_path / "client.crt"),
        "ssl.key.location": str(tmp_path / "client.key"),
    }
    with HandmadeBroker(tls=server_context(certificates, clients="authority.crt")) as broker:
        client = client_of(broker.bootstrap_servers, options)
        shutil.copy(
            certificates / "another" / "client.crt", tmp_path / "client.crt"
        )  # its key is yet to come
        assert client.cluster_id() == "handmade-cluster"
        assert "have changed and are not used yet" in caplog.text


def test_a_coordinator_that_moved_under_its_id_is_asked_where_it_is_now(
    client_of: Callable[..., KafkaClient],
) -> None:
    with HandmadeBroker() as old, HandmadeBroker() as new:
        client = client_of(old.bootstrap_servers)
        assert client.cluster_id() == "handmade-cluster"
        client.call(about_nothing(), 1)
        asked_before = old.asked[METADATA]
        old.coordinator_at = new.port  # and nobody has told the metadata
        node = client.coordinator("a pipeline", "transaction")
        client.call(about_nothing(), node)
        assert (old.asked[METADATA], new.asked[METADATA]) == (asked_before, 1)


def test_a_leader_that_moved_under_its_id_is_asked_where_metadata_say(
    client_of: Callable[..., KafkaClient],
) -> None:
    with HandmadeBroker() as bootstrap, HandmadeBroker() as old, HandmadeBroker() as new:
        bootstrap.node_at = old.port
        client = client_of(bootstrap.bootstrap_servers)
        client.cluster_id()
        old.silent_at = METADATA
        with pytest.raises(BrokerUnreachable):
            client.call(about_nothing(), 1, 300)
        bootstrap.node_at = new.node_at = new.port
        client.learn(client.call_any(about_nothing()))
        client.call(about_nothing(), 1)
        assert new.asked[METADATA] == 1


def test_a_broker_that_was_upgraded_is_asked_anew_what_it_speaks(
    client_of: Callable[..., KafkaClient],
) -> None:
    with HandmadeBroker() as broker:
        client = client_of(broker.bootstrap_servers)
        client.cluster_id()
        broker.spoken = {**broker.spoken, 0: (0, 11)}
        client.call(about_nothing(), 1)
        manager = client._connections._loop.manager
        assert manager._conns[1].broker_version_data.api_versions[0] == (0, 11)


def test_a_name_that_is_not_resolved_in_time_holds_no_other_connection_up(
    client_of: Callable[..., KafkaClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve, resolves = socket.getaddrinfo, threading.Event()

    def slow(host: str, *rest: Any, flags: int = 0, **named: Any) -> Any:
        if host != "slow.example" or flags & socket.AI_NUMERICHOST:
            return resolve(host, *rest, flags=flags, **named)
        resolves.wait(PATIENCE_SECONDS)
        raise socket.gaierror("no such host")

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    with HandmadeBroker() as broker:
        client = client_of(
            f"slow.example:9092,{broker.bootstrap_servers}", {"request.timeout.ms": 5_000}
        )
        nodes = {str(address): node for node, address in client._connections._bootstrap.items()}
        stuck = client.send(about_nothing(), nodes["slow.example:9092"])
        client.call(about_nothing(), nodes[broker.bootstrap_servers])
        assert not stuck.done()
        assert "slow.example" in str(stuck.exception(PATIENCE_SECONDS))
        resolves.set()


@pytest.mark.skipif(
    not Path("/proc/self").exists(), reason="a full backlog that swallows is Linux's"
)
def test_of_several_addresses_of_a_name_a_dead_one_does_not_use_up_all_the_time(
    client_of: Callable[..., KafkaClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve = socket.getaddrinfo
    with socket.socket() as dead, HandmadeBroker() as broker:
        dead.bind(("127.0.0.1", 0))
        dead.listen(0)
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(dead.getsockname())

        def two(host: str, *rest: Any, flags: int = 0, **named: Any) -> Any:
            if host != "two.example" or flags & socket.AI_NUMERICHOST:
                return resolve(host, *rest, flags=flags, **named)
            return [
                (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))
                for port in (dead.getsockname()[1], broker.port)
            ]

        monkeypatch.setattr(socket, "getaddrinfo", two)
        client = client_of("two.example:9092", {"request.timeout.ms": 5_000})
        client.call(about_nothing(), "bootstrap-0")
        for filler in fillers:
            filler.close()


def test_no_other_thread_looks_into_what_the_io_thread_changes(
    client_of: Callable[..., KafkaClient],
) -> None:
    foreign: list[str] = []

    class Watched(dict[Any, Any]):
        def _looked(self) -> None:
            if "kafka-io" not in threading.current_thread().name:
                foreign.append(threading.current_thread().name)

        def values(self) -> Any:
            self._looked()
            return super().values()

        def items(self) -> Any:
            self._looked()
            return super().items()

        def __iter__(self) -> Any:
            self._looked()
            return super().__iter__()

    with HandmadeBroker() as broker:
        client = client_of(broker.bootstrap_servers)
        manager = client._connections._loop.manager
        manager._conns = Watched()
        client.cluster_id()
        assert client.brokers() == [1]
        client.call(about_nothing(), 1)
        assert client._connections.nodes()[0] == 1
        assert not foreign


def stuck_for_a_while() -> None:
    time.sleep(5)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("trouble", ["crashed", "stuck"])
def test_an_io_thread_that_is_good_for_nothing_is_replaced(
    client_of: Callable[..., KafkaClient], trouble: str
) -> None:
    with HandmadeBroker() as broker:
        client = client_of(broker.bootstrap_servers)
        client.cluster_id()
        net = client._connections._loop.net
        broker.silent_at = METADATA
        outstanding = client.send(about_nothing(), 1, 60_000)
        broker.silent_at = None
        if trouble == "crashed":
            net._selector.close()
            net.wakeup()
            net._io_thread.join(PATIENCE_SECONDS)
        else:
            net.call_soon_threadsafe(stuck_for_a_while)
        with pytest.raises(BrokerUnreachable):
            client.call(about_nothing(), 1, 300)
        client.call(about_nothing(), 1)
        assert isinstance(outstanding.exception(PATIENCE_SECONDS), BrokerUnreachable), (
            "lost with the thread"
        )


def test_a_connection_between_two_batches_is_not_idle_for_long(
    client_of: Callable[..., KafkaClient],
) -> None:
    """What has been idle for four minutes, load balancers drop without a word."""
    idle = getattr(socket, "TCP_KEEPIDLE", getattr(socket, "TCP_KEEPALIVE", None))
    with HandmadeBroker() as broker:
        client = client_of(broker.bootstrap_servers)
        client.cluster_id()
        (connection,) = client._connections._loop.manager._conns.values()
        sock = connection.transport._sock
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert sock.getsockopt(socket.IPPROTO_TCP, idle) <= 120


class Session(HandmadeBroker):
    """One whose logins hold for two seconds (KIP-368); it may refuse one of them."""

    logins, refuses = 0, False

    def answer(self, api: int, version: int) -> bytes:
        if api != SASL_AUTHENTICATE:
            return super().answer(api, version)
        self.logins += 1
        if self.refuses:
            self.refuses = False
            refusal = struct.pack(">h", SASL_AUTHENTICATION_FAILED) + text("unknown key")
            return refusal + struct.pack(">iq", 0, 0)
        return struct.pack(">hhiq", 0, -1, 0, 2_000)


class Tokens:
    def __init__(self) -> None:
        self.silent = threading.Event()

    def token(self) -> str:
        time.sleep(0.02)
        while self.silent.is_set():
            time.sleep(0.05)
        return "a.new.token"


@pytest.mark.parametrize(
    ("name", "spelt"), [("etl", "etl"), ("CN=etl,OU=data", "CN=3Detl=2COU=3Ddata")]
)
def test_a_login_by_scram_spells_the_name_as_brokers_read_it(name: str, spelt: str) -> None:
    """As Java's ``ScramFormatter.saslName`` does; the broker refuses any other spelling."""
    login = {"sasl_plain_username": name, "sasl_plain_password": "p"}
    mechanism = get_sasl_mechanism("SCRAM-SHA-512")(sasl_mechanism="SCRAM-SHA-512", **login)
    first = mechanism.auth_bytes().decode()
    assert first.startswith(f"n,,n={spelt},r=")
    # The proof is made of it
    assert mechanism._scram_client.auth_message.decode() == first.removeprefix("n,,")


def asked_until(
    client: KafkaClient, node: int, over: Callable[[], bool], failed: list[Exception]
) -> list[Exception]:
    until = time.monotonic() + PATIENCE_SECONDS
    while not over():
        assert time.monotonic() < until, failed
        try:
            client.call(about_nothing(), node)
        except OncewardError as error:
            failed.append(error)
        time.sleep(0.002)
    return failed


def test_a_login_that_is_refused_once_when_it_is_renewed_is_a_connection_lost(
    client_of: Callable[..., KafkaClient],
) -> None:
    """A provider has new keys, which the broker fetches when it meets the first token of theirs."""
    with Session({**SPOKEN, SASL_AUTHENTICATE: (0, 1)}) as broker:
        client = client_of(broker.bootstrap_servers, WITH_TOKEN, Tokens())
        client.call_any(about_nothing())
        (node,) = client.brokers()
        client.call(about_nothing(), node)  # over a connection of its own
        before, broker.refuses = broker.logins, True
        failed = asked_until(client, node, lambda: broker.logins >= before + 4, [])
        assert not broker.refuses
    assert {type(error) for error in failed} <= {ConnectionLost}


def test_a_provider_that_hangs_when_a_login_is_renewed_is_named(
    client_of: Callable[..., KafkaClient],
) -> None:
    tokens = Tokens()
    with Session({**SPOKEN, SASL_AUTHENTICATE: (0, 1)}) as broker:
        client = client_of(broker.bootstrap_servers, WITH_TOKEN, tokens)
        client.call_any(about_nothing())
        (node,) = client.brokers()
        client.call(about_nothing(), node)
        tokens.silent.set()
        failed: list[Exception] = []
        try:
            failed = asked_until(client, node, lambda: bool(failed), failed)
        finally:
            tokens.silent.clear()
    assert [type(error) for error in failed] == [NoToken]


class SlowBrokers:
    """In the place of a client's connections: each answers ``after_s`` it is asked, or never."""

    def __init__(self, client: KafkaClient, count: int, after_s: Callable[[int], float]) -> None:
        self.asked = dict[int, float]()
        self.requests = list[Any]()
        self._after_s = after_s
        unlike: Any = client
        unlike.send, unlike.brokers = self.send, lambda: list(range(count))
        unlike._connections.nodes = client.brokers

    def send(self, request: Any, node: Any, timeout_ms: float = 0) -> Future[Any]:
        self.asked[node] = timeout_ms
        self.requests.append(request)
        of_it = [each.resource_name for each in getattr(request, "resources", ())]
        configs = [SimpleNamespace(name="broker", value=name) for name in of_it]
        result = SimpleNamespace(error_code=0, error_message=None, configs=configs)
        answer: Future[Any] = Future()
        silence = ConnectionLost("Request timed out")
        if (after_s := self._after_s(node)) * 1000 < timeout_ms:
            settle = threading.Timer(
                after_s, answer.set_result, [SimpleNamespace(topics=[], by=node, results=[result])]
            )
        else:
            settle = threading.Timer(timeout_ms / 1000, answer.set_exception, [silence])
        settle.daemon = True
        settle.start()
        return answer


NEVER = float("inf")


@pytest.mark.parametrize("asks", [KafkaClient.reach, lambda client: client.call_any(None)])
@pytest.mark.parametrize("dead", [(), (0,)])
def test_a_set_up_may_take_longer_than_a_brokers_share_of_the_time(
    asks: Callable[[KafkaClient], None],
    dead: Sequence[int],
    client_of: Callable[..., KafkaClient],
) -> None:
    """Of 40 brokers each has 25 ms of a second, and TLS and a login from far away take 200."""
    client = client_of("localhost:1")
    brokers = SlowBrokers(client, 40, lambda node: NEVER if node in dead else 0.2)
    asks(client)
    assert len(brokers.asked) < 20


def test_brokers_that_are_connected_and_dead_do_not_keep_others_from_being_asked(
    client_of: Callable[..., KafkaClient],
) -> None:
    """Hosts that are frozen, or behind a network that is cut: their sockets stay open."""
    client = client_of("localhost:1", {"request.timeout.ms": 2_000})
    brokers = SlowBrokers(client, 60, lambda node: 0.0 if node >= 30 else NEVER)
    assert client.call_any(None).by == 30
    # A request that times out takes its connection with it, and what else is on its way there
    assert min(brokers.asked.values()) >= 1_000


def test_a_brokers_settings_are_told_by_the_first_one_that_answers(
    client_of: Callable[..., KafkaClient],
) -> None:
    client = client_of("localhost:1", {"request.timeout.ms": 2_000})
    brokers = SlowBrokers(client, 20, lambda node: 0.0 if node >= 10 else NEVER)
    assert client.broker_config() == {"broker": "10"}
    assert min(brokers.asked.values()) >= 1_000


def test_the_first_answer_counts_whoever_was_asked_first(
    client_of: Callable[..., KafkaClient],
) -> None:
    client = client_of("localhost:1", {"request.timeout.ms": 5_000})
    brokers = SlowBrokers(client, 10, lambda node: NEVER if node else 1.0)
    assert client.call_any(None).by == 0
    assert 1 < len(brokers.asked) < 10


def test_each_broker_is_sent_a_request_of_its_own(client_of: Callable[..., KafkaClient]) -> None:
    """In which kafka-python notes the version that this one speaks."""
    client, request = client_of("localhost:1", {"request.timeout.ms": 2_000}), about_nothing()
    brokers = SlowBrokers(client, 60, lambda node: 0.0 if node >= 2 else NEVER)
    assert client.call_any(request, 3_000).by == 2
    assert len({id(each) for each in (request, *brokers.requests)}) == 4
    assert max(brokers.asked.values()) <= 2_000, "request.timeout.ms"


def test_the_next_broker_is_asked_well_before_half_of_a_long_time_is_over(
    client_of: Callable[..., KafkaClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onceward.kafka.wire.client._LONGEST_TURN_MS", 50)
    client = client_of("localhost:1", {"request.timeout.ms": 10_000})
    brokers = SlowBrokers(client, 2, lambda node: 0.0 if node else NEVER)
    assert client.call_any(None).by == 1
    assert brokers.asked[1] > 7_500, "it had 5 s left"


def test_no_node_is_asked_when_the_time_is_over(client_of: Callable[..., KafkaClient]) -> None:
    def slowly(_: int) -> float:
        time.sleep(0.1)
        return NEVER

    client = client_of("localhost:1")
    brokers = SlowBrokers(client, 40, slowly)
    with pytest.raises(ConnectionLost, match="timed out"):
        client.call_one_of(range(40), str, 50)
    assert list(brokers.asked) == [0]


def test_an_io_thread_that_times_nothing_out_is_given_up(
    client_of: Callable[..., KafkaClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    client: Any = client_of("localhost:1")
    given_up = list[bool]()
    monkeypatch.setattr("onceward.kafka.wire.client._LATE_MS", 100)
    client.send = lambda *_: Future()
    client._connections.start_anew = lambda: given_up.append(True)
    with pytest.raises(ConnectionLost, match="stuck"):
        client.call_one_of(range(3), str, 50)
    assert given_up == [True]


def test_an_answer_behind_that_of_another_broker_harms_no_connection(
    client_of: Callable[..., KafkaClient],
) -> None:
    class Frozen(HandmadeBroker):
        thawed = threading.Event()

        def answer(self, api: int, version: int) -> bytes:
            if api == METADATA:
                self.thawed.wait(PATIENCE_SECONDS)
            return super().answer(api, version)

    with Frozen() as frozen, HandmadeBroker() as other:
        client = client_of(
            f"{frozen.bootstrap_servers},{other.bootstrap_servers}", {"request.timeout.ms": 20_000}
        )
        first = next(
            node
            for node, address in client._connections._bootstrap.items()
            if address.port == frozen.port
        )
        answer = client.call_one_of(
            [first, *client._connections.nodes()], lambda _: about_nothing(), 20_000
        )
        assert [broker.port for broker in answer.brokers] == [other.port]
        set_up = frozen.asked[API_VERSIONS]
        frozen.thawed.set()
        answer = client.call(about_nothing(), first)
        assert [broker.port for broker in answer.brokers] == [frozen.port]
        assert frozen.asked[API_VERSIONS] == set_up, "there is one connection"


def test_a_bootstrap_server_that_is_connected_is_asked_before_brokers_that_are_not(
    client_of: Callable[..., KafkaClient],
) -> None:
    with HandmadeBroker() as broker:
        client = client_of(broker.bootstrap_servers)
        client.cluster_id()
        connections = client._connections
        connected = connections._loop.manager.connected
        assert [node in connected for node in connections.nodes()] == [True, False]
        assert client.brokers() == [1]


def test_clients_that_newer_ones_have_replaced_end_with_who_has_them() -> None:
    """Each start of a query may build its token provider anew."""

    class Provider:
        def token(self) -> str:
            return "t"

    def shared() -> KafkaClient:
        login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}
        settings, _ = settings_from_options(
            "localhost:1", login, client_id="many", oauth_token_provider=Provider()
        )
        return KafkaClient.shared(settings)

    before = threading.active_count()
    held = shared()
    others = [weakref.ref(shared()) for _ in range(100)]
    assert KafkaClient.shared(held.settings) is not held, "it was the first"
    left = [client for each in others if (client := each()) is not None]
    assert len(left) == 31
    with pytest.raises(BrokerUnreachable):
        held.call(about_nothing(), next(iter(held._connections.nodes())), 10)
    for client in [held, KafkaClient.shared(held.settings), *left]:
        client.close()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= before
