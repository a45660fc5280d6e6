"""The sink for tables of a PostgreSQL database: rows and ledger record in one transaction of the database.

In reading order: :mod:`sink` (what users build), :mod:`columns` (does a frame fit a table? pure), :mod:`target`,
:mod:`attempt` (one batch), :mod:`staging` (what tasks do), :mod:`statements` (SQL, pure), :mod:`catalogue` (what the
server says of a table), :mod:`refusals` (what its errors mean), :mod:`settings`.
"""
