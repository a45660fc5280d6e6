"""The words of an SQL statement, as far as it takes to tell what it does: :func:`words`. Pure.

No parser of SQL: keywords, names, quoted texts and signs, without comments. What stands in an executable comment
(``/*! … */``, MariaDB's ``/*M! … */``) is taken as said, whatever version it is for.

Source: MySQL 8.0 manual, *Comments*, *Schema Object Names*, *String Literals*.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

WordKind = Literal["word", "name", "text", "sign", "broken"]


class Word(NamedTuple):
    kind: WordKind
    text: str
    """Of a ``word`` as it is written, of a ``name`` without its quotes."""

    def says(self, *keywords: str) -> bool:
        """Whether it is one of these, which are in capitals; a quoted name never is."""
        return self.kind == "word" and self.text.upper() in keywords


_BLANK = r"[\s\0]+|\#[^\n]*|--(?=[\s\0]|$)[^\n]*|/\*(?!M?!)(?:[^*]|\*(?!/))*\*/|/\*M?!(?:\d{5,6})?|\*/"
_TEXT = r"'(?:[^'\\]|\\.|'')*'"
_TEXT_AS_IT_IS = r"'(?:[^']|'')*'"  # NO_BACKSLASH_ESCAPES
_REST = r"(?P<name>`(?:[^`]|``)*`{more})|(?P<text>{texts})|(?P<word>[0-9A-Za-z_$\u0080-\U0010ffff]+)|(?P<sign>[^'\"`])"


def _pattern(ansi_quotes: bool, backslashes: bool) -> re.Pattern[str]:
    single = _TEXT if backslashes else _TEXT_AS_IT_IS
    double = single.replace("'", '"')
    more, texts = (r"|\"(?:[^\"]|\"\")*\"", single) if ansi_quotes else ("", f"{single}|{double}")
    rest = _REST.replace("{more}", more).replace("{texts}", texts)
    return re.compile(f"(?P<blank>{_BLANK})|{rest}", re.DOTALL)


_PATTERNS = {(ansi, slash): _pattern(ansi, slash) for ansi in (False, True) for slash in (False, True)}


def words(statement: str, *, ansi_quotes: bool = False, backslashes: bool = True) -> Iterator[Word]:
    """In order, as they are asked for: the beginning of a statement costs no more than that.

    The last one is ``broken`` where a quote or a comment has no end.

    :param ansi_quotes: ``"x"`` is a name, by the session's ``sql_mode``.
    :param backslashes: they escape in texts: ``sql_mode`` is without NO_BACKSLASH_ESCAPES.
    """
    match = _PATTERNS[ansi_quotes, backslashes].match
    at = 0
    while at < len(statement):
        found = match(statement, at)
        if found is None or (statement.startswith("/*", at) and found.lastgroup != "blank"):
            yield Word("broken", statement[at : at + 20])
            return
        at = found.end()
        kind, text = found.lastgroup, found.group()
        if kind == "name":
            yield Word("name", text[1:-1].replace(text[0] * 2, text[0]))
        elif kind == "word" or kind == "text" or kind == "sign":
            yield Word(kind, text)
