"""The promise, shown: a job is killed again and again, and its output is exactly right.

The play in order: :mod:`play` (brokers, and everything around), :mod:`scenario` (what a demo is
about: :mod:`windows`, or :mod:`changes`), :mod:`job_lives` (the job is started, killed and started
again), :mod:`job` (its process), :mod:`audit` and :mod:`report` (the verdict).
"""
