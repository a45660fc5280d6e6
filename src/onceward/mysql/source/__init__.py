"""``ow.mysql_changes``: the changes of a MySQL or MariaDB server's tables, from its binlog.

In reading order: :mod:`source` (the public function), :mod:`settings` (and the position that Spark
logs), :mod:`requirements` (of the server), :mod:`connection`, :mod:`dump`, :mod:`transactions`,
:mod:`ranges` (batches end where transactions do), :mod:`position_search` (starts and failover),
:mod:`partitions` (read by tasks). The rows that were there before are in
:mod:`onceward.mysql.snapshot`.
"""
