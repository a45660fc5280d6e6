"""Kafka as a source: positions in the ledger, identity of topics, lineage of rows."""
