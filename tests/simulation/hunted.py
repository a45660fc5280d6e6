"""In which pipelines a mutant is looked for, by the place of its patch; and which of them are none
of its business.

Nothing here is fitted to a mutant but the kind of pipeline and the groups of faults, which are
those of the whole place, and the user's function where only one kind of function comes there.
Seeds, odds and settings are the swarm's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Place = tuple[str, Sequence[str], Sequence[str]]

_KAFKA, _DECIDED = ("kafka",), ("two_phase", "prepared", "write_ahead")
_TABLES = ("database", "prepared")
_COPIES = ("crash:", "pause:", "user:")
_WIRE = ("net:", "kafka:", "broker:", "answer:", "pause:", "user:")
_TASKS = ("spark:", "line:", "report:", "kafka:", "net:")

PLACES: Sequence[Place] = (
    ("engine/two_phase", _DECIDED, (*_COPIES, "target:", "fs:")),
    ("engine/target", _DECIDED, (*_COPIES, "broker:", "target:")),
    ("engine/spark_jobs", ("files", *_DECIDED), (*_COPIES, "spark:", "fs:")),
    ("engine/fan_out", ("fan_out",), (*_COPIES, "target:", "fs:")),
    ("engine/task_writer", _KAFKA, ("spark:", "line:", "report:")),
    ("engine/driver_rows", _KAFKA, ("spark:", "kafka:")),
    ("engine/calls/journal", _KAFKA, (*_COPIES, "fs:")),
    ("engine/micro_batch", ("kafka", "two_phase"), (*_COPIES, "net:", "kafka:")),
    ("engine/ending", ("kafka", "two_phase"), (*_COPIES, "net:", "kafka:")),
    ("engine/", _KAFKA, (*_COPIES, "net:", "kafka:")),
    ("files/ledger", ("two_phase", "write_ahead"), (*_COPIES, "fs:")),
    ("kafka/ledger/", ("kafka", "two_phase", "write_ahead"), (*_WIRE, "crash:")),
    ("sql/ledger/", _TABLES, (*_COPIES, "db:")),
    ("sql/sink/prepared", ("prepared",), (*_COPIES, "db:", "spark:")),
    ("sql/", _TABLES, (*_COPIES, "db:", "spark:")),
    ("files/", ("files",), (*_COPIES, "fs:", "spark:")),
    ("delivery/", ("write_ahead",), (*_COPIES, "fs:", "target:")),
    ("kafka/sink/run", _KAFKA, (*_COPIES, "kafka:")),
    ("kafka/sink/", _KAFKA, _TASKS),
    ("spark/files/file_system", ("files", "two_phase"), (*_COPIES, "fs:")),
    ("spark/batch/checkpoint_files", _KAFKA, (*_COPIES, "fs:")),
    ("spark/", _KAFKA, ("spark:",)),
    ("kafka/source/", _KAFKA, (*_COPIES, "kafka:")),
    ("kafka/wire/appends", _KAFKA, ("net:", "kafka:", "broker:", "answer:Produce")),
    ("kafka/wire/", ("kafka", "two_phase"), (*_WIRE, "crash:")),
    ("errors", _KAFKA, (*_COPIES, *_WIRE)),
)
"""The first that a patched file begins with tells the pipelines that come there, and the groups of
faults that a place like that is about: every third seed draws from these only.
"""

USERS: Mapping[str, str] = {
    "72": "two sinks",
    "73": "two sinks",
    "74": "unites",
    "92": "persists",
    "99": "tries again",
    "1-": "two sinks",
    "4-": "skips",
}
"""By the number of a mutant, or of a finding with its dash: every second seed has this user."""

_DEPOSED = ("broker:isolated", "crash:spark.before the commit log", "user:second copy")
_REWOUND = ("user:checkpoint restored", "crash:commit.finished", "crash:finish.started")
_IN_DOUBT = ("net:answer lost|commit",)
FAULTS: Mapping[str, Sequence[str]] = {
    "3-": _DEPOSED,
    "81": _DEPOSED,
    "87": ("spark:executor killed", "spark:output lost"),
    "121": _DEPOSED,
    "62": _REWOUND,
    "42": ("net:slow|commit",),
    "43": _IN_DOUBT,
    "44": _IN_DOUBT,
    "137": ("user:second copy", "net:request lost", "net:answer lost", "net:black hole"),
    "125": ("db:crash", "db:read only"),
}
_WHILE_CUT_OFF = {
    "trouble_seconds": 120.0,
    "request_timeout_ms": 1000,
    "delivery_timeout_ms": 8000,
}
_ELSEWHERE = {"at_home": False, **_WHILE_CUT_OFF}
_BY_TASKS = {
    "server": "postgresql",
    "driver_records": 0,
    "mode": "append",
    "shuffle": True,
    "tasks": 4,
    "slots": 1,
}
_ONE_PARTITION = {
    "rows": 8,
    "source_partitions": 3,
    "topics": 1,
    "output_partitions": 1,
    "tasks": 1,
}
_SHUFFLED = {"shuffle": True, "by_chance": True, "stateful": False, "tasks": 4, "slots": 1}
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "3-": _ELSEWHERE,
    "62": {"operator": "hasty", "stateful": False},
    "81": _ELSEWHERE,
    "87": {**_SHUFFLED, "between": 2},
    "125": _BY_TASKS,
    "42": {"request_timeout_ms": 1_000, "batch_attempts": 3},
    "43": {"batch_attempts": 3},
    "137": {"transaction_version": 1},
}
"""By their numbers, too: what a place is about would be too much for a story that takes three
things in one order. A deposed leader is believed only by a start that comes when more was
committed, before the world heals, and only where no consumer group on the same cluster tells that.
A staging table is there only where tasks write to it, and only PostgreSQL's is emptied by a crash.
"""

PIPELINES: Mapping[str, Sequence[str]] = {
    "125": ("database",),
}
"""By their numbers, of those that come to the place: where tasks prepare transactions there are no
staging tables.
"""

_BYTES = "bytes and columns: rows of the simulation are names of records"
_LAKE = "the table formats' own libraries are not simulated"
_NO_SOURCE = "the simulated source is a range of offsets; what it is made of is not simulated"
_CHECKER = "the checker's, which reads real logs and tables; the simulation has a judge of its own"
_SQL = "the server's own types, sorting and SQL, which the model of a database does not have"
_SERVER = "what that server does with a request is not simulated"
_SETTING = (
    "a setting is refused when a sink is built or a session is looked at; no setting here "
    "is one of these"
)
_RESUME = 'no simulated operator leaves anything out by resume="skip_missing"'
_TRIGGERS = (
    "no table here has triggers or rules, is changed by anybody else, or loses what it has logged"
)
_STRANGERS = "nobody but the pipeline touches its folders here"
_LETTERS = "formats and dead letters are not simulated: no record here is poison"

NOT_HERE: Sequence[tuple[str, str]] = (
    ("src/onceward_verify/", _CHECKER),
    ("mysql/binlog/", _BYTES),
    ("kafka/records/", _BYTES),
    ("formats/", _LETTERS),
    ("kafka/dead_letters/", _LETTERS),
    ("lake/", _LAKE),
    ("spark/tables/iceberg", _LAKE),
    ("spark/tables/delta", _LAKE),
    ("spark/tables/iceberg_values", _LAKE),
    ("kafka/source/", _NO_SOURCE),
    ("custom/resettable/", _NO_SOURCE),
    ("mysql/", _NO_SOURCE),
    ("spark/batch/kafka_reader", _NO_SOURCE),
    ("spark/batch/below", _LETTERS),
    ("operate/", "the supervisor of the simulation starts again whatever may pass"),
    ("engine/decoding", _LETTERS),
    ("sql/mysql/", _SQL),
    ("sql/postgresql/catalogue", _SQL),
    ("files/settings", _BYTES),
    ("files/settings", _BYTES),
    ("delivery/redis_writer", _SERVER),
    ("delivery/opensearch_", _SERVER),
)
"""Patched files that begin so."""

NOT_HERE_BY_NUMBER: Mapping[str, str] = {
    "83": "no election here is unclean: no two logs differ below a high watermark",
    "61": "no ledger here loses its records",
    "70": "a process here begins a run of the query when its run before has ended",
    "135": _TRIGGERS,
    "73": "the two sinks of a function are alike here",
    "128": _SQL,
    "55": _SETTING,
    "249": _LETTERS,
    "267": _BYTES,
}

SEEN_THROUGH: Mapping[str, str] = {
    "08": "nothing asks for that abort: the engine has a rule of its own (44)",
    "22": "the reports are compared with the leases of the sequencer, too",
    "21": "the reports are compared with the leases of the sequencer, too",
    "26": "what such a task sends is of its old epoch, which brokers refuse: time is lost, "
    "nothing else",
    "28": "its next attempt ends the epoch (13), or its report is missing (21)",
    "41": "the batch is in the ledger, whoever has written it: nothing is lost, and the next step "
    "is refused",
    "72": "the engine refuses a second call before admission is asked (45)",
    "99": "to take the chain back is what a start does: nothing is lost or doubled",
    "152": "a folder that lies there has files in it, and rename(2) replaces no such folder",
    "30": "the next attempt is refused in its turn: time is lost, nothing else",
    "88": "when the job has ended, shuffles are asked what they have lost: the batch runs again, "
    "and time is lost",
    "54": "whoever is refused before its time waits for the newer copy to show itself, and is "
    "fenced then (60): time "
    "is lost, nothing else",
    "138": "a coordinator has to die between a claim that it has carried out and its repetition, "
    "a tenth of a second "
    "later; then the next start goes on: time is lost, nothing else",
    "107": "it is published before anything is dropped, and to drop what is published does "
    "nothing",
}
"""Why what is looked for was not found in the time, as far as a reading tells."""
