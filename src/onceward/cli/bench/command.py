"""The options of ``onceward bench``, checked, and its two parts one after the other.

Registered in :mod:`onceward.cli`. Progress goes to stderr, tables and one line of JSON to stdout.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer


class Part(str, Enum):
    """What to measure."""

    ALL = "all"
    ENCODER = "encoder"
    SINK = "sink"


def bench(
    part: Annotated[Part, typer.Option(help="What to measure.")] = Part.ALL,
    records: Annotated[
        int, typer.Option(min=10_000, help="Records that each query of the sink part copies.")
    ] = 10_000_000,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; each contender runs once in each.")] = 3,
    warm_up_records: Annotated[
        int, typer.Option(min=0, help="Records that each contender copies before anything counts.")
    ] = 4_000_000,
    batch_records: Annotated[int, typer.Option(min=1_000, help="Records of one micro-batch.")] = 500_000,
    partitions: Annotated[int, typer.Option(min=1, help="Partitions of each output topic.")] = 16,
    broker_version: Annotated[str, typer.Option(help="Kafka release of the local broker.")] = "4.3.1",
) -> None:
    """Measure the encoder beside its peers, and KafkaSink beside Spark's own Kafka sink.

    Nothing else should run meanwhile. CPU time per record is the figure to trust on a machine that is not quiet.
    """
    from onceward.cli.bench import display, encoder
    from onceward.cli.bench.figures import SinkFigures, SinkPlan, summarise

    plan = SinkPlan(records, rounds, warm_up_records, batch_records, partitions, broker_version)
    encoded = []
    if part is not Part.SINK:
        display.say("encoder: one core, Arrow columns to stamped record batches, beside two peers …")
        encoded = encoder.measure()
        display.encoder_table(encoded)
    sinks: SinkFigures | None = None
    if part is not Part.ENCODER:
        from onceward.cli.bench.rounds import run_sinks  # brings Spark

        sinks = summarise(run_sinks(plan, display.say))
        display.sink_table(plan, sinks)
    display.json_line(encoded, plan, sinks)
