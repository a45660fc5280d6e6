"""What stands in the place of names in the sinks' modules, where these look at frames as only Spark has them.

As :mod:`simulation.world.files.stand_ins`.
"""

from __future__ import annotations

from typing import Any

from simulation.world.targets.row_stream import PYARROW


def _nothing(*_: Any, **__: Any) -> None:
    """The model's frames are what they should be."""


STAND_INS: list[tuple[str, str, Any]] = [
    ("onceward.sinks.two_phase", "must_be_a_frame", _nothing),
    ("onceward.sinks.fan_out", "must_be_a_frame", _nothing),
    ("onceward.sinks.write_ahead.row_files", "pa", PYARROW),
    ("onceward.sinks.write_ahead.chunks", "pa", PYARROW),
]
