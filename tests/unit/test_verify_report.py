"""What the checker tells people: the verdict first, in a sentence, and the place of every
anomaly.
"""

from __future__ import annotations

import json

import pytest

from onceward_verify.findings import NAMES, Findings, as_text, place


def findings(first_sequence: int = 0) -> Findings:
    found = Findings()
    found.facts = {
        "pipeline_id": "orders",
        "ledger": {
            "topic": "onceward-ledger",
            "batches": 3,
            "records": 12_345,
            "first_sequence": first_sequence,
            "last_sequence": first_sequence + 2,
            "queries": 1,
        },
        "topics": {
            "out": {
                "partitions": 2,
                "records": 12_345,
                "batches": 3,
                "aborted_records": 99,
                "unaccounted_records": 0,
                "anomalies": [],
            }
        },
        "sources": {"in": {"records_behind": 0, "group_lag": None}},
    }
    return found


def test_a_clean_run_is_called_exactly_once():
    text = as_text(findings()).splitlines()
    assert text[0].startswith("EXACTLY ONCE: pipeline orders: 12,345 records in 3 batches")
    assert "99 aborted records hidden; every record belongs to one batch" in text[2]
    assert text[3] == "  source in: 0 records behind, group lag unknown"


def test_what_could_not_be_judged_is_said_and_is_never_exactly_once():
    found = findings(first_sequence=7)
    found.note_expired("batches before sequence 7")
    text = as_text(found)
    assert text.startswith("CANNOT TELL: pipeline orders: as far as can be seen")
    assert "from sequence 7 on" in text
    assert "not covered: batches before sequence 7" in text


def test_what_is_gone_is_said_and_where_nothing_is_left_there_is_no_verdict():
    found = findings()
    found.ignore_expired = True
    found.note_expired("records below 12,300")
    assert "as they were committed, but for what is gone" in as_text(found).splitlines()[0]
    assert found.verdict == "exactly_once"
    found.facts["topics"]["out"] |= {"records": 7, "unaccounted_records": 7}
    assert found.verdict == "inconclusive"
    assert as_text(found).startswith("CANNOT TELL: pipeline orders: all that it has written")


def test_every_anomaly_has_its_place_and_its_name_explained():
    found = findings()
    for number in range(150):
        found.anomaly("lost-write", "I1", place("out", 0, number), "gone")
    text = as_text(found)
    assert text.startswith("VIOLATED: pipeline orders: 150 anomalies: lost-write")
    assert "lost-write (I1) at out-0@19: gone" in text
    assert "130 more" in text
    assert f"lost-write: {NAMES['lost-write']}" in text
    told = json.loads(json.dumps(found.as_json()))
    assert (told["verdict"], len(told["anomalies"])) == ("violated", 100)
    assert told["facts"]["anomaly_counts"] == {"lost-write": 150}


def test_nothing_that_others_have_written_is_obeyed_by_a_terminal():
    found = findings()
    found.facts["gone"] = ["topic \x1b]0;evil\x07 \x9b2J"]
    assert "gone: topic \\x1b]0;evil\\x07 \\x9b2J" in as_text(found)


def test_an_anomaly_that_nobody_has_named_is_a_mistake():
    with pytest.raises(ValueError, match="strange"):
        Findings().anomaly("strange", "I1", "", "")


def test_without_an_answer_nothing_is_claimed():
    found = Findings()
    found.cannot_judge("no broker answers")
    assert as_text(found).splitlines() == [
        "CANNOT TELL: nothing was looked at",
        "  not covered: no broker answers",
    ]
