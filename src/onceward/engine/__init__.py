"""How a micro-batch runs, whatever it is written to. Runs in the driver.

:mod:`foreach_batch` is the object that users hand to Spark, :mod:`runs` what a run of a query owns
and remembers, :mod:`micro_batch` the nine steps, :mod:`target` what a sink must offer them. For
sinks whose tasks are Python, :mod:`spark_jobs` (driver) and :mod:`task_writer` (executors) are the
jobs; :mod:`two_phase` is the target for whatever can prepare and publish. :mod:`onceward.spark`
knows Spark.
"""
