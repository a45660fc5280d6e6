"""Subjects, contexts and ids as Confluent's registry has them, without a socket.

The rules are those of its sources: an id is looked up in one subject where the question names one
whole, and in a context where it names a subject without a name (``InMemoryCache.schemaKeyById``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

import onceward as ow
from onceward.errors import ConfigurationError, Recovery, RegistryRefused, SchemaUnknown
from onceward.formats.avro.memory import SchemaMemory, in_context
from onceward.formats.registry.conversation import NotRegistered

TEXT = '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}'
AS_WRITTEN, NORMALIZED = '"double", "default": 0}', '"double", "default": 0.0}'
OTHER = TEXT.replace("Order", "Refund")


class Confluents:
    """The registry's side: ``subjects`` by name, ids of their versions; ``texts`` by id."""

    def __init__(self) -> None:
        self.subjects: dict[str, list[int]] = {}
        self.texts: dict[int, str] = {}
        self.references: dict[int, list[dict[str, Any]]] = {}
        self.aliases: dict[str, str] = {}
        self.deleted: set[tuple[str, int]] = set()
        self.refused: set[str] = set()
        self.asked: list[str] = []

    def add(self, subject: str, number: int, text: str = TEXT) -> None:
        self.subjects.setdefault(subject, []).append(number)
        self.texts[number] = text

    def ask(
        self,
        method: str,
        path: str,
        read: Callable[[Any], Any],
        *,
        most_bytes: int,
        body: dict[str, Any] | None = None,
    ) -> Any:
        self.asked.append(f"{method} {path}")
        if f"{method} {path}" in self.refused:
            raise RegistryRefused("403", next_step="ask for rights", details={"status": 403})
        url = urlsplit(path)
        query = {name: one for name, (one,) in parse_qs(url.query).items()}
        parts = [unquote(part) for part in url.path.split("/")[1:]]
        # AliasFilter
        parts[1] = self.aliases.get(parts[1], parts[1])
        if parts[0] == "schemas":
            return read(self._by_id(int(parts[2]), query.get("subject", "")))
        if body is not None:
            is_new = parts[2:] == ["versions"]
            text = body["schema"]
            if query.get("normalize") == "true":
                text = text.replace(AS_WRITTEN, NORMALIZED)
            return read(self._id(parts[1], text, is_new))
        assert method == "GET"
        return read(self._version(*parts[1::2], deleted=query.get("deleted") == "true"))

    def _id(self, subject: str, text: str, register: bool) -> dict[str, Any]:
        """``lookUpSchemaUnderSubjectUsingContexts``: what is there is compared as it is, and
        without a context in any of them."""
        contexts = [] if register or subject[:1] == ":" else self.subjects
        alike = [there for there in contexts if there.endswith(f":{subject}")]
        for there in [subject, *alike]:
            for number in self.subjects.get(there, []):
                if self.texts[number] == text:
                    return {"id": number, "subject": there}
        if not register:
            raise NotRegistered("40403 Schema not found")
        self.add(subject, number := len(self.texts) + 1, text)
        return {"id": number}

    def _by_id(self, number: int, subject: str) -> dict[str, Any]:
        context, _, name = subject.rpartition(":")
        for there, ids in self.subjects.items():
            is_there = there == subject if name else there.rpartition(":")[0] == context
            if number in ids and is_there:
                return {
                    "schema": self.texts[number],
                    "references": self.references.get(number, []),
                }
        raise NotRegistered("40403 Schema not found")

    def _version(self, subject: str, version: str, *, deleted: bool) -> dict[str, Any]:
        ids = self.subjects.get(subject, [])
        number = len(ids) if version == "latest" else int(version)
        if not 0 < number <= len(ids) or ((subject, number) in self.deleted and not deleted):
            raise NotRegistered("40402 Version not found")
        found = ids[number - 1]
        return {
            "subject": subject,
            "version": number,
            "id": found,
            "schema": self.texts[found],
            "references": self.references.get(found, []),
        }


@pytest.fixture
def confluents() -> Confluents:
    return Confluents()


@pytest.fixture
def registry(confluents: Confluents) -> ow.SchemaRegistry:
    made = ow.SchemaRegistry("http://registry:8081")
    made._conversation = confluents  # type: ignore[assignment]
    return made


def test_an_id_of_a_context_is_found_whatever_its_subject(
    confluents: Confluents, registry: ow.SchemaRegistry
):
    confluents.add(":.eu:orders-value", 1)
    confluents.add(":.eu:out-value", 2)
    confluents.add(":.eu:com.acme.Refund", 3, OTHER)
    confluents.add("orders-value", 4)
    decoding = in_context(registry, ":.eu:orders-value")
    assert decoding.schema(1).text == TEXT
    # Of another type in the same topic (RecordNameStrategy)
    assert decoding.schema(3).text == OTHER
    encoding = in_context(registry, ":.eu:out-value")
    SchemaMemory().ask(encoding, [2], wait_s=0)
    assert encoding.schema(2).text == TEXT
    # A new version while the query runs
    confluents.add(":.eu:out-value", 9, OTHER)
    assert encoding.schema(9).text == OTHER
    encoding.check_unchanged([1, 2, 3, 9])
    with pytest.raises(SchemaUnknown):
        decoding.schema(4)


