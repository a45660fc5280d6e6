"""``ow.mysql_changes``: a stream of the changes of a MySQL or MariaDB server's tables, from its
binlog.

In reading order: :mod:`source` (what users call), :mod:`settings`, :mod:`requirements` (what the
server must have set), :mod:`connection`, :mod:`dump` (the conversation in which a server sends its
binlog), :mod:`position` (what Spark logs), :mod:`transactions` (from one to the next),
:mod:`starts` (where a new query begins), :mod:`failover` (the same place on another server),
:mod:`cuts` (batches end where transactions do), :mod:`snapshot` (rows that were there before),
:mod:`parts` (what a task reads).
"""
