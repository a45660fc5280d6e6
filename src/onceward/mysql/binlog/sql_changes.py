"""Which tables a statement that changes rows is on: :func:`tables_of`. Pure; called by
:mod:`sql_verdicts`.

Where a session has another ``binlog_format``, and on hosted servers whose own housekeeping does,
such a statement stands in the place of rows. It may pass if all its tables are known, and none is
read. Known they are where the statement is simple (one table, no subquery); else every name in it
is taken for a table, also those of columns. A function that is not the server's own may change any
table, so a statement with one has no known tables.

What is not seen: whether a name is a view, and whether a table has triggers. Whoever calls this
asks the server.

Source: MySQL 8.0 manual, *Data Manipulation Statements*, *Built-In Function and Operator
Reference*; MariaDB the same.
"""

from __future__ import annotations

from collections.abc import Sequence

from onceward.mysql.binlog.sql_words import Reading, Unknown, Word

Names = tuple[tuple[str, str], ...]

CHANGES_ROWS = frozenset({"INSERT", "REPLACE", "UPDATE", "DELETE", "LOAD", "WITH"})

_MODIFIERS = (
    "LOW_PRIORITY", "HIGH_PRIORITY", "DELAYED", "IGNORE", "QUICK", "HISTORY", "CONCURRENT",
    "LOCAL",
)  # fmt: skip
_MORE_TABLES = frozenset({
    "SELECT", "FROM", "JOIN", "STRAIGHT_JOIN", "USING", "TABLE", "WITH", "UNION", "EXCEPT",
    "INTERSECT", "INTO", "FOR",
})  # fmt: skip
"""With one of these behind its first table, a statement may have others."""
_IN_FRONT = frozenset({
    "VALUES", "VALUE", "IN", "ON", "AND", "OR", "XOR", "NOT", "EXISTS", "AS", "SET", "WHERE",
    "HAVING", "WHEN", "THEN",
    "ELSE", "CASE", "BETWEEN", "LIKE", "IS", "BY", "LIMIT", "SELECT", "FROM", "JOIN", "USING",
    "UNION", "ALL", "ANY",
    "SOME", "LINES", "ROWS",
    "DISTINCT", "INTERVAL", "DIV", "MOD", "ROW", "PARTITION", "OVER", "UPDATE", "BINARY",
    "RETURNING", "KEY", "INDEX",
})  # fmt: skip
"""Words with a bracket behind them that call nothing."""
_ROWS = ("VALUES", "VALUE", "SET", "SELECT", "TABLE", "WITH")
_NEEDED = {
    "INSERT": _ROWS,
    "REPLACE": _ROWS,
    "UPDATE": ("SET",),
    "WITH": ("DELETE", "UPDATE", "INSERT", "REPLACE"),
}
"""Words of which each such statement has one."""
_OWN = frozenset({
    "ABS", "ACOS", "ADDDATE", "ADDTIME", "ASCII", "ASIN", "ATAN", "AVG", "BIN", "BIT_AND",
    "BIT_COUNT", "BIT_LENGTH",
    "BIT_OR", "BIT_XOR", "CAST", "CEIL", "CEILING", "CHAR", "CHARSET", "CHAR_LENGTH",
    "CHARACTER_LENGTH", "COALESCE",
    "COLLATION", "COMPRESS", "CONCAT", "CONCAT_WS", "CONNECTION_ID", "CONV", "CONVERT",
    "CONVERT_TZ", "COS", "COT",
    "COUNT", "CRC32", "CURDATE", "CURRENT_DATE", "CURRENT_TIME", "CURRENT_TIMESTAMP",
    "CURRENT_USER", "CURTIME",
    "DATABASE", "DATE", "DATEDIFF", "DATE_ADD", "DATE_FORMAT", "DATE_SUB", "DAY", "DAYNAME",
    "DAYOFMONTH",
    "DAYOFWEEK", "DAYOFYEAR", "DEFAULT", "DEGREES", "DENSE_RANK", "ELT", "EXP", "EXTRACT", "FIELD",
    "FIND_IN_SET",
    "FLOOR", "FORMAT", "FROM_BASE64", "FROM_DAYS", "FROM_UNIXTIME", "GREATEST", "GROUP_CONCAT",
    "HEX", "HOUR", "IF",
    "IFNULL", "INET6_ATON", "INET6_NTOA", "INET_ATON", "INET_NTOA", "INSERT", "INSTR", "ISNULL",
    "JSON_ARRAY",
    "JSON_EXTRACT", "JSON_MERGE_PATCH", "JSON_OBJECT", "JSON_SET", "JSON_UNQUOTE", "JSON_VALID",
    "LAST_DAY",
    "LAST_INSERT_ID", "LCASE", "LEAST", "LEFT", "LENGTH", "LN", "LOCALTIME", "LOCALTIMESTAMP",
    "LOCATE", "LOG",
    "LOG10", "LOG2", "LOWER", "LPAD", "LTRIM", "MAKEDATE", "MAKETIME", "MAX", "MD5", "MICROSECOND",
    "MID", "MIN",
    "MINUTE", "MONTH", "MONTHNAME", "NOW", "NULLIF", "OCT", "OCTET_LENGTH", "ORD", "PI",
    "POSITION", "POW", "POWER",
    "QUARTER", "QUOTE", "RADIANS", "RAND", "RANK", "REPEAT", "REPLACE", "REVERSE", "RIGHT",
    "ROUND", "ROW_COUNT",
    "ROW_NUMBER", "RPAD", "RTRIM", "SECOND", "SEC_TO_TIME", "SHA", "SHA1", "SHA2", "SIGN", "SIN",
    "SPACE", "SQRT",
    "STD", "STDDEV", "STRCMP", "STR_TO_DATE", "SUBDATE", "SUBSTR", "SUBSTRING", "SUBSTRING_INDEX",
    "SUBTIME", "SUM",
    "SYSDATE", "TAN", "TIME", "TIMEDIFF", "TIMESTAMP", "TIMESTAMPADD", "TIMESTAMPDIFF",
    "TIME_FORMAT", "TIME_TO_SEC",
    "TO_BASE64", "TO_DAYS", "TO_SECONDS", "TRIM", "TRUNCATE", "UCASE", "UNCOMPRESS", "UNHEX",
    "UNIX_TIMESTAMP",
    "UPPER", "USER", "UTC_DATE", "UTC_TIME", "UTC_TIMESTAMP", "UUID", "UUID_SHORT", "VARIANCE",
    "VERSION", "WEEK",
    "WEEKDAY", "WEEKOFYEAR", "YEAR",
})  # fmt: skip
"""Functions of the servers' own that change nothing."""


