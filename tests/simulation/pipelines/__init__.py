"""Pipelines at work in the simulated world, one module for each kind of target: what users build,
and what must come of it.
"""
