"""The options of ``--conserves`` as a rule, for both command lines."""

from __future__ import annotations

from typing import Literal

from onceward.verify.conserves import Conserves
from onceward.verify.findings import WrongUsage
from onceward.verify.lineage import Lineage, lineage_of

Rule = Literal["exactly", "at-most", "at-least"]


def conserves_of(rule: Rule | None, headers: str | None, fields: str | None, *, each_topic: bool) -> Conserves | None:
    """The rule that the options ask for; None: none.

    :raises WrongUsage: options that say nothing without ``--conserves``, or two places for one name.
    """
    if headers is not None and fields is not None:
        raise WrongUsage(
            "--lineage-headers and --lineage-json name two places for one thing", next_step="leave one of them out"
        )
    if rule is None:
        if each_topic or headers is not None or fields is not None:
            raise WrongUsage(
                "--each-topic, --lineage-headers and --lineage-json say nothing by themselves",
                next_step="add --conserves exactly, at-most or at-least",
            )
        return None
    if headers is not None:
        return Conserves(rule, each_topic, lineage_of("headers", headers))
    if fields is not None:
        return Conserves(rule, each_topic, lineage_of("json", fields))
    return Conserves(rule, each_topic, Lineage())
