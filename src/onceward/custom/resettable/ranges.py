"""Reads ranges of a source, and reads them again: the rules of both. No Spark: only the user's
methods are called.

Called by :mod:`onceward.custom.resettable.reader`, in the process that Spark keeps beside the
driver.

A range is made of as many calls of ``read`` as it takes to fill the batch, to find no more, or to
use up the time. To read it again, ``read`` is asked for as many rows as it had, and not for as
many as a batch may have: meanwhile there may be more. Where there are none, the limit grows, so
that what a few calls have passed by takes a few calls again; and it is asked as often as it takes,
for nobody knows how many calls without rows there were. By another limit ``read`` may pass other
positions, and need not come by the range's end: its rows are what counts.

The user's code is given copies of positions, and what it returns is copied: it may change or keep
either.

The checksum of a range's rows stands in a checkpoint, so it must not depend on how the rows came
(chunks, dictionaries, slices), on the time zone, or on versions: it is made of plain Python
values.
"""

from __future__ import annotations

import hashlib
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, datetime, timedelta, timezone
from typing import Any

import pyarrow as pa

from onceward.custom.resettable.fitting import Fitting
from onceward.custom.resettable.offsets import (
    Offset,
    copied,
    goes_back,
    has_passed,
    logged_position,
    position_text,
    same,
    shown,
)
from onceward.errors import (
    OncewardError,
    SourceContractViolated,
    SourceFailed,
    SourceRangeChanged,
    SourceReplaced,
)

_EPOCH = datetime(1970, 1, 1)
_MICROSECOND = timedelta(microseconds=1)


def checksum(table: pa.Table, *, sort_maps: bool = True) -> str:
    """Return 32 hexadecimal digits of SHA-256, over names, types and values, column by column, in
    the rows' order.

    :param sort_maps: a map is the same in whatever order its keys come. Checkpoints written by
        0.1 have checksums without.
    """
    digest = hashlib.sha256()
    for name, column in zip(table.column_names, table.columns, strict=True):
        digest.update(repr((name, str(column.type), table.num_rows)).encode())
        kind = column.type
        if pa.types.is_timestamp(kind):
            values = column.cast(pa.int64()).to_pylist()
        elif pa.types.is_date32(kind):
            # as _plain() makes them, also of years that Python does not have
            days = column.cast(pa.int32()).to_pylist()
            first = _EPOCH.toordinal()
            values = [None if day is None else ["date", first + day] for day in days]
        else:
            values = column.to_pylist()
            if pa.types.is_nested(kind) or pa.types.is_temporal(kind):
                values = [_plain(value, kind, sort_maps) for value in values]
        digest.update(repr(values).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:32]


