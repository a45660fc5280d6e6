"""What Spark's failures mean, as our errors. Pure: what was thrown in, error or nothing out.

Called by :mod:`onceward.spark.batch.job` for the job of a batch, and by
:mod:`onceward.spark.batch.write_errors` for what failed outside of it: under adaptive execution
(Spark 4.1 and later) the stages before a shuffle run before the sink is called. In the driver.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from onceward.errors import (
    WANT_OF_MEMORY,
    AccessDenied,
    AuthenticationFailed,
    BrokerUnreachable,
    ChangeUnreadable,
    CheckpointCorrupted,
    ConfigurationError,
    FileUnreadable,
    InvalidRecord,
    NewSchemaId,
    OncewardError,
    PartitionsAdded,
    SendFailed,
    SourceDataLost,
    UnencodableValue,
    WorkerPythonMismatch,
)
from onceward.spark.batch.carried import SECRET, carried_in
from onceward.spark.batch.causes import Thrown, has_condition, has_kind
from onceward.spark.batch.checkpoint_files import remove_planned

_RAISED_CONDITION = "USER_RAISED_EXCEPTION"
# What Spark's Kafka source says behind its general words
_WHAT_IS_LOST = "Reason:"
_LONGEST_CAUSE = 200
DATA_LOSS = "KAFKA_DATA_LOSS"

_READ_FAILED = "FAILED_READ_FILE"
"""Of FileDataSourceV2, of a file that is read, with its path."""

# Spark's SparkUpgradeException, of days that two calendars count differently: both names
_ANCIENT = "INCONSISTENT_BEHAVIOR_CROSS_VERSION"
_CALENDAR = re.compile(r"spark\.sql\.[\w.]*RebaseModeIn\w+")

# Avro's GenericDatumWriter, with the way to the value.
_NULL = re.compile(r"null value for \(non-nullable\) (\S+) at ([^\s:]+)")
_NULL_FIELD = "AVRO_CANNOT_WRITE_NULL_FIELD"
_NULL_IN_FIELD = re.compile(r"for field `([^`]+)` defined as non-null Avro data type (.+?)\.\s")
_TRACED_IN = ".TracingNullPointException"
_NO_SYMBOL = "Cannot convert SQL "

_KAFKA_SOURCE = "org.apache.spark.sql.kafka010."
# KafkaExceptions, of availableNow: conditions, and how the message begins, all that Spark 4.0 has.
_OTHER_PARTITIONS = {
    "MISMATCHED_TOPIC_PARTITIONS_BETWEEN_END_OFFSET_AND_PREFETCHED": "Kafka data source in "
    "Trigger.AvailableNow should provide the same topic partitions",
}
_LESS_THAN_BEFORE = {
    "END_OFFSET_HAS_GREATER_OFFSET_FOR_TOPIC_PARTITION_THAN_PREFETCHED": "For Kafka data source "
    "with Trigger.AvailableNow, end offset should have lower or equal",
    "LOST_TOPIC_PARTITIONS_IN_END_OFFSET_WITH_TRIGGER_AVAILABLENOW": "Some of partitions in Kafka "
    "topic(s) have been lost",
    "END_OFFSET_HAS_GREATER_OFFSET_FOR_TOPIC_PARTITION_THAN_LATEST_WITH_TRIGGER_AVAILABLENOW": (
        "Some of partitions in Kafka topic(s) report available offset which is less"
    ),
}

# MicroBatchExecution.populateStartOffsets and HDFSMetadataLog.verifyBatchIds; OffsetSeqLog and
# CommitLog.
_SPARKS_STREAMING = "org.apache.spark.sql.execution.streaming."
_NO_BATCH = re.compile(r"batch \d+ doesn't exist.*", re.DOTALL)
_INCOMPLETE = "Incomplete log file"

# Without "adopt" the sink refuses a batch that goes back where the log has grown since
AT_THE_NEW_END = (
    'start once with resume="adopt" of the sink and '
    'kafka_source(spark_options={"failOnDataLoss": False}): it goes on at the new end'
)

# Of Kafka's DefaultSslEngineFactory
_KEYSTORE = "InvalidConfigurationException", "Invalid PEM keystore configs"

_TRUST = (
    ". ssl.ca.location has to name the authority that signed the broker's certificate: without it "
    "Spark's reader trusts what its JVM does, and not what the system does"
)

_NO_ONCEWARD = re.compile(r"No module named '?onceward\b")
_NOT_STARTED = re.compile(r'Cannot run program "[^"]*python[^"]*"')
# EAGAIN, ENOMEM, ENFILE, EMFILE, and Java's helper that could not begin: the machine has no room
# for a process now. Any other reason is the program's.
_NO_ROOM = re.compile(r"Cannot run program .*\berror[=:] ?(?:0|11|12|23|24)\b")
_NO_PROGRAM = re.compile(r'Cannot run program "([^"]*)"')
_DAEMON_ENDED = "Error from python worker:"
_DEAD = ("Python worker exited unexpectedly", "EOFException occurred while reading the port")
_BEFORE_ANY_ROW = ("in read_command", "in check_python_version")
_OTHER_PYTHON = "pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH]"


RAISED = f"onceward {SECRET} raised "
"""Begins what a plan of ours raises with Spark's ``raise_error``. A JSON object follows:
``raised`` is ``unseen``, ``unfit``, ``change`` or ``poison``; ``tag`` names the step of the plan,
``id`` is the schema's; for poison ``class``, ``message``, and where the record stood, as far as
the source says (``topic``, ``partition``, ``offset``); for a change ``message``, ``next_step`` and
the error's details.
"""


def known_failure(causes: Sequence[Thrown]) -> OncewardError | None:
    """Return the typed error behind what the JVM has thrown, outermost first; None: unknown."""
    carried = next(filter(None, (carried_in(one.message) for one in causes)), None)
    return (
        carried
        or _raised(causes)
        or _unfit_value(causes)
        or _ancient_day(causes)
        or _lost_input(causes)
        or _unfit_python(causes)
        or _added_partitions(causes)
        or _shortened_log(causes)
        or _damaged_checkpoint(causes)
        or _dead_worker(causes)
        or _unreadable_file(causes)
        or refused_reader(causes)
    )


def refused_reader(
    causes: Sequence[Thrown], topics: str = "", servers: str = ""
) -> OncewardError | None:
    """Return what brokers have refused Spark's Kafka source, which reads through Kafka's Java
    client: when it plans a batch, or in a task.

    :param topics, servers: those of the query, if known; the client's words mostly name topics.
    """
    where = (f" topic {topics}" if topics else "") + (f" on {servers}" if servers else "")
    if denied := has_kind(causes, "TopicAuthorizationException"):
        return AccessDenied(
            f"Spark's Kafka source may not read{where or ' a topic'}: "
            f"{denied.message.rstrip('.')}. The principal lacks Read on it",
            next_step="grant it Read on the topic (kafka-acls --add), or all that the pipeline "
            "needs: `onceward doctor --acls` prints the lines",
            details={"resource": f"topic {topics}".strip(), "operation": "Read"},
        )
    at = f" at {servers}" if servers else ""
    if any(one.is_a(_KEYSTORE[0]) and one.message == _KEYSTORE[1] for one in causes):
        return FileUnreadable(
            f"Spark's Kafka source could not load the client's certificate and key{at}: "
            f"{causes[-1]}",
            next_step="see that ssl.key.password is the key's, and give an RSA or EC key in "
            "PKCS#8 without a pass phrase (openssl pkcs8 -topk8 -nocrypt -in key.pem -out "
            "key8.pem, and ssl.key.location=key8.pem), or with one that Java 17 reads "
            "(-v1 PBE-SHA1-3DES for -nocrypt)",
        )
    untrusted = has_kind(causes, "SunCertPathBuilderException")
    if refused := has_kind(causes, "SaslAuthenticationException", "SslAuthenticationException"):
        return AuthenticationFailed(
            f"Spark's Kafka source could not log in{at}: {causes[-1] if at else refused}",
            next_step="check security.protocol and the sasl.* and ssl.* options against the "
            "broker's listener. Passwords and certificates are those with which kafka_source was "
            "called: where they have changed since, call it anew (under supervise, inside the "
            "function that starts the query)" + (_TRUST if untrusted else ""),
        )
    return None


def _raised(causes: Sequence[Thrown]) -> OncewardError | None:
    """Return the error that a plan of ours raised: its mark begins what was raised."""
    # With spark.sql.legacy.raiseErrorWithoutErrorClass=true without the condition.
    begins = (f"[{_RAISED_CONDITION}] {RAISED}", RAISED)
    found = next(
        ((one, before) for one in causes for before in begins if one.message.startswith(before)),
        None,
    )
    if found is None:
        return None
    ours, before = found
    try:
        fields, _ = json.JSONDecoder().raw_decode(ours.message, len(before))
    except ValueError:
        # the text was cut off
        return None
    kind = fields.get("raised")
    if kind == "unseen":
        return _unseen(fields)
    if kind == "unfit":
        return _unfit(str(fields.get("message")))
    return _change(fields) if kind == "change" else invalid_record(fields)


def _added_partitions(causes: Sequence[Thrown]) -> OncewardError | None:
    """Return the error for partitions added to an unfinished batch, which availableNow refuses."""
    other = _in_kafkas_words(causes, _OTHER_PARTITIONS)
    if other is None:
        return None
    return PartitionsAdded(
        "Spark's log has a batch that did not end, and its topic has other partitions by now, "
        f"which trigger availableNow does not take: {' '.join(other.message.split())}",
        next_step="start the query once without availableNow, trigger(processingTime=…) say, "
        "until that batch has ended; then availableNow works again",
    )


def _in_kafkas_words(causes: Sequence[Thrown], words: Mapping[str, str]) -> Thrown | None:
    """Return what Spark's Kafka source threw in one of these ``words``, by their conditions."""
    begins = tuple(words.values())
    return next(
        (
            one
            for one in causes
            if one.condition in words
            or (one.thrown_in.startswith(_KAFKA_SOURCE) and one.message.startswith(begins))
        ),
        None,
    )


