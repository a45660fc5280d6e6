"""What a registry's address and options say, and which subject a schema has: values only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import onceward as ow
from onceward.errors import (
    ConfigurationError,
    ContradictoryOptions,
    FileUnreadable,
    InvalidRegistryResponse,
    OncewardError,
    SchemaUnknown,
    UnknownOption,
)
from onceward.formats.registry import conversation, http
from onceward.formats.registry.settings import OPTIONS, parse_address, parse_settings
from support.errors import raises

CANARY = "the-canary-sings-Pa55"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://registry:8081", "http://registry:8081"),
        ("https://registry.example", "https://registry.example:443"),
        ("http://registry/apis/ccompat/v7/", "http://registry:80/apis/ccompat/v7"),
        ("http://[::1]:8081/a", "http://[::1]:8081/a"),
    ],
)
def test_an_address_is_one_origin_and_a_path(url: str, shown: str):
    assert str(parse_address(url)) == shown
    assert repr(ow.SchemaRegistry(url)) == f"SchemaRegistry('{shown}')"


@pytest.mark.parametrize(
    "url",
    [
        f"http://ann:{CANARY}@registry:8081",
        f"http://{CANARY}@registry:8081",
        f"http://ann:{CANARY}/@registry:8081",
        f"http://registry:8081?key={CANARY}",
        f"http://registry:8081/#{CANARY}",
        f"http://one:8081,http://{CANARY}:8081",
        f"http://one:8081,{CANARY}:8081",
        f"ftp://{CANARY}",
        f"registry:{CANARY}",
        f"http://registry/{CANARY} x",
        "http://registry:0",
        "http://registry:99999",
        "http://registry:80_81",
        "http://",
        "http://[::1",
        f"http://registry {CANARY}",
        "",
        None,
        7,
    ],
)
def test_what_is_no_address_is_refused_without_being_shown(url: Any):
    with pytest.raises(ConfigurationError) as refused:
        ow.SchemaRegistry(url)
    assert "url=" in str(refused.value)
    assert CANARY not in str(refused.value)


@pytest.mark.parametrize(
    ("options", "kind", "said"),
    [
        ({"basic.auth.user.inf": CANARY}, UnknownOption, "'basic.auth.user.info'"),
        ({"completely.other": CANARY}, UnknownOption, "completely.other"),
        ({"schema.registry.url": CANARY}, UnknownOption, "schema.registry.url"),
        ({"basic.auth.user.info": CANARY}, ConfigurationError, "basic.auth.user.info"),
        ({"basic.auth.user.info": f":{CANARY}"}, ConfigurationError, "basic.auth.user.info"),
        ({"basic.auth.user.info": None}, ConfigurationError, "basic.auth.user.info"),
        ({"basic.auth.credentials.source": "URL"}, ConfigurationError, "set it to USER_INFO"),
        ({"basic.auth.credentials.source": "USER_INFO"}, ConfigurationError, "no login"),
        ({"bearer.auth.credentials.source": "OAUTHBEARER"}, ConfigurationError, "STATIC_TOKEN"),
        ({"bearer.auth.token": f"Bearer {CANARY}"}, ConfigurationError, "bearer.auth.token"),
        ({"bearer.auth.token": f"{CANARY}\r\nX: y"}, ConfigurationError, "bearer.auth.token"),
        ({"bearer.auth.token": ""}, ConfigurationError, "bearer.auth.token"),
        (
            {"bearer.auth.token": CANARY, "basic.auth.user.info": f"a:{CANARY}"},
            ContradictoryOptions,
            "both set",
        ),
        (
            {"bearer.auth.token": CANARY, "schema.registry.bearer.auth.token": "b"},
            ContradictoryOptions,
            "bearer.auth.token",
        ),
        ({"ssl.ca.location": "/none"}, FileUnreadable, "does not exist"),
        (
            {"ssl.truststore.location": "/x.jks", "ssl.truststore.type": "JKS"},
            ConfigurationError,
            "JKS",
        ),
    ],
)
def test_options_that_are_wrong_are_named_and_secrets_are_not(
    options: dict[str, Any], kind: type, said: str
):
    with pytest.raises(kind) as refused:
        ow.SchemaRegistry("https://registry", options=options)
    assert type(refused.value) is kind
    assert said in str(refused.value)
    assert CANARY not in str(refused.value)


def test_tls_options_need_an_address_with_tls(tmp_path: Path):
    (tmp_path / "ca.pem").write_text("x")
    with raises(ContradictoryOptions):
        ow.SchemaRegistry("http://registry", options={"ssl.ca.location": str(tmp_path / "ca.pem")})
    with raises(ConfigurationError):
        ow.SchemaRegistry(
            "https://registry", options={"ssl.ca.location": str(tmp_path / "ca.pem")}
        )


@pytest.mark.parametrize("limit", ["timeout_s", "request_timeout_s", "max_schema_bytes"])
@pytest.mark.parametrize("value", [0, -1, "5", None, True, float("inf"), float("nan")])
def test_limits_are_numbers_above_0(limit: str, value: Any):
    with pytest.raises(ConfigurationError, match=limit):
        ow.SchemaRegistry("http://registry", **{limit: value})


def test_every_option_is_known_by_both_names():
    for name in OPTIONS:
        for spelled in (name, f"schema.registry.{name}"):
            with pytest.raises(ConfigurationError) as refused:
                parse_settings("http://registry", {spelled: "\n"})
            assert not isinstance(refused.value, UnknownOption), spelled


@pytest.mark.parametrize("number", [0, -1, 2**31, True, "1", None, 1.0])
def test_a_number_that_no_registry_gives_out_is_not_asked_for(number: Any):
    asked = ow.SchemaRegistry("http://127.0.0.1:1", timeout_s=0.1)
    for ask in (
        asked.schema,
        asked.resolved_text,
        lambda n: asked.version("s", n),
        lambda n: asked.check_unchanged([n]),
    ):
        with pytest.raises(SchemaUnknown):
            ask(number)


@pytest.mark.parametrize("subject", ["", ".", "..", "x" * 1_001, None, b"x"])
def test_a_subject_that_is_none_is_not_asked_for(subject: Any):
    with raises(ConfigurationError):
        ow.SchemaRegistry("http://127.0.0.1:1", timeout_s=0.1).latest(subject)


@pytest.mark.parametrize(
    ("path", "subject", "answered", "error"),
    [
        ("/contexts/.eu", "orders-value", ":.eu:orders-value", None),
        ("/a/contexts/:.eu:", "orders-value", ":.eu:orders-value", None),
        ("/contexts/.eu", "orders-value", "orders-value", None),
        ("/contexts/.eu", ":.eu:orders-value", ":.eu:orders-value", None),
        ("/contexts/.eu", "orders-value", ":.us:orders-value", ConfigurationError),
        ("/contexts/.eu", "orders-value", ":.eu:other", ConfigurationError),
        ("", ":.eu:orders-value", ":.eu:orders-value", None),
        ("", "orders-value", ":.eu:orders-value", ConfigurationError),
        ("/contexts", "orders-value", ":.eu:orders-value", ConfigurationError),
        ("", "orders-value", ":.us:other", ConfigurationError),
        ("", "orders-value", "other", ConfigurationError),
        ("", "orders-value", "", InvalidRegistryResponse),
    ],
)
def test_a_subject_may_be_answered_by_the_context_of_the_address(
    path: str,
    subject: str,
    answered: str,
    error: type[OncewardError] | None,
    monkeypatch: pytest.MonkeyPatch,
):
    """In another context the same ids mean other schemas. And a subject may be an alias."""
    body = {"subject": answered, "version": 1, "id": 7, "schema": '"int"'}
    answer = http.Answer(200, {}, json.dumps(body).encode())
    monkeypatch.setattr(conversation, "send", lambda *_, **__: answer)
    registry = ow.SchemaRegistry(f"http://registry{path}", timeout_s=0.2)
    if error is None:
        assert registry.latest(subject).id == 7
        assert registry.lookup(subject, '"int"') == 7
        return
    with pytest.raises(error) as stopped:
        registry.latest(subject)
    if error is ConfigurationError:
        name = answered.removeprefix(":.eu:") if ".eu" in path else answered
        assert f'subject="{name}"' in stopped.value.next_step
