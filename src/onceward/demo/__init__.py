"""The promise, shown: a job is killed again and again, and its output is exactly right.

The play in order: :mod:`play` (broker, topics, everything around), :mod:`supervisor` (the job's lives), :mod:`etl` and
:mod:`job` (the job, in a process of its own), :mod:`audit` and :mod:`report` (the verdict).
"""
