"""The real decisions in a simulated world, deterministic by seed: ``docs/simulation.md`` tells
what and why.
"""
