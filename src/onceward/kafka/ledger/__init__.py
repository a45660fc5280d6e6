"""The ledger in a Kafka topic."""
