"""Tables of more columns of text than a staging table of MySQL takes."""

from __future__ import annotations

import pyarrow as pa
import pytest
from database_place import Place

from onceward.errors import ConfigurationError


def test_many_columns_of_text_are_no_fault_of_the_rows(my_either: Place) -> None:
    place, names = my_either, [f"c{number}" for number in range(250)]
    columns = ", ".join(f"{name} varchar(8) CHARACTER SET ascii" for name in names)
    place.sql(f"CREATE TABLE {{s}}.t ({columns})")
    rows = pa.table({name: ["12345678"] for name in names})
    # MariaDB takes them
    if place.server.kind == "mysql":
        with pytest.raises(ConfigurationError, match="longtext") as refused:
            place.write("t", rows)
        assert "fewer columns of text" in (refused.value.next_step or "")
        rows = rows.select(names[:190])
    place.write("t", rows)
    assert place.sql("SELECT COUNT(*) FROM {s}.t") == [(1,)]
