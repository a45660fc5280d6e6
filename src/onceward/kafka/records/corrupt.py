"""The one error of reading record batches. Raised by ``kafka.records.reader`` and
``kafka.records.compression``.
"""

from __future__ import annotations

from onceward.errors import OncewardError


class CorruptRecords(OncewardError):
    """Bytes that are no valid record batch: damaged, cut in the middle, or made to look larger
    than they may be.
    """
