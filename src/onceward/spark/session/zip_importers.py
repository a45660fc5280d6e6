"""Keep archives that never change out of what Python workers look at for each task: 50 to 300 ms.

Called at the start and the end of every task (executors), and by
:mod:`onceward.spark.session.worker_daemon`.

PySpark calls ``importlib.invalidate_caches()`` at the start of each task
(``worker_util.setup_spark_files``), and every ``zipimporter`` in the importer cache then reads its
archive's directory anew (at once before Python 3.12, at the next import since). Two kinds of
archives are not worth it:

* jars. ``spark.jars.packages`` puts every resolved jar on ``sys.path`` of the workers; spark-core
  alone has thousands of entries. No Python module is looked for in them: Python code travels to
  executors as zips, eggs and files.
* PySpark's own ``pyspark.zip`` and ``py4j-*.zip``, from which Spark's launcher makes workers
  import PySpark. There is one importer for every package in them, and each reads the whole
  directory again: 44 ms in all.
"""

from __future__ import annotations

import sys
import zipimport
from types import ModuleType


def drop_zip_importers() -> None:
    """Take jars off ``sys.path``, and importers of jars and PySpark's archives out of the cache.

    PySpark stays importable: its archives keep their place on ``sys.path``, and a new importer
    takes the directory that was read before. Other zips and eggs are left alone.
    """
    if any(entry.endswith(".jar") for entry in sys.path):
        sys.path[:] = [entry for entry in sys.path if not entry.endswith(".jar")]
    spark = {_archive(sys.modules.get(package)) for package in ("pyspark", "py4j")}
    for path, importer in list(sys.path_importer_cache.items()):
        if isinstance(importer, zipimport.zipimporter):
            archive = importer.archive
            if archive.endswith(".jar") or archive in spark:
                del sys.path_importer_cache[path]


def _archive(module: ModuleType | None) -> str | None:
    """Return the archive that ``module`` was imported from, if it was one."""
    loader = getattr(module, "__loader__", None)
    return loader.archive if isinstance(loader, zipimport.zipimporter) else None
