"""What a column ``op`` may say of a row in a change stream: Debezium's letters, or words. The same
for every sink.
"""

from __future__ import annotations

DELETES = ("d", "delete")
WRITES = ("c", "r", "u", "insert", "update", "upsert")