def _shortened_log(causes: Sequence[Thrown]) -> OncewardError | None:
    """Return the error for a log that has less than Spark was told before."""
    less = _in_kafkas_words(causes, _LESS_THAN_BEFORE)
    if less is None:
        return None
    return BrokerUnreachable(
        "the source's brokers told Spark of less than before: one that no longer leads was asked, "
        "or the end of a log was lost (an unclean leader election, a topic that was deleted): "
        f"{' '.join(less.message.split())}",
        next_step="start the query again, as ow.supervise does. If it repeats, the end is lost: "
        "start it once without availableNow, trigger(processingTime=…) say, whose error names the "
        "partition and the way on",
    )


def _damaged_checkpoint(causes: Sequence[Thrown]) -> OncewardError | None:
    for one in causes:
        in_spark = one.is_a("IllegalStateException") and one.thrown_in.startswith(
            _SPARKS_STREAMING
        )
        if in_spark and (_NO_BATCH.fullmatch(one.message) or one.message.startswith(_INCOMPLETE)):
            return CheckpointCorrupted(
                "Spark cannot read the query's checkpoint, of which a file is missing or cut off: "
                f"{one.message}",
                next_step="restore that file, or the whole checkpoint as of the query's end; "
                "without a copy, go on from the ledger with a new checkpoint: "
                'kafka_source(starting="ledger", pipeline_id=…) and resume="ledger" in the sink, '
                "once",
            )
    return None


