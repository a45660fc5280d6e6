"""The pipeline's own memory: one record a batch, committed with the batch, and what may follow it.

Called by ``engine`` and ``sources``; runs in the driver. :mod:`record` is the value, :mod:`admission` the decision
(both without I/O), :mod:`topic` keeps records in Kafka.
"""
