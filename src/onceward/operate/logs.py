"""Log lines as JSON, on request: whoever sets up logging asks for it. And times in words."""

from __future__ import annotations

import json
import logging
from datetime import datetime, timezone
from typing import Any

from onceward import events


class JsonFormatter(logging.Formatter):
    """A formatter of one JSON object a line: time, level, logger, message, and of a batch its
    pipeline, query id, number and epoch.

    ::

        handler = logging.StreamHandler()
        handler.setFormatter(ow.JsonFormatter())
        logging.basicConfig(level=logging.INFO, handlers=[handler])

    The line of a batch has records, bytes, seconds and lag as fields, too. Any line that is logged
    while a batch is being written has its ids, also those of other libraries in its thread.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as JSON."""
        at = datetime.fromtimestamp(record.created, timezone.utc)
        line: dict[str, Any] = {
            "time": at.isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **events.batch_ids(),
            **getattr(record, "onceward", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        # In ASCII: no handler's encoding loses a line that names a file which is no text
        return json.dumps(line, default=str)


def moment(ms: float) -> str:
    """Return a time, in milliseconds since 1970, for people; what is no date as it is.

    >>> moment(1_700_000_000_000), moment(1_700_000_000_000_000)
    ('2023-11-14 22:13:20Z', '1700000000000000 ms')
    """
    try:
        return f"{datetime.fromtimestamp(ms / 1000, timezone.utc):%Y-%m-%d %H:%M:%S}Z"
    except (ValueError, OverflowError, OSError):
        return f"{ms:.0f} ms"


def span(seconds: float) -> str:
    """Return a span of time for people.

    >>> span(90), span(600), span(9000)
    ('90 s', '10 min', '2.5 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.1f} h"


def ago(seconds: float) -> str:
    """Return how long ago something was, by a clock that may be ahead of this one.

    >>> ago(90), ago(-600)
    ('90 s ago', '10 min ahead')
    """
    return f"{span(-seconds)} ahead" if seconds <= -1 else f"{span(max(0.0, seconds))} ago"
