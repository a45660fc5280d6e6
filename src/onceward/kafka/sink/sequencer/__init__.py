"""Sequencer: leases partitions to the tasks that share one producer identity, one task at a
time."""

from __future__ import annotations

from onceward.kafka.sink.sequencer.client import SequencerClient
from onceward.kafka.sink.sequencer.frames import EpochCredentials
from onceward.kafka.sink.sequencer.leases import EpochLeases, ReturnedLease
from onceward.kafka.sink.sequencer.listener import Sequencer

__all__ = ["EpochCredentials", "EpochLeases", "ReturnedLease", "Sequencer", "SequencerClient"]
