"""librdkafka's clients of the clusters that serve a whole run, kept open. Called by the fixtures
of ``conftest``.

A new client costs a test up to a second, in which nothing happens: librdkafka asks for a producer
id half a second after it first could not, and looks once a second whether it knows by now who
leads a partition. A few hundred tests make a few clients each. To any other cluster, which a test
may stop or kill, each client is a new one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from confluent_kafka import Consumer

Client = TypeVar("Client")

_kept: dict[str, dict[Any, Any]] = {}


@contextmanager
def keeping(servers: str) -> Iterator[None]:
    """Meanwhile the clients of this cluster are kept."""
    _kept[servers] = {}
    try:
        yield
    finally:
        for client in _kept.pop(servers).values():
            if isinstance(client, Consumer):
                client.close()


def client(kind: Callable[[dict[str, Any]], Client], servers: str, **settings: Any) -> Client:
    """A client of this kind, with ``settings`` by Kafka's names (``a_b`` is ``a.b``): this
    thread's, or a new one.
    """
    kept, place = _kept.get(servers), (kind, threading.get_ident(), *sorted(settings.items()))
    if kept is not None and place in kept:
        found: Client = kept[place]
        return found
    made = kind(
        {
            "bootstrap.servers": servers,
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
    )
    if kept is not None:
        kept[place] = made
    return made


@contextmanager
def using(
    kind: Callable[[dict[str, Any]], Client], servers: str, **settings: Any
) -> Iterator[Client]:
    """:func:`client`, which may be at fault if something goes wrong inside: the next one is new
    then.
    """
    one, kept = client(kind, servers, **settings), _kept.get(servers, {})
    try:
        yield one
    except BaseException:
        for place in [place for place, other in kept.items() if other is one]:
            del kept[place]
        raise


@contextmanager
def reader(servers: str, **settings: Any) -> Iterator[Consumer]:
    """A consumer to assign partitions to; afterwards it has none."""
    with using(Consumer, servers, **settings) as consumer:
        try:
            yield consumer
        except BaseException:
            consumer.close()
            raise
        if servers in _kept:
            consumer.unassign()
        else:
            consumer.close()
