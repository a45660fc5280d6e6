"""Reading: the newest committed value of a key, and offsets of partitions and consumer groups."""
