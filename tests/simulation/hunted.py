"""In which pipelines a mutant is looked for, by the place of its patch; and which are none of the simulation's, and why.

Nothing here is fitted to a mutant but the kind of pipeline, and of the user's function where only one kind of function
comes to the place. Seeds, faults and settings are the swarm's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

PLACES: Sequence[tuple[str, Sequence[str]]] = (
    ("engine/two_phase", ("two_phase", "prepared")),
    ("engine/spark_jobs", ("files",)),
    ("engine/fan_out", ("fan_out",)),
    ("engine/target", ("two_phase",)),
    ("engine/", ("kafka",)),
    ("ledger/folder", ("two_phase",)),
    ("ledger/table", ("database", "prepared")),
    ("ledger/postgresql", ("database", "prepared")),
    ("ledger/mysql", ("database", "prepared")),
    ("ledger/", ("kafka",)),
    ("sinks/database/prepared", ("prepared",)),
    ("sinks/database/", ("database", "prepared")),
    ("sinks/files/", ("files",)),
    ("sinks/write_ahead/", ("write_ahead",)),
    ("sinks/kafka/", ("kafka",)),
    ("spark/file_system", ("two_phase", "files")),
    ("spark/handed_over", ("kafka",)),
    ("spark/", ("kafka",)),
    ("sources/kafka", ("kafka",)),
    ("wire/", ("kafka",)),
    ("errors", ("kafka",)),
)
"""The first that a patched file begins with tells the pipelines."""

USERS: Mapping[str, str] = {
    "45": "twice",
    "71": "sink",
    "72": "two sinks",
    "73": "two sinks",
    "74": "twice",
    "75": "twice",
    "76": "swallows",
    "77": "skips",
    "78": "frames",
    "79": "frames",
    "91": "persists",
    "92": "persists",
    "94": "frames",
    "95": "swallows",
    "96": "swallows",
    "97": "skips",
    "98": "tries again",
    "99": "tries again",
    "100": "swallows",
    "101": "swallows",
    "103": "swallows",
    "104": "two sinks",
    "1-": "two sinks",
    "4-": "skips",
}
"""By the number of a mutant, or of a finding with its dash: every second seed has this user."""

_BYTES = "bytes and columns: rows of the simulation are names of records"
_LAKE = "the table formats' own libraries are not simulated"
_NO_SOURCE = "the simulated source is a range of offsets; what it is made of is not simulated"
_CHECKER = "the checker's, which reads real logs and tables; the simulation has a judge of its own"
_SQL = "the server's own types, sorting and SQL, which the model of a database does not have"
_SERVER = "what that server does with a request is not simulated"
_SETTING = "a setting is refused when a sink is built or a session is looked at; no setting here is one of these"
_RESUME = "an option for one start that an operator sets; no simulated operator does"
_LETTERS = "formats and dead letters are not simulated: no record here is poison"

NOT_HERE: Sequence[tuple[str, str]] = (
    ("verify/", _CHECKER),
    ("binlog/", _BYTES),
    ("records/", _BYTES),
    ("formats/", _LETTERS),
    ("dead_letters/", _LETTERS),
    ("sinks/lake/", _LAKE),
    ("spark/iceberg", _LAKE),
    ("spark/delta", _LAKE),
    ("spark/same_values", _LAKE),
    ("sources/", _NO_SOURCE),
    ("spark/topic_pattern", _NO_SOURCE),
    ("spark/below", _LETTERS),
    ("spark/planned", "Spark's planner is not simulated"),
    ("operate/", "the supervisor of the simulation starts again whatever may pass"),
    ("engine/decoding", _LETTERS),
    ("sinks/database/mysql/", _SQL),
    ("sinks/database/postgresql/types", _SQL),
    ("sinks/files/settings", _BYTES),
    ("sinks/files/values", _BYTES),
    ("sinks/write_ahead/redis_writer", _SERVER),
    ("sinks/write_ahead/opensearch_writer", _SERVER),
)
"""Patched files that begin so."""

NOT_HERE_BY_NUMBER: Mapping[str, str] = {
    "34": "checksums: fragments of the simulation have none",
    "55": _SETTING,
    "56": _SETTING,
    "249": _LETTERS,
    "250": _LETTERS,
    "255": _LETTERS,
    "267": _BYTES,
}
