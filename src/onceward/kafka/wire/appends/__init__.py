"""Appending record batches to partitions inside an open transaction. The executors' side."""
