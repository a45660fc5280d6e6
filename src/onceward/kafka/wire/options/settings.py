"""Settings of our Kafka client, from Kafka's own option names, checked when a sink or source is
constructed. Frozen and picklable: the driver builds them, and they travel to the executors inside
the tasks. Names follow the Java producer; PEM files and plain SASL names follow librdkafka, where
Java has none."""

from __future__ import annotations

import contextlib
import difflib
import os
import uuid
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from onceward.errors import ConfigurationError, ContradictoryOptions, FileUnreadable, UnknownOption
from onceward.kafka.records.compression import Codec, check_level
from onceward.kafka.wire.options.security import (
    NAMED_PROVIDER,
    SECURITY_OPTIONS,
    Security,
    TokenProvider,
    imported_provider,
    java_security_options,
    refuse_key_for_java,
    security_from_options,
)
from onceward.libraries import properties

LONGEST_TRANSACTION_MS = 900_000
"""How long a transaction may be open unless a setting says otherwise: Kafka's default of
transaction.max.timeout.ms."""

_COMPRESSIONS = tuple(codec.name.lower() for codec in Codec)

_known_providers: dict[int, tuple[weakref.ref[TokenProvider], str]] = {}


@dataclass(frozen=True)
class ClientSettings:
    """Settings for reaching the cluster. ``repr`` holds no secret."""

    bootstrap_servers: tuple[str, ...]
    client_id: str = "onceward"
    request_timeout_ms: int = 30_000
    """One request and its answer (request.timeout.ms)."""
    connect_timeout_ms: int = 15_000
    """How long to look for any broker that answers, before :class:`BrokerUnreachable`
    (socket.connection.setup.timeout.max.ms)."""
    security: Security = field(default_factory=Security)
    oauth_token_provider: TokenProvider | None = field(default=None, repr=False)
    oauth_token_provider_id: str = field(default="", compare=False)
    """Tells the providers of two sinks apart in a process that serves both, equal ones as well."""


@dataclass(frozen=True)
class ProducerSettings:
    """Settings for appending records."""

    compression: str = "none"
    compression_level: int | None = None
    batch_bytes: int = 1_000_000
    """Record batches are filled up to this size (batch.size); a record that is larger gets one of
    its own. The broker's limit, message.max.bytes, is 1,048,588 by default."""
    max_request_bytes: int = 8 * 1024 * 1024
    """Record batches of one broker are put into one request up to this size, and no record may
    take more once it is compressed (max.request.size)."""
    max_in_flight: int = 5
    """Unanswered requests per broker, 1 to 5: the broker remembers the last five batches of a
    producer in a partition, so that more could not be recognised as duplicates (KIP-98,
    ``ProducerStateEntry``)."""
    delivery_timeout_ms: int = 120_000
    """From the call of ``send`` to the last acknowledgement (delivery.timeout.ms)."""
    transaction_timeout_ms: int | None = None
    """The coordinator aborts a transaction that is open longer (transaction.timeout.ms). None: 15
    minutes (:data:`LONGEST_TRANSACTION_MS`), or as long as the brokers allow where that is less.
    """
    acks: int = -1
    """-1: all in-sync replicas. 1, the leader alone, only with ``delivery="none"``."""

    @property
    def codec(self) -> Codec:
        return Codec[self.compression.upper()]


