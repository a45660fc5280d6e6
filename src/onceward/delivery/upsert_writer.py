"""What :class:`onceward.UpsertSink` asks of those that write for it: ``redis_writer`` and
``opensearch_writer``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import ClassVar

from onceward.delivery.upserts import Upsert


class UpsertWriter(ABC):
    """Called in the driver with what is to be written, as often as it takes. Keeps connections,
    and no rows.
    """

    reserved: ClassVar[frozenset[str]]
    """Names of columns that no row may have."""
    key_bytes: ClassVar[int | None] = None
    """What a key may have at most, in UTF-8."""

    @abstractmethod
    def __call__(self, upserts: Iterable[Upsert]) -> None:
        """Write upserts.

        :raises DeliveryRefused: keys that cannot be written, ever; the others are written.

        :raises Exception: the server does not answer, or not now; some may be written.
        """

    def check(self) -> None:  # noqa: B027 — most places are what they are called
        """Look, before a batch is decided, whether the place is one to which a key can be written
        for ever.

        :raises ConfigurationError: it is not.
        :raises Exception: it cannot be asked now.
        """

    @abstractmethod
    def close(self) -> None:
        """Give back connections; the next call opens them again."""
