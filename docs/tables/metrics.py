"""Write docs/reference/metrics.md from the code: every metric, its labels, and what it says.

Run ``python docs/tables/metrics.py``.
"""

from __future__ import annotations

from pathlib import Path

from onceward.operate.metric_state import BUCKETS, FAMILIES, PREFIX

PAGE = Path(__file__).parents[1] / "reference" / "metrics.md"

_BEGIN = """\
# Metrics

Written by `docs/tables/metrics.py` from the code; a test says when it is not up to date. All have
the label `pipeline`, the `pipeline_id`. How to get them is on the page about
[monitoring](../how-to/monitoring.md#metrics). Counters begin at 0 with each process.

"""


def page() -> str:
    """Return the whole page."""
    rows = ["| metric | kind | labels besides | what it says |", "|---|---|---|---|"]
    for family in FAMILIES:
        name = PREFIX + family.name + ("_total" if family.kind == "counter" else "")
        labels = ", ".join(f"`{label}`" for label in family.labels)
        rows.append(f"| `{name}` | {family.kind} | {labels} | {family.text} |")
    buckets = ", ".join(f"{bucket:g}" for bucket in BUCKETS)
    return _BEGIN + "\n".join(rows) + f"\n\nBuckets of the histograms, in seconds: {buckets}.\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