def _dead_worker(causes: Sequence[Thrown]) -> OncewardError | None:
    """Return the error for a Python worker (``PythonRunner``), or the daemon that starts them
    (``PythonWorkerFactory``), that ended without a word, or for which a machine has no room."""
    dead = next(
        (
            one
            for one in causes
            if (one.is_a("SparkException") and one.message.startswith(_DEAD))
            or _is_not_started(one)
        ),
        None,
    )
    if dead is None:
        return None
    what = "cannot be started" if _is_not_started(dead) else "has died"
    return SendFailed(
        f"a process that runs Python for Spark's tasks {what}: {dead.message.splitlines()[0]}",
        next_step=f"nothing, the batch runs again; if it repeats, {WANT_OF_MEMORY} or has no "
        "process or file left for them (its pids limit, ulimit -n), or a native library of the "
        "query crashes",
    )


def _is_not_started(cause: Thrown) -> bool:
    """Return whether a JVM could not start Python."""
    return (
        cause.is_a("IOException")
        and cause.thrown_in == "java.lang.ProcessBuilder"
        and _NOT_STARTED.match(cause.message) is not None
    )


def _unreadable_file(causes: Sequence[Thrown]) -> OncewardError | None:
    unread = has_condition(causes, _READ_FAILED)
    if unread is None:
        return None
    # not Spark's advice for tables
    message = unread.message.partition(" SQLSTATE: ")[0].partition(" It is possible ")[0]
    why = f"{causes[-1].kind}: {causes[-1].message[:_LONGEST_CAUSE]}"
    return SendFailed(
        f"a file that the query reads cannot be read: {' '.join(f'{message} ({why})'.split())}",
        next_step="nothing, the batch runs again; if it repeats, see that the source's file "
        "system is there, and that the file is as the query has it: its format, its columns' "
        "types, and rows that mode=FAILFAST takes",
    )


def _unseen(fields: dict[str, object]) -> OncewardError:
    return NewSchemaId(
        f"a record names schema id {fields.get('id')}, which was not known when the query was "
        "defined",
        next_step="start the query again, defining it anew, in the same process: that asks the "
        "schema registry for the id; ow.supervise(start) does it by itself, at once",
        details={"tag": fields.get("tag"), "ids": [fields.get("id")]},
    )


