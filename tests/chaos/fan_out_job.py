"""A job that writes to a topic and into files, decided by the Kafka transaction. Killed by its own
faults.
"""

from __future__ import annotations

import sys
from pathlib import Path

from text_file_jobs import run

import onceward as ow

if __name__ == "__main__":
    folder, servers, topic, ledger_topic = sys.argv[1:]
    sink = ow.FanOut(
        {
            "topic": ow.KafkaSink(
                bootstrap_servers=servers,
                topic=topic,
                pipeline_id=topic,
                ledger_topic=ledger_topic,
                driver_records=0,
            ),
            "files": ow.FileSink(
                path=Path(folder) / "out",
                pipeline_id=topic,
                ledger=ow.KafkaLedger(servers, ledger_topic),
            ),
        },
        select={"files": lambda frame: frame.selectExpr("value", "length(value) AS long")},
    )
    run(Path(folder), sink)
