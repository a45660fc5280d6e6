"""Calls of a sink by a user's function: what one may do with a batch, and what a failed one
leaves.

In reading order: :mod:`foreach_batch` is the object that users hand to Spark, :mod:`batch`
collects the frames of a call, :mod:`runs` has one owner for each chain in a run of a query,
:mod:`journal` remembers failed calls, :mod:`replay` runs a committed batch again, :mod:`advice`
has every refusal with its next step.
"""
