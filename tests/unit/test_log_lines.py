"""One line a batch, one when a pipeline opens, one when it ends: what they say, and as JSON."""

from __future__ import annotations

import doctest
import json
import logging
import threading
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from onceward import events
from onceward.engine import batch_log
from onceward.engine.ledger.admission import Admission
from onceward.engine.ledger.record import LedgerRecord
from onceward.ids import AttemptId, BatchId, PipelineId
from onceward.operate.logs import JsonFormatter

ORDERS = PipelineId("orders")


def record(**more: Any) -> LedgerRecord:
    return LedgerRecord(
        ORDERS, 41, BatchId("q", 41), (), AttemptId(7, 3), {}, 1_000, run_id="run-1", **more
    )


def test_the_example_is_true():
    assert doctest.testmod(batch_log).failed == 0


@pytest.mark.parametrize(
    ("values", "steps", "text"),
    [
        (
            {"records": 5, "bytes": 80, "seconds": 2.0, "epoch": 3, "lag": 12},
            {"plan": 0.1, "send": 1.5, "commit": 0.25, "ledger": 0.2},
            "batch 7 committed: 5 records, 80 bytes in 2.00 s (send 1.50, commit 0.25, ledger "
            "0.20), epoch 3, lag 12",
        ),
        (
            {"records": 0, "seconds": 0.5, "epoch": 3, "attempts": 2},
            {"send": 0.4},
            "batch 7 committed: 0 records in 0.50 s (send 0.40), epoch 3, 2 attempts",
        ),
        (
            {"seconds": 0.5, "replayed": True},
            {"replay": 0.4},
            "batch 7 replayed, nothing sent: it was committed, 0.50 s (replay 0.40)",
        ),
        ({"records": 1, "seconds": 0.5}, {}, "batch 7 committed: 1 records in 0.50 s"),
    ],
)
def test_the_line_of_a_batch(values: dict[str, Any], steps: dict[str, float], text: str):
    assert batch_log.batch_text(7, values, steps) == text


def test_the_line_of_an_opening_names_whom_it_took_over_from():
    batch = BatchId("q", 42)
    assert batch_log.opening_text(batch, None, replayed=False) == (
        "open, the first to write; begins with batch 42"
    )
    assert batch_log.opening_text(batch, record(), replayed=False) == (
        "open, took over from owner 7 epoch 3, run run-1, which committed batch 41 "
        "(sequence 41); begins with batch 42"
    )
    assert batch_log.opening_text(BatchId("q", 41), record(), replayed=True).endswith(
        "begins with batch 41, a replay: nothing is sent"
    )


def test_lines_have_their_values_as_fields(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)
    batch = BatchId("q", 42)
    batch_log.log_opening(ORDERS, batch, "run-2", record(), Admission.NEXT)
    with events.batch(pipeline=ORDERS, query_id="q", batch_id=42) as under_way:
        with events.step(events.SEND):
            pass
        batch_log.log_batch(ORDERS, batch, {"records": 5, "epoch": 4}, under_way, 1.0)
    batch_log.log_end(ORDERS, 1, 5, record(), 60)
    opened, written, ended = (json.loads(JsonFormatter().format(r)) for r in caplog.records)
    assert opened["run_id"] == "run-2"
    assert (opened["pipeline"], opened["query_id"], opened["batch_id"]) == ("orders", "q", 42)
    assert (written["records"], written["epoch"], written["seconds"]) == (5, 4, 1.0)
    assert (written["pipeline"], written["query_id"], written["batch_id"]) == ("orders", "q", 42)
    assert set(written["steps"]) == {"send"}
    assert written["level"] == "INFO"
    assert (
        ended["message"] == "orders: ended after 1 batches and 5 records in 60 s; newest batch 41"
    )


def test_any_line_of_a_batch_has_its_ids_and_no_other_threads_has():
    logged = logging.LogRecord("anybody", logging.WARNING, "", 1, "slow %s", ("disk",), None)
    lines: list[dict[str, Any]] = []

    def elsewhere() -> None:
        lines.append(json.loads(JsonFormatter().format(logged)))

    with events.batch(pipeline="orders", batch_id=3):
        inside = json.loads(JsonFormatter().format(logged))
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
    assert (inside["pipeline"], inside["batch_id"], inside["message"]) == (
        "orders",
        3,
        "slow disk",
    )
    assert "pipeline" not in lines[0]
    assert "pipeline" not in json.loads(JsonFormatter().format(logged))


def test_an_exception_is_a_field_and_the_object_stays_one_line():
    try:
        raise ZeroDivisionError
    except ZeroDivisionError as error:
        traced = (type(error), error, error.__traceback__)
    logged = logging.LogRecord("x", logging.ERROR, "", 1, "failed", (), traced)
    line = JsonFormatter().format(logged)
    assert "\n" not in line
    assert "ZeroDivisionError" in json.loads(line)["exception"]


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_no_handlers_encoding_loses_a_line_of_json(tmp_path: Path, encoding: str) -> None:
    """A file's name may be no UTF-8, and the words of an error have an ellipsis."""
    handler = logging.FileHandler(tmp_path / "log", encoding=encoding)
    handler.setFormatter(JsonFormatter())
    record = logging.LogRecord("n", logging.ERROR, "p", 1, "%s: see …", ("caf\udce9.txt",), None)
    with patch.object(handler, "handleError", side_effect=AssertionError):
        handler.emit(record)
    handler.close()
    (line,) = (tmp_path / "log").read_text(encoding).splitlines()
    assert json.loads(line)["message"] == "caf\udce9.txt: see …"