_NUMBERS: Mapping[str, tuple[int, int, str]] = {
    "request.timeout.ms": (1, 2**31 - 1, "request_timeout_ms"),
    "socket.connection.setup.timeout.max.ms": (1, 2**31 - 1, "connect_timeout_ms"),
    "batch.size": (1_000, 512 * 1024 * 1024, "batch_bytes"),
    "max.request.size": (1_000, 512 * 1024 * 1024, "max_request_bytes"),
    "max.in.flight.requests.per.connection": (1, 5, "max_in_flight"),
    "delivery.timeout.ms": (1, 2**31 - 1, "delivery_timeout_ms"),
    "transaction.timeout.ms": (1, 2**31 - 1, "transaction_timeout_ms"),
    "compression.level": (-(2**17), 22, ""),
    "compression.gzip.level": (1, 9, ""),
    "compression.lz4.level": (1, 17, ""),
    "compression.zstd.level": (-(2**17), 22, ""),
}
"""The least, the most, and the field of the settings, where it is one of its own."""
_JAVA_TOKENS = "kafka.sasl.login.callback.handler.class"
# Names of ProducerConfig, ConsumerConfig, SaslConfigs and SslConfigs (Kafka 4.3) without a meaning
# here: what they are like is another setting.
_OF_KAFKAS_CLIENTS = frozenset({
    "allow.auto.create.topics", "auto.commit.interval.ms", "auto.include.jmx.reporter",
    "check.crcs", "client.dns.lookup", "client.rack", "connections.max.idle.ms",
    "default.api.timeout.ms", "enable.metrics.push", "exclude.internal.topics", "fetch.max.bytes",
    "fetch.max.wait.ms", "fetch.min.bytes", "group.instance.id", "group.protocol",
    "group.remote.assignor", "heartbeat.interval.ms", "max.partition.fetch.bytes",
    "max.poll.interval.ms", "max.poll.records", "metadata.max.age.ms", "metadata.max.idle.ms",
    "metadata.recovery.rebootstrap.trigger.ms", "metadata.recovery.strategy", "metric.reporters",
    "metrics.num.samples", "metrics.recording.level", "metrics.sample.window.ms",
    "partition.assignment.strategy", "partitioner.adaptive.partitioning.enable",
    "partitioner.availability.timeout.ms", "receive.buffer.bytes", "reconnect.backoff.max.ms",
    "reconnect.backoff.ms", "retry.backoff.max.ms", "retry.backoff.ms",
    "sasl.client.callback.handler.class", "sasl.kerberos.kinit.cmd", "sasl.kerberos.service.name",
    "sasl.login.callback.handler.class", "sasl.login.class", "security.providers",
    "send.buffer.bytes", "session.timeout.ms", "socket.connection.setup.timeout.ms",
    "ssl.cipher.suites", "ssl.enabled.protocols", "ssl.engine.factory.class",
    "ssl.keymanager.algorithm", "ssl.protocol", "ssl.provider", "ssl.secure.random.implementation",
    "ssl.trustmanager.algorithm",
})  # fmt: skip
_TEXTS = ("client.id", "compression.type", "acks", "enable.idempotence")

OPTIONS = (*_NUMBERS, *_TEXTS, *SECURITY_OPTIONS)
"""Every option that means something here."""

# Of the options that are not about security only these mean something to a consumer.
_CONSUMER_OPTIONS = ("client.id", "request.timeout.ms", "socket.connection.setup.timeout.max.ms")

OF_THE_READER: Mapping[str, str] = {
    "isolation.level": "kafka_source reads committed records only",
    "auto.offset.reset": "starting= of kafka_source says where a query begins",
    "enable.auto.commit": "a query's checkpoint says how far it has read",
    "key.deserializer": "columns are bytes, which functions of the frame deserialize",
    "value.deserializer": "columns are bytes, which functions of the frame deserialize",
    "interceptor.classes": "Java classes cannot be used",
}
"""Options of Kafka's own consumer that Spark's source is not given either: name -> why."""

# Options of Kafka's own clients that would contradict what Onceward does by design: name -> why.
_OURS: Mapping[str, str] = {
    **OF_THE_READER,
    "transactional.id": "the transactional id is the pipeline_id",
    "transaction.two.phase.commit.enable": "a micro-batch is one ordinary transaction",
    "retries": "a send is repeated until delivery.timeout.ms",
    "linger.ms": "a task sends as soon as it has enough for a request or its input ends",
    "buffer.memory": "a task holds at most what max.request.size and batch.size allow",
    "max.block.ms": "delivery.timeout.ms bounds a send",
    "partitioner.class": "keys go where Kafka's default partitioner puts them; use a `partition` "
    "column instead",
    "partitioner": "keys go where librdkafka's murmur2_random puts them, not its default; use a "
    "`partition` column instead",
    "partitioner.ignore.keys": "keys go where Kafka's default partitioner puts them",
    "key.serializer": "columns are bytes or strings already",
    "value.serializer": "columns are bytes or strings already",
    "group.id": "the consumer group is the pipeline_id",
    "sasl.oauthbearer.extensions": "extensions() of oauth_token_provider= returns them",
    "ssl.ca.pem": "the same text is taken by Java's name, ssl.truststore.certificates",
    "ssl.certificate.pem": "the same text is taken as ssl.keystore.certificate.chain",
    "ssl.key.pem": "the same text is taken as ssl.keystore.key",
}

