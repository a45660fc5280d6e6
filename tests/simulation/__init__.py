"""The real decisions in a simulated world, deterministic by seed:
``docs/explanation/simulation.md`` tells what and why.
"""
