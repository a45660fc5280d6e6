"""The Python that Spark's workers run is the driver's in local mode; where it lacks onceward, that
is said.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from streaming_pipeline import Pipeline

from onceward.errors import WorkerPythonMismatch
from onceward.spark.session.settings import use_the_drivers_python


@pytest.mark.parametrize(
    "program", ["exec {python} -I -S", None], ids=["without onceward", "not there"]
)
def test_an_unfit_python_is_named(
    pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str | None
):
    python = tmp_path / "python3"
    if program is not None:
        python.write_text(f'#!/bin/sh\n{program.format(python=sys.executable)} "$@"\n')
        python.chmod(0o755)
    monkeypatch.setattr(pipeline.spark.sparkContext, "pythonExec", str(python))
    pipeline.feed(10)
    error = pipeline.refused(batch_attempts=1)
    assert type(error) is WorkerPythonMismatch
    assert "PYSPARK_PYTHON" in error.next_step
    monkeypatch.undo()
    pipeline.run()
    pipeline.assert_exactly_once(ledger_records=1)


def test_nobody_chose_a_python(spark: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "python3")
    use_the_drivers_python(spark.sparkContext)
    assert spark.sparkContext.pythonExec == "python3", (
        "PYSPARK_PYTHON is set here, and is somebody's choice"
    )
    monkeypatch.delenv("PYSPARK_PYTHON")
    use_the_drivers_python(spark.sparkContext)
    assert spark.sparkContext.pythonExec == sys.executable


def test_on_a_cluster_nothing_is_changed(spark: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("PYSPARK_PYTHON")
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "python3")
    monkeypatch.setattr(spark.sparkContext, "master", "spark://somewhere:7077")
    use_the_drivers_python(spark.sparkContext)
    assert spark.sparkContext.pythonExec == "python3"
