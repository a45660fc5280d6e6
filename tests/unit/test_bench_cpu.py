"""CPU seconds of a process tree, as ``make bench`` counts them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import psutil

from benchmarks.cpu import CpuMeter

BURN = "import time\nwhile time.process_time() < {seconds}: pass\n"
BURN_IN_A_CHILD = (
    "import subprocess, sys\n"
    f"subprocess.run([sys.executable, '-c', {BURN.format(seconds=0.3)!r}], check=True)\n"
    "print('reaped', flush=True)\n"
    "sys.stdin.read()\n"
)


def test_the_time_of_a_worker_that_has_ended_is_not_lost() -> None:
    program = (
        f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {BURN_IN_A_CHILD!r}])"
    )
    jvm = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        assert jvm.stdout is not None
        meter = CpuMeter(driver_pid=os.getpid(), jvm_pid=jvm.pid, broker_pid=jvm.pid)
        before = meter.read()
        assert jvm.stdout.readline() == b"reaped\n"

        used = meter.read().since(before)

        assert used.workers >= 0.25
        assert used.pipeline >= used.workers
    finally:
        os.killpg(jvm.pid, signal.SIGKILL)
        jvm.communicate()


def test_a_worker_at_work_counts_for_the_workers_and_not_for_the_jvm() -> None:
    program = (
        f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', "
        f"{BURN.format(seconds=60)!r}])"
    )
    jvm = subprocess.Popen([sys.executable, "-c", program], start_new_session=True)
    try:
        meter = CpuMeter(driver_pid=os.getpid(), jvm_pid=jvm.pid, broker_pid=jvm.pid)
        before = meter.read()
        while (used := meter.read().since(before)).workers < 0.3:
            assert jvm.poll() is None

        assert used.jvm < 0.3
    finally:
        os.killpg(jvm.pid, signal.SIGKILL)
        jvm.wait()


def test_the_time_of_a_worker_whom_nobody_waited_for_stays_counted() -> None:
    """As PySpark's daemon does it: SIGCHLD ignored, so that the kernel adds a child's time to
    nobody.
    """
    program = (
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        "if os.fork() == 0:\n"
        "    while time.process_time() < 0.3: pass\n"
        "    print('burnt', flush=True)\n"
        "    sys.stdin.readline()\n"
        "    os._exit(0)\n"
        "time.sleep(600)\n"
    )
    daemon = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {program!r}])"
    jvm = subprocess.Popen(
        [sys.executable, "-c", daemon],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        assert jvm.stdout is not None
        assert jvm.stdin is not None
        meter = CpuMeter(driver_pid=os.getpid(), jvm_pid=jvm.pid, broker_pid=jvm.pid)
        assert jvm.stdout.readline() == b"burnt\n"
        before = meter.read()
        jvm.stdin.write(b"end\n")
        jvm.stdin.flush()
        while len(psutil.Process(jvm.pid).children(recursive=True)) > 1:
            time.sleep(0.05)
        assert meter.read().since(before).workers >= 0
    finally:
        os.killpg(jvm.pid, signal.SIGKILL)
        jvm.communicate()
