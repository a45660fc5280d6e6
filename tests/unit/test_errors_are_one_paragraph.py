"""What a reader gets of an error: one paragraph, with the next step, and nothing of what it came
from.
"""

from __future__ import annotations

import traceback
from types import SimpleNamespace
from typing import Any

import pytest

from onceward.engine import decoding
from onceward.engine.calls import foreach_batch
from onceward.engine.calls.advice import paragraph
from onceward.engine.calls.batch import Batch
from onceward.engine.calls.foreach_batch import ForeachBatchSink
from onceward.errors import BrokerUnreachable, TopicMissing, summary
from onceward.kafka.wire.conversation import Refused, raised_as_errors
from onceward.kafka.wire.error_table import Api, find_rule

RUNNING = SimpleNamespace(run_id="r", batch=SimpleNamespace(query_id="q"))


def test_the_next_step_is_in_both_texts() -> None:
    error = TopicMissing("no topic\n   t", next_step="create it")
    assert str(error) == "no topic t. Next: create it."
    assert repr(error) == "TopicMissing('no topic t. Next: create it.')"


def test_nothing_that_a_server_says_is_obeyed_by_a_terminal() -> None:
    said = "Duplicate entry '\x1b]52;c;cm0=\x07\x9b2J\u202e' ü «\xa0\u200d» a\\b\tc \udcff"
    shown = "Duplicate entry '\\x1b]52;c;cm0=\\x07\\x9b2J\\u202e' ü «\xa0\u200d» a\\b\tc \udcff"
    assert str(TopicMissing(said)) == shown
    assert summary(ValueError(said)) == f"ValueError: {shown}"
    assert shown in paragraph(ValueError(said))
    assert TopicMissing(said).message == said


def test_a_refusal_is_told_once() -> None:
    with pytest.raises(TopicMissing) as caught, raised_as_errors():
        raise Refused(Api.METADATA, 3, find_rule(Api.METADATA, 3), "topic t")
    assert "".join(traceback.format_exception(caught.value)).count("was refused with") == 1


def test_spark_is_given_the_error_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark prints three times over whatever comes with it."""
    sink: Any = SimpleNamespace(
        _policy=SimpleNamespace(pipeline="p", min_pause_s=0),
        _checked_run="r",
        _fail=lambda *_: None,
        _process=_failing,
    )
    sink._set_aside = lambda *_: []
    monkeypatch.setattr(foreach_batch, "running_batch", lambda *_: RUNNING)
    monkeypatch.setattr(decoding, "find_steps", lambda *_: ())
    sink._write = lambda *given: ForeachBatchSink._write(sink, *given)
    frame: Any = None
    with pytest.raises(BrokerUnreachable) as caught, Batch(sink, frame, 7):
        pass
    shown = traceback.format_exception(caught.value)
    assert "the reason behind" not in "".join(shown)
    assert [line for line in shown if "_failing" in line] == []
    assert shown[-1].endswith("nobody answers. Next: wait.\n")


def _failing(*_: object) -> None:
    try:
        raise ValueError("the reason behind")
    except ValueError as reason:
        raise BrokerUnreachable("nobody answers", next_step="wait") from reason
