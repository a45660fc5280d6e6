"""Waits that end early once they are pointless: ``query.stop()``, an epoch that is poisoned.

Used by everything that waits inside a batch, in the driver or in a task. The check is set once
(:func:`asking`, around the batch), and made by every wait below it in the same thread
(:func:`ask`), however deep: so no conversation has to be handed the check, and none can forget it.

A wait has a deadline of its own all the same. And the steps of one undertaking have one together
(:func:`within`): that each of ten has two minutes must not add up to twenty.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from queue import Empty, SimpleQueue
from typing import Any, Generic, ParamSpec, TypeVar

from onceward import surroundings

_ASK_EVERY_S, _DROPPING_S = 0.2, 10.0
_SHORTEST_S = 1.0
"""So long a call is waited for, whoever has used up the time of the whole before it began."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0

_P = ParamSpec("_P")
_T = TypeVar("_T")

ShouldStop = Callable[[], None]
"""Called often while something waits; it raises when the waiting has become pointless."""

_asked: ContextVar[tuple[ShouldStop, ...]] = ContextVar("asked", default=())
_drops: ContextVar[bool] = ContextVar("drops", default=False)
_ends_at: ContextVar[float] = ContextVar("ends_at", default=float("inf"))


@contextmanager
def _set(variable: ContextVar[_T], value: _T) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


@contextmanager
def asking(*should_stop: ShouldStop) -> Iterator[None]:
    """Make each wait of this thread call ``should_stop`` several times a second, in the block."""
    with _set(_asked, (*_asked.get(), *should_stop)):
        yield


@contextmanager
def dropping() -> Iterator[None]:
    """Make the checks that hold here only after ten seconds, inside the block: a query that is
    stopped drops what it has prepared, which would keep locks, or room, until the next start.
    """
    held, begins = _asked.get(), surroundings.monotonic() + _DROPPING_S

    def late() -> None:
        if surroundings.monotonic() > begins:
            for should_stop in held:
                should_stop()

    # Once for all that is dropped together
    if held and not _drops.get():
        with _set(_asked, (late,)), _set(_drops, True):
            yield
    else:
        yield


def ask() -> None:
    """Make the checks that hold here.

    :raises Exception: what a check raises: the wait is pointless.
    """
    question = _asked.get()
    if not question:
        return
    # An answer may have to wait for a broker itself
    with _set(_asked, ()):
        for should_stop in question:
            should_stop()


