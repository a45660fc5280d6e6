"""A database: ``server`` (sessions, transactions, locks), ``line`` (what befalls statements on
their way), ``statements`` (what they mean), ``postgresql`` and ``mysql`` (as client libraries
speak of it), ``stand_ins`` (where they go).

In ``world.database`` there is one :class:`~simulation.world.database.server.Server`.
"""

from __future__ import annotations

from simulation.world.database.line import FAULTS
from simulation.world.database.server import Server

__all__ = ["FAULTS", "Server"]
