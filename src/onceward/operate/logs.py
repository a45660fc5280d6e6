"""Log lines as JSON, on request. Driver only; whoever sets up logging asks for it."""

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
        return json.dumps(line, default=str, ensure_ascii=False)
