"""A query's position in a server's binlog, which Spark logs before each batch. Pure.

A position lies between two transactions, never inside one. Version 1 had the last transaction of
each of MariaDB's domains alone, and no prepared transactions. It is read as
:class:`~onceward.mysql.binlog.gtid_sets.GtidBinlogState` has it (``..0-1-27``), and is complete
from the next binlog on.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, NamedTuple

from onceward.errors import SourceContractViolated
from onceward.mysql.binlog.framing import file_number
from onceward.mysql.binlog.gtid_sets import Gtids

VERSION = 2
FIRST_BYTE = 4
"""Offset of the first event of a binlog, behind its magic number."""


class Coordinates(NamedTuple):
    """File and position in a server's binlogs. Files are compared by their numbers, as the server
    counts them, as long as they have one base name: a server that is started with another
    ``--log-bin`` counts anew.
    """

    file: str
    pos: int

    def __str__(self) -> str:
        return f"{self.file}:{self.pos}"

    @property
    def order(self) -> tuple[int, int]:
        """Sorts coordinates of one server and one base name."""
        return (binlog_number(self.file), self.pos)

    def is_at_or_behind(self, other: Coordinates) -> bool:
        """Compare under one base name; the server's index alone orders several."""
        return base_name(self.file) == base_name(other.file) and self.order >= other.order


@dataclass(frozen=True)
class Position:
    """Coordinates, and what identifies the transactions before them."""

    dialect: Literal["mysql", "mariadb"]
    server: str
    """The server of ``file`` and ``pos``: its ``server_uuid``, or a substitute on MariaDB."""
    era: int
    """How often the query has gone on to another server, or to another base name of a server's
    binlogs: coordinates of a later era come later.
    """
    file: str
    pos: int
    born: int | None
    """When the server created ``file``, in seconds since 1970, by the file itself: after RESET
    MASTER there is another file of that name. None: nothing of it was seen yet.
    """
    gtids: str | None
    """All transactions before, as the server writes sets of them; by these the position is found
    on another server. None: some have no GTID.
    """
    snapshot: Any = None
    """See :mod:`onceward.mysql.snapshot.state`. None once it is over."""
    skips: str | None = None
    """MariaDB, behind a failover: transactions that were read on another server, and whose last
    ones have not come here. None: whatever comes is new, by whatever number.
    """
    unordered: bool = False
    """MariaDB: numbers came out of order, and identify no position on another server."""
    prepared: dict[str, bool] | None = None
    """Prepared XA transactions by XID: True for one with rows of selected tables."""

    @property
    def place(self) -> Coordinates:
        return Coordinates(self.file, self.pos)

    def _upgrade(self) -> Position:
        if self.dialect == "mysql" or not self.gtids:
            return self
        return replace(self, gtids=str(Gtids.parse("mariadb", self.gtids).as_start()))

    def to_json(self) -> dict[str, Any]:
        """Return JSON: equal positions are equal texts."""
        return {"mysql": VERSION, **asdict(self)}

    @classmethod
    def from_json(cls, value: Any) -> Position:
        """Parse JSON."""
        if isinstance(value, dict) and value.get("mysql") in (1, VERSION):
            try:
                found = cls(**{name: what for name, what in value.items() if name != "mysql"})
            except TypeError:
                pass
            else:
                return found if value["mysql"] == VERSION else found._upgrade()
        raise SourceContractViolated(
            f"the checkpoint has {str(value)[:200]}, which is no position of mysql_changes of "
            "this version of Onceward",
            next_step="start this query with a checkpoint of its own, and do not change the order "
            "of its sources",
        )


def base_name(file: str) -> str:
    """Return the text before the number: ``binlog`` of ``binlog.000007``."""
    return file.rpartition(".")[0]


def binlog_number(file: str) -> int:
    """Return a binlog's number, which is behind its last dot: 7 for ``binlog.000007``."""
    number = file_number(file)
    if number < 0:
        raise SourceContractViolated(
            f"{file!r} is no name of a binlog: it does not end in a number",
            next_step="use what SHOW BINARY LOGS says",
        )
    return number
