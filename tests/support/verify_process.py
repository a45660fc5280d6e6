"""The checker as its users start it: a process, its JSON and its exit status."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from support.handmade_pipeline import HandmadePipeline

STATUS = {"exactly_once": 0, "violated": 1, "inconclusive": 2}
UNAVAILABLE = 69


def verify(
    pipeline: HandmadePipeline, *options: str, settle_s: float = 5, at_rest: bool = True
) -> dict[str, Any]:
    """What the checker answers of a pipeline made by hand, waiting ``settle_s`` for its
    transactions to end.
    """
    more = ["--settle", str(settle_s), *(["--expect-caught-up"] if at_rest else []), *options]
    return verify_at(pipeline.servers, pipeline.pipeline_id, pipeline.ledger, *more)


def verify_at(servers: str, pipeline_id: str, ledger: str, *options: str) -> dict[str, Any]:
    """What ``python -m onceward_verify`` answers; its exit status must say the same."""
    command = [sys.executable, "-m", "onceward_verify", "--bootstrap-servers", servers]
    command += [
        "--pipeline-id",
        pipeline_id,
        "--ledger-topic",
        ledger,
        "--output",
        "json",
        *options,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode in (*STATUS.values(), UNAVAILABLE), done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == answer["exit_status"]
    assert done.returncode in (STATUS[answer["verdict"]], UNAVAILABLE)
    return answer
