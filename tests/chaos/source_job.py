"""A job with a source of one's own: the lines of a growing file into files, until a file says that
all is written.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from text_file_jobs import session

import onceward as ow

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
import growing_file
from pyspark import cloudpickle

cloudpickle.register_pickle_by_value(growing_file)  # Spark's processes have no examples

ROWS_A_BATCH = 40

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    spark = session(folder)
    source = growing_file.GrowingFile(folder / "log.txt")
    lines = source.stream(spark, max_rows_per_batch=ROWS_A_BATCH, poll_seconds=0.05)
    sink = ow.FileSink(
        path=str(folder / "out"),
        format="parquet",
        pipeline_id="source",
        ledger=ow.FolderLedger(folder / "ledger"),
    )
    query = (
        lines.writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .start()
    )
    while query.isActive and not (folder / "complete").exists():
        time.sleep(0.1)
    query.processAllAvailable()
    query.stop()
