"""Rows into a table by ``LOAD DATA LOCAL``, from this process's memory. Driver and executors.

LOCAL turns what a strict mode refuses into warnings: 99999 becomes 999.99, a null 0, a row with a
key that is there is left out, and a stream that was cut short is taken for the whole. So a load
has to give no warning (:class:`onceward.sql.ledger.mysql.Warned`), and as many rows as were sent.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager

import pyarrow as pa

from onceward.errors import SendFailed
from onceward.sql.ledger.database import Session
from onceward.sql.ledger.mysql import may_load
from onceward.sql.mysql.lines import lines
from onceward.sql.mysql.statements import ROW, quoted
from onceward.sql.sink.rows import TASK


def load(session: Session, sql_name: str, rows: pa.Table, task: int, first: int) -> None:
    """Load ``rows`` of a task attempt into its staging table, numbered from ``first``.

    :param sql_name: of a staging table, for statements with parameters.
    :raises RowRefused: a value that the server has not.
    """
    numbered = rows.append_column(TASK, pa.repeat(pa.scalar(task, pa.int64()), rows.num_rows))
    numbered = numbered.append_column(
        ROW, pa.array(range(first, first + rows.num_rows), pa.int64())
    )
    load_straight(session, sql_name, numbered)


def load_straight(
    session: Session, sql_name: str, rows: pa.Table, converted: Collection[str] = ()
) -> None:
    """Load ``rows`` into columns of the same names.

    :param converted: the columns that take texts as such, and no bytes.
    :raises RowRefused: a value that the server has not.
    """
    places = {
        name: f"@onceward_{number}"
        for number, name in enumerate(rows.column_names)
        if name in converted
    }
    columns = ", ".join(places.get(name) or quoted(name) for name in rows.column_names)
    texts = ", ".join(
        f"{quoted(name)} = CONVERT({place} USING utf8mb4)" for name, place in places.items()
    )
    with _readable(lines(rows)) as path, may_load(session):
        # binary: texts as they are, and the column says whether they are some.
        loaded = session.execute(
            f"LOAD DATA LOCAL INFILE %s INTO TABLE {sql_name} CHARACTER SET binary "
            f"FIELDS TERMINATED BY '\\t' ESCAPED BY '\\\\' LINES TERMINATED BY '\\n' ({columns})"
            + (f" SET {texts}" if texts else ""),
            (path,),
        ).rowcount
    # LOAD DATA LOCAL turns errors of a strict mode into warnings, skips rows with a duplicate key,
    # and takes a stream that was cut short for the whole: a warning is an error here (Warned), and
    # rows are counted.
    if loaded != rows.num_rows:
        raise SendFailed(
            f"of {rows.num_rows} rows the server loaded {loaded} into {sql_name}",
            next_step="nothing; the batch runs again",
        )


@contextmanager
def _readable(data: bytes) -> Iterator[str]:
    """Lend a path by which this process can read ``data``: the client library requires a file."""
    if not hasattr(os, "memfd_create"):
        with tempfile.NamedTemporaryFile() as file:
            file.write(data)
            file.flush()
            yield file.name
        return
    number = os.memfd_create("onceward")
    try:
        with open(number, "wb", closefd=False) as file:
            file.write(data)
        yield f"/proc/self/fd/{number}"
    finally:
        os.close(number)
