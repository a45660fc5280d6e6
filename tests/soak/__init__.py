"""The long run: random faults on a whole pipeline for an hour or a day, and at its end a verdict.
``make soak``.
"""
