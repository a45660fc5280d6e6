"""A job from Kafka into files. Killed by its own faults, or between two renames, where no step
begins or ends.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from text_file_jobs import session, to_the_end

import onceward as ow
from onceward.spark.files.file_system import LocalFiles

DIE_BEFORE_MOVE = "die-before-move"
"""A file in the job's folder that says before which rename that publishes, or which list, from 0,
the job kills itself.
"""

BATCH = 500


def main(folder: Path, servers: str, topic: str, layout: str) -> None:
    if (folder / DIE_BEFORE_MOVE).exists():
        die_before(int((folder / DIE_BEFORE_MOVE).read_text()))
        (folder / DIE_BEFORE_MOVE).unlink()
    spark = session(folder)
    records = ow.kafka_source(
        spark, bootstrap_servers=servers, topic=topic, max_offsets_per_trigger=BATCH
    )
    rows = records.selectExpr("CAST(value AS STRING) AS value", "offset % 3 AS third")
    sink = ow.FileSink(
        path=folder / "out", pipeline_id="files", layout=layout, partition_by="third"
    )
    to_the_end(rows, folder, sink)


def die_before(number: int) -> None:
    move, put_if_absent, published = LocalFiles.move, LocalFiles.put_if_absent, list[str]()

    def publishes(target: str) -> None:
        if not target.startswith("_onceward"):
            if len(published) == number:
                os.kill(os.getpid(), signal.SIGKILL)
            published.append(target)

    def dying(files: LocalFiles, source: str, target: str) -> bool:
        publishes(target)
        return move(files, source, target)

    def dying_before_a_list(files: LocalFiles, path: str, text: str) -> str:
        publishes(path)
        return put_if_absent(files, path, text)

    LocalFiles.move, LocalFiles.put_if_absent = dying, dying_before_a_list


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
