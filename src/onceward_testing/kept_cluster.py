"""What a kept folder says of the cluster whose data it holds: its id, and where its nodes were
reached.

Called by :mod:`onceward_testing.local_kafka` for a ``folder=``; clients of an earlier start find
the nodes there again.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from onceward.errors import ConfigurationError
from onceward_testing.broker_settings import NodePorts

_FILE = "cluster.json"


@dataclass(frozen=True)
class KeptCluster:
    """One file in the folder, written before the data are."""

    cluster_id: str
    version: str
    ports: list[NodePorts]

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = folder / f"{_FILE}.new"
        unfinished.write_text(json.dumps(asdict(self)))
        unfinished.replace(folder / _FILE)

    def or_what_is_in(self, folder: Path) -> KeptCluster:
        """The cluster whose data ``folder`` holds, otherwise this new one.

        :raises ConfigurationError: it holds another kind than is asked for.
        """
        path = folder / _FILE
        if not path.exists():
            return self
        told = json.loads(path.read_text())
        kept = KeptCluster(
            told["cluster_id"], told["version"], [NodePorts(**ports) for ports in told["ports"]]
        )
        if (kept.version, len(kept.ports)) != (self.version, len(self.ports)):
            raise ConfigurationError(
                f"{folder} holds {len(kept.ports)} node(s) of Kafka {kept.version}, "
                f"not {len(self.ports)} of {self.version}",
                next_step="start LocalKafka with these, or name another folder",
            )
        return kept
