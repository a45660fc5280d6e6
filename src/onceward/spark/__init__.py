"""The one place that knows Spark's insides: py4j, the JVM's objects, and what no manual says.

Nothing here knows Kafka's protocol, the ledger or a sink. A running batch: :mod:`query` is what
Spark knows of it, :mod:`checkpoint_files` small files of ours beside its checkpoint. Its jobs:
:mod:`job` runs one that can be stopped, :mod:`shuffles` finds out whether a part of it was
computed twice, :mod:`failures` and :mod:`write_errors` say what Spark's failures mean. The
session: :mod:`settings`, and :mod:`connector`, :mod:`jars` and :mod:`java` have what its JVM
needs, :mod:`kafka_reader` loads Spark's Kafka source. Executors run :mod:`worker_daemon` and
:mod:`zip_importers`.
"""
