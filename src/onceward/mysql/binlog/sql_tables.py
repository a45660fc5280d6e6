"""Tokens of an SQL statement, and the tables of a DML statement: :func:`tokenize`,
:class:`TokenReader`, :func:`dml_tables`. Pure.

This is no parser of SQL: it knows keywords, names, quoted texts and signs, and drops comments. The
content of an executable comment (``/*! … */``, MariaDB's ``/*M! … */``) counts, whatever version
it is for.

DML stands in the place of rows where a session has another ``binlog_format``, and on hosted
servers whose own housekeeping sets one. It is harmless if all the tables that it changes are
known, and none is one that we read. That is the first alone where the statement has room for no
other; else every name in it is taken for a table, also those of columns. A function that is not
built in may change any table, so a statement with one has no known tables. Whether a name is a
view, which may call such functions, and whether a table has triggers or foreign keys that refer to
it, is not seen here: the caller asks the server.

Source: MySQL 8.0 manual, *Comments*, *Schema Object Names*, *String Literals*, *Data Manipulation
Statements*, *Built-In Function and Operator Reference*; MariaDB the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, cast


def quote(name: str) -> str:
    """Return a quoted name."""
    return "`" + name.replace("`", "``") + "`"


def quote_table(database: str, table: str) -> str:
    """Return a table's quoted name with its database."""
    return f"{quote(database)}.{quote(table)}"


class TableName(NamedTuple):
    """Of a table, as messages have it; statements in them have it quoted."""

    database: str
    table: str

    def __str__(self) -> str:
        return f"{self.database}.{self.table}"


TokenKind = Literal["word", "name", "text", "sign", "broken"]


class Token(NamedTuple):
    """A token of a statement."""

    kind: TokenKind
    text: str
    """Of a ``word`` as it is written, of a ``name`` without its quotes."""

    def is_keyword(self, *keywords: str) -> bool:
        """Check whether it is one of these, which are in capitals; a quoted name never is."""
        return self.kind == "word" and self.text.upper() in keywords


_BLANK = (
    r"[\s\0]+|\#[^\n]*|--(?=[\s\0]|$)[^\n]*|/\*(?!M?!)(?:[^*]|\*(?!/))*\*/|/\*M?!(?:\d{5,6})?|\*/"
)
_TEXT = r"'(?:[^'\\]|\\.|'')*'"
_TEXT_AS_IT_IS = r"'(?:[^']|'')*'"  # NO_BACKSLASH_ESCAPES
_REST = (
    r"(?P<name>`(?:[^`]|``)*`{more})|(?P<text>{texts})|"
    r"(?P<word>[0-9A-Za-z_$\u0080-\U0010ffff]+)|(?P<sign>[^'\"`])"
)


def _pattern(ansi_quotes: bool, backslashes: bool) -> re.Pattern[str]:
    single = _TEXT if backslashes else _TEXT_AS_IT_IS
    double = single.replace("'", '"')
    more, texts = (r"|\"(?:[^\"]|\"\")*\"", single) if ansi_quotes else ("", f"{single}|{double}")
    rest = _REST.replace("{more}", more).replace("{texts}", texts)
    return re.compile(f"(?P<blank>{_BLANK})|{rest}", re.DOTALL)


_PATTERNS = {
    (ansi, slash): _pattern(ansi, slash) for ansi in (False, True) for slash in (False, True)
}


_NO_TEXT = re.compile("[\udc80-\udcff]")
"""What ``surrogateescape`` makes of a byte that is no text."""


