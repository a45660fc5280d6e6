"""Lets tasks that share one producer identity take turns on a partition; ``server`` tells how."""

from __future__ import annotations

from onceward.kafka.sink.sequencer.book import EpochBook, LeaseTurn
from onceward.kafka.sink.sequencer.lease import SequencerConnection
from onceward.kafka.sink.sequencer.server import Sequencer
from onceward.kafka.sink.sequencer.ticket import EpochTicket

__all__ = ["EpochBook", "EpochTicket", "LeaseTurn", "Sequencer", "SequencerConnection"]
