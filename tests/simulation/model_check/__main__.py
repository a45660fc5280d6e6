"""``make model-check``: hold every conversation with real brokers, and compare them with the
record and the model.

``python -m simulation.model_check [--record] [--cluster NAME] [WORD …]``: only conversations whose
names hold a WORD.
"""

from __future__ import annotations

import argparse
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from onceward_testing import LocalKafka
from simulation.model_check import recorded
from simulation.model_check.conversations import held_with, held_with_the_model
from simulation.model_check.registry import CLUSTERS, CONVERSATIONS, NEW_V1, Conversation
from simulation.model_check.sides import RealSide

_PROPERTIES = {
    # a timeout is noticed soon
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 200,
    "auto.leader.rebalance.enable": "false",  # leaders stay where they are
}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="model_check", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--record", action="store_true", help="what the brokers say becomes the record"
    )
    parser.add_argument("--cluster", choices=sorted(CLUSTERS), action="append")
    parser.add_argument("--quick", action="store_true", help="without those that take a minute")
    parser.add_argument("--nodes", type=int, choices=(1, 3), action="append")
    parser.add_argument("words", nargs="*")
    wanted = parser.parse_args(arguments)
    wrong = 0
    for cluster in wanted.cluster or CLUSTERS:
        chosen = [
            each
            for each in CONVERSATIONS.values()
            if each.is_for(cluster, each.nodes)
            and (not wanted.words or any(w in each.name for w in wanted.words))
            and not (wanted.quick and each.long)
        ]
        for nodes in wanted.nodes or (1, 3):
            wrong += _check(
                cluster, nodes, [each for each in chosen if each.nodes == nodes], wanted.record
            )
    _say(f"{wrong} differences")
    return min(wrong, 1)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _check(cluster: str, nodes: int, conversations: list[Conversation], record: bool) -> int:
    if not conversations:
        return 0
    known = recorded.read(cluster)
    wrong = 0
    began = time.monotonic()
    with _brokers(cluster, nodes) as side:
        for each in conversations:
            model = recorded.as_json(held_with_the_model(cluster, each))
            try:
                real = recorded.as_json(held_with(side, each, uuid.uuid4().hex[:8]))
            except AssertionError as error:
                _say(f"✗ {cluster} {each.name}: {error}")
                wrong += 1
                continue
            found = [
                f"model ≠ brokers: {line}" for line in recorded.differences(each.name, real, model)
            ]
            if record:
                known[each.name] = real
            else:
                before = known.get(each.name, [])
                found += [
                    f"record ≠ brokers: {line}"
                    for line in recorded.differences(each.name, real, before)
                ]
            for line in found:
                _say(f"✗ {cluster} {line}")
            wrong += bool(found)
    if record:
        recorded.write(cluster, known)
    _say(
        f"{cluster}, {nodes} nodes: {len(conversations)} conversations in "
        f"{time.monotonic() - began:.0f} s"
    )
    return wrong


@contextmanager
def _brokers(cluster: str, nodes: int) -> Iterator[RealSide]:
    version, transaction_version = CLUSTERS[cluster]
    arguments = ("--feature", "transaction.version=1") if cluster == NEW_V1 else ()
    with LocalKafka(nodes, version, properties=_PROPERTIES, format_arguments=arguments) as kafka:
        side = RealSide(kafka, version, transaction_version)
        try:
            yield side
        finally:
            side.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