def test_a_foreign_id_is_unknown_to_a_login_that_may_not_see_the_whole_context(
    confluents: Confluents, registry: ow.SchemaRegistry
):
    """Any record may bring one, and is to become a dead letter; it ends no query."""
    confluents.add(":.eu:orders-value", 1)
    confluents.add(":.eu:refunds-value", 2, OTHER)
    there, memory = in_context(registry, ":.eu:orders-value"), SchemaMemory()
    memory.ask(there, [1, 2], wait_s=0)
    confluents.refused |= {f"GET /schemas/ids/{number}?subject=%3A.eu%3A" for number in (2, 777)}
    memory.ask(there, [1, 777], wait_s=0)
    assert memory.missing() == [777]
    with pytest.raises(SchemaUnknown, match="id 777 is of no subject that was named"):
        there.schema(777)
    # What was there before is not taken for lost
    with pytest.raises(RegistryRefused):
        there.check_unchanged([2])


def test_a_subject_that_was_named_is_asked_first(
    confluents: Confluents, registry: ow.SchemaRegistry
):
    """Rights may be by subject, so that a question about all of them is refused. One to which a
    schema refers is not named by that.
    """
    confluents.add(":.eu:orders-value", 1)
    confluents.add(":.eu:address", 2)
    registry.version(":.eu:address", 1)
    in_context(registry, ":.eu:orders-value").schema(1)
    assert confluents.asked[1:] == ["GET /schemas/ids/1?subject=%3A.eu%3Aorders-value"]


def test_what_a_schema_refers_to_is_in_its_own_context(
    confluents: Confluents, registry: ow.SchemaRegistry
):
    """Whatever schema has led to it: the same names mean others elsewhere."""
    confluents.add("orders-value", 1, TEXT.replace('"long"', '"Address"'))
    confluents.add(":.eu:address", 2, TEXT.replace("Order", "Address").replace('"long"', '"City"'))
    confluents.add("city", 3, TEXT.replace("Order", "City"))
    confluents.add(":.eu:city", 4, TEXT.replace("Order", "City").replace("long", "string"))
    confluents.references[1] = [{"name": "Address", "subject": ":.eu:address", "version": 1}]
    confluents.references[2] = [{"name": "City", "subject": "city", "version": 1}]
    assert '"string"' in registry.resolved_text(1)
    assert "GET /subjects/city/versions/1?deleted=true" not in confluents.asked


def test_who_may_register_need_not_be_allowed_to_look_up(
    confluents: Confluents, registry: ow.SchemaRegistry
):
    confluents.refused.add("POST /subjects/orders-value")
    assert registry.register("orders-value", TEXT) == 1
    assert confluents.asked[1:] == ["POST /subjects/orders-value/versions?normalize=true"]


def test_what_a_schema_refers_to_may_be_deleted_softly(
    confluents: Confluents, registry: ow.SchemaRegistry
):
    """As the schema itself may be, of which there are records still."""
    confluents.add("address", 1, TEXT.replace("Order", "Address"))
    confluents.add("orders-value", 2, TEXT.replace('"long"', '"Address"'))
    confluents.references[2] = [{"name": "Address", "subject": "address", "version": 1}]
    confluents.deleted |= {("address", 1), ("orders-value", 1)}
    found = SchemaMemory().schemas(registry, [2])
    assert not found.unreadable
    assert '"Address"' in found.texts[2]
    with pytest.raises(SchemaUnknown):
        registry.version("address", 1)


def test_an_alias_is_refused_with_the_subject_that_it_means(
    confluents: Confluents, registry: ow.SchemaRegistry
):
    """Not as nonsense, for which it would be asked again and started again for ever."""
    confluents.add("com.acme.Order", 1)
    confluents.aliases["orders-value"] = "com.acme.Order"
    with pytest.raises(ConfigurationError, match="is an alias") as refused:
        registry.latest("orders-value")
    assert 'pass subject="com.acme.Order"' in refused.value.next_step
    assert refused.value.recovery is Recovery.STOP
    assert registry.latest("com.acme.Order").id == 1


def test_a_schema_that_was_registered_as_it_is_is_found(
    confluents: Confluents, registry: ow.SchemaRegistry
):
    """Producers and tools register as it is (``normalize.schemas=false``)."""
    text = TEXT.replace('"long"}', AS_WRITTEN)
    normalized = TEXT.replace('"long"}', NORMALIZED)
    assert text != normalized
    confluents.add("orders-value", 1, text)
    confluents.add("others-value", 2, normalized)
    for ask in (registry.lookup, registry.register):
        assert ask("orders-value", text) == 1
        assert ask("others-value", text) == 2
    with pytest.raises(SchemaUnknown):
        registry.lookup("others-value", text, normalize=False)
    with pytest.raises(SchemaUnknown):
        registry.lookup("new-value", text)
    assert registry.register("new-value", text) == 3
    assert confluents.texts[3] == normalized


def test_the_id_of_another_context_is_none(confluents: Confluents, registry: ow.SchemaRegistry):
    """It means another schema here."""
    confluents.add(":.eu:orders-value", 1)
    with pytest.raises(SchemaUnknown, match=r":\.eu:orders-value"):
        registry.lookup("orders-value", TEXT)
    assert registry.register("orders-value", TEXT) == 2
    assert registry.lookup("orders-value", TEXT) == 2
    assert registry.lookup(":.eu:orders-value", TEXT) == 1
