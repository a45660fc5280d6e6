"""Into tables of a lake: Delta Lake and Apache Iceberg.

In reading order: :mod:`sinks` is what users build, :mod:`attempt` writes one batch so that nobody
sees it, :mod:`delta` and :mod:`iceberg` publish it by the table format's own commit, :mod:`target`
joins them to the engine.
"""
