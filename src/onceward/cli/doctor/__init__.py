"""What is amiss before a pipeline starts, and the rights that it needs.

:mod:`checks` looks at this machine and at the brokers, :mod:`worker_python` at the Python that
Spark's workers would run, :mod:`slowest_batch` at a pipeline's ledger, :mod:`consumers` at who
reads its output, :mod:`mysql_changes` at a server whose changes are to be read; each of what they
find is a :mod:`finding`. :mod:`acl_lines` and :mod:`mysql_lines` print what somebody has to grant
or to set.
"""
