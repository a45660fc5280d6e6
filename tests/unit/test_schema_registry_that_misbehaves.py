"""What a registry, or whoever answers at its address, may do to its client: on real sockets,
without a JVM.
"""

from __future__ import annotations

import gzip
import io
import json
import logging
import pickle
import random
import socket
import ssl
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import onceward as ow
from fault_table import fired
from onceward import patience
from onceward.errors import (
    FileUnreadable,
    InvalidRegistryResponse,
    Recovery,
    RegistryRefused,
    RegistryReplaced,
    RegistryUnreachable,
    SchemaUnknown,
    UnsupportedSchema,
)
from onceward.formats.registry import http
from onceward_testing.free_ports import free_ports
from support.certificates import KEY_PASSWORD, make_certificates
from support.hostile_http import Behaviour, HostileServer, answer, drip, hang_up, raw, silent

pytestmark = pytest.mark.lengthy("ci")

TEXT = '{"type": "record", "name": "Person", "fields": [{"name": "id", "type": "long"}]}'
OTHER = '{"type": "record", "name": "Person", "fields": [{"name": "id", "type": "string"}]}'
GOOD = answer(body={"schema": TEXT})
UNKNOWN = answer(404, {"error_code": 40403, "message": "Schema 7 not found"})
PATIENT_S = 60.0
IMPATIENT_S = 1.0
MEBIBYTE = 1 << 20
CANARY = "the-canary-sings-Pa55"


def registry(
    server: HostileServer | str, timeout_s: float = PATIENT_S, **more: Any
) -> ow.SchemaRegistry:
    return ow.SchemaRegistry(
        server if isinstance(server, str) else server.url, timeout_s=timeout_s, **more
    )


def error_of(ask: Callable[[], object], kind: type[ow.OncewardError]) -> ow.OncewardError:
    with pytest.raises(kind) as refused:
        ask()
    assert type(refused.value) is kind
    return refused.value


@pytest.mark.fault("registry-down")
def test_a_registry_that_is_down_is_waited_for():
    with HostileServer([hang_up, hang_up, hang_up, GOOD]) as server:
        assert registry(server).schema(7).text == TEXT
        fired(server.connections == 4, "nobody hung up")


@pytest.mark.fault("registry-down")
def test_a_registry_that_stays_down_is_unreachable_by_name():
    url = f"http://127.0.0.1:{free_ports(1)[0]}/api"
    error = error_of(lambda: registry(url, IMPATIENT_S).schema(7), RegistryUnreachable)
    assert url in error.message
    assert "/schemas/ids/7" in error.message
    assert "timeout_s=" in error.next_step
    assert error.recovery is Recovery.RESTART


@pytest.mark.fault("registry-down")
def test_a_registry_that_comes_while_it_is_waited_for_is_heard(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG, "onceward")
    port = free_ports(1)[0]
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(registry(f"http://127.0.0.1:{port}").schema, 7)
        ends = time.monotonic() + PATIENT_S
        while "is asked again" not in caplog.text and time.monotonic() < ends:
            time.sleep(0.01)
        fired("is asked again" in caplog.text, "it was not down")
        with HostileServer([GOOD], port=port):
            assert asked.result(PATIENT_S).text == TEXT


