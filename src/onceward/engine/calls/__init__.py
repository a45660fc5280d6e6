"""Calls of the user's function: what one may do with a batch, journal, replay, advice."""
