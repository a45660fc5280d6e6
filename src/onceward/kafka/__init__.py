"""Kafka: records, wire protocol, source, sink, ledger and dead letters."""
