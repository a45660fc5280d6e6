"""Passwords, certificates and tokens: a wrong one stops the pipeline with its name on it, a right
one lets it go on.
"""

from __future__ import annotations

import base64
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from secured_cluster import PASSWORD, SecuredKafka, SecuredPipeline
from typer.testing import CliRunner

import fault_table
import onceward
from onceward.cli import app
from onceward.errors import AuthenticationFailed, BrokerUnreachable, OncewardError
from onceward.kafka.wire.client import KafkaClient
from onceward.kafka.wire.options.settings import settings_from_options

RECORDS = 60

_PASSWORD, _CERTIFICATE = (
    pytest.mark.fault("wrong-password"),
    pytest.mark.fault("untrusted-certificate"),
)
LOGINS = [
    pytest.param("source", "wrong password", marks=_PASSWORD),
    pytest.param("source", "unknown authority", marks=[_CERTIFICATE, pytest.mark.slow]),
    pytest.param("source", "another host", marks=[_CERTIFICATE, pytest.mark.slow]),
    pytest.param("sink", "wrong password", marks=_PASSWORD),
    pytest.param("sink", "unknown authority", marks=[_CERTIFICATE, pytest.mark.slow]),
    pytest.param("sink", "another host", marks=_CERTIFICATE),
]


def wrong(secured: SecuredKafka, what: str) -> dict[str, Any]:
    """Arguments of a source or a sink."""
    if what == "wrong password":
        return {"options": secured.options(sasl_password=f"{PASSWORD}-not")}
    if what == "unknown authority":
        return {"options": secured.options(ssl_ca_location=str(secured.folder / "elsewhere.crt"))}
    return {"bootstrap_servers": secured.bootstrap("ELSEWHERE")}


def assert_says_who(error: OncewardError | None) -> None:
    assert isinstance(error, AuthenticationFailed), error
    assert "127.0.0.1:" in error.message
    assert "sasl." in error.next_step
    assert "ssl." in error.next_step
    assert PASSWORD not in str(error)


@pytest.mark.parametrize(("where", "what"), LOGINS)
def test_a_wrong_login_is_refused_by_name_and_the_right_one_goes_on(
    secured: SecuredKafka, secured_pipeline: SecuredPipeline, where: str, what: str
) -> None:
    pipeline = secured_pipeline
    pipeline.feed(RECORDS)
    secured.grant(pipeline.needed())
    arguments = wrong(secured, what)
    query = pipeline.failing_run(
        frame=pipeline.frame(**arguments) if where == "source" else None,
        sink=pipeline.sink(**arguments) if where == "sink" else None,
    )
    assert_says_who(onceward.error_of(query))
    assert pipeline.visible() == []
    pipeline.run()
    pipeline.assert_exactly_once()


def reached(servers: str, options: dict[str, str]) -> str:
    """The id of the cluster, or the error that says why not."""
    quick = {"socket.connection.setup.timeout.max.ms": "2000", **options}
    client = KafkaClient(settings_from_options(servers, quick, client_id="login-test")[0])
    try:
        return client.cluster_id()
    finally:
        client.close()


MISTAKEN = {
    "plaintext to a TLS port": ("SECURE", {}),
    "TLS without a login to a port that wants one": ("SECURE", {"security.protocol": "SSL"}),
    "TLS to a port without it": ("TOKEN", {"security.protocol": "SSL"}),
    "a login to a TLS port without TLS": ("SECURE", {"security.protocol": "SASL_PLAINTEXT"}),
}


@pytest.mark.slow
@pytest.mark.fault("untrusted-certificate")
@pytest.mark.parametrize("mistake", list(MISTAKEN))
def test_a_wrong_security_protocol_ends_soon_and_is_suspected(
    secured: SecuredKafka, mistake: str
) -> None:
    listener, options = MISTAKEN[mistake]
    if options.get("security.protocol", "").startswith("SASL"):
        options = {**secured.options(ssl_ca_location=None), **options}
    elif options:
        options = {**options, "ssl.ca.location": str(secured.folder / "authority.crt")}
    begun = time.monotonic()
    with pytest.raises((AuthenticationFailed, BrokerUnreachable)) as refused:
        reached(secured.bootstrap(listener), options)
    assert time.monotonic() - begun < 60  # it was told to look for 2 s
    assert "security.protocol" in refused.value.next_step


@pytest.mark.slow
@pytest.mark.fault("untrusted-certificate")
def test_a_source_on_a_tls_port_without_tls_is_refused_at_its_definition(
    secured_pipeline: SecuredPipeline,
) -> None:
    """It cannot know why nobody understands it, but says where to look."""
    quick = {"socket.connection.setup.timeout.max.ms": 2_000}
    with pytest.raises(BrokerUnreachable, match="kafka_source") as unreachable:
        secured_pipeline.frame(options=quick)
    assert "security.protocol" in unreachable.value.next_step


