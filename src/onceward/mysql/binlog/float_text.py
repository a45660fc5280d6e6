"""Doubles as MySQL writes them: the fewest digits that mean the same number. Pure; called by
:mod:`json_binary` and :mod:`texts`.

Source: MySQL ``strings/dtoa.cc`` (``my_gcvt``): whole numbers up to 10^15 and fractions from
10^-15 on without an exponent, others with one that has neither a plus sign nor a zero before it.
"""

from __future__ import annotations

_MOST = 15
"""Digits before the point, and zeros behind it."""


def double_text(number: float) -> str:
    """``1e16`` and ``0.00001`` and ``-0``, as JSON can hold them."""
    text = repr(number)
    if "e" not in text:
        if len(text) < _MOST:
            return text[:-2] if text.endswith(".0") else text
    elif "n" in text:  # pragma: no cover  nan: a server holds none
        return "null"
    mantissa, _, exponent = text.partition("e")
    sign = "-" if mantissa.startswith("-") else ""
    whole, _, fraction = mantissa.lstrip("-").partition(".")
    digits = (whole + fraction).lstrip("0")
    # The number is 0.DIGITS times ten to this power.
    point = int(exponent or 0) + (len(whole) if whole != "0" else len(digits) - len(fraction))
    digits = digits.rstrip("0")
    if not digits:
        return sign + "0"
    if point > -_MOST and (point <= _MOST or len(digits) > point):
        if point <= 0:
            return f"{sign}0.{'0' * -point}{digits}"
        if len(digits) <= point:
            return sign + digits + "0" * (point - len(digits))
        return f"{sign}{digits[:point]}.{digits[point:]}"
    return f"{sign}{digits[0]}{'.' + digits[1:] if len(digits) > 1 else ''}e{point - 1}"
