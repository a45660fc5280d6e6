"""A proxy that understands Kafka's framing, one listener per broker, for faults that only a
network has.

Started by ``LocalKafka(proxied=True)`` and by tests of your own; see :class:`KafkaProxy`. One
thread with one event loop carries everything.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import threading
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

from onceward.errors import ResourceError
from onceward_testing.proxy.faults import Faults, On, RequestPattern
from onceward_testing.proxy.frames import Mark, PassedRequests, RequestCounter
from onceward_testing.proxy.listener import ProxyListener

_T = TypeVar("_T")
_STEP_SECONDS = 60.0


class KafkaProxy:
    """A proxy between clients and brokers, from :meth:`start` (or entering a ``with`` block) to
    :meth:`close`.

    With :class:`~onceward_testing.LocalKafka`::

        with LocalKafka(nodes=3, proxied=True) as kafka:
            start_my_job(kafka.proxied_servers)
            fault = kafka.proxy.on("EndTxn", client_id="my-job*").drop_response()
            assert fault.wait(60)

    With brokers of your own: each one's ``advertised.listeners`` must lead to the proxy, or its
    clients, once they have asked for metadata, go around it. ``KafkaProxy({1: "127.0.0.1:19092"},
    ports={1: 9092})`` is right for a broker that listens on 19092 and advertises
    ``127.0.0.1:9092``. Brokers are spoken to in plain text (SASL or not). Clients may use TLS as
    well, at the same ports, once the proxy has a certificate (:meth:`serve_tls`).

    A connection whose broker is down is closed, as the broker's own port would. Whatever ends the
    ``with`` block: everything is closed, nothing stays armed or cut.

    :param brokers: node id → ``host:port``, where the broker really listens.
    :param ports: node id → the port to listen on; where none is given, any that is free.
    """

    def __init__(
        self, brokers: Mapping[int, str], *, ports: Mapping[int, int] | None = None
    ) -> None:
        self._faults = Faults()
        self._counts = RequestCounter()
        self._listeners = {
            node: ProxyListener(
                node, _address(server), (ports or {}).get(node, 0), self._faults, self._counts
            )
            for node, server in brokers.items()
        }
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._owner_pid = 0

    def start(self) -> KafkaProxy:
        """Start to listen; it listens when this returns.

        Does nothing when started already. :raises OSError: a port is taken.
        """
        if self._thread is None:
            self._owner_pid = os.getpid()
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(
                target=self._loop.run_forever, name="onceward-kafka-proxy", daemon=True
            )
            self._thread.start()
            try:
                for listener in self._listeners.values():
                    self._do(listener.listen())
            except BaseException:
                self.close()
                raise
        return self

    def close(self) -> None:
        """Heal, close every connection and end the thread. May be called twice."""
        if self._thread is None or self._loop is None or self._owner_pid != os.getpid():
            return  # in a forked copy of the owner there is no such thread
        self._faults.disarm()
        for listener in self._listeners.values():
            self._do(listener.close())
        self._do(self._loop.shutdown_asyncgens())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._thread = self._loop = None

    @property
    def ports(self) -> dict[int, int]:
        """Node id → the port that clients connect to."""
        return {node: listener.port for node, listener in self._listeners.items()}

    @property
    def bootstrap_servers(self) -> str:
        """``host:port,…`` of all listeners."""
        return ",".join(f"127.0.0.1:{port}" for port in self.ports.values())

    def serve_tls(self, context: ssl.SSLContext | None) -> None:
        """Serve clients that begin with a TLS handshake with ``context``; None:
        no longer."""
        for listener in self._listeners.values():
            listener.tls = context

    # ── faults ──

    def on(
        self,
        api: str,
        *,
        nth: int = 1,
        times: int | None = 1,
        client_id: str | None = None,
        node: int | None = None,
    ) -> On:
        """Return a fault for the ``nth`` request ``api`` from now on, and the ``times - 1`` after
        it (None: all after it).

        The methods of what it returns arm it: ``proxy.on("Produce").drop_response()``.

        :param api: Kafka's name, such as ``"Produce"``, ``"EndTxn"``, ``"FindCoordinator"``.
        :param client_id: only of clients whose id matches; ``*`` and ``?`` as in a shell.
        :param node: only to this broker.
        :raises ConfigurationError: no such request.
        """
        return On(self._faults, RequestPattern(api, nth, times, client_id, node))

    def cut(self, node: int) -> None:
        """Let nothing pass to or from ``node`` until :meth:`heal`; connections stay open, as when
        a network parts."""
        self._do(_calling(self._listeners[node].cut))

    def heal(self) -> None:
        """End cuts and disarm all faults. What is held stays held until its ``release()``."""
        self._faults.disarm()
        for listener in self._listeners.values():
            self._do(listener.heal())

    # ── counts ──

    def count(self, api: str, *, client_id: str | None = None, node: int | None = None) -> int:
        """Return how many requests ``api`` were passed on to brokers since the start; see
        :meth:`PassedRequests.count`."""
        return self._counts.since(None).count(api, client_id=client_id, node=node)

    def mark(self) -> Mark:
        """Return a mark of now, for :meth:`since`."""
        return self._counts.mark()

    def since(self, mark: Mark) -> PassedRequests:
        """Return the requests that were passed on after ``mark``."""
        return self._counts.since(mark)

    def __enter__(self) -> KafkaProxy:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _do(self, step: Coroutine[Any, Any, _T]) -> _T:
        if self._loop is None:
            step.close()
            raise ResourceError(
                "this KafkaProxy is not running",
                next_step="call start(), or use it in a `with` block",
            )
        return asyncio.run_coroutine_threadsafe(step, self._loop).result(_STEP_SECONDS)


async def _calling(step: Any) -> None:
    step()


def _address(server: str) -> tuple[str, int]:
    host, _, port = server.rpartition(":")
    return host, int(port)
