"""What a reader sees of the files that a pipeline has written: by the folders below a path, or by
lists of files.

The rows of Parquet and ORC files stand in their footers, which pyarrow reads; those of other
formats are not counted.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onceward_verify.findings import CannotTell, Unavailable, WrongUsage

try:
    import pyarrow as pa
    from pyarrow import fs, orc, parquet
except ImportError as missing:
    raise Unavailable(
        "the checker reads files with pyarrow, which is missing", next_step="install it"
    ) from missing

LISTS = "_symlink_format_manifest"
"""Below a sink's path, with ``layout="manifest"``: for each batch a list of its files, a URI a
line.
"""

_DATA = "_onceward/files"
_PREPARED = "_onceward/prepared"
_HIDDEN = ("_", ".")
_COUNTED = ("parquet", "orc")
_LOCAL = re.compile(r"^file:(?://[^/]*)?/+")  # as Hadoop has it: nothing behind it is escaped
_S3 = re.compile(r"^s3a?://(?:[^/@]*@)?", re.IGNORECASE)


@dataclass(frozen=True)
class Seen:
    """What a reader sees, by names relative to the path."""

    sizes: Mapping[str, int]
    """Of files, in bytes."""
    links: frozenset[str] = frozenset()
    """Symbolic links, which readers follow, and nobody here."""
    twice: frozenset[str] = frozenset()
    """Files that lists name more than once."""
    missing: frozenset[str] = frozenset()
    """Files that a list names, and that are not there."""
    written_at_ms: Mapping[str, int] = field(default_factory=dict)

    def behind_a_link(self, name: str) -> bool:
        return any(name == link or name.startswith(f"{link}/") for link in self.links)


class Place(ABC):
    """The path of a sink for files."""

    where: str

    @abstractmethod
    def is_here(self, root: str) -> bool:
        """Is ``root``, the path that the sink was given, the one that we were given?"""

    @abstractmethod
    def seen(self) -> Seen:
        """What is there. :raises CannotTell: it cannot be listed."""

    @abstractmethod
    def prepared_by(self, pipeline_id: str) -> list[str]:
        """What is hidden and of the pipeline's attempts."""

    def rows_of(self, name: str, form: str) -> int | None:
        """How many rows the file's footer tells; None: its format has none.

        :raises ValueError: it is no file of that format.
        """
        if form not in _COUNTED:
            return None
        try:
            with self._opened(name) as file:
                if form == "parquet":
                    return int(parquet.read_metadata(file).num_rows)
                return int(orc.ORCFile(file).nrows)
        except (pa.ArrowException, OSError) as error:
            raise ValueError(f"no {form} file: {error}") from error

    @abstractmethod
    def _opened(self, name: str) -> Any:
        """A file, to be read at random."""


def place_at(root: str, *, has_lists: bool) -> Place:
    """:param has_lists: the pipeline's batches are visible by lists.
    :raises WrongUsage: the path is on no file system that can be looked at.
    """
    if _S3.match(root):
        return Listed(root)
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", root) and not _LOCAL.match(root):
        raise WrongUsage(
            f"--files {root}: the checker looks at local disks and S3",
            next_step="mount the path, and pass that folder",
        )
    folder = Path(_LOCAL.sub("/", root))
    return Listed(str(folder)) if has_lists or (folder / LISTS).is_dir() else Folder(folder)


