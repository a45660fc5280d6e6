"""Conversations with a Kafka cluster: transactions (driver), appends (executors), reads of single partitions.

Built on the protocol and connection classes of kafka-python. Bytes of record batches come from ``onceward.records``.
"""
