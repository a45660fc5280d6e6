"""Rows that a sink refuses, noticed where they are computed: a condition in the frame's own plan.
Driver only.

There is no second reading of the rows, and none in Python. The job fails with the refusal in
Spark's text (:mod:`onceward.spark.batch.carried`), out of which whoever runs the job takes it. No
value of a row is in it.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as f

from onceward.errors import RowRefused
from onceward.spark.batch.carried import Carried


def unless(condition: Column, value: Column, message: str, next_step: str) -> Column:
    """Return ``value``; where ``condition`` is true the job fails."""
    refusal = Carried(RowRefused(message, next_step=next_step))
    return f.when(condition, f.raise_error(f.lit(str(refusal)))).otherwise(value)
