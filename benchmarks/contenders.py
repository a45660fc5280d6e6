"""Who runs against whom: for each contender the sink, whose settings it keeps, and which Onceward
it imports. Pure.

Called by :mod:`__main__`. Two rows are Spark's own sink, the Java producer with its defaults
(idempotent, ``acks=all``; at least once). One reads as ``readStream.format("kafka")`` does by
itself, in a JVM as Spark starts it; the other through ``kafka_source`` in a session of
``spark_conf()``, as Onceward does. What is left between that one and Onceward is the sinks' doing
alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import onceward
from benchmarks.plan import (
    BEFORE,
    FLINK,
    LOCAL_DISK,
    LOOP,
    ONCEWARD,
    QUIX,
    SOURCE,
    SPARK_DEFAULTS,
    SPARK_LOCAL_DISK,
    SPARK_TUNED,
    STREAMS,
)
from onceward.errors import ConfigurationError

SinkKind = Literal[
    "noop", "kafka", "onceward", "flink", "flink-sql", "kafka-streams", "loop", "quix"
]
Settings = Literal["spark", "onceward", "local-disk"]


@dataclass(frozen=True, slots=True)
class Contender:
    """One pipeline. ``package_root`` is the folder from which its process imports ``onceward``.

    :param interval_ms: of one that is not Spark, between commits or checkpoints.
    """

    name: str
    sink: SinkKind
    settings: Settings
    package_root: Path
    interval_ms: int = 0

    @property
    def is_spark(self) -> bool:
        """Whether Spark runs it."""
        return not self.interval_ms


def throughput_contenders(before: Path | None, *, peers: bool = False) -> tuple[Contender, ...]:
    """Who copies topics: the source alone, Spark's own sink twice, other engines and Onceward as
    it was (if asked for) and as it is.

    Commits come as often as users of each have them: Flink's checkpoints every second, Kafka
    Streams', the loop's and Quix's transactions every 100 ms, the default of the first with
    exactly once.
    """
    here = own_package_root()
    others = _peers({FLINK: 1_000, STREAMS: 100, LOOP: 100, QUIX: 100}) if peers else ()
    tuned, ours = sink_contenders()
    return (
        *others,
        Contender(SOURCE, "noop", "onceward", here),
        Contender(SPARK_DEFAULTS, "kafka", "spark", here),
        tuned,
        *_before(before),
        ours,
    )


def latency_contenders(before: Path | None, *, peers: bool = False) -> tuple[Contender, ...]:
    """Who is timed from send to visible. At a thousand records/s a fetch is small whatever the
    consumer's settings. Flink's checkpoints come as often as a batch of Spark's ends. What Spark's
    checkpoint costs is a third of a batch, so both sinks run with ``local_disk``, too.
    """
    here = own_package_root()
    others = _peers({FLINK: 200, STREAMS: 100, LOOP: 100, QUIX: 100}) if peers else ()
    return (
        *others,
        Contender(SPARK_DEFAULTS, "kafka", "spark", here),
        Contender(SPARK_LOCAL_DISK, "kafka", "local-disk", here),
        *_before(before),
        Contender(ONCEWARD, "onceward", "onceward", here),
        Contender(LOCAL_DISK, "onceward", "local-disk", here),
    )


def sink_contenders() -> tuple[Contender, Contender]:
    """Return the two that differ in nothing but the sink."""
    here = own_package_root()
    return (
        Contender(SPARK_TUNED, "kafka", "onceward", here),
        Contender(ONCEWARD, "onceward", "onceward", here),
    )


def nexmark_contenders() -> tuple[Contender, ...]:
    """Return Flink's SQL, exactly once, and the two of :func:`sink_contenders`."""
    flink = Contender(FLINK, "flink-sql", "spark", own_package_root(), interval_ms=1_000)
    return (flink, *sink_contenders())


def own_package_root() -> Path:
    """The folder from which this process imports ``onceward``."""
    return Path(onceward.__file__).resolve().parent.parent


def package_root(checkout: Path) -> Path:
    """The folder to import ``onceward`` from in a checkout of its repository, or in a folder that
    holds the package.

    :raises ConfigurationError: there is none.
    """
    for folder in (checkout / "src", checkout):
        if (folder / "onceward" / "__init__.py").is_file():
            return folder.resolve()
    raise ConfigurationError(
        f"--before {checkout}: no package onceward in it",
        next_step="pass the folder of another checkout, such as one made by `git worktree add "
        "FOLDER COMMIT`",
    )


def _peers(intervals_ms: dict[str, int]) -> tuple[Contender, ...]:
    kinds: dict[str, SinkKind] = {
        FLINK: "flink",
        STREAMS: "kafka-streams",
        LOOP: "loop",
        QUIX: "quix",
    }
    here = own_package_root()
    return tuple(
        Contender(name, kinds[name], "spark", here, interval)
        for name, interval in intervals_ms.items()
    )


def _before(checkout: Path | None) -> tuple[Contender, ...]:
    return (
        ()
        if checkout is None
        else (Contender(BEFORE, "onceward", "onceward", package_root(checkout)),)
    )
