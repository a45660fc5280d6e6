"""Security settings of a client: TLS and SASL, from Kafka's own option names.

Parsed in the driver when a sink or source is constructed; the TLS context is built again in each
process that connects, because contexts cannot be pickled, and again when a file that it was made
of has changed: certificates are renewed in place (cert-manager, Vault) while a pipeline runs. No
secret is ever part of a ``repr``.
"""

from __future__ import annotations

import importlib
import logging
import os
import re
import ssl
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from onceward.errors import ConfigurationError, ContradictoryOptions, FileUnreadable
from onceward.libraries import readable_file

log = logging.getLogger(__name__)

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")

NAMED_PROVIDER = "onceward.oauth.token.provider"
"""``module:object`` in the file of ``--command-config``: what a command asks for tokens."""

SECURITY_OPTIONS = (
    "security.protocol",
    "sasl.mechanism",
    "sasl.mechanisms",
    "sasl.jaas.config",
    "sasl.username",
    "sasl.password",
    "ssl.truststore.type",
    "ssl.truststore.location",
    "ssl.truststore.certificates",
    "ssl.truststore.password",
    "ssl.keystore.type",
    "ssl.keystore.location",
    "ssl.keystore.certificate.chain",
    "ssl.keystore.key",
    "ssl.keystore.password",
    "ssl.key.password",
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.key.location",
    "ssl.endpoint.identification.algorithm",
)


class TokenProvider(Protocol):
    """Gives the OAUTHBEARER token of the moment. Must pickle: each executor asks for its own.

    It may have a method ``extensions()``, too, called behind ``token()``: a dict of what the
    server wants beside the token (KIP-342), such as Confluent Cloud's ``logicalCluster``."""

    def token(self) -> str:
        """Return a token that is valid now. Called once per connection and login (KIP-368)."""
        ...


def provider_extensions(provider: TokenProvider) -> dict[str, str]:
    """Return what a provider has for the server beside the token; nothing where it has none."""
    found = getattr(provider, "extensions", None)
    if callable(found):
        return found() or {}
    # Of another meaning, as a list of plugins
    return found if isinstance(found, dict) else {}


@dataclass(frozen=True)
class Security:
    """Security settings of a client. ``repr`` shows protocol and mechanism, nothing else."""

    protocol: str = "PLAINTEXT"
    mechanism: str | None = None
    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    is_token: bool = field(default=False, repr=False)
    """User and password are a delegation token's (KIP-48)."""
    shaded: str = field(default="", repr=False, compare=False)
    """What Spark's reader has before the names of Kafka's classes: ``kafkashaded.`` on Databricks.
    """
    ca_file: str | None = field(default=None, repr=False)
    ca_pem: str | None = field(default=None, repr=False)
    certificate_file: str | None = field(default=None, repr=False)
    certificate_pem: str | None = field(default=None, repr=False)
    key_file: str | None = field(default=None, repr=False)
    key_pem: str | None = field(default=None, repr=False)
    key_password: str | None = field(default=None, repr=False)
    check_host_name: bool = True

    @property
    def uses_tls(self) -> bool:
        return self.protocol in ("SSL", "SASL_SSL")

    @property
    def uses_sasl(self) -> bool:
        return self.protocol in ("SASL_PLAINTEXT", "SASL_SSL")


def security_from_options(
    options: Mapping[str, str], token_provider: TokenProvider | None
) -> Security:
    """Check what ``options`` say about security, as a whole; nothing is connected yet."""
    protocol = options.get("security.protocol", "PLAINTEXT").upper()
    if protocol not in PROTOCOLS:
        raise ConfigurationError(
            f"security.protocol={protocol!r} is not known",
            next_step=f"use one of {', '.join(PROTOCOLS)}",
        )
    for prefix, allowed in (
        ("sasl.", protocol.startswith("SASL_")),
        ("ssl.", protocol.endswith("SSL")),
    ):
        names = [name for name in options if name.startswith(prefix)]
        if names and not allowed:
            protocols = "SASL_SSL or SASL_PLAINTEXT" if prefix == "sasl." else "SSL or SASL_SSL"
            raise ContradictoryOptions(
                f"{names[0]} is set, but security.protocol is {protocol}",
                next_step=f"set security.protocol to {protocols}, or remove {names[0]}",
            )
    return Security(
        protocol=protocol, **_sasl(options, protocol, token_provider), **tls_parts(options)
    )