def tokenize(
    statement: str, *, ansi_quotes: bool = False, backslashes: bool = True
) -> Iterator[Token]:
    """Yield the tokens one by one: the beginning of a statement costs no more than that. The last
    one is ``broken`` where a quote or a comment has no end, or a name has bytes that are no text.

    :param ansi_quotes: ``"x"`` is a name, by the session's ``sql_mode``.
    :param backslashes: they escape in texts: ``sql_mode`` is without NO_BACKSLASH_ESCAPES.
    """
    match = _PATTERNS[ansi_quotes, backslashes].match
    at = 0
    while at < len(statement):
        found = match(statement, at)
        if found is None or (statement.startswith("/*", at) and found.lastgroup != "blank"):
            yield Token("broken", statement[at : at + 20])
            return
        at = found.end()
        text = found.group()
        if found.lastgroup in ("name", "word") and not text.isascii() and _NO_TEXT.search(text):
            yield Token("broken", text[:20])
            return
        if found.lastgroup == "name":
            yield Token("name", text[1:-1].replace(text[0] * 2, text[0]))
        elif found.lastgroup != "blank":
            yield Token(cast(TokenKind, found.lastgroup), text)


class UnknownStatement(Exception):
    """The statement has an unknown form."""


class TokenReader:
    """Reads the tokens of a statement from the front.

    :param database: of names without one. :param lower_case_names: return names in lower case.
    """

    def __init__(self, tokens: Iterable[Token], database: str, lower_case_names: bool) -> None:
        self._words = iter(tokens)
        self.next: Token | None = None
        """The next token; None behind the last one."""
        self._database = database.lower() if lower_case_names else database
        self._lower = lower_case_names
        self._advance()

    def _advance(self) -> None:
        self.next = next(self._words, None)
        if self.next is not None and self.next.kind == "broken":
            raise UnknownStatement

    def next_is(self, *keywords: str) -> bool:
        """Check whether the next token is one of these keywords."""
        return self.next is not None and self.next.is_keyword(*keywords)

    def take(self) -> Token:
        """Return the next token, and advance."""
        word = self.next
        if word is None:
            raise UnknownStatement
        self._advance()
        return word

    def skip(self, *keywords: str) -> bool:
        """Advance if the next token is one of these keywords, and return whether it was."""
        if not self.next_is(*keywords):
            return False
        self._advance()
        return True

    def skip_sign(self, sign: str) -> bool:
        """Advance if the next token is this sign, and return whether it was."""
        if self.next != Token("sign", sign):
            return False
        self._advance()
        return True

    def skip_if_exists(self) -> None:
        """Skip IF EXISTS or IF NOT EXISTS."""
        if self.skip("IF"):
            self.skip("NOT")
            if not self.skip("EXISTS"):
                raise UnknownStatement

    def skip_wait_clause(self) -> None:
        """Skip MariaDB's WAIT n or NOWAIT."""
        if self.skip("WAIT"):
            self.take()
        else:
            self.skip("NOWAIT")

    def take_table(self) -> tuple[str, str]:
        """Return database and name of a table."""
        if self.skip_sign("."):  # ODBC's .table
            return self._database, self.take_name()
        first = self.take_name()
        return (first, self.take_name()) if self.skip_sign(".") else (self._database, first)

    def take_tables(self) -> list[tuple[str, str]]:
        """Return tables with commas between them."""
        found = [self.take_table()]
        while self.skip_sign(","):
            found.append(self.take_table())
        return found

    def possible_tables(self, *chain: Token) -> list[tuple[str, str]]:
        """Return the tables that ``a``, ``a.b`` or ``a.b.c`` may be, or be a column of."""
        first, *more = (word.text.lower() if self._lower else word.text for word in chain)
        return [(self._database, first), *([(first, more[0])] if more else [])]

    def take_name(self) -> str:
        """Return one name."""
        word = self.take()
        if word.kind not in ("word", "name"):
            raise UnknownStatement
        return word.text.lower() if self._lower else word.text


TableNames = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class OtherTables:
    """The effect of DML in the place of rows of these tables: none is one that we read, unless one
    is a view, has a trigger, or is what a foreign key refers to.
    """

    tables: TableNames
    reads: TableNames = ()
    """What it may read beside them; views among these may call functions."""

    @classmethod
    def of(
        cls, tables: Iterable[tuple[str, str]], reads: Iterable[tuple[str, str]]
    ) -> OtherTables:
        """Return it with each name once."""
        return cls(tuple(dict.fromkeys(tables)), tuple(dict.fromkeys(reads)))


