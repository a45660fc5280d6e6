"""Nothing of the simulation is left in the OS process for other tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def the_product_as_it_was() -> Iterator[None]:
    yield
    if "simulation.assembled" in sys.modules:
        sys.modules["simulation.assembled"].uninstall()
