"""The pages of ``onceward dashboard``, and the static one of ``onceward report``.

Read-only: ledgers, coordinators and logs are looked at, in one thread (``watch``), and pages are
made of what it has found (``pages``), so that none of them waits for a cluster.
"""