# Settings of the same meaning by librdkafka's names (its CONFIGURATION.md).
_OF_LIBRDKAFKA: Mapping[str, str] = {
    "compression.codec": "compression.type", "fetch.wait.max.ms": "fetch.max.wait.ms",
    "fetch.message.max.bytes": "max.partition.fetch.bytes",
    "max.in.flight": "max.in.flight.requests.per.connection",
    "message.max.bytes": "max.request.size", "message.send.max.retries": "retries",
    "message.timeout.ms": "delivery.timeout.ms", "metadata.broker.list": "bootstrap.servers",
    "queue.buffering.max.kbytes": "buffer.memory", "queue.buffering.max.messages": "buffer.memory",
    "queue.buffering.max.ms": "linger.ms", "request.required.acks": "acks",
    "socket.receive.buffer.bytes": "receive.buffer.bytes",
    "socket.send.buffer.bytes": "send.buffer.bytes", "socket.timeout.ms": "request.timeout.ms",
    "topic.metadata.refresh.interval.ms": "metadata.max.age.ms",
}  # fmt: skip


def settings_from_options(
    bootstrap_servers: str | Sequence[str],
    options: Mapping[str, Any],
    *,
    client_id: str,
    oauth_token_provider: TokenProvider | None = None,
    delivery: str = "exactly_once",
) -> tuple[ClientSettings, ProducerSettings]:
    """Return ``options`` (Kafka's names) as settings; every mistake is named here, before anything
    is connected.

    :raises UnknownOption: with the nearest name that exists.
    :raises ContradictoryOptions: two settings that cannot both hold.
    :raises ConfigurationError: not a number, out of range, unreadable.
    """
    _refuse_other_types(options, oauth_token_provider)
    texts = {name: _text(name, value) for name, value in options.items()}
    if (named := texts.pop(NAMED_PROVIDER, None)) and oauth_token_provider is None:
        oauth_token_provider = imported_provider(named)
    for name in texts:
        _refuse_unknown(name)
    numbers = {name: _number(name, text) for name, text in texts.items() if name in _NUMBERS}
    security = security_from_options(
        {k: v for k, v in texts.items() if k in SECURITY_OPTIONS}, oauth_token_provider
    )
    client = ClientSettings(
        bootstrap_servers=_servers(bootstrap_servers),
        client_id=texts.get("client.id", client_id),
        security=security,
        oauth_token_provider=oauth_token_provider,
        oauth_token_provider_id=""
        if oauth_token_provider is None
        else _provider_id(oauth_token_provider),
        **_fields_of(ClientSettings, numbers),
    )
    compression = texts.get("compression.type", "none")
    if compression not in _COMPRESSIONS:
        raise ConfigurationError(
            f"compression.type={compression!r} is not known",
            next_step=f"use one of {', '.join(_COMPRESSIONS)}",
        )
    producer = ProducerSettings(
        acks=_acks(texts, delivery),
        compression=compression,
        compression_level=_level(numbers, compression),
        **_fields_of(ProducerSettings, numbers),
    )
    _refuse_contradictions(client, producer)
    return client, producer


