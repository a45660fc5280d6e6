"""A scenario of the demo: people registered in Kafka, through tumbling windows into any sink.

In reading order: :mod:`people` (the records and the model of the output), :mod:`input` (writes
them), :mod:`query` (the job), :mod:`scenario`.
"""
