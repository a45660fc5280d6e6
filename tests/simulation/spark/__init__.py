"""Spark as a model: ``query`` (logs, batches, replays), ``jobs`` (stages, tasks, what is lost),
``frames``, and ``stand_ins``, which puts it where the product calls Spark.
"""
