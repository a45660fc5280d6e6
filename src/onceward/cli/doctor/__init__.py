"""Checks before a pipeline starts, and the rights that it needs.

:mod:`checks` looks at this machine, at the brokers, and at how near a pipeline's batches come to
their timeout; :mod:`consumers` at who reads its output, :mod:`mysql_changes` at a server whose
changes are to be read. :mod:`acl_lines` prints what somebody has to grant.
"""
