"""Into tables of a lake: Delta Lake and Apache Iceberg.

In reading order: :mod:`sinks` is what users build, :mod:`target` joins it to the engine and writes
each batch so that nobody sees it, :mod:`delta` and :mod:`iceberg` publish it by the table format's
own commit.
"""
