"""Names of XA transactions, where they are prepared and where they are decided. Pure; called by
:mod:`transactions` and :mod:`cuts`.

Source: MySQL, ``libs/mysql/binlog/event/control_events.h`` (``XA_prepare_event``), ``sql/xa.cc``
(``serialize_xid``); MariaDB writes the same.
"""

from __future__ import annotations

import re

from onceward.mysql.binlog.event import Event
from onceward.mysql.binlog.lengths import Fields
from onceward.mysql.binlog.statements import statement_of

_DECISION = re.compile(
    r"\s*XA\s+(?:COMMIT|ROLLBACK)\s+X'((?:[0-9A-F]{2})*)'\s*,\s*X'((?:[0-9A-F]{2})*)'\s*,\s*(-?\d+)\s*",
    re.ASCII | re.IGNORECASE,
)


def prepared(event: Event) -> str:
    """Which transaction an XA_PREPARE is of.

    :raises BinlogDamaged: it ends inside of a field.
    """
    fields = Fields(event)
    fields.take(1)  # of one phase or two
    format_id, gtrid, bqual = fields.number(4), fields.number(4), fields.number(4)
    return _name(format_id, bytes(fields.take(gtrid)).hex(), bytes(fields.take(bqual)).hex())


def decided(statement: Event) -> str | None:
    """Which transaction the statement of a QUERY event commits or rolls back; None if it is no
    such decision.

    :raises BinlogDamaged: it ends inside of a field.
    """
    found = next(filter(None, map(_DECISION.fullmatch, statement_of(statement).texts)), None)
    return found and _name(int(found[3]) & 0xFFFFFFFF, found[1].lower(), found[2].lower())


def _name(format_id: int, gtrid: str, bqual: str) -> str:
    return f"{format_id}:{gtrid}:{bqual}"
