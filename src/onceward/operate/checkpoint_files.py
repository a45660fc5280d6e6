"""Files of a checkpoint or a savepoint, on any file system that pyarrow has. No Spark.

Called by :mod:`onceward.operate.savepoint` and :mod:`onceward.operate.plan`.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import chain
from typing import Any, NamedTuple
from urllib.parse import quote

from pyarrow import fs

from onceward.errors import CheckpointUnreachable, ConfigurationError

_CHUNK = 1 << 20
_PLACE_AND_PATH = re.compile(r"^([^:/]+:(?://[^/?]*)?)([^?]*)")


class Folder:
    """A folder on pyarrow's file systems: local, ``s3[a]:``, ``gs:``, ``abfss:``, ``hdfs:``.

    ``path`` is what it was called, ``root`` its place there: of a local one its absolute path.
    """

    def __init__(self, path: str) -> None:
        self.path = path.rstrip("/")
        uri = re.sub(r"^s3[an]://", "s3://", re.sub("^file:/+", "/", self.path))
        try:
            if re.match(r"[a-z][a-z0-9+.-]+:", uri):
                # Hadoop's Path takes each character for itself: "a%20b" is no "a b"
                escaped = _PLACE_AND_PATH.sub(lambda found: found[1] + quote(found[2]), uri)
                self._fs, self.root = fs.FileSystem.from_uri(escaped)
            else:
                # ~ is a name to Hadoop, and other bytes than UTF-8 are none to pyarrow
                uri.encode()
                self._fs, self.root = fs.LocalFileSystem(), os.path.abspath(uri)
        except OSError as error:
            raise CheckpointUnreachable(
                f"{path} cannot be reached ({error})",
                next_step="see that the store answers and takes this login (for hdfs:// that "
                "Hadoop's native library, libjvm and CLASSPATH are set); or copy the checkpoint "
                "of the stopped query to a local path by other means first",
            ) from error
        except (ValueError, ImportError) as error:
            raise ConfigurationError(
                f"{path} is on no file system that savepoints can read ({error})",
                next_step="name a local path, s3://, gs://, abfss:// or hdfs://; or copy the "
                "checkpoint of the stopped query to a local path by other means first",
            ) from error
        self.is_local = isinstance(self._fs, fs.LocalFileSystem)

    def holds(self, other: Folder) -> bool:
        """Return whether the other folder is this one, or in it."""
        inside = f"{other.root}/".startswith(f"{self.root}/")
        return inside and self._fs.type_name == other._fs.type_name

    def below(self, name: str) -> Folder:
        """Return a folder in this one."""
        # Not by the URI: of ``s3://bucket/saved?scheme=http`` the name would end the query
        where, mark, query = (self.path, "", "") if self.is_local else self.path.partition("?")
        below = copy.copy(self)
        below.path = f"{where.rstrip('/')}/{name}{mark}{query}"
        below.root = f"{self.root.rstrip('/')}/{name}"
        return below

    def as_spark_has_it(self, scheme: str) -> str:
        """Return the path as Hadoop has it; a bucket of S3 by the ``scheme`` that Spark used."""
        if self.is_local:
            return f"file:{self.root}"
        bucket = f"{scheme if scheme.startswith('s3') else 's3a'}://"
        return re.sub(r"^s3[an]?://", bucket, self.path.partition("?")[0])

    def names(self, *, recursive: bool = True) -> list[str]:
        """Return the paths of all files, from here; nothing of a folder that is not there."""
        selector = fs.FileSelector(self.root, allow_not_found=True, recursive=recursive)
        found = self._try(lambda: self._fs.get_file_info(selector))
        return sorted(
            info.path.removeprefix(self.root).lstrip("/")
            for info in found
            if info.type is (fs.FileType.File if recursive else fs.FileType.Directory)
        )

    def read(self, name: str) -> bytes:
        """Return the bytes of a file.

        :raises FileNotFoundError: it is not there (any more).
        """
        return b"".join(self.chunks(name))

    def chunks(self, name: str) -> Iterator[bytes]:
        """Yield the bytes of a file.

        :raises FileNotFoundError: it is not there (any more).
        """
        with self._try(lambda: self._fs.open_input_stream(f"{self.root}/{name}")) as stream:
            while data := self._try(lambda: stream.read(_CHUNK)):
                yield data

    def write(self, name: str, chunks: Iterable[bytes]) -> tuple[int, str]:
        """Write a file, and return its size and SHA-256."""
        path, size, digest = f"{self.root}/{name}", 0, hashlib.sha256()
        # First, so that nothing is begun where there is nothing to copy.
        rest = iter(chunks)
        first = next(rest, b"")
        if self.is_local:
            self._try(lambda: self._fs.create_dir(path.rpartition("/")[0], recursive=True))
        with self._try(lambda: self._fs.open_output_stream(path)) as stream:
            for data in chain([first], rest):
                self._try(stream.write, data)
                digest.update(data)
                size += len(data)
        return size, digest.hexdigest()

    def move_to(self, other: Folder) -> None:
        """Give this folder another name; local ones only."""
        self._try(lambda: self._fs.move(self.root, other.root))

    def remove(self) -> None:
        """Remove the folder and all that is in it, if it is there."""
        if self._try(lambda: self._fs.get_file_info(self.root)).type is fs.FileType.Directory:
            self._try(lambda: self._fs.delete_dir(self.root))

    def _try(self, call: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise CheckpointUnreachable(
                f"{self.path} cannot be used: {error}",
                next_step="see that the path is right, that this machine may read and write "
                "there, and that there is room; then run the command again",
            ) from error


OPERATOR = re.compile(r"(state/\d+)/_metadata/(?:metadata|v2/(\d+))")
"""A description of a stateful operator: the one that is (``OperatorStateMetadataV1``), or that of
a batch and those behind it, which transformWithState has (``OperatorStateMetadataV2``)."""
_SCHEMA = re.compile(r'"(\w+):[^"]*/(state/\d+/_stateSchema/[^"]+)"')
"""In such a description: the full path of a file in the checkpoint."""


class StatefulOperator(NamedTuple):
    """What ``state/N/_metadata`` says of a stateful operator."""

    folder: str
    name: str
    partitions: int


def logged_batches(names: Iterable[str], log: str) -> list[int]:
    """Return the batches that ``log`` of a checkpoint has: ``offsets`` or ``commits``. Pure."""
    parts = (name.partition("/") for name in names)
    return sorted(int(last) for first, _, last in parts if first == log and last.isdecimal())


def logged_ends(checkpoint: Folder, batch_id: int) -> list[Any]:
    """Return where each source ends in a batch, as JSON or, where it is none, as text; nothing of
    a version that is not known (``OffsetSeqLog``).

    :raises FileNotFoundError: the batch is not there (any more).
    """
    version, *lines = checkpoint.read(f"offsets/{batch_id}").decode().split("\n")
    return [_plain(line) for line in lines[1:]] if version == "v1" else []


def _plain(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return line


def stateful_operators(checkpoint: Folder, names: Iterable[str]) -> Iterator[StatefulOperator]:
    """Yield those of which there is a description that can be read, by the newest one."""
    found = sorted(
        filter(None, map(OPERATOR.fullmatch, names)), key=lambda each: int(each[2] or 0)
    )
    for folder, name in sorted({each[1]: each[0] for each in found}.items()):
        with suppress(FileNotFoundError, ValueError, LookupError, TypeError):
            metadata = json.loads(checkpoint.read(name).split(b"\n", 1)[1])
            partitions = int(metadata["stateStoreInfo"][0]["numPartitions"])
            yield StatefulOperator(folder, metadata["operatorInfo"]["operatorName"], partitions)


def description_in(checkpoint: Folder, description: bytes) -> bytes:
    """Return a stateful operator's description with the files that it names in ``checkpoint``."""

    def path(found: re.Match[str]) -> str:
        return f'{json.dumps(checkpoint.as_spark_has_it(found[1]))[:-1]}/{found[2]}"'

    return _SCHEMA.sub(path, description.decode()).encode()
