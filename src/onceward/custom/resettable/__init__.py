"""Sources that can be read again from a position: a cursor, a page, an id, a place in a file.

In reading order: ``source`` (the classes to subclass), ``offsets`` (what Spark logs), ``ranges``
(read, and read again), ``fitting`` with ``values`` (rows that fit the schema, or are refused),
``contents`` (a checksum), ``reader`` (what Spark calls: in a process beside the driver, and in
tasks).
"""
