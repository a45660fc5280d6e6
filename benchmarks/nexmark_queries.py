"""Six queries of Nexmark (https://github.com/nexmark/nexmark), each in the SQL of Spark, of Flink
and of SQLite, which judges. Pure.

Tables ``bid``, ``auction`` and ``person`` have the columns of the events; ``date_time`` is in
milliseconds, and ``at`` the same as a timestamp with a watermark. Windows are named by their start.
q5 and q7 give each of several that are equal, as Nexmark's own SQL does.
"""

# ruff: noqa: S608 — nobody else has a word in these
from __future__ import annotations

from typing import NamedTuple

SOURCE_SCHEMA = {
    "Person": "id BIGINT, name STRING, city STRING, state STRING, date_time BIGINT",
    "Auction": "id BIGINT, item_name STRING, seller BIGINT, category BIGINT, date_time BIGINT",
    "Bid": "auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, date_time BIGINT",
}
"""Of an event's JSON, which has one of the three."""


class NexmarkQuery(NamedTuple):
    """One query. ``columns``: of its result, in Flink's words."""

    columns: str
    spark: str
    flink: str
    sqlite: str
    is_windowed: bool = False


_BIDS = "SELECT auction, bidder, price, date_time FROM bid"
_STARTED = "UNIX_TIMESTAMP(CAST(a.window_start AS STRING)) * 1000 AS started"
_SAME_WINDOW = "a.window_start = b.window_start AND a.window_end = b.window_end"
_COUNTED = """
    SELECT auction, COUNT(*) AS num, window_start, window_end
    FROM TABLE(HOP(TABLE bid, DESCRIPTOR(`at`), INTERVAL '2' SECOND, INTERVAL '10' SECOND))
    GROUP BY auction, window_start, window_end
"""
_TUMBLING = "TABLE(TUMBLE(TABLE {}, DESCRIPTOR(`at`), INTERVAL '10' SECOND))"

