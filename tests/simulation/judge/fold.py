"""Of a query that counts by key: what each batch must have emitted, by the one definition of a
fold (I9).

A key's count is the number of its records from the beginning up to the batch's end, and a batch
emits each key that it has records of. Nothing of the engine's state is asked; only where batches
end is the ledger's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from simulation.judge.verdict import Row

Range = tuple[dict[int, int], dict[int, int]]
"""Of a batch where it begins and where it ends, by source partition."""


def counts(
    batches: Iterable[Range],
    key_of: Callable[[int, int], int],
    branches: Callable[[int, int], list[str]],
) -> tuple[list[Row], list[Row]]:
    """``(branch, -1 - key, count)`` of each batch and each key in it, those of the newest batch
    apart. A key's newest record says where it goes; a record without a branch does not count.
    """
    known: dict[int, int] = {}
    rows: list[Row] = []
    newest: list[Row] = []
    for starts, ends in batches:
        touched: dict[int, str] = {}
        for partition in sorted(ends):
            for offset in range(starts.get(partition, 0), ends[partition]):
                if where := branches(partition, offset):
                    key = key_of(partition, offset)
                    known[key] = known.get(key, 0) + 1
                    touched[key] = where[0]
        rows += newest
        newest = [(branch, -1 - key, known[key]) for key, branch in touched.items()]
    return rows, newest
