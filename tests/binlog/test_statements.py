"""What statements do to the wanted tables: passed, a TRUNCATE, or a stop that says why."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from made_events import GOLDEN, dialect_of, query

from onceward.errors import BinlogCorrupted
from onceward.mysql.binlog.compression import decompress
from onceward.mysql.binlog.event import QUERY
from onceward.mysql.binlog.sql_effects import (
    NO_EFFECT,
    NoEffect,
    Rollback,
    SavepointSet,
    Truncation,
    Unsupported,
)
from onceward.mysql.binlog.sql_tables import OtherTables
from onceward.mysql.binlog.statements import classify, parse_statement
from support.binlog_files import events_of_file

WANTED = {("shop", "orders"), ("shop", "a`b"), ("shop", 'q"x'), ("shop", "tä"), ("other", "items")}
ANSI, LITERAL = 0x4, 0x100000


def wanted(database, table):
    return (database, table) in WANTED


def verdict(text, database="shop", *, mode=0, charset=255, **options):
    variables = struct.pack("<BIBQBHHH", 0, 0, 1, mode, 4, charset, 8, 8)
    event = query(text, database, variables=variables)
    return classify(event, wanted, lambda name: name in ("shop", "other"), **options)


def reason(text, *args, **options):
    found = verdict(text, *args, **options)
    return found.reason if isinstance(found, Unsupported) else None


PASSING = """
BEGIN
begin work
COMMIT
START TRANSACTION
RELEASE SAVEPOINT s1
XA START X'78',X'',1
XA END X'78',X'',1
# Dummy event replacing event type 160 that slave cannot handle.
-- nothing
CREATE COMPRESSION_DICTIONARY words ('shop')
DROP COMPRESSION_DICTIONARY IF EXISTS words
/* nothing at all */
CREATE TABLE orders (id int primary key, `select` int, v varchar(9) default 'select', check (id > 0))
CREATE TABLE IF NOT EXISTS shop.orders LIKE other.orders
CREATE TABLE orders (id int) PARTITION BY RANGE (id) (PARTITION p VALUES LESS THAN (7), PARTITION q VALUES IN (8))
CREATE TABLE `orders` (`id` int NOT NULL) START TRANSACTION
CREATE TABLE elsewhere SELECT * FROM orders
CREATE OR REPLACE TABLE elsewhere (id int)
CREATE TEMPORARY TABLE scratch (id int)
CREATE ALGORITHM=UNDEFINED DEFINER=`a`@`%` SQL SECURITY DEFINER VIEW `v1` AS select * from orders
CREATE DEFINER=`a`@`%` PROCEDURE `pp`() begin truncate orders; delete from orders; end
CREATE DEFINER=CURRENT_USER() TRIGGER t BEFORE INSERT ON orders FOR EACH ROW DELETE FROM items
CREATE OR REPLACE DEFINER=`a`@`%` AGGREGATE FUNCTION f(x int) RETURNS int RETURN 1
CREATE UNIQUE INDEX i ON orders (id)
CREATE EVENT e ON SCHEDULE EVERY 1 DAY DO DELETE FROM orders
CREATE UNDO TABLESPACE u ADD DATAFILE 'u.ibu'
CREATE USER IF NOT EXISTS 'u1'@'%' IDENTIFIED WITH 'x' AS '*truncate orders'
CREATE ROLE r
CREATE DATABASE shop
CREATE SPATIAL REFERENCE SYSTEM 4120 NAME 'x'
CREATE RESOURCE GROUP g TYPE = USER
CREATE SEQUENCE s
ALTER TABLE orders ADD COLUMN b int DEFAULT 7, DROP COLUMN c, MODIFY d text, RENAME COLUMN e TO f, RENAME INDEX g TO h
ALTER TABLE orders RENAME KEY a TO b
ALTER TABLE orders ADD KEY a (b), ADD UNIQUE KEY (c), DROP KEY d, ADD c int UNIQUE KEY
ALTER TABLE orders ADD FULLTEXT KEY e (f), ADD (`key` int, UNIQUE KEY (g))
ALTER TABLE orders ADD CONSTRAINT c FOREIGN KEY (b) REFERENCES c (d), DROP FOREIGN KEY e
ALTER TABLE orders ALTER KEY a IGNORED, alter key if exists b NOT IGNORED, ALTER INDEX c IGNORED
ALTER TABLE orders DISABLE KEYS, KEY_BLOCK_SIZE = 8
ALTER TABLE orders PARTITION BY LINEAR KEY (id) PARTITIONS 4
ALTER TABLE orders PARTITION BY KEY (id) SUBPARTITION BY KEY (b)
ALTER TABLE orders ADD COLUMN `primary` int, RENAME COLUMN id TO `key`, COMMENT 'primary key'
ALTER TABLE elsewhere DROP PRIMARY KEY
DROP INDEX `PRIMARY` ON elsewhere
DROP INDEX IF EXISTS a ON orders
DROP INDEX a ON orders
CREATE TABLE orders (id int, PRIMARY KEY (id))
ALTER TABLE orders CONVERT TO CHARACTER SET utf8mb4
ALTER TABLE orders ADD PARTITION (PARTITION p3 VALUES LESS THAN (9))
ALTER TABLE orders REORGANIZE PARTITION a, b INTO (PARTITION c VALUES LESS THAN (9))
ALTER TABLE orders ENGINE = InnoDB
ALTER TABLE orders ENGINE = 'InnoDB'
ALTER TABLE orders DROP system, DROP COLUMN versioning
ALTER TABLE elsewhere DROP SYSTEM VERSIONING
ALTER TABLE elsewhere ADD SYSTEM VERSIONING
CREATE TABLE elsewhere (id int) WITH SYSTEM VERSIONING
CREATE TABLE orders (id int, `with system versioning` int) COMMENT 'with system versioning'
CREATE TABLE orders (id int, s date, e date, PERIOD FOR p (s, e))
ALTER TABLE elsewhere ENGINE = 'BLACKHOLE'
ALTER TABLE orders COMMENT 'drop partition p', ADD CONSTRAINT c CHECK (a in (1, 2))
ALTER TABLE elsewhere RENAME TO nowhere
ALTER TABLE elsewhere DROP PARTITION p
ALTER TABLE elsewhere EXCHANGE PARTITION p WITH TABLE nowhere
ALTER IGNORE TABLE elsewhere ADD UNIQUE (a)
ALTER DATABASE shop CHARACTER SET utf8mb4
ALTER USER 'u1'@'%' IDENTIFIED BY 'x'
ALTER INSTANCE ROTATE INNODB MASTER KEY
ALTER DEFINER=`a`@`%` EVENT e RENAME TO f
DROP TABLE elsewhere, `no``where`, other.orders /* generated by server */
DROP TABLE IF EXISTS other.orders CASCADE
DROP TEMPORARY TABLE IF EXISTS `orders` /* generated by server */
DROP DATABASE IF EXISTS nowhere
DROP VIEW orders
DROP INDEX i ON orders
DROP USER u1
DROP UNDO TABLESPACE u
DROP SPATIAL REFERENCE SYSTEM 4120
DROP PACKAGE BODY p
RENAME TABLE a TO b, c TO d
RENAME USER orders TO items
TRUNCATE TABLE elsewhere
TRUNCATE other.orders
ANALYZE TABLE orders
ANALYZE NO_WRITE_TO_BINLOG TABLE orders
OPTIMIZE LOCAL TABLE orders
REPAIR TABLE orders
REPAIR VIEW orders
REPAIR LOCAL VIEW orders, items FROM MYSQL
FLUSH TABLES
GRANT ALL ON shop.* TO u1
REVOKE ALL ON shop.* FROM u1
SET PASSWORD FOR u1 = 'x'
SET DEFAULT ROLE r TO u1
SET STATEMENT max_statement_time = 5, sql_mode = 'x' FOR CREATE TABLE x (id int)
DROP TABLE elsewhere -- , orders
DROP TABLE elsewhere # , orders
DROP TABLE elsewhere /* , orders */;
""".strip().splitlines()


@pytest.mark.parametrize("text", PASSING)
def test_what_changes_no_row_passes(text):
    assert isinstance(verdict(text), NoEffect)


@pytest.mark.parametrize(
    ("text", "table"),
    [
        ("CREATE TABLE orders (id int)", "orders"),
        ("ALTER TABLE shop.orders ADD COLUMN b int", "orders"),
        (
            "ALTER TABLE orders ADD FOREIGN KEY (b) REFERENCES c (d) ON DELETE RESTRICT ON UPDATE "
            "NO ACTION",
            "orders",
        ),
        (
            "CREATE TABLE orders (at timestamp ON UPDATE now(), `on` int COMMENT 'on delete "
            "cascade')",
            "orders",
        ),
        ("CREATE TABLE elsewhere (id int)", None),
        (
            "ALTER TABLE elsewhere ADD FOREIGN KEY (b) REFERENCES orders (d) ON DELETE CASCADE",
            None,
        ),
        ("ALTER TABLE orders ADD (w int, KEY kw (w), key (w), UNIQUE KEY (w))", "orders"),
        ("ALTER TABLE orders ADD (KEY kw (w)), ADD CLUSTERING KEY k2 (w)", "orders"),
        ("GRANT ALL ON shop.* TO u1", None),
    ],
)
def test_it_is_said_which_wanted_table_is_defined(text: str, table: str | None):
    assert verdict(text) == NoEffect(("shop", table) if table else None)


STOPS = {
    "cascade": """
        ALTER TABLE orders ADD FOREIGN KEY (b) REFERENCES c (d) ON DELETE CASCADE
        ALTER TABLE orders ADD CONSTRAINT `x` FOREIGN KEY (b) REFERENCES c (d) ON UPDATE /*!50000 SET */ NULL, ADD e int
        CREATE TABLE orders (id int, b int, FOREIGN KEY (b) REFERENCES c (d) ON DELETE RESTRICT on update cascade)
        CREATE TABLE IF NOT EXISTS shop.orders (b int REFERENCES c (d) ON DELETE SET DEFAULT) PARTITION BY HASH (b)
    """,
    "statement": """
        insert/**/into orders values (1)
        /*!40000 INSERT INTO orders VALUES (1) */
        /* x */ -- y
        UPDATE orders SET a = 1
        DELETE FROM orders
        REPLACE INTO orders VALUES (1)
        LOAD DATA INFILE 'x' INTO TABLE orders
        CALL p()
        DO f()
        SELECT f()
        SELECT f() -- COMMIT
        WITH a AS (SELECT 1) DELETE FROM orders
        ANALYZE UPDATE orders SET a = 1
        ANALYZE FORMAT=JSON DELETE FROM orders
        CREATE TABLE orders AS SELECT * FROM elsewhere
        CREATE TABLE orders (id int) IGNORE SELECT 1
        CREATE TABLE orders (SELECT 1)
        CREATE TABLE orders TABLE elsewhere
        CREATE TABLE orders VALUES ROW(1)
        CREATE TEMPORARY TABLE orders (id int)
        SET STATEMENT max_statement_time = 5 FOR DELETE FROM orders
    """,
    "ddl": """
        DROP TABLE orders
        drop tables elsewhere, shop.orders
        DROP TABLE IF EXISTS `elsewhere`,`orders` /* generated by server */
        /*!50001 DROP TABLE orders*/
        /*M!100100 DROP TABLE orders */
        DROP /* x */ TABLE--
        DROP TABLE `a``b`
        DROP TABLE .orders
        DROP TABLE other . items
        DROP TABLE orders WAIT 5
        DROP DATABASE shop
        DROP SCHEMA IF EXISTS `other`
        CREATE OR REPLACE DATABASE shop
        CREATE OR REPLACE TABLE orders (id int)
        RENAME TABLE orders TO elsewhere
        RENAME TABLE elsewhere TO nowhere, new TO orders
        RENAME TABLES IF EXISTS orders NOWAIT TO elsewhere
        ALTER TABLE orders RENAME elsewhere
        ALTER TABLE orders ADD a int, RENAME TO elsewhere
        ALTER TABLE new RENAME AS shop.orders
        ALTER TABLE orders TRUNCATE PARTITION p
        ALTER TABLE orders DROP PARTITION p, q
        ALTER TABLE orders EXCHANGE PARTITION p WITH TABLE elsewhere
        ALTER TABLE elsewhere EXCHANGE PARTITION p WITH TABLE orders WITHOUT VALIDATION
        ALTER TABLE orders CONVERT PARTITION p TO TABLE elsewhere
        ALTER TABLE elsewhere CONVERT PARTITION p TO TABLE orders
        ALTER TABLE elsewhere CONVERT TABLE orders TO PARTITION p VALUES LESS THAN (7)
        ALTER TABLE orders DISCARD TABLESPACE
        ALTER TABLE orders IMPORT PARTITION p TABLESPACE
        ALTER TABLE orders ENGINE=BLACKHOLE
        ALTER TABLE orders ADD a int, ENGINE 'BlackHole'
        ALTER TABLE orders ENGINE = "blackhole"
        ALTER TABLE orders ENGINE = `blackhole`
        ALTER TABLE orders DROP PRIMARY KEY, ADD PRIMARY KEY (id, k)
        ALTER TABLE orders ADD COLUMN k int NOT NULL DEFAULT 5, drop primary key
        ALTER TABLE orders ADD CONSTRAINT `c` PRIMARY KEY USING BTREE (`id`)
        ALTER TABLE orders MODIFY id bigint NOT NULL AUTO_INCREMENT PRIMARY KEY
        ALTER TABLE orders CHANGE a id bigint KEY
        ALTER TABLE orders ALTER KEY a IGNORED, DROP PRIMARY KEY
        ALTER TABLE orders ADD COLUMN `alter` int KEY, ALTER KEY a NOT IGNORED
        ALTER TABLE orders ADD (a int, id decimal(10) KEY)
        ALTER TABLE orders DROP INDEX `primary`, ADD b int
        ALTER TABLE orders DROP CONSTRAINT IF EXISTS `PRIMARY`
        DROP INDEX `PRIMARY` ON orders
        ALTER TABLE orders ADD (b int, id int NOT NULL COMMENT 'x' /* y */ KEY)
        ALTER TABLE orders DROP SYSTEM VERSIONING
        ALTER TABLE orders DROP COLUMN a, drop system versioning, ADD b int
        ALTER ONLINE IGNORE TABLE orders ADD UNIQUE (a)
    """,
    "system_versioned": """
        CREATE TABLE orders (id int) WITH SYSTEM VERSIONING
        CREATE TABLE orders (id int, v int WITH SYSTEM VERSIONING)
        CREATE TABLE shop.orders (id int, b bigint, e bigint, PERIOD FOR SYSTEM_TIME (b, e)) WITH SYSTEM VERSIONING
        ALTER TABLE orders ADD SYSTEM VERSIONING
        ALTER TABLE orders ADD COLUMN a int, add system versioning
        ALTER TABLE orders ADD COLUMN a int WITH SYSTEM VERSIONING
        ALTER TABLE orders ADD COLUMN (a int WITH SYSTEM VERSIONING)
    """,
    "xa": """
        XA COMMIT X'78',X'',1
        XA ROLLBACK X'78',X'',1
        XA PREPARE X'78'
    """,
    "unknown_statement": """
        BINLOG 'x'
        SHUTDOWN
        BEGIN NOT ATOMIC DELETE FROM orders; END
        COMMIT AND CHAIN
        IMPORT TABLE FROM 'x'
        CREATE SOMETHING x
        DROP SOMETHING x
        ALTER SOMETHING x
        TRUNCATE
        TRUNCATE TABLE orders, items
        TRUNCATE TABLE elsewhere; DELETE FROM orders
        DROP TABLE elsewhere orders
        DROP TABLE 'orders'
        RENAME TABLE a b
        SET sql_mode = ''
        SET STATEMENT a = b
        `BEGIN`
        "BEGIN"
        DROP TABLE elsewhere /* , orders
        DROP TABLE `elsewhere
        'DROP TABLE elsewhere
        (SELECT 1)
        é
        1
    """,
}


@pytest.mark.parametrize(
    ("why", "text"),
    [(why, line.strip()) for why, lines in STOPS.items() for line in lines.strip().splitlines()],
)
def test_what_may_change_rows_is_a_stop(why, text):
    text = text.replace("-- y", "-- y\nDELETE FROM orders").replace("TABLE--", "TABLE-- \n orders")
    found = verdict(text)
    assert isinstance(found, Unsupported)
    assert found.reason == why
    assert found.what
    assert found.next_step


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("SAVEPOINT `s1`", SavepointSet("s1")),
        ("SAVEPOINT S1", SavepointSet("s1")),
        ("ROLLBACK TO `s 1`", Rollback("s 1")),
    ],
)
def test_what_undoes_rows(text, found):
    assert verdict(text) == found


ELSEWHERE = """
INSERT INTO elsewhere VALUES (1)
INSERT INTO mysql.rds_heartbeat2(id, value) values (1,1585112070935) ON DUPLICATE KEY UPDATE value = 1585112070935
INSERT DELAYED IGNORE mysql.heartbeat (id, master_time) VALUES (1, UTC_TIMESTAMP(6)) ON DUPLICATE KEY UPDATE id = VALUES(id)
INSERT INTO elsewhere (orders, items) VALUES ('shop.orders', concat(orders, "items"))
INSERT INTO elsewhere SET a = 1, b = (2 + 3) * 4;
INSERT INTO elsewhere SELECT * FROM nowhere WHERE a IN (SELECT max(b) FROM other.orders)
INSERT INTO elsewhere TABLE nowhere
REPLACE INTO `percona`.`checksums` (db, tbl, cnt) SELECT 'shop', 'orders', COUNT(*), COALESCE(LOWER(CONV(BIT_XOR(CAST(CRC32(CONCAT_WS('#', `id`)) AS UNSIGNED)), 10, 16)), 0) FROM `far`.`away` FORCE INDEX(`PRIMARY`)
DELETE FROM `elsewhere`
DELETE FROM mysql.rds_sysinfo where name = 'innodb_txn_key'
DELETE QUICK FROM elsewhere WHERE id BETWEEN (1) AND (2) ORDER BY id LIMIT 7
DELETE HISTORY FROM elsewhere
DELETE FROM elsewhere FOR PORTION OF p FROM '2000-01-01' TO '2001-01-01'
DELETE a, b FROM far.a JOIN far.b USING (id)
UPDATE elsewhere SET a = a + 1, b = CASE WHEN (a) THEN 1 END WHERE id IN (1, 2)
UPDATE far.a AS x, far.b SET x.c = 1 WHERE x.d = far.b.e
WITH c AS (SELECT 1) DELETE FROM elsewhere WHERE id IN (SELECT * FROM c)
LOAD DATA INFILE 'SQL_LOAD-1' REPLACE INTO TABLE `elsewhere` FIELDS TERMINATED BY ',' LINES TERMINATED BY '\\n' (`a`, @`b`) SET c = UPPER(@`b`)
SET STATEMENT max_statement_time = 5 FOR DELETE FROM elsewhere
""".strip().splitlines()  # noqa: E501


@pytest.mark.parametrize("text", ELSEWHERE)
def test_a_statement_on_tables_that_are_known_and_not_read_is_elsewhere(text):
    found = verdict(text)
    assert isinstance(found, OtherTables)
    assert found.tables
    assert not any(wanted(*name) for name in found.tables)


@pytest.mark.parametrize(
    "text",
    [
        "INSERT INTO "
        "orders SELECT 1", "REPLACE shop.orders VALUES (1)",
        "INSERT IGNORE INTO `orders` () VALUES ()",
        "INSERT INTO elsewhere VALUES (f(1))", "INSERT INTO elsewhere VALUES (far.count(1))",
        "INSERT INTO "
        "elsewhere VALUES (`count`(1))",
        "INSERT INTO elsewhere VALUES (1) ON DUPLICATE KEY UPDATE a = g()",
        "UPDATE elsewhere SET a = JSON_VALUE(b, '$.c')",
        "UPDATE elsewhere, orders SET a = 1", "UPDATE elsewhere JOIN orders USING (id) SET a = 1",
        "UPDATE elsewhere, "
        "shop.orders o SET o.a = 1", "UPDATE elsewhere e NATURAL JOIN orders SET a = 1",
        "UPDATE elsewhere PARTITION (orders) SET a = 1", "DELETE FROM elsewhere, orders USING x",
        "WITH c AS (SELECT * FROM orders) DELETE FROM elsewhere",
        "DELETE orders FROM "
        "elsewhere JOIN orders", "DELETE FROM elsewhere USING elsewhere JOIN other.items",
        "DELETE FROM "
        "elsewhere WHERE f(id)", "DELETE elsewhere", "UPDATE elsewhere", "INSERT INTO elsewhere",
        "DELETE FROM "
        "elsewhere; DELETE FROM far.a", "DELETE FROM 'elsewhere'",
        "WITH orders AS (SELECT 1) SELECT 2",
        "LOAD INDEX INTO CACHE elsewhere",
        "INSERT INTO elsewhere "
        "VALUES (1) /* , orders", "CALL elsewhere()", "INSERT INTO elsewhere VALUES (as_(1))",
        "INSERT INTO orders SELECT * FROM elsewhere", "DELETE FROM orders o WHERE a = 1",
    ],
)  # fmt: skip
def test_a_statement_is_a_stop_where_a_table_of_ours_may_change_or_something_is_not_known(text):
    assert reason(text) in ("statement", "unknown_statement")


CHECKSUM = """
    REPLACE INTO `percona`.`checksums` (db, tbl, chunk, chunk_index, lower_boundary, this_cnt)
    SELECT 'shop', 'orders', '1', NULL, NULL, COUNT(*) AS cnt, COALESCE(LOWER(CONV(BIT_XOR(CAST(
    CRC32(CONCAT_WS('#', `id`, CONCAT(ISNULL(`v`)))) AS UNSIGNED)), 10, 16)), 0) AS crc
    FROM `shop`.`orders` FORCE INDEX(`PRIMARY`) WHERE ((`id` >= '1')) /*checksum chunk*/"""


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        (CHECKSUM, ("percona", "checksums")),
        (
            "UPDATE percona.checksums SET this_cnt = '4' WHERE tbl = 'orders'",
            ("percona", "checksums"),
        ),
        ("INSERT INTO elsewhere SELECT * FROM orders", ("shop", "elsewhere")),
        ("INSERT INTO elsewhere SELECT * FROM far.b, other.items", ("shop", "elsewhere")),
        ("INSERT INTO elsewhere /*!SELECT*/ orders", ("shop", "elsewhere")),
        ("UPDATE elsewhere SET a = (SELECT 1 FROM orders)", ("shop", "elsewhere")),
        ("UPDATE elsewhere AS e SET a = (SELECT 1 FROM orders)", ("shop", "elsewhere")),
        ("DELETE FROM elsewhere WHERE id IN (SELECT id FROM orders)", ("shop", "elsewhere")),
        ("DELETE FROM elsewhere e WHERE id IN (SELECT id FROM orders)", ("shop", "elsewhere")),
        (
            "LOAD DATA INFILE 'x' INTO TABLE elsewhere SET a = (SELECT 1 FROM orders)",
            ("shop", "elsewhere"),
        ),
    ],
)
def test_a_statement_may_read_what_we_read(text: str, changed: tuple[str, str]):
    """It changes the first table alone; a view that it reads may call a function."""
    found = verdict(text)
    assert isinstance(found, OtherTables)
    assert found.tables == (changed,)
    reads = "SELECT" in text
    assert any(name in found.reads for name in WANTED) is reads
    for column in ("db", "tbl", "cnt"):
        assert ("shop", column) not in found.tables


@pytest.mark.parametrize(
    "value",
    [
        "CAST('1.5' AS DECIMAL(10,2))", "CAST(now() AS DATETIME(3))", "JSON_CONTAINS(a, '1')",
        "REGEXP_REPLACE(a, 'x', 'y')", "AES_ENCRYPT('a', 'b')", "yearweek(now())",
    ],
)  # fmt: skip
def test_what_the_servers_have_themselves_is_no_function_of_a_user(value: str):
    for text in (
        "UPDATE elsewhere SET a = 7",
        "INSERT INTO elsewhere (a) VALUES (7) AS n(b) ON DUPLICATE KEY UPDATE a = b",
    ):
        assert verdict(text.replace("7", value)) == OtherTables((("shop", "elsewhere"),))


@pytest.mark.parametrize("name", ["history", "quick", "local", "concurrent"])
@pytest.mark.parametrize(
    "text",
    [
        "UPDATE {} h SET h.a = 1", "UPDATE {} JOIN elsewhere SET a = 1", "UPDATE {} AS l SET a = 1",
        "INSERT {} SELECT 1 UNION SELECT 2", "REPLACE {} SET a = (SELECT 1)", "DELETE FROM {}",
        "DELETE {} FROM {}", "DELETE IGNORE {} FROM elsewhere, {}", "DELETE a FROM {} a",
        "LOAD DATA CONCURRENT LOCAL INFILE 'x' INTO TABLE {}",
    ],
)  # fmt: skip
def test_a_table_may_be_called_like_a_word_that_is_not_reserved(text: str, name: str):
    event = query(text.replace("{}", name))
    found = classify(event, lambda *found: found == ("shop", name))
    assert isinstance(found, Unsupported)


@pytest.mark.parametrize(
    "text",
    [
        "TRUNCATE orders", "truncate "
                           "table orders", "TRUNCATE `orders`", "TRUNCATE TABLE shop.orders",
        "TRUNCATE TABLE "
        "shop . `orders` ;", "/* x */ TRUNCATE /*!TABLE*/ orders -- y", "TRUNCATE\tTABLE\n.orders",
        "TRUNCATE "
        "orders WAIT 7", "TRUNCATE orders NOWAIT", "SET STATEMENT a = 1 FOR TRUNCATE orders",
    ],
)  # fmt: skip
def test_a_truncate_of_a_wanted_table_is_one(text):
    assert verdict(text) == Truncation("shop", "orders")
    assert verdict(text.replace("shop", "").replace(" . ", "."), "nowhere") in (
        NO_EFFECT,
        verdict("é"),
    )


def test_quotes_are_read_as_the_session_had_them():
    assert verdict('TRUNCATE "q""x"', mode=ANSI) == Truncation("shop", 'q"x')
    assert reason('TRUNCATE "q""x"') == "unknown_statement"
    assert verdict('DROP TABLE elsewhere "', mode=ANSI).reason == "unknown_statement"
    alter = "ALTER TABLE orders COMMENT '{}', RENAME TO elsewhere"
    assert verdict(alter.format("x\\', y")).reason == "ddl"
    assert verdict(alter.format("x\\"), mode=LITERAL).reason == "ddl"
    assert verdict(alter.format("x\\")).reason == "unknown_statement"
    assert verdict("ALTER TABLE orders COMMENT 'it''s', COMMENT \"RENAME TO x\"") == NoEffect(
        ("shop", "orders")
    )


def test_names_are_read_in_the_clients_character_set():
    assert verdict("TRUNCATE tä") == Truncation("shop", "tä")
    assert verdict("TRUNCATE tä".encode("latin-1"), charset=8) == Truncation("shop", "tä")
    assert (
        reason("TRUNCATE tä".encode(), charset=8) == "unknown_statement"
    )  # the server may have written it
    assert reason("TRUNCATE tä".encode("latin-1"), charset=250) == "unknown_statement"
    assert reason(b"TRUNCATE t\xff", charset=9999) == "unknown_statement"
    # The second byte of a sign of GBK may be a quote, or a backslash.
    assert verdict("TRUNCATE orders -- 誠".encode("gbk"), charset=28) == Truncation(
        "shop", "orders"
    )
    assert (
        verdict("ALTER TABLE orders COMMENT '誠', RENAME TO x".encode("gbk"), charset=28).reason
        == "ddl"
    )


@pytest.mark.parametrize(
    ("raw", "names"),
    [
        ("DROP TABLE `tä`".encode("latin-1"), (("shop", "tä"),)),
        ("DROP TABLE `tä`".encode(), (("shop", "tÃ¤"), ("shop", "tä"))),
        ("CREATE OR REPLACE TABLE `tä` (id int)".encode(), ()),
        (b"DROP TABLE orders", (("shop", "orders"),)),
    ],
    ids=["the client's", "either's", "what it is else is not sure", "ASCII"],
)
def test_names_that_are_read_in_two_ways_were_there(
    raw: bytes, names: tuple[tuple[str, str], ...]
):
    """The server's own statements are in UTF-8, in whatever character set the client is."""
    event = query(raw, variables=struct.pack("<BHHH", 4, 8, 8, 8))
    found = classify(event, lambda *_: True)
    assert isinstance(found, Unsupported)
    assert (found.reason, found.if_there) == ("ddl", names)