@pytest.mark.fault("untrusted-certificate")
def test_a_certificate_may_be_the_login(secured: SecuredKafka) -> None:
    trust = {"security.protocol": "SSL", "ssl.ca.location": str(secured.folder / "authority.crt")}
    assert reached(secured.bootstrap("MUTUAL"), {**trust, **secured.client_certificate()})
    with pytest.raises(AuthenticationFailed):
        reached(secured.bootstrap("MUTUAL"), trust)
    with pytest.raises(onceward.errors.ConfigurationError, match=r"ssl\.key\.password"):
        reached(
            secured.bootstrap("MUTUAL"),
            {**trust, **secured.client_certificate(), "ssl.key.password": "no"},
        )


class Tokens:
    """Unsigned tokens (RFC 7519, section 6), each good for some seconds; notes every one that it
    gives. Keeps what it opens, which no task can be sent.
    """

    def __init__(self, notes: Path, seconds: float) -> None:
        self.notes = str(notes)
        self.seconds = seconds
        self.kept: Any = None

    def token(self) -> str:
        self.kept = self.kept or threading.Lock()
        with open(self.notes, "a", encoding="ascii") as notes:
            notes.write(f"{os.getpid()}\n")
        now = time.time()
        claims = {"sub": "etl", "iat": now - 60, "exp": now + self.seconds}
        return ".".join([*(encoded(part) for part in ({"alg": "none"}, claims)), ""])

    def given(self) -> dict[int, int]:
        """Process → how many."""
        pids = (
            Path(self.notes).read_text(encoding="ascii").split()
            if Path(self.notes).exists()
            else []
        )
        return {int(pid): pids.count(pid) for pid in set(pids)}


def encoded(part: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")


@pytest.fixture(autouse=True)
def _workers_know_tokens() -> Iterator[None]:
    """Python workers cannot import test modules."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


OF_COMMANDS: Tokens | None = None
TOKEN_LOGIN = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}
RENEWALS = 4
LONGEST_SECONDS = 120


@pytest.mark.fault("token-expiring")
def test_tokens_are_renewed_as_they_expire(
    secured: SecuredKafka, secured_pipeline: SecuredPipeline, tmp_path: Path, at_step: Any
) -> None:
    """Over several lives of a token, one of which ends in the middle of a batch."""
    pipeline, tokens = secured_pipeline, Tokens(tmp_path / "tokens", seconds=4)
    secured.grant(pipeline.needed())
    pipeline.feed(RECORDS)
    sink = pipeline.sink(
        bootstrap_servers=secured.bootstrap("TOKEN"),
        options=TOKEN_LOGIN,
        oauth_token_provider=tokens,
    )
    paused = at_step("commit", "started", lambda _: time.sleep(2 * tokens.seconds), nth=2)
    query = pipeline.start(sink=sink, trigger={"processingTime": "0 seconds"})
    deadline = time.monotonic() + LONGEST_SECONDS
    while tokens.given().get(os.getpid(), 0) < RENEWALS and time.monotonic() < deadline:
        pipeline.feed(20)
        query.processAllAvailable()
    query.stop()
    assert onceward.error_of(query) is None
    given = tokens.given()
    fault_table.fired(
        given.get(os.getpid(), 0) >= RENEWALS, f"tokens expired in the driver: {given}"
    )
    fault_table.fired(paused.fired.is_set(), "a token expired within a batch")
    assert set(given) - {os.getpid()}, "executors ask for tokens of their own"
    pipeline.assert_exactly_once()


@pytest.mark.fault("token-expiring")
def test_an_expired_token_is_refused_by_name_and_a_command_takes_a_good_one_too(
    secured: SecuredKafka,
    secured_pipeline: SecuredPipeline,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pipeline = secured_pipeline
    secured.grant(pipeline.needed())
    pipeline.feed(20)
    late = Tokens(tmp_path / "tokens", seconds=-30)
    login: dict[str, Any] = {
        "bootstrap_servers": secured.bootstrap("TOKEN"),
        "options": TOKEN_LOGIN,
    }
    error = pipeline.refused(sink=pipeline.sink(**login, oauth_token_provider=late))
    fault_table.fired(late.given(), "a token was asked for")
    assert isinstance(error, AuthenticationFailed), error
    assert pipeline.visible() == []
    in_time = Tokens(tmp_path / "more-tokens", seconds=60)
    pipeline.run(sink=pipeline.sink(**login, oauth_token_provider=in_time))
    pipeline.assert_exactly_once()
    monkeypatch.setattr(sys.modules[__name__], "OF_COMMANDS", in_time)
    named = {**TOKEN_LOGIN, "onceward.oauth.token.provider": f"{__name__}:OF_COMMANDS"}
    config = tmp_path / "client.properties"
    config.write_text("".join(f"{name}={value}\n" for name, value in named.items()))
    where = ["--bootstrap-servers", secured.bootstrap("TOKEN"), "--command-config", str(config)]
    done = CliRunner().invoke(app, ["status", *where, "--ledger-topic", pipeline.ledger_topic])
    assert pipeline.name in done.output
