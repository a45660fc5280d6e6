"""A job that delivers to an HTTP server: text files in, chunks out. Killed by its own faults."""

from __future__ import annotations

import sys
from pathlib import Path

from text_file_jobs import run

import onceward as ow

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from support.http_target import post

if __name__ == "__main__":
    folder, url = Path(sys.argv[1]), sys.argv[2]
    sink = ow.WriteAheadSink(
        deliver=lambda chunk: post(url, chunk.key, [row["value"] for row in chunk.to_pylist()]),
        pipeline_id="to-http",
        ledger=ow.FolderLedger(folder / "ledger"),
        store=folder / "store",
        chunk_rows=100,
    )
    run(folder, sink)
