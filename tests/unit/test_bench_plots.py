"""The pictures and files of ``make bench ARGS="--write FOLDER"``."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest

from benchmarks import display, plots
from benchmarks.figures import Comparison, Figures, ShapeFigures
from benchmarks.latency_figures import LatencyFigures
from benchmarks.plan import FLINK, ONCEWARD, LatencyPlan, Shape
from benchmarks.start import StartFigures

SHAPE = ShapeFigures(
    Shape(16, 500_000, 1_000_000),
    {
        FLINK: Figures(500_000, 0, 1.5, 0, 1.5, 0.5, 2.0, math.nan),
        ONCEWARD: Figures(400_000, 0.1, 1.5, 0.5, 2.1, 0.4, 2.5, 900),
    },
    {FLINK: Comparison(0.8, 1.25, 1.4, 0.8, None)},
)
LATENCY = {
    name: LatencyFigures(*row, [], 1_000, 0, 0, 10, {}, {}, 0.5, 0.25, 1.0)
    for name, row in {FLINK: (126.0, 234.0, 300.0), ONCEWARD: (293.0, 564.0, 649.0)}.items()
}
STARTS = [StartFigures(FLINK, 4.0, 3.0, 1.0, 1.0), StartFigures(ONCEWARD, 22.0, 20.0, 5.5, 6.7)]


def _texts(picture: Path) -> list[str]:
    """What stands in it as text, which a reader can search."""
    return re.findall(r"<text[^>]*>([^<]*)</text>", picture.read_text())


def test_each_picture_names_contenders_and_figures(tmp_path: Path) -> None:
    plots.throughput(tmp_path / "new" / "throughput.svg", [SHAPE])
    plots.latency(tmp_path / "latency.svg", LatencyPlan((), 1_000, 40, 2, 20, 4, "4.3.1"), LATENCY)
    plots.starts(tmp_path / "start.svg", STARTS)

    found = {picture.stem: _texts(picture) for picture in tmp_path.rglob("*.svg")}
    assert any("4 partitions to 16" in text for text in found["throughput"])
    assert "2.0 µs, 0.50 M records/s" in found["throughput"]
    assert "126 / 234 ms" in found["latency"]
    assert "22.0 s" in found["start"]
    assert all({FLINK, ONCEWARD} <= set(texts) for texts in found.values())


def test_the_same_figures_make_the_same_bytes(tmp_path: Path) -> None:
    plots.throughput(tmp_path / "once" / "a.svg", [SHAPE])
    plots.throughput(tmp_path / "again" / "a.svg", [SHAPE])

    assert (tmp_path / "once" / "a.svg").read_bytes() == (
        tmp_path / "again" / "a.svg"
    ).read_bytes()


def test_a_file_has_what_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    display.json_line(tmp_path / "new" / "throughput.json", sink=[SHAPE])

    written = json.loads((tmp_path / "new" / "throughput.json").read_text())
    assert written == json.loads(capsys.readouterr().out)
    assert written["sink"][0]["contenders"][FLINK]["total_us"] == 2.0
    assert written["sink"][0]["contenders"][FLINK]["batch_ms"] is None
