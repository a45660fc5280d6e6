"""A real HDFS of one name node and one data node, in a process of its own. For tests.

``MiniDFSClusterManager``, which Hadoop tests itself with: real servers, real RPC, an edit log on
disk. Its jar fits the Hadoop client that PySpark 4.0 brings along.
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
from pathlib import Path

import pyspark

from onceward.spark.session.jars import resolve
from onceward.spark.session.java import java_executable

_SERVERS = "org.apache.hadoop:hadoop-client-minicluster:3.4.1"
_NEEDED_BY_IT = "junit:junit:4.13.2"
_MAIN = "org.apache.hadoop.test.MiniDFSClusterManager"
_START_SECONDS = 300


class LocalHdfs:
    """Runs inside a ``with``; :attr:`url` is ``hdfs://127.0.0.1:port``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = int(free.getsockname()[1])
        self.url = f"hdfs://127.0.0.1:{self._port}"

    def __enter__(self) -> LocalHdfs:
        own = [*resolve(_SERVERS, transitive=False), *resolve(_NEEDED_BY_IT)]
        jars = os.pathsep.join([*map(str, own), f"{Path(pyspark.__file__).parent}/jars/*"])
        with (self._folder / "hdfs.log").open("w") as log:
            self._process = subprocess.Popen(
                [java_executable(), "-Xmx256m", "-XX:+UseSerialGC", "-cp", jars, _MAIN,
                "-datanodes", "1", "-format",
                 "-nnport", str(self._port), "-writeConfig", "conf.xml"],
                cwd=self._folder, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        try:
            self._wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _wait(self) -> None:
        """It writes its configuration when it is up."""
        deadline = time.monotonic() + _START_SECONDS
        while not (self._folder / "conf.xml").exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(
                    f"HDFS does not start: {(self._folder / 'hdfs.log').read_text()[-2000:]}"
                )
            time.sleep(0.2)

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait(30)
