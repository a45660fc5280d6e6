"""Where a query stands in a server's binlog: what Spark logs before each batch. Pure.

Runs wherever the source is read. A position lies between two transactions, never inside one.

Version 1 had of MariaDB the last transaction of each domain alone, and nothing of prepared
transactions. It is read as what it means (``..0-1-27``, see
:class:`~onceward.mysql.binlog.gtid_sets.MariaState`), and is whole from the next binlog on.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, NamedTuple

from onceward.errors import SourceBroken
from onceward.mysql.binlog.framing import file_number
from onceward.mysql.binlog.gtids import Gtids

VERSION = 2
FIRST_BYTE = 4
"""Of the first event of a binlog: behind its magic number."""


class Place(NamedTuple):
    """A byte of a server's binlogs. Files are compared by their numbers, as the server counts
    them, as long as they have one base name: a server that is started with another ``--log-bin``
    counts anew.
    """

    file: str
    pos: int

    def __str__(self) -> str:
        return f"{self.file}:{self.pos}"

    @property
    def order(self) -> tuple[int, int]:
        """Places of one server and one base name, in the order of its writing."""
        return (number_of(self.file), self.pos)

    def is_at_or_behind(self, other: Place) -> bool:
        """Under one base name. Of two base names nobody knows the order without the server's
        index.
        """
        return base_of(self.file) == base_of(other.file) and self.order >= other.order


@dataclass(frozen=True)
class Position:
    """A place, and what tells whether the server at hand still has the same transactions before
    it.
    """

    dialect: Literal["mysql", "mariadb"]
    server: str
    """Which server's binlogs ``file`` and ``pos`` are of: its ``server_uuid``, or what stands for
    it on MariaDB.
    """
    era: int
    """How often the query has gone on to another server, or to another base name of a server's
    binlogs: places of a later era come later.
    """
    file: str
    pos: int
    born: int | None
    """When the server began to write ``file``, in seconds since 1970, by the file itself: after
    RESET MASTER there is another file of that name. None: nothing of it was seen yet.
    """
    gtids: str | None
    """Of all transactions before, as the server writes sets of them; by these the place is found
    on another server. None: some have no GTID.
    """
    snapshot: Any = None
    """See :mod:`snapshot`. None once all rows that were there before have been read."""
    skips: str | None = None
    """MariaDB, behind a failover: transactions that were read on another server, and whose last
    ones have not come here. None: whatever comes is new, by whatever number.
    """
    unordered: bool = False
    """MariaDB: numbers of a server came out of order, so that GTIDs do not tell a place on another
    server.
    """
    prepared: dict[str, bool] | None = None
    """XA transactions that are prepared and not decided, by their names: do they have rows of
    wanted tables?
    """

    @property
    def place(self) -> Place:
        return Place(self.file, self.pos)

    def _of_version_1(self) -> Position:
        if self.dialect == "mysql" or not self.gtids:
            return self
        return replace(self, gtids=str(Gtids.parse("mariadb", self.gtids).given()))

    def to_json(self) -> dict[str, Any]:
        """The same position is the same text."""
        return {"mysql": VERSION, **asdict(self)}

    @classmethod
    def from_json(cls, value: Any) -> Position:
        """:raises SourceBroken: the checkpoint has something else, or a newer version's."""
        if isinstance(value, dict) and value.get("mysql") in (1, VERSION):
            try:
                found = cls(**{name: what for name, what in value.items() if name != "mysql"})
            except TypeError:
                pass
            else:
                return found if value["mysql"] == VERSION else found._of_version_1()
        raise SourceBroken(
            f"the checkpoint has {str(value)[:200]}, which is no position of mysql_changes of "
            f"this version of Onceward",
            next_step="start this query with a checkpoint of its own, and do not change the order "
            "of its sources",
        )


def base_of(file: str) -> str:
    """What stands before the number: ``binlog`` of ``binlog.000007``."""
    return file.rpartition(".")[0]


def number_of(file: str) -> int:
    """The server counts its binlogs behind the last dot: ``binlog.000007`` is 7.

    :raises SourceBroken: it has no number.
    """
    number = file_number(file)
    if number < 0:
        raise SourceBroken(
            f"{file!r} is no name of a binlog: it does not end in a number",
            next_step="use what SHOW BINARY LOGS says",
        )
    return number