ROW_CHANGES = frozenset({"INSERT", "REPLACE", "UPDATE", "DELETE", "LOAD", "WITH"})

_MODIFIERS = ("LOW_PRIORITY", "HIGH_PRIORITY", "DELAYED", "IGNORE")
"""Between verb and table, where a table of such a name has quotes: they are reserved."""
_MORE_MODIFIERS = {"DELETE": ("QUICK", "HISTORY"), "LOAD": ("CONCURRENT", "LOCAL")}
"""Before FROM or INFILE: these may be names of tables, as in ``UPDATE history h SET …``."""
_MORE_TABLES = frozenset({
    "SELECT", "FROM", "JOIN", "STRAIGHT_JOIN", "USING", "TABLE", "WITH", "UNION", "EXCEPT",
    "INTERSECT", "INTO", "FOR",
})  # fmt: skip
"""With one of these behind its first table, a statement may have others."""
_NOT_FUNCTIONS = frozenset({
    "VALUES", "VALUE", "IN", "ON", "AND", "OR", "XOR", "NOT", "EXISTS", "AS", "SET", "WHERE",
    "HAVING", "WHEN", "THEN", "ELSE", "CASE", "BETWEEN", "LIKE", "IS", "BY", "LIMIT", "SELECT",
    "FROM", "JOIN", "USING", "UNION", "ALL", "ANY", "SOME", "LINES", "ROWS", "DISTINCT",
    "INTERVAL", "DIV", "MOD", "ROW", "PARTITION", "OVER", "UPDATE", "BINARY", "RETURNING", "KEY",
    "INDEX", "AGAINST",
})  # fmt: skip
"""Words with a bracket behind them that are no functions."""
_ROW_SOURCES = ("VALUES", "VALUE", "SET", "SELECT", "TABLE", "WITH")
_REQUIRED = {
    "INSERT": _ROW_SOURCES,
    "REPLACE": _ROW_SOURCES,
    "UPDATE": ("SET",),
    "WITH": ("DELETE", "UPDATE", "INSERT", "REPLACE"),
}
"""Words of which each such statement has one."""
_BUILT_IN_FUNCTIONS = frozenset({
    "ABS", "ACOS", "ADDDATE", "ADDTIME", "AES_DECRYPT", "AES_ENCRYPT", "ASCII", "ASIN", "ATAN",
    "ATAN2", "AVG", "BENCHMARK", "BIN", "BIT_AND", "BIT_COUNT", "BIT_LENGTH", "BIT_OR", "BIT_XOR",
    "CAST", "CEIL", "CEILING", "CHAR", "CHARACTER_LENGTH", "CHARSET", "CHAR_LENGTH", "COALESCE",
    "COERCIBILITY", "COLLATION", "COMPRESS", "CONCAT", "CONCAT_WS", "CONNECTION_ID", "CONV",
    "CONVERT", "CONVERT_TZ", "COS", "COT", "COUNT", "CRC32", "CUME_DIST", "CURDATE",
    "CURRENT_DATE", "CURRENT_TIME", "CURRENT_TIMESTAMP", "CURRENT_USER", "CURTIME", "DATABASE",
    "DATE", "DATEDIFF", "DATE_ADD", "DATE_FORMAT", "DATE_SUB", "DAY", "DAYNAME", "DAYOFMONTH",
    "DAYOFWEEK", "DAYOFYEAR", "DEFAULT", "DEGREES", "DENSE_RANK", "ELT", "EXP", "EXPORT_SET",
    "EXTRACT", "EXTRACTVALUE", "FIELD", "FIND_IN_SET", "FIRST_VALUE", "FLOOR", "FORMAT",
    "FOUND_ROWS", "FROM_BASE64", "FROM_DAYS", "FROM_UNIXTIME", "GET_FORMAT", "GREATEST",
    "GROUP_CONCAT", "HEX", "HOUR", "IF", "IFNULL", "INET6_ATON", "INET6_NTOA", "INET_ATON",
    "INET_NTOA", "INSERT", "INSTR", "ISNULL", "IS_IPV4", "IS_IPV6", "JSON_ARRAY", "JSON_ARRAYAGG",
    "JSON_ARRAY_APPEND", "JSON_ARRAY_INSERT", "JSON_CONTAINS", "JSON_CONTAINS_PATH", "JSON_DEPTH",
    "JSON_EXTRACT", "JSON_INSERT", "JSON_KEYS", "JSON_LENGTH", "JSON_MERGE", "JSON_MERGE_PATCH",
    "JSON_MERGE_PRESERVE", "JSON_OBJECT", "JSON_OBJECTAGG", "JSON_QUOTE", "JSON_REMOVE",
    "JSON_REPLACE", "JSON_SEARCH", "JSON_SET", "JSON_TYPE", "JSON_UNQUOTE", "JSON_VALID",
    "LAG", "LAST_DAY", "LAST_INSERT_ID", "LAST_VALUE", "LCASE", "LEAD", "LEAST",
    "LEFT", "LENGTH", "LN", "LOAD_FILE", "LOCALTIME", "LOCALTIMESTAMP", "LOCATE", "LOG", "LOG10",
    "LOG2", "LOWER", "LPAD", "LTRIM", "MAKEDATE", "MAKETIME", "MAKE_SET", "MATCH", "MAX", "MD5",
    "MICROSECOND", "MID", "MIN", "MINUTE", "MONTH", "MONTHNAME", "NOW", "NTH_VALUE", "NTILE",
    "NULLIF", "OCT", "OCTET_LENGTH", "ORD", "PERCENT_RANK", "PERIOD_ADD", "PERIOD_DIFF", "PI",
    "POSITION", "POW", "POWER", "QUARTER", "QUOTE", "RADIANS", "RAND", "RANK", "REGEXP_INSTR",
    "REGEXP_REPLACE", "REGEXP_SUBSTR", "REPEAT", "REPLACE", "REVERSE", "RIGHT", "ROUND",
    "ROW_COUNT", "ROW_NUMBER", "RPAD", "RTRIM", "SCHEMA", "SECOND", "SEC_TO_TIME", "SESSION_USER",
    "SHA", "SHA1", "SHA2", "SIGN", "SIN", "SOUNDEX", "SPACE", "SQRT", "STD", "STDDEV",
    "STDDEV_POP", "STDDEV_SAMP", "STRCMP", "STR_TO_DATE", "SUBDATE", "SUBSTR", "SUBSTRING",
    "SUBSTRING_INDEX", "SUBTIME", "SUM", "SYSDATE", "SYSTEM_USER", "TAN", "TIME", "TIMEDIFF",
    "TIMESTAMP", "TIMESTAMPADD", "TIMESTAMPDIFF", "TIME_FORMAT", "TIME_TO_SEC", "TO_BASE64",
    "TO_DAYS", "TO_SECONDS", "TRIM", "TRUNCATE", "UCASE", "UNCOMPRESS", "UNCOMPRESSED_LENGTH",
    "UNHEX", "UNIX_TIMESTAMP", "UPDATEXML", "UPPER", "USER", "UTC_DATE", "UTC_TIME",
    "UTC_TIMESTAMP", "UUID", "UUID_SHORT", "VARIANCE", "VAR_POP", "VAR_SAMP", "VERSION", "WEEK",
    "WEEKDAY", "WEEKOFYEAR", "WEIGHT_STRING", "YEAR", "YEARWEEK",
})  # fmt: skip
"""Functions of both servers that change nothing: of one that a server lacks (``JSON_VALUE`` before
MySQL 8.0.21) a user may have made his own."""


