"""The pipeline's own memory: one record a batch, which is or goes with its decision, and what may
follow it.

Called by ``engine`` and ``sources``; runs in the driver. :mod:`record` is the value,
:mod:`admission` the decision (both without I/O). A pipeline's records are a :mod:`chain`; it is
kept in a topic, a folder or a table (``onceward.kafka.ledger``, ``onceward.files.ledger``,
``onceward.sql.ledger``).
"""
