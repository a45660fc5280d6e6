"""Kafka's record batches as bytes: Arrow columns in, batches out, and a reader for pair checks. No
I/O anywhere.

In reading order: :mod:`columns` (what comes in), :mod:`partitioner` over :mod:`murmur2` (where
rows go), :mod:`batch` (fragments and their stamp) over :mod:`layout`, :mod:`headers` and
:mod:`varint`, :mod:`compression` (Kafka's framings), :mod:`checksum` (what the manifest says),
:mod:`reader` (batches back to records).
"""
