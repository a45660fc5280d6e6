"""Kits for the contract of the sinks for tables of a lake, on Spark; read by the formats' own
readers.
"""

from __future__ import annotations

import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import onceward as ow
from onceward.lake.target import LakeTarget
from onceward_testing.sink_contract import TwoPhaseKit
from support.lake_packages import HAS_ICEBERG


class LakeKit(TwoPhaseKit):
    """One table, with a folder ledger beside it."""

    def __init__(self, lake: Any, folder: Path, *, forgets: bool) -> None:
        self.lake = lake
        self.folder = folder
        super().__init__(lake, self.new_sink, self.values, forgets=forgets)  # type: ignore[arg-type]

    def new_sink(self) -> Any:
        raise NotImplementedError

    def values(self) -> Counter[str]:
        raise NotImplementedError

    @property
    def ledger(self) -> ow.FolderLedger:
        return ow.FolderLedger(self.folder / "ledger")

    def new_target(self) -> LakeTarget:  # type: ignore[override]
        return self.target_for(Publishing(self))

    def target_for(self, sink: Any) -> LakeTarget:  # type: ignore[override]
        target: LakeTarget = sink.new_target()
        self._targets.append(target)
        return target

    def sink(self) -> Any:
        return Publishing(self)


class Publishing:
    """The table of one sink, as the suite for sinks of one's own calls it."""

    def __init__(self, kit: LakeKit) -> None:
        self._sink = kit.new_sink()
        table = self.new_target()._table
        self.committable_version = table.committable_version
        self.commit, self.abort, self.recover = table.commit, table.abort, table.recover
        self.begin, self.upgrade = table.begin, table.upgrade

    def new_target(self) -> LakeTarget:
        target: LakeTarget = self._sink.new_target()
        return target


class DeltaKit(LakeKit):
    """Files of an attempt that nobody commits are nowhere listed."""

    def __init__(self, lake: Any, folder: Path, path: str | None = None) -> None:
        self.path = path or f"{folder}/table"
        if path is None:
            lake.createDataFrame([], "value string").write.format("delta").save(self.path)
        super().__init__(lake, folder, forgets=True)

    def new_sink(self) -> ow.DeltaSink:
        return ow.DeltaSink(path=self.path, pipeline_id="contract", ledger=self.ledger)

    def values(self) -> Counter[str]:
        rows = self.lake.read.format("delta").load(self.path).collect()
        return Counter(row["value"] for row in rows)


class IcebergKit(LakeKit):
    """A table of the session's Hadoop catalog."""

    def __init__(self, lake: Any, folder: Path) -> None:
        if not HAS_ICEBERG:
            pytest.skip("Iceberg was not run with this Spark")
        self.table = f"lake.contract.t{uuid.uuid4().hex}"
        lake.sql(
            f"CREATE TABLE {self.table} (value string) USING iceberg TBLPROPERTIES "
            f"('write.wap.enabled'='true')"
        )
        super().__init__(lake, folder, forgets=False)

    def new_sink(self) -> ow.IcebergSink:
        return ow.IcebergSink(table=self.table, pipeline_id="contract", ledger=self.ledger)

    def values(self) -> Counter[str]:
        self.lake.catalog.refreshTable(self.table)
        return Counter(row["value"] for row in self.lake.table(self.table).collect())
