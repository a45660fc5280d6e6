"""What is MySQL's and MariaDB's own in the sink for databases: :mod:`types`, :mod:`catalogue`,
:mod:`statements`, :mod:`lines` (rows as LOAD DATA reads them), :mod:`loading`, :mod:`staging`
(what tasks do), :mod:`refusals`; :mod:`preparing` and :mod:`prepared` for transactions that tasks
prepare; put together in :mod:`dialect`.
"""
