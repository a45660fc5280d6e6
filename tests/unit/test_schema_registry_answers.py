"""Whatever bytes a registry sends, they become a value that is fit, or are refused: bytes in,
values out.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from onceward.errors import ConfigurationError
from onceward.formats.registry import answers
from onceward.formats.registry.answers import (
    DOWNWARD,
    READING,
    UPWARD,
    WRITING,
    RegisteredSchema,
    Version,
)
from onceward.formats.registry.http import DEEPEST, MOST_BRACKETS, NotFit, parse_json
from support.errors import raises

pytestmark = pytest.mark.lengthy("ci")

MOST_BYTES = 10_000

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)
field_values = values | st.sampled_from(
    ["AVRO", "JSON", "PROTOBUF", '"int"', '{"type": "string"}', "s", 1, 7, [], ""]
)
envelopes = st.dictionaries(
    st.sampled_from(["schema", "schemaType", "id", "subject", "version", "references", "name"]),
    field_values,
)
references = st.lists(
    st.dictionaries(st.sampled_from(["name", "subject", "version"]), field_values), max_size=3
)
envelopes |= st.builds(lambda one, more: {**one, "references": more}, envelopes, references)
rules = st.dictionaries(
    st.sampled_from(["name", "type", "mode", "disabled"]),
    field_values | st.sampled_from(["WRITE", "READ", "UPDOWN"]),
)
envelopes |= st.builds(
    lambda one, more: {**one, "ruleSet": {"domainRules": more}}, envelopes, st.lists(rules)
)
anything = envelopes.map(lambda value: json.dumps(value).encode()) | st.binary(max_size=200)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A good answer in which a few bytes are others, gone, or twice."""
    good = bytearray(
        b'{"subject":"s","version":7,"id":7,"schema":"{\\"type\\":\\"string\\"}","schemaType":"AVRO",'
        b'"references":[{"name":"x.A","subject":"a","version":1}]}'
    )
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(good) - 1))
        good[at : at + draw(st.integers(0, 3))] = draw(st.binary(max_size=3))
    return bytes(good)


