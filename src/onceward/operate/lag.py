"""Lag of pipelines: how far their last committed batch is behind the last stable offset of its
Kafka sources.

Driver only. Brokers are asked in a thread of its own, over connections of its own and with a
deadline, so that no batch waits for them. The last stable offset, and not the high watermark: what
lies between the two belongs to open transactions, which no reader may see.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from onceward.engine import batch_log
from onceward.ids import TopicPartition, partition_offsets
from onceward.kafka.source.identity import known_settings
from onceward.kafka.wire.client import KafkaClient
from onceward.kafka.wire.options.settings import ClientSettings
from onceward.kafka.wire.reads.offsets import LATEST, list_offsets

log = logging.getLogger(__name__)

_DEADLINE_MS = 5_000

Position = Sequence[tuple[frozenset[str], Any]]
"""Of each Kafka source its servers and where the batch ended, as Spark's JSON has it."""
Lags = dict[tuple[str, str], int]


def lags(ends: Mapping[TopicPartition, int], stable: Mapping[TopicPartition, int]) -> Lags:
    """Return the records that are left in each topic and partition.

    An offset behind the stable one (a topic that was created again) is no negative lag.
    """
    return {
        (place.topic, str(place.partition)): max(0, stable[place] - end)
        for place, end in ends.items()
        if place in stable
    }


class LagWatcher:
    """A thread that asks for the lag every so often.

    :param positions: returns where each pipeline's last batch ended.
    :param found: is told the lags of a pipeline.
    """

    def __init__(
        self,
        positions: Callable[[], Mapping[str, Position]],
        found: Callable[[str, Lags], None],
        interval_s: float,
    ) -> None:
        self._positions = positions
        self._found = found
        self._interval_s = interval_s
        self._clients: dict[ClientSettings, KafkaClient] = {}
        self._failed: set[str] = set()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="onceward-lag", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ask no more. A question that is under way ends by its deadline."""
        self._stopped.set()
        self._thread.join(_DEADLINE_MS / 1000)

    def _watch(self) -> None:
        looked: set[str] = set()
        while not self._stopped.wait(self._interval_s):
            positions = self._positions()
            for pipeline, position in positions.items():
                self._look(pipeline, position)
            for pipeline in looked - positions.keys():
                batch_log.known_lags.pop(pipeline, None)
            looked = set(positions)
        for pipeline in looked:
            batch_log.known_lags.pop(pipeline, None)
        for client in self._clients.values():
            client.close()

    def _look(self, pipeline: str, position: Position) -> None:
        try:
            if position and (known := self._ask(position)):
                self._found(pipeline, known)
                batch_log.known_lags[pipeline] = sum(known.values())
            self._failed.discard(pipeline)
        except Exception as error:  # noqa: BLE001 — the pipeline is well
            # No line of a batch has a lag that is outdated
            batch_log.known_lags.pop(pipeline, None)
            level = logging.DEBUG if pipeline in self._failed else logging.WARNING
            log.log(level, "%s: its lag is not known now: %s", pipeline, error)
            self._failed.add(pipeline)

    def _ask(self, position: Position) -> Lags:
        found: Lags = {}
        for servers, end in position:
            settings, ends = known_settings(servers), partition_offsets(end)
            if settings is not None and ends:
                found |= lags(ends, self._stable(settings, ends))
        return found

    def _stable(
        self, settings: ClientSettings, places: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int]:
        # Not a client that batches use: whoever asks a broker that is slow holds it up
        client = self._clients.get(settings)
        if client is None:
            client = self._clients[settings] = KafkaClient(settings)
        return list_offsets(client, places, LATEST, read_committed=True, timeout_ms=_DEADLINE_MS)