def carried(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Return ``function`` with the checks that hold here, for another thread."""
    here = _asked.get()

    def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        with asking(*here):
            return function(*args, **kwargs)

    return call


@contextmanager
def within(timeout_ms: float) -> Iterator[None]:
    """Let no deadline of this thread be later than ``timeout_ms`` from now, inside the block."""
    with _set(_ends_at, ends_at(timeout_ms)):
        yield


def ends_at(timeout_ms: float) -> float:
    """Return when a wait of ``timeout_ms`` from now ends (monotonic), or :func:`within` sooner."""
    return min(_ends_at.get(), surroundings.monotonic() + timeout_ms / 1000)


def pause(seconds: float) -> None:
    """Sleep, and make the checks meanwhile."""
    until = surroundings.monotonic() + seconds
    while (left := until - surroundings.monotonic()) > 0:
        ask()
        surroundings.sleep(min(left, _ASK_EVERY_S) if _asked.get() else left)
    ask()


class OpenedOnce(Generic[_T]):
    """A property that asks somebody outside when it is first read, and is kept in the object.

    Until Python 3.11 ``functools.cached_property`` holds one lock for all objects of its class
    meanwhile: a catalog that does not answer would hold up tables of other catalogs.
    """

    def __init__(self, ask: Callable[[Any], _T]) -> None:
        self._ask, self._name = ask, ask.__name__

    def __get__(self, of: Any, owner: type) -> _T:
        found = vars(of)[self._name] = self._ask(of)
        return found


class GrowingPauses:
    """Growing pauses, until the time is over."""

    def __init__(self, seconds: float) -> None:
        self._ends = surroundings.monotonic() + seconds
        self._pause = _FIRST_PAUSE_S

    @property
    def is_over(self) -> bool:
        """Whether the time is over."""
        return surroundings.monotonic() >= self._ends

    def wait(self) -> bool:
        """Wait a little; False when the time is over."""
        left = self._ends - surroundings.monotonic()
        if left <= 0:
            return False
        pause(min(self._pause, left))
        self._pause = min(2 * self._pause, _LONGEST_PAUSE_S)
        return True


def in_a_thread(call: Callable[[], _T], name: str) -> Future[_T]:
    """Have ``call`` made by a thread of its own, which holds up no end of this process."""
    answer: Future[_T] = Future()

    def run() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:  # noqa: BLE001 — for whoever takes the result
            answer.set_exception(error)

    surroundings.Thread(target=run, name=name, daemon=True).start()
    return answer


def in_time(
    call: Callable[[], _T],
    timeout_s: float,
    name: str,
    *,
    late: Exception,
    abandon: Callable[[], None],
) -> _T:
    """Return what ``call`` returns, made by a thread of that ``name``: for a client whose own time
    limit is none for the whole.

    :param late: raised where it has not returned within ``timeout_s``, or :func:`within` less:
        a second at least, so that what hangs takes nothing from the next, a ledger that is well.
    :param abandon: called where it is left behind, as late, or as a check has ended the wait. What
        it uses is of no use to anybody else from then on.
    """
    answer = in_a_thread(call, name)
    left_s = ends_at(timeout_s * 1000) - surroundings.monotonic()
    try:
        return result(answer, max(left_s, min(timeout_s, _SHORTEST_S)))
    except FutureTimeoutError:
        if answer.done():
            return answer.result()
        raise late from None
    finally:
        if not answer.done():
            abandon()


def result(answer: Future[_T], timeout_s: float) -> _T:
    """Return the result of ``answer``, and make the checks meanwhile.

    :raises TimeoutError: nothing within ``timeout_s``.
    """
    # Not its result: a TimeoutError of the call's own would be taken for no answer yet
    _patiently(answer.exception, FutureTimeoutError, timeout_s)
    return answer.result()


def next_in(queue: SimpleQueue[_T], timeout_s: float) -> _T:
    """Return what is put into ``queue`` next, and make the checks meanwhile.

    :raises queue.Empty: nothing within ``timeout_s``.
    """
    return _patiently(lambda seconds: queue.get(timeout=seconds), Empty, timeout_s)


def _patiently(wait: Callable[[float], _T], nothing: type[Exception], timeout_s: float) -> _T:
    until = surroundings.monotonic() + timeout_s
    while True:
        ask()
        left = until - surroundings.monotonic()
        if left <= _ASK_EVERY_S or not _asked.get():
            return wait(max(0.0, left))
        with suppress(nothing):
            return wait(_ASK_EVERY_S)


def probe_if_idle(
    sock: socket.socket, *, idle_s: int = 60, every_s: int = 15, times: int = 4
) -> None:
    """Have the kernel ask whether the other end is there, once nothing was said for a while.

    Load balancers, NAT gateways and firewalls drop, without a word, what has been idle for four
    minutes (Azure) or a few more, and the kernel's own first probe comes after two hours.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", idle_s),
        ("TCP_KEEPALIVE", idle_s),  # its name in macOS
        ("TCP_KEEPINTVL", every_s),
        ("TCP_KEEPCNT", times),
    ):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class Cut:
    """Ends the connection of a request that nobody waits for any more."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._happened = False

    def watch(self, made: socket.socket) -> None:
        """Keep a duplicate: TLS takes the socket itself away from whoever holds it."""
        with self._lock:
            self._close()
            self._socket = made.dup()
            if self._happened:
                self._end()

    def now(self) -> None:
        """End it, and the one that is watched next."""
        with self._lock:
            self._happened = True
            self._end()

    def forget(self) -> None:
        """End nothing any more."""
        with self._lock:
            self._close()

    def _end(self) -> None:
        if self._socket is not None:
            # it is not connected any more
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def _close(self) -> None:
        made, self._socket = self._socket, None
        if made is not None:
            made.close()


def cut_in_time(call: Callable[[Cut], _T], timeout_s: float, name: str, *, late: Exception) -> _T:
    """Return what ``call`` returns, as :func:`in_time` does, and end the connection that it has
    watched where it is left behind: a time limit of a socket is one for each piece, and a server
    that sends a byte a second keeps to that for hours.
    """
    cut = Cut()

    def run() -> _T:
        try:
            return call(cut)
        finally:
            cut.forget()

    return in_time(run, timeout_s, name, late=late, abandon=cut.now)