def dml_tables(verb: str, tokens: TokenReader) -> OtherTables:
    """Return every table that the statement may change, and may read, more rather than fewer.

    :param tokens: behind ``verb``.
    """
    first = None if verb == "WITH" else _first_table(verb, tokens)
    rest = _take_rest(tokens)
    required = _REQUIRED.get(verb, ()) if first is not None or verb == "WITH" else ("FROM",)
    if required and not any(word.is_keyword(*required) for word in rest):
        raise UnknownStatement
    if any(
        _may_call(rest, place) or rest[place] == Token("sign", ";") for place in range(len(rest))
    ):
        raise UnknownStatement
    names = [one for name in _qualified_names(rest) for one in tokens.possible_tables(*name)]
    if first is None or not _changes_first_alone(verb, rest):
        return OtherTables.of([first, *names] if first else names, ())
    has_others = any(word.is_keyword(*_MORE_TABLES) for word in rest)
    return OtherTables.of([first], names if has_others else ())


def _first_table(verb: str, tokens: TokenReader) -> tuple[str, str] | None:
    if verb == "LOAD" and not tokens.skip("DATA", "XML"):
        raise UnknownStatement
    while tokens.skip(*_MODIFIERS, *_MORE_MODIFIERS.get(verb, ())):
        pass
    if verb == "LOAD":
        if not tokens.skip("INFILE") or tokens.take().kind != "text":
            raise UnknownStatement
        tokens.skip("REPLACE", "IGNORE")
        if not (tokens.skip("INTO") and tokens.skip("TABLE")):
            raise UnknownStatement
    elif verb == "DELETE":
        if not tokens.skip("FROM"):
            # DELETE a, b FROM …
            return None
    elif verb != "UPDATE":
        tokens.skip("INTO")
    return tokens.take_table()


