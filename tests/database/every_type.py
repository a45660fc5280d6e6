"""Every type of column that MySQL and MariaDB have, with values at their bounds, as SQL writes
them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Form = Literal["number", "text", "json", "base64", "bool", "geometry"]
Types = list[tuple[Form, str, list[str]]]


@dataclass(frozen=True)
class Typed:
    """Columns ``c0``, ``c1`` … of one table, and what they are set to."""

    table: str
    types: Types

    @property
    def definition(self) -> str:
        columns = ", ".join(f"c{n} {kind} NULL" for n, (_, kind, _) in enumerate(self.types))
        return (
            f"CREATE TABLE {{s}}.{self.table} (id int PRIMARY KEY, {columns}) CHARACTER SET "
            f"utf8mb4"
        )

    @property
    def rows(self) -> list[str]:
        """Each of them with the next value of each column that has one; the first has none at
        all.
        """
        most = max(len(values) for _, _, values in self.types)
        found = []
        for row in range(most + 1):
            cells = [
                values[row - 1] if 0 < row <= len(values) else "NULL"
                for _, _, values in self.types
            ]
            found.append(f"INSERT INTO {{s}}.{self.table} VALUES ({row}, {', '.join(cells)})")  # noqa: S608
        return found


def _charsets(texts: dict[str, str]) -> Types:
    return [
        ("text", f"varchar(20) CHARACTER SET {charset}", [f"'{text}'"])
        for charset, text in texts.items()
    ]


_SECONDS = range(7)
NUMBERS: Types = [
    ("number", "tinyint", ["-128", "127", "0"]),
    ("number", "tinyint unsigned", ["255", "0"]),
    ("number", "boolean", ["true", "false"]),
    ("number", "smallint", ["-32768", "32767"]),
    ("number", "smallint unsigned", ["65535"]),
    ("number", "mediumint", ["-8388608", "8388607", "-1"]),
    ("number", "mediumint unsigned", ["16777215"]),
    ("number", "int", ["-2147483648", "2147483647"]),
    ("number", "int unsigned", ["4294967295"]),
    ("number", "int(8) unsigned zerofill", ["42", "0"]),
    ("number", "bigint", ["-9223372036854775808", "9223372036854775807"]),
    ("number", "bigint unsigned", ["18446744073709551615", "0"]),
    ("number", "float", ["0.1", "-3.4e38", "16777217", "1e-6", "1e20", "0", "123456.789",
    "1.17549e-38"]),
    (
        "number",
        "double",
        ["0.1", "1e15", "1e16", "1e20", "-1.7976931348623157e308", "5e-324", "1e-5", "1e-15",
        "1e-16", "1.5",
         "123456789012345678", "-0.0", "100000000000000", "0.00012345678901234567"],
    ),
    ("number", "decimal(12,2)", ["-0.50", "9999999999.99", "-9999999999.99", "0", "1.05"]),
    ("number", "decimal(1,0)", ["-9", "9"]),
    ("number", "decimal(9,9)", ["-.999999999", ".1"]),
    ("number", "decimal(18,9)", ["-999999999.999999999", "0.000000001"]),
    ("number", "decimal(38,10)", ["-1234567890123456789012345678.0123456789", "0.0000000001",
    "0"]),
    ("number", "decimal(39,0)", ["999999999999999999999999999999999999999", "-1"]),
    ("number", "decimal(30,30)", ["0.000000000000000000000000000001", "-0.1"]),
    ("number", "decimal(65,30)",
    ["-12345678901234567890123456789012345.123456789012345678901234567890", "0"]),
    ("number", "year", ["1901", "2155", "0", "2024"]),
    ("bool", "bit(1)", ["b'1'", "b'0'"]),
    ("base64", "bit(8)", ["b'10000001'"]),
    ("base64", "bit(13)", ["b'1000000000001'", "1"]),
    ("base64", "bit(64)", ["18446744073709551615", "1"]),
]  # fmt: skip
_TIMES = [
    "'-838:59:59'", "'838:59:59'", "'00:00:00'", "'-00:00:00.123456'", "'12:34:56.987654'",
    "'100:00:00.5'",
    "'-00:00:01.5'", "'-99:59:59.999999'",
]  # fmt: skip
_MOMENTS = [
    "'0000-00-00 00:00:00'", "'2024-02-29 "
                             "23:59:59.123456'", "'9999-12-31 23:59:59'", "'1000-01-01 00:00:00'",
    "'2024-00-00 01:02:03'",
]  # fmt: skip
_STAMPS = [
    "'0000-00-00 00:00:00'",
    "'1970-01-01 00:00:01'",
    "'2038-01-19 03:14:07.499999'",
    "'2024-02-29 23:59:59.123456'",
]
_DAYS = [
    "'0000-00-00'",
    "'2024-02-29'",
    "'9999-12-31'",
    "'0001-01-01'",
    "'2024-00-00'",
    "'2024-05-00'",
]
MOMENTS: Types = [
    ("text", "date", _DAYS),
    *[("text", f"time({digits})", _TIMES) for digits in _SECONDS],
    *[("text", f"datetime({digits})", _MOMENTS) for digits in _SECONDS],
    *[("text", f"timestamp({digits})", _STAMPS) for digits in _SECONDS],
]  # type: ignore[list-item]
TEXTS: Types = [
    ("text", "char(5)", ["'ab  '", "''", "'äöü'", "'😀'", "'a\\0b'"]),
    ("text", "char(255) CHARACTER SET latin1", ["'äÿ€'"]),
    ("text", "char(200)", ["repeat('😀',200)", "'x'"]),
    ("text", "char(5) CHARACTER SET ucs2", ["'ab'", "'ä '"]),
    ("text", "varchar(9)", ["'a  '", "''", "'\"\\\\\\n\\t/'"]),
    ("text", "varchar(300)", ["repeat('ä',300)", "'\\0\\Z\\b\\r'"]),
    (
        "text",
        "varchar(2000) CHARACTER SET latin1",
        ["'\\'äöü€'", "x'818d8f909d'", "repeat('ß',2000)"],
    ),
    ("text", "tinytext", ["'x'"]),
    ("text", "text", ["repeat('xä',400)", "'\u2028 😀'"]),
    ("text", "text CHARACTER SET utf16", ["'ab😀'"]),
    ("text", "mediumtext", ["repeat('m',7000)"]),
    ("text", "longtext", ["'l'"]),
    ("text", "enum('a','b,b','c','')", ["'a'", "'b,b'", "''", "'not there'"]),
    ("text", "set('x','y','z')", ["'x,z'", "''", "'x,y,z'"]),
    (
        "text",
        f"set({','.join(repr(f'l{n}') for n in range(64))})",
        ["'l0,l63'", "18446744073709551615"],
    ),
    ("text", f"set({','.join(repr(f'l{n}') for n in range(20))})", ["'l0,l19'", "1048575"]),
    ("base64", "binary(5)", ["'ab'", "x'0000'", "x'6162000000'", "''", "x'2020'"]),
    ("base64", "binary(16)", ["'ab'", "x'00112233445566778899aabbccddeeff'"]),
    ("base64", "binary(255)", ["'x'"]),
    ("base64", "varbinary(5)", ["x'00ff00'", "''", "x'2000'"]),
    ("base64", "varbinary(300)", ["repeat('x',300)"]),
    ("base64", "tinyblob", ["x'00'"]),
    ("base64", "blob", ["x'ff00'", "repeat('b',1000)"]),
    ("base64", "mediumblob", ["repeat('m',7000)"]),
    ("base64", "longblob", ["''"]),
    (
        "geometry",
        "geometry",
        ["ST_GeomFromText('POINT(1 2)')", "ST_GeomFromText('POLYGON((0 0,1 0,1 1,0 0))',4326)"],
    ),
    ("geometry", "point", ["ST_GeomFromText('POINT(-1.5 2)',4326)"]),
    ("geometry", "linestring", ["ST_GeomFromText('LINESTRING(0 0,1 1)')"]),
    ("geometry", "geometrycollection", ["ST_GeomFromText('GEOMETRYCOLLECTION(POINT(1 1))')"]),
]
CHARSETS: Types = _charsets({
    "utf8mb3": "ä€", "ascii": "abc", "latin2": "łőž", "latin5": "ğ", "latin7": "ž", "cp1250": "ž",
    "cp1251": "Привет",
    "cp1256": "سلام", "cp1257": "ž", "cp850": "äÄ", "cp852": "ž", "cp866": "Привет",
    "koi8r": "Привет", "koi8u": "ґ",
    "greek": "Ελλ", "hebrew": "שלום", "gbk": "中文", "gb2312": "中文", "big5": "中文", "sjis": "日本ｱ",
    "cp932": "日本～",
    "ujis": "日本", "euckr": "한글", "ucs2": "ä中", "utf16": "ä中😀", "utf16le": "ä😀", "utf32": "ä😀",
    "tis620": "ไทย",
    "armscii8": "Աա", "geostd8": "აბ", "macroman": "ä", "macce": "ž", "dec8": "äœ", "hp8": "ä",
    "swe7": "åä",
    "keybcs2": "č",
})  # fmt: skip
_POINT = "ST_GeomFromText('POINT(1 2)')"
MIXED: Types = [
    ("geometry", "point", [_POINT]), ("text", "varchar(9) "
                                              "CHARACTER SET latin1", ["'€'"]),
                                              ("geometry", "geometry", []),
    ("text", "text CHARACTER SET ucs2", ["'ä€'"]), ("number", "year", ["2024"]),
    ("number", "int", ["-1"]),
    ("number", "int unsigned", ["4294967295"]), ("geometry", "polygon", []),
    ("base64", "blob", ["x'80'"]),
    ("text", "char(3) CHARACTER SET gbk", ["'中'"]),
]  # fmt: skip
"""Side by side: to MariaDB a geometry has a charset, too, and a YEAR a sign."""
_DOCUMENTS = [
    *(f"'{text}'" for text in (
        "null", "true", "false", "[]", "{}", "0", "-1", "32768", "-32769", "4294967296",
        "18446744073709551615",
        "-9223372036854775808", "1.0", "1e20", "1e15", "1e16", "0.00001", "1e-300", "-0.0",
        "100.0",
        '"a\\\\"b\\\\\\\\ \\\\u0001\\\\n\\\\t/ä😀"',
        '{"k": 1, "aa": [1, 2.5, "x", null, true, {"z": {}}], "": ""}',
        "[-1, -40000, 65535, -2147483649, 1e100, 123456789012345680.0, 0.1e-14]",
    )),
    "cast(cast('12.340' AS decimal(10,3)) AS json)",
    "json_object('d', cast('-0.00001' AS decimal(20,10)), 'e', "
    "cast(-12345678901234567890123456789012345.123456789012345678901234567890 AS decimal(65,30)))",
    "json_array(cast('2024-02-29' AS date), cast('-838:59:59.5' AS time(6)), cast('12:00:00' AS "
    "time), "
    "cast('2024-02-29 12:13:14.123456' AS datetime(6)), cast('2024-01-01 00:00:00' AS datetime))",
    "cast(cast('2024-01-02' AS date) AS json)",
    "json_array(x'00ff', repeat('b',3), cast(repeat('ab',200) AS binary))",
    "json_object('s', repeat('x',200), 't', repeat('y', 70000), 'n', -5, 'm', -40000)",
    "concat('[', repeat('123456,', 20000), "
    "'-70000,-5,5,32767,-32768,32768,65535,65536,null,true,1.5,[-5,40000]]')",
    "concat(repeat('[',99),repeat(']',99))",
    "json_array(cast(st_geomfromtext('point(1 2)') AS json))",
]  # fmt: skip
MYSQL: Types = [*_charsets({"gb18030": "中文😀"}), ("json", "json", _DOCUMENTS)]
MARIADB: Types = [
    ("text", "json", ["'{\"a\": 1}'", "'[1,2 ]'"]),
    ("text", "enum('größe','ä') CHARACTER SET latin1", ["'ä'"]),
    ("text", "set('ж','ü') CHARACTER SET utf16", ["'ж,ü'"]),
    (
        "base64",
        "uuid",
        ["'123e4567-e89b-12d3-a456-426655440000'", "'00000000-0000-0000-0000-000000000000'"],
    ),
    ("base64", "inet6", ["'2001:db8::ff00:42:8329'", "'::'"]),
    ("base64", "inet4", ["'203.0.113.0'"]),
    ("text", "varchar(200) COMPRESSED", ["repeat('ä',150)", "'x'", "''"]),
    ("text", "varchar(300) COMPRESSED", ["repeat('ä',300)", "'x'"]),
    ("text", "varchar(9000) CHARACTER SET latin1 COMPRESSED", ["repeat('ß',9000)", "'\\0'"]),
    ("text", "text COMPRESSED", ["repeat('ä',5000)", "'x'", "''"]),
    ("base64", "longblob COMPRESSED", ["repeat('ä',5000)", "x'00'"]),
    ("base64", "varbinary(300) COMPRESSED", ["repeat('a',300)", "x'00'"]),
]


def tables_of(kind: str) -> list[Typed]:
    """:param kind: ``"mysql"`` or ``"mariadb"``."""
    own = MYSQL if kind == "mysql" else MARIADB
    return [
        Typed("numbers", NUMBERS), Typed("moments", MOMENTS), Typed("texts", TEXTS),
        Typed("charsets", CHARSETS),
        Typed("own", own), Typed("mixed", MIXED),
    ]  # fmt: skip
