"""A job that writes to a table: text files in, rows out. Killed by its own faults. ``xa``: its
tasks prepare.
"""

from __future__ import annotations

import sys
from pathlib import Path

from text_file_jobs import run

import onceward as ow

if __name__ == "__main__":
    folder, url, table, *more = sys.argv[1:]
    run(Path(folder), ow.DatabaseSink(url=url, table=table, pipeline_id=table, xa="xa" in more))
