"""Kafka's record batches as bytes: Arrow columns in, batches out, and a reader. No I/O anywhere.
In reading order: :mod:`columns` (the input), :mod:`partitioner` (where rows go), :mod:`batch`
(fragments and their stamp) over :mod:`layout` and :mod:`varint`, :mod:`compression` (Kafka's
framings), :mod:`checksum` (for the manifest), :mod:`reader` (batches back to records)."""
