"""A frame whose plan is made already, to be handed to Spark's own writers. Driver only.

They plan anew whatever they are given. What is asked of the frame's plan afterwards (was a shuffle
of it computed twice? ``spark.shuffles``) would be said of shuffles that nobody has read. So the
frame is planned once, and the rows of that plan are what is written, as ``foreachBatch`` itself
does it (``ForeachBatchSink.addBatch``).
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame


def planned_once(frame: DataFrame) -> DataFrame:
    """Return the rows of ``frame``'s own plan; ``frame`` itself where ``foreachBatch`` has made
    one of such rows.
    """
    if frame._jdf.logicalPlan().getClass().getSimpleName() == "LogicalRDD":
        return frame
    session: Any = frame.sparkSession
    rows = frame._jdf.queryExecution().toRdd()
    return DataFrame(
        session._jsparkSession.internalCreateDataFrame(rows, frame._jdf.schema(), False), session
    )
