"""The table formats that the tests of their sinks run with: of those that are published for this
Spark. Tests that need another one are left out.
"""

from __future__ import annotations

import pytest

from onceward.spark.session.connector import installed_spark, lake_packages

_PACKAGES = lake_packages(installed_spark())

LAKE_PACKAGES = tuple(_PACKAGES.values())
HAS_ICEBERG = "Iceberg" in _PACKAGES
needs_iceberg = pytest.mark.skipif(not HAS_ICEBERG, reason="Iceberg was not run with this Spark")