def imported_provider(named: str) -> TokenProvider:
    """Return the object that ``module:object`` names, for whoever can pass none: commands. A class
    is called. :raises ConfigurationError: it cannot be imported, or has no ``token()``."""
    module, _, name = named.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
        provider = found() if isinstance(found, type) else found
    except Exception as error:
        raise ConfigurationError(
            f"{NAMED_PROVIDER}={named} cannot be imported: {type(error).__name__}: {error}",
            next_step="write module:object, and have the module's folder on PYTHONPATH",
        ) from error
    if not callable(getattr(provider, "token", None)):
        raise ConfigurationError(
            f"{NAMED_PROVIDER}={named} has no method token()",
            next_step="name an object whose token() returns the text of a valid token",
        )
    return cast("TokenProvider", provider)


def _sasl(
    options: Mapping[str, str], protocol: str, token_provider: TokenProvider | None
) -> dict[str, Any]:
    if not protocol.startswith("SASL_"):
        return {}
    mechanism = options.get("sasl.mechanism", options.get("sasl.mechanisms"))
    if mechanism not in MECHANISMS:
        raise ConfigurationError(
            f"sasl.mechanism={mechanism!r} is not supported",
            next_step=f"use one of {', '.join(MECHANISMS)}",
        )
    if mechanism == "OAUTHBEARER":
        if token_provider is None:
            raise ConfigurationError(
                "sasl.mechanism=OAUTHBEARER needs tokens",
                next_step="pass oauth_token_provider=, an object whose token() returns a valid "
                f"token; for a command add {NAMED_PROVIDER}=module:object to the file of "
                "--command-config",
            )
        return {"mechanism": mechanism}
    login = {name: options.get(f"sasl.{name}") for name in ("username", "password")}
    if "sasl.jaas.config" in options:
        if any(login.values()):
            raise ContradictoryOptions(
                "sasl.jaas.config and sasl.username/sasl.password are both set",
                next_step="keep one of the two ways of naming the user",
            )
        login = _from_jaas(options["sasl.jaas.config"], mechanism)
    is_token = (login.pop(_DELEGATED, None) or "").lower() == "true"
    shaded = login.pop(_SHADED, None) or ""
    if not login.get("username") or login.get("password") is None:
        raise ConfigurationError(
            f"sasl.mechanism={mechanism} needs a user name and a password",
            next_step="set sasl.username and sasl.password, or sasl.jaas.config",
        )
    return {"mechanism": mechanism, **login, "is_token": is_token, "shaded": shaded}


_JAAS = re.compile(
    r"\s*([\w.]+)\s+(required|requisite|sufficient|optional)\b(.*?);?\s*", re.DOTALL
)
_JAAS_PAIR = re.compile(r"""(\w+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s"';]+))""")
_DELEGATED = "tokenauth"
_KAFKAS = "org.apache.kafka.common.security."
_SHADED = "shaded"
# Of each login module its mechanisms, and what its line may say
_MODULES = {
    "PlainLoginModule": (("PLAIN",), ("username", "password")),
    "ScramLoginModule": (MECHANISMS[1:3], ("username", "password", _DELEGATED)),
}


def _from_jaas(text: str, mechanism: str) -> dict[str, str | None]:
    """Return the pairs of a line ``…LoginModule required username="u" …;``, and what its class has
    before Kafka's own name.
    """
    matched = _JAAS.fullmatch(text)
    module = matched.group(1).rsplit(".", 1)[-1] if matched else None
    if (
        matched is None
        or module not in _MODULES
        # Words beside the pairs, of a quote that is missing, may be of a password
        or _JAAS_PAIR.sub("", matched.group(3)).strip()
    ):
        raise ConfigurationError(
            # its text holds a password: never shown
            "sasl.jaas.config is not a login line that can be read here",
            next_step=f"write '{_KAFKAS}plain.PlainLoginModule required "
            'username="…" '
            'password="…";\' (or scram.ScramLoginModule), or use sasl.username and sasl.password',
        )
    mechanisms, known = _MODULES[module]
    if mechanism not in mechanisms:
        raise ContradictoryOptions(
            f"sasl.jaas.config names {module}, but sasl.mechanism is {mechanism}",
            next_step=f"set sasl.mechanism to {' or '.join(mechanisms)}",
        )
    pairs: dict[str, str | None] = {}
    for name, *values in _JAAS_PAIR.findall(matched.group(3)):
        pairs[name] = re.sub(r"\\(.)", r"\1", next((v for v in values if v), ""))
    if unknown := [name for name in pairs if name not in known]:
        raise ConfigurationError(
            f"sasl.jaas.config has {', '.join(unknown)}, which {module} is not known to take here",
            next_step=f"leave it out; {module} takes {', '.join(known)}",
        )
    shaded, is_kafkas, _ = matched.group(1).partition(_KAFKAS)
    return {**pairs, _SHADED: shaded if is_kafkas else ""}


