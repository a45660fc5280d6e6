"""Kafka: one micro-batch is one transaction, written by all executors in parallel.

In reading order: :mod:`sink` (what the user builds), :mod:`columns` (the frame, checked and normalised),
:mod:`target` (the driver's side of the steps), :mod:`sequencer` (who may write a partition, and from which sequence
number on), :mod:`tasks` (what runs on executors), :mod:`report` (what tasks say they did, checked against the
sequencer's book), :mod:`preflight` (what is checked before the first batch), :mod:`plain` (the weaker guarantees).
"""
