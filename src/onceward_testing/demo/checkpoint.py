"""How far the query has come, read from Spark's checkpoint folder: the same for every sink, and
without asking the job.

``offsets/<batch>`` holds, as lines, ``v1``, a JSON object of batch metadata and one line per
source; ``commits/<batch>`` exists once Spark has finished the batch (``OffsetSeqLog``,
``CommitLog``). Both are renamed into place. Runs in the supervisor's process, while the job
writes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class QueryProgress:
    """``batch_id``: the newest batch in Spark's commit log. ``watermark_ms``: the watermark that
    batch ran with.
    """

    batch_id: int
    watermark_ms: int


def query_progress(checkpoint: Path) -> QueryProgress | None:
    """The newest finished batch, None before the first one."""
    newest = newest_batch(checkpoint / "commits")
    if newest is None:
        return None
    metadata = json.loads((checkpoint / "offsets" / str(newest)).read_text().splitlines()[1])
    return QueryProgress(newest, int(metadata["batchWatermarkMs"]))


def newest_batch(folder: Path) -> int | None:
    """The highest batch number in one of the checkpoint's logs."""
    try:
        return max(
            (int(entry.name) for entry in folder.iterdir() if entry.name.isdecimal()), default=None
        )
    except FileNotFoundError:
        return None