def tls_parts(options: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of :class:`Security` of ``ssl.`` options, a schema registry's as well."""
    for store in ("truststore", "keystore"):
        _refuse_java_store(options, store)
    algorithm = options.get("ssl.endpoint.identification.algorithm", "https").lower()
    if algorithm not in ("https", "", "none"):
        raise ConfigurationError(
            f"ssl.endpoint.identification.algorithm={algorithm!r} is not known",
            next_step="use 'https' (the server's host name is checked) or '' (it is not)",
        )
    parts = {
        "ca_file": options.get("ssl.ca.location", options.get("ssl.truststore.location")),
        "ca_pem": options.get("ssl.truststore.certificates"),
        "certificate_file": options.get(
            "ssl.certificate.location", options.get("ssl.keystore.location")
        ),
        "certificate_pem": options.get("ssl.keystore.certificate.chain"),
        "key_file": options.get("ssl.key.location"),
        "key_pem": options.get("ssl.keystore.key"),
        "key_password": options.get("ssl.key.password", options.get("ssl.keystore.password")),
    }
    for name, path in parts.items():
        if name.endswith("_file") and path is not None and not os.path.isfile(path):
            raise _unreadable(path, "does not exist")
    return {**parts, "check_host_name": algorithm == "https"}


def _unreadable(path: str, why: str) -> FileUnreadable:
    # A key, it may be: it is not repeated
    is_text = "-----BEGIN" in path
    return FileUnreadable(
        f"the file {'(its name is PEM text)' if is_text else repr(path)} named by an ssl option "
        f"{why}",
        next_step="give a PEM file that the driver and every executor can read at this path",
    )


def _refuse_java_store(options: Mapping[str, str], store: str) -> None:
    kind = options.get(f"ssl.{store}.type")
    location = options.get(f"ssl.{store}.location")
    if kind == "PEM" or (kind is None and location is None):
        return
    pem = (
        f"openssl pkcs12 -in {store}.p12 -nokeys -out {store}.pem"
        if store == "truststore"
        # First the client's own certificate, and then those that signed it
        else f"openssl pkcs12 -in {store}.p12 -clcerts -nodes -out {store}.pem; openssl pkcs12 "
        f"-in {store}.p12 -cacerts -nokeys >> {store}.pem"
    )
    raise ConfigurationError(
        f"ssl.{store}.type={kind or 'JKS'} cannot be read from Python",
        next_step=f"convert it once (keytool -importkeystore -srckeystore "
        f"{location or f'{store}.jks'} -destkeystore {store}.p12 -deststoretype PKCS12; {pem}) "
        f"and set ssl.{store}.type=PEM and ssl.{store}.location={store}.pem",
    )


class Certificates:
    """The TLS context of ``security``, made anew when a file has changed. Thread safe. :raises
    FileUnreadable: the files cannot be read, at the first time."""

    def __init__(self, security: Security) -> None:
        self._security = security
        self._lock = threading.Lock()
        self._files = _files_state(security)
        self._context = tls_context(security)

    def context(self) -> ssl.SSLContext:
        """Return the next connection's context; the one before while new files do not fit."""
        with self._lock:
            files = _files_state(self._security)
            if files != self._files:
                try:
                    self._context = tls_context(self._security)
                except FileUnreadable as unfit:
                    log.warning("the TLS files have changed and are not used yet: %s", unfit)
                else:
                    self._files = files
            return self._context

    def forget(self) -> None:
        """Read the files again before the next connection, whatever their age."""
        with self._lock:
            self._files = ()


def _files_state(security: Security) -> tuple[object, ...]:
    """Return a value that differs after a replacement: in place, renamed, or behind a link."""
    trusted = security.ca_file or (
        None if security.ca_pem else ssl.get_default_verify_paths().cafile
    )
    return tuple(
        _file_state(path) for path in (trusted, security.certificate_file, security.key_file)
    )


def _file_state(path: str | None) -> object:
    if path is None:
        return None
    try:
        found = os.stat(path)
    except OSError as gone:
        return gone.errno
    return found.st_mtime_ns, found.st_size, found.st_ino


def tls_context(security: Security) -> ssl.SSLContext:
    """Return a context that verifies the server by these certificates or the system's. :raises
    FileUnreadable: their files cannot be read."""
    # Verifies the certificate and the host name
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = security.check_host_name
    try:
        if security.ca_file or security.ca_pem:
            context.load_verify_locations(
                cafile=security.ca_file, cadata=_pem_text(None, security.ca_pem)
            )
        else:
            context.load_default_certs()
        _load_own_certificate(context, security)
    except (OSError, ValueError) as error:
        # ssl.SSLError is an OSError
        raise FileUnreadable(
            f"the TLS certificates or the key cannot be read ({type(error).__name__}: {error})",
            next_step="check the ssl options: PEM files or PEM text, and ssl.key.password if the "
            "key is encrypted",
        ) from error
    return context


def _load_own_certificate(context: ssl.SSLContext, security: Security) -> None:
    # An encrypted key without a password would make OpenSSL ask on the terminal: a callable
    # prevents that.
    def password() -> str:
        return security.key_password or ""

    if security.certificate_pem:
        text = security.certificate_pem + "\n" + (security.key_pem or "")
        with readable_file(text.encode()) as path:
            context.load_cert_chain(path, password=password)
    elif security.certificate_file:
        context.load_cert_chain(security.certificate_file, security.key_file, password=password)


def java_security_options(security: Security) -> dict[str, str]:
    """Return ``security`` in the Java consumer's names, so that one set of options reaches Spark's
    own Kafka source, too. The result holds secrets.

    The Java consumer knows other names for PEM files and SASL users than librdkafka and we do.

    A certificate and a key in files of their own are passed as text, because Java wants both in
    one place.
    """
    java = {"security.protocol": security.protocol}
    if security.mechanism == "OAUTHBEARER":
        # Tokens come from a Java class that the reader is given besides
        java["sasl.mechanism"] = "OAUTHBEARER"
    elif security.uses_sasl:
        java |= _java_login(security)
    if security.uses_tls:
        if trusted := _pem_text(security.ca_file, security.ca_pem):
            java |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": trusted}
        java |= _own_certificate(security)
        if not security.check_host_name:
            java["ssl.endpoint.identification.algorithm"] = ""
    return java


def _java_login(security: Security) -> dict[str, str]:
    mechanism = str(security.mechanism)
    module = "plain.Plain" if mechanism == "PLAIN" else "scram.Scram"
    login = (
        f"{security.shaded}{_KAFKAS}{module}LoginModule required "
        f'username="{_quoted(security.username or "")}" '
        f'password="{_quoted(security.password or "")}"'
    )
    token = f' {_DELEGATED}="true"' if security.is_token else ""
    return {"sasl.mechanism": mechanism, "sasl.jaas.config": f"{login}{token};"}


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _own_certificate(security: Security) -> dict[str, str]:
    certificate = _pem_text(security.certificate_file, security.certificate_pem)
    key = _pem_text(security.key_file, security.key_pem)
    if certificate is None:
        return {}
    java = {"ssl.keystore.type": "PEM"}
    # Java would decrypt a key that is in clear
    if security.key_password and "-----BEGIN PRIVATE KEY-----" not in (key or certificate):
        java["ssl.key.password"] = security.key_password
    # One file with both, as Java has it
    if security.certificate_file and key is None:
        return {**java, "ssl.keystore.location": security.certificate_file}
    return {
        **java,
        "ssl.keystore.certificate.chain": certificate,
        **({"ssl.keystore.key": key} if key else {}),
    }


_NOT_PKCS8 = re.compile(r"-----BEGIN ((?!ENCRYPTED )[A-Z0-9]+ PRIVATE KEY)-----")


def refuse_key_for_java(security: Security) -> None:
    """Refuse a client's key in a form that Python reads, and Java's client does not.

    :raises ConfigurationError: it is no PKCS#8, but what cert-manager, Vault and OpenSSL before 3
        write by default.
    """
    key = _pem_text(security.key_file, security.key_pem)
    text = key or _pem_text(security.certificate_file, security.certificate_pem)
    if (found := _NOT_PKCS8.search(text or "")) is None:
        return
    file = security.key_file or (security.certificate_file if key is None else None)
    raise ConfigurationError(
        f"the client's key in {file or 'ssl.keystore.key'} is in a form ({found[1]}) that Spark's "
        "Kafka source does not read, which takes PKCS#8",
        next_step="have it issued so (cert-manager: privateKey.encoding: PKCS8; Vault: "
        "private_key_format pkcs8); or convert each new one (openssl pkcs8 -topk8 -nocrypt -in "
        f"{file or 'key.pem'} -out key8.pem; with -v1 PBE-SHA1-3DES for -nocrypt it keeps a pass "
        "phrase) and "
        + ("set ssl.key.location=key8.pem" if file else "pass its text as ssl.keystore.key"),
    )


def _pem_text(file: str | None, text: str | None) -> str | None:
    """Return what a PEM file or text says, in ASCII: only its comments may be in anything else.
    :raises FileUnreadable: the file cannot be read."""
    if file is not None:
        try:
            with open(file, encoding="ascii", errors="ignore") as source:
                return source.read()
        except OSError as error:
            raise _unreadable(file, f"cannot be read ({error.strerror})") from error
    return None if text is None else text.encode("ascii", "ignore").decode()
