"""Rows that were there before the stream: in chunks, as of the ends of batches.

The seam with :mod:`source` (what it calls, when, and where; all state is JSON and lives in ``Position.snapshot``):

* ``begin(server, settings, start) -> state``: beside the driver, in ``start()``, for ``starting="initial"``. ``start``
  is the place in the binlog at which the stream begins. What is returned becomes ``start.snapshot``.
* ``advance(server, settings, start, end, caught_up) -> state | None``: beside the driver, each time that a batch is cut
  while ``start.snapshot`` is not None. The batch will have the stream's range [start, end), whose end is a transaction
  boundary (``end.snapshot`` is not set yet; the range may be empty), and the chunks that this names, as of ``end``. The
  state that it returns is ``end.snapshot``: it names the batch's chunks, too, for a restart calls :func:`parts` with the
  two positions alone. ``caught_up``: ``end`` is where the binlog ended just now; where it is not, the state may be
  returned as it is (a batch without chunks). None: nothing is left, and ``start.snapshot`` named the last chunks.
* ``parts(start, end) -> list of JSON values``: beside the driver; the chunks of the batch, one part each. Each is given
  back to :func:`read` as it is, with ``"position": end.to_json()`` beside it, as ``{"chunk": …, "position": …}``.
* ``read(settings, chunk, end) -> pa.Table``: in a task: the rows of one chunk, op "r", as of ``end``; in the columns of
  :data:`onceward.binlog.changes.CHANGES` (file, pos those of ``end``, inner 0, row counted).
* ``flush(decoder, state) -> pa.Table``: in a task, in the place of ``decoder.flush()``, for the stream's parts of a
  batch with ``start.snapshot``: without changes of rows whose chunk was not emitted before this batch.

``server`` is a :class:`onceward.sources.mysql.connection.Server` (``ask(statement, parameters) -> rows``, ``dialect``,
``version``, ``end()``), and ``onceward.sources.mysql.connection.reading(settings, position_server, file, pos)`` opens a
dump. Positions are :class:`onceward.sources.mysql.position.Position`.
"""