def tables_of(verb: str, said: Reading) -> Names:
    """Every table that the statement may change or read, more rather than fewer.

    :param said: behind ``verb``.
    :raises Unknown: that cannot be told.
    """
    while said.skip(*_MODIFIERS):
        pass
    first = None if verb == "WITH" else _first(verb, said)
    rest = _all(said)
    needed = _NEEDED.get(verb, ()) if first is not None or verb == "WITH" else ("FROM",)
    if needed and not any(word.says(*needed) for word in rest):
        raise Unknown
    if any(
        _may_call(rest, place) or rest[place] == Word("sign", ";") for place in range(len(rest))
    ):
        raise Unknown
    if (
        first is not None
        and not any(word.says(*_MORE_TABLES) for word in rest)
        and not _has_second(verb, rest)
    ):
        return (first,)
    found = [said.named(*chain) for chain in _chains(rest)]
    return tuple(
        dict.fromkeys([*([first] if first else []), *(name for names in found for name in names)])
    )


def _first(verb: str, said: Reading) -> tuple[str, str] | None:
    if verb == "LOAD":
        if not said.skip("DATA", "XML"):
            raise Unknown
        while said.skip(*_MODIFIERS):
            pass
        if not said.skip("INFILE") or said.take().kind != "text":
            raise Unknown
        said.skip("REPLACE", "IGNORE")
        if not (said.skip("INTO") and said.skip("TABLE")):
            raise Unknown
    elif verb == "DELETE":
        if not said.skip("FROM"):
            return None  # DELETE a, b FROM …
    elif verb != "UPDATE":
        said.skip("INTO")
    return said.name()


def _all(said: Reading) -> list[Word]:
    found = []
    while said.next is not None:
        found.append(said.take())
    if found and found[-1] == Word("sign", ";"):
        found.pop()
    return found


def _has_second(verb: str, rest: Sequence[Word]) -> bool:
    """Is there a comma in front of what is done to the first table?"""
    if verb not in ("UPDATE", "DELETE"):
        return False
    ends = ("SET",) if verb == "UPDATE" else ("WHERE", "ORDER", "LIMIT", "RETURNING")
    front = next((place for place, word in enumerate(rest) if word.says(*ends)), len(rest))
    return any(word.kind == "sign" and word.text in ",(" for word in rest[:front])


def _may_call(words: Sequence[Word], place: int) -> bool:
    """Is it the name of a function that is not known?"""
    if place == 0 or words[place] != Word("sign", "("):
        return False
    word = words[place - 1]
    if word.kind not in ("word", "name"):
        return False
    is_qualified = place > 1 and words[place - 2] == Word("sign", ".")
    if is_qualified or word.kind == "name":
        return not (place > 1 and _is_target(words, place - 1))
    return not word.says(*_IN_FRONT, *_OWN) and not _is_target(words, place - 1)


def _is_target(words: Sequence[Word], place: int) -> bool:
    """Is it a table with its columns behind it: INTO t (a, b)?"""
    while place > 1 and words[place - 1] == Word("sign", "."):
        place -= 2
    return place > 0 and words[place - 1].says("INTO", "TABLE")


def _chains(words: Sequence[Word]) -> list[list[Word]]:
    """Names with dots between them."""
    found: list[list[Word]] = []
    joins = False
    for word in words:
        if word.kind in ("word", "name"):
            if joins and found:
                found[-1].append(word)
            else:
                found.append([word])
        joins = word == Word("sign", ".")
    return found


__all__ = ["CHANGES_ROWS", "Names", "Unknown", "tables_of"]
