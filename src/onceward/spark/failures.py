"""What Spark says of a failure that we know, as one of our errors. Pure: text in, error or nothing out.

Called by :mod:`onceward.spark.job` for the job of a batch, and by :mod:`onceward.spark.source_errors` for what
failed outside of it: under adaptive execution (Spark 4.1 and later) the stages before a shuffle run before Spark calls
the sink. Runs in the driver.
"""

from __future__ import annotations

import json
import re

from onceward.errors import (
    ChangeUnreadable,
    OncewardError,
    PoisonRecord,
    SchemaIdUnseen,
    SourceDataLost,
    ValueUnfit,
    WorkerPythonUnfit,
)
from onceward.spark.carried import carried_in

_LOST_INPUT = ("KAFKA_DATA_LOSS", "data may have been lost")  # how Spark's Kafka source says it, planning or reading
_WHAT_IS_LOST = ("OffsetOutOfRangeException: ", "Reason: ")  # the second: partitions, or a topic, that were deleted

# Avro's GenericDatumWriter, with the way to the value; Spark's AvroSerializer.
_NULL = re.compile(r"null value for \(non-nullable\) (\S+) at ([^\s:]+)")
_NO_SYMBOL = re.compile(r"""Cannot convert SQL [^\n]{0,300} not defined in enum [^\n]{0,200}""")

# A daemon that is not there, and a task's function that cannot be unpickled, end in the same words.
_NO_ONCEWARD = re.compile(r"No module named '?onceward\b")
_NO_PROGRAM = re.compile(r'Cannot run program "([^"]*python[^"]*)"')
_OTHER_PYTHON = "PYTHON_VERSION_MISMATCH"


RAISED = "onceward raised "
"""Begins what a plan of ours raises with Spark's ``raise_error``. A JSON object follows: ``raised`` is ``unseen``,
``unfit``, ``change`` or ``poison``; ``tag`` names the step of the plan, ``id`` is the schema's; for poison ``class``,
``message``, and where the record stood, as far as the source says (``topic``, ``partition``, ``offset``); for a change
``message``, ``next_step`` and the error's details."""


def known_failure(text: str) -> OncewardError | None:
    """The error behind Spark's ``text``, which may be a whole stack trace; None: not one that is known here."""
    return carried_in(text) or _raised(text) or _unfit_value(text) or _lost_input(text) or _unfit_python(text)


def _raised(text: str) -> OncewardError | None:
    """What a plan of ours has raised. Spark quotes it between words of its own, which differ by version."""
    begin = text.find(RAISED)
    if begin < 0:
        return None
    try:
        said, _ = json.JSONDecoder().raw_decode(text, begin + len(RAISED))
    except ValueError:
        return None  # the text was cut off, or is not ours
    kind = said.get("raised")
    if kind == "unseen":
        return _unseen(said)
    if kind == "unfit":
        return _unfit(str(said.get("message")))
    return _change(said) if kind == "change" else _poison(said)


def _unseen(said: dict[str, object]) -> OncewardError:
    return SchemaIdUnseen(
        f"a record names schema id {said.get('id')}, which was not known when the query was defined",
        next_step="start the query again, defining it anew: that asks the schema registry for the id; "
        "ow.supervise(start) does it by itself, at once",
        details={"tag": said.get("tag"), "ids": [said.get("id")]},
    )


def _change(said: dict[str, object]) -> OncewardError:
    return ChangeUnreadable(
        str(said.get("message")),
        next_step=str(said.get("next_step")),
        details={name: said.get(name) for name in ("reason", "at", "gtid")},
    )


def _poison(said: dict[str, object]) -> OncewardError:
    where = f"the record at offset {said['offset']}" if said.get("offset") is not None else "a record"
    where += f" of partition {said['partition']}" if said.get("partition") is not None else ""
    where += f" of topic {said['topic']}" if said.get("topic") is not None else ""
    return PoisonRecord(
        f"{where} cannot be read ({said.get('class')}): {said.get('message')}",
        next_step='to set such records aside and go on, pass on_error="dead_letter" to decode(…) and dead_letter_topic='
        " to KafkaSink; nothing of the batch was written, and the query may be started again on the same checkpoint",
        details={name: said.get(name) for name in ("class", "topic", "partition", "offset", "id", "tag")},
    )


def _unfit_value(text: str) -> OncewardError | None:
    if (null := _NULL.search(text)) is not None:
        return _unfit(f"a value at {null[2]} is null, and its schema has a {null[1]} there")
    if (symbol := _NO_SYMBOL.search(text)) is not None:
        return _unfit(" ".join(symbol[0].split()))
    return None


def _unfit(said: str) -> OncewardError:
    return ValueUnfit(
        f"a value cannot be written by its Avro schema: {said}",
        next_step="correct it in the query, before encode(…), or pass a schema= there that takes it (a union with "
        "null, say); nothing of the batch was written, and the query may be started again on the same checkpoint",
    )


def _lost_input(text: str) -> OncewardError | None:
    lines = text.splitlines()
    said = next((line for line in lines if any(sign in line for sign in _LOST_INPUT)), None)
    if said is None:
        return None
    told = (line.partition(sign)[2] for sign in _WHAT_IS_LOST for line in lines if sign in line)
    where = next(told, said.strip()).partition(" SQLSTATE: ")[0]
    return SourceDataLost(
        f"records of this batch are gone from the source before they were read: {where}",
        next_step="lengthen the source topic's retention (retention.ms, retention.bytes); nothing of the batch was "
        "written; if the topic was deleted and created again, begin anew with another pipeline_id and checkpoint, "
        "or its records below the old offsets are skipped; to go on without the lost records, start once with "
        'kafka_source(spark_options={"failOnDataLoss": False})',
    )


def _unfit_python(text: str) -> OncewardError | None:
    if _NO_ONCEWARD.search(text):
        said = "the Python that Spark's workers run cannot import onceward"
    elif (program := _NO_PROGRAM.search(text)) is not None:
        said = f"Spark's workers cannot start Python: there is no {program[1]} where they run"
    elif _OTHER_PYTHON in text:
        said = "the Python that Spark's workers run is of another version than the driver's"
    else:
        return None
    return WorkerPythonUnfit(
        said,
        next_step="before the session starts, set the environment variable PYSPARK_PYTHON (with spark-submit: --conf "
        "spark.pyspark.python=…) to a Python of the driver's version that has onceward installed on every machine "
        "with an executor; `onceward doctor` looks at the one of this machine",
    )
