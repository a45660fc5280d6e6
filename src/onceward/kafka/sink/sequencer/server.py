"""The sequencer: a small service in the driver process that leases partitions to tasks, one at a
time.

Made by the Kafka sink, once; asked by it for an epoch per transaction. Tasks reach it with
``sequencer.client``. Read in this order: ``leases`` (the rules), ``frames`` (the wire format),
``epoch`` (connections), ``listener``.

Integrity does not rest on it alone: the broker refuses a gap in a sequence and an old epoch, and
the report check catches an overlap. A stopped executor that comes back to life sends under an
epoch that was aborted long ago, and is refused by the broker.
"""

from __future__ import annotations

import hmac
import socket
import threading
import weakref
from collections.abc import Mapping
from types import MappingProxyType

from onceward import surroundings
from onceward.errors import OncewardError
from onceward.ids import ProducerIdentity, TaskAttempt, TopicPartition
from onceward.kafka.sink.sequencer.epoch import Epoch, OnFirstLease
from onceward.kafka.sink.sequencer.frames import TOKEN_BYTES, EpochCredentials
from onceward.kafka.sink.sequencer.leases import EpochLeases
from onceward.kafka.sink.sequencer.listener import Listener


class Sequencer:
    """Server that listens from construction until :meth:`close`, and serves one epoch at a time.

    :param bind_host: the address to listen on, ``0.0.0.0`` for all.
    :param advertised_host: the name or address under which executors reach the driver's host.
    :param port: 0 takes any free one.
    :raises ConfigurationError: it cannot listen there.
    """

    def __init__(self, bind_host: str, advertised_host: str, port: int = 0) -> None:
        self._lock = threading.Lock()
        self._epoch: Epoch | None = None
        self._last: Epoch | None = None
        # The listener's thread must not keep us alive: a sequencer that nobody closed ends when
        # nobody has it any more.
        admit, tick = weakref.WeakMethod(self._admit), weakref.WeakMethod(self._tick)
        self._listener = Listener(
            bind_host,
            port,
            admit=lambda sock, token, task: (
                (ours := admit()) is not None and ours(sock, token, task)
            ),
            on_tick=lambda now: None if (ours := tick()) is None else ours(now),
        )
        weakref.finalize(self, self._listener.close_soon).atexit = False
        self.address: tuple[str, int] = (advertised_host, self._listener.port)

    def open_epoch(
        self,
        identity: ProducerIdentity,
        *,
        lease_limit_seconds: float,
        on_first_lease: OnFirstLease | None = None,
        first_sequences: Mapping[TopicPartition, int] = MappingProxyType({}),
    ) -> EpochCredentials:
        """Open an epoch with a new token, for one job; one that is still open is closed first.

        :param identity: under which the tasks send; the broker wants every sequence of a new epoch
            to begin at 0.
        :param first_sequences: where an earlier job under the same identity left off, by
            partition.
        :param lease_limit_seconds: a lease held for longer poisons the epoch. Choose it above the
            time a task may take to send what it has at hand (``delivery.timeout.ms``); what
            ``on_first_lease`` takes counts, too.
        :param on_first_lease: called with the partitions that are leased for the first time in
            this epoch, each of them once, before their grant is answered. It runs in threads of
            the sequencer, in several at once, without any lock. When it raises, the epoch is
            poisoned with that error and the asker gets it.
        """
        self.close_epoch()
        host, port = self.address
        credentials = EpochCredentials(
            host, port, surroundings.random_bytes(TOKEN_BYTES), identity
        )
        epoch = Epoch(credentials, lease_limit_seconds, on_first_lease, first_sequences)
        with self._lock:
            self._epoch = self._last = epoch
        return credentials

    def close_epoch(self) -> EpochLeases | None:
        """End the open epoch and return its leases for the report check; None when no epoch is
        open.

        To be called before the transaction is ended, on success and on failure alike: from here on
        nothing is leased, no ``on_first_lease`` is running, and nothing that a task reports
        changes ``failure``. (A task that is still sending when the transaction is aborted is
        refused as fenced, which would tell the wrong story.)
        """
        with self._lock:
            epoch, self._epoch = self._epoch, None
        return epoch.close() if epoch else None

    @property
    def failure(self) -> OncewardError | None:
        """The reason why the open epoch, or the last one, must be aborted: what a task or
        ``on_first_lease`` raised, else :class:`EpochPoisoned` with the reason. None while all is
        well."""
        epoch = self._last
        return epoch.failure if epoch else None

    def longest_held(self) -> float:
        """Return for how many seconds the open epoch's oldest lease has been held; 0 for none."""
        epoch = self._epoch
        return epoch.longest_held() if epoch else 0.0

    def poison(self, cause: str | OncewardError) -> None:
        """Stop every task of the open epoch, for a reason of the driver's own (a timeout, say)."""
        epoch = self._epoch
        if epoch is None:
            return
        if isinstance(cause, OncewardError):
            epoch.poison(cause.message, cause)
        else:
            epoch.poison(cause)

    def close(self) -> None:
        """End the open epoch and stop listening; all threads and sockets are gone afterwards."""
        self.close_epoch()
        self._listener.close()

    def _admit(self, sock: socket.socket, token: bytes, task: TaskAttempt) -> bool:
        """Serve a connection that shows the open epoch's token; return whether it does."""
        # A task of epoch N that arrives when N + 1 is open has an old token: it gets nowhere near
        # N + 1.
        epoch = self._epoch
        if epoch is None or not hmac.compare_digest(token, epoch.credentials.token):
            return False
        epoch.admit(sock, task)
        return True

    def _tick(self, now: float) -> None:
        epoch = self._epoch
        if epoch is not None:
            epoch.tick(now)
