"""All conversations, by name: importing this enters them."""

from __future__ import annotations

from simulation.model_check import appends, clusters, failures, groups, takeovers, transactions
from simulation.model_check.registry import CLUSTERS, CONVERSATIONS, Conversation
from simulation.model_check.sides import ModelSide
from simulation.model_check.talk import Fact, Side, Talk

__all__ = [
    "CLUSTERS",
    "CONVERSATIONS",
    "appends",
    "clusters",
    "failures",
    "groups",
    "takeovers",
    "transactions",
]


def held_with(side: Side, conversation: Conversation, unique: str) -> list[Fact]:
    """What is said when ``conversation`` is held with ``side``."""
    talk = Talk(side, conversation.name, unique)
    conversation.script(talk)
    return talk.facts


def held_with_the_model(cluster: str, conversation: Conversation) -> list[Fact]:
    """The same with a new model of ``cluster``."""
    version, transaction_version = CLUSTERS[cluster]
    return held_with(
        ModelSide(version, transaction_version, conversation.nodes), conversation, "m"
    )
