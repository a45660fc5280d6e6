"""The command ``onceward`` as ``python -m onceward``."""

from onceward.cli import app

app(prog_name="onceward")