@pytest.mark.parametrize("charset", [255, 33, 63])
@pytest.mark.parametrize(
    ("text", "found"),
    [
        (b"ALTER TABLE far.t ADD x int /* caf\xe9 */", None),
        (b"DROP TABLE IF EXISTS far.t -- caf\xe9", None),
        (b"TRUNCATE orders /* \xe9 */", Truncation("shop", "orders")),
        ("TRUNCATE t\xe4 /* ".encode() + b"\xe9 */", Truncation("shop", "t\xe4")),
        (b"DROP TABLE orders /* \xe9 */", "ddl"),
        (b"DELETE FROM orders WHERE v = '\xae\xe1\xbd'", "statement"),
        (b"TRUNCATE t\xe4", "unknown_statement"),
        (b"TRUNCATE `t\xe4`", "unknown_statement"),
        (b"ALTER TABLE far.t /* \xe1'\xbd", "unknown_statement"),
    ],
)
def test_bytes_that_are_no_text_are_in_comments_and_literals_alone(
    text: bytes, found: Any, charset: int
):
    said = verdict(text, charset=charset)
    assert (said.reason if isinstance(said, Unsupported) else said) == (found or NO_EFFECT)
    blob = verdict(b"INSERT INTO far.t VALUES ('b\xae\xe1\xbd', 'shop.orders')", charset=charset)
    assert blob.tables == (("far", "t"),)


