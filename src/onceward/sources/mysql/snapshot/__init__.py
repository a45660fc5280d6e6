"""A consistent snapshot in chunks of keys, while others write, without a lock: each chunk is read **as of one position of
the binlog**, whenever it is read.

In reading order: :mod:`catalogue` (what a table looks like, and whether it can be snapshot), :mod:`keys` (a place between
two keys: as JSON, as SQL, and compared with keys in Arrow), :mod:`state` (what is done, under way and left), :mod:`passing`
(which changes of the stream belong to rows that are done), :mod:`results` (rows of a query, as bytes), :mod:`as_of` (a
chunk). The seam with the stream::

    # Beside the driver, `ask` being Callable[[str], rows] on an ordinary session (see sessions.PINNED)
    state = begin(ask, dialect, [("shop", "orders"), …])    # at a new query with starting="initial"; refuses by name
    after = further(ask, dialect, state, chunks=4)          # of a batch that is to bring chunks; may take seconds
    after["chunks"]                                         # JSON, one a task: what this batch brings, as of its end
    is_over(state)                                          # nothing is left: the next position has "snapshot": null

    # In tasks
    filter = Passing(state, dialect, ask)                   # of the position at which the batch *starts*
    blocks = [part for block in decoder.blocks() for part in filter(block)]
    for table in read_chunk(connect, dialect, chunk, as_of, values="text"): …    # tables of CHANGES, op "r"

``state`` is a JSON value, the position's ``"snapshot"``. A batch whose start has the state *s* and whose end, at E, has
the state *t* is made of two things: the changes in [start, E) that ``Passing(s)`` lets through, and the chunks in
``t["chunks"]``, each as of E. So ``partitions(start, end)`` finds both in the two positions, after a crash as before.

When to bring chunks: E should be close to the end of the binlog (``as_of`` undoes what lies between E and the moment of
reading), so a driver that is behind lets a batch go through without chunks first: then the new state is
``waiting(state)``, the same without chunks. A batch with chunks and without a change is a batch: the position moves, if
only in its ``"snapshot"``. E may be the batch's start then.

What is promised, E being a boundary of transactions: the rows of a chunk are those that the table had at E between two
places in the order of its primary key, each once, as op ``r``; read again later they are the same rows, byte for byte,
though maybe in another order (all have the position of E, which is after every change that came before of their keys,
of which there are none, and before every later one). The changes of a key come through from the E of its chunk on: so each
key begins with ``r`` or ``c``, and each ``before`` equals the ``after`` before it.
"""