def spark_source_options(
    client: ClientSettings, options: Mapping[str, Any], own: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return ``options`` (as for a sink), of which ``client`` was made, as ``kafka.``-prefixed
    options of Spark's Kafka source; producer settings left out. The result holds secrets: never
    log it.

    :param own: options that Spark's source is given besides, and which come first: it may log in
        by another mechanism than Python (``AWS_MSK_IAM``).
    :raises ConfigurationError: OAUTHBEARER, whose tokens have to come from a Java class, and
        ``own`` names none; or a key that Java does not read, and ``own`` names no other.
    """
    theirs = {name.lower(): value for name, value in (own or {}).items()}
    needs_no_tokens = (
        _JAVA_TOKENS in theirs
        or theirs.get("kafka.sasl.mechanism", "OAUTHBEARER") != "OAUTHBEARER"
        or "SASL" not in theirs.get("kafka.security.protocol", "SASL").upper()
    )
    if client.security.mechanism == "OAUTHBEARER" and not needs_no_tokens:
        raise ConfigurationError(
            "sasl.mechanism=OAUTHBEARER cannot be passed on to Spark's Kafka source, whose tokens "
            "come from Java",
            next_step=f"add {_JAVA_TOKENS} and kafka.sasl.jaas.config to spark_options=, beside "
            "options= and oauth_token_provider=, which look positions up",
        )
    java = {name: str(options[name]) for name in _CONSUMER_OPTIONS if name in options}
    if any(name in SECURITY_OPTIONS for name in options):
        java |= java_security_options(client.security)
        if theirs.keys().isdisjoint(_WITHOUT_OURS | _OWN_KEY):
            refuse_key_for_java(client.security)
    given = {f"kafka.{name}": value for name, value in java.items()}
    for own_store, ours, password, of_pem in _STORES:
        if not theirs.keys().isdisjoint(own_store):
            # Java takes no two, and no password of a store beside the type PEM
            gone = ours | (of_pem if password in theirs else set())
            given = {name: value for name, value in given.items() if name not in gone}
    return given


_KEY, _TRUST = "kafka.ssl.keystore", "kafka.ssl.truststore"
_OWN_KEY = {f"{_KEY}.location", f"{_KEY}.key"}
_OWN_TRUST = {f"{_TRUST}.location", f"{_TRUST}.certificates"}
_STORES = (
    (
        _OWN_KEY,
        _OWN_KEY | {f"{_KEY}.certificate.chain"},
        f"{_KEY}.password",
        {f"{_KEY}.type", "kafka.ssl.key.password"},
    ),
    (_OWN_TRUST, _OWN_TRUST, f"{_TRUST}.password", {f"{_TRUST}.type"}),
)
"""Of each store of Java's: what makes it the reader's own, what of ours that replaces, and what
besides where it has this password."""
_WITHOUT_OURS = {"kafka.ssl.engine.factory.class", "kafka.security.protocol"}


def _refuse_other_types(options: object, oauth_token_provider: object) -> None:
    # What they are is not repeated: it may hold a password, or be a token
    if not isinstance(options, Mapping):
        raise ConfigurationError(
            f"options= is {type(options).__name__}, no dict",
            next_step='pass Kafka\'s settings by their names: {"batch.size": 65536}',
        )
    if oauth_token_provider is not None and not callable(
        getattr(oauth_token_provider, "token", None)
    ):
        raise ConfigurationError(
            f"oauth_token_provider= is {type(oauth_token_provider).__name__}, which has no method "
            "token()",
            next_step="pass an object whose token() returns the token, or leave it out",
        )


def _fields_of(settings: type[Any], numbers: Mapping[str, int]) -> dict[str, Any]:
    names = {each.name for each in fields(settings)}
    found = {_NUMBERS[option][2]: number for option, number in numbers.items()}
    return {name: number for name, number in found.items() if name in names}


def _text(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, str | int):
        raise ConfigurationError(
            f"{name} is {type(value).__name__}, no text and no whole number",
            next_step=f"correct {name} in options",
        )
    return str(value).strip()


def _number(name: str, text: str) -> int:
    least, most, _ = _NUMBERS[name]
    try:
        number = int(text)
    except ValueError:
        raise ConfigurationError(
            f"{name}={text!r} is not a whole number",
            next_step="give a plain number, without a unit (the unit is in the option's name)",
        ) from None
    if not least <= number <= most:
        raise ConfigurationError(
            f"{name}={number} is out of range", next_step=f"use {least} to {most}"
        )
    return number


def _refuse_unknown(name: str) -> None:
    if name in OPTIONS:
        return
    # kafka-python has Kafka's names with underscores
    short = name.removeprefix("kafka.").replace("_", ".")
    short = _OF_LIBRDKAFKA.get(short, short)
    if short == "bootstrap.servers":
        raise ContradictoryOptions(
            f"{name} is given twice",
            next_step=f"give bootstrap_servers= only, and remove {name} from options",
        )
    if short in _OURS:
        raise decided(name, _OURS[short])
    if short in _OF_KAFKAS_CLIENTS:
        raise UnknownOption(
            f"option {name!r} is one of Kafka's own clients, and has no meaning here",
            next_step="leave it out; where it is meant for Spark's reader, kafka_source takes it "
            f"in spark_options=, as 'kafka.{short}'",
        )
    nearest = difflib.get_close_matches(short, OPTIONS, n=1, cutoff=0.75)
    raise UnknownOption(
        f"option {name!r} is not known",
        next_step=f"did you mean {nearest[0]!r}?"
        if nearest
        else "see the list of Kafka options in the documentation",
    )


def decided(name: str, why: str) -> ContradictoryOptions:
    """Return the error for an option that Onceward decides itself."""
    return ContradictoryOptions(f"{name} cannot be set: {why}", next_step=f"remove {name}")


def _servers(given: str | Sequence[str]) -> tuple[str, ...]:
    parts = (
        given.split(",")
        if isinstance(given, str)
        else list(given)
        if isinstance(given, Iterable)
        else [given]
    )
    if not all(isinstance(part, str) for part in parts):
        raise ConfigurationError(
            f"bootstrap_servers={given!r} is no text",
            next_step='write "host:port", or a list of such texts',
        )
    servers = tuple(part.strip() for part in parts if part.strip())
    for server in servers:
        host, _, port = server.rpartition(":")
        is_half_an_ip = host.count("[") != host.count("]")
        if not host or is_half_an_ip or not port.isdecimal() or not 0 < int(port) < 65_536:
            raise ConfigurationError(
                # What stands before an @ may be a login
                f"bootstrap_servers: {server.rpartition('@')[2]!r} is not host:port",
                next_step="write host:port, separated by commas",
            )
    if not servers:
        raise ConfigurationError(
            "bootstrap_servers is empty", next_step="name at least one broker as host:port"
        )
    return servers


def _level(numbers: Mapping[str, int], compression: str) -> int | None:
    for name in ("compression.gzip.level", "compression.lz4.level", "compression.zstd.level"):
        if name in numbers and compression not in name:
            raise ContradictoryOptions(
                f"{name} is set, but compression.type is {compression}",
                next_step=f"set compression.type, or remove {name}",
            )
    own = numbers.get(f"compression.{compression}.level")
    level = numbers.get("compression.level") if own is None else own
    # librdkafka's default, of any codec. To Kafka's compression.zstd.level it is a level.
    if level == -1 and own is None:
        return None
    check_level(Codec[compression.upper()], level)
    return level


def _acks(texts: Mapping[str, str], delivery: str) -> int:
    if texts.get("enable.idempotence", "true").lower() != "true" and delivery == "exactly_once":
        raise ContradictoryOptions(
            "enable.idempotence=false cannot keep delivery='exactly_once'",
            next_step="remove enable.idempotence",
        )
    acks = texts.get("acks", "all")
    if acks in ("all", "-1"):
        return -1
    if acks == "1" and delivery == "none":
        return 1
    raise ContradictoryOptions(
        f"acks={acks} cannot keep delivery={delivery!r}",
        next_step="remove acks (it is 'all')" + (" or use acks=1" if delivery == "none" else ""),
    )


def _refuse_contradictions(client: ClientSettings, producer: ProducerSettings) -> None:
    timeouts = producer.delivery_timeout_ms, client.request_timeout_ms
    sizes = producer.max_request_bytes, producer.batch_bytes
    for most, least, (larger, smaller) in (
        ("delivery.timeout.ms", "request.timeout.ms", timeouts),
        ("max.request.size", "batch.size", sizes),
    ):
        if larger < smaller:
            raise ContradictoryOptions(
                f"{most}={larger} is below {least}={smaller}",
                next_step=f"raise {most} or lower {least}",
            )


def _provider_id(provider: TokenProvider) -> str:
    """Return an id of this object, however many sinks are built with it, and of no other."""
    reference, name = _known_providers.get(id(provider), (None, ""))
    if reference is not None and reference() is provider:
        return name
    name = uuid.uuid4().hex
    # One that cannot be referred to weakly is new each time
    with contextlib.suppress(TypeError):
        _known_providers[id(provider)] = (weakref.ref(provider), name)
    return name


def read_properties(file: Path) -> dict[str, str]:
    """Read a properties file as Kafka's own tools take it with ``--command-config`` (Java's
    ``Properties.load``): ``name=value``, ``name: value`` or ``name value``, over several lines
    where one ends in a backslash; lines that begin with ``#`` or ``!``, and empty ones, are
    comments. In UTF-8, or else in Latin-1.

    :raises ConfigurationError: there is no such file, or a line of it is something else.
    :raises FileUnreadable: it cannot be read.
    """
    if not os.path.isfile(file):
        raise ConfigurationError(f"there is no file {file}", next_step="correct --command-config")
    try:
        data = file.read_bytes()
    except OSError as error:
        raise FileUnreadable(
            f"{file} cannot be read: {error.strerror}",
            next_step="let this login read it, or correct --command-config",
        ) from error
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = data.decode("latin-1")
    found = {}
    for number, pair in properties(text):
        if pair is None:
            raise ConfigurationError(
                f"{file}, line {number} is not name=value", next_step="correct --command-config"
            )
        found[pair[0]] = pair[1]
    return found