def test_names_can_be_in_small_letters():
    assert verdict("TRUNCATE Shop.ORDERS") == NO_EFFECT
    assert verdict("TRUNCATE Shop.ORDERS", lower_case_names=True) == Truncation("shop", "orders")
    assert verdict("TRUNCATE ORDERS", "SHOP", lower_case_names=True) == Truncation(
        "shop", "orders"
    )


def test_without_a_word_on_databases_each_is_wanted():
    assert classify(query("DROP DATABASE nowhere"), wanted).reason == "ddl"


def test_what_a_text_ends_with_is_not_what_it_is():
    for text in (
        "DELETE FROM orders -- \0BEGIN",
        "DELETE FROM orders -- COMMIT",
        "\0BEGIN WORKS",
        "x\0COMMIT",
    ):
        assert verdict(text) != NO_EFFECT


@pytest.mark.parametrize(
    "path", sorted(GOLDEN.glob("*-truncate.binlog")), ids=lambda path: path.stem
)
def test_golden_truncates_and_renames(path):
    events = events_of_file(path.read_bytes(), dialect_of(path))
    found = [
        classify(event, lambda *name: name == ("h", "a"))
        for event in events
        if event.kind == QUERY
    ]
    others = [one for one in found if one != NO_EFFECT]
    assert others[0] == Truncation("h", "a")
    assert [one.reason for one in others[1:]] == ["ddl"]


