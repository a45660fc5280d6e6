"""Conversations with a Kafka cluster, in four rooms, and what they share.

:mod:`options` are the settings of a client, :mod:`transactions` the driver's side of a batch,
:mod:`appends` the executors', :mod:`reads` the ledger and the sources' offsets. Shared by all:
:mod:`client` and :mod:`connections` send, :mod:`conversation` asks again until there is an answer
or a :mod:`deadline` is over, :mod:`error_table` says what a refusal means, :mod:`acls` which right
is missing; :mod:`admin` creates topics and reads settings.

Built on the protocol and connection classes of kafka-python. Bytes of record batches come from
``onceward.kafka.records``.
"""
