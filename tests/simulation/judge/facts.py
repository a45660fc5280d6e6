"""What happened in a story, as judges need to know it: which faults, which copies beside each
other, how it ended.
"""

from __future__ import annotations

from typing import Any


class Facts:
    """See the module. Read off the world once, when the story is over."""

    __slots__ = (
        "_copies",
        "caught_up",
        "kinds",
        "setting",
        "stopped_by",
        "swallowed",
        "user",
        "world",
    )

    def __init__(self, world: Any) -> None:
        self.world = world
        self.setting = world.setting
        self.kinds = frozenset(kind for kind, _ in world.lots.fired)
        """Of faults."""
        self.user: str = world.setting.options.get("user", "sink")
        self.caught_up = any(start.caught_up for start in world.starts[world.once_more :])
        """A copy has read all there is, and each call of the function has returned."""
        self.swallowed = bool(world.events.get("swallowed"))
        """The user's function has kept an error to itself, so that Spark counts batches as done
        that are not.
        """
        self.stopped_by: BaseException | None = world.stopped_by
        self._copies: list[tuple[float, float, Any]] = [
            (start.when, start.over_at, start.process) for start in world.starts
        ]

    def any_of(self, *prefixes: str) -> bool:
        """Did a fault of one of these kinds happen?"""
        return any(kind.startswith(prefixes) for kind in self.kinds)

    def user_is(self, *users: str) -> bool:
        return self.user in users

    def beside(self, start: Any) -> bool:
        """Was another copy there while ``start`` was?"""
        begins, ends = start.when, start.over_at if start.over_at >= 0 else float("inf")
        return any(
            process is not start.process and when <= ends and (over < 0 or over >= begins)
            for when, over, process in self._copies
        )

    def later(self, start: Any) -> bool:
        """Was another copy started after ``start``, before it ended?"""
        ends = start.over_at if start.over_at >= 0 else float("inf")
        return any(
            start.when < when <= ends
            for when, _, process in self._copies
            if process is not start.process
        )

    def reach(self, ledger_ends: dict[tuple[str, str], int], source: str) -> list[int]:
        """Up to where the effect of each source partition's records must be visible, and no
        further.

        All of it, if a copy has caught up; else where the ledger ends, or where Spark's commit log
        does: Spark never comes back to what is before that.
        """
        world = self.world
        count = world.source.partitions
        if self.caught_up and not self.swallowed:
            return [world.source.produced(partition) for partition in range(count)]
        reach = [ledger_ends.get((source, str(partition)), 0) for partition in range(count)]
        if self.swallowed:
            return reach
        checkpoint = world.checkpoint
        done = checkpoint.offsets.get(max(checkpoint.commits)) if checkpoint.commits else None
        return (
            reach
            if done is None
            else [max(one, other) for one, other in zip(reach, done, strict=True)]
        )
