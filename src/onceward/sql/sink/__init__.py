"""The sink for tables of a database: rows and ledger record in one transaction, or prepared ones.

In reading order: :mod:`sink` (what users build, and its side of a pipeline), :mod:`columns` (does
a frame fit a table, and would the server change a value? pure), :mod:`attempt` (one batch and its
rows), :mod:`run` (with the settings); and :mod:`dialect`, the interface of a kind of server. Each
has a package, :mod:`onceward.sql.postgresql` and :mod:`onceward.sql.mysql`: ``statements`` (SQL;
pure), ``catalogue`` (what the server says of a table, and the types that fit), ``staging`` (what
tasks do), ``refusals`` (what errors mean).

With ``xa=True`` instead of attempt: :mod:`prepared_target`, :mod:`prepared` (how transactions end
that tasks have prepared); and for each server ``prepared`` (what tasks
do, and the driver).
"""
