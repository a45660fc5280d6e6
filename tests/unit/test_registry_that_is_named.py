"""``registry=`` of Avro and Debezium: a registry, or the address of one."""

from __future__ import annotations

import pytest

import onceward as ow
from onceward.errors import ConfigurationError
from onceward.formats.avro.memory import as_registry
from support.memory_registry import MemoryRegistry


def test_an_address_is_a_registry():
    assert (
        as_registry("http://registry:8081/apis").url
        == ow.SchemaRegistry("http://registry:8081/apis").url
    )


def test_a_registry_is_taken_as_it_is():
    given = MemoryRegistry()
    assert as_registry(given) is given


@pytest.mark.parametrize(
    "given", ["registry:8081", "", None, 8081, ["http://registry:8081"], ow.SchemaRegistry]
)
def test_what_is_no_registry_is_refused_by_name(given: object):
    with pytest.raises(ConfigurationError) as caught:
        as_registry(given)  # type: ignore[arg-type]
    assert "http://" in f"{caught.value.message} {caught.value.next_step}"
