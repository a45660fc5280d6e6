"""The job must never outlive the demo that started it, however that one ends. Runs in the job's
process.

The demo holds the other end of the job's stdin and never writes: when it ends, also by SIGKILL,
the pipe closes, and the job kills its whole process group, JVM and local executors included.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

from onceward_testing.faults import signal_job


def die_with_the_demo() -> None:
    """Watch stdin from a thread of its own, from now on."""
    threading.Thread(target=_wait, name="lifeline", daemon=True).start()


def _wait() -> None:
    while os.read(sys.stdin.fileno(), 1):
        pass
    signal_job(signal.SIGKILL)
