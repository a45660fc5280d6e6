"""What ``make bench`` runs and computes, and the records it makes: the pure parts."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from benchmarks import display
from benchmarks.display import _rounded
from benchmarks.encoder import EncoderFigures, _kafka_python, _measured, _onceward
from benchmarks.figures import Run, summarise
from benchmarks.plan import (
    BEFORE,
    ONCEWARD,
    SOURCE,
    SPARK_DEFAULTS,
    SPARK_TUNED,
    Shape,
    SinkPlan,
    shapes,
)
from benchmarks.records import blocks, numbers_of, sample
from benchmarks.start import StartFigures, StartTurn, summarise_start

RECORDS = 1_000_000
LARGE = Shape(4, 500_000, RECORDS)
CONTENDERS = (SOURCE, SPARK_TUNED, ONCEWARD)


def a_plan(
    *,
    of: tuple[Shape, ...] = (LARGE,),
    contenders: tuple[str, ...] = CONTENDERS,
    rounds: int = 1,
    warm_up: int = 0,
) -> SinkPlan:
    return SinkPlan(of, contenders, rounds, warm_up, "4.3.1")


def a_run(
    contender: str,
    round_number: int,
    wall_s: float,
    *,
    jvm_s: float = 1.0,
    broker_s: float = 1.0,
    shape: Shape = LARGE,
) -> Run:
    return Run(
        contender=contender,
        shape=shape,
        round=round_number,
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


def test_ratios_come_before_the_median() -> None:
    # The machine was four times slower in round 2: medians of each contender alone would say 4 to
    # 2.
    runs = rounds_of((0.5, 2.0, 1.0), (2.0, 8.0, 16.0), (1.0, 4.0, 4.0))

    (figures,) = summarise(a_plan(rounds=3), runs)

    assert figures.onceward_to[SPARK_TUNED].throughput_ratio == pytest.approx(1.0)


def test_a_faster_sink_is_above_one() -> None:
    (figures,) = summarise(a_plan(), rounds_of((0.5, 3.0, 2.0)))

    assert figures.onceward_to[SPARK_TUNED].throughput_ratio == pytest.approx(1.5)


def test_cpu_is_told_per_record() -> None:
    (shape,) = summarise(a_plan(), rounds_of((1.0, 2.0, 2.0)))
    figures = shape.contenders[SPARK_TUNED]

    assert (figures.driver_us, figures.jvm_us, figures.workers_us) == pytest.approx(
        (0.25, 1.0, 0.5)
    )
    assert figures.pipeline_us == pytest.approx(1.75)
    assert figures.total_us == pytest.approx(figures.pipeline_us + figures.broker_us)


def test_the_source_is_taken_off_equals_only() -> None:
    runs = [
        a_run(SOURCE, 1, 1.0, jvm_s=1.0, broker_s=0.25),  # 2.0 s of CPU in all
        a_run(SPARK_TUNED, 1, 2.0, jvm_s=4.0, broker_s=1.25),  # 6.0
        a_run(SPARK_DEFAULTS, 1, 2.0, jvm_s=5.0, broker_s=1.25),  # 7.0, and reads otherwise
        a_run(ONCEWARD, 1, 2.0, jvm_s=2.0, broker_s=1.25),  # 4.0
    ]

    (figures,) = summarise(
        a_plan(contenders=(SOURCE, SPARK_DEFAULTS, SPARK_TUNED, ONCEWARD)), runs
    )

    assert figures.onceward_to[SPARK_TUNED].cpu_ratio == pytest.approx(4 / 6)
    assert figures.onceward_to[SPARK_TUNED].beyond_source_cpu_ratio == pytest.approx(
        (4 - 2) / (6 - 2)
    )
    assert figures.onceward_to[SPARK_DEFAULTS].cpu_ratio == pytest.approx(4 / 7)
    assert figures.onceward_to[SPARK_DEFAULTS].beyond_source_cpu_ratio is None


def test_a_missing_run_is_no_result() -> None:
    runs = rounds_of((1.0, 1.0, 1.0), (1.0, 1.0, 1.0))

    with pytest.raises(ValueError, match="argument"):
        summarise(
            a_plan(rounds=2),
            [run for run in runs if not (run.contender == ONCEWARD and run.round == 2)],
        )


def test_shapes_are_figured_apart() -> None:
    wide = Shape(16, 500_000, RECORDS)
    runs = [
        *rounds_of((0.5, 2.0, 1.0)),
        a_run(SPARK_TUNED, 1, 2.0, shape=wide),
        a_run(ONCEWARD, 1, 4.0, shape=wide),
    ]

    to_4, to_16 = summarise(a_plan(of=(LARGE, wide)), runs)

    assert to_4.onceward_to[SPARK_TUNED].throughput_ratio == pytest.approx(2.0)
    assert to_16.onceward_to[SPARK_TUNED].throughput_ratio == pytest.approx(0.5)
    assert (
        to_16.contenders[SOURCE] == to_4.contenders[SOURCE]
    )  # it writes nowhere: it ran once for both


def test_every_round_has_every_contender() -> None:
    plan = a_plan(
        of=shapes((4, 16), 3_000_000, 500_000, 20_000, 10),
        rounds=2,
        contenders=(SOURCE, BEFORE, ONCEWARD),
    )

    turns = list(plan.turns())

    small = Shape(4, 20_000, 200_000)
    assert plan.shapes == (Shape(4, 500_000, 3_000_000), Shape(16, 500_000, 3_000_000), small)
    for shape in plan.shapes:
        for contender in (BEFORE, ONCEWARD):
            assert [
                turn.round for turn in turns if (turn.shape, turn.contender) == (shape, contender)
            ] == [1, 2]
    assert [turn.shape for turn in turns if turn.contender == SOURCE] == [
        plan.shapes[0],
        small,
    ] * 2
    assert (turns[0].contender, next(turn for turn in turns if turn.round == 2).contender) == (
        SOURCE,
        BEFORE,
    )


def test_the_warm_up_comes_first() -> None:
    plan = a_plan(of=shapes((4, 16), 3_000_000, 500_000, 20_000, 10), warm_up=1_000_000)

    turns = list(plan.turns())

    warm_up = [turn for turn in turns if turn.round == 0]
    assert turns[: len(warm_up)] == warm_up
    assert [(turn.shape, turn.contender) for turn in warm_up] == [
        (shape, contender)
        for shape in (Shape(4, 500_000, 1_000_000), Shape(4, 20_000, 200_000))
        for contender in CONTENDERS
    ]


def test_small_batches_can_be_left_out() -> None:
    assert shapes((4,), 1_000, 100, 0, 12) == (Shape(4, 100, 1_000),)


def test_records_carry_their_numbers() -> None:
    numbers = [numbers_of(values) for _, values in blocks(120_000, 16)]

    assert np.array_equal(np.concatenate(numbers), np.arange(120_000))


def test_the_same_seed_makes_the_same_records() -> None:
    first, again, other = sample(500, 100), sample(500, 100), sample(500, 100, seed=2)

    assert (first.keys, first.values) == (again.keys, again.values)
    assert first.values != other.values
    assert {len(value) for value in first.values} == {100}
    assert first.columns.value.to_pylist() == first.values
    assert first.columns.key.to_pylist() == first.keys


@pytest.mark.lengthy("ci")
@pytest.mark.parametrize("encode", [_onceward, _kafka_python])
def test_encoders_are_measured_in_payload(encode: object) -> None:
    rows = sample(2_000, 100)
    name = "onceward" if encode is _onceward else "kafka-python"

    figures: EncoderFigures = _measured(name, encode, rows, 100)  # type: ignore[arg-type]

    assert figures.records_per_cpu_s > 0
    assert figures.mb_per_cpu_s * 1e6 / figures.records_per_cpu_s == pytest.approx(
        rows.payload_bytes / 2_000
    )


def test_the_json_line_claims_four_digits() -> None:
    assert _rounded({"a": [1.23456, 10_000_000], "b": {"c": 123456.7}, "d": math.inf}) == {
        "a": [1.235, 10_000_000],
        "b": {"c": 123500.0},
        "d": None,
    }


def test_the_json_line_holds_what_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    plan = a_plan()

    display.json_line(encoder=[], plan=plan, sink=summarise(plan, rounds_of((1.0, 2.0, 4.0))))

    told = json.loads(capsys.readouterr().out)
    assert told["plan"]["shapes"] == [
        {"output_partitions": 4, "batch_records": 500_000, "records": RECORDS}
    ]
    assert told["sink"][0]["contenders"][ONCEWARD]["records_per_s"] == 250_000
    assert told["sink"][0]["onceward_to"][SPARK_TUNED]["throughput_ratio"] == 0.5


def test_starts_are_compared_with_the_first_contender() -> None:
    turns = {
        name: [
            StartTurn(first, 1.0, again),
            StartTurn(first + 1, 1.0, again),
            StartTurn(99.0, 1.0, 99.0),
        ]
        for name, first, again in ((SPARK_DEFAULTS, 10.0, 8.0), (ONCEWARD, 12.0, 6.0))
    }
    assert summarise_start(turns) == [
        StartFigures(SPARK_DEFAULTS, 11.0, 8.0, 1.0, 1.0),
        StartFigures(ONCEWARD, 13.0, 6.0, 13 / 11, 6 / 8),
    ]


def test_records_may_go_on_where_others_ended() -> None:
    ((_, values),) = blocks(3, 16, first=1_000)
    assert list(numbers_of(values)) == [1_000, 1_001, 1_002]


def test_blocks_are_small_where_values_are_large_and_keys_may_be_skewed() -> None:
    large = [len(values) for _, values in blocks(120, 1_000_000)]
    keys = [key for some, _ in blocks(60_000, 16, hot_share=0.9) for key in some]

    assert (sum(large), max(large)) == (120, 50)
    assert 0.89 < keys.count(b"hot") / len(keys) < 0.91
    assert [key for some, _ in blocks(60_000, 16) for key in some].count(b"hot") == 0
