"""In which pipelines a mutant is looked for, by the place of its patch; and which of them are none of its business.

Nothing here is fitted to a mutant but the kind of pipeline and the groups of faults, which are those of the whole
place, and the user's function where only one kind of function comes there. Seeds, odds and settings are the swarm's.
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
    ("engine/spark_jobs", ("files",), (*_COPIES, "spark:", "fs:")),
    ("engine/fan_out", ("fan_out",), (*_COPIES, "target:", "fs:")),
    ("engine/task_writer", _KAFKA, ("spark:", "line:", "report:")),
    ("engine/driver_rows", _KAFKA, ("spark:", "kafka:")),
    ("engine/micro_batch", ("kafka", "two_phase"), (*_COPIES, "net:", "kafka:")),
    ("engine/", _KAFKA, (*_COPIES, "net:", "kafka:")),
    ("ledger/folder", ("two_phase", "write_ahead"), (*_COPIES, "fs:")),
    ("ledger/kafka", ("kafka", "two_phase", "write_ahead"), (*_WIRE, "crash:")),
    ("ledger/admission", _KAFKA, (*_COPIES, "net:", "kafka:")),
    ("ledger/record", _KAFKA, (*_COPIES, "net:", "kafka:")),
    ("ledger/", _TABLES, (*_COPIES, "db:")),
    ("sinks/database/prepared", ("prepared",), (*_COPIES, "db:", "spark:")),
    ("sinks/database/", _TABLES, (*_COPIES, "db:", "spark:")),
    ("sinks/files/", ("files",), (*_COPIES, "fs:", "spark:")),
    ("sinks/write_ahead/", ("write_ahead",), (*_COPIES, "fs:", "target:")),
    ("sinks/kafka/group", _KAFKA, (*_COPIES, "kafka:")),
    ("sinks/kafka/run", _KAFKA, (*_COPIES, "kafka:")),
    ("sinks/kafka/", _KAFKA, _TASKS),
    ("spark/file_system", ("files", "two_phase"), (*_COPIES, "fs:")),
    ("spark/handed_over", _KAFKA, (*_COPIES, "fs:")),
    ("spark/", _KAFKA, ("spark:",)),
    ("sources/kafka", _KAFKA, (*_COPIES, "kafka:")),
    ("wire/appends", _KAFKA, ("net:", "kafka:", "broker:", "answer:Produce")),
    ("wire/", ("kafka", "two_phase"), (*_WIRE, "crash:")),
    ("errors", _KAFKA, (*_COPIES, *_WIRE)),
)
"""The first that a patched file begins with tells the pipelines that come there, and the groups of faults that a place
like that is about: every third seed draws from these only."""

USERS: Mapping[str, str] = {
    "45": "twice",
    "71": "sink",
    "72": "two sinks",
    "73": "two sinks",
    "74": "unites",
    "75": "twice",
    "76": "swallows",
    "77": "skips",
    "78": "frames",
    "79": "halves",
    "91": "persists",
    "92": "persists",
    "94": "halves",
    "95": "shrugs",
    "96": "swallows",
    "97": "skips",
    "98": "tries again",
    "99": "tries again",
    "100": "swallows",
    "103": "swallows",
    "291": "persists",
    "104": "two sinks",
    "1-": "two sinks",
    "4-": "skips",
}
"""By the number of a mutant, or of a finding with its dash: every second seed has this user."""

_DEPOSED = ("broker:isolated", "crash:spark.before the commit log", "user:second copy")
_REWOUND = ("user:checkpoint restored", "crash:commit.finished", "crash:finish.started")
_IN_DOUBT = ("net:answer lost|commit",)
FAULTS: Mapping[str, Sequence[str]] = {
    "63": ("kafka:partitions added", "crash:spark.commit log"),
    "3-": _DEPOSED,
    "81": _DEPOSED,
    "27": ("spark:executor stopped", "line:slow"),
    "87": ("spark:executor killed", "spark:output lost"),
    "91": ("spark:executor killed", "spark:output lost"),
    "82": ("broker:isolated", "answer:EndTxn", "crash:spark.before the commit log", "user:second copy"),
    "121": _DEPOSED,
    "36": _REWOUND,
    "62": _REWOUND,
    "75": ("crash:", "spark:", "net:"),
    "292": ("user:second copy", "crash:admit", "pause:admit"),
    "293": ("kafka:partitions added", "pause:deliver", "crash:deliver"),
    "295": ("user:second copy", "net:request lost", "net:black hole"),
    "296": ("fs:power failure",),
    "297": ("net:answer lost", "target:down"),
    "19": _IN_DOUBT,
    "42": ("net:slow|commit",),
    "43": _IN_DOUBT,
    "44": _IN_DOUBT,
    "49": ("answer:Produce:7", "answer:Produce:20"),
    "50": ("answer:Produce:6", "answer:Produce:19", "answer:Produce:56"),
    "52": ("net:", "answer:Produce"),
    "60": ("user:second copy", "pause:"),
    "137": ("user:second copy", "net:request lost", "net:answer lost", "net:black hole"),
    "291": ("spark:executor killed", "crash:spark.before the commit log"),
    "151": ("target:file lost",),
    "155": ("spark:executor stopped", "pause:publish", "pause:commit"),
    "286": _DEPOSED,
    "287": _DEPOSED,
    "288": ("broker:isolated", "kafka:expired id lingers", "pause:finish.finished"),
    "289": ("crash:spark.before the commit log", "spark:task fails", "pause:replay", "user:second copy"),
    "290": ("fs:error", "user:second copy"),
    "122": ("crash:spark.before the commit log", "user:second copy"),
    "125": ("db:crash", "db:read only"),
    "126": ("user:second copy", "pause:plan.finished", "crash:send.finished"),
    "164": ("target:down", "user:second copy"),
    "173": ("db:client stands still", "db:slow", "user:second copy"),
    "183": ("target:rot",),
    "212": ("report:lost", "spark:executor stopped"),
}
_WHILE_CUT_OFF = {"trouble_seconds": 120.0, "request_timeout_ms": 1000, "delivery_timeout_ms": 8000}
_ELSEWHERE = {"at_home": False, **_WHILE_CUT_OFF}
_BY_TASKS = {"server": "postgresql", "driver_records": 0, "mode": "append", "shuffle": True, "tasks": 4, "slots": 1}
_ONE_PARTITION = {"rows": 8, "source_partitions": 3, "topics": 1, "output_partitions": 1, "tasks": 1}
_SHUFFLED = {"shuffle": True, "by_chance": True, "stateful": False, "tasks": 4, "slots": 1}
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "3-": _ELSEWHERE,
    "36": {"operator": "hasty", "stateful": True},
    "62": {"operator": "hasty", "stateful": False},
    "75": {"operator": "follows"},
    "81": _ELSEWHERE,
    "82": _ELSEWHERE,
    "286": _ELSEWHERE,
    "287": _WHILE_CUT_OFF,
    "288": {"at_home": False, "trouble_seconds": 400.0, "id_expiration_ms": 20_000},
    "87": {**_SHUFFLED, "between": 2},
    "91": _SHUFFLED,
    "289": {"once_more": True},
    "290": {"driver_records": 10_000},
    "291": {"topics": 2, "rows": 1, "source_partitions": 1, "shuffle": False, "stateful": False, "most_faults": 40},
    "292": {"ledger": "kafka", "transaction_version": 1},
    "293": {"ledger": "kafka"},
    "295": {"ledger": "kafka"},
    "296": {"layout": "manifest", "place": "file"},
    "297": {"ledger": "kafka", "id_expiration_ms": 20_000},
    "122": {"ledger": "kafka"},
    "125": _BY_TASKS,
    "126": {**_BY_TASKS, "in_process": False},
    "173": {**_BY_TASKS, "server": "mysql", "watched": True, "in_process": False},
    "183": {"chunk_rows": 1, "source_partitions": 3},
    "42": {"request_timeout_ms": 1_000, "batch_attempts": 3},
    "43": {"batch_attempts": 3},
    "49": _ONE_PARTITION,
    "50": {**_ONE_PARTITION, "transaction_version": 1, "batches": 5},
    "52": _ONE_PARTITION,
    "60": {"lags": True},
    "137": {"transaction_version": 1},
}
"""By their numbers, too: what a place is about would be too much for a story that takes three things in one order. A
deposed leader is believed only by a start that comes when more was committed, before the world heals, and only where no
consumer group on the same cluster tells that. A staging table is there only where tasks write to it, and only
PostgreSQL's is emptied by a crash. Of a batch's files the first is read as a whole before anything is delivered. A
ledger in Kafka takes longer to take than one in a folder. Only a large batch for a single partition is more than its
queue lets out at once; and only the first one finds a partition that knows nothing of the producer."""

PIPELINES: Mapping[str, Sequence[str]] = {
    "122": ("two_phase",),
    "125": ("database",),
    "126": ("database",),
    "173": ("database",),
    "292": ("two_phase",),
    "293": ("write_ahead",),
    "295": ("two_phase",),
    "297": ("two_phase",),
}
"""By their numbers, of those that come to the place: in the others the effect is nobody's business. To drop what is
published does nothing to a prepared transaction, nor to rows that wait for delivery; of a store with an ``abort`` of
the user's own nobody knows that. Where tasks prepare transactions there are no staging tables."""

