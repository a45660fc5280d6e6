"""Leases of partitions for tasks that share a producer identity: one task at a time has each."""
