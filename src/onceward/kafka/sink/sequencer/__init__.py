"""Sequencer: leases partitions to the tasks that share one producer identity, one task at a
time."""
