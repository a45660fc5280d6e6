"""How large record batches may be for a topic: looked at when a run first writes there, and again
when it refuses one.

Driver only; called by :mod:`run` and :mod:`plain`. A limit is a topic's setting, which somebody
may change while a query runs.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from onceward.errors import AccessDenied, LimitLowered, OncewardError, RecordTooLarge, SendFailed
from onceward.kafka.sink.settings import KafkaSinkSettings
from onceward.kafka.wire.client import KafkaClient
from onceward.kafka.wire.options.settings import ProducerSettings

log = logging.getLogger(__name__)

_A_PART = 10
"""Where the limit may not be seen: record batches become so many times smaller than the one that
was refused.
"""

_largest: dict[tuple[str, str], int] = {}
"""The largest limit that this process has seen, by servers and topic: whether one was lowered
outlasts a restart.
"""


class TopicLimits:
    """What is known of the topics of one run."""

    def __init__(self, settings: KafkaSinkSettings) -> None:
        self._settings = settings
        self._fitting: dict[str | None, ProducerSettings] = {}
        self._refused: dict[
            str, int
        ] = {}  # by topic, what record batches may have since one was refused

    def producer_settings(self, client: KafkaClient, topic: str | None) -> ProducerSettings:
        """Settings with record batches no larger than ``topic`` takes; it is asked once, until it
        refuses one.

        Without the right to describe the topic's settings, or with a ``topic`` column,
        ``batch.size`` stays as it is until a topic refuses a batch.
        """
        if topic not in self._fitting:
            limits = [self._limit(client, topic)] if topic is not None else []
            refused = self._refused.values() if topic is None else [self._refused.get(topic)]
            smallest = min(
                (limit for limit in (*limits, *refused) if limit is not None), default=None
            )
            self._fitting[topic] = self._at_most(smallest, topic)
        return self._fitting[topic]

    def _at_most(self, limit: int | None, topic: str | None) -> ProducerSettings:
        producer = self._settings.producer
        if limit is None or limit >= producer.batch_bytes:
            return producer
        log.info("batch.size lowered to %d, which topic %s takes", limit, topic or "of a row")
        return replace(producer, batch_bytes=limit)

    def refused(self, client: KafkaClient, error: RecordTooLarge) -> OncewardError:
        """What becomes of a refusal by a broker, now that the topic has been asked again.

        :returns: :class:`SendFailed` where smaller record batches will do, :class:`LimitLowered`
            where the topic would have taken the record before; else ``error``.
        """
        topic, size, records = (
            str(error.details["topic"]),
            int(error.details["bytes"]),
            int(error.details["records"]),
        )
        limit = self._limit(client, topic)
        self._fitting.clear()
        if records > 1:
            # A limit that is no smaller than the batch was not the reason (segment.bytes is), or
            # was raised meanwhile.
            fits = limit if limit is not None and limit < size else max(1, size // _A_PART)
            self._refused[topic] = fits
            return SendFailed(
                error.message,
                next_step=f"nothing: the batch runs again in record batches of at most {fits} "
                f"bytes; if it repeats, "
                "lower batch.size",
                details=error.details,
            )
        before = _largest.get(self._key(topic))
        if limit is not None and before is not None and limit < size <= before:
            return LimitLowered(
                f"{error.message}; it was {before} before, which would do",
                next_step=f"set max.message.bytes of topic {topic} back to {before}, and the "
                f"query goes on",
                details={**error.details, "before": before, "now": limit},
            )
        return error

    def _limit(self, client: KafkaClient, topic: str) -> int | None:
        """``max.message.bytes`` as of now; None when it may not be seen."""
        try:
            value = client.topic_config(topic).get("max.message.bytes")
        except AccessDenied as denied:
            log.info("max.message.bytes of %s is not known: %s", topic, denied)
            return None
        if value is None:
            return None
        key = self._key(topic)
        _largest[key] = max(int(value), _largest.get(key, 0))
        return int(value)

    def _key(self, topic: str) -> tuple[str, str]:
        return ",".join(self._settings.client.bootstrap_servers), topic
