"""MySQL's and MariaDB's binlogs as bytes: events in, Arrow columns and changes out. No I/O
anywhere.

In reading order: :mod:`event` (one event), :mod:`stops` (the errors), :mod:`kinds` (which events
there are, and which may be passed over), :mod:`framing` (packets to events), :mod:`lengths`
(fields of a body), :mod:`gtids` over :mod:`gtid_sets`, :mod:`statements` (what a QUERY event says)
over :mod:`sql_verdicts` and :mod:`sql_words`, :mod:`packed` (compressed transactions and rows);
:mod:`column` and :mod:`column_types` (how each type is stored), :mod:`table_map` (what a table
looked like), :mod:`rows` (where each cell is), :mod:`values` (cells to Arrow, and what a SELECT
gives), over :mod:`charsets`, :mod:`json_binary` and :mod:`float_text`; :mod:`texts` and
:mod:`texts_debezium` (Arrow columns to JSON), :mod:`blocks` (rows of a table to changes),
:mod:`changes` (all of it: events to changes), with the errors of :mod:`refusals`.
"""