@pytest.mark.fault("registry-slow")
@pytest.mark.parametrize(
    "slow",
    [
        pytest.param(silent, id="silent"),
        pytest.param(drip(b"", b"H"), id="in its first line"),
        pytest.param(drip(b"HTTP/1.1 200 OK\r\n", b"X-A: b\r\n"), id="in its headers"),
        pytest.param(drip(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"), id="in its body"),
        pytest.param(
            drip(b'HTTP/1.1 200 OK\r\n\r\n{"schema": "\\"int\\""}'), id="behind a whole answer"
        ),
        pytest.param(
            drip(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
            id="in chunks",
        ),
        pytest.param(drip(b"", b"HTTP/1.1 100 Continue\r\n\r\n"), id="in saying continue"),
    ],
)
def test_a_registry_that_drips_is_cut_off_and_asked_again(slow: Behaviour):
    with HostileServer([slow, GOOD]) as server:
        assert registry(server, request_timeout_s=0.3).schema(7).text == TEXT
        fired(server.connections == 2, "it was not slow")


@pytest.mark.fault("registry-slow")
def test_one_that_stays_slow_is_unreachable_in_time():
    with HostileServer([drip(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")]) as server:
        error = error_of(lambda: registry(server, IMPATIENT_S).schema(7), RegistryUnreachable)
    assert "no whole answer" in error.message


def test_a_query_that_is_to_end_does_not_wait_for_an_answer():
    class Stopped(Exception):
        """The query is to end."""

    began = time.monotonic()

    def stop() -> None:
        if time.monotonic() - began > 0.5:
            raise Stopped

    with HostileServer([silent]) as server, patience.asking(stop), pytest.raises(Stopped):
        registry(server).schema(7)
    assert time.monotonic() - began < 10


def test_whoever_has_less_patience_waits_no_longer() -> None:
    """Nobody listens there: each try is over at once, and was followed by the next."""
    nobody = registry("http://127.0.0.1:1", timeout_s=3.0)
    with patience.within(300):
        error = error_of(lambda: nobody.schema(7), RegistryUnreachable)
    assert " in 0.3 s: " in error.message


def test_tls_that_drips_is_cut_off_too(certificates: Path):
    """A socket that speaks no TLS, where the client waits for the server's part of the
    handshake.
    """
    with HostileServer([silent]) as server:
        url = server.url.replace("http:", "https:")
        options = {"ssl.ca.location": str(certificates / "authority.crt")}
        error_of(
            lambda: registry(url, IMPATIENT_S, options=options).schema(7), RegistryUnreachable
        )


@pytest.mark.fault("registry-failing")
@pytest.mark.parametrize("status", [500, 502, 503, 504, 429, 408])
def test_what_may_pass_is_asked_again(status: int):
    with HostileServer([answer(status, b"<html>busy"), answer(status), GOOD]) as server:
        assert registry(server).schema(7).text == TEXT
        fired(server.connections == 3, "it did not fail")


@pytest.mark.fault("registry-failing")
def test_what_does_not_pass_is_unreachable_with_the_servers_words():
    with HostileServer(
        [answer(500, {"error_code": 50001, "message": "the store is gone"})]
    ) as server:
        error = error_of(lambda: registry(server, IMPATIENT_S).schema(7), RegistryUnreachable)
    assert "500 the store is gone" in error.message


def test_retry_after_is_kept_to_and_not_longer_than_there_is_time():
    with HostileServer([answer(429, headers=["Retry-After: 1"]), GOOD]) as server:
        assert registry(server).schema(7).text == TEXT
    with HostileServer([answer(503, headers=["Retry-After: 86400"]), GOOD]) as server:
        error_of(lambda: registry(server).schema(7), RegistryUnreachable)
        assert server.connections == 1
    with HostileServer(
        [answer(503, headers=["Retry-After: Fri, 31 Dec 1999 23:59:59 GMT"]), GOOD]
    ) as server:
        assert registry(server).schema(7).text == TEXT


NONSENSE = {
    "empty": answer(body=b""),
    "no JSON": answer(body=b"<html>It works!</html>"),
    "half of it": answer(body=b'{"schema": "\\"in'),
    "no UTF-8": answer(body=b'{"schema": "\xff"}'),
    "a list": answer(body=[TEXT]),
    "no schema": answer(body={"id": 7}),
    "a schema that is none": answer(body={"schema": 7}),
    "an empty schema": answer(body={"schema": ""}),
    "half a character": answer(body=b'{"schema": "\\"\\ud800\\""}'),
    "a text that is no JSON": answer(body={"schema": "{'type'"}),
    "not a number": answer(body={"schema": "[NaN]"}),
    "a number with too many digits": answer(body=b'{"schema": "1", "id": ' + b"1" * 5_000 + b"}"),
    "another id": answer(body={"schema": OTHER, "id": 8}),
    "a type that has no name": answer(body={"schema": TEXT, "schemaType": "<p>" * 20}),
    "a type that is none": answer(body={"schema": TEXT, "schemaType": ["AVRO"]}),
    "references that are none": answer(body={"schema": TEXT, "references": {"name": "x"}}),
    "a reference without a version": answer(
        body={"schema": TEXT, "references": [{"name": "a", "subject": "b"}]}
    ),
    "deep": answer(body=b"[" * 100_000 + b"]" * 100_000),
    "quotes without an end": answer(body=b'{"schema": "' + b'\\"' * 500_000),
    "more than it says": answer(body={"schema": TEXT}, length=20),
    "less than it says": answer(body={"schema": TEXT}, length=1_000),
    "two lengths": answer(body={"schema": TEXT}, headers=["Content-Length: 5"]),
    "a length that is none": raw(b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n"),
    "no HTTP": raw(b"SSH-2.0-OpenSSH_9.2\r\n"),
    "a broken chunk": raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}"),
    "endless headers": raw(b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 200 + b"\r\n"),
    "a 404 of somebody else": answer(404, b"<html>nginx</html>"),
    "a 404 with another code": answer(404, {"error_code": 404, "message": "HTTP 404 Not Found"}),
    "nothing to say": answer(204),
    "another success": answer(206, {"schema": TEXT}),
    "a mistake of ours": answer(400, {"message": "?"}),
}


@pytest.mark.fault("registry-nonsense")
@pytest.mark.parametrize("nonsense", NONSENSE.values(), ids=NONSENSE)
def test_nonsense_is_never_believed_and_asked_about_again(nonsense: Behaviour):
    with HostileServer([nonsense, GOOD]) as server:
        asked = registry(server)
        assert asked.schema(7).text == TEXT
        assert asked.schema(7).text == TEXT
        assert server.connections == 2


@pytest.mark.fault("registry-nonsense")
def test_nonsense_that_stays_is_named():
    with HostileServer([NONSENSE["another id"]]) as server:
        error = error_of(lambda: registry(server, IMPATIENT_S).schema(7), InvalidRegistryResponse)
        fired(server.connections > 1, "it was asked once")
    assert server.url in error.message
    assert "another id, 8" in error.message
    assert error.recovery is Recovery.RESTART


def test_a_404_of_somebody_else_is_not_the_registrys_no():
    """A proxy whose registry is away says so about every id; a reader that believed it would call
    records lost.
    """
    with HostileServer([NONSENSE["a 404 of somebody else"]]) as server:
        error = error_of(lambda: registry(server, IMPATIENT_S).schema(7), InvalidRegistryResponse)
    assert "404" in error.message


@pytest.mark.fault("registry-nonsense")
@pytest.mark.parametrize("seed", range(20))
def test_damaged_bytes_are_a_good_answer_or_a_typed_error(seed: int):
    chance = random.Random(seed)
    body = json.dumps({"schema": TEXT, "id": 7}).encode()
    good = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (
        len(body),
        body,
    )
    damaged = bytearray(good)
    for _ in range(chance.randint(1, 4)):
        place = chance.randrange(len(damaged))
        damaged[place : place + chance.randint(0, 3)] = chance.choice(
            [chance.randbytes(2), b"\r\n", b"9", b'"', b""]
        )
    with HostileServer([raw(bytes(damaged)), GOOD]) as server:
        try:
            schema = registry(server).schema(7)
        except ow.OncewardError as error:
            assert server.url in error.message, f"seed {seed}"  # noqa: PT017 — both are fit outcomes
        else:
            assert (schema.id, schema.schema_type) == (7, "AVRO"), (
                f"seed {seed}: {bytes(damaged)!r}"
            )


def test_what_the_registry_does_not_know_is_said_at_once_and_asked_again_next_time():
    with HostileServer([UNKNOWN, GOOD]) as server:
        asked = registry(server)
        error = error_of(lambda: asked.schema(7), SchemaUnknown)
        assert "schema id 7" in error.message
        assert error.details["id"] == 7
        assert asked.schema(7).text == TEXT


def gzipped(content: bytes) -> bytes:
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=9) as file:
        file.write(content)
    return packed.getvalue()


@pytest.mark.fault("registry-bomb")
@pytest.mark.parametrize(
    ("bomb", "said"),
    [
        pytest.param(
            answer(body=gzipped(b" " * (100 * MEBIBYTE)), headers=["Content-Encoding: gzip"]),
            "packed as gzip",
            id="gzip",
        ),
        pytest.param(answer(body=b"x", headers=["Content-Encoding: br, gzip"]),
        "packed as br, gzip", id="twice"),
        pytest.param(answer(body=b" " * (3 * MEBIBYTE)), "more than", id="large"),
        pytest.param(drip(b"HTTP/1.1 200 OK\r\n\r\n", b" " * MEBIBYTE), "more than", id="endless"),
        pytest.param(answer(body=b"[" * 300_000), "nested deeper", id="deep"),
        pytest.param(answer(body=b"[" * MEBIBYTE), "lists and objects", id="many brackets"),
    ],
)  # fmt: skip
def test_a_bomb_does_not_go_off(
    bomb: Behaviour, said: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.DEBUG, "onceward")
    read: list[int] = []
    whole = http._whole

    def counted(response: Any, most_bytes: int) -> Any:
        try:
            return whole(response, most_bytes)
        finally:
            read.append(response.tell())

    monkeypatch.setattr(http, "_whole", counted)
    with HostileServer([bomb, GOOD]) as server:
        assert registry(server).schema(7).text == TEXT
        assert b"Accept-Encoding: identity" in server.requests[0]
    assert said in caplog.text
    assert len(caplog.text) < 1_000
    fired(read, "nothing was read")
    assert max(read) < 3 * MEBIBYTE


def test_nobody_follows_to_another_place():
    with HostileServer([GOOD]) as elsewhere:
        for status in (301, 302, 303, 307, 308):
            on = answer(
                status,
                headers=[
                    f"Location: http://thief:{CANARY}@127.0.0.1:{elsewhere.port}/schemas/ids/7"
                ],
            )
            options = {"basic.auth.user.info": f"ann:{CANARY}"}
            with HostileServer([on]) as server:
                asked = registry(server, options=options)
                error = error_of(lambda asked=asked: asked.schema(7), InvalidRegistryResponse)
                assert server.connections == 1
            assert "http://127.0.0.1" in error.message
            assert CANARY not in str(error)
        assert elsewhere.connections == 0


def test_no_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch):
    with HostileServer([GOOD]) as server, HostileServer([GOOD]) as proxy:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        monkeypatch.delenv("no_proxy", raising=False)
        assert registry(server).schema(7).text == TEXT
        assert (server.connections, proxy.connections) == (1, 0)


@pytest.mark.parametrize(
    ("options", "header"),
    [
        ({}, None),
        ({"basic.auth.user.info": f"ann:{CANARY}"}, b"Basic YW5uOnRoZS1jYW5hcnktc2luZ3MtUGE1NQ=="),
        (
            {
                "schema.registry.basic.auth.user.info": "ä:ö:ü",
                "basic.auth.credentials.source": "USER_INFO",
            },
            b"Basic w6Q6w7Y6w7w=",
        ),
        (
            {
                "bearer.auth.token": f"a.b.{CANARY}",
                "bearer.auth.credentials.source": "STATIC_TOKEN",
            },
            f"Bearer a.b.{CANARY}".encode(),
        ),
    ],
)
def test_the_login_goes_with_each_request(options: dict[str, str], header: bytes | None):
    with HostileServer([hang_up, GOOD]) as server:
        registry(server, options=options).schema(7)
        for request in server.requests:
            sent = [
                line[15:]
                for line in request.split(b"\r\n")
                if line.lower().startswith(b"authorization: ")
            ]
            assert sent == ([] if header is None else [header])


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize(
    "options",
    [{}, {"basic.auth.user.info": f"ann:{CANARY}"}, {"bearer.auth.token": f"x.{CANARY}"}],
)
def test_a_login_that_is_refused_is_named_and_never_shown(
    status: int, options: dict[str, str], caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.DEBUG)
    name, value = next(iter(options.items()), (None, ""))
    # Some servers repeat what they are sent; the second time where our message is cut short.
    said = f"who is {value}, YW5uOnRoZS1jYW5hcnktc2luZ3MtUGE1NQ==?".ljust(292, "-") + value
    with HostileServer(
        [answer(500, said.encode()), answer(status, {"error_code": status, "message": said})]
    ) as server:
        asked = registry(server, options=options)
        error = error_of(lambda: asked.schema(7), RegistryRefused)
        assert server.connections == 2
    assert error.recovery is Recovery.RESTART_IF_WORKED
    assert (name or "basic.auth.user.info") in error.next_step
    is_of_one_id = name is not None and status == 403
    assert ("see who writes records with this id" in error.next_step) is is_of_one_id
    shown = f"{error!r} {error.details} {asked!r} {vars(asked)!r} {caplog.text}"
    shown += "".join(traceback.format_exception(error))
    assert caplog.records
    assert CANARY[:4] not in shown
    if name == "basic.auth.user.info":
        assert "YW5uOnRo" not in shown
    with pytest.raises(TypeError, match="driver"):
        pickle.dumps(asked)


@pytest.mark.parametrize(
    ("status", "code", "word"),
    [
        (409, 409, "compatibility"),
        (409, 40901, "compatibility"),
        (422, 42201, "mend the schema"),
    ],
)
def test_what_it_does_not_take_is_said_at_once_with_what_mends_it(
    status: int, code: int, word: str
):
    no = answer(status, {"error_code": code, "message": "the registry's own words"})
    with HostileServer([UNKNOWN, no]) as server:
        error = error_of(
            lambda: registry(server).register("people-value", TEXT), UnsupportedSchema
        )
        assert server.connections == 2
    assert "the registry's own words" in error.message
    words = ("compatibility", "READWRITE", "mend the schema")
    assert [each for each in words if each in error.next_step] == [word]


def test_who_registers_at_the_same_moment_as_another_asks_again():
    """Two pipelines of one topic start together, at an Apicurio of several nodes."""
    said = "An artifact with ID 'people-value' in group 'default' already exists."
    second = answer(409, {"error_code": 409, "message": said})
    with HostileServer([UNKNOWN, second, answer(body={"id": 7})]) as server:
        assert registry(server).register("people-value", TEXT) == 7


def test_a_registry_that_takes_nothing_now_may_do_so_later():
    """In READONLY or IMPORT mode, as while it is moved."""
    no = answer(422, {"error_code": 42205, "message": "the registry's own words"})
    with HostileServer([UNKNOWN, no]) as server:
        error = error_of(lambda: registry(server).register("people-value", TEXT), RegistryRefused)
    assert "the registry's own words" in error.message
    assert "READWRITE" in error.next_step
    assert error.recovery is Recovery.RESTART_IF_WORKED


@pytest.mark.parametrize("status", [409, 422])
def test_a_no_of_somebody_else_is_not_the_registrys(status: int):
    with HostileServer([UNKNOWN, answer(status, b"<html>Conflict</html>")]) as server:
        asked = registry(server, IMPATIENT_S)
        error_of(lambda: asked.register("people-value", TEXT), InvalidRegistryResponse)


def test_a_registration_whose_answer_is_lost_is_asked_for_again():
    with HostileServer([UNKNOWN, hang_up, answer(body={"id": 7})]) as server:
        assert registry(server).register("people/value ä", TEXT) == 7
        _, first, second = server.requests
        assert first == second
        assert first.startswith(
            b"POST /subjects/people%2Fvalue%20%C3%A4/versions?normalize=true HTTP/1.1\r\n"
        )
        assert json.loads(first.partition(b"\r\n\r\n")[2]) == {"schema": TEXT}


@pytest.mark.fault("registry-replaced")
@pytest.mark.parametrize("now", [answer(body={"schema": OTHER}), UNKNOWN], ids=["another", "none"])
def test_a_registry_that_was_replaced_is_named(now: Behaviour):
    with HostileServer([GOOD, GOOD, now]) as server:
        asked = registry(server)
        before = asked.schema(7)
        asked.check_unchanged([7])
        error = error_of(lambda: asked.check_unchanged([7]), RegistryReplaced)
    assert before.fingerprint in error.message
    assert error.details["before"] == before.fingerprint
    assert error.details["now"] is None or error.details["now"] in error.message
    assert error.recovery is Recovery.RESTART_IF_WORKED
    assert asked.schema(7) is before, "what was known is what records were written by"


@pytest.mark.fault("registry-replaced")
def test_it_is_noticed_by_what_another_process_knew():
    with HostileServer([GOOD]) as server:
        known = registry(server).schema(7).fingerprint
    with HostileServer([answer(body={"schema": OTHER})]) as server:
        error = error_of(lambda: registry(server).check_unchanged({7: known}), RegistryReplaced)
    assert known in error.message
    with HostileServer([UNKNOWN]) as server:
        error_of(lambda: registry(server).check_unchanged({7: known}), RegistryReplaced)
        error_of(lambda: registry(server).check_unchanged([7]), SchemaUnknown)


def test_another_spelling_is_no_other_schema():
    spelled = json.dumps(dict(reversed(json.loads(TEXT).items())), indent=4)
    with HostileServer(
        [GOOD, answer(body={"schema": spelled, "schemaType": "AVRO", "references": []})]
    ) as server:
        asked = registry(server)
        before = asked.schema(7)
        asked.check_unchanged([7])
        assert asked.schema(7) is before


def test_many_threads_ask_and_all_hear_the_same():
    with HostileServer([GOOD]) as server, ThreadPoolExecutor(8) as pool:
        asked = registry(server)
        heard = list(pool.map(asked.schema, [7] * 64))
        assert {id(schema) for schema in heard} == {id(heard[0])}
        assert server.connections <= 8


def test_nothing_is_left_open():
    before = set(threading.enumerate())
    with HostileServer([silent, GOOD]) as server:
        registry(server, request_timeout_s=0.2).schema(7)
    assert set(threading.enumerate()) <= before


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    make_certificates(folder)
    return folder


@pytest.fixture
def secured(certificates: Path) -> Callable[..., HostileServer]:
    def server(name: str = "here", *, asks: bool = False) -> HostileServer:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates / f"{name}.pem")
        if asks:
            context.load_verify_locations(certificates / "authority.crt")
            context.verify_mode = ssl.CERT_REQUIRED
        return HostileServer([GOOD], context)

    return server


def test_tls_with_an_authority_of_ones_own(
    certificates: Path, secured: Callable[..., HostileServer]
):
    trust = {"ssl.ca.location": str(certificates / "authority.crt")}
    with secured() as server:
        assert registry(server, options=trust).schema(7).text == TEXT
        assert (
            registry(server, options={f"schema.registry.{k}": v for k, v in trust.items()})
            .schema(7)
            .text
            == TEXT
        )


@pytest.mark.parametrize(
    ("name", "trusted"),
    [("here", False), ("elsewhere", True)],
    ids=["unknown authority", "another host"],
)
def test_a_server_that_is_not_trusted_is_told_nothing(
    name: str, trusted: bool, certificates: Path, secured: Callable[..., HostileServer]
):
    options = {"basic.auth.user.info": f"ann:{CANARY}"}
    if trusted:
        options["ssl.ca.location"] = str(certificates / "authority.crt")
    with secured(name) as server:
        error = error_of(lambda: registry(server, options=options).schema(7), RegistryRefused)
        assert server.requests == []
    assert "ssl.ca.location" in error.next_step


def test_a_host_name_that_is_not_compared_on_purpose(
    certificates: Path, secured: Callable[..., HostileServer]
):
    options = {
        "ssl.ca.location": str(certificates / "authority.crt"),
        "ssl.endpoint.identification.algorithm": "",
    }
    with secured("elsewhere") as server:
        assert registry(server, options=options).schema(7).text == TEXT


def test_a_certificate_of_ones_own(certificates: Path, secured: Callable[..., HostileServer]):
    trust = {"ssl.ca.location": str(certificates / "authority.crt")}
    own = {
        "ssl.certificate.location": str(certificates / "client.crt"),
        "ssl.key.location": str(certificates / "client.locked"),
        "ssl.key.password": KEY_PASSWORD,
    }
    with secured(asks=True) as server:
        assert registry(server, options=trust | own).schema(7).text == TEXT
        error_of(
            lambda: registry(server, IMPATIENT_S, options=trust).schema(7), RegistryUnreachable
        )
        assert len(server.requests) == 1
        wrong = trust | own | {"ssl.key.password": CANARY}
        error = error_of(lambda: registry(server, options=wrong), FileUnreadable)
    assert CANARY not in str(error)


def test_an_id_means_a_schema_of_the_context_that_the_subject_names():
    """Confluent's registries have contexts; without a subject an id is one of the default
    context.
    """
    subject, newer = ":.eu:orders-value", TEXT.replace("long", "int")
    of_the_subject = ("/schemas/ids/1", "subject=%3A.eu%3Aorders-value")

    def contexts(connection: socket.socket, server: HostileServer) -> None:
        path, _, query = server.requests[-1].split()[1].decode().partition("?")
        if path == "/subjects/%3A.eu%3Aorders-value/versions":
            said: Any = [1]
        elif path.startswith("/subjects/"):
            said = {"subject": subject, "version": 1, "id": 1, "schema": TEXT}
        elif query == "subject=%3A.eu%3A" or (path, query) == of_the_subject:
            said = {"schema": TEXT if path == "/schemas/ids/1" else newer}
        elif query:
            # Of a whole subject the registry looks in that one alone
            said = None
        else:
            said = {"schema": OTHER}
        (UNKNOWN if said is None else answer(body=said))(connection, server)

    with HostileServer([contexts]) as server:
        asked = registry(server)
        assert [version.text for version in asked.versions(subject)] == [TEXT]
        asked.check_unchanged([1])
        there = asked.in_context(subject)
        assert (there.schema(1).text, there.schema(2).text) == (TEXT, newer)
        assert asked.schema(2).text == OTHER
        assert asked.in_context("orders-value") is asked
        assert asked.in_context(":.eu:others-value") is there
        there.check_unchanged([1, 2])
        assert there.context in repr(there)


def test_a_schema_that_was_deleted_for_good_makes_no_other_registry(
    caplog: pytest.LogCaptureFixture,
):
    """As old versions are, once no record has them. Had all gone, it would be another one."""
    with HostileServer([GOOD, answer(body={"schema": OTHER}), UNKNOWN, GOOD]) as server:
        asked = registry(server)
        asked.schema(7)
        known = asked.schema(6)
        asked.check_unchanged([6])
        assert asked.schema(6) is known, "records may have it still"
    assert "id 6 is not in" in caplog.text
