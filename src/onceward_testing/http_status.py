"""Does a server of ours answer over HTTP? For :mod:`local_s3` and :mod:`local_opensearch`, while
they start.
"""

from __future__ import annotations

import urllib.error
import urllib.request
from contextlib import suppress


def status_of(url: str, method: str = "GET", data: bytes | None = None) -> int:
    """The status of an answer; 0: there is none within 5 s."""
    asked = urllib.request.Request(url, method=method, data=data)  # noqa: S310 — ours
    with suppress(OSError):
        try:
            with urllib.request.urlopen(asked, timeout=5) as answer:  # noqa: S310
                return int(answer.status)
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.code
    return 0
