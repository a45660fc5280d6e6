"""The checker as a process of its own: ``python -m onceward_verify``."""

from __future__ import annotations

from onceward_verify.cli import app

if __name__ == "__main__":
    app(prog_name="python -m onceward_verify")
