"""Command line of demo and broker."""
