"""``make bench``: the encoder beside its peers, and the Kafka sink beside Spark's own, in one run.

In reading order: :mod:`__main__` (options), :mod:`plan` (what runs when; pure), :mod:`contenders`
(who), :mod:`contender_process` and :mod:`job` (each in a Spark of its own), :mod:`encoder`,
:mod:`records` and :mod:`topics` (the same input for all), :mod:`rounds` (throughput) and
:mod:`latency` with :mod:`load`, both on a :mod:`local_broker`; :mod:`cpu`; :mod:`figures` and
:mod:`latency_figures` (the arithmetic, pure); :mod:`display`.
"""
