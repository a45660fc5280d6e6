"""Changes of tables in Debezium's envelope: ``ow.debezium``.

In reading order: ``encoding`` (changes to records of Kafka), ``decoding`` (the envelope, and
records that Debezium wrote to columns), ``images`` (a row's text to its columns, or a verdict, and
``rows`` for a database); below them ``changes`` (the frame of ``ow.mysql_changes``) and ``types``.
All of it runs in the driver; executors run Spark's own JSON, and no Python.
"""

from onceward.formats.debezium.decoding import decode as decode
from onceward.formats.debezium.decoding import envelope as envelope
from onceward.formats.debezium.encoding import encode as encode
from onceward.formats.debezium.encoding import structs as structs
from onceward.formats.debezium.images import rows as rows

__all__ = ["decode", "encode", "envelope", "rows", "structs"]
