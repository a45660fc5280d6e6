"""The rows of the running batch at a named place of the query's plan, once more; and whether they
are the same each time. Driver only.

Called by ``engine.decoding``, and by the replay of a batch, inside ``foreachBatch``. A place is
named with ``frame.alias(name)``, which stays in Spark's plans until they are optimized
(``SubqueryAlias``). The plan of a batch has the sources' part of that batch in the place of the
sources (``MicroBatchExecution.runBatch``: ``StreamingDataSourceV2ScanRelation`` with start and end
offset, or what ``Source.getBatch`` gave), so what stands below the name can be run by itself, as
often as wanted.

That holds for what gives the same rows each time and keeps no state: a filter, a projection, a
watermark (which is a note for what stands above it, and left out here). All else there is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame

from onceward.errors import UnsupportedQuery
from onceward.spark.batch.query import items, query_by_id

_WATERMARKS = ("EventTimeWatermark", "UpdateEventTimeWatermarkColumn")
_PLAIN = (
    "SubqueryAlias",
    "View",
    "Project",
    "Filter",
    "Generate",
    "Union",
    "LogicalRDD",
    "LogicalRelation",
    "LocalRelation",
    "StreamingDataSourceV2ScanRelation",
    "StreamingDataSourceV2Relation",
    "SerializeFromObject",
    *_WATERMARKS,
)
_WITHOUT_ROWS = {"OneRowRelation", "CTERelationRef"}
"""Leaves without rows of their own: of ``SELECT 1``, and names of what stands elsewhere."""
_OTHER_EACH_TIME = {
    "Sample",
    "ScriptTransformation",
    "DeduplicateWithinWatermark",
    "GlobalLimit",
    "LocalLimit",
    "Offset",
    "Tail",
    "Window",
}
"""Operators that Spark calls deterministic: ``sample()`` draws a seed in the driver,
``TRANSFORM`` runs a program of the user's, and the others keep some of several rows, by the order
in which they come: of the same key, or that rank alike.
"""
_OF_ANY_ORDER = {
    "Average", "BitAndAgg", "BitOrAgg", "BitXorAgg", "BoolAnd", "BoolOr", "Count", "CountIf",
    "HyperLogLogPlusPlus", "Max", "Min", "RegrCount", "Sum",
}  # fmt: skip
"""Functions over many rows whose result does not hang on the rows' order. ``first()``,
``max_by()`` and ``collect_list()`` are others, and deterministic to Spark.
"""
_ROWS_BELOW = "onceward: rows of the batch, once more"
_UNSUPPORTED_CHECK = "spark.sql.streaming.unsupportedOperationCheck"


def tags_in(frame: DataFrame, prefix: str) -> list[str]:
    """Return the names that begin with ``prefix`` in the plan of the running query, each once."""
    execution = query_by_id(frame)
    if execution is None:
        return []
    names = (name for name, _ in _named(execution.analyzedPlan()) if name.startswith(prefix))
    return list(dict.fromkeys(names))


def _named(plan: Any) -> Iterator[tuple[str, Any]]:
    """Yield the named places of a plan, from its top, with their names."""
    if plan.getClass().getSimpleName() == "SubqueryAlias":
        yield str(plan.alias()), plan
    for child in items(plan.children()):
        yield from _named(child)


def rows_below(frame: DataFrame, tag: str) -> DataFrame:
    """Return the rows of the running batch at the place of the plan named ``tag``. :raises
    UnsupportedQuery: what stands below keeps state or has other rows each time."""
    execution = query_by_id(frame)
    places = _named(execution.lastExecution().analyzed())
    node = next((place for name, place in places if name == tag), None)
    if node is None:
        raise UnsupportedQuery(
            f"Spark's plan of the batch no longer has {tag}, so that records that cannot be read "
            "would be lost",
            next_step='use on_error="stop", or leave out the optimizer rules of your own that run '
            "before analysis ends",
        )
    session: Any = frame.sparkSession
    jvm = session._jvm
    plan = _without_watermarks(node, jvm)
    own_session = execution.sparkSessionForStream()
    conf = own_session.conf()
    before = conf.get(_UNSUPPORTED_CHECK, "true")
    # Spark plans streaming sources for streaming queries only. This is the query's own copy.
    conf.set(_UNSUPPORTED_CHECK, "false")
    try:
        rows = jvm.org.apache.spark.sql.classic.Dataset.ofRows(own_session, plan)
        planned = rows.queryExecution().toRdd().setName(_ROWS_BELOW)
    finally:
        conf.set(_UNSUPPORTED_CHECK, before)
    # As ForeachBatchSink.addBatch hands the batch over: rows of a made plan, no stream any more.
    return DataFrame(own_session.internalCreateDataFrame(planned, rows.schema(), False), session)


def _without_watermarks(plan: Any, jvm: Any) -> Any:
    kind = str(plan.getClass().getSimpleName())
    # Some functions have the batch's time in Spark's plan, others (now()) that of its planning.
    current = plan.containsPattern(
        jvm.org.apache.spark.sql.catalyst.trees.TreePattern.CURRENT_LIKE()
    )
    if kind not in _PLAIN or current or not plan.deterministic():
        what = kind if kind not in _PLAIN else f"{kind} with values that are other ones each time"
        raise UnsupportedQuery(
            "records that cannot be read shall be dead letters, and before they are read the "
            f"query has {what}; it could not be computed a second time for them",
            next_step='call decode(…, on_error="dead_letter") on the source\'s own frame, and put '
            "the rest behind it",
            details={"operator": kind},
        )
    if kind in _WATERMARKS:
        return _without_watermarks(plan.child(), jvm)
    children = items(plan.children())
    if not children:
        return plan
    new_children = jvm.java.util.ArrayList()
    for child in children:
        new_children.add(_without_watermarks(child, jvm))
    return plan.withNewChildren(jvm.org.apache.spark.api.python.PythonUtils.toSeq(new_children))


def is_repeatable(frame: DataFrame) -> bool:
    """Return whether a run of the batch at another time is known to make the same rows of
    ``frame``: they are the batch's own, and nothing in the query or in the user's function is
    random, asks for the time, keeps some rows by the order in which they come, or calls a function
    of the user's, which may look something up.

    All other rows (of a table, or of a frame that the function makes from what it has collected or
    looked up in the driver) may be other ones each time. A number or a text of the driver's in an
    expression (``isin(names)``) is as good as written in the program.
    """
    execution = query_by_id(frame)
    if execution is None:
        return False
    # The function's frame begins behind the query's own plan: its leaf is the batch
    plans = [frame._jdf.queryExecution().analyzed(), execution.logicalPlan()]
    batch = int(execution.lastExecution().toRdd().id())
    jvm: Any = frame.sparkSession._jvm
    patterns = jvm.org.apache.spark.sql.catalyst.trees.TreePattern
    others = [
        patterns.PYTHON_UDF(),
        patterns.SCALA_UDF(),
        patterns.DESERIALIZE_TO_OBJECT(),  # Scala's map, mapPartitions and their like
        patterns.CURRENT_LIKE(),
    ]
    return all(
        plan.deterministic()
        and not any(plan.containsPattern(pattern) for pattern in others)
        and _repeats(plan, batch)
        for each in plans
        for plan in [each, *items(each.subqueriesAll())]
    )


def _repeats(plan: Any, batch: int) -> bool:
    """Return whether all rows that ``plan`` reads are of the RDD ``batch``, none drawn by lot."""
    kind = plan.getClass().getSimpleName()
    children = items(plan.children())
    if children:
        return (
            kind not in _OTHER_EACH_TIME
            # distinct() keeps one of several that are the same
            and (kind != "Deduplicate" or plan.keys().size() == plan.output().size())
            and all(map(_is_of_any_order, items(plan.expressions())))
            and all(_repeats(child, batch) for child in children)
        )
    if kind == "LogicalRDD":
        return int(plan.rdd().id()) == batch or plan.rdd().name() == _ROWS_BELOW
    return plan.isStreaming() or kind in _WITHOUT_ROWS


def _is_of_any_order(expression: Any) -> bool:
    """Return whether no function over many rows in ``expression`` goes by their order."""
    if expression.getClass().getSimpleName() == "AggregateExpression":
        function = expression.aggregateFunction()
        if function.getClass().getSimpleName() not in _OF_ANY_ORDER:
            return False
    return all(map(_is_of_any_order, items(expression.children())))
