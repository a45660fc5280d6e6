"""Sinks for targets without transactions: rows are stored durably, decided, then delivered.

In reading order: :mod:`sink` (what users build), :mod:`target` (the order of things after the
decision), :mod:`chunks` (which rows are delivered together; pure), :mod:`row_files` (what tasks
store). On top of these :mod:`upsert_sink`, :mod:`upserts` (which key gets which row, in which
version; pure; and the interface of a writer), :mod:`redis_writer` and
:mod:`opensearch_writer` (with :mod:`opensearch_answers`, which may pass; pure).
"""

from onceward.delivery.chunks import Chunk as Chunk
from onceward.delivery.upserts import Upsert as Upsert

__all__ = ["Chunk", "Upsert"]
