"""The list of conversations: what each is called, and which clusters it is held with."""

from __future__ import annotations

from collections.abc import Callable

from simulation.model_check.talk import Talk

Script = Callable[[Talk], None]


class Conversation:
    """One script. ``nodes``: of the cluster; ``restarts``: nodes go down in it; ``long``: it takes
    a minute.
    """

    __slots__ = ("long", "name", "nodes", "only", "restarts", "script")

    def __init__(
        self, script: Script, nodes: int, restarts: bool, long: bool, only: tuple[str, ...]
    ) -> None:
        self.script = script
        self.name = script.__name__.replace("_", "-")
        self.nodes, self.restarts, self.long, self.only = nodes, restarts, long, only

    def is_for(self, cluster: str, nodes: int) -> bool:
        return self.nodes == nodes and (not self.only or cluster in self.only)


CONVERSATIONS: dict[str, Conversation] = {}

NEW, NEW_V1, OLD = "4.3.1", "4.3.1-version-1", "3.9.1"
CLUSTERS = {NEW: ("4.3.1", 2), NEW_V1: ("4.3.1", 1), OLD: ("3.9.1", 1)}
"""Name → release, and its transaction version."""


def conversation(
    *, nodes: int = 1, restarts: bool = False, long: bool = False, only: tuple[str, ...] = ()
) -> Callable[[Script], Script]:
    """Enter a script under its name."""

    def enter(script: Script) -> Script:
        made = Conversation(script, nodes, restarts, long, only)
        assert made.name not in CONVERSATIONS, made.name
        CONVERSATIONS[made.name] = made
        return script

    return enter
