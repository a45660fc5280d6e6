"""An operator who reads what an error says to do next, and does just that: by its words alone.

Asked when the query has stopped by name again and again, and no copy of it runs. What an error
advises must work, and lose nothing: the judge expects all rows of a story whose operator has
followed, as of any other. Who is *hasty* does half of it once, which must be refused, or harmless.
"""

from __future__ import annotations

import json
import re
from typing import Any

from onceward.kafka.source.source import _ledger_positions
from onceward.kafka.source.topics_and_positions import NamedTopics
from onceward.kafka.wire.client import KafkaClient
from onceward.kafka.wire.options.settings import settings_from_options
from simulation.spark.query import SOURCE, Checkpoint

LEDGER = "onceward-ledger"
"""The topic, where a ledger is one."""
_MOST = 4
"""Deeds in one story: who is told the same again and again goes home."""

_REWIND = re.compile(
    r"move away from \S+ the files commits/(\d+) and above and offsets/(\d+) and above.*? start it"
    r'(?: once with resume="(\w+)")?'
)
_LOST_END = re.compile(r"^if ledger and output have lost the same .*?; else ")
"""No ledger here loses its records, nor does any output."""
_COMPLETE = 'start once with resume="write_missing"'
_LEFT_OUT = re.compile(
    r'call the sink for every batch.*? start once with resume="(skip_missing|adopt)"'
)
_FROM_LEDGER = 'kafka_source(starting="ledger"'
_TOGETHER, _LEAVE = (
    "hand all frames of a batch over together",
    "let the sink's errors leave the function",
)

_NOBODY = "nobody"
OPTIONS = {"operator": ("follows", "hasty", _NOBODY)}
"""Where the query has stopped for good, does somebody do what the error says?"""

_MENDED = {
    "twice": "frames",
    "two sinks": "frames",
    "tries again": "sink",
    "swallows": "sink",
    "leaves out": "sink",
}
"""What a user's function does, and what it does when both pieces of advice are taken."""


class Operator:
    """See the module."""

    def __init__(self, world: Any) -> None:
        self._world = world
        self._deeds = 0
        self._mended = False
        self._hasty = world.setting.operator == "hasty"
        self.resume = ""
        """The sink's ``resume`` at the next start, and only there."""
        self.began_anew = False
        """With a new checkpoint."""

    @property
    def user(self) -> str:
        """What the user's function does today."""
        user: str = self._world.setting.user
        return _MENDED.get(user, user) if self._mended else user

    def mends(self) -> bool:
        """Has somebody read in the log that the function keeps errors to itself, and mended it?
        Once; the query has to be started anew then, and what was kept back is still to be written.
        """
        world = self._world
        if self._mended or not self._cares() or not world.events.get("swallowed"):
            return False
        self._say("lets the sink's errors leave the function")
        self._mended = True
        return True

    def follows(self, error: Any) -> bool:
        """Do what ``error`` says. False: it is nothing that is done here."""
        world, words = self._world, _LOST_END.sub("", error.next_step)
        if not self._cares() or self._deeds >= _MOST:
            return False
        rewind = _REWIND.search(words)
        if rewind is not None:
            self._rewind(int(rewind[1]), int(rewind[2]), rewind[3] or "")
        elif (left_out := _LEFT_OUT.search(words)) is not None:
            self._say(
                f"has the sink called for every batch, and starts with resume={left_out[1]!r}"
            )
            self.resume = left_out[1]
            self._mended = True
        elif _COMPLETE in words:
            self._say('starts it with resume="write_missing"')
            self.resume = "write_missing"
        elif _FROM_LEDGER in words and (
            self._hasty or not world.plan.stateful
        ):  # "for a query without state"
            self._begin_anew()
        else:
            return False
        if _TOGETHER in words or _LEAVE in words:
            self._mended = True
        self._deeds += 1
        world.events["advice followed"] = 1
        return True

    def _cares(self) -> bool:
        return bool(self._world.setting.operator != _NOBODY)

    def _rewind(self, commits: int, offsets: int, resume: str) -> None:
        checkpoint = self._world.checkpoint
        self._say(
            f"moves commits/{commits} and offsets/{offsets} and above away, resume={resume!r}"
        )
        checkpoint.commits = {number for number in checkpoint.commits if number < commits}
        checkpoint.offsets = {
            number: ends for number, ends in checkpoint.offsets.items() if number < offsets
        }
        self.resume = resume
        self._world.events.pop(
            "swallowed", None
        )  # what the function had kept to itself is to be written now

    def _begin_anew(self) -> None:
        world = self._world
        first = (
            self._hasty and not world.plan.stateful
        )  # else what is overlooked is that the state is gone
        begins = [0] * world.source.partitions if first else None
        self._say(f"begins anew {'with the first record' if first else 'where the ledger ends'}")
        self._hasty = False
        world.checkpoint = Checkpoint(world, f"checkpoint-{world.next_number()}", begins)
        world.copies_kept.clear()  # they are of the other one
        # Life goes on: what is decided, and not published yet, is published with the first batch
        # after it.
        world.sim.spawn(world.sim.outside, world.source.feed, world.most_offsets)
        self.resume, self.began_anew = "ledger", True

    def define(self, checkpoint: Checkpoint) -> None:
        """As ``kafka_source(starting="ledger")`` does where the query is defined, by its own code:
        for a new checkpoint only. Runs in a driver.
        """
        if checkpoint.begins is not None:
            return
        pipeline = self._world.pipeline
        settings, _ = settings_from_options(self._world.servers(), {}, client_id="onceward-source")
        client = KafkaClient(settings)
        try:
            text = _ledger_positions(
                client,
                NamedTopics([SOURCE]),
                pipeline.pipeline_id,
                "earliest",
                LEDGER,
                pipeline.ledger(self._world),
                False,
            )
        finally:
            client.close()
        begins = json.loads(text)[SOURCE]
        checkpoint.begins = [
            max(0, begins[str(partition)]) for partition in range(self._world.source.partitions)
        ]

    def _say(self, what: str) -> None:
        if self._world.sim.tell is not None:
            self._world.sim.tell(self._world.sim.now, "world", f"★ the operator {what}")
