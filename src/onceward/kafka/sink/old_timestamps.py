"""A warning about records that their topic's retention may delete as soon as they are written.
Driver only.

Called by :mod:`attempt` when a batch is committed, and by :mod:`plain` when one is sent. Retention
goes by what the records themselves say of their age, where the topic has
``message.timestamp.type=CreateTime`` (the default): a segment is deleted when its newest timestamp
is older than ``retention.ms`` (``UnifiedLog.deleteRetentionMsBreachedSegments``). And the marker
of the first commit, which has the time of now, begins a new segment behind records that are older
than ``segment.ms`` (``LogSegment.shouldRoll``). So what was committed exactly once is gone at the
broker's next look, minutes later, and neither reader nor writer is told.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from onceward import surroundings
from onceward.errors import AccessDenied, OncewardError

log = logging.getLogger(__name__)

_DAY_MS = 86_400_000
_YOUNG_MS = _DAY_MS // 24
"""The brokers are not asked about records that are younger, which next to no topic deletes."""
_MOST_QUESTIONS = 10
"""After one batch: a ``topic`` column may name thousands."""
_PATIENCE_MS = 5_000
"""So long a question may take: the log can do without the answer."""


class OldTimestamps:
    """What one run of a query knows of its topics' retention: each is asked for once, and spoken
    of once.

    :param config_of: ``KafkaClient.topic_config``.
    """

    def __init__(self, pipeline: str, config_of: Callable[..., Mapping[str, str | None]]) -> None:
        self._pipeline = pipeline
        self._config_of = config_of
        self._kept_ms: dict[str, int | None] = {}
        self._spoken_of: set[str] = set()
        self._silent = False

    def look_at(self, oldest_ms: Mapping[str, int]) -> None:
        """:param oldest_ms: by topic, the oldest timestamp that was sent, in ms since 1970. Never
        raises an error of ours: a topic whose settings are not known is not spoken of.
        """
        now_ms = surroundings.wall_clock_ns() // 1_000_000
        ages = {
            topic: now_ms - oldest
            for topic, oldest in oldest_ms.items()
            if now_ms - oldest >= _YOUNG_MS
        }
        self._ask_for([topic for topic in ages if topic not in self._kept_ms][:_MOST_QUESTIONS])
        for topic, age_ms in ages.items():
            kept_ms = self._kept_ms.get(topic)
            if kept_ms is None or kept_ms >= age_ms or topic in self._spoken_of:
                continue
            self._spoken_of.add(topic)
            log.warning(
                "%s: topic %s was sent records that are %.1f days old by their timestamps, and "
                "keeps records for %.1f "
                "days (retention.ms=%d): its brokers may delete them as soon as they are written. "
                "Next: set "
                "retention.ms of the topic to -1 or to more than they are old, or leave the "
                "column `timestamp` out, "
                "which is then the time of writing",
                self._pipeline,
                topic,
                age_ms / _DAY_MS,
                kept_ms / _DAY_MS,
                kept_ms,
            )

    def _ask_for(self, topics: Sequence[str]) -> None:
        for topic in topics:
            if self._silent:
                return
            self._kept_ms[topic] = None  # asked once, whatever comes of it
            try:
                self._kept_ms[topic] = kept_ms(self._config_of(topic, timeout_ms=_PATIENCE_MS))
            except OncewardError as error:
                log.info(
                    "%s: whether %s deletes old records is not known: %s",
                    self._pipeline,
                    topic,
                    error,
                )
                # Brokers that are in trouble are not asked for the others, too.
                self._silent = not isinstance(error, AccessDenied)


def kept_ms(config: Mapping[str, str | None]) -> int | None:
    """For how long a topic with these settings keeps a record, counted from its own timestamp;
    None: for ever, or counted from its writing, or not known.
    """
    by_their_own = config.get("message.timestamp.type") == "CreateTime"
    deletes = "delete" in (config.get("cleanup.policy") or "")
    found = int(config.get("retention.ms") or -1)
    return found if by_their_own and deletes and found >= 0 else None


def oldest_of(*several: Mapping[str, int]) -> dict[str, int]:
    """The oldest of each topic."""
    oldest: dict[str, int] = {}
    for one in several:
        for topic, timestamp_ms in one.items():
            oldest[topic] = min(timestamp_ms, oldest.get(topic, timestamp_ms))
    return oldest
