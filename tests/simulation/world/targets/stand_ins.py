"""What stands in the place of names in the sinks' modules, where these look at frames as only
Spark has them.

As :mod:`simulation.world.files.stand_ins`.
"""

from __future__ import annotations

from typing import Any

from simulation.kernel import current
from simulation.world.targets import spark_files
from simulation.world.targets.row_stream import PYARROW


def _nothing(*_: Any, **__: Any) -> None:
    """The model's frames are what they should be."""


class _SparkContext:
    """``SparkContext``, of whoever asks."""

    @property
    def _active_spark_context(self) -> Any:
        return current().world.files.session_for()


STAND_INS: list[tuple[str, str, Any]] = [
    ("onceward.custom.two_phase", "must_be_a_frame", _nothing),
    ("onceward.custom.fan_out", "must_be_a_frame", _nothing),
    ("onceward.files.sink", "must_be_a_frame", _nothing),
    ("onceward.files.sink", "must_know", _nothing),
    ("onceward.files.sink", "must_keep_times", _nothing),
    ("onceward.files.sink", "guarded", lambda frame, *more: frame),
    ("onceward.files.target", "check", _nothing),
    ("onceward.spark.files.file_system", "SparkContext", _SparkContext()),
    ("onceward.spark.files.file_writer", "_written", spark_files.written),
    ("onceward.files.target", "guessed_row_bytes", lambda frame: 100.0),
    ("onceward.spark.batch.job", "_watched", spark_files.watched),
    ("onceward.delivery.row_files", "pa", PYARROW),
    ("onceward.delivery.chunks", "pa", PYARROW),
]
