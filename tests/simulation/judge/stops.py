"""What may end a start of the query, and what must have happened for that (I11).

A start ends well, is killed, or ends with an error of which the table below says for what it is
right. Any other exception is a bug: of the product, or of the model. Spark's own errors have their
rows, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from simulation.judge.facts import Facts
from simulation.judge.verdict import Violation

Cause = Callable[[Facts, Any], bool]

_NETWORK = ("net:", "broker:", "kafka:", "answer:", "db:")
_WORKERS = ("spark:", "line:")
_STANDSTILL = (
    "pause:",
    "target:slow",
    "fs:slow",
    "fs:pause",
    "net:slow",
    "net:held",
    "net:black hole",
    "line:slow",
    "spark:task slow",
    "spark:executor",
)


def _faults(*prefixes: str) -> Cause:
    return lambda facts, start: facts.any_of(*prefixes)


def _users(*users: str) -> Cause:
    return lambda facts, start: facts.user_is(*users)


def _any(*causes: Cause) -> Cause:
    return lambda facts, start: any(cause(facts, start) for cause in causes)


def _beside(facts: Facts, start: Any) -> bool:
    return facts.beside(start)


def _later(facts: Facts, start: Any) -> bool:
    return facts.later(start)


def _refused_with(*codes: int) -> Cause:
    endings = tuple(f":{code}" for code in codes)
    return lambda facts, start: any(
        kind.startswith("answer:") and kind.endswith(endings) for kind in facts.kinds
    )


def _says(words: str) -> Cause:
    return lambda facts, start: words in str(start.error)


def _little_room(facts: Facts, start: Any) -> bool:
    return facts.setting.pipeline == "prepared" and facts.world.database.room < 100


def _heir_of_files(facts: Facts, start: Any) -> bool:
    """Who takes the chain drops what others have prepared, and Spark's tasks find their folder
    gone, or the driver finds a part of it. That may be an older copy, too, whose function has
    tried its batch again and opened anew.
    """
    return facts.setting.pipeline in ("files", "fan_out") and facts.beside(start)


def _forgotten_heir(facts: Facts, start: Any) -> bool:
    """A newer copy has dropped what this one had stored, and written nothing; then the
    transactional id has expired, and nobody knows of it: the store looks as if executors had
    another one.
    """
    ids_expire = facts.setting.id_expiration_ms < 86_400_000
    return ids_expire and facts.beside(start) and "is not one folder" in str(start.error)


_UNREACHABLE = _faults(*_NETWORK, *_STANDSTILL)
_BATCH_LOST = _any(_faults(*_NETWORK, "fs:", *_WORKERS, *_STANDSTILL, "clock:"), _beside)

ALLOWED: Mapping[str, tuple[Cause, str]] = {
    # what passes by itself
    "BrokerUnreachable": (_UNREACHABLE, "brokers or the network were in trouble"),
    "LedgerUnreachable": (
        _faults(*_NETWORK, *_STANDSTILL, "fs:", "db:"),
        "where the ledger lies there was trouble",
    ),
    "StoreUnreachable": (_faults("fs:", "pause:"), "a file system was in trouble"),
    "TargetUnreachable": (
        _faults("fs:", "db:", "target:", "pause:", "net:"),
        "the target was in trouble",
    ),
    "SequencerUnreachable": (_faults(*_WORKERS, "pause:"), "lines between tasks and driver broke"),
    "SendFailed": (
        _any(_BATCH_LOST, _says("INVALID_TXN_STATE")),
        "brokers, the network or tasks were in trouble, or a marker of the transaction before "
        "crossed the first record",
    ),
    "BatchFailed": (_BATCH_LOST, "brokers, the network or tasks were in trouble"),
    "EpochPoisoned": (_BATCH_LOST, "tasks or their lines were in trouble"),
    "AttemptSuperseded": (_faults(*_WORKERS, *_STANDSTILL), "a task was attempted again"),
    "ReportMismatch": (
        _any(_faults("report:", "target:file lost"), _heir_of_files),
        "Spark lost a result, or gave it twice, or another copy was removing the folder, or "
        "somebody a file of it",
    ),
    "ComputationsMixed": (
        _faults("spark:executor", "spark:output lost", "db:client dies", "target:caller", "fs:"),
        "Spark lost intermediate results",
    ),
    "TransactionTimedOut": (
        _BATCH_LOST,
        "something stood still for long, or an older copy asked for it",
    ),
    "TransactionTimeoutTooShort": (_BATCH_LOST, "something stood still for long, more than once"),
    "BatchTimedOut": (_BATCH_LOST, "something stood still for long"),
    "CommitInDoubt": (_any(_UNREACHABLE, _faults("fs:", "db:")), "an answer did not come"),
    "PublishIncomplete": (
        _faults("target:", "fs:", "db:", "net:", "broker:", "pause:", "answer:"),
        "the target was in trouble",
    ),
    "PreparedDataLost": (
        _faults("db:ended by hand", "target:", "fs:"),
        "somebody has removed what was prepared",
    ),
    "LedgerUnreadable": (
        lambda facts, start: (
            "has committables of version 2" in str(start.error) and facts.world.is_newer
        ),
        "a sink of a later release has written, and one of before goes on",
    ),
    "LedgerUndecided": (
        _faults("broker:", "kafka:"),
        "a coordinator could not end a transaction, or a broker was cut off",
    ),
    "LedgerOutdated": (_faults("broker:isolated"), "a broker was cut off, and did not know it"),
    "DeliveryRefused": (_faults("target:refuses"), "the target refused a chunk for good"),
    "CheckpointUnreachable": (
        _faults("fs:"),
        "a file system was in trouble with the files beside the checkpoint",
    ),
    "Unanswered": (
        _faults("target:", "pause:"),
        "the target was in trouble, and the user's own code met it",
    ),
    # another copy
    "Fenced": (
        _any(
            _beside,
            _later,
            _faults(
                "net:held", "net:slow", "net:black hole", "pause:", "broker:", "kafka:", "fs:error"
            ),
            _faults("answer:DescribeTransactions"),
        ),
        "another copy was there, a request for the id came late, a coordinator would not tell who "
        "has it, or a disk "
        "took our own entry and said that it had not",
    ),
    "CheckpointRewound": (
        _any(_faults("user:checkpoint restored", "user:commit log lost"), _beside),
        "the checkpoint was put back, or another copy went on with it",
    ),
    "CheckpointReplaced": (
        lambda facts, start: facts.world.operator.began_anew,
        "an operator began anew where the ledger ends, and that start was over before its first "
        "batch",
    ),
    # users
    "BatchNotWritten": (
        _users("swallows", "shrugs", "leaves out"),
        "the function had kept an error to itself, or left a batch out",
    ),
    "LedgerBehind": (
        _users("swallows", "skips", "leaves out"),
        "the function had kept the first batch's error to itself, or left out the first batches",
    ),
    "UnsupportedQuery": (
        _users("twice", "two sinks", "swallows", "tries again", "unites"),
        "the function calls twice for a batch",
    ),
    "BatchChanged": (
        _users("twice", "two sinks", "swallows", "unites"),
        "a committed batch has more frames now",
    ),
    # what a broker refuses for good
    "AccessDenied": (_refused_with(29, 30, 31, 44, 53), "a broker said so"),
    "ConfigurationError": (
        _any(
            _refused_with(21, 24, 32, 37, 40, 42),
            _faults("target:answers"),
            _forgotten_heir,
        ),
        "a broker said that a setting is wrong, a function of the user's answered what it must "
        "not, or an heir that nobody remembers has dropped a file",
    ),
    "ServerMisconfigured": (
        _any(_refused_with(33, 76), _little_room),
        "a broker takes no such codec or login, or a database has room for few prepared "
        "transactions",
    ),
    "InvalidTopicName": (_refused_with(17), "a broker said so"),
    "TopicMissing": (_refused_with(3, 100), "a broker did not know the topic, again and again"),
    "RecordTooLarge": (_refused_with(10, 18), "a broker said so"),
    "UnsupportedBroker": (_refused_with(35, 43), "a broker said so"),
    "TransactionTimeoutTooLarge": (_refused_with(50), "a broker said so"),
    "ResourceError": (
        _refused_with(1, 2, 10, 12, 18, 28, 87, 105),
        "a broker said so",
    ),  # 10, 18: of the ledger's record
    # Spark's own
    "JobFailed": (
        _any(
            _faults("spark:", *_NETWORK, "line:", "pause:", "db:client dies", "target:", "fs:"),
            _heir_of_files,
        ),
        "a task failed four times, or another copy has removed the folder that it was writing to",
    ),
    "LogNotWritten": (_faults("fs:"), "a file system was in trouble with Spark's logs"),
    "LogUpdated": (_beside, "two copies were writing one checkpoint"),
}
"""By the name of the error's class: when it is right, and that in words."""


