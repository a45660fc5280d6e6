"""A scenario of the demo: a MySQL that people are written to, its snapshot and changes into Kafka
or PostgreSQL.

In reading order: :mod:`tables` (their rows in three notations), :mod:`workload` (random
transactions), :mod:`input` (a thread that carries them out), :mod:`query` (the job),
:mod:`comparison` (the verdict on a topic), :mod:`scenario`.
"""