QUERIES = {
    "q0": NexmarkQuery(
        columns="auction BIGINT, bidder BIGINT, price BIGINT, date_time BIGINT",
        spark=_BIDS,
        flink=_BIDS,
        sqlite=_BIDS,
    ),
    "q1": NexmarkQuery(
        columns="auction BIGINT, bidder BIGINT, price BIGINT, date_time BIGINT",
        spark="SELECT auction, bidder, price * 908 div 1000 AS price, date_time FROM bid",
        flink="SELECT auction, bidder, price * 908 / 1000 AS price, date_time FROM bid",
        sqlite="SELECT auction, bidder, price * 908 / 1000 AS price, date_time FROM bid",
    ),
    "q2": NexmarkQuery(
        columns="auction BIGINT, price BIGINT",
        spark="SELECT auction, price FROM bid WHERE auction % 123 = 0",
        flink="SELECT auction, price FROM bid WHERE MOD(auction, 123) = 0",
        sqlite="SELECT auction, price FROM bid WHERE auction % 123 = 0",
    ),
    "q5": NexmarkQuery(
        columns="started BIGINT, auction BIGINT, num BIGINT",
        spark="""
            WITH counted AS (
                SELECT window, auction, COUNT(*) AS num FROM bid
                GROUP BY window(at, '10 seconds', '2 seconds'), auction
            ), listed AS (
                SELECT window, MAX(num) AS most, collect_list(struct(auction, num)) AS counts
                FROM counted GROUP BY window
            ), hottest AS (
                SELECT window, explode(filter(counts, each -> each.num = most)) AS hot FROM listed
            )
            SELECT unix_millis(window.start) AS started, hot.auction, hot.num FROM hottest
        """,
        flink=f"""
            SELECT {_STARTED}, a.auction, a.num FROM ({_COUNTED}) AS a JOIN (
                SELECT MAX(num) AS most, window_start, window_end FROM ({_COUNTED})
                GROUP BY window_start, window_end
            ) AS b ON {_SAME_WINDOW} AND a.num = b.most
        """,
        sqlite="""
            WITH hops (back) AS (VALUES (0), (2000), (4000), (6000), (8000)), counted AS (
                SELECT date_time / 2000 * 2000 - back AS started, auction, COUNT(*) AS num
                FROM bid, hops GROUP BY 1, 2
            )
            SELECT started, auction, num FROM counted
            JOIN (SELECT started, MAX(num) AS most FROM counted GROUP BY 1) USING (started)
            WHERE num = most
        """,
        is_windowed=True,
    ),
    "q7": NexmarkQuery(
        columns="started BIGINT, auction BIGINT, bidder BIGINT, price BIGINT",
        # A window's time is its last microsecond
        spark="""
            SELECT unix_millis(date_trunc('SECOND', ended)) - 9000 AS started, auction, bidder,
                price
            FROM bid JOIN (
                SELECT window_time(window) AS ended, most FROM (
                    SELECT window, MAX(price) AS most FROM bid GROUP BY window(at, '10 seconds')
                )
            ) ON price = most AND at <= ended AND at > ended - INTERVAL 10 SECONDS
        """,
        flink=f"""
            SELECT {_STARTED}, a.auction, a.bidder, a.price
            FROM (SELECT * FROM {_TUMBLING.format("bid")}) AS a JOIN (
                SELECT MAX(price) AS most, window_start, window_end
                FROM {_TUMBLING.format("bid")} GROUP BY window_start, window_end
            ) AS b ON {_SAME_WINDOW} AND a.price = b.most
        """,
        sqlite="""
            SELECT started, auction, bidder, price
            FROM (SELECT *, date_time / 10000 * 10000 AS started FROM bid) JOIN (
                SELECT date_time / 10000 * 10000 AS started, MAX(price) AS most FROM bid GROUP BY 1
            ) USING (started) WHERE price = most
        """,
        is_windowed=True,
    ),
    "q8": NexmarkQuery(
        columns="started BIGINT, id BIGINT, name STRING",
        spark="""
            SELECT unix_millis(a.window.start) AS started, id, name FROM (
                SELECT window, id, name FROM person GROUP BY window(at, '10 seconds'), id, name
            ) AS a JOIN (
                SELECT window, seller FROM auction GROUP BY window(at, '10 seconds'), seller
            ) AS b ON id = seller AND a.window = b.window
        """,
        flink=f"""
            SELECT {_STARTED}, a.id, a.name FROM (
                SELECT id, name, window_start, window_end FROM {_TUMBLING.format("person")}
                GROUP BY id, name, window_start, window_end
            ) AS a JOIN (
                SELECT seller, window_start, window_end FROM {_TUMBLING.format("auction")}
                GROUP BY seller, window_start, window_end
            ) AS b ON a.id = b.seller AND {_SAME_WINDOW}
        """,
        sqlite="""
            SELECT DISTINCT date_time / 10000 * 10000 AS started, id, name FROM person
            WHERE EXISTS (
                SELECT 1 FROM auction
                WHERE seller = person.id AND auction.date_time / 10000 = person.date_time / 10000
            )
        """,
        is_windowed=True,
    ),
}

WATERMARK_SECONDS = 4


def flink_statements(query: NexmarkQuery, servers: str, source: str, output: str) -> list[str]:
    """Return the statements of a job from topic to topic; the last one inserts."""
    rows = ", ".join(f"`{name}` ROW<{fields}>" for name, fields in SOURCE_SCHEMA.items())
    at = "COALESCE(`Bid`.date_time, `Auction`.date_time, `Person`.date_time)"
    connector = f"'connector' = 'kafka', 'properties.bootstrap.servers' = '{servers}'"
    views = [
        f"CREATE TEMPORARY VIEW {name.lower()} AS SELECT "
        + ", ".join(f"`{name}`.{field.split()[0]} AS {field.split()[0]}" for field in fields)
        + f", `at` FROM events WHERE `{name}` IS NOT NULL"
        for name, fields in ((name, text.split(", ")) for name, text in SOURCE_SCHEMA.items())
    ]
    return [
        f"CREATE TEMPORARY TABLE events ({rows}, `at` AS TO_TIMESTAMP_LTZ({at}, 3), WATERMARK FOR "
        f"`at` AS `at` - INTERVAL '{WATERMARK_SECONDS}' SECOND) WITH ({connector}, 'topic' = "
        f"'{source}', 'format' = 'json', 'scan.startup.mode' = 'earliest-offset', "
        "'scan.bounded.mode' = 'latest-offset', 'properties.isolation.level' = 'read_committed')",
        *views,
        f"CREATE TEMPORARY TABLE results ({query.columns}) WITH ({connector}, 'topic' = "
        f"'{output}', 'format' = 'json', 'sink.delivery-guarantee' = 'exactly-once', "
        f"'sink.transactional-id-prefix' = '{output}', 'properties.transaction.timeout.ms' = "
        "'600000')",
        f"INSERT INTO results {query.flink}",
    ]