class Folder(Place):
    """On a local disk, seen by whoever lists it: no name on the way to a file begins with ``_`` or
    ``.``.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self.where = str(root)

    def is_here(self, root: str) -> bool:
        return Path(_LOCAL.sub("/", root)).resolve() == self._root.resolve()

    def seen(self) -> Seen:
        sizes: dict[str, int] = {}
        written: dict[str, int] = {}  # renaming leaves that as it is
        links: set[str] = set()
        for folder, folders, names in os.walk(self._root, onerror=_fail):
            folders[:] = [name for name in folders if not name.startswith(_HIDDEN)]
            for name in (*folders, *names):
                path = Path(folder) / name
                if name.startswith(_HIDDEN):
                    continue
                relative = str(path.relative_to(self._root))
                if path.is_symlink():
                    links.add(relative)
                elif name in names:
                    try:
                        found = path.stat()
                    except FileNotFoundError:
                        continue
                    sizes[relative], written[relative] = (
                        found.st_size,
                        found.st_mtime_ns // 1_000_000,
                    )
        return Seen(sizes, frozenset(links), written_at_ms=written)

    def prepared_by(self, pipeline_id: str) -> list[str]:
        folder = self._root / _PREPARED
        return (
            sorted(name for name in os.listdir(folder) if name.startswith(f"{pipeline_id}@"))
            if folder.is_dir()
            else []
        )

    def _opened(self, name: str) -> Any:
        return (self._root / name).open("rb")


class Listed(Place):
    """On a local disk or in S3, seen by whoever reads the lists.

    :param root: a path, or a URI of S3 as pyarrow takes it: ``s3://bucket/path``, with
        ``?endpoint_override=…&scheme=http`` for stores other than Amazon's. Keys come from where
        AWS's own clients look (``AWS_ACCESS_KEY_ID``, its files, the machine's role).
    """

    def __init__(self, root: str) -> None:
        if _S3.match(root):
            root = re.sub(r"(?i)^s3a:", "s3:", root)
            try:
                self._files, self._root = fs.FileSystem.from_uri(root)
            except (pa.ArrowException, OSError) as error:
                raise WrongUsage(
                    f"--files {_said(root)}: {error}", next_step="correct the URI"
                ) from error
        else:
            self._files, self._root = fs.LocalFileSystem(), str(Path(root).resolve())
        self._root = self._root.rstrip("/")
        self.where = (
            f"s3://{self._root}" if _S3.match(root) else self._root
        )  # keys may stand in the URI

    def is_here(self, root: str) -> bool:
        return bool(self._path(root.rstrip("/")) == self._root)

    def _path(self, uri: str) -> str:
        """As this file system has it."""
        return _S3.sub("", uri) if _S3.match(uri) else str(Path(_LOCAL.sub("/", uri)).resolve())

    def seen(self) -> Seen:
        # Not by splitlines(): the name of a partition's folder may have other ends of lines in it
        # (U+0085, U+2028).
        lines = (line for text in self._lists() for line in text.split("\n") if line)
        named = Counter(self._below_us(self._path(line)) for line in lines)
        there = {self._below_us(info.path): info for info in self._below(_DATA, recursive=True)}
        elsewhere = [name for name in named if name not in there]
        looked_up = dict(
            zip(elsewhere, self._asked(lambda: self._files.get_file_info(elsewhere)), strict=True)
        )
        there |= {name: info for name, info in looked_up.items() if info.type == fs.FileType.File}
        found = {name: there[name] for name in named if name in there}
        return Seen(
            {name: int(info.size) for name, info in found.items()},
            twice=frozenset(name for name, times in named.items() if times > 1),
            missing=frozenset(named.keys() - found.keys()),
            written_at_ms={
                name: (info.mtime_ns or 0) // 1_000_000 for name, info in found.items()
            },
        )

    def _lists(self) -> list[str]:
        def read(path: str) -> str:
            with self._files.open_input_stream(path) as stream:
                return bytes(stream.read()).decode(errors="replace")

        paths = [
            info.path for info in self._below(LISTS) if not info.base_name.startswith(_HIDDEN)
        ]
        return [self._asked(lambda path=path: read(path)) for path in paths]

    def _below(self, folder: str, *, recursive: bool = False) -> list[Any]:
        selector = fs.FileSelector(
            f"{self._root}/{folder}", recursive=recursive, allow_not_found=True
        )
        found = self._asked(lambda: self._files.get_file_info(selector))
        return [info for info in found if info.type == fs.FileType.File]

    def _below_us(self, path: str) -> str:
        """Relative to ours, if it is there."""
        return path.removeprefix(f"{self._root}/")

    def prepared_by(self, pipeline_id: str) -> list[str]:
        notes = (info.base_name for info in self._below(_PREPARED))
        return sorted(name for name in notes if name.startswith(f"{pipeline_id}@"))

    def _opened(self, name: str) -> Any:
        return self._files.open_input_file(f"{self._root}/{name}")

    def _asked(self, question: Any) -> Any:
        try:
            return question()
        except (pa.ArrowException, OSError) as error:
            raise CannotTell(
                f"the lists and files below {self.where} cannot be read: {error}",
                next_step="check --files; in S3 also the keys, and endpoint_override of the URI "
                "for a store that is "
                "not Amazon's",
            ) from error


def _said(uri: str) -> str:
    """Without keys."""
    return re.sub(r"//[^/@]*@", "//…@", uri).partition("?")[0]


def _fail(error: OSError) -> None:
    raise CannotTell(
        f"the files cannot be listed: {error}",
        next_step="see that --files names a folder, and let us in",
    )
