"""Ask until there is an answer that settles something: the loop that every request of this package
goes through. The error table judges; this loop repeats, asks for the leader or coordinator again,
and gives up at a deadline. It never decides what a refusal means for a transaction: that is its
caller's business."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from typing import Any, NamedTuple

from onceward.errors import AccessDenied, BrokerUnreachable, OncewardError, TokenUnavailable
from onceward.kafka.wire.acls import Kind, denied
from onceward.kafka.wire.connections import ConnectionLost, NoToken
from onceward.kafka.wire.deadline import Backoff, Deadline
from onceward.kafka.wire.error_table import Api, Meaning, Rule, code_name, find_rule

SHORTEST_WAIT_MS = 1_000.0
"""A request that times out takes its connection with it, and others' requests: none gets less."""

Send = Callable[[float], Any]
"""Build the request anew, send it, and wait at most so many ms: the answer, or ConnectionLost."""


class Answered(NamedTuple):
    """An error code of an answer, with the topic that it is about where an answer speaks of
    several, and the broker's own words where it has some."""

    code: int
    topic: str = ""
    words: str | None = None


Code = int | Answered
"""A code that says nothing else, or with what belongs to it."""

Resources = Mapping[Kind, str]
"""The names of what a request touches, for whoever has to grant it."""


class Refused(Exception):
    """The broker has answered, and repeating cannot help."""

    def __init__(
        self,
        api: Api,
        code: int,
        rule: Rule,
        subject: str,
        *,
        attempts: int = 1,
        resources: Resources | None = None,
        words: str | None = None,
    ) -> None:
        super().__init__(
            f"{api.value} for {subject} was refused with {code_name(code)}: "
            f"{rule.reason}{quoted(words)}"
        )
        self.api, self.code, self.rule, self.subject = api, code, rule, subject
        self.resources = resources or {}
        self.attempts = attempts
        """How often it was sent: above 1, an earlier request may have been carried out."""

    def as_error(self) -> OncewardError:
        """Return the refusal as the error that its row of the table names."""
        details = {"api": self.api.value, "code": self.code, "subject": self.subject}
        if (missing := denied(self.api, self.code)) is not None:
            kind, operation = missing
            resource = f"{kind.value.replace('-', ' ')} {self.resources.get(kind, '')}".strip()
            return AccessDenied(
                f"{self}; the principal lacks {operation} on {resource}",
                next_step=f"grant it {operation.split()[0]} on {resource} (kafka-acls --add), or "
                "all that the pipeline needs: `onceward doctor --acls` prints the lines",
                details={**details, "resource": resource, "operation": operation},
            )
        return self.rule.error(
            str(self),
            next_step=self.rule.next_step
            or _NEXT_STEPS.get(self.rule.error.__name__, "see the reason given by the broker"),
            details=details,
        )


class Unanswered(Exception):
    """Time ran out, with no answer or only such as ask for patience. ``lost``: why none came."""

    def __init__(
        self,
        api: Api,
        subject: str,
        deadline: Deadline,
        last: str,
        rule: Rule | None,
        lost: ConnectionLost | None = None,
    ) -> None:
        super().__init__(
            f"{api.value} for {subject}: nothing settled within {deadline.timeout_ms:.0f} ms; "
            f"last: {last}"
        )
        self.api, self.subject, self.rule, self.lost = api, subject, rule, lost

    def as_error(self, next_step: str = "") -> OncewardError:
        """Return :class:`BrokerUnreachable`, or the error that the last answer's row names."""
        if isinstance(self.lost, NoToken):
            return TokenUnavailable(str(self), next_step=self.lost.next_step)
        kind = self.rule.error if self.rule else BrokerUnreachable
        default = "check that the brokers are up and reachable (bootstrap.servers), then run again"
        of_rule = self.rule.next_step if self.rule else ""
        step = next_step or of_rule or _NEXT_STEPS.get(kind.__name__, default)
        details = {"reason": self.rule.reason} if self.rule else {}
        return kind(str(self), next_step=step, details=details)


_NEXT_STEPS = {
    "AccessDenied": "ask whoever keeps the cluster for what the broker names",
    "TopicMissing": "create the topic, or correct its name",
    "BatchFailed": "none: the batch runs again under a new epoch",
    "SendFailed": "none: the batch runs again under a new epoch",
    "Fenced": "stop this copy; the newer one goes on",
    "UnsupportedBroker": "upgrade the brokers, or use a cluster that speaks this version",
}


def converse(
    api: Api,
    subject: str,
    send: Send,
    codes: Callable[[Any], Iterable[Code]],
    deadline: Deadline,
    *,
    refresh: Callable[[], None] = lambda: None,
    resources: Resources | None = None,
) -> Any:
    """Send until the answer's ``codes`` are all done, and return it.

    :param subject: what the request is about, for error messages.
    :param resources: what is asked for by name, should it be denied.
    :param refresh: forget where the leader or coordinator is; ``send`` then looks it up again.
    :raises Refused: an answer that no repetition changes; the gravest of its codes.
    :raises Unanswered: the deadline passed. The last request may have been carried out.
    :raises OncewardError: that we may not even connect (authentication).
    :raises Exception: nobody waits any more (:mod:`onceward.patience`); the same holds of the last
        request.
    """
    backoff = Backoff()
    rule: Rule | None
    lost: ConnectionLost | None
    for attempts in count(1):
        try:
            answer = send(max(SHORTEST_WAIT_MS, deadline.remaining_ms))
        except ConnectionLost as silence:
            last, rule, lost = silence.message, None, silence
            refresh()
        else:
            (code, topic, words), rule = _gravest(api, codes(answer))
            if rule.meaning is Meaning.DONE:
                return answer
            about = f" of topic {topic}" if topic else ""
            last, lost = f"{code_name(code)}{about}{quoted(words)}", None
            if rule.meaning is Meaning.REFRESH:
                refresh()
            elif rule.meaning is not Meaning.RETRY:
                by_kind = {**(resources or {}), **({Kind.TOPIC: topic} if topic else {})}
                raise Refused(
                    api, code, rule, subject, attempts=attempts, resources=by_kind, words=words
                )
        backoff.wait(deadline)
        # a last request with no time left would only hide what was answered before
        if deadline.passed:
            break
    raise Unanswered(api, subject, deadline, last, rule, lost)


_GRAVITY = {
    v: i for i, v in enumerate((Meaning.DONE, Meaning.RETRY, Meaning.REFRESH, Meaning.ABORT))
}


def _gravest(api: Api, codes: Iterable[Code]) -> tuple[Answered, Rule]:
    """Return the code that decides about several: fencing and refusals before patience."""
    by_resource = dict.fromkeys(
        Answered(code) if isinstance(code, int) else code for code in (0, *codes)
    )
    judged = [(each, find_rule(api, each.code)) for each in by_resource]
    return max(judged, key=lambda found: _GRAVITY.get(found[1].meaning, len(_GRAVITY)))


def quoted(words: str | None) -> str:
    """Return a broker's words beside its code, to go behind it; empty where it has none."""
    return f' ("{words}")' if words else ""


@contextmanager
def raised_as_errors() -> Iterator[None]:
    """Raise outcomes as the table's errors, where none of them means anything special."""
    try:
        yield
    except (Refused, Unanswered) as outcome:
        raise outcome.as_error() from None


asked = raised_as_errors()(converse)
"""Converse, and raise the table's error for any outcome but an answer."""
