"""``ow.ResettableSource`` and ``ow.PartitionedSource``: subclass one, and Spark streams from it.

Users write a class and call :meth:`stream` where they define a query, in the driver. The instance
is pickled to where its methods run: keep settings in it, and open connections in the methods.
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar, cast

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader
from pyspark.sql.types import StructType

from onceward.custom.resettable.fitting import Fitting
from onceward.custom.resettable.offsets import copied, is_ours
from onceward.custom.resettable.reader import PartsReader, RowsReader, SourceReader, reader_class
from onceward.engine.ledger.chain import Ledger
from onceward.engine.ledger.record import LedgerRecord
from onceward.errors import ConfigurationError, ContradictoryOptions, SourceContractViolated
from onceward.ids import pipeline_id as checked_pipeline_id
from onceward.kafka.source.topics_and_positions import distinct, newest_in
from onceward.spark.batch.carried import Carrier, pickled
from onceward.spark.session.settings import use_the_drivers_python

DEFAULT_ROWS = 10_000
DEFAULT_POLL_SECONDS = 0.5


class _Source(ABC):
    """What both kinds of source have in common."""

    schema: str | StructType
    """The columns: ``"id BIGINT NOT NULL, name STRING"``, or a ``StructType``. What ``read``
    returns is held against it: rows that do not fit end the query by name, and nothing is cast,
    cut or made null. Only a Python float is rounded for a ``FLOAT``, and not to zero or infinity.
    """

    _reads_with: ClassVar[type[Any]]

    @abstractmethod
    def start(self) -> Any:
        """Return where a query with a new checkpoint begins: a position, any JSON value. Runs
        beside the driver."""

    def identity(self) -> str | None:
        """Return which source this is: a server's id, a table's, a file's. None, the default: not
        known.

        Asked at each start, before and after each range, beside the driver. It is logged with each
        batch, and when it is another one the query ends with ``SourceReplaced``: positions of the
        one mean nothing in the other.
        """
        return None

    def stream(
        self,
        spark: SparkSession,
        *,
        max_rows_per_batch: int = DEFAULT_ROWS,
        poll_seconds: float = DEFAULT_POLL_SECONDS,
        ledger: Ledger | None = None,
        pipeline_id: str | None = None,
    ) -> DataFrame:
        """Return a streaming DataFrame of the source's rows, which goes on where Spark's
        checkpoint of the query ends.

        :param max_rows_per_batch: the ``limit``: a batch has at most so many rows.
        :param poll_seconds: a source that had nothing new is asked again after so long, 60 at
            most. For longer pauses there is ``trigger(processingTime=…)``.
        :param ledger: with ``pipeline_id``: a query with a new checkpoint begins where the ledger
            of that pipeline ends (together with the sink's ``resume="ledger"``), or at ``start()``
            where it has no record.
        :raises ConfigurationError: a setting that cannot be; a ledger that knows no such source,
            or several.
        :raises InvalidColumn: the schema has a type that a source cannot have.
        :raises SourceContractViolated: the source cannot be pickled.
        """
        _check(max_rows_per_batch, poll_seconds, ledger, pipeline_id)
        use_the_drivers_python(spark.sparkContext)
        source, schema = self, self._struct()
        # Here, and not in the first batch
        Fitting(schema)
        pickled(
            source,
            "keep settings in the source (addresses, names), and open connections, files and "
            "locks in its methods",
            refusal=SourceContractViolated,
        )
        starts_at = None if ledger is None or pipeline_id is None else _end_in(ledger, pipeline_id)
        reads_with, carrying = self._reads_with, Carrier()
        # Spark's registry of names is one for the session
        name = f"{type(self).__name__}-{uuid.uuid4().hex[:8]}"

        class Registered(DataSource):
            @classmethod
            def name(cls) -> str:
                return name

            def schema(self) -> StructType:
                return schema

            # PySpark's name.
            def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
                reader: SourceReader = reader_class(reads_with)(
                    source,
                    schema,
                    starts_at,
                    poll_seconds,
                    max_rows_per_batch,
                    carrying,
                )
                return reader

        spark.dataSource.register(Registered)
        return spark.readStream.format(name).load()

    def _struct(self) -> StructType:
        schema = getattr(self, "schema", None)
        if isinstance(schema, str):
            return cast(StructType, StructType.fromDDL(schema))
        if isinstance(schema, StructType):
            return schema
        raise SourceContractViolated(
            f"{type(self).__name__}.schema is {type(schema).__name__}",
            next_step='set it in the class: schema = "id BIGINT NOT NULL, name STRING"',
        )


class ResettableSource(_Source):
    """A source that can be read again from a position: a cursor, a page, a counter, a place in a
    file.

    ::

        class Orders(ow.ResettableSource):
            schema = "id BIGINT NOT NULL, item STRING"

            def start(self):
                return 0

            def read(self, position, limit):
                rows = fetch_orders(after=position, at_most=limit)
                return rows, rows[-1]["id"] if rows else position

        orders = Orders().stream(spark)

    All methods run in one process beside the driver, which alone talks to the source; its rows
    travel on inside Spark's tasks. For a source that several tasks can read at once there is
    :class:`PartitionedSource`.

    What a source owes: **what lies behind a position never changes**. The rows that ``read`` has
    returned between two positions come again, in the same order, whenever it is asked from the
    first of them, and none are added between. After a crash Spark runs a batch again whose end it
    has logged, maybe with its output committed; each range is logged with its number of rows and a
    checksum, and a source that gives others then ends the query with ``SourceRangeChanged``.
    """

    _reads_with = RowsReader

    @abstractmethod
    def read(self, position: Any, limit: int) -> tuple[Any, Any]:
        """Return ``(rows, next_position)``: at most ``limit`` rows behind ``position``, and the
        position behind the last of them.

        Nothing new: no rows and the same ``position``. No rows and a later position: there is
        nothing in between, and ``read`` is asked again from there (rows that are left out, a page
        without any); a batch begins when rows come, or after a thousand such reads or ten seconds.

        :param position: what ``start`` or ``read`` returned, as JSON gives it back: a tuple is a
            list then. It is a copy, which ``read`` may change and return.
        :return: rows as a pyarrow Table or RecordBatch, or an iterable of tuples or dicts; and a
            JSON value. Both are copied before ``read`` is called again.

        More than ``limit`` rows, rows without a new position, or a position that goes back, or
        came before in the same batch, end the query with ``SourceContractViolated``; what it
        raises, with ``SourceFailed``, which a supervisor may restart.
        """


class PartitionedSource(_Source):
    """A source of which several tasks read a batch at once: ranges of ids, files, shards.

    ``advance`` and ``partitions`` run beside the driver, ``read_partition`` in tasks. What is not
    there: a comparison of what is read again with what was read at first, since nobody has seen
    all rows. That what lies behind a position never changes is the source's word alone
    (``onceward_testing.source_contract`` tests it). A batch that is committed and run again is
    still counted against the ledger.
    """

    _reads_with = PartsReader

    @abstractmethod
    def advance(self, position: Any, limit: int) -> Any:
        """Return the end of the next batch: a position with at most ``limit`` rows between;
        ``position`` itself for nothing new.

        A position that goes back (numbers in it are smaller, and none is larger) ends the query
        with ``SourceContractViolated``: return ``max(position, …)`` where what you ask may be
        behind for a moment.

        Do not move where there are no rows: a batch would be made of them.
        """

    @abstractmethod
    def partitions(self, start: Any, end: Any) -> Iterable[Any]:
        """Return JSON values, one a task, which together name all rows behind ``start`` and up to
        ``end``, each row once.

        Called again after a crash; the values need not be the same then, what they name must be.
        """

    @abstractmethod
    def read_partition(self, partition: Any) -> Any:
        """Return the rows of one of them, as :meth:`ResettableSource.read` returns rows. Runs in a
        task, and again if the task fails."""

    def read(self, position: Any, limit: int) -> tuple[Any, Any]:
        """Return all partitions of the next batch, one after the other. Spark does not call
        this.
        """
        end = copied(self.advance(copied(position), limit))
        rows: list[Any] = []
        # No iterator around the user's code: it would end with a StopIteration of theirs
        for part in self.partitions(copied(position), copied(end)):
            found = self.read_partition(copied(part))
            rows += found.to_pylist() if hasattr(found, "to_pylist") else found
        return rows, end


def _check(
    max_rows: int, poll_seconds: float, ledger: Ledger | None, pipeline: str | None
) -> None:
    if not isinstance(max_rows, int) or isinstance(max_rows, bool) or max_rows < 1:
        raise ConfigurationError(
            f"max_rows_per_batch={max_rows!r}", next_step="use a whole number of rows, 1 or more"
        )
    if not isinstance(poll_seconds, int | float) or not 0 <= poll_seconds <= 60:
        raise ConfigurationError(
            f"poll_seconds={poll_seconds!r}",
            next_step="use seconds, from 0 to 60; for longer pauses, a processing-time trigger",
        )
    if (ledger is None) != (pipeline is None):
        raise ContradictoryOptions(
            "one of ledger and pipeline_id alone says nothing",
            next_step="pass both, those of the sink, to begin where its ledger ends; or none of "
            "them",
        )


def _end_in(ledger: Ledger, pipeline: str) -> Any:
    """Return where the newest record ends in sources of this kind; None without a record."""
    newest: LedgerRecord | None = newest_in(ledger, checked_pipeline_id(pipeline))
    if newest is None:
        return None
    ends = distinct([source.end for source in newest.sources if is_ours(source.end)])
    if len(ends) != 1:
        raise ConfigurationError(
            f"the ledger of {pipeline} ({ledger.where}) ends at {len(ends)} positions of "
            "resettable sources, not at one",
            next_step="pass the ledger and the pipeline_id of a query that reads one; or give "
            "start() the position",
        )
    return ends[0]
