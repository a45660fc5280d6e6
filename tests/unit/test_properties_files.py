"""``--command-config`` reads what Kafka's own tools read (Java's ``Properties.load``)."""

from __future__ import annotations

from pathlib import Path

import pytest

from onceward.errors import ConfigurationError
from onceward.kafka.wire.options.settings import read_properties

OF_KAFKAS_PAGES = r"""
# SASL/PLAIN
sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \
    username="alice" \
    password="a\\b\u00e4";
security.protocol: SASL_SSL
  sasl.mechanism   PLAIN
! another comment \
client.id = one two=three
ssl.truststore.location=C\:\\certs\\ca.pem
empty=
last=1"""


def read(tmp_path: Path, data: bytes) -> dict[str, str]:
    file = tmp_path / "client.properties"
    file.write_bytes(data)
    return read_properties(file)


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_every_form_of_a_line_is_taken(tmp_path: Path, line_end: str):
    assert read(tmp_path, OF_KAFKAS_PAGES.replace("\n", line_end).encode()) == {
        "sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required "
        'username="alice" password="a\\bä";',
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "client.id": "one two=three",
        "ssl.truststore.location": "C:\\certs\\ca.pem",
        "empty": "",
        "last": "1",
    }


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_both_encodings_are_taken(tmp_path: Path, encoding: str):
    assert read(tmp_path, "sasl.password=größe".encode(encoding)) == {"sasl.password": "größe"}


@pytest.mark.parametrize("text", ["bootstrap", "a=1\n\n=2"])
def test_what_is_no_pair_is_named_by_its_line(tmp_path: Path, text: str):
    with pytest.raises(ConfigurationError, match=f"line {text.count(chr(10)) + 1} is not"):
        read(tmp_path, text.encode())


def test_a_file_that_is_missing_is_named(tmp_path: Path):
    with pytest.raises(ConfigurationError, match="there is no file"):
        read_properties(tmp_path / "none")
