"""The process of :mod:`support.http_target`: standard library only, so that it starts in a moment.

``POST /<how>/<name>`` takes a chunk: JSON, a list of values, under the header ``Idempotency-Key``.
``how`` is ``honours``: what comes under a key that is known is answered with 200 and not kept; or
``ignores``: everything is kept. ``GET`` of the same path gives all that was kept, ``[[key, [value,
…]], …]`` in the order of arrival.
"""

from __future__ import annotations

import http.server
import json
import sys
import threading
from typing import Any

kept: dict[str, list[tuple[str, Any]]] = {}
lock = threading.Lock()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        values = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        key = self.headers["Idempotency-Key"]
        with lock:
            chunks = kept.setdefault(self.path, [])
            if self.path.startswith("/ignores/") or key not in {known for known, _ in chunks}:
                chunks.append((key, values))
        self.answer([])

    def do_GET(self) -> None:
        with lock:
            self.answer(kept.get(self.path, []))

    def answer(self, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing: the log is for what goes wrong."""


if __name__ == "__main__":
    http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
