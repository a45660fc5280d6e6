"""Whoever does what the error of a connector's setting says is done: each row has what was wrong,
words of the next step, and every way of doing what it says. None of them touches a server.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from typing import Any

import pytest

import onceward as ow
from onceward.errors import ConfigurationError, OncewardError

LEDGER = ow.FolderLedger("/ledger")
Call = Callable[[], Any]


def _calls(function: Callable[..., Any], **always: Any) -> Callable[..., Call]:
    """Return a function that makes calls of ``function``; a setting that is ``...`` is left out."""

    def made(**settings: Any) -> Call:
        given = {name: value for name, value in {**always, **settings}.items() if value is not ...}
        return functools.partial(function, **given)

    return made


kafka = _calls(ow.KafkaSink, bootstrap_servers="b:9092", pipeline_id="p", topic="out")
table = _calls(ow.DatabaseSink, url="postgresql://u@h/db", pipeline_id="p", table="t")
stored = {"pipeline_id": "p", "store": "/store", "ledger": LEDGER}
upsert = _calls(ow.UpsertSink, key="id", **stored)
redis = functools.partial(upsert, url="redis://h", prefix="customer:")
search = functools.partial(upsert, url="https://h", index="customers")
registry = _calls(ow.SchemaRegistry, url="http://r:8081")
delta = _calls(ow.DeltaSink, pipeline_id="p", ledger=LEDGER)
files = _calls(ow.FileSink, path="/files", pipeline_id="p")
checkpointing = _calls(ow.checkpointing)


def options(**given: Any) -> Call:
    """A KafkaSink with Kafka's settings, ``__`` for a dot."""
    return kafka(options={name.replace("__", "."): value for name, value in given.items()})


def login(**given: Any) -> Call:
    return options(security__protocol="SASL_SSL", sasl__mechanism="PLAIN", **given)


JAAS = (
    'org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="p";'
)
NAMED: dict[str, Any] = {"sasl__username": "u", "sasl__password": "p"}


class Tokens:
    def token(self) -> str:
        return "token"


