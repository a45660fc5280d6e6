"""docs/reference/recovery.md is what its script writes from the code."""

from __future__ import annotations

import runpy
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "docs" / "tables" / "recovery.py"


def test_the_table_of_errors_is_that_of_the_code():
    written = runpy.run_path(str(SCRIPT))
    assert written["PAGE"].read_text(encoding="utf-8") == written["page"](), (
        f"run python {SCRIPT.name} in docs/tables"
    )
