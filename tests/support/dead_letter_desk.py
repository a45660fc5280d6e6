"""A dead-letter topic with letters in it, replays of it, and what librdkafka reads of their source
topic. For tests.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import Message, Producer
from typer.testing import CliRunner, Result

from onceward.cli import app
from onceward.ids import PipelineId
from onceward.kafka.dead_letters.ledger import chain_name
from onceward.kafka.dead_letters.replay import Outcome, Replay
from onceward.kafka.ledger.chain import KafkaChain
from onceward.kafka.wire.client import KafkaClient
from onceward.kafka.wire.options.settings import settings_from_options
from onceward_testing.faults import FAULTS_VARIABLE, FIRED_VARIABLE
from support.verify_process import verify_at

Headers = list[tuple[str, bytes | None]]
PARTITIONS = 3

_COMMAND = """
from onceward.kafka.dead_letters import replay
from onceward_testing.faults import arm_from_environment
replay.PARCEL_LETTERS = {letters}
arm_from_environment()
from onceward.cli import app
app()
"""
_LIMIT_SECONDS = 150


def about(
    source: str,
    partition: object,
    offset: object,
    *,
    error: str = "DoesNotFit",
    pipeline: str = "people-etl",
) -> Headers:
    """The headers that a sink puts behind those of the source record."""
    return [
        ("onceward.error.class", error.encode()),
        ("onceward.error.message", f"field age is no number (offset {offset})".encode()),
        ("onceward.pipeline", pipeline.encode()),
        ("onceward.timestamp", b"1700000000123"),
        ("onceward.topic", source.encode()),
        ("onceward.partition", str(partition).encode()),
        ("onceward.offset", str(offset).encode()),
    ]


class Desk:
    """One source topic, its dead-letter topic, and a ledger of its own."""

    def __init__(
        self, servers: str, new_topic: Callable[..., str], read_committed: Callable[..., Any]
    ) -> None:
        self.servers = servers
        self.source = new_topic(servers, PARTITIONS, prefix="people")
        self.dead = new_topic(servers, 2, prefix="dead")
        self.ledger = new_topic(servers, prefix="ledger", cleanup_policy="compact")
        self._read = read_committed
        self._written = 0

    @property
    def pipeline(self) -> PipelineId:
        return chain_name(self.dead)

    # --- letters ---------------------------------------------------------------------------------

    def write(
        self,
        count: int,
        *,
        error: str | Sequence[str] = "DoesNotFit",
        source: str | None = None,
        own: Sequence[Any] = (),
    ) -> list[bytes]:
        """So many letters, whose values are unlike each other; their values. The key is that of a
        person of twenty.

        :param error: of all, or of each one.
        """
        values = []
        with_producer = Producer({"bootstrap.servers": self.servers})
        for turn in range(count):
            number, self._written = self._written, self._written + 1
            key, value = f"person {number % 20}".encode(), f"letter {number}".encode()
            partition = number % 20 % PARTITIONS  # by key, but not as murmur2 has it
            why = error if isinstance(error, str) else error[turn]
            headers = [*own, *about(source or self.source, partition, number, error=why)]
            with_producer.produce(self.dead, value, key, number % 20 % 2, headers=headers)
            values.append(value)
        assert with_producer.flush(60) == 0
        return values

    def put(
        self,
        value: bytes | None,
        headers: Headers,
        *,
        key: bytes | None = None,
        partition: int = 0,
        topic: str = "",
    ) -> None:
        """One record, as it is."""
        producer = Producer({"bootstrap.servers": self.servers})
        producer.produce(topic or self.dead, value, key, partition, headers=headers)
        assert producer.flush(60) == 0

    # --- replays ---------------------------------------------------------------------------------

    def client(self, servers: str = "", **options: str) -> tuple[KafkaClient, Any]:
        named = {name.replace("_", "."): value for name, value in options.items()}
        settings, producer = settings_from_options(
            servers or self.servers, named, client_id="test-replay"
        )
        return KafkaClient(settings), producer

    def replay(self, servers: str = "", **chosen: Any) -> Outcome:
        """In this process."""
        client, producer = self.client(servers, transaction_timeout_ms="60000")
        outcome = Outcome()
        try:
            Replay(self.dead, self.ledger, **chosen).run(client, producer, outcome)
        finally:
            client.close()
        return outcome

    def chain(self, client: KafkaClient, producer: Any) -> KafkaChain:
        return KafkaChain(client, self.ledger, self.pipeline, producer, owns_client=False)

    def command(self, verb: str, *arguments: str, topic: str = "", servers: str = "") -> Result:
        """By the command line, in this process."""
        asked = [
            "dead-letters",
            verb,
            "--bootstrap-servers",
            servers or self.servers,
            "--topic",
            topic or self.dead,
        ]
        return CliRunner().invoke(app, [*asked, "--ledger-topic", self.ledger, *arguments])

    def listed(self) -> dict[str, Any]:
        found = self.command("list", "--json")
        assert found.exit_code == 0, found.output
        return dict(json.loads(found.stdout))

    def process(
        self, *arguments: str, faults: str = "", fired: Path | None = None, letters: int = 100
    ) -> Any:
        """A replay in a process of its own, which leads a group of its own: not waited for."""
        command = [
            sys.executable,
            "-c",
            _COMMAND.format(letters=letters),
            "dead-letters",
            "replay",
        ]
        command += [
            "--bootstrap-servers",
            self.servers,
            "--topic",
            self.dead,
            "--ledger-topic",
            self.ledger,
        ]
        return subprocess.Popen(
            [*command, *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
            env={**os.environ, FAULTS_VARIABLE: faults, FIRED_VARIABLE: str(fired or "")},
        )  # fmt: skip

    # --- verdicts --------------------------------------------------------------------------------

    def fed_back(self, topic: str = "") -> list[Message]:
        """What a read-committed librdkafka consumer sees of the source topic, by partition and
        offset.
        """
        return list(self._read(self.servers, topic or self.source))

    def assert_fed_back_once(self, values: Sequence[bytes], topic: str = "") -> None:
        seen = Counter(message.value() for message in self.fed_back(topic))
        wanted = Counter(values)
        assert seen == wanted, (
            f"lost {list(wanted - seen)[:5]}, doubled or strange {list(seen - wanted)[:5]}"
        )

    def verdict(self) -> dict[str, Any]:
        """The checker's, on the chain of the replays: others may have written to the source topic,
        too.
        """
        return verify_at(self.servers, self.pipeline, self.ledger, "--shared-topic")


def ended(process: Any) -> tuple[int, str]:
    """The exit status and all output of a process; it is killed if it hangs."""
    try:
        said, _ = process.communicate(timeout=_LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    return process.returncode, said
