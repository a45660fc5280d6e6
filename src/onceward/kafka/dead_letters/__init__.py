"""Dead letters: what is in such a topic, and how it gets back to where it came from, exactly once.

Called by ``onceward dead-letters list | show | replay``; runs in the command line. In reading
order: :mod:`topic` (a letter, and those of a topic, streamed), :mod:`text` (what is shown),
:mod:`ledger` (what has been replayed), :mod:`sending` (one transaction) and :mod:`replay`.
"""
