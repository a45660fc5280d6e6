"""What is amiss before a pipeline starts, and the rights that it needs.

:mod:`checks` looks at this machine and at the brokers, :mod:`worker_python` at the Python that Spark's workers would
run, :mod:`slowest_batch` at a pipeline's ledger, :mod:`consumers` at who reads its output, :mod:`acl_lines` prints
rights; each of what they find is a :mod:`finding`.
"""
