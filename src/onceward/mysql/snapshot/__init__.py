"""A consistent snapshot in chunks of keys, while others write, without a lock: each chunk is read
**as of one place of the binlog**, whenever it is read.

In reading order: :mod:`catalogue` (definitions of tables), :mod:`keys` (places between keys),
:mod:`state` (the progress, and the next chunks), :mod:`filtering` (of the stream's changes),
:mod:`chunks`, :mod:`result_set` (rows of a query, as bytes).

A batch whose start has the state *s* in ``Position.snapshot``, and whose end, E, has the state
*t*, has those changes in [start, E) that :func:`~.filtering.snapshot_filter` of *s* lets through,
and the chunks of ``t["chunks"]``, each as of E. So a restart plans it from its two positions
alone. E may be the start: then the batch has only chunks, and the position moves in its
``"snapshot"``. E should be close to the end of the binlog, because each chunk reads the binlog
from E on again: a driver that is behind plans batches without chunks first.

The rows of a chunk are those that the table had at E between two places in the order of its
primary key, each once, with the op ``r`` and E as its place; read again later they are the same
rows, byte for byte, in the same order. Changes of a key pass from the E of its chunk on: so each
key begins with ``r`` or ``c``, and each ``before`` equals the ``after`` before it.
"""