def _take_rest(tokens: TokenReader) -> list[Token]:
    found = []
    while tokens.next is not None:
        found.append(tokens.take())
    if found and found[-1] == Token("sign", ";"):
        found.pop()
    return found


def _changes_first_alone(verb: str, rest: Sequence[Token]) -> bool:
    """Check that there is no more than an alias in front of what is done to the first table."""
    if verb not in ("UPDATE", "DELETE"):
        return True
    ends = ("SET",) if verb == "UPDATE" else ("WHERE", "ORDER", "LIMIT", "RETURNING")
    place = next((place for place, word in enumerate(rest) if word.is_keyword(*ends)), len(rest))
    front = rest[1:place] if rest and rest[0].is_keyword("AS") else rest[:place]
    return len(front) <= 1 and all(word.kind in ("word", "name") for word in front)


def _may_call(words: Sequence[Token], place: int) -> bool:
    """Check whether the bracket at ``place`` calls a function that is not built in."""
    if place == 0 or words[place] != Token("sign", "("):
        return False
    word = words[place - 1]
    if word.kind not in ("word", "name"):
        return False
    is_qualified = place > 1 and words[place - 2] == Token("sign", ".")
    is_known = not is_qualified and word.is_keyword(*_NOT_FUNCTIONS, *_BUILT_IN_FUNCTIONS)
    return not is_known and not _is_target(words, place - 1)


def _is_target(words: Sequence[Token], place: int) -> bool:
    """Check for a table with its columns behind it, INTO t (a, b), also as an alias; and for a
    type, AS DECIMAL(10, 2)."""
    while place > 1 and words[place - 1] == Token("sign", "."):
        place -= 2
    return place > 0 and words[place - 1].is_keyword("INTO", "TABLE", "AS")


def _qualified_names(words: Sequence[Token]) -> list[list[Token]]:
    """Return the names, with the dots between them resolved."""
    found: list[list[Token]] = []
    joins = False
    for word in words:
        if word.kind in ("word", "name"):
            if joins and found:
                found[-1].append(word)
            else:
                found.append([word])
        joins = word == Token("sign", ".")
    return found