@pytest.mark.parametrize(
    "path", sorted(GOLDEN.glob("*-statement.binlog")), ids=lambda path: path.stem
)
def test_golden_statements_are_stops(path):
    events = [
        event
        for event in events_of_file(path.read_bytes(), dialect_of(path))
        if event.kind == QUERY
    ]
    found = [classify(event, lambda *_: False) for event in events]
    assert all(isinstance(one, OtherTables) for one in found if one != NO_EFFECT)
    found = [classify(event, lambda *_: True) for event in events]
    assert [one.reason for one in found if one != NO_EFFECT] == ["statement"] * 3
    assert {parse_statement(event).database for event in events} <= {"", "h"}


def test_golden_ddl_of_the_newest_server_passes():
    for path in [*GOLDEN.glob("mysql-9*"), GOLDEN / "mysql-8.0.33-compressed.binlog"]:
        for event in events_of_file(path.read_bytes(), "mysql"):
            for one in decompress(event):
                assert one.kind != QUERY or isinstance(classify(one, lambda *_: True), NoEffect)


@given(st.text(max_size=60), st.integers(0, 1))
@example(".x", 0)
def test_any_text_has_a_verdict_and_most_are_stops(text, mode):
    # Nothing that a verb of change stands in front of can be hidden by what follows.
    found = verdict(" ".join(("DELETE FROM shop.orders", text)), mode=mode * ANSI)
    assert isinstance(found, Unsupported)
    assert found.reason in ("statement", "unknown_statement")
    assert verdict(text, mode=mode * ANSI) is not None


def test_a_long_statement_is_read_in_a_moment():
    names = ", ".join(f"`t{number}`" for number in range(10_000))
    assert verdict(f"DROP TABLE {names}") == NO_EFFECT
    assert reason("DROP TABLE " + "(" * 40_000) == "unknown_statement"
    assert reason("DROP TABLE x '" + "\\'" * 40_000) == "unknown_statement"
    assert reason("/*" * 40_000) == "unknown_statement"
    assert verdict("/*!" * 20_000 + "TRUNCATE orders") == Truncation("shop", "orders")


@pytest.mark.parametrize("cut", [0, 12, 13, 20, 31])
def test_an_event_that_ends_in_a_field_is_damage(cut):
    event = query("TRUNCATE orders", variables=struct.pack("<BQ", 1, 0))
    with pytest.raises(BinlogCorrupted):
        classify(event._replace(stop=19 + min(cut, 26)), wanted)
