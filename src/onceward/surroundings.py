"""A process's surroundings: time, pauses, threads and chance, in one place.

Whatever decides (the engine, transactions, the sequencer, ledgers, the driver's side of sinks)
uses these, and not :mod:`time`, :mod:`threading` or :mod:`secrets` themselves, so that
``tests/simulation`` can replace them: there time is counted, a thread is a stack that is switched
to, and chance is a seed. Code calls ``surroundings.sleep(…)``, by the module, so that the
replacement is called.

A lock that nobody holds while waiting for something may be Python's own.
"""

from __future__ import annotations

import os
import queue
import random
import secrets
import threading
import time

monotonic = time.monotonic
"""Seconds, as :func:`time.monotonic`."""

wall_clock = time.time
"""Seconds since 1970, as :func:`time.time`; it may be set, forwards and back."""

wall_clock_ns = time.time_ns
"""The same in nanoseconds."""

sleep = time.sleep

Thread = threading.Thread
Event = threading.Event
RLock = threading.RLock
"""For whoever waits with the lock in his hand."""

SimpleQueue = queue.SimpleQueue

process_id = os.getpid

jitter = random.uniform
"""Between two numbers, for pauses; no secret."""

random_below = secrets.randbelow
random_bits = secrets.randbits
random_bytes = secrets.token_bytes
