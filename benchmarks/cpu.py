"""CPU seconds of a pipeline and of a broker, counted from outside. Called by :mod:`rounds` and
:mod:`latency`.

Spark is the Python process of a driver, its JVM, and the Python workers below that. PySpark's
daemon ignores the signal of a child's end, so Linux gives the time of a worker that has ended to
nobody: what was read of it last is kept.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import psutil


@dataclass(frozen=True, slots=True)
class CpuSeconds:
    """CPU time since the processes began; a difference of two is what an interval cost.

    ``workers`` are the Python workers; the driver's Python process is ``driver``.
    """

    driver: float
    jvm: float
    workers: float
    broker: float

    @property
    def pipeline(self) -> float:
        """Driver, JVM and Python workers together."""
        return self.driver + self.jvm + self.workers

    def since(self, earlier: CpuSeconds) -> CpuSeconds:
        """What was used between ``earlier`` and this reading."""
        return CpuSeconds(
            self.driver - earlier.driver,
            self.jvm - earlier.jvm,
            self.workers - earlier.workers,
            self.broker - earlier.broker,
        )


class CpuMeter:
    """Reads the CPU time of one pipeline, Spark in local mode say, and one broker.

    :param driver_pid: the driver's Python; 0: there is none. :param jvm_pid: Spark's JVM; 0: there
        is none. :param broker_pid: the broker's JVM.
    """

    def __init__(self, driver_pid: int, jvm_pid: int, broker_pid: int) -> None:
        self._driver = psutil.Process(driver_pid) if driver_pid else None
        self._jvm = psutil.Process(jvm_pid) if jvm_pid else None
        self._broker = psutil.Process(broker_pid)
        self._workers: dict[
            psutil.Process, float
        ] = {}  # equal by pid and start time, so a pid may come again

    def read(self) -> CpuSeconds:
        """All of it as of now; resolution is the kernel's clock tick, 10 ms."""
        return CpuSeconds(
            driver=_own(self._driver) if self._driver else 0.0,
            # With what it reaped: Hadoop starts a `chmod` for every file of a checkpoint.
            jvm=with_reaped(self._jvm) if self._jvm else 0.0,
            workers=self._read_workers(),
            broker=_own(self._broker),
        )

    def _read_workers(self) -> float:
        for worker in self._jvm.children(recursive=True) if self._jvm else ():
            self._workers[worker] = max(with_reaped(worker), self._workers.get(worker, 0.0))
        return sum(self._workers.values())


def _own(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def with_reaped(process: psutil.Process) -> float:
    """Its own CPU seconds, and those of its children that have ended and were waited for."""
    with contextlib.suppress(
        psutil.NoSuchProcess
    ):  # it ended while we looked: its parent has its time
        times = process.cpu_times()
        return float(times.user + times.system + times.children_user + times.children_system)
    return 0.0
