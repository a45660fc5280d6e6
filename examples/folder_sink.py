"""A sink of your own: each task writes a file, which appears in a folder when the batch is
decided, and not before.
"""

import os
from pathlib import Path

import pyarrow.csv

import onceward as ow


class FolderSink(ow.TwoPhaseCommitSink):
    def __init__(self, folder, **settings):
        super().__init__(**settings)
        self.folder = Path(folder)  # one that all executors and the driver see
        self.prepared = self.folder / ".prepared" / self.pipeline_id

    def begin(self, task):  # in each task: the writer of its rows
        self.prepared.mkdir(parents=True, exist_ok=True)
        return FileWriter(self.prepared / f"{task.name}.csv")

    def commit(
        self, committable
    ):  # in the driver, once the batch is decided; again, if the answer was lost
        prepared, final = self.prepared / committable, self.folder / committable
        if prepared.exists():
            prepared.rename(final)
        elif not final.exists():
            return ow.CommitResult.LOST
        sync(self.folder)  # also what an earlier call has renamed
        return ow.CommitResult.DONE

    def abort(self, committable):  # instead of it, if the batch was not decided
        (self.prepared / committable).unlink(missing_ok=True)

    def recover(
        self,
    ):  # at every start: what is prepared, for the engine to abort what of it is not decided
        return [file.name for file in self.prepared.glob("*.csv")]


class FileWriter(ow.TaskWriter):
    def __init__(self, path):
        self.path, self.kept = path, False
        self.file = path.open("xb")

    def write(self, rows):  # a pyarrow.RecordBatch
        pyarrow.csv.write_csv(rows, self.file, pyarrow.csv.WriteOptions(include_header=False))

    def pre_commit(
        self,
    ):  # all of it durable, none of it visible; returns what commit() will be given
        self.kept = self.file.tell() > 0
        self.file.flush()
        os.fsync(self.file.fileno())
        sync(self.path.parent)
        return self.path.name if self.kept else None

    def close(self):  # whatever happened
        self.file.close()
        if not self.kept:
            self.path.unlink()


def sync(folder):  # so that the names in it outlast a power failure
    descriptor = os.open(folder, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
