"""The real decisions in a simulated world, deterministic by seed; see
``docs/explanation/simulation.md``.
"""
