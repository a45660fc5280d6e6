"""A job that writes rows by key to Redis: text files of ``batch-number`` in, the number is the
key. Killed by its own faults.
"""

from __future__ import annotations

import sys
from pathlib import Path

from text_file_jobs import run

import onceward as ow

if __name__ == "__main__":
    folder, url, prefix = sys.argv[1:]
    sink = ow.UpsertSink(
        url=url,
        prefix=prefix,
        key="id",
        pipeline_id="by-key",
        ledger=ow.FolderLedger(f"{folder}/ledger"),
        store=f"{folder}/store",
        chunk_rows=100,
    )
    run(
        Path(folder),
        lambda rows, batch: sink(rows.selectExpr("split(value, '-')[1] AS id", "value"), batch),
    )
