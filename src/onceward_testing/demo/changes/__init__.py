"""The demo whose input is a MySQL that people write to: snapshot, changes, and what becomes of
them.

In reading order: :mod:`rows` (the tables, and values in three writings), :mod:`town` (who writes
what), :mod:`feed` (a thread that does it), :mod:`etl` (the job), :mod:`verdict` (what must have
come out), :mod:`scenario`.
"""
