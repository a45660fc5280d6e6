"""What a table map or a rows event says of itself, read from front to back: :class:`PackedBytes`.
Pure.

Called by :mod:`table_map` and :mod:`column_types`, once for each table map, and by :mod:`changes`.
"""

from __future__ import annotations

from onceward.errors import BinlogDamaged
from onceward.mysql.binlog.lengths import Lengths
from onceward.mysql.binlog.refusals import damaged


class PackedBytes(Lengths[bytes]):
    """:param what: it is, for the error."""

    def __init__(self, data: bytes, what: str, start: int = 0) -> None:
        super().__init__(data, start)
        self._what = what

    def byte(self) -> int:
        """The next one."""
        return self.take(1)[0]

    def at_most(self, count: int) -> int:
        """``count`` things, each of which takes a byte or more."""
        if count > self.left:
            raise self._short()
        return count

    def _short(self) -> BinlogDamaged:
        return damaged(f"{self._what} ends before what it says it has")

    def _odd(self, first: int) -> BinlogDamaged:
        return damaged(f"{self._what} has a number that begins with {first}, which none does")
