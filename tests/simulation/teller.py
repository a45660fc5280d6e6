"""Tells seeds on demand, in an OS process of its own, by the copy of the product that stands on
its path.

What is asked comes in as a line of JSON, and what became of it goes out as one: so that
``mutants`` can ask two copies of the product for one story. The first line that goes out names the
copy.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

Seed = tuple[str, int, dict[str, Any], list[str], bool]
"""Pipeline, number, what is not as the seed says, how kinds of faults begin, if they are to be
drawn of these, and whether it is aimed at one of them in one step: in any, or in that which is
named as in ``net:held|commit``.
"""
SECONDS_TO_BEGIN = 60.0
_STRIDE = 7_919
"""A prime: one after the other, aims are far apart."""
TESTS = Path(__file__).resolve().parents[1]


class Told(NamedTuple):
    """What became of a seed. ``broken``: the simulation itself could not go on."""

    violations: list[str]
    broken: bool
    batches: int
    cpu_seconds: float


class Teller:
    """A process that tells seeds by the product in ``source``. Begun when it is asked first, and
    again when it hung.
    """

    def __init__(self, source: Path) -> None:
        self._source = source
        self._process: subprocess.Popen[bytes] | None = None
        self._rest = b""

    def tell(self, seed: Seed, limit: float) -> Told | None:
        """None: it took longer than ``limit``, and was ended.

        :raises RuntimeError: the process ended by itself, or it tells of another copy.
        """
        process = self._process or self._begin()
        assert process.stdin is not None
        process.stdin.write(json.dumps(seed).encode() + b"\n")
        process.stdin.flush()
        answer = self._line(process, limit)
        if answer is None:
            self.end()
            return None
        return Told(*json.loads(answer))

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process, self._rest = None, b""

    def _begin(self) -> subprocess.Popen[bytes]:
        path = os.pathsep.join([str(self._source), str(TESTS)])
        environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
        self._process = process = subprocess.Popen(
            [sys.executable, "-m", "simulation.teller"],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        found = self._line(process, SECONDS_TO_BEGIN)
        wanted = self._source / "onceward" / "__init__.py"
        if found is None or Path(json.loads(found)) != wanted:
            self.end()
            raise RuntimeError(f"the stories are told by {found!r}, not by {wanted}")
        return process

    def _line(self, process: subprocess.Popen[bytes], limit: float) -> bytes | None:
        assert process.stdout is not None
        until = time.monotonic() + limit
        while b"\n" not in self._rest:
            ready, _, _ = select.select(
                [process.stdout], [], [], max(0.0, until - time.monotonic())
            )
            if not ready:
                return None
            part = os.read(process.stdout.fileno(), 1 << 20)
            if not part:
                self.end()
                raise RuntimeError("the process that tells stories has ended")
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\n")
        return line


def _serve() -> None:
    import gc

    import onceward
    from simulation.run import simulate_setting

    sys.stdout.write(json.dumps(str(onceward.__file__)) + "\n")
    sys.stdout.flush()
    for line in sys.stdin:
        seed = json.loads(line)
        began = time.process_time()
        outcome = simulate_setting(_setting(*seed))
        told = Told(
            outcome.violations,
            outcome.broken is not None,
            outcome.batches,
            round(time.process_time() - began, 4),
        )
        sys.stdout.write(json.dumps(told) + "\n")
        sys.stdout.flush()
        if not seed[1] % 20:
            gc.collect()


def _setting(
    pipeline: str, number: int, changes: dict[str, Any], groups: list[str], aimed: bool
) -> Any:
    from simulation import swarm
    from simulation.among import among

    aim = None
    if aimed:
        aims = [
            aim for aim in swarm.part_of(pipeline).aims if "|".join(aim).startswith(tuple(groups))
        ]
        aim = aims[number * _STRIDE % len(aims)]
    setting = swarm.draw(number, pipeline, aim).changed(**changes)
    return among(setting, groups) if groups and not aimed else setting


if __name__ == "__main__":
    _serve()
