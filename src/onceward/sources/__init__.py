"""Where batches come from: Spark's sources, set up so that what they read can be counted exactly once.

Called by users when they define a query; runs in the driver.
"""
