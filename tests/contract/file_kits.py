"""Kits for the contract of the file sink: on Spark, and in this process, where a writer of
pyarrow's stands for it.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as dataset
import pyarrow.parquet as parquet
import pytest

import onceward as ow
from onceward.files.target import FileTarget
from onceward.spark.files import file_writer
from onceward.spark.files.file_system import Files
from onceward.spark.files.file_writer import FileFormat, WrittenFiles
from onceward_testing.sink_contract import Died, TwoPhaseKit
from support.tasks_here import ArrowFrame


class FileKit(TwoPhaseKit):
    """Files of one layout and format below a folder, read by pyarrow.

    :param partitioned: by a column that the frames have besides.
    """

    def __init__(
        self, spark: Any, folder: Path, layout: str, file_format: str, *, partitioned: bool = False
    ) -> None:
        self.folder = folder
        self.layout = layout
        self.format = file_format
        self.partitioned = partitioned
        self.settings: dict[str, Any] = {}  # of later sinks, instead of the kit's own
        super().__init__(spark, self.new_sink, self.values)  # type: ignore[arg-type]

    def new_sink(self) -> ow.FileSink:
        given = {
            "path": f"file://{self.folder}/out",
            "pipeline_id": "contract",
            "layout": self.layout,
            "format": self.format,
            "partition_by": "initial" if self.partitioned else None,
        }
        return ow.FileSink(**{**given, **self.settings})

    def new_target(self) -> FileTarget:
        return self.target_for(Publishing(self))

    def target_for(self, sink: Any) -> FileTarget:
        target: FileTarget = sink.new_target()
        self._targets.append(target)
        return target

    def sink(self) -> Any:
        return Publishing(self)

    def frame(self, values: Sequence[str], tasks: int = 2) -> Any:
        frame = super().frame(values, tasks)
        return (
            frame.selectExpr("value", "substring(value, 1, 1) AS initial")
            if self.partitioned
            else frame
        )

    def published(self) -> list[str]:
        """The files that a reader finds who passes over what is hidden, or goes by the lists."""
        out = self.folder / "out"
        if self.layout == "manifest":
            lists = sorted((out / "_symlink_format_manifest").glob("[!.]*"))
            return [
                line.removeprefix("file://")
                for path in lists
                for line in path.read_text().splitlines()
            ]
        return (
            dataset.dataset(str(out), format=self.format, partitioning="hive").files
            if out.exists()
            else []
        )

    def values(self) -> Counter[str]:
        """Where two names have the same rows, twice."""
        files = self.published()
        tables = [
            dataset.dataset(file, format=self.format).to_table(columns=["value"]) for file in files
        ]
        return Counter(value for table in tables for value in table.column("value").to_pylist())


def dying_before_the_note_goes(patch: pytest.MonkeyPatch, files: type[Files]) -> None:
    """Of layout "manifest": behind the list that makes a batch visible."""
    remove = files.remove

    def dying(self: Files, path: str) -> None:
        if path.startswith("_onceward/prepared"):
            raise Died
        remove(self, path)

    patch.setattr(files, "remove", dying)


class Publishing:
    """The publisher of one sink, as the suite for sinks of one's own calls it."""

    def __init__(self, kit: FileKit) -> None:
        self._sink = kit.new_sink()
        self._publisher = self.new_target()._publisher
        self.committable_version = self._publisher.committable_version
        self.commit, self.abort = self._publisher.commit, self._publisher.abort
        self.recover, self.begin = self._publisher.recover, self._publisher.begin
        self.upgrade = self._publisher.upgrade

    def new_target(self) -> FileTarget:
        return self._sink.new_target()


class HereKit(FileKit):
    """Without Spark: a writer of pyarrow's carries out the job, one file a task."""

    def __init__(self, folder: Path, layout: str, patch: pytest.MonkeyPatch) -> None:
        super().__init__(None, folder, layout, "parquet")
        patch.setattr(file_writer, "write", write_here)

    def frame(self, values: Sequence[str], tasks: int = 2) -> ArrowFrame:
        return ArrowFrame(pa.table({"value": pa.array(values, pa.string())}))

    def failing(self, values: Sequence[str]) -> ArrowFrame:
        return replace(self.frame(values), error=ValueError("this plan hurts"))


def write_here(
    frame: ArrowFrame, folder: str, how: FileFormat, computation: object, lost: object
) -> WrittenFiles:
    """In the place of :func:`onceward.spark.files.file_writer.write`."""
    out = Path(folder.removeprefix("file://"))
    out.mkdir(parents=True, exist_ok=True)
    rows, files = 0, []
    for number in range(frame.tasks):
        path = out / f"part-{number:05}-{uuid.uuid4()}.parquet"
        with parquet.ParquetWriter(path, frame.rows.schema) as writer:
            for part in frame.part(number):
                writer.write_batch(part)
                rows += part.num_rows
        files.append(path)
    return WrittenFiles(rows, len(files), sum(path.stat().st_size for path in files))
