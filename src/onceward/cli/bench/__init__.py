"""``onceward bench``: the encoder beside its peers, and the Kafka sink beside Spark's own, in one run.

In reading order: :mod:`command` (options), :mod:`encoder`, :mod:`records` and :mod:`topics` (the same input for all),
:mod:`contenders` (the queries), :mod:`rounds` (who runs when, and what is measured), :mod:`cpu`, :mod:`figures` (the
arithmetic, pure) and :mod:`display`.
"""

from onceward.cli.bench.command import bench

__all__ = ["bench"]