ROWS: list[tuple[Call, str, list[Call]]] = [
    (kafka(topic=["a", "b"]), "leave topic= out", [kafka(topic=...), kafka(topic="a")]),
    (kafka(dead_letter_topic="out"), "a topic of their own", [kafka(dead_letter_topic="dead")]),
    (
        kafka(on_error="dead_letter"),
        "pass dead_letter_topic=",
        [kafka(on_error="dead_letter", dead_letter_topic="dead")],
    ),
    (
        kafka(on_error="dead_letter", dead_letter_topic="dead", topic=...),
        "pass topic=, or leave on_error= out",
        [
            kafka(on_error="dead_letter", dead_letter_topic="dead"),
            kafka(dead_letter_topic="dead", topic=...),
        ],
    ),
    (
        kafka(on_error="dead_letter", dead_letter_topic="dead", delivery="at_least_once"),
        'use delivery="exactly_once", or leave on_error= out',
        [
            kafka(on_error="dead_letter", dead_letter_topic="dead", delivery="exactly_once"),
            kafka(dead_letter_topic="dead", delivery="at_least_once"),
        ],
    ),
    (
        kafka(order_by="at", delivery="at_least_once"),
        'use delivery="exactly_once", or leave order_by= out',
        [kafka(order_by="at"), kafka(delivery="at_least_once")],
    ),
    (kafka(ledger_topic="out"), "a topic of their own", [kafka(ledger_topic="ledger")]),
    (kafka(sequencer_host=""), "or leave it out", [kafka(sequencer_host="driver"), kafka()]),
    (kafka(bootstrap_servers=""), "as host:port", [kafka(bootstrap_servers="b:9092")]),
    (
        kafka(bootstrap_servers="b"),
        "host:port, separated by commas",
        [kafka(bootstrap_servers="b:9092,c:9092")],
    ),
    (kafka(options=["batch.size"]), "", [kafka(options={"batch.size": 65536})]),
    (
        kafka(checkpointing=3),
        "pass ow.checkpointing(…), or leave",
        [kafka(checkpointing=ow.checkpointing()), kafka()],
    ),
    (
        kafka(checkpointing=ow.checkpointing(attempts=3), batch_attempts=2),
        "leave batch_attempts= out, and set attempts=",
        [kafka(checkpointing=ow.checkpointing(attempts=2))],
    ),
    (
        kafka(
            checkpointing=ow.checkpointing(timeout="10 s"),
            options={"transaction.timeout.ms": "5000"},
        ),
        "leave transaction.timeout.ms out",
        [kafka(checkpointing=ow.checkpointing(timeout="10 s"))],
    ),
    (options(batch__size="64k"), "a plain number", [options(batch__size="65536")]),
    (options(batch_size=65536), "'batch.size'", [options(batch__size=65536)]),
    (options(acks="1"), "remove acks", [options()]),
    (options(enable__idempotence="false"), "remove enable.idempotence", [options()]),
    (
        options(max__in__flight__requests__per__connection=6),
        "use 1 to 5",
        [options(max__in__flight__requests__per__connection=number) for number in (1, 5)],
    ),
    (
        options(delivery__timeout__ms=20_000),
        "raise delivery.timeout.ms or lower request.timeout.ms",
        [
            options(delivery__timeout__ms=30_000),
            options(delivery__timeout__ms=20_000, request__timeout__ms=10_000),
        ],
    ),
    (
        options(compression__zstd__level=3),
        "set compression.type, or remove",
        [options(compression__type="zstd", compression__zstd__level=3), options()],
    ),
    (options(bootstrap__servers="c:1"), "give bootstrap_servers= only", [options()]),
    (options(transactional__id="x"), "remove transactional.id", [options()]),
    (
        options(sasl__mechanism="PLAIN", **NAMED),
        "SASL_SSL or SASL_PLAINTEXT",
        [
            login(**NAMED),
            options(security__protocol="SASL_PLAINTEXT", sasl__mechanism="PLAIN", **NAMED),
        ],
    ),
    (
        login(),
        "set sasl.username and sasl.password, or sasl.jaas.config",
        [login(**NAMED), login(sasl__jaas__config=JAAS)],
    ),
    (
        login(sasl__jaas__config=JAAS, **NAMED),
        "keep one of the two",
        [login(**NAMED), login(sasl__jaas__config=JAAS)],
    ),
    (
        login(sasl__jaas__config="user: u"),
        JAAS.replace('"u"', '"…"').replace('"p"', '"…"'),
        [login(sasl__jaas__config=JAAS), login(**NAMED)],
    ),
    (
        login(sasl__jaas__config=JAAS.replace(";", ' debug="true";')),
        "leave it out; PlainLoginModule takes username, password",
        [login(sasl__jaas__config=JAAS)],
    ),
    (
        options(security__protocol="SASL_SSL", sasl__mechanism="OAUTHBEARER"),
        "oauth_token_provider=, an object whose token()",
        [
            kafka(
                options={"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"},
                oauth_token_provider=Tokens(),
            )
        ],
    ),
    (
        options(security__protocol="SSL", ssl__endpoint__identification__algorithm="x"),
        "'https' (the server's host name is checked) or ''",
        [
            options(security__protocol="SSL", ssl__endpoint__identification__algorithm=word)
            for word in ("https", "")
        ],
    ),
    (table(url="sqlite:///x"), "mariadb://", [table(url="mariadb://user:p%25w@host:3306/app")]),
    (
        table(mode="upsert"),
        "pass key=, a column or several",
        [table(mode="upsert", key="id"), table(mode="upsert", key=["id", "day"])],
    ),
    (
        table(mode="append", key="id"),
        'leave them out, or use mode="upsert"',
        [table(mode="append"), table(mode="upsert", key="id")],
    ),
    (
        table(mode="changes", key="id"),
        "pass order_by=",
        [table(mode="changes", key="id", order_by=order) for order in ("offset", ["at", "n"])],
    ),
    (
        table(xa=True, mode="upsert", key="id", ledger=LEDGER),
        'use mode="append" with it, or leave xa= out',
        [table(xa=True, ledger=LEDGER), table(mode="upsert", key="id")],
    ),
    (
        table(xa=True, table=..., ledger=LEDGER),
        "pass table=, or leave xa= out",
        [table(xa=True, ledger=LEDGER), table(table=...)],
    ),
    (
        table(ledger=LEDGER),
        "name the ledger's table by ledger_table=",
        [table(), table(ledger_table="app.ledger")],
    ),
    (table(ledger_table="A B"), "a schema and '.'", [table(ledger_table="app.a_b")]),
    (
        table(xa=True, ledger=LEDGER, pipeline_id="p" * 200),
        "choose a shorter one, or leave xa= out",
        [table(xa=True, ledger=LEDGER, pipeline_id="p" * 99), table(pipeline_id="p" * 200)],
    ),
    (upsert(), "either url= or write=", [redis(), upsert(write=print)]),
    (redis(write=print), "either url= or write=", [redis(), upsert(write=print)]),
    (upsert(write=3), "takes a list of ow.delivery.Upsert", [upsert(write=lambda rows: None)]),
    (
        upsert(write=print, prefix="a:"),
        "leave it out, or pass url=",
        [upsert(write=print), redis(prefix="a:")],
    ),
    (
        upsert(write=print, index="a"),
        "leave it out, or pass url=",
        [upsert(write=print), search(index="a")],
    ),
    (
        upsert(url="ftp://h"),
        "redis://user:password@host:port/database, https://user:password@host:port, or write=",
        [
            redis(url="redis://user:password@host:6379/0"),
            search(url="https://user:password@host:9200"),
            upsert(write=print),
        ],
    ),
    (upsert(url="redis://h"), 'such as prefix="customer:"', [redis(prefix="customer:")]),
    (search(index="A"), 'such as index="customers"', [search(index="customers")]),
    (search(index=..., prefix="a:"), "leave it out, and pass index=", [search()]),
    (redis(prefix=..., index="a"), "leave it out, and pass prefix=", [redis()]),
    (
        redis(url="redis://h?foo=1"),
        "behind ? there may be what redis-py takes",
        [redis(url="redis://h?socket_keepalive=true")],
    ),
    (redis(url="redis://h?encoding=latin1"), "leave that out of the URL", [redis()]),
    (
        search(url="https://u:p?w@h"),
        "write special characters as %25 and the like",
        [search(url="https://u:p%3Fw%23@h")],
    ),
    (search(url="https://h?x=1"), "leave them out", [search(url="https://h")]),
    (
        registry(url="r:8081"),
        "http://host:port/path or https://host:port/path",
        [registry(url="http://host:8081/path"), registry(url="https://host:8081/path")],
    ),
    (
        registry(url="http://user:password@r:8081"),
        'options={"basic.auth.user.info": "user:password"}',
        [registry(options={"basic.auth.user.info": "user:password"})],
    ),
    (registry(timeout_s=0), "a number above 0 as timeout_s=", [registry(timeout_s=0.5)]),
    (
        registry(options={"basic.auth.user.inf": "a:b"}),
        "'basic.auth.user.info'",
        [registry(options={"basic.auth.user.info": "a:b"})],
    ),
    (
        registry(options={"basic.auth.user.info": "ab"}),
        "with the colon",
        [registry(options={"basic.auth.user.info": "a:b"})],
    ),
    (
        registry(options={"bearer.auth.token": "Bearer x"}),
        "without spaces or the word Bearer",
        [registry(options={"bearer.auth.token": "x"})],
    ),
    (
        registry(options={"basic.auth.user.info": "a:b", "bearer.auth.token": "x"}),
        "keep one of the two",
        [
            registry(options={"basic.auth.user.info": "a:b"}),
            registry(options={"bearer.auth.token": "x"}),
        ],
    ),
    (
        registry(options={"basic.auth.credentials.source": "URL"}),
        "USER_INFO, and basic.auth.user.info",
        [
            registry(
                options={
                    "basic.auth.credentials.source": "USER_INFO",
                    "basic.auth.user.info": "a:b",
                }
            )
        ],
    ),
    (
        registry(options={"bearer.auth.credentials.source": "STATIC_TOKEN"}),
        "set bearer.auth.token, or remove bearer.auth.credentials.source",
        [
            registry(
                options={
                    "bearer.auth.credentials.source": "STATIC_TOKEN",
                    "bearer.auth.token": "x",
                }
            ),
            registry(),
        ],
    ),
    (
        checkpointing(interval="x"),
        'seconds, or to a text such as "10 s", "500 ms" or "2 min"',
        [checkpointing(interval=each) for each in (10, "10 s", "500 ms", "2 min")],
    ),
    (checkpointing(max_concurrent=2), "leave max_concurrent out", [checkpointing()]),
    (delta(), "pass one of the two", [delta(path="/t"), delta(table="t")]),
    (delta(path="/t", table="t"), "not both", [delta(path="/t"), delta(table="t")]),
    (files(partition_by=3), "", [files(partition_by="a"), files(partition_by=["a", "b"])]),
    (files(options=3), '{"compression": "zstd"}', [files(options={"compression": "zstd"})]),
]


