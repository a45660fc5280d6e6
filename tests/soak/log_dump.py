"""Transactions as Kafka's own ``kafka-dump-log`` reads them off a broker's disk: whose, and where.

A transaction in a partition is the record batches of one producer up to that producer's next
control record. (The control record's own epoch says nothing: fencing and newer brokers write it
with a later one.) How it ended, a reader of committed records sees; the tool would tell, too, but
only with a line for every single record.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from onceward_testing import LocalKafka

_DUMPING = re.compile(r"^Dumping .*/(?P<topic>[^/]+)-(?P<partition>\d+)/\d+\.log")
_FIELD = re.compile(r"(baseOffset|lastOffset|count|producerId|producerEpoch): (-?\d+)")


@dataclass(slots=True)
class LoggedTransaction:
    """What one transaction put into one partition; ``ended``: a control record has ended it."""

    topic: str
    partition: int
    producer_id: int
    epoch: int
    first_offset: int
    last_offset: int
    count: int
    ended: bool = False

    @property
    def identity(self) -> tuple[int, int]:
        return self.producer_id, self.epoch


def logged_transactions(kafka: LocalKafka, topic: str) -> list[LoggedTransaction]:
    """All transactions of ``topic``, as the first node has them; its replicas must be in sync."""
    logs = [str(log) for log in sorted(kafka.nodes[0].data_folder.glob(f"{topic}-[0-9]*/*.log"))]
    dumped = kafka.kafka_tool("kafka-dump-log", "--files", ",".join(logs), timeout_s=900)
    return list(parsed(dumped.splitlines()))


def parsed(lines: Iterable[str]) -> Iterator[LoggedTransaction]:
    """Read what ``kafka-dump-log`` printed, a line a record batch."""
    where = ("", -1)
    open_ones: dict[int, LoggedTransaction] = {}
    for line in lines:
        if header := _DUMPING.match(line):
            if (header["topic"], int(header["partition"])) != where:
                yield from open_ones.values()
                open_ones = {}
            where = header["topic"], int(header["partition"])
        elif line.startswith("baseOffset:"):
            fields = {name: int(value) for name, value in _FIELD.findall(line)}
            if "isControl: false" in line:
                _extend(open_ones, where, fields)
            elif fields["producerId"] in open_ones:
                ended = open_ones.pop(fields["producerId"])
                ended.ended = True
                yield ended
    yield from open_ones.values()


def _extend(
    open_ones: dict[int, LoggedTransaction], where: tuple[str, int], fields: dict[str, int]
) -> None:
    known = open_ones.get(fields["producerId"])
    if known is None:
        open_ones[fields["producerId"]] = LoggedTransaction(
            *where,
            fields["producerId"],
            fields["producerEpoch"],
            fields["baseOffset"],
            fields["lastOffset"],
            fields["count"],
        )
        return
    if known.epoch != fields["producerEpoch"]:
        raise ValueError(f"two epochs in one transaction of {where}: {known}, {fields}")
    known.last_offset = fields["lastOffset"]
    known.count += fields["count"]
