"""A job with a sink of one's own, the one of the examples: text files in, files out. Killed by its
own faults.
"""

from __future__ import annotations

import sys
from pathlib import Path

from text_file_jobs import run

import onceward as ow

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
import folder_sink
from pyspark import cloudpickle

cloudpickle.register_pickle_by_value(folder_sink)  # executors have no examples

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    ledger = ow.FolderLedger(folder / "ledger")
    run(
        folder,
        folder_sink.FolderSink(folder=folder / "out", pipeline_id="own-sink", ledger=ledger),
    )
