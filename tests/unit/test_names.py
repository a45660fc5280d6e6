"""Names that users give: what Kafka, and a file system, would not take is refused where it is
given.
"""

from __future__ import annotations

import pytest

from onceward.errors import ConfigurationError, InvalidTopicName
from onceward.ids import pipeline_id, topic_name


@pytest.mark.parametrize("name", ["a", "Orders_2.eu-west", "x" * 200, "...", ".a"])
def test_usable_names(name: str) -> None:
    assert pipeline_id(name) == topic_name(name) == name


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "ä", "x" * 300, None, 7])
def test_unusable_names(name: str) -> None:
    with pytest.raises(ConfigurationError, match="pipeline_id"):
        pipeline_id(name)
    with pytest.raises(InvalidTopicName):
        topic_name(name)
