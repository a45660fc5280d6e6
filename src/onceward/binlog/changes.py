"""Events in, changes out: table maps are kept, rows events gathered by table, and decoded many at once. Pure.

Runs in the tasks that read a binlog and in the driver where it undoes what a snapshot has seen. A caller feeds events in
the binlog's order, and takes what they are after a few MiB: all that was fed is held until then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onceward.binlog import kinds
from onceward.binlog.event import HEADER_BYTES, Event
from onceward.binlog.refusals import FULL_IMAGE, BadCell, damaged, located, unreadable
from onceward.binlog.rows import Block as Bytes
from onceward.binlog.rows import Found, Layout, Numbers
from onceward.binlog.table_map import ID_BYTES, Dialect, TableMap
from onceward.binlog.texts import Values, key_texts, row_texts
from onceward.binlog.values import columns_of
from onceward.errors import OncewardError
