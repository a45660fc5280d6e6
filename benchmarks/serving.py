"""Serves a contender's orders in its own process. A script, run by its path with that of a file
that has a class ``Job`` (:mod:`job`, :mod:`loop`), and what that takes.

Orders come as lines of JSON on stdin, ``{"do": "copy", …}``, and each is answered by one on
stdout: its result, or ``{"error": text}``. The first line says who is there. It ends when stdin
does, so it outlives its owner by no more than the order at hand.
"""

from __future__ import annotations

import json
import os
import runpy
import sys


def main(path: str, *arguments: str) -> None:
    """Serve orders until there are no more."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # a JVM and its workers inherit it, and may not talk in between
    job = runpy.run_path(path)["Job"](*arguments)
    orders = {
        method.__name__: method
        for method in (job.copy, job.collect_garbage, job.start, job.mark, job.stop)
    }
    answers.write(json.dumps(job.hello()) + "\n")
    for line in sys.stdin:
        order = json.loads(line)
        try:
            answer = orders[order.pop("do")](**order)
        except Exception as error:  # noqa: BLE001 — the owner raises it, whatever it is
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
    job.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