def judge_stops(facts: Facts) -> list[Violation]:
    """Every start's end."""
    said = []
    for start in facts.world.starts:
        error = start.error
        if error is None:
            continue
        name = type(error).__name__
        row = None if _is_inner(type(error).__module__) else ALLOWED.get(name)
        if row is None:
            sentence = (
                f"start {start.number} ended with {name}, which nothing in this world "
                f"makes right: {error!r}"
            )
            said.append(Violation("I11", sentence))
        elif not row[0](facts, start):
            sentence = (
                f"start {start.number} ended with {name}, which is right only if {row[1]}: {error}"
            )
            said.append(Violation("I11", sentence))
    return said


_LASTING = (
    "broker:",
    "kafka:",
    "pause:",
    "net:slow",
    "net:held",
    "net:black hole",
    "spark:",
    "line:",
    "clock:",
)
_MOMENTS = 10


def judge_causes(facts: Facts) -> list[Violation]:
    """I11: a transaction has timed out only if it was open as long as that, or an older copy is
    said to have asked.
    """
    said = []
    for start, when, error in facts.world.failed:
        details = getattr(error, "details", {})
        if type(error).__name__ != "TransactionTimedOut" or "open_for_ms" not in details:
            continue
        least = (
            details["transaction.timeout.ms"] * 0.98 - 1
        )  # a claim of our own asks for a little less than is set
        if details["open_for_ms"] < least and "an older copy" not in str(error):
            sentence = (
                f"start {start.number} was told at {when:.3f} s of a timeout that was not "
                f"over: {error}"
            )
            said.append(Violation("I11", sentence))
    return said


def judge_sends(facts: Facts) -> list[Violation]:
    """I11: an attempt that is aborted because records could not be sent was not given up without
    need. Spark sees nothing of it, where the next one succeeds.

    A broker that has lost nothing knows a producer's last five batches, and refuses none of them
    as out of order. What is lost or refused for a moment is sent again within the second.
    """
    said = []
    for start, when, error in facts.world.failed:
        if type(error).__name__ != "SendFailed":
            continue
        text = str(error)
        if "OUT_OF_ORDER_SEQUENCE_NUMBER" in text and not facts.any_of("broker:", "kafka:"):
            why = "a broker had lost what it knew of the producer"
        elif (
            "not acknowledged" in text
            and not facts.any_of(*_LASTING)
            and len(facts.world.lots.fired) <= _MOMENTS
        ):
            why = "something was in trouble for longer than a moment"
        else:
            continue
        sentence = (
            f"an attempt of start {start.number} was given up at {when:.3f} s, which is "
            f"right only if {why}: {text}"
        )
        said.append(Violation("I11", sentence))
    return said


def _is_inner(module: str) -> bool:
    """An exception that the engine's parts raise for each other: nobody else should ever see
    one.
    """
    return module.startswith("onceward.") and module != "onceward.errors"