def _plain(value: Any, kind: pa.DataType, sort_maps: bool) -> Any:
    """Replace objects whose ``repr`` depends on a library: time zones have one of several."""
    if value is None:
        return None
    if pa.types.is_map(kind):
        entries = [
            [_plain(key, kind.key_type, sort_maps), _plain(item, kind.item_type, sort_maps)]
            for key, item in value
        ]
        return sorted(entries, key=lambda entry: repr(entry[0])) if sort_maps else entries
    if pa.types.is_struct(kind):
        return [[name, _plain(inner, kind[name].type, sort_maps)] for name, inner in value.items()]
    if pa.types.is_nested(kind):
        return [_plain(inner, kind.value_type, sort_maps) for inner in value]
    if isinstance(value, datetime):
        naive = (
            value if value.tzinfo is None else value.astimezone(timezone.utc).replace(tzinfo=None)
        )
        return ["time", (naive - _EPOCH) // _MICROSECOND]
    if isinstance(value, date):
        return ["date", value.toordinal()]
    if isinstance(value, timedelta):
        return ["interval", value // _MICROSECOND]
    return value


# Then Spark gets a word in, to stop the query for example, and logs how far it is, with or without
# rows: it takes an offset that stands still for the end of all there is
_RANGE_SECONDS = 10.0
_EMPTY_READS = 1_000
# in a row, since rows came: it may be a source whose position moves all the time, and which has no
# more. Its queries would never end, and make batches of none for ever
_MOST_WITHOUT_ROWS = 10_000
# one after the other, at full speed: pages that have none
_AT_ONCE = 100
_PAUSE_SECONDS = 0.01
# then the rows that a range had are gone, where positions do not tell that its end lies ahead
_MOST_EMPTY_READS = 100_000
_MOST_EMPTY_SECONDS = 900.0


class Ranges:
    """The ranges of one source, for one run of a query.

    :param source: :class:`onceward.custom.resettable.source.ResettableSource`.
    :param limit: rows of a range, at most.
    """

    def __init__(self, source: Any, fitting: Fitting, limit: int) -> None:
        self._source = source
        self._fitting = fitting
        self._limit = limit
        self._ahead: tuple[str, Any] | None = None
        """Of the range that begins at a position: how far it is known to have no rows, of which
        Spark is not told.
        """
        self._without_rows = 0
        """So many reads in a row, each with another position."""

    def beginning(self) -> Offset:
        """Return where a new query begins. :raises SourceFailed, SourceContractViolated: ``start``
        raised, or returned no position."""
        with calling("start()"):
            position = self._source.start()
        return Offset(logged_position(position, "start()"), identity=self._identity())

    def following(self, at: Offset) -> tuple[Offset, pa.Table] | None:
        """Return the next range after ``at`` and its rows; None while there is nothing new. One
        of no rows says that there may be more behind.

        :raises SourceFailed, SourceContractViolated, InvalidRow, SourceReplaced: the source
            failed, or violates its contract.
        """
        # first: positions of another source would only give odder errors
        self.same_source(at)
        position = (
            self._ahead[1]
            if self._ahead and self._ahead[0] == position_text(at.position)
            else at.position
        )
        parts: list[pa.Table] = []
        seen = {position_text(position)}
        total, empty, ends = 0, 0, time.monotonic() + _RANGE_SECONDS
        is_more = True
        while total < self._limit and empty < _EMPTY_READS and time.monotonic() <= ends:
            rows, after = self._read(position, self._limit - total)
            if same(after, position):
                is_more = False
                break
            must_go_forward(Offset(position, at.begins, first=at.first), after, "read")
            if position_text(after) in seen:
                raise _goes_in_a_circle(position, after)
            seen.add(position_text(after))
            position = after
            if rows.num_rows:
                parts.append(rows)
                total += rows.num_rows
                reached = after
            else:
                empty += 1
                if not total:
                    _slow_down(empty)
        self._without_rows = self._without_rows + empty if is_more and not total else 0
        if not total:
            if not is_more or self._without_rows > _MOST_WITHOUT_ROWS:
                self._ahead = (position_text(at.position), position)
                return None
            reached = position
        table = pa.concat_tables([self._fitting.arrow.empty_table(), *parts])
        # Asked behind the rows: identities never come back, so what is the same now was the same
        # while they were read.
        identity = self.same_source(at)
        # The beginning is in it, because Spark logs the end of a query's first batch only:
        # 1. a source that starts at *now* gives the first batch, and Spark logs its end;
        # 2. the driver dies, and the next start asks `start()` again;
        # 3. *now* is later: the range would begin behind rows that the first one had.
        end = Offset(reached, at.position, total, checksum(table), identity, first=False)
        self._ahead = (position_text(reached), position)
        return end, table

    def again(self, end: Offset) -> pa.Table:
        """Read the rows of the range that ends at ``end`` once more.

        :raises SourceRangeChanged: they are not those that were read before.
        :raises SourceFailed: some of them are not there now, either.
        :raises SourceFailed, SourceContractViolated, InvalidRow, SourceReplaced: the source
            failed, or violates its contract.
        """
        self.same_source(end)
        table = pa.concat_tables([self._fitting.arrow.empty_table(), *self._parts_again(end)])
        if end.checksum not in (checksum(table), checksum(table, sort_maps=False)):
            raise _changed(
                end, "it has as many rows, and they are others (or the schema is another)"
            )
        self.same_source(end)
        return table

    def _parts_again(self, end: Offset) -> Iterator[pa.Table]:
        count, position = end.rows or 0, end.begins
        total, calls, empty, limit = 0, 0, 0, 1
        checkpoint, until = position, 1
        # Behind the last row as far as the end surely is not reached: rows may have become visible
        # late there.
        had_rows_at = time.monotonic()
        while (is_before := goes_back(end, position)) or total < count:
            waited = time.monotonic() - had_rows_at
            no_more = empty > _MOST_EMPTY_READS or (empty > 1 and waited > _MOST_EMPTY_SECONDS)
            if (no_more and not is_before) or has_passed(end, position):
                raise _changed(end, f"it has {total} rows now, and goes on at {shown(position)}")
            # As many rows as it lacks, and not as a batch may have: rows may have come since, and
            # one read up to the batch's limit would run past its end. More only to pass by what
            # has none.
            limit = max(limit, count - total)
            rows, after = self._read(position, limit)
            if rows.num_rows > count - total and limit > max(count - total, 1):
                limit = 1
                continue
            total += rows.num_rows
            if total > count and (same(after, end.position) or goes_back(end, after)):
                raise _changed(
                    end,
                    f"after {count} rows it goes on with others, at {shown(position)}",
                )
            if total < count and same(after, position):
                if same(position, end.position):
                    raise _changed(end, f"it has {total} rows now, up to its end")
                raise _behind(end, total, position)
            if total > count or same(after, position):
                break
            # A circle, however long, is noticed by one position that is kept: that after 1, 2, 4,
            # 8 … calls (Brent).
            if same(after, checkpoint):
                raise _goes_in_a_circle(position, after)
            calls += 1
            if calls == until:
                checkpoint, until = after, 2 * until
            if rows.num_rows:
                yield rows
                empty, limit, had_rows_at = 0, 1, time.monotonic()
            else:
                empty, limit = empty + 1, max(limit, min(2 * limit, self._limit))
                _slow_down(empty)
            position = after

    def same_source(self, before: Offset) -> str | None:
        """Return the identity. :raises SourceReplaced: ``before`` was read of another source."""
        now = self._identity()
        if None not in (now, before.identity) and now != before.identity:
            raise SourceReplaced(
                f"the source {type(self._source).__name__} is another one: its identity is "
                f"{now!r}, and the query has read {before.identity!r} up to "
                f"{shown(before.position)}; positions of the one mean nothing in the other",
                next_step="bring the old source back; or read the new one from its beginning, "
                "with a new checkpoint and a new pipeline_id; or, if it holds the same rows at "
                "the same positions, let identity() say what they have in common",
                details={"known": before.identity, "found": now},
            )
        return now

    def _identity(self) -> str | None:
        with calling("identity()"):
            identity = self._source.identity()
        if identity is not None and not isinstance(identity, str):
            raise SourceContractViolated(
                f"identity() returned {type(identity).__name__}",
                next_step="return a string, or None where there is none",
            )
        return identity

    def _read(self, position: Any, limit: int) -> tuple[pa.Table, Any]:
        with calling(f"read({shown(position)}, {limit})"):
            answer = self._source.read(copied(position), limit)
            if not isinstance(answer, tuple) or len(answer) != 2:
                raise SourceContractViolated(
                    f"read() returned {type(answer).__name__}",
                    next_step="return two things, `return rows, next_position`",
                )
            # inside: a generator runs now
            rows = self._fitting.table(answer[0], limit)
        after = logged_position(answer[1], f"read({shown(position)}, {limit})")
        if rows.num_rows > limit:
            raise SourceContractViolated(
                f"read({shown(position)}, {limit}) returned more than {limit} rows",
                next_step="return at most `limit` rows: where a page has more, let the position "
                "say how far in it you are, or raise max_rows_per_batch",
                details={"limit": limit},
            )
        if rows.num_rows and same(after, position):
            raise SourceContractViolated(
                f"read({shown(position)}, {limit}) returned {rows.num_rows} rows and the "
                "same position again: the next call would read them once more, without end",
                next_step="return the position behind the last row",
                details={"position": position},
            )
        return rows, after


def _slow_down(empty: int) -> None:
    """Pause where so many reads had no rows, so that nobody's server is asked without a break."""
    if empty >= _AT_ONCE:
        time.sleep(_PAUSE_SECONDS)


@contextmanager
def calling(what: str) -> Iterator[None]:
    """Name what the user's code raises inside, with where it was. Errors of ours pass.

    :raises SourceFailed: the user's code raised.
    """
    try:
        yield
    except OncewardError:
        raise
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)[1:]
        where = (
            f" ({frames[-1].filename}:{frames[-1].lineno}, in {frames[-1].name})" if frames else ""
        )
        text = "".join(["Traceback (most recent call last):\n", *traceback.format_list(frames)])
        raise SourceFailed(
            f"{what} raised {type(error).__name__}: {error}{where}",
            next_step="a restart goes on from the same position; if it happens again, look at the "
            "traceback in the error's details, and at the source",
            details={"traceback": text + "".join(traceback.format_exception_only(error))},
        ) from error


def must_go_forward(at: Offset, after: Any, method: str) -> None:
    """Refuse a position that lies before the one that was asked about.

    :raises SourceContractViolated: it does.
    """
    if goes_back(at, after):
        raise SourceContractViolated(
            f"{method}() went back from {shown(at.position)} to {shown(after)}: "
            "the rows between would come twice",
            next_step=f"let {method}() return the position that it was given where there is "
            "nothing new, max(position, …) say: what it asks may be behind for a moment, as a "
            "replica is after a failover",
            details={"position": after},
        )


def _goes_in_a_circle(position: Any, after: Any) -> SourceContractViolated:
    return SourceContractViolated(
        f"read() went on from {shown(position)} to {shown(after)}, where it had "
        "been in the same batch",
        next_step="return positions that only go forward",
        details={"position": after},
    )


def _behind(end: Offset, total: int, position: Any) -> SourceFailed:
    """Return the error for a range that has fewer rows than were logged, and nothing behind them:
    what is missing may come yet, as on a replica after a failover."""
    return SourceFailed(
        f"the range from {shown(end.begins)} to {shown(end.position)} was logged "
        f"with {end.rows} rows, and the source has {total} of them now, and nothing behind "
        f"{shown(position)}",
        next_step="nothing, where what read() asks is behind for a moment, as a replica is after "
        "a failover: a restart reads the range again. If it stays so, rows were removed, or "
        "read() was edited: bring the old rows back; or go on with a new checkpoint from a "
        "position that you choose, and check the output by hand from there",
        details={"from": end.begins, "position": end.position, "rows": end.rows},
    )


def _changed(end: Offset, how: str) -> SourceRangeChanged:
    return SourceRangeChanged(
        f"the range from {shown(end.begins)} to {shown(end.position)} was logged "
        f"with {end.rows} rows, and the source gave other rows for it when it was read again: "
        f"{how}. Going on would lose rows or repeat some",
        next_step="find out what changed: rows that were changed or removed after they could be "
        "read, rows that became visible late, a read() that was edited; bring the old rows back "
        "and restart. If that cannot be, go on with a new checkpoint from a position that you "
        "choose, and check the output by hand from there",
        details={"from": end.begins, "position": end.position, "rows": end.rows},
    )
