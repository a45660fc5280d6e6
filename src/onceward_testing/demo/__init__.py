"""A demonstration of exactly once: a job is killed again and again, and its output is exactly
right.

In reading order: :mod:`run` (brokers, scenario and verdict), :mod:`supervisor` (starts the job,
kills it, starts it again), :mod:`job` (its process), :mod:`report` (the result). Two scenarios:
:mod:`windows` (records of Kafka through tumbling windows into any sink) and :mod:`changes` (the
changes of a MySQL into Kafka or PostgreSQL).
"""
