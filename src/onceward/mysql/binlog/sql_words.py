"""The words of an SQL statement, as far as it takes to tell what it does: :func:`words`,
:class:`Reading`. Pure.

No parser of SQL: keywords, names, quoted texts and signs, without comments. What stands in an
executable comment (``/*! … */``, MariaDB's ``/*M! … */``) is taken as said, whatever version it is
for.

Source: MySQL 8.0 manual, *Comments*, *Schema Object Names*, *String Literals*.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

WordKind = Literal["word", "name", "text", "sign", "broken"]


class Word(NamedTuple):
    kind: WordKind
    text: str
    """Of a ``word`` as it is written, of a ``name`` without its quotes."""

    def says(self, *keywords: str) -> bool:
        """Whether it is one of these, which are in capitals; a quoted name never is."""
        return self.kind == "word" and self.text.upper() in keywords


_BLANK = (
    r"[\s\0]+|\#[^\n]*|--(?=[\s\0]|$)[^\n]*|/\*(?!M?!)(?:[^*]|\*(?!/))*\*/|/\*M?!(?:\d{5,6})?|\*/"
)
_TEXT = r"'(?:[^'\\]|\\.|'')*'"
_TEXT_AS_IT_IS = r"'(?:[^']|'')*'"  # NO_BACKSLASH_ESCAPES
_REST = r"(?P<name>`(?:[^`]|``)*`{more})|(?P<text>{texts})|(?P<word>[0-9A-Za-z_$\u0080-\U0010ffff]+)|(?P<sign>[^'\"`])"


def _pattern(ansi_quotes: bool, backslashes: bool) -> re.Pattern[str]:
    single = _TEXT if backslashes else _TEXT_AS_IT_IS
    double = single.replace("'", '"')
    more, texts = (r"|\"(?:[^\"]|\"\")*\"", single) if ansi_quotes else ("", f"{single}|{double}")
    rest = _REST.replace("{more}", more).replace("{texts}", texts)
    return re.compile(f"(?P<blank>{_BLANK})|{rest}", re.DOTALL)


_KINDS: dict[str, WordKind] = {"word": "word", "text": "text", "sign": "sign"}
_PATTERNS = {
    (ansi, slash): _pattern(ansi, slash) for ansi in (False, True) for slash in (False, True)
}


def words(
    statement: str, *, ansi_quotes: bool = False, backslashes: bool = True
) -> Iterator[Word]:
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
        text = found.group()
        if found.lastgroup == "name":
            yield Word("name", text[1:-1].replace(text[0] * 2, text[0]))
        elif found.lastgroup != "blank":
            yield Word(_KINDS[str(found.lastgroup)], text)


class Unknown(Exception):
    """A statement is none of those that are known."""


class Reading:
    """Reads a statement's words from the front.

    :param database: of names without one. :param lower_case_names: they are given so.
    """

    def __init__(self, said: Iterable[Word], database: str, lower_case_names: bool) -> None:
        self._words = iter(said)
        self._next: Word | None = None
        self._database = database.lower() if lower_case_names else database
        self._lower = lower_case_names
        self._advance()

    @property
    def next(self) -> Word | None:
        """None behind the last one."""
        return self._next

    def _advance(self) -> None:
        self._next = next(self._words, None)
        if self._next is not None and self._next.kind == "broken":
            raise Unknown

    def take(self) -> Word:
        word = self._next
        if word is None:
            raise Unknown
        self._advance()
        return word

    def skip(self, *keywords: str) -> bool:
        """Whether the next word is one of these; then it is behind us."""
        if self._next is None or not self._next.says(*keywords):
            return False
        self._advance()
        return True

    def skip_sign(self, sign: str) -> bool:
        if self._next != Word("sign", sign):
            return False
        self._advance()
        return True

    def skip_if(self) -> None:
        if self.skip("IF"):
            self.skip("NOT")
            if not self.skip("EXISTS"):
                raise Unknown

    def skip_wait(self) -> None:
        if self.skip("WAIT"):
            self.take()
        else:
            self.skip("NOWAIT")

    def name(self) -> tuple[str, str]:
        """Of a table, with its database."""
        if self.skip_sign("."):  # ODBC's .table
            return self._database, self.take_name()
        first = self.take_name()
        return (first, self.take_name()) if self.skip_sign(".") else (self._database, first)

    def names(self) -> list[tuple[str, str]]:
        found = [self.name()]
        while self.skip_sign(","):
            found.append(self.name())
        return found

    def named(self, *chain: Word) -> list[tuple[str, str]]:
        """The tables that ``a``, ``a.b`` or ``a.b.c`` may be, or be a column of."""
        first, *more = (word.text.lower() if self._lower else word.text for word in chain)
        return [(self._database, first), *([(first, more[0])] if more else [])]

    def take_name(self) -> str:
        word = self.take()
        if word.kind not in ("word", "name"):
            raise Unknown
        return word.text.lower() if self._lower else word.text
