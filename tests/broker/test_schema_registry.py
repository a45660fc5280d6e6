"""The client with a real registry: what it registers is found, and what is gone is noticed."""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
from typing import Any

import pytest
import urllib3

import onceward as ow
from fault_table import fired
from onceward.errors import RegistryReplaced, SchemaUnknown, UnsupportedSchema
from onceward_testing import LocalRegistry


def record(name: str, *kinds: Any) -> str:
    """Spelled as normalization would not."""
    fields = [{"name": f"f{number}", "type": kind} for number, kind in enumerate(kinds)]
    return json.dumps(
        {"name": name, "namespace": "x", "type": "record", "fields": fields}, indent=2
    )


def own(name: str) -> str:
    return f"{name}-{uuid.uuid4().hex[:8]}"


def post(url: str, subject: str, body: dict[str, Any]) -> int:
    """As a producer that is not our client does it."""
    answer = urllib3.request("POST", f"{url}/subjects/{subject}/versions", json=body, timeout=60)
    assert answer.status == 200, answer.data
    return int(answer.json()["id"])


def test_what_is_registered_is_found_by_its_id_and_its_subject(registry: LocalRegistry):
    schemas, subject, name = (
        ow.SchemaRegistry(registry.url),
        own("people-value"),
        own("Person").replace("-", ""),
    )
    first, second = record(name, "long"), record(name, "long", ["null", "string"])
    ids = [schemas.register(subject, text) for text in (first, second)]
    assert ids == [schemas.register(subject, text) for text in (first, second)], "twice is once"
    assert [(v.version, v.id) for v in schemas.versions(subject)] == [(1, ids[0]), (2, ids[1])]
    assert schemas.latest(subject) == schemas.version(subject, 2)
    assert [json.loads(schemas.schema(one).text) for one in ids] == [
        json.loads(first),
        json.loads(second),
    ]
    assert schemas.resolved_text(ids[0]) == schemas.schema(ids[0]).text
    other_spelling = json.dumps(json.loads(first), separators=(",", ":"))
    assert schemas.lookup(subject, other_spelling) == ids[0]
    assert subject in schemas.subjects()
    ow.SchemaRegistry(registry.url).check_unchanged(
        {one: schemas.schema(one).fingerprint for one in ids}
    )


def test_what_is_not_there_is_unknown_by_name(registry: LocalRegistry):
    schemas, subject, text = (
        ow.SchemaRegistry(registry.url),
        own("people-value"),
        record("Nobody", "int"),
    )
    schemas.register(subject, record(own("P").replace("-", ""), "int"))
    unknown = {
        "schema id 2147483647": lambda: schemas.schema(2**31 - 1),
        "no-such-subject": lambda: schemas.versions("no-such-subject"),
        "version 9": lambda: schemas.version(subject, 9),
        subject: lambda: schemas.lookup(subject, text),
    }
    for said, ask in unknown.items():
        with pytest.raises(SchemaUnknown) as error:
            ask()
        assert said in error.value.message
    with pytest.raises(UnsupportedSchema, match="does not take"):
        schemas.register(subject, '{"type": "no')


def test_a_subject_may_have_any_name(registry: LocalRegistry):
    schemas, text = ow.SchemaRegistry(registry.url), record(own("Odd").replace("-", ""), "int")
    for subject in (own("a/b"), own("ä b+c%2F"), own("..?x=1&y#z")):
        made = schemas.register(subject, text)
        assert schemas.latest(subject).id == made
        assert subject in schemas.subjects()


def test_references_are_followed_to_the_version_that_they_name(registry: LocalRegistry):
    schemas, mark = ow.SchemaRegistry(registry.url), uuid.uuid4().hex[:8]
    street, address = f"Street{mark}", f"Addr{mark}"
    schemas.register(f"x.{street}", record(street, "int"))
    post(
        registry.url, f"x.{address}",
        {"schema": record(address, street), "references": [reference(street)]},
    )  # fmt: skip
    schemas.register(f"x.{street}", record(street, "int", "int"))  # nobody refers to this one
    made = post(
        registry.url, own("people-value"),
        {"schema": record(f"Main{mark}", f"x.{address}", f"x.{address}"),
        "references": [reference(address)]},
    )  # fmt: skip
    fields = json.loads(schemas.resolved_text(made))["fields"]
    assert len(fields[0]["type"]["fields"][0]["type"]["fields"]) == 1
    assert fields[1]["type"] == f"x.{address}"
    schemas.check_unchanged([made])


def reference(name: str) -> dict[str, Any]:
    return {"name": f"x.{name}", "subject": f"x.{name}", "version": 1}


@pytest.mark.fault("registry-replaced")
def test_a_registry_that_forgot_everything_is_named():
    with LocalRegistry() as server:
        schemas = ow.SchemaRegistry(server.url)
        known = schemas.schema(schemas.register("people-value", record("Person", "long")))
        schemas.check_unchanged([known.id])
        server.kill()
        server.start()
        with pytest.raises(RegistryReplaced, match=known.fingerprint):
            schemas.check_unchanged([known.id])
        other = ow.SchemaRegistry(server.url).register("orders-value", record("Order", "int"))
        fired(other == known.id, "it does not count from 1 again")
        with pytest.raises(RegistryReplaced) as replaced:
            schemas.check_unchanged([known.id])
        assert (
            replaced.value.details["now"]
            == ow.SchemaRegistry(server.url).schema(other).fingerprint
        )


@pytest.mark.fault("registry-down")
def test_one_that_dies_and_comes_back_is_waited_for_and_is_the_same(
    caplog: pytest.LogCaptureFixture,
):
    caplog.set_level(logging.DEBUG, "onceward")
    with LocalRegistry(durable=True) as server:
        schemas = ow.SchemaRegistry(server.url, timeout_s=300)
        ids = [
            schemas.register("people-value", record("Person", *["long"] * n)) for n in range(1, 6)
        ]
        server.kill()
        heard: list[Any] = []
        asking = threading.Thread(target=lambda: heard.append(schemas.latest("people-value").id))
        asking.start()
        ends = time.monotonic() + 60
        while "is asked again" not in caplog.text and time.monotonic() < ends:
            time.sleep(0.01)
        fired("is asked again" in caplog.text, "it was not down")
        server.start()
        asking.join(300)
        assert heard == ids[-1:]
        schemas.check_unchanged(ids)
        assert schemas.register("people-value", record("Person", "int")) > max(ids)
