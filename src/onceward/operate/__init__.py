"""Running pipelines: what is done when one stops.

:mod:`restart` are the strategies (pure), :mod:`supervise` starts a query again and again by one of
them.
"""
