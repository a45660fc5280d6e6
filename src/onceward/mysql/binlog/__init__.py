"""MySQL's and MariaDB's binlogs as bytes: events in, Arrow columns and changes out. No I/O.

In reading order: :mod:`event` and its errors, :mod:`framing` (packets to events),
:mod:`fields` (of an event's body), :mod:`gtids` over :mod:`gtid_sets`, :mod:`statements` (QUERY
events) over :mod:`sql_effects` and :mod:`sql_tables`, :mod:`compression`; :mod:`table_map` and
:mod:`rows` (where each cell is), :mod:`values` (cells to Arrow, and a SELECT's values to the same)
over :mod:`fixed_width`, :mod:`charsets` and :mod:`json_binary`; :mod:`json_rows` (Arrow to JSON),
:mod:`blocks` (rows of a table to changes), :mod:`decoder` (all of it: events to changes).
"""
