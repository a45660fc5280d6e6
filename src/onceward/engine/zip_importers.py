"""Keep jars out of a Python worker's import path: they cost 150 to 300 ms in every task.

Called at the start and the end of every task (executors), and by :mod:`onceward.engine.python_daemon`.

``spark.jars.packages`` puts every resolved jar on ``sys.path`` of the workers. PySpark then calls
``importlib.invalidate_caches()`` at the start of each task (``worker_util.setup_spark_files``), and every
``zipimporter`` for a jar reads the jar's directory anew at the next import: spark-core alone has thousands of entries.
No Python module is looked for in them: Python code travels to executors as zips, eggs and files.
"""

from __future__ import annotations

import sys
import zipimport


def drop_zip_importers() -> None:
    """Take jars out of ``sys.path`` and the importer cache of this process. Zips and eggs stay."""
    jars = [entry for entry in sys.path if entry.endswith(".jar")]
    if jars:
        sys.path[:] = [entry for entry in sys.path if not entry.endswith(".jar")]
    for path, importer in list(sys.path_importer_cache.items()):
        if isinstance(importer, zipimport.zipimporter) and ".jar" in path:
            del sys.path_importer_cache[path]
