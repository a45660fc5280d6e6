"""Kafka sink: one micro-batch is one transaction, written by all executors in parallel.

In reading order: :mod:`sink` (what the user builds), :mod:`columns` (the frame, checked and
normalised), :mod:`attempt` (one batch as one transaction) over
:mod:`driver_path` (small frames) and :mod:`tasks_path` (all others), :mod:`run` (what a run keeps
for both), :mod:`sequencer` (which task may write a partition, and from which sequence number on),
:mod:`tasks` (what runs on executors), :mod:`task_reports` (what tasks say they did, checked
against the sequencer), :mod:`topics` (settings of topics), :mod:`plain` (the weaker guarantees).
"""
