"""A folder of Parquet files."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pyarrow.dataset as dataset

from onceward_testing.demo.audit import CheckerFacts, OutputFacts, ask
from onceward_testing.demo.outputs.output import CountingTail, OutputOfNumbers
from onceward_testing.demo.settings import PIPELINE_ID
from onceward_testing.verdict import exactly_once


class FilesOutput(OutputOfNumbers):
    """See the module."""

    reader = "a reader of Parquet"

    def __enter__(self) -> FilesOutput:
        self._made = Path(tempfile.mkdtemp(prefix="onceward-files-"))
        self._folder = self._made / "people"
        self.address = self._folder.as_uri()
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._made, ignore_errors=True)

    def make(self) -> None:
        self._folder.mkdir()

    def tail(self) -> CountingTail:
        return CountingTail(lambda: int(self._seen().count_rows()))

    def read(self, expected: set[str], poison: Sequence[bytes]) -> OutputFacts:
        rows = self._seen()
        numbers = (
            rows.to_table(columns=["number"]).column("number").to_pylist() if rows.files else []
        )
        prepared = self._folder / "_onceward" / "prepared"
        left = (
            [f"prepared folder {path.name}" for path in sorted(prepared.iterdir())]
            if prepared.is_dir()
            else []
        )
        return OutputFacts(exactly_once(expected, numbers), left_over=left)

    def ask_the_checker(self) -> CheckerFacts:
        return ask(
            "--pipeline-id", PIPELINE_ID, "--files", str(self._folder), "--expect-caught-up"
        )

    def _seen(self) -> dataset.FileSystemDataset:
        """What a reader lists; names that begin with ``_`` or ``.`` are passed over."""
        return dataset.dataset(self._folder, format="parquet", partitioning="hive")
