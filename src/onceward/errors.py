"""Errors of Onceward, in one tree. Each says what happened to which resource, and the next step.

It is longer than 500 lines so that all of them are found in one place. These are its branches::

    OncewardError
    ├── ConfigurationError  the job's settings are wrong; nothing of the batch is visible
    ├── InputError          the data cannot be written as they are; nothing is visible
    ├── ResourceError       something outside is missing or refuses us
    ├── AdmissionRefused    checkpoint and ledger tell different stories
    ├── BatchFailed         the attempt is aborted; its batch may run again
    ├── CommitInDoubt       the commit has no answer yet; the ledger decides
    ├── PublishIncomplete   a batch is decided, and not all of it is published yet
    ├── PreparedDataLost    what a decided batch had prepared is gone from the target
    ├── DeliveryRefused     the target will never take rows of a decided batch
    └── Fenced              a newer copy of this pipeline has taken over

What is said here of visibility holds for ``delivery="exactly_once"``; the weaker deliveries may
have written a part.

Each says in its ``recovery`` what may be done by itself: run the batch again, restart the query,
restart it if it has worked before, or stop. Errors pickle, and cross from an executor to the
driver as JSON (:func:`to_json`, :func:`from_json`): a driver never unpickles what a socket says.
"""

from __future__ import annotations

import json
import re
from enum import Enum
from functools import partial
from typing import Any, ClassVar

ROWS_REFUSED = "rows_refused"
"""In an error's ``details``: a call was refused whose rows no second try can add to the batch,
though another call may commit it. Where the user's function keeps such an error to itself, the
next batch is refused.
"""

WANT_OF_MEMORY = (
    "see whether the machine or the container kills processes for want of memory (dmesg, exit "
    "code 137; spark.executor.memoryOverhead or spark.executor.pyspark.memory give them more)"
)
"""Of the next step of an error behind which a process may have ended without a word."""

_LINE_BREAKS = re.compile(r"\s*[\r\n]\s*")
# But line feed and tab: control codes of both sets, and marks that turn the direction of text
_OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def plain_text(text: str) -> str:
    """Return ``text``, in as many lines, with nothing in it that a terminal would obey: a server
    or a record may have put it there."""
    return _OBEYED.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def summary(error: BaseException) -> str:
    """Return the type and the words of an error, for the log: not every library's ``repr`` has
    words.
    """
    return plain_text(f"{type(error).__name__}: {error}")


class Recovery(Enum):
    """What may be done about an error without a person.

    STOP is for what cannot pass: a newer copy, refused admission, data that a target never takes,
    a setting that is wrong now. All else may pass, and the query is started again once the
    engine's own tries are used up. Where the same error comes of a wrong setting and of an outage
    (a login that is refused, a topic that is not there), the situation decides: what has worked
    before in this pipeline may work again (RESTART_IF_WORKED).
    """

    RUN_AGAIN = "the engine aborts the attempt and runs the same batch again"
    REOPEN = (
        "the engine begins anew with the batch, as a start of the query would: take over, read "
        "the ledger, admit"
    )
    RESTART = "the query fails, and may be started again on the same checkpoint"
    RESTART_AT_ONCE = (
        "the query has to be defined anew, with what it has just learnt; that is no failure"
    )
    RESTART_IF_WORKED = (
        "the query fails; it may be started again if it has ever committed a batch, else it stops"
    )
    STOP = "the query fails, and would only fail again, or do harm: a person decides"

    @property
    def needs_a_change(self) -> bool:
        """Whether no second try within the same run can help, as far as this process can tell."""
        return self in (Recovery.STOP, Recovery.RESTART_IF_WORKED)


