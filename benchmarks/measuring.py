"""One order to a contender at a time, and what it cost. Called by :mod:`rounds`, :mod:`scale`,
:mod:`state` and :mod:`nexmark`.
"""

from __future__ import annotations

import contextlib
import re
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from benchmarks.contender_process import ContenderProcess, ContenderProcesses
from benchmarks.contenders import Contender
from benchmarks.cpu import CpuMeter, CpuSeconds
from benchmarks.local_broker import LocalBroker
from benchmarks.plan import SOURCE_PARTITIONS
from benchmarks.topics import VALUE_BYTES, Topics

_SETTLE_SECONDS = 1.0
_PEAK_MEMORY = re.compile(r"^VmHWM:\s+(\d+) kB$", re.MULTILINE)


class Measured(NamedTuple):
    """What a contender answered, the seconds it took and the CPU it used, the broker's too."""

    answer: dict[str, Any]
    wall_s: float
    cpu: CpuSeconds


@contextlib.contextmanager
def measured(
    contenders: Sequence[Contender], broker: LocalBroker, say: Callable[[str], None]
) -> Iterator[Measuring]:
    """Start ``contenders``, which end with the block.

    :raises ContenderFailed: one did not come up.
    """
    say(f"starting {len(contenders)} contenders …")
    with (
        tempfile.TemporaryDirectory(prefix="onceward-bench-") as folder,
        ContenderProcesses(contenders, Path(folder)) as processes,
    ):
        yield Measuring(processes, broker, say)


class Measuring:
    """The topics of a run and its contenders, by name, each with a meter.

    :param say: is told about topics that are filled.
    """

    def __init__(
        self,
        processes: Mapping[str, ContenderProcess],
        broker: LocalBroker,
        say: Callable[[str], None],
    ) -> None:
        self.topics = Topics(broker.bootstrap_servers)
        self._processes = processes
        self._meters = {
            name: CpuMeter(process.pid, process.jvm_pid, broker.pid)
            for name, process in processes.items()
        }
        self._bootstrap_servers = broker.bootstrap_servers
        self._say = say
        self._run_id = uuid.uuid4().hex[:8]
        self._turns = 0
        self._filled: dict[tuple[int, int, int, float], str] = {}

    def source(
        self,
        records: int,
        value_bytes: int = VALUE_BYTES,
        partitions: int = SOURCE_PARTITIONS,
        hot_share: float = 0.0,
    ) -> str:
        """Return the topic with so many records, which is made once; see :meth:`Topics.fill`."""
        shape = records, value_bytes, partitions, hot_share
        if shape not in self._filled:
            name = f"bench-{self._run_id}-input-{len(self._filled)}"
            self._say(f"writing {records:,} records to topic {name} …")
            self.topics.create(name, partitions)
            self.topics.fill(name, records, value_bytes=value_bytes, hot_share=hot_share)
            self._filled[shape] = name
        return self._filled[shape]

    @contextlib.contextmanager
    def output(self, partitions: int) -> Iterator[str]:
        """A new topic, for a turn; checkpoint and pipeline are called as it is."""
        with self.outputs(partitions, 1) as names:
            yield names[0]

    @contextlib.contextmanager
    def outputs(self, partitions: int, pipelines: int) -> Iterator[list[str]]:
        """New topics, for a turn, one for each pipeline."""
        self._turns += 1
        first = f"bench-{self._run_id}-{self._turns}"
        names = [first, *(f"{first}-{number}" for number in range(1, pipelines))]
        for name in names:
            self.topics.create(name, partitions)
        time.sleep(_SETTLE_SECONDS)
        yield names
        for name in names:
            self.topics.delete(name)

    def copy(self, contender: str, **order: Any) -> Measured:
        """Have ``contender`` copy a topic; see :meth:`job.Job.copy`."""
        process, meter = self._processes[contender], self._meters[contender]
        cpu, wall = meter.read(), time.perf_counter()
        answer = process.tell("copy", bootstrap_servers=self._bootstrap_servers, **order)
        wall_s = time.perf_counter() - wall
        used = meter.read().since(cpu)
        process.tell("collect_garbage")
        return Measured(answer, wall_s, used)

    def worker_peak_mb(self, contender: str) -> float:
        """Return the most memory that a Python worker of ``contender`` has had, of those that
        live: the kernel's ``VmHWM``; 0 where there is none.
        """
        jvm = psutil.Process(self._processes[contender].jvm_pid)
        peaks = [0.0]
        for worker in jvm.children(recursive=True):
            with contextlib.suppress(OSError):
                found = _PEAK_MEMORY.search(Path(f"/proc/{worker.pid}/status").read_text())
                peaks.append(int(found[1]) / 1024 if found else 0.0)
        return max(peaks)
