"""JSON columns of MySQL. Pure; called by :mod:`onceward.mysql.binlog.values`."""

from __future__ import annotations

import pyarrow as pa

from onceward.mysql.binlog.column import Column
from onceward.mysql.binlog.json_binary import NoJson, text_of
from onceward.mysql.binlog.refusals import BadCell, damaged
from onceward.mysql.binlog.rows import Cells
from onceward.mysql.binlog.table_map import TableMap
from onceward.mysql.binlog.values.bytes_at import BytesAt


def array(table: TableMap, column: Column, at: BytesAt, cells: Cells) -> pa.Array:
    """Their texts.

    :raises BadCell: bytes that are no document.
    """
    documents = at.slices(cells)
    found: list[str | None] = []
    try:
        for document in documents:
            found.append(None if document is None else text_of(document))  # noqa: PERF401  says where it stopped
    except NoJson as error:
        what = (
            f"column {column.name!r} of {table.name} has a document that cannot be read: {error}"
        )
        raise BadCell(len(found), damaged(what)) from None
    return pa.array(found, pa.string())
