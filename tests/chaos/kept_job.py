"""A job as users write it for ``onceward run``: it defines its query, waits, and knows nothing of
exit statuses. ``kept_job.py '<JobSettings as JSON>'``; it arms the fault points of its environment
and writes every event of the engine to ``news``, with its process id.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from pipeline_job import Hold, JobSettings, StepNews, session, start

import onceward as ow
from onceward import events
from onceward_testing import faults

settings = JobSettings(**json.loads(sys.argv[1]))
news = StepNews(settings.news)
spark = session(settings)
news.tell("session", pid=os.getpid())
events.probe(news.tell_step)
faults.arm_from_environment()
if settings.hold:
    events.probe(Hold(settings.hold, Path(settings.folder) / "go"))
records = ow.kafka_source(
    spark,
    bootstrap_servers=settings.bootstrap_servers,
    topic=settings.source,
    max_offsets_per_trigger=settings.max_offsets,
    options=settings.options,
)
how = os.environ.get("KEPT_JOB_WAITS")
if how == "supervised":
    ow.supervise(lambda: start(settings, records), ow.restart.FixedDelay(delay_s=0.1))
elif how == "as Spark does":
    start(settings, records).awaitTermination()
else:
    ow.wait(start(settings, records))
news.tell("ended", pid=os.getpid())
