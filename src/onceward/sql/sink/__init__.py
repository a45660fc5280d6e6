"""The sink for tables of a database: rows and ledger record in one transaction of the database, or
in prepared ones.

In reading order: :mod:`sink` (what users build), :mod:`columns` (does a frame fit a table? pure),
:mod:`target`, :mod:`attempt` (one batch), :mod:`frames` (its rows), :mod:`run`, :mod:`settings`;
and :mod:`dialect`, what is asked of a kind of server. Each has a room, :mod:`postgresql` and
:mod:`mysql`: ``types`` and ``statements`` (SQL; both pure), ``catalogue`` (what the server says of
a table), ``staging`` (what tasks do), ``refusals`` (what errors mean).

With ``xa=True`` instead of target and attempt: :mod:`prepared_target`, :mod:`prepared` (how
transactions end that tasks have prepared), :mod:`transaction_names`, :mod:`unchanged` (would the
server change a value?); and in the rooms ``preparing`` (what tasks do) and ``prepared``.
"""
