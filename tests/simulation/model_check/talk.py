"""One conversation with a cluster: what is asked, and what of each answer can be compared.

Producer ids are named in the order of their appearance, offsets and epochs are as they are: topics
and transactional ids are the conversation's own. What takes an unknown time on real brokers (a new
topic, a coordinator that loads, markers) is waited for and not written down.
"""

from __future__ import annotations

from simulation.model_check.asking import NOBODY, Asking, Fact, Side
from simulation.model_check.cluster_words import ClusterWords
from simulation.model_check.record_words import RecordWords
from simulation.model_check.transaction_words import TransactionWords

__all__ = ["NOBODY", "Asking", "Fact", "Side", "Talk"]


class Talk(TransactionWords, RecordWords, ClusterWords):
    """See the module."""

    def topic(self, name: str, partitions: int = 1, **settings: str) -> None:
        """A topic, and every leader of it at work."""
        chosen = {key.replace("_", "."): value for key, value in settings.items()}
        self.side.make_topic(self.real(name), partitions, chosen)
        for partition in range(partitions):
            self._end(name, partition)
