"""What ``onceward bench`` computes from its runs, and the records it makes: the pure parts."""

from __future__ import annotations

import numpy as np
import pytest

from onceward.cli.bench.display import _rounded
from onceward.cli.bench.encoder import EncoderFigures, _kafka_python, _measured, _onceward
from onceward.cli.bench.figures import CONTENDERS, ONCEWARD, SOURCE, SPARK_SINK, Run, summarise
from onceward.cli.bench.records import blocks, numbers_of, sample

RECORDS = 1_000_000


def a_run(contender: str, round_number: int, wall_s: float, *, jvm_s: float = 1.0, broker_s: float = 1.0) -> Run:
    return Run(
        contender=contender,
        round=round_number,
        records=RECORDS,
        wall_s=wall_s,
        driver_cpu_s=0.25,
        jvm_cpu_s=jvm_s,
        workers_cpu_s=0.5,
        broker_cpu_s=broker_s,
        batch_s=wall_s / 20,
    )


def rounds_of(*walls: tuple[float, float, float]) -> list[Run]:
    return [
        a_run(contender, number, wall)
        for number, of_round in enumerate(walls, start=1)
        for contender, wall in zip(CONTENDERS, of_round, strict=True)
    ]


def test_ratios_are_taken_within_a_round_before_the_median() -> None:
    # The machine was four times slower in round 2: medians of each contender alone would say 4 to 2.
    runs = rounds_of((0.5, 2.0, 1.0), (2.0, 8.0, 16.0), (1.0, 4.0, 4.0))

    assert summarise(runs).throughput_ratio == pytest.approx(1.0)


def test_a_faster_sink_has_a_throughput_ratio_above_one() -> None:
    assert summarise(rounds_of((0.5, 3.0, 2.0))).throughput_ratio == pytest.approx(1.5)


def test_cpu_is_told_per_record_and_adds_up() -> None:
    figures = summarise(rounds_of((1.0, 2.0, 2.0))).contenders[SPARK_SINK]

    assert (figures.driver_us, figures.jvm_us, figures.workers_us) == pytest.approx((0.25, 1.0, 0.5))
    assert figures.spark_us == pytest.approx(1.75)
    assert figures.total_us == pytest.approx(figures.spark_us + figures.broker_us)


def test_the_cost_beyond_the_source_takes_the_source_off_both_sinks() -> None:
    runs = [
        a_run(SOURCE, 1, 1.0, jvm_s=1.0, broker_s=0.25),  # 2.0 s of CPU in all
        a_run(SPARK_SINK, 1, 2.0, jvm_s=4.0, broker_s=1.25),  # 6.0
        a_run(ONCEWARD, 1, 2.0, jvm_s=2.0, broker_s=1.25),  # 4.0
    ]

    summary = summarise(runs)

    assert summary.cpu_ratio == pytest.approx(4 / 6)
    assert summary.beyond_source_cpu_ratio == pytest.approx((4 - 2) / (6 - 2))


def test_a_round_without_one_of_the_contenders_is_no_result() -> None:
    runs = rounds_of((1.0, 1.0, 1.0), (1.0, 1.0, 1.0))

    with pytest.raises(ValueError, match="argument"):
        summarise([run for run in runs if not (run.contender == ONCEWARD and run.round == 2)])


def test_records_carry_their_numbers_whatever_the_block() -> None:
    numbers = [numbers_of(values) for _, values in blocks(120_000, 16)]

    assert np.array_equal(np.concatenate(numbers), np.arange(120_000))


def test_the_same_seed_makes_the_same_records() -> None:
    first, again, other = sample(500, 100), sample(500, 100), sample(500, 100, seed=2)

    assert (first.keys, first.values) == (again.keys, again.values)
    assert first.values != other.values
    assert {len(value) for value in first.values} == {100}
    assert first.columns.value.to_pylist() == first.values
    assert first.columns.key.to_pylist() == first.keys


@pytest.mark.parametrize("encode", [_onceward, _kafka_python])
def test_encoders_are_measured_in_records_and_payload_bytes_of_cpu_time(encode: object) -> None:
    rows = sample(2_000, 100)
    name = "onceward" if encode is _onceward else "kafka-python"

    figures: EncoderFigures = _measured(name, encode, rows, 100)  # type: ignore[arg-type]

    assert figures.records_per_cpu_s > 0
    assert figures.mb_per_cpu_s * 1e6 / figures.records_per_cpu_s == pytest.approx(rows.payload_bytes / 2_000)


def test_the_json_line_claims_four_digits_at_most() -> None:
    assert _rounded({"a": [1.23456, 10_000_000], "b": {"c": 123456.7}}) == {
        "a": [1.235, 10_000_000],
        "b": {"c": 123500.0},
    }
