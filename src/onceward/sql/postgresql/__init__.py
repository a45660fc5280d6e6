"""PostgreSQL's part of the sink for databases: :mod:`catalogue`, :mod:`statements`,
:mod:`staging` (what tasks do), :mod:`refusals`; :mod:`prepared` for transactions that tasks
prepare; put together in :mod:`dialect`.
"""
