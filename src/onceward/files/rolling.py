"""Files of about a size. Spark's writers begin a new file after so many rows, and know no other
reason. Driver only.
"""

from __future__ import annotations

from typing import NamedTuple

from pyspark.sql import DataFrame

from onceward.spark.files.file_writer import MAX_RECORDS, FileFormat, guessed_row_bytes


class Rolling(NamedTuple):
    """What Spark is told of files, and how large they shall be, in bytes; None: as it comes.

    :param row_bytes: the size of a row in the files of the batch before, on the average; None:
        that is not known.
    """

    how: FileFormat
    file_bytes: int | None = None
    row_bytes: float | None = None

    def told(self, frame: DataFrame) -> FileFormat:
        """Return the format for ``frame``."""
        if self.file_bytes is None:
            return self.how
        rows = rows_per_file(self.file_bytes, self.row_bytes or guessed_row_bytes(frame))
        given = int(self.how.options.get(MAX_RECORDS, rows))
        return self.how._replace(options={**self.how.options, MAX_RECORDS: str(min(rows, given))})


def rows_per_file(file_bytes: int, row_bytes: float) -> int:
    """Return how many rows come to that size; one at least."""
    return max(1, round(file_bytes / row_bytes)) if row_bytes > 0 else 1
