"""Sources of your own: a table of PostgreSQL that rows are only added to, read by one process, or
by tasks in parallel.

    CREATE TABLE outbox (
        id BIGSERIAL PRIMARY KEY,
        tx XID8 NOT NULL DEFAULT pg_current_xact_id(),
        payload TEXT NOT NULL
    );
    CREATE INDEX ON outbox (tx, id);

The trap: ids are drawn when a row is inserted, and seen when its transaction commits. Who reads
`WHERE id > 17` finds 19, goes on behind it, and never sees 18, whose transaction took longer. So
rows are read in the order of their transactions, and only below the oldest one that is still
running (`pg_snapshot_xmin`): there nothing can be added any more. One transaction that stays open
for an hour holds the source up for an hour; it never makes it lose a row.
"""

import contextlib

import psycopg

import onceward as ow

FINISHED = "tx < pg_snapshot_xmin(pg_current_snapshot())"
BETWEEN = "(tx, id) > (%s::xid8, %s) AND (tx, id) <= (%s::xid8, %s)"


class Outbox(ow.ResettableSource):
    schema = "id BIGINT NOT NULL, payload STRING NOT NULL"

    def __init__(self, url, table="outbox"):
        self.url, self.table = url, table

    def start(self):
        return [
            "0",
            0,
        ]  # transaction ids are 64 bits wide: text, for whoever reads JSON with floating-point numbers

    def identity(self):  # a restored dump has other transaction ids, and so other positions
        return self.rows(
            "SELECT (SELECT system_identifier FROM pg_control_system()) || '/' || "
            "%s::regclass::oid",
            self.table,
        )[0][0]

    def read(self, position, limit):
        rows = self.rows(
            f"SELECT tx::text, id, payload FROM {self.table} WHERE (tx, id) > (%s::xid8, %s) AND "
            f"{FINISHED}"
            " ORDER BY tx, id LIMIT %s",
            *position,
            limit,
        )
        return [row[1:] for row in rows], list(rows[-1][:2]) if rows else position

    def rows(self, statement, *values):
        with contextlib.closing(psycopg.connect(self.url)) as connection:
            return connection.execute(statement, values).fetchall()


class OutboxInParts(ow.PartitionedSource):
    """The same, read by tasks: here only the ends are looked for."""

    schema = Outbox.schema

    def __init__(self, url, table="outbox", parts=4):
        self.outbox, self.parts = Outbox(url, table), parts

    def start(self):
        return self.outbox.start()

    def identity(self):
        return self.outbox.identity()

    def advance(self, position, limit):
        found = self.outbox.rows(
            f"SELECT tx::text, id FROM (SELECT tx, id FROM {self.outbox.table}"
            f" WHERE (tx, id) > (%s::xid8, %s) AND {FINISHED} ORDER BY tx, id LIMIT %s) AS batch"
            " ORDER BY batch.tx DESC, id DESC LIMIT 1",
            *position,
            limit,
        )
        return list(found[0]) if found else position

    def partitions(self, start, end):
        ends = self.outbox.rows(
            "SELECT tx::text, id FROM (SELECT DISTINCT ON (part) part, tx, id FROM"
            f" (SELECT tx, id, ntile(%s) OVER (ORDER BY tx, id) AS part FROM {self.outbox.table} "
            f"WHERE {BETWEEN})"
            " AS rows ORDER BY part, tx DESC, id DESC) AS ends ORDER BY part",
            self.parts,
            *start,
            *end,
        )
        begins = [start, *map(list, ends)]
        return [{"from": begin, "to": list(to)} for begin, to in zip(begins, ends, strict=False)]

    def read_partition(self, partition):
        return self.outbox.rows(
            f"SELECT id, payload FROM {self.outbox.table} WHERE {BETWEEN} ORDER BY tx, id",
            *partition["from"],
            *partition["to"],
        )
