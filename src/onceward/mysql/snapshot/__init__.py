"""A consistent snapshot in chunks of keys, while others write, without a lock: each chunk is read
**as of one place of the binlog**, whenever it is read.

In reading order: :mod:`catalogue` (what a table looks like, and whether there can be a snapshot of
it), :mod:`keys` (a place between two keys: as JSON, as SQL, and compared with keys in Arrow),
:mod:`state` (what is done, under way and left), :mod:`passing` (which changes of the stream are of
rows that are done), :mod:`as_of` (a chunk), :mod:`results` (rows of a query, as bytes).

The seam with the stream. A batch whose start has the state *s* in ``Position.snapshot``, and whose
end, E, has the state *t*, is made of two things: those changes in [start, E) that :func:`passing`
of *s* lets through, and the chunks that ``t["chunks"]`` names, each as of E (:func:`read`). So a
restart plans it from its two positions alone. E may be the start: then the batch has only chunks,
and the position moves in its ``"snapshot"``.

When to bring chunks: E should be close to the end of the binlog, for what lies between E and the
moment of reading is read again by each chunk. So a driver that is behind lets batches go through
without chunks first.

What is promised: the rows of a chunk are those that the table had at E between two places in the
order of its primary key, each once, with the op ``r`` and E as its place; read again later they
are the same rows, byte for byte, in the same order. Changes of a key come through from the E of
its chunk on: so each key begins with ``r`` or ``c``, and each ``before`` equals the ``after``
before it. What a change of the table's definition does meanwhile stands in :mod:`as_of`.
"""
