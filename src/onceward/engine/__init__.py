"""How a micro-batch runs, whatever it is written to. Runs in the driver.

:mod:`micro_batch` holds the nine steps, :mod:`target` what a sink must offer them, :mod:`foreach_batch` the object
that users hand to Spark, :mod:`spark_query` the only place that knows Spark's internals.
"""
