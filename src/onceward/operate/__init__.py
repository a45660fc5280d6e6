"""Running pipelines: what is done when one stops.

:mod:`restart` are the strategies (pure), :mod:`supervise` starts a query again and again by one of
them, :mod:`runner` a whole job. :mod:`run_job` says why a job ended, :mod:`stopping` ends one at a
batch boundary.
"""
