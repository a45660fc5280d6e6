"""Files of a sink as readers see them: by the folders below a path, or by lists of files.

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
# As in Hadoop: nothing behind the scheme is escaped.
_LOCAL = re.compile(r"^file:(?://[^/]*)?/+")
_S3 = re.compile(r"^s3a?://(?:[^/@]*@)?", re.IGNORECASE)


@dataclass(frozen=True)
class Listing:
    """Files that a reader sees, by names relative to the path."""

    sizes: Mapping[str, int]
    """Sizes in bytes."""
    links: frozenset[str] = frozenset()
    """Symbolic links, which readers follow, and the checker does not."""
    twice: frozenset[str] = frozenset()
    """Files that lists name more than once."""
    missing: frozenset[str] = frozenset()
    """Files that a list names, and that are not there."""
    written_at_ms: Mapping[str, int] = field(default_factory=dict)

    def behind_a_link(self, name: str) -> bool:
        """Return whether a symbolic link is on the way to ``name``."""
        return any(name == link or name.startswith(f"{link}/") for link in self.links)


class FileView(ABC):
    """Files below the path of a sink."""

    where: str

    @abstractmethod
    def has_root(self, root: str) -> bool:
        """Return whether ``root``, the path that the sink was given, is this one."""

    @abstractmethod
    def list_files(self) -> Listing:
        """List what is visible.

        :raises CannotTell: it cannot be listed.
        """

    @abstractmethod
    def list_prepared(self, pipeline_id: str) -> list[str]:
        """List what is hidden and of the pipeline's attempts."""

    def count_rows(self, name: str, form: str) -> int | None:
        """Return the number of rows in the file's footer; None if its format has none.

        :raises ValueError: it is no file of that format.
        """
        if form not in _COUNTED:
            return None
        try:
            with self._open(name) as file:
                if form == "parquet":
                    return int(parquet.read_metadata(file).num_rows)
                return int(orc.ORCFile(file).nrows)
        except (pa.ArrowException, OSError) as error:
            raise ValueError(f"no {form} file: {error}") from error

    @abstractmethod
    def _open(self, name: str) -> Any:
        """Open a file for reading at random."""


def open_view(root: str, *, has_lists: bool) -> FileView:
    """Return the view of ``root`` on its file system.

    :param has_lists: the pipeline's batches are visible by lists.
    :raises WrongUsage: the path is on no file system that can be read.
    """
    if _S3.match(root):
        return ListView(root)
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", root) and not _LOCAL.match(root):
        raise WrongUsage(
            f"--files {root}: the checker looks at local disks and S3",
            next_step="mount the path, and pass that folder",
        )
    folder = Path(_LOCAL.sub("/", root))
    return ListView(str(folder)) if has_lists or (folder / LISTS).is_dir() else FolderView(folder)


class FolderView(FileView):
    """Files on a local disk, visible unless a name on the way to them begins with ``_`` or
    ``.``.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self.where = str(root)

    def has_root(self, root: str) -> bool:
        return Path(_LOCAL.sub("/", root)).resolve() == self._root.resolve()

    def list_files(self) -> Listing:
        sizes: dict[str, int] = {}
        # The time of writing outlasts a rename
        written: dict[str, int] = {}
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
                        info = path.stat()
                    except FileNotFoundError:
                        continue
                    sizes[relative] = info.st_size
                    written[relative] = info.st_mtime_ns // 1_000_000
        return Listing(sizes, frozenset(links), written_at_ms=written)

    def list_prepared(self, pipeline_id: str) -> list[str]:
        folder = self._root / _PREPARED
        names = os.listdir(folder) if folder.is_dir() else []
        return sorted(name for name in names if name.startswith(f"{pipeline_id}@"))

    def _open(self, name: str) -> Any:
        return (self._root / name).open("rb")


class ListView(FileView):
    """Files on a local disk or in S3, visible by lists.

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
                    f"--files {_without_keys(root)}: {error}", next_step="correct the URI"
                ) from error
        else:
            self._files, self._root = fs.LocalFileSystem(), str(Path(root).resolve())
        self._root = self._root.rstrip("/")
        # Built anew, for keys may stand in the URI.
        self.where = f"s3://{self._root}" if _S3.match(root) else self._root

    def has_root(self, root: str) -> bool:
        return bool(self._path(root.rstrip("/")) == self._root)

    def _path(self, uri: str) -> str:
        """Return the path of ``uri`` on this file system."""
        return _S3.sub("", uri) if _S3.match(uri) else str(Path(_LOCAL.sub("/", uri)).resolve())

    def list_files(self) -> Listing:
        # Not splitlines(), which also cuts at U+0085 and U+2028: a partition's folder may have
        # these in its name.
        lines = (line for text in self._lists() for line in text.split("\n") if line)
        counts = Counter(self._relative(self._path(line)) for line in lines)
        infos = {self._relative(one.path): one for one in self._list_folder(_DATA, recursive=True)}
        elsewhere = [name for name in counts if name not in infos]
        more = self._call(lambda: self._files.get_file_info(elsewhere))
        pairs = zip(elsewhere, more, strict=True)
        infos |= {name: info for name, info in pairs if info.type == fs.FileType.File}
        infos = {name: infos[name] for name in counts if name in infos}
        return Listing(
            {name: int(info.size) for name, info in infos.items()},
            twice=frozenset(name for name, times in counts.items() if times > 1),
            missing=frozenset(counts.keys() - infos.keys()),
            written_at_ms={
                name: (info.mtime_ns or 0) // 1_000_000 for name, info in infos.items()
            },
        )

    def _lists(self) -> list[str]:
        def read(path: str) -> str:
            with self._files.open_input_stream(path) as stream:
                return bytes(stream.read()).decode(errors="replace")

        infos = self._list_folder(LISTS)
        paths = [info.path for info in infos if not info.base_name.startswith(_HIDDEN)]
        return [self._call(lambda path=path: read(path)) for path in paths]

    def _list_folder(self, folder: str, *, recursive: bool = False) -> list[Any]:
        selector = fs.FileSelector(
            f"{self._root}/{folder}", recursive=recursive, allow_not_found=True
        )
        infos = self._call(lambda: self._files.get_file_info(selector))
        return [info for info in infos if info.type == fs.FileType.File]

    def _relative(self, path: str) -> str:
        """Return ``path`` relative to the root, if it is below it."""
        return path.removeprefix(f"{self._root}/")

    def list_prepared(self, pipeline_id: str) -> list[str]:
        names = (info.base_name for info in self._list_folder(_PREPARED))
        return sorted(name for name in names if name.startswith(f"{pipeline_id}@"))

    def _open(self, name: str) -> Any:
        return self._files.open_input_file(f"{self._root}/{name}")

    def _call(self, question: Any) -> Any:
        try:
            return question()
        except (pa.ArrowException, OSError) as error:
            raise CannotTell(
                f"the lists and files below {self.where} cannot be read: {error}",
                next_step="check --files; in S3 also the keys, and endpoint_override of the URI "
                "for a store that is not Amazon's",
            ) from error


def _without_keys(uri: str) -> str:
    """Remove keys from a URI."""
    return re.sub(r"//[^/@]*@", "//…@", uri).partition("?")[0]


def _fail(error: OSError) -> None:
    raise CannotTell(
        f"the files cannot be listed: {error}",
        next_step="see that --files names a folder, and let us in",
    )