def _change(fields: dict[str, object]) -> OncewardError:
    return ChangeUnreadable(
        str(fields.get("message")),
        next_step=str(fields.get("next_step")),
        details={name: fields.get(name) for name in ("reason", "at", "gtid")},
    )


def invalid_record(fields: dict[str, object]) -> OncewardError:
    """Return the error for poison, of which ``fields`` says what :data:`RAISED` has."""
    where = (
        f"the record at offset {fields['offset']}"
        if fields.get("offset") is not None
        else "a record"
    )
    where += f" of partition {fields['partition']}" if fields.get("partition") is not None else ""
    where += f" of topic {fields['topic']}" if fields.get("topic") is not None else ""
    return InvalidRecord(
        f"{where} cannot be read ({fields.get('class')}): {fields.get('message')}",
        next_step='to set such records aside and go on, pass on_error="dead_letter" to decode(…) '
        "and dead_letter_topic= to KafkaSink; nothing of the batch was written, and the query may "
        "be started again on the same checkpoint",
        details={
            name: fields.get(name)
            for name in ("class", "topic", "partition", "offset", "id", "tag")
        },
    )


def _unfit_value(causes: Sequence[Thrown]) -> OncewardError | None:
    null = next((one for one in causes if one.thrown_in.endswith(_TRACED_IN)), None)
    if null is not None and (found := _NULL.search(null.message)) is not None:
        return _unfit(f"a value at {found[2]} is null, and its schema has a {found[1]} there")
    # Of Spark's AvroSerializer, since 4.2
    null = has_condition(causes, _NULL_FIELD)
    if null is not None and (found := _NULL_IN_FIELD.search(null.message)) is not None:
        return _unfit(
            f"a value at {found[1]} is null, and its schema has a {found[2].strip(chr(34))} there"
        )
    symbol = has_kind(causes, "IncompatibleSchemaException")  # of Spark's AvroSerializer
    if symbol is not None and symbol.message.startswith(_NO_SYMBOL):
        return _unfit(" ".join(symbol.message.split()))
    return None


def _unfit(message: str) -> OncewardError:
    return UnencodableValue(
        f"a value cannot be written by its Avro schema: {message}",
        next_step="correct it in the query, before encode(…), or pass a schema= there that takes "
        "it (a union with null, say); nothing of the batch was written, and the query may be "
        "started again on the same checkpoint",
    )


def _ancient_day(causes: Sequence[Thrown]) -> OncewardError | None:
    """Return the error for a date that the session neither reads nor writes by itself."""
    ancient = has_condition(causes, _ANCIENT)
    if ancient is None or (setting := _CALENDAR.search(ancient.message)) is None:
        return None
    return ConfigurationError(
        f"{setting[0]}=EXCEPTION refuses a date before 1582, or a timestamp before 1900, that "
        "this batch has",
        next_step=f"set {setting[0]} to CORRECTED, its default; or let the query leave such rows "
        "out. Files of Spark 2 and Hive that are read have other days: for them, LEGACY",
    )


def _lost_input(causes: Sequence[Thrown]) -> OncewardError | None:
    lost = has_condition(causes, DATA_LOSS)
    if lost is None:
        return None
    gone = has_kind(causes, "OffsetOutOfRangeException")
    message = lost.message.partition(" SQLSTATE: ")[0]
    reason = message.partition(_WHAT_IS_LOST)[2] or message if gone is None else gone.message
    return loss(lost.condition, " ".join(reason.split()).rstrip("."))


def loss(condition: str, where: str) -> SourceDataLost:
    """Return the error for one of Spark's conditions, of partitions or records ``where``."""
    text, next_step = next((text, step) for part, text, step in _LOSSES if part in condition)
    details = {"condition": condition}
    return SourceDataLost(text.format(where), next_step=next_step, details=details)


# or begins so: …_AND_GROUP_ID_CONFIG_PRESENT
PARTITIONS_DELETED = f"{DATA_LOSS}.PARTITIONS_DELETED"
OF_PARTITIONS = PARTITIONS_DELETED, f"{DATA_LOSS}.INITIAL_OFFSET_NOT_FOUND"
"""Conditions that say nothing about a log: a batch has other partitions than its source finds."""