_BYTES = "bytes and columns: rows of the simulation are names of records"
_LAKE = "the table formats' own libraries are not simulated"
_NO_SOURCE = "the simulated source is a range of offsets; what it is made of is not simulated"
_CHECKER = "the checker's, which reads real logs and tables; the simulation has a judge of its own"
_SQL = "the server's own types, sorting and SQL, which the model of a database does not have"
_SERVER = "what that server does with a request is not simulated"
_SETTING = "a setting is refused when a sink is built or a session is looked at; no setting here is one of these"
_RESUME = 'no simulated operator leaves anything out by resume="keep"'
_TRIGGERS = "no table here has triggers or rules, is changed by anybody else, or loses what it has logged"
_STRANGERS = "nobody but the pipeline touches its folders here"
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
    "294": "of what a function keeps to itself, and of a process that ends then, the judge says nothing",
    "64": "no ledger here has records of another release",
    "83": "no election here is unclean: no two logs differ below a high watermark",
    "84": "nobody but the pipeline writes to its ledger's topic here",
    "33": "a sequence comes to its end after 2³¹ records",
    "61": "no ledger here loses its records",
    "66": "no ledger here loses its records",
    "70": "a process here begins a run of the query when its run before has ended",
    "71": "one query at a time here, however many copies of it",
    "101": "a function here that calls twice hands over the same rows when its batch runs again",
    "102": _RESUME,
    "119": _RESUME,
    "100": "no ledger here loses its records",
    "103": "no function here calls from threads of its own",
    "104": "a function here has one pipeline id, if several sinks",
    "120": "no two kinds of sinks have one ledger here",
    "184": "each store has one ledger here",
    "186": "each path is written with one layout here",
    "194": "a fan-out has the same targets at each start here",
    "195": "no two targets prepare in one place here",
    "196": "no two targets prepare in one place here",
    "224": "each store has one ledger here",
    "198": "nobody takes away here what is published",
    "154": "one pipeline writes to a path here",
    "156": "no ledger here loses its records",
    "216": "no ledger here loses its records",
    "159": _RESUME,
    "187": _STRANGERS,
    "215": _STRANGERS,
    "130": _TRIGGERS,
    "135": _TRIGGERS,
    "141": _TRIGGERS,
    "142": _TRIGGERS,
    "213": _TRIGGERS,
    "136": "rows here name tables of the output, never the sink's own",
    "139": "a role of the simulated database has no settings",
    "168": _BYTES,
    "182": "starts differ in chunks here, not in keys or columns",
    "73": "the two sinks of a function are alike here",
    "78": "no function here fails within a block that has taken something",
    "93": "rows here are no columns of Arrow's: a stand-in counts them",
    "98": "a function here tries again with the frames that have failed",
    "127": _SQL,
    "188": _SQL,
    "189": _SQL,
    "128": _SQL,
    "134": _SQL,
    "55": _SETTING,
    "56": _SETTING,
    "249": _LETTERS,
    "250": _LETTERS,
    "255": _LETTERS,
    "267": _BYTES,
    "131": "no table here has a unique column besides its key",
    "140": "a COPY here fails by the server's word, which ends its transaction, or with its session or process",
    "170": "the simulated server never warns of what it has done",
}

