"""Files: a local disk, HDFS and an object store, as the product reaches them by ``os`` and by
Hadoop's API.

:mod:`tree` folders, files, what befalls them, and what is left of a disk when its machine loses
power; :mod:`hadoop` the same as the product asks for it through py4j; :mod:`posix` as it asks
``os`` and ``pathlib``; :mod:`stand_ins` what is put where.
"""

from __future__ import annotations

from simulation.world.files.hadoop import Hadoop, Jvm, Session
from simulation.world.files.tree import FAULTS, Tree

__all__ = ["FAULTS", "Files", "Hadoop", "Tree"]


class Files:
    """The file systems of one world, by scheme.

    :param default: the scheme of a path that names none (``fs.defaultFS``).
    """

    __slots__ = ("default", "disk", "hadoop", "hdfs", "jvm", "objects")

    def __init__(self, sim: object, default: str = "hdfs") -> None:
        self.disk = Tree(sim, "disk")
        """Of the one machine on which the drivers run. It forgets what was not synced."""
        self.hdfs = Tree(sim, "hdfs", durable=True)
        self.objects = Tree(sim, "s3a", durable=True, whole=True)
        self.default = default
        self.hadoop = Hadoop(self)
        """What is below ``jvm.org.apache.hadoop.fs``."""
        self.jvm = Jvm(self.hadoop)

    def tree(self, scheme: str) -> Tree:
        scheme = scheme or self.default
        return self.disk if scheme == "file" else self.hdfs if scheme == "hdfs" else self.objects

    def session_for(self, checkpoint: str = "") -> Session:
        """As much of a Spark session as ``spark.checkpoint_files`` asks of one. Any path will do:
        its scheme says where it lies.
        """
        return Session(self.hadoop)