_WHY_NOT_FOUND = "taken out of topic=, no longer fits topic_pattern=, or was deleted: {}"
_LOSSES: Sequence[tuple[str, str, str]] = (
    (
        # KafkaOffsetReaderAdmin: an end before its start
        ".PARTITION_OFFSET_CHANGED",
        "the end of the source's log went back, as Spark was told: {}. A broker that no longer "
        "leads it was asked, or one of another cluster (bootstrap_servers=), or its end was lost "
        "(an unclean leader election, a topic that was created again)",
        f"look for an unclean election in the brokers' logs. Without one, {remove_planned()}, and "
        f"start the query again. After one, {AT_THE_NEW_END}",
    ),
    (
        OF_PARTITIONS[0],
        "the query no longer finds partitions that its checkpoint has: their topic was "
        f"{_WHY_NOT_FOUND}",
        "put the topic back into topic= or topic_pattern=, and start the query again; if it says "
        f"the same then, {remove_planned()}, and start it once more; if the topic was created "
        "again, with fewer partitions, begin anew with another pipeline_id and checkpoint; to go "
        "on without it, and without its records that were not read, start once with "
        'kafka_source(spark_options={"failOnDataLoss": False}): a topic that is named again later '
        "is read from its first record",
    ),
    (
        # With failOnDataLoss=false the batch would end behind what it has not read
        OF_PARTITIONS[1],
        "the batch was planned with partitions that are new to the query, which no longer finds "
        f"them: their topic was {_WHY_NOT_FOUND}",
        "put the topic back into topic= or topic_pattern=, and start the query again; or, to go "
        f"on without it, {remove_planned()}, and start it without",
    ),
    (
        # A topic that was there before the query read it has nothing of the query's to lose; one
        # that came while the query was stopped may have lost its first records
        ".ADDED_PARTITION_DOES_NOT_START_FROM_OFFSET_ZERO",
        "a partition that is new to the query does not begin at offset 0: {}. Retention has "
        "removed what was before, or there never was anything (a mirror keeps its offsets), and "
        "Spark cannot tell whether the query should have read it",
        "where the topic was added to topic=, or topic_pattern= matches it since it may be "
        "described, no record is missed: start once with "
        'kafka_source(spark_options={"failOnDataLoss": False}), and it is read from its first '
        "record. Where it was created, or got the partition, while the query was to read it, what "
        "retention has removed is lost: lengthen that (retention.ms, retention.bytes), and start "
        "in the same way",
    ),
    (
        "",
        "records of this batch are gone from the source before they were read: {}",
        "lengthen the source topic's retention (retention.ms, retention.bytes); if the topic was "
        "deleted and created again, begin anew with another pipeline_id and checkpoint, or its "
        "records below the old offsets are skipped; if the end of its log was lost (an unclean "
        f"leader election), {remove_planned()}, and start the query again; to go on without "
        "records that retention has removed, start once with "
        'kafka_source(spark_options={"failOnDataLoss": False})',
    ),
)
"""How Spark's condition goes on, what it means and the next step; the first that fits."""


def _unfit_python(causes: Sequence[Thrown]) -> OncewardError | None:
    message = next(filter(None, map(_what_workers_lack, causes)), None)
    if message is None:
        return None
    return WorkerPythonMismatch(
        message,
        next_step="before the session starts, set the environment variable PYSPARK_PYTHON (with "
        "spark-submit: --conf spark.pyspark.python=…) to a Python of the driver's version that "
        "has onceward installed on every machine with an executor; `onceward doctor` looks at the "
        "one of this machine",
    )


def _what_workers_lack(causes: Thrown) -> str | None:
    """Return why a Python worker could not begin, before it had read a row that it could quote."""
    text = ""
    if _is_not_started(causes):
        if _NO_ROOM.match(causes.message):
            return None
        if (program := _NO_PROGRAM.match(causes.message)) is not None:
            there = f"there is no {program[1]} where they run, or none that they may run"
            return f"Spark's workers cannot start Python: {there}"
    elif causes.is_a("PythonException"):
        text = _raised_before_any_row(causes.message)
    elif causes.is_a("SparkException") and causes.message.lstrip().startswith(_DAEMON_ENDED):
        # What the daemon wrote to its standard error
        text = causes.message
    if _NO_ONCEWARD.search(text):
        return "the Python that Spark's workers run cannot import onceward"
    if text.startswith(_OTHER_PYTHON):
        return "the Python that Spark's workers run is of another version than the driver's"
    return None


def _raised_before_any_row(message: str) -> str:
    """Return the line that names what a worker raised while it read its function; else nothing. It
    is the first that is not indented; only from there on can words of a record come."""
    lines = message.lstrip().splitlines()
    frames = 1
    while frames < len(lines) and lines[frames].startswith("  "):
        frames += 1
    early = any(line.endswith(_BEFORE_ANY_ROW) for line in lines[1:frames])
    return lines[frames] if early and frames < len(lines) else ""
