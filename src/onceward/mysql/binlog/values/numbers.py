"""Integers, floats, years and decimals. Pure; called by :mod:`onceward.mysql.binlog.values`.

Source: MySQL ``strings/decimal.cc`` (``bin2decimal``): a decimal is groups of nine digits, four
bytes each and big-endian, on both sides of the point; the outermost are smaller. The first bit is
turned over, and all bits of a negative one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from onceward.mysql.binlog.column import Column, Kind
from onceward.mysql.binlog.column_types import decimal_bytes
from onceward.mysql.binlog.refusals import BadCell, damaged
from onceward.mysql.binlog.rows import Cells, Mask
from onceward.mysql.binlog.table_map import TableMap
from onceward.mysql.binlog.values.bytes_at import BytesAt, validity

_MOST_DIGITS_64 = 18
_FIRST_YEAR = 1900
_LIMB_BITS = np.uint64(32)
_LIMB = np.uint64(0xFFFFFFFF)


def array(table: TableMap, column: Column, at: BytesAt, cells: Cells) -> pa.Array:
    """Of an integer, a float or a year.

    :raises BadCell: a float is none.
    """
    if column.kind is Kind.YEAR:
        year = at.words("u1", cells.start).astype(np.uint16)
        return pa.array(
            np.where(year == 0, 0, year + _FIRST_YEAR).astype(np.uint16), mask=cells.null
        )
    if column.kind is Kind.FLOAT:
        floats = at.words(f"<f{column.width}", cells.start)
        _require(table, column, np.isfinite(floats), cells.null)
        return pa.array(floats, mask=cells.null, from_pandas=False)
    if column.width != 3:
        return pa.array(
            at.words(f"<{'u' if column.unsigned else 'i'}{column.width}", cells.start),
            mask=cells.null,
        )
    if column.unsigned:
        return pa.array(at.words("<u4", cells.start) & np.uint32(0xFFFFFF), mask=cells.null)
    return pa.array(at.words("<i4", cells.start) << np.int32(8) >> np.int32(8), mask=cells.null)


def decimals(table: TableMap, column: Column, at: BytesAt, cells: Cells) -> pa.Array:
    """As their digits without the point, of which Arrow knows where it is.

    :raises BadCell: digits are none.
    """
    negative = (at.words("u1", cells.start) & 128) == 0
    groups = _groups(column, at, cells, negative)
    for digits, group in groups:
        _require(table, column, group < 10**digits, cells.null)
    if column.precision <= _MOST_DIGITS_64:
        value = np.zeros(len(cells.start), np.int64)
        for digits, group in groups:
            value = value * 10**digits + group
        value = np.where(negative, -value, value)
        wide = np.empty((len(value), 2), np.int64)
        wide[:, 0], wide[:, 1] = value, value >> 63
        return _from_words(pa.decimal128(column.precision, column.scale), wide, cells.null)
    kind = (pa.decimal128 if column.precision <= 38 else pa.decimal256)(
        column.precision, column.scale
    )
    return _from_words(kind, _limbs(groups, negative, kind.bit_width // 32), cells.null)


def _groups(
    column: Column, at: BytesAt, cells: Cells, negative: Mask
) -> list[tuple[int, npt.NDArray[np.int64]]]:
    """How many digits, and their number, from the left."""
    whole, found, place = column.precision - column.scale, [], 0
    for digits in (whole % 9, *[9] * (whole // 9), *[9] * (column.scale // 9), column.scale % 9):
        if not (width := decimal_bytes(digits)):
            continue
        group = at.big_endian(cells.start + place, width)
        if place == 0:
            group ^= 1 << (8 * width - 1)
        found.append((digits, group ^ np.where(negative, (1 << 8 * width) - 1, 0)))
        place += width
    return found


def _limbs(
    groups: list[tuple[int, npt.NDArray[np.int64]]], negative: Mask, count: int
) -> npt.NDArray[Any]:
    """Numbers that no word holds, in limbs of 32 bits, two's complement."""
    limbs = np.zeros((len(negative), count), np.uint64)
    for digits, group in groups:
        carry = group.astype(np.uint64)
        for place in range(count):
            product = limbs[:, place] * np.uint64(10**digits) + carry
            limbs[:, place], carry = product & _LIMB, product >> _LIMB_BITS
    carry = negative.astype(np.uint64)
    flip = np.where(negative, _LIMB, np.uint64(0))
    for place in range(count):
        turned = (limbs[:, place] ^ flip) + carry
        limbs[:, place], carry = turned & _LIMB, turned >> _LIMB_BITS
    return limbs.astype(np.uint32)


def _from_words(kind: pa.DataType, words: npt.NDArray[Any], null: Mask | None) -> pa.Array:
    return pa.Array.from_buffers(
        kind, len(words), [validity(null), pa.py_buffer(np.ascontiguousarray(words))]
    )


def _require(table: TableMap, column: Column, fits: Mask, null: Mask | None) -> None:
    if not fits.all():
        fits = fits if null is None else fits | null
        if not fits.all():
            what = f"a {column.kind.value} of column {column.name!r} of {table.name} is none"
            raise BadCell(int(np.argmin(fits)), damaged(what))
