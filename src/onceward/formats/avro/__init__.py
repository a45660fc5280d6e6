"""Avro in the frame of a schema registry: ``ow.avro.decode`` and ``ow.avro.encode``.

In reading order: ``decoding`` and ``encoding`` (what users call), ``plan`` (what Spark is told),
``step`` (what happens at a batch), ``memory`` (which schemas this process has asked for); below
them ``schemas`` and ``values``. All of it runs in the driver; executors run
Spark's own ``from_avro`` and ``to_avro``, and no Python.
"""

from onceward.formats.avro.decoding import decode as decode
from onceward.formats.avro.encoding import encode as encode

__all__ = ["decode", "encode"]