@pytest.mark.parametrize(
    ("wrong", "says", "rights"), ROWS, ids=[f"{n}-{row[1][:30]}" for n, row in enumerate(ROWS)]
)
def test_what_the_next_step_says_is_taken(wrong: Call, says: str, rights: list[Call]):
    with pytest.raises(OncewardError) as refused:
        wrong()
    assert says in refused.value.next_step
    for right in rights:
        right()


@pytest.mark.parametrize(
    "wrong",
    [
        table(mode="merge"),
        options(compression__type="lz5"),
        options(security__protocol="SSLX"),
    ],
)
def test_each_of_the_words_that_are_offered_is_a_choice(wrong: functools.partial[Any]):
    with pytest.raises(ConfigurationError) as refused:
        wrong()
    given = json.dumps(wrong.keywords, default=str)
    offered = refused.value.next_step.removeprefix("use one of ").split(", ")
    assert len(offered) > 2
    value = re.search(r"='(\w+)'", refused.value.message)
    assert value is not None
    for word in offered:
        settings = json.loads(given.replace(f'"{value[1]}"', f'"{word}"'))
        needs: dict[str, Any] = {"key": "id", "order_by": "at"} if word == "changes" else {}
        needs |= {"key": "id"} if word == "upsert" else {}
        if word.startswith("SASL"):
            settings["options"] |= {
                "sasl.mechanism": "PLAIN", "sasl.username": "u", "sasl.password": "p",
            }  # fmt: skip
        wrong.func(**settings, **needs)
