"""Kafka: one micro-batch is one transaction, written by all executors in parallel.

In reading order: :mod:`sink` (what the user builds), :mod:`columns` (the frame, checked and
normalised), :mod:`target` (the pipeline), :mod:`attempt` (one batch as one transaction),
:mod:`run` (what a run keeps for both), :mod:`group_offsets` (of sources on the same cluster),
:mod:`sequencer` (who may write a partition, and from which sequence number on), :mod:`tasks` (what
runs on executors), :mod:`task_reports` (what tasks say they did, checked against the sequencer's
book), :mod:`preflight` (what is checked before the first batch), :mod:`plain` (the weaker
guarantees).
"""