READERS: dict[str, Callable[[Any], Any]] = {
    "schema": lambda said: answers.schema_in(said, 7, MOST_BYTES),
    "version": lambda said: answers.version_in(said, "s", 7, MOST_BYTES),
    "latest": lambda said: answers.version_in(said, "s", None, MOST_BYTES),
    "id": answers.id_in,
    "subject": lambda said: answers.subject_in(said, "s"),
    "numbers": answers.numbers_in,
    "names": answers.names_in,
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
@settings(max_examples=150, deadline=None)
@given(anything | damaged())
@example(b"[" * 100_000)
@example(b'{"schema":"' + b'\\"' * 5_000)
@example(b'{"id": ' + b"9" * 10_000 + b"}")
@example(b'{"subject": "\\ud800"}')
def test_any_answer_is_fit_or_refused(read: Callable[[Any], Any], body: bytes):
    with contextlib.suppress(NotFit, ConfigurationError):
        must_be_fit(read(parse_json(body)))


def must_be_fit(value: Any) -> None:
    if isinstance(value, Version):
        assert value.subject == "s"
        assert 0 < value.version < 2**31
        value = value.schema
    if isinstance(value, RegisteredSchema):
        assert 0 < value.id < 2**31
        assert 0 < len(value.schema_type) <= 40
        assert value.unfit or 0 < len(value.text.encode()) <= MOST_BYTES
        assert len(value.fingerprint) == 16
        assert all(
            type(r.version) is int and r.version > 0 and r.subject for r in value.references
        )
        assert hash(value) == hash(value)
        return
    numbers = value if isinstance(value, list) else [value]
    assert numbers == sorted(set(numbers))
    # No half of a surrogate pair
    "".join(map(str, numbers)).encode()
    assert all(isinstance(one, str) or (type(one) is int and 0 < one < 2**31) for one in numbers)


@settings(max_examples=200, deadline=None)
@given(values)
def test_json_within_the_limits_is_read_as_it_is(value: Any):
    assert parse_json(json.dumps(value)) == value


@pytest.mark.parametrize("brackets", ["[]", "{}"])
def test_levels_are_counted_outside_of_texts(brackets: str):
    opening = '{"a":' if brackets == "{}" else "["
    fit = opening * DEEPEST + "1" + brackets[1] * DEEPEST
    assert parse_json(fit)
    with raises(NotFit):
        parse_json(opening + fit + brackets[1])
    assert parse_json(json.dumps("[" * 1_000 + '"{' * 1_000 + "\\")) is not None


def test_an_answer_takes_a_few_times_its_size_in_memory():
    """A registry is a server like others, and whoever answers in its place may send what he
    likes.
    """
    size = 4 << 20
    for body in (
        b'["' + b"a" * size + b'"]',
        b'["' + b"\\n" * (size // 2) + b'"]',
        b"[" + b"[]," * (size // 3) + b"1]",
    ):
        tracemalloc.start()
        with contextlib.suppress(NotFit):
            parse_json(body)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 8 * size


def schema(text: str = '"int"', **more: Any) -> RegisteredSchema:
    return answers.schema_in({"schema": text, **more}, 7, MOST_BYTES)


def test_a_fingerprint_is_of_type_text_and_references():
    plain = schema('{"type": "fixed", "name": "a", "size": 1}')
    assert (
        plain.fingerprint
        == schema('{"size":1,"name":"a","type":"fixed"}', schemaType="AVRO").fingerprint
    )
    reference = {"name": "x", "subject": "x", "version": 1}
    others = [
        schema('{"type": "fixed", "name": "a", "size": 2}'),
        schema('{"type": "fixed", "name": "a", "size": 1}', schemaType="JSON"),
        schema('{"type": "fixed", "name": "a", "size": 1}', references=[reference]),
        schema(
            '{"type": "fixed", "name": "a", "size": 1}', references=[reference | {"version": 2}]
        ),
    ]
    assert len({one.fingerprint for one in [plain, *others]}) == 5


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('"' + "a" * MOST_BYTES + '"', "of 10,002 bytes, above the limit of 10,000"),
        ("[" * (DEEPEST + 1) + "]" * (DEEPEST + 1), "nested deeper than 100 levels"),
        ("[" * MOST_BYTES, "nested deeper than 100 levels"),
        ("[" * (MOST_BRACKETS + 1), "above the limit of 10,000"),
    ],
)
def test_a_schema_beyond_our_limits_is_one_that_is_not_read(text: str, why: str):
    """Whoever may write to a topic can name any id of a registry that others use, too."""
    beyond = schema(text)
    assert why in beyond.unfit
    assert beyond.fingerprint == dataclasses.replace(beyond, unfit="").fingerprint
    answer = {"subject": "s", "version": 1, "id": 7, "schema": text}
    assert answers.version_in(answer, "s", None, MOST_BYTES).schema == beyond
    assert not schema().unfit


def test_a_type_that_is_not_known_and_many_references_are_no_nonsense():
    assert schema("<a/>", schemaType="XML").schema_type == "XML"
    many = [{"name": f"x.A{n}", "subject": f"a{n}", "version": 1} for n in range(101)]
    assert len(schema(references=many).references) == 101


def test_rules_are_those_that_serializers_carry_out():
    one = {"name": "pii", "kind": "TRANSFORM", "type": "ENCRYPT", "mode": "WRITEREAD"}
    found = schema(
        ruleSet={
            "domainRules": [one, one | {"name": "off", "disabled": True}, {"name": "never"}],
            "migrationRules": [one | {"mode": "UPGRADE", "disabled": False}],
            "encodingRules": None,
            "enableAt": "x",
        }
    )
    assert [str(rule) for rule in found.rules] == [
        "pii (ENCRYPT, WRITEREAD)",
        "pii (ENCRYPT, UPGRADE)",
    ]
    assert schema(ruleSet=None).rules == ()
    # As it is beside a checkpoint already
    assert found.fingerprint == schema().fingerprint
    # One of a later release counts whatever is done with a record
    (later,) = schema(ruleSet={"domainRules": [one | {"mode": "OFTEN"}]}).rules
    assert all(later.applies_in(modes) for modes in (READING, WRITING, UPWARD, DOWNWARD))
