"""The contract over the smallest target there is: it shows what the contract itself asks for, in
no time.
"""

from __future__ import annotations

import pytest
from memory_target import MemoryKit

from onceward_testing.sink_contract import SinkContract


class TestMemory(SinkContract):
    @pytest.fixture
    def kit(self) -> MemoryKit:
        return MemoryKit()
