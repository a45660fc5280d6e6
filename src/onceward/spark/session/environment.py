"""Parts of the driver's ``SparkContext`` and ``SparkEnv`` that each batch asks, looked up once.
Driver only; called by :mod:`onceward.spark.batch.shuffles` and
:mod:`onceward.spark.batch.persisted`.

Those of ``SparkEnv`` are reached without looking at its class.

py4j finds a method by listing all methods of the object's class, for which the JVM loads every
class that their signatures name. Since Spark 4.3 one of them is ``UDFWorkerSpecification``, which
needs protobuf, and no jar of PySpark has it: the call dies with ``NoClassDefFoundError:
com/google/protobuf/MessageOrBuilder``, in a session whose other jars do not happen to bring
protobuf. So nobody calls a method of ``SparkEnv`` through py4j.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from pyspark import SparkContext


@lru_cache(maxsize=2)
def scala_context(context: SparkContext) -> Any:
    """Return Spark's own ``SparkContext``."""
    return context._jsc.sc()


@lru_cache(maxsize=2)
def dag_scheduler(context: SparkContext) -> Any:
    """Return the context's ``DAGScheduler``."""
    return scala_context(context).dagScheduler()


@lru_cache(maxsize=2)
def map_output_tracker(context: SparkContext) -> Any:
    """Return ``MapOutputTrackerMaster``; ``TaskSchedulerImpl`` has it, on every cluster."""
    return scala_context(context).taskScheduler().mapOutputTracker()


def block_manager(context: SparkContext) -> Any:
    """Return the driver's ``BlockManager``, which only ``SparkEnv`` has, by a method handle, which
    loads exactly its type: a dozen calls into the JVM, not for every batch."""
    jvm: Any = context._jvm
    invoke, loader = (
        jvm.java.lang.invoke,
        jvm.java.lang.Thread.currentThread().getContextClassLoader(),
    )
    returned = invoke.MethodType.methodType(
        loader.loadClass("org.apache.spark.storage.BlockManager")
    )
    owner = loader.loadClass("org.apache.spark.SparkEnv")
    handle = invoke.MethodHandles.publicLookup().findVirtual(owner, "blockManager", returned)
    return handle.invokeWithArguments(
        jvm.java.util.Collections.singletonList(scala_context(context).env())
    )