SEEN_THROUGH: Mapping[str, str] = {
    "08": "nothing asks for that abort: the engine has a rule of its own (44)",
    "22": "the reports are compared with the sequencer's book, too",
    "23": "what such a task sends is of an epoch that is aborted: time is lost, nothing else",
    "24": "what such tasks send is of an epoch that is aborted: time is lost, nothing else",
    "25": "what is granted is of an epoch that is aborted: time is lost, nothing else",
    "21": "the reports are compared with the sequencer's book, too",
    "26": "what such a task sends is of its old epoch, which brokers refuse: time is lost, nothing else",
    "28": "its next attempt ends the epoch (13), or its report is missing (21)",
    "29": "the report of that task is missing, too (21)",
    "41": "the batch is in the ledger, whoever has written it: nothing is lost, and the next step is refused",
    "45": "admission refuses what this run has committed itself (72)",
    "72": "the engine refuses a second call before admission is asked (45)",
    "48": "what was read is confirmed behind an append before a batch is committed or refused for it (81)",
    "99": "to take the chain back is what a start does: nothing is lost or doubled",
    "77": "a function here leaves out by the record: where offsets differ, a batch with rows that the ledger has is "
    "offered first, and its number or its start is refused",
    "82": "rare: a commit that is carried out and without an answer for 20 s, while a deposed leader is asked next",
    "288": "rare: an id that expires while a leader is deposed, in a process that asks that leader next",
    "152": "a folder that lies there has files in it, and rename(2) replaces no such folder",
    "30": "the next attempt is refused in its turn: time is lost, nothing else",
    "57": "the next attempt is refused in its turn: time is lost, nothing else",
    "39": "what a state holds was written by the first run; of a watermark the model knows nothing",
    "171": "the ledger is asked, and says that it was not committed: time is lost, nothing else",
    "204": "the engine aborts no attempt whose decision was answered, nor one that the ledger has",
    "88": "when the job has ended, shuffles are asked what they have lost: the batch runs again, and time is lost",
    "155": "by version 1 of Hadoop's algorithm tasks write below _temporary only, which readers pass over",
    "54": "whoever is refused before its time waits for the newer copy to show itself, and is fenced then (60): time "
    "is lost, nothing else",
    "85": "with that look, too, a late takeover of one's own ends the run if it comes after it: I11 cannot tell which",
    "138": "a coordinator has to die between a claim that it has carried out and its repetition, a tenth of a second "
    "later; then the next start goes on: time is lost, nothing else",
    "292": "a newer copy has to stand still for five seconds behind its trial, and an older one to be refused then",
    "295": "rare: nobody says why the epoch of a copy is refused that was replaced a moment ago: as the code was, the "
    "swarm came there once in some ten thousand seeds",
    "297": "rare: an answer that is lost just when an id has expired; as the code was, the swarm came there once in "
    "some ten thousand seeds",
    "107": "it is published before anything is dropped, and to drop what is published does nothing",
}
"""Why what is looked for was not found in the time, as far as a reading tells."""
