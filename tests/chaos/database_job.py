"""A job that writes to a table: text files in, rows out. Killed by its own faults."""

from __future__ import annotations

import sys
from pathlib import Path

from text_file_jobs import run

import onceward as ow

if __name__ == "__main__":
    run(Path(sys.argv[1]), ow.DatabaseSink(url=sys.argv[2], table=sys.argv[3], pipeline_id="database-job"))