class OncewardError(Exception):
    """An error of Onceward; all others derive from it.

    :param message: what happened, naming the resource.
    :param next_step: what the reader should do about it.
    :param details: the ids at hand (batch, partition, setting …), JSON values only.
    """

    recovery: ClassVar[Recovery] = Recovery.RESTART

    worked_before: bool | None = None
    """Whether the pipeline had ever committed a batch when it failed; None: not known. For
    ``RESTART_IF_WORKED``, and only in the process that raised the error.
    """

    def __init__(
        self, message: str, *, next_step: str = "", details: dict[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.next_step = next_step
        self.details = details or {}

    def __str__(self) -> str:
        """Return one paragraph, whatever was quoted in it."""
        text = f"{self.message}. Next: {self.next_step}." if self.next_step else self.message
        return plain_text(_LINE_BREAKS.sub(" ", text))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        kind = partial(type(self), next_step=self.next_step, details=self.details)
        return kind, (self.message,)


class ConfigurationError(OncewardError):
    """The job's settings are wrong; nothing of the batch is visible."""

    recovery = Recovery.STOP


class UnknownOption(ConfigurationError):
    """An option that neither Onceward nor its Kafka client knows."""


class ContradictoryOptions(ConfigurationError):
    """Two settings that cannot both hold."""


class UnsupportedQuery(ConfigurationError):
    """A Spark mode under which the promise cannot be kept."""


class FileUnreadable(ConfigurationError):
    """A file that a setting names, a certificate say, is missing, or cannot be read now: it may be
    being replaced.
    """

    recovery = Recovery.RESTART_IF_WORKED


class ConnectorMissing(ConfigurationError):
    """The Spark session has no Kafka source, or one that belongs to another version of Spark."""


class WorkerPythonMismatch(ConfigurationError):
    """The Python that Spark's workers run cannot import Onceward, cannot be started, or is of
    another version.
    """

    recovery = Recovery.RESTART_IF_WORKED


class LibraryMissing(ConfigurationError):
    """A client library that an extra of the package brings is not installed where it is needed, or
    too old there: an executor may have come that is not set up yet.
    """

    recovery = Recovery.RESTART_IF_WORKED


class SourceContractViolated(ConfigurationError):
    """A custom source breaks its contract: too many rows, a position that stays where rows
    came, no JSON.
    """


class ServerMisconfigured(ConfigurationError):
    """What a server, a table, a topic or a disk is set to (its settings, a grant, a definition)
    does not let changes be read or rows be written exactly once. Whoever has set it may put it
    right while the pipeline is started again.
    """

    recovery = Recovery.RESTART_IF_WORKED


class TransactionTimeoutTooLarge(ConfigurationError):
    """``transaction.timeout.ms`` is above the broker's ``transaction.max.timeout.ms``."""

    recovery = Recovery.RESTART_IF_WORKED


class TransactionTimeoutTooShort(ConfigurationError):
    """A batch needed more than ``transaction.timeout.ms``, and once more when it was tried
    again.
    """

    recovery = Recovery.RESTART_IF_WORKED


class InputError(OncewardError):
    """The data cannot be written as they are; nothing of the batch is visible."""

    recovery = Recovery.STOP


class InvalidColumn(InputError):
    """A column is missing, unknown, or of a type that cannot be written."""


class ColumnMismatch(InvalidColumn):
    """The columns of a frame and of its table do not fit. Whoever has altered the table may put it
    right.
    """

    recovery = Recovery.RESTART_IF_WORKED


class InvalidTopicName(InputError):
    """A topic name that Kafka refuses."""


class InvalidRecord(InputError):
    """A record of the source cannot be read: it is not framed, its schema is unknown, or it is not
    what that says.
    """


class RecordTooLarge(InputError):
    """A record, or a batch of records, is larger than the topic takes."""


class RowRefused(InputError):
    """The target refuses rows of the batch: a constraint, a value too long, several rows of one
    key.
    """


class ForeignKeyViolation(RowRefused):
    """The target refuses rows whose foreign key leads to no row now, or deletes to which one still
    leads. Whoever writes the other table may do so later.
    """

    recovery = Recovery.RESTART_IF_WORKED


class UnsupportedSchema(InputError):
    """A schema cannot be used as it is (its references go in circles, it is no Avro), or the
    registry refuses it.
    """


class SourceNotNamed(InputError):
    """Records of a dead-letter topic do not say where they came from, or are of a pipeline's
    output and not of its source: they are fed back to a topic that you name, or not at all.
    """


class ChangeUnreadable(InputError):
    """The binlog has what cannot be passed on as changes of rows: a statement in the place of
    rows, an undecided XA transaction, a part of a row, an event that is not known.
    ``details["reason"]`` says which, and ``"at"`` where: ``file:position``. Going on would lose it
    silently.
    """


class InvalidRow(InputError):
    """A custom source gave rows that its schema has no place for; nothing of them becomes
    null or is cut.
    """


class UnencodableValue(InputError):
    """A value cannot be written by its schema: a null where that has none, no symbol of an enum, a
    text not UTF-8.
    """


class ResourceError(OncewardError):
    """Something outside is missing or refuses us."""

    recovery = Recovery.RESTART_IF_WORKED


class BrokerUnreachable(ResourceError):
    """No broker answered in time."""

    recovery = Recovery.RUN_AGAIN


class TokenUnavailable(BrokerUnreachable):
    """The provider of OAuth tokens gave none in time, so that no broker could be logged in to: the
    identity provider does not answer. A broker that refuses a token is
    :class:`AuthenticationFailed`.
    """


class TopicMissing(ResourceError):
    """The topic does not exist (or may not be seen)."""


class PartitionMissing(ResourceError):
    """The topic has no such partition."""


class PartitionsAdded(ResourceError):
    """A source topic has other partitions than a batch that Spark has logged and not ended, which
    ``availableNow`` refuses and any other trigger runs, or from which a topic is left out that is
    there; or than when ``kafka_source`` looked start positions up.
    """

    recovery = Recovery.RESTART


class TableMissing(ResourceError):
    """The table does not exist, or is no table."""


class AuthenticationFailed(ResourceError):
    """TLS or SASL refused the connection."""


class AccessDenied(ResourceError):
    """An ACL denies what the pipeline needs; the resource is named."""


class UnsupportedBroker(ResourceError):
    """The broker does not speak a protocol version that the promise needs."""


class LimitLowered(ResourceError):
    """A topic does not take a record that it would have taken before: its ``max.message.bytes``
    was lowered, or another setting is to blame (``compression.type``, ``segment.bytes``).
    """


class TargetUnreachable(ResourceError):
    """The place that a sink writes to (a folder) does not answer, or cannot be read or written."""

    recovery = Recovery.RESTART


class LedgerUnreachable(ResourceError):
    """The store that keeps the ledger (a folder, a database) does not answer, or cannot be read or
    written.
    """

    recovery = Recovery.RESTART


class StoreUnreachable(ResourceError):
    """The folder in which rows wait until they are delivered cannot be written or read."""

    recovery = Recovery.RESTART


class CheckpointUnreachable(ResourceError):
    """The journal of failed calls beside Spark's checkpoint cannot be written or read, or the
    checkpoint, which was there, is away.
    """

    recovery = Recovery.RESTART


class SequencerUnreachable(ResourceError):
    """An executor cannot connect to the sequencer in the driver process."""

    recovery = Recovery.RUN_AGAIN


class LaunchFailed(ResourceError):
    """Spark cannot be launched now: there is no memory, process or time for a JVM, or a repository
    does not give the jars.
    """

    recovery = Recovery.RESTART


class RegistryUnreachable(ResourceError):
    """The schema registry does not answer in time, says that it cannot now, or lacks a schema for
    now that it had.
    """

    recovery = Recovery.RESTART


class InvalidRegistryResponse(ResourceError):
    """What comes from the schema registry's address is no answer of one: it is not believed, and
    not kept.
    """

    recovery = Recovery.RESTART


class RegistryRefused(ResourceError):
    """The schema registry does not let us in, or is not the one that its certificate should
    name.
    """


class RegistryReplaced(ResourceError):
    """The schema registry has another schema now under an id that was known, or has lost it: what
    is written under that id would be read as something else.
    """


class SchemaUnknown(ResourceError):
    """The schema registry knows no such id, subject, version or schema."""


class NewSchemaId(ResourceError):
    """Records name schemas that were not known when the query was defined, and a plan is fixed
    once it is. The next start knows them. ``details["news"]`` names what was learnt.
    """

    recovery = Recovery.RESTART_AT_ONCE


class ServerUnreachable(ResourceError):
    """The database server that changes are read from does not answer, or ended the
    conversation.
    """

    recovery = Recovery.RESTART


class BinlogCorrupted(ResourceError):
    """Bytes of a binlog are not what was written: a checksum, a length or a position does not fit.
    The next reading may give others: a network can do that, too.
    """

    recovery = Recovery.RESTART


class SourceFileMissing(ResourceError):
    """A file that Spark has logged for a batch of a file source is not there any more: it was
    removed, or its disk is not mounted. ``details["files"]`` names up to a hundred.
    """

    recovery = Recovery.RESTART


class SourceDataLost(ResourceError):
    """Records are gone from the source before they were read: retention was faster than the
    query.
    """

    recovery = Recovery.STOP


class BinlogPurged(SourceDataLost):
    """The server has removed binlogs that were not read yet."""


class SourceFailed(ResourceError):
    """The code of a custom source raised, or has not all rows now that it had before.
    ``details["traceback"]`` is the traceback, from the user's first line.
    """

    recovery = Recovery.RESTART


class AdmissionRefused(OncewardError):
    """Checkpoint and ledger tell different stories; going on would lose or repeat records."""

    recovery = Recovery.STOP


class LedgerBehind(AdmissionRefused):
    """The checkpoint has batches that the ledger does not know."""


class LedgerOutdated(AdmissionRefused):
    """What this run knew of the ledger holds no longer: it was read from a broker that no longer
    led it, or a failover has lost this run's takeover. It is taken and read anew.
    """

    recovery = Recovery.REOPEN
    known: Any = None
    """The newest record that this run has read or written, for the one that is opened in its
    place.
    """


class LedgerUnreadable(AdmissionRefused):
    """The newest ledger record cannot be understood."""


class LedgerUndecided(LedgerUnreadable):
    """What is behind the part of the ledger that was read is not known: a transaction with the
    pipeline's key did not end in the time, or a broker's answers are damaged.
    """

    recovery = Recovery.RESTART


class CheckpointReplaced(AdmissionRefused):
    """The ledger was written by a query with another checkpoint."""


class CheckpointCorrupted(AdmissionRefused):
    """A file of Spark's checkpoint is missing or cut off, so that Spark cannot say where the query
    goes on.
    """


class CheckpointRewound(AdmissionRefused):
    """The checkpoint is older than the ledger, or names other offsets for a batch that is
    committed.
    """


class BatchChanged(AdmissionRefused):
    """A batch that is committed has rows now that it did not have then; going on would drop
    them.
    """


class BatchNotWritten(AdmissionRefused):
    """An earlier batch, or rows of it, could not be written, the user's function kept that back,
    and Spark went on.
    """


class SourceTopicReplaced(AdmissionRefused):
    """A source topic was deleted and created again, or is another source's or cluster's: offsets
    of the old one mean nothing in the new one.
    """


class SourceReplaced(AdmissionRefused):
    """A custom source says by its ``identity()`` that it is another one now: old positions
    mean nothing in it.
    """


class SourceRangeChanged(AdmissionRefused):
    """A range that Spark has logged was read again, and the source gave other rows: going on would
    lose or repeat some.
    """


class BatchFailed(OncewardError):
    """This attempt is aborted; the same batch may run again under a new epoch."""

    recovery = Recovery.RUN_AGAIN


class SendFailed(BatchFailed):
    """Records could not be appended within the time allowed."""


class EpochPoisoned(BatchFailed):
    """The sequencer stopped the epoch, because two writers might have met in it."""


class AttemptSuperseded(BatchFailed):
    """A newer attempt of the same Spark task goes on instead; this one has sent nothing and may
    not send.
    """


class ReportMismatch(BatchFailed):
    """What the tasks report is not what the sequencer booked."""


class ComputationsMixed(BatchFailed):
    """Spark lost intermediate results while it computed the batch, and computed them again for a
    part of it only.
    """


class TransactionTimedOut(BatchFailed):
    """The coordinator aborted the transaction after ``transaction.timeout.ms``: output and
    progress together.
    """


class BatchTimedOut(BatchFailed):
    """The batch ran longer than ``batch_timeout_s``."""


class StateOfFailedAttempt(BatchFailed):
    """An attempt failed, and Spark would commit its state (checkpoint format 2) with another
    attempt's rows.
    """

    recovery = Recovery.RESTART


class CommitInDoubt(OncewardError):
    """The commit has no answer yet: the batch may or may not be committed, and the ledger
    decides.
    """

    refused: OncewardError | None = None
    """What the server has said, for the case that the ledger then lacks the batch."""


class PublishIncomplete(OncewardError):
    """A batch is decided, and not all of it is published yet. Every start goes on with that before
    anything else.
    """


class PreparedDataLost(OncewardError):
    """What a decided batch had prepared is gone from the target, and cannot be published any more;
    or a table has lost what was published into it.
    """

    recovery = Recovery.STOP


class DeliveryRefused(OncewardError):
    """The target will never take some rows of a decided batch as they are. For ``deliver``
    functions to raise: the query stops, and every start begins with these rows; nothing is
    skipped.
    """

    recovery = Recovery.STOP


class Fenced(OncewardError):
    """A newer copy of this pipeline has taken over. Never restart this one: it would fence its
    successor.
    """

    recovery = Recovery.STOP


def _all_kinds(root: type[OncewardError]) -> dict[str, type[OncewardError]]:
    kinds = {root.__name__: root}
    for child in root.__subclasses__():
        kinds |= _all_kinds(child)
    return kinds


def to_json(error: OncewardError) -> str:
    """Convert ``error`` to JSON text, for the way from an executor to the driver."""
    kind = type(error).__name__
    return json.dumps([kind, error.message, error.next_step, error.details], default=str)


def from_json(text: str) -> OncewardError:
    """Return the error that :func:`to_json` wrote; an unknown kind becomes the root."""
    kind, message, next_step, details = json.loads(text)
    return _all_kinds(OncewardError).get(kind, OncewardError)(
        message, next_step=next_step, details=details
    )
