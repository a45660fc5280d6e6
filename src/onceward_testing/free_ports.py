"""Picks TCP ports for brokers that nobody else is likely to take, also while a broker is down and
comes back.

Called by :mod:`onceward_testing.local_kafka`. The usual trick (bind port 0, close, use what the
kernel gave) hands out *ephemeral* ports, from which the kernel also serves outgoing connections:
while a broker is down, any client on the machine may be given its port, a client that keeps trying
to reconnect may even connect to itself, and the broker can then never come back. So ports are
drawn below the ephemeral range.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Sequence
from pathlib import Path

_EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST_PORT = 15_000
_USUAL_EPHEMERAL_START = 32_768  # Linux's default; macOS and BSD begin higher
_ATTEMPTS = 200


def free_ports(count: int, host: str = "127.0.0.1", within: range | None = None) -> list[int]:
    """Return ``count`` different ports that could be bound on ``host`` a moment ago.

    Another process may still take one before it is used: the caller must be ready for a bind
    failure.

    :param within: for a server that listens nowhere else. None: below the ephemeral range.
    """
    highest = min(_ephemeral_start(), _USUAL_EPHEMERAL_START) - 1
    chooser = (
        random.SystemRandom()
    )  # not the shared generator: tests that seed it would all draw the same ports
    ports: list[int] = []
    for _ in range(_ATTEMPTS):
        if len(ports) == count:
            return ports
        if within is not None:
            candidate = chooser.choice(within)
        else:
            candidate = (
                chooser.randint(_LOWEST_PORT, highest) if highest > _LOWEST_PORT + 1_000 else 0
            )
        port = _try_bind(host, candidate)
        if port is not None and port not in ports:
            ports.append(port)
    raise OSError(
        f"found only {len(ports)} of {count} free ports on {host} in {_ATTEMPTS} attempts"
    )


def taken_ports(ports: Sequence[int], host: str = "127.0.0.1") -> list[int]:
    """Return those of ``ports`` on which somebody listens.

    What a server that has ended left behind does not count.
    """
    return [port for port in ports if _try_bind(host, port, reuse=True) is None]


def _ephemeral_start() -> int:
    try:
        return int(_EPHEMERAL_RANGE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return _USUAL_EPHEMERAL_START


def _try_bind(host: str, port: int, *, reuse: bool = False) -> int | None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        if reuse:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Java's server sockets
        try:
            probe.bind((host, port))
        except OSError:
            return None
        return int(probe.getsockname()[1])
