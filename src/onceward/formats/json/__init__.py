"""Plain JSON: ``ow.json.decode``.

In reading order: ``decoding`` (what users call, and what Spark is told), ``types`` (which
types a field can have, as what it is read, and when it fits). All of it runs in the driver;
executors run Spark's own ``from_json``.
"""

from onceward.formats.json.decoding import decode as decode

__all__ = ["decode"]
