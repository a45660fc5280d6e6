"""Lets tasks that share one producer identity take turns on a partition; ``server`` tells how."""

from __future__ import annotations

from onceward.sinks.kafka.sequencer.book import EpochBook, LeaseTurn
from onceward.sinks.kafka.sequencer.lease import SequencerConnection
from onceward.sinks.kafka.sequencer.server import Sequencer
from onceward.sinks.kafka.sequencer.ticket import EpochTicket

__all__ = ["EpochBook", "EpochTicket", "LeaseTurn", "Sequencer", "SequencerConnection"]
