"""The figures of scale, state and Nexmark, and Nexmark's judge."""

from __future__ import annotations

import json
from dataclasses import astuple, replace

import pytest

from benchmarks.bounds import measured_costs
from benchmarks.nexmark import Events, NexmarkTurn, summarise_nexmark
from benchmarks.nexmark_queries import QUERIES
from benchmarks.plan import FLINK, ONCEWARD, SPARK_TUNED
from benchmarks.scale import Cut, ScaleTurn, summarise_scale
from benchmarks.state import Stateful, StateTurn, summarise_state
from benchmarks.topics import OutputWrong


def test_ratios_are_made_round_by_round() -> None:
    cut, query = Cut(4, 1_000), Stateful("windows", 10, 5)
    spark, ours = (1.0, 2.0, 9.0), (2.0, 2.0, 9.9)

    (scaled,) = summarise_scale(
        {
            cut: {
                SPARK_TUNED: [ScaleTurn(seconds, 10, {}, 0) for seconds in spark],
                ONCEWARD: [ScaleTurn(seconds, 5, {"commit": 7}, seconds) for seconds in ours],
            }
        }
    )
    (kept,) = summarise_state(
        {
            query: {
                SPARK_TUNED: [StateTurn(seconds, 1, 1) for seconds in spark],
                ONCEWARD: [StateTurn(seconds, 2, 3) for seconds in ours],
            }
        }
    )
    (answered,) = summarise_nexmark(
        {
            "q0": {
                FLINK: [NexmarkTurn(seconds, seconds, 1) for seconds in spark],
                ONCEWARD: [NexmarkTurn(seconds, seconds, 1) for seconds in ours],
            }
        },
        ONCEWARD,
    )

    assert (scaled.spark_batch_s, scaled.batch_s, scaled.cpu_ratio) == (2, 2, 0.5)
    assert (scaled.steps_ms, scaled.worker_mb) == ({"commit": 7}, 9.9)
    assert scaled.batch_ratio == pytest.approx(1.1)
    assert kept.time_ratio == pytest.approx(1.1)
    assert (kept.batch_ratio, kept.cpu_ratio) == (2, 3)
    assert answered.onceward_to[FLINK] == pytest.approx(1.1)
    assert answered.cores_times_s == {FLINK: 2, ONCEWARD: 2}


def _events() -> Events:
    bids = [
        {"auction": auction, "bidder": 1, "price": price, "channel": "c", "date_time": at}
        for at, (auction, price) in enumerate([(123, 1_000), (5, 2_000), (123, 3_000)], 20_000)
    ]
    person = {"id": 7, "name": "n", "city": "c", "state": "s", "date_time": 20_000}
    auction = {"id": 5, "item_name": "i", "seller": 7, "category": 1, "date_time": 29_999}
    found = [{"Person": person}, *({"Bid": bid} for bid in bids), {"Auction": auction}]
    return Events([json.dumps(event).encode() for event in found])


RIGHT = {
    "q1": ({"auction": 123, "bidder": 1, "price": 908, "date_time": 20_000},),
    "q2": ({"auction": 123, "price": 1_000}, {"auction": 123, "price": 3_000}),
    "q5": tuple(
        {"started": started, "auction": 123, "num": 2} for started in range(12_000, 21_000, 2_000)
    ),
    "q7": ({"started": 20_000, "auction": 123, "bidder": 1, "price": 3_000},),
    "q8": ({"started": 20_000, "id": 7, "name": "n"},),
}


@pytest.mark.parametrize("query", ["q5", "q7", "q8"])
def test_the_judge_takes_what_is_right_and_nothing_else(query: str) -> None:
    events, rows = _events(), [json.dumps(row).encode() for row in RIGHT[query]]

    events.must_be_answered(QUERIES[query], iter(rows), "it")

    with pytest.raises(OutputWrong):
        events.must_be_answered(QUERIES[query], iter([*rows, rows[0]]), "one that repeats")
    with pytest.raises(OutputWrong):
        events.must_be_answered(QUERIES[query], iter(rows[1:]), "one that loses")


@pytest.mark.parametrize("query", ["q1", "q2"])
def test_the_judge_looks_at_every_row_of_what_has_no_windows(query: str) -> None:
    events, rows = _events(), [json.dumps(row).encode() for row in RIGHT[query]]

    with pytest.raises(OutputWrong, match="lacks"):
        events.must_be_answered(QUERIES[query], iter(rows), "one without the later events")


def test_what_the_driver_pays_grows_with_pairs() -> None:
    costs = measured_costs(partitions=20, tasks=3)
    # pages that the process has already are no growth
    assert min(astuple(replace(costs, driver_bytes=1))) > 0 <= costs.driver_bytes
    assert costs.driver_s(2_000) == pytest.approx(2 * costs.driver_s(1_000))
