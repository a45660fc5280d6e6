"""What was measured as pictures in SVG, for pages. Called by :mod:`__main__`, with ``--write``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.figures import ShapeFigures
from benchmarks.latency_figures import LatencyFigures
from benchmarks.nexmark import NexmarkFigures
from benchmarks.plan import ONCEWARD, SOURCE_PARTITIONS, SPARK_TUNED, LatencyPlan
from benchmarks.start import StartFigures

_OURS, _OTHERS, _LIGHT = "#0b6e99", "#8a8f98", 0.45
_WIDTH_INCHES, _BAR_INCHES, _TITLE_INCHES = 9.0, 0.42, 1.1


def throughput(path: Path, shapes: Sequence[ShapeFigures]) -> None:
    """CPU of a record by contender, pipeline and broker, a plot for each shape."""
    rows = sum(len(shape.contenders) for shape in shapes)
    with _figure(path, len(shapes), rows) as axes:
        for plot, figures in zip(axes, shapes, strict=True):
            shape = figures.shape
            plot.set_title(
                f"{SOURCE_PARTITIONS} partitions to {shape.output_partitions}, batches of "
                f"{shape.batch_records:,}: CPU in µs a record (dark: the pipeline's, light: the "
                "broker's)",
                fontsize=9,
                loc="left",
            )
            _bars(
                plot,
                {
                    name: (
                        (row.pipeline_us, row.broker_us),
                        f"{row.total_us:.1f} µs, {row.records_per_s / 1e6:.2f} M records/s",
                    )
                    for name, row in figures.contenders.items()
                },
            )


def latency(path: Path, plan: LatencyPlan, figures: Mapping[str, LatencyFigures]) -> None:
    """Send to visible by contender, p50 and what p99 has beyond it."""
    with _figure(path, 1, len(figures)) as (plot,):
        plot.set_title(
            f"Send to visible at {plan.rate:,} records/s in ms (dark: p50, light: p99)",
            fontsize=9,
            loc="left",
        )
        _bars(
            plot,
            {
                name: (
                    (row.p50_ms, row.p99_ms - row.p50_ms),
                    f"{row.p50_ms:.0f} / {row.p99_ms:.0f} ms",
                )
                for name, row in figures.items()
            },
        )


def starts(path: Path, figures: Sequence[StartFigures]) -> None:
    """Seconds to the first commit of a process, on an empty checkpoint and after ``kill -9``."""
    with _figure(path, 2, 2 * len(figures)) as (first, again):
        first.set_title("Start to first commit, seconds", fontsize=9, loc="left")
        again.set_title("kill -9 to next commit, seconds", fontsize=9, loc="left")
        _bars(first, {row.contender: ((row.first_s,), f"{row.first_s:.1f} s") for row in figures})
        _bars(again, {row.contender: ((row.again_s,), f"{row.again_s:.1f} s") for row in figures})


def beside_spark(path: Path, title: str, rows: Mapping[str, tuple[float, float]]) -> None:
    """Seconds of Spark's own sink and of Onceward, a plot for each of ``rows``."""
    with _figure(path, len(rows), 2 * len(rows)) as axes:
        for plot, (name, (spark, ours)) in zip(axes, rows.items(), strict=True):
            plot.set_title(f"{title}: {name}", fontsize=9, loc="left")
            _bars(
                plot,
                {
                    SPARK_TUNED: ((spark,), f"{spark:.2f} s"),
                    ONCEWARD: ((ours,), f"{ours:.2f} s, {ours / spark:.2f} times"),
                },
            )


def nexmark(path: Path, queries: Sequence[NexmarkFigures]) -> None:
    """Cores times seconds of each contender, a plot for each query."""
    with _figure(path, len(queries), sum(len(row.wall_s) for row in queries)) as axes:
        for plot, row in zip(axes, queries, strict=True):
            plot.set_title(f"Nexmark {row.query}: cores × seconds", fontsize=9, loc="left")
            _bars(
                plot,
                {
                    name: ((used,), f"{used:.1f}, {row.wall_s[name]:.1f} s")
                    for name, used in row.cores_times_s.items()
                },
            )


def _bars(plot: Axes, rows: Mapping[str, tuple[Sequence[float], str]]) -> None:
    """A bar of parts for each contender, from above, with a text at its end."""
    longest = max(sum(parts) for parts, _ in rows.values())
    for at, (name, (parts, text)) in enumerate(rows.items()):
        left = 0.0
        for number, part in enumerate(parts):
            plot.barh(
                at,
                part,
                left=left,
                height=0.7,
                color=_OURS if name.startswith(ONCEWARD) else _OTHERS,
                alpha=1.0 if number == 0 else _LIGHT,
            )
            left += part
        plot.text(left + longest * 0.01, at, text, va="center", fontsize=8)
    plot.set_yticks(range(len(rows)), list(rows), fontsize=8)
    plot.invert_yaxis()
    plot.set_xlim(0, longest * 1.3)
    plot.tick_params(axis="x", labelsize=8)
    for side in ("top", "right"):
        plot.spines[side].set_visible(False)


@contextmanager
def _figure(path: Path, plots: int, rows: int) -> Iterator[Sequence[Axes]]:
    """Plots under one another, written to ``path``: the same figures make the same bytes."""
    height = rows * _BAR_INCHES + plots * _TITLE_INCHES
    with rc_context(
        {"svg.hashsalt": path.name, "svg.fonttype": "none", "font.family": "sans-serif"}
    ):
        figure = Figure(figsize=(_WIDTH_INCHES, height), layout="constrained")
        found = figure.subplots(plots, squeeze=False)
        yield [row[0] for row in found]
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format="svg", metadata={"Date": None})
