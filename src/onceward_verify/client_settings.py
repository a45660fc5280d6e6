"""Client settings from a file, in librdkafka's names or in those of Kafka's Java clients.

The ``client.properties`` that Kafka's own tools take with ``--command-config`` serves here, too,
as far as its settings have a counterpart. Pure but for reading the file. Values are secrets: no
message has them.
"""

from __future__ import annotations

import re
from pathlib import Path

from onceward_verify.findings import WrongUsage

_RENAMED = {
    "ssl.truststore.certificates": "ssl.ca.pem",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
    "socket.connection.setup.timeout.max.ms": "socket.connection.setup.timeout.ms",
}
_REACHING = (
    "security.",
    "sasl.",
    "ssl.",
    "enable.sasl.",
    "enable.ssl.",
    "https.",
    "socket.",
    "broker.",
    "api.version.",
    "client.id",
    "client.rack",
    "debug",
    "receive.message.max.bytes",
)
"""How names of settings begin by which a cluster is reached. All others say how somebody sends or
reads, or are for clients of another kind that share the file.
"""
_OF_JAVA_ALONE = re.compile(
    r"security\.providers|sasl\.(client|login|kerberos\.ticket)\..*"
    r"|sasl\.oauthbearer\.(assertion\.template|clock|expected|header|jwks|jwt|scope\.claim)\..*"
    # Java's names of ciphers are not OpenSSL's
    r"|ssl\.(cipher\.suites|enabled\.protocols|engine\.factory\.class|protocol|provider"
    r"|(keymanager|trustmanager)\.algorithm|secure\.random\.implementation"
    r"|keystore\.type|truststore\.(type|password))"
)
_JAAS = re.compile(r"\b(username|password)\s*=\s*(?:\"((?:[^\"\\]|\\.)*)\"|'((?:[^'\\]|\\.)*)')")


def settings_from_file(file: Path) -> dict[str, str]:
    """Read ``file``, and return its settings in librdkafka's names.

    :raises WrongUsage: it is missing, or has a Java keystore.
    """
    try:
        data = file.read_bytes()
    except OSError as error:
        raise WrongUsage(
            f"{file} cannot be read: {error.strerror}", next_step="check --command-config"
        ) from error
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = data.decode("latin-1")
    return librdkafka_settings(_properties(text))


def librdkafka_settings(properties: dict[str, str]) -> dict[str, str]:
    """Translate ``given``, in either dialect, to librdkafka's."""
    mechanism = properties.get("sasl.mechanism", properties.get("sasl.mechanisms"))
    if mechanism == "OAUTHBEARER" and properties.get("sasl.oauthbearer.method") != "oidc":
        raise WrongUsage(
            "sasl.mechanism=OAUTHBEARER needs tokens, which librdkafka asks an identity provider "
            "for",
            next_step="add sasl.oauthbearer.method=oidc, sasl.oauthbearer.client.id, "
            "sasl.oauthbearer.client.secret and sasl.oauthbearer.token.endpoint.url to "
            "--command-config, or name another login there",
        )
    settings: dict[str, str] = {}
    pem = properties.get("ssl.truststore.type", "").upper() == "PEM"
    for name, value in properties.items():
        if not name.startswith(_REACHING) or _OF_JAVA_ALONE.fullmatch(name):
            continue
        if name == "sasl.jaas.config":
            settings |= _login(value)
        elif name == "ssl.truststore.location":
            if pem:
                settings.setdefault("ssl.ca.location", value)
            elif "ssl.ca.location" not in properties:
                raise WrongUsage(
                    "librdkafka reads no Java truststore",
                    next_step="export its certificates as PEM (keytool -exportcert -rfc) and "
                    "name the file in ssl.ca.location, which may stand beside the truststore",
                )
        elif (
            name == "ssl.keystore.location"
            and properties.get("ssl.keystore.type", "").upper() == "PEM"
        ):
            settings |= {"ssl.certificate.location": value, "ssl.key.location": value}
        elif name == "ssl.endpoint.identification.algorithm":
            settings[name] = value or "none"
        else:
            settings[_RENAMED.get(name, name)] = value
    return settings


def _login(jaas: str) -> dict[str, str]:
    if re.search(r"\btokenauth\s*=\s*[\"']?true\b", jaas, re.IGNORECASE):
        raise WrongUsage(
            "librdkafka does not log in with a delegation token (tokenauth of sasl.jaas.config)",
            next_step="name another login in --command-config",
        )
    names = {"username": "sasl.username", "password": "sasl.password"}
    return {
        names[name]: re.sub(r"\\(.)", r"\1", double or single)
        for name, double, single in _JAAS.findall(jaas)
    }


_PAIR = re.compile(r"((?:\\.|[^\\=:\s])+)(?:\s*[=:]\s*|\s*)(.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_LETTERS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def _properties(text: str) -> dict[str, str]:
    """Parse a Java properties file (``Properties.load``): ``name=value``, ``name: value``,
    comments, continued lines.
    """
    found, whole = {}, ""
    for line in [*re.split(r"\r\n|\r|\n", text), ""]:
        part = line.lstrip(" \t\f")
        if not whole and part[:1] in ("", "#", "!"):
            continue
        whole += part
        if (len(whole) - len(whole.rstrip("\\"))) % 2:
            whole = whole[:-1]
            continue
        if pair := _PAIR.fullmatch(whole):
            name, value = (_ESCAPE.sub(_character, each) for each in pair.groups())
            found[name] = value.strip()
        whole = ""
    return found


def _character(escape: re.Match[str]) -> str:
    code, letter = escape.groups()
    return chr(int(code, 16)) if code else _LETTERS.get(letter, letter)
