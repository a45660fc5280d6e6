"""SQL's conditions and values as functions of a row and the statement's parameters: as much as the
product writes.

A text is turned into Python once. What is not understood raises :class:`Unknown`: a model that
guesses is worth nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Row = tuple[Any, ...]
Value = Callable[[Row, Sequence[Any]], Any]

_TOKEN = re.compile(
    r"\s*(?:(?P<parameter>%s)|(?P<quoted>\"(?:[^\"]|\"\")+\"|`(?:[^`]|``)+`)|(?P<text>'(?:[^']|'')*')|(?P<number>\d+)"
    r"|(?P<cast>::\s*\w+(?:\[\])?)|(?P<word>[A-Za-z_][A-Za-z_0-9]*)|(?P<sign><>|<=|>=|[=<>+\-(),.]))"
)
_COMPARED = {"=": "==", "<>": "!=", "<": "<", ">": ">", "<=": "<=", ">=": ">="}
_TIME = ("CURRENT_TIMESTAMP",)


class Unknown(AssertionError):
    """A statement, or a part of one, that this model has not learnt."""


def _first_of(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


_NAMES = {"first_of": _first_of, "max": max, "__builtins__": {}}


class Expression:
    """One text and where its parameters begin among those of the statement.

    :param columns: the place of each in a row.
    """

    def __init__(self, text: str, columns: Mapping[str, int], first: int = 0) -> None:
        self._text = text
        self._columns = columns
        self._next = first
        self._tokens = _tokens(text)
        self._at = 0
        self.source = self._either()
        if self._at != len(self._tokens):
            raise Unknown(f"{text!r} from {self._tokens[self._at :]}")
        self.parameters = self._next - first

    def function(self) -> Value:
        made: Value = eval(f"lambda r, p: {self.source}", dict(_NAMES))  # noqa: S307 — of tokens that are known
        return made

    def _peek(self) -> str:
        return self._tokens[self._at][1].upper() if self._at < len(self._tokens) else ""

    def _is_next(self, *words: str) -> bool:
        """Take them, if they come next."""
        end = self._at + len(words)
        if [token[1].upper() for token in self._tokens[self._at : end]] != list(words):
            return False
        self._at = end
        return True

    def _must_be(self, word: str) -> None:
        if not self._is_next(word):
            raise Unknown(f"{word} in {self._text!r}")

    def _either(self) -> str:
        parts = [self._all_of()]
        while self._is_next("OR"):
            parts.append(self._all_of())
        return f"({' or '.join(parts)})" if len(parts) > 1 else parts[0]

    def _all_of(self) -> str:
        parts = [self._comparison()]
        while self._is_next("AND"):
            parts.append(self._comparison())
        return f"({' and '.join(parts)})" if len(parts) > 1 else parts[0]

    def _comparison(self) -> str:
        if self._is_next("NOT"):
            return f"(not {self._comparison()})"
        left = self._sum()
        if self._is_next("IS", "NULL"):
            return f"({left} is None)"
        if self._is_next("IS", "NOT", "NULL"):
            return f"({left} is not None)"
        if self._is_next("=", "ANY", "("):
            found = f"({left} in {self._sum()})"
            self._must_be(")")
            return found
        if self._is_next("IN", "("):
            return f"({left} in ({self._list()},))"
        if self._is_next("NOT", "IN", "("):
            return f"({left} not in ({self._list()},))"
        sign = self._peek()
        if sign in _COMPARED:
            self._at += 1
            return f"({left} {_COMPARED[sign]} {self._sum()})"
        return left

    def _list(self) -> str:
        parts = [self._either()]
        while self._is_next(","):
            parts.append(self._either())
        self._must_be(")")
        return ", ".join(parts)

    def _sum(self) -> str:
        left = self._value()
        while self._peek() in ("+", "-"):
            sign = self._peek()
            self._at += 1
            left = f"({left} {sign} {self._value()})"
        return left

    def _value(self) -> str:
        kind, token = self._tokens[self._at]
        self._at += 1
        if kind == "parameter":
            self._next += 1
            return f"p[{self._next - 1}]"
        if kind == "number":
            return token
        if kind == "text":
            return repr(token[1:-1].replace("''", "'"))
        if token == "-":
            return f"(-{self._value()})"
        if token == "(":
            inner = self._either()
            self._must_be(")")
            return inner
        if kind == "word" and self._is_next("("):
            return self._call(token.upper())
        if kind == "word" and token.upper() in ("NULL", "TRUE", "FALSE"):
            return {"NULL": "None", "TRUE": "True", "FALSE": "False"}[token.upper()]
        if kind in ("word", "quoted"):
            while self._is_next("."):  # of a table that needs no name here
                kind, token = self._tokens[self._at]
                self._at += 1
            name = unquoted(token)
            if name in self._columns:
                return f"r[{self._columns[name]}]"
        raise Unknown(f"{token!r} in {self._text!r}")

    def _call(self, name: str) -> str:
        if name == "CAST":
            inner = self._either()
            for word in ("AS", "BINARY", ")"):
                self._must_be(word)
            return inner
        if name in _TIME:
            self._list()
            return "0"
        if name == "COALESCE":
            return f"first_of({self._list()})"
        if name == "GREATEST":
            return f"max({self._list()})"
        raise Unknown(f"{name}(…) in {self._text!r}")


def _tokens(text: str) -> list[tuple[str, str]]:
    found, at = [], 0
    text = text.rstrip()
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None:
            raise Unknown(f"{text[at:]!r} in {text!r}")
        at = token.end()
        kind = str(token.lastgroup)
        if kind != "cast":
            found.append((kind, token[kind]))
    return found


def unquoted(name: str) -> str:
    """``"name"`` or `` `name` `` as it is."""
    if name[0] in '"`' and name[-1] == name[0]:
        return name[1:-1].replace(name[0] * 2, name[0])
    return name


def parts(text: str) -> list[str]:
    """What is between the commas of ``text``, but for those in parentheses and texts."""
    if "(" not in text and "'" not in text:
        return [part.strip() for part in text.split(",")]
    found, depth, begin, in_text = [], 0, 0, False
    for at, letter in enumerate(text):
        if letter == "'":
            in_text = not in_text
        elif in_text:
            continue
        elif letter == "(":
            depth += 1
        elif letter == ")":
            depth -= 1
        elif letter == "," and depth == 0:
            found.append(text[begin:at].strip())
            begin = at + 1
    return [*found, text[begin:].strip()]


def column_names(text: str) -> tuple[str, ...]:
    return tuple(unquoted(part) for part in parts(text))
