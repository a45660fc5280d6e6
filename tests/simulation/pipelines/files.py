"""Kafka → Spark → files, by ``ow.FileSink``: on a local disk, on HDFS, in an object store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import onceward as ow
from onceward.events import STEPS
from onceward.files.target import FileTarget
from simulation.judge.chain import Chain, Record
from simulation.judge.decided import judge_leftovers, judge_rows
from simulation.judge.facts import Facts
from simulation.judge.output import range_of
from simulation.judge.verdict import Violation
from simulation.kernel import current
from simulation.pipelines import two_phase
from simulation.pipelines.two_phase import (
    PIPELINE_ID,
    USERS,
    chain_of,
    judge_chain,
    ledger_of,
    note_faults,
)
from simulation.spark.query import SOURCE
from simulation.world.files.tree import Folder, Tree
from simulation.world.targets.spark_files import rows_in

__all__ = ["FAULTS", "OPTIONS", "PIPELINES", "USERS"]

PATH = "/data/out"
_BATCH, _HIDDEN, _LISTS = f"batch={PIPELINE_ID}@", "_onceward", "_symlink_format_manifest"
_LOOK = 0.7  # seconds between two looks of a reader
OPTIONS: dict[str, Sequence[Any]] = {
    "user": tuple(USERS),
    "place": ("file", "hdfs", "s3a"),
    "layout": ("batches", "flat", "manifest"),
    "ledger": ("beside", "folder", "kafka"),
    "partition_by": (False, True),
    "most_rows": (None, 2),
    "commit_timeout_s": (60.0, 5.0),
    "batch_timeout_s": (None, 20.0),
}
"""``place``: of the path; in an object store the layout is "manifest". ``ledger``: "beside" the
files, on a local disk; elsewhere in a folder. ``most_rows``: of one file.
"""


FAULTS = {
    "target:file lost": "a file is gone, or cut short, before its batch is decided, or before it "
    "is published",
}


class Sink(ow.FileSink):
    """Somebody removes files below the path before they are published."""

    def _new_target(self, policy: Any) -> FileTarget:
        target = super()._new_target(policy)
        finish, publisher = target.finish, target._publisher
        prepare = publisher.prepare

        def finished(record: Any) -> Any:
            _lose(current().world)
            return finish(record)

        def prepared(*args: Any) -> Any:
            _lose(current().world)
            return prepare(*args)

        target.finish = finished  # type: ignore[method-assign]
        publisher.prepare = prepared  # type: ignore[method-assign]
        return target


class Pipeline(two_phase.Pipeline):
    """See the module."""

    kind = "files"
    faults = (*(kind for kind in two_phase.Pipeline.faults if kind != "target:"), *FAULTS)
    steps = tuple(
        step
        for step in STEPS
        if step not in ("plan", "lease", "check", "offsets", "ledger", "move", "deliver")
    )
    fixed: Mapping[str, Any] = {"stateful": False}

    def kept_in(self, setting: Any) -> str:
        return "kafka" if setting.ledger == "kafka" else "folder"

    def ledger_folder(self, setting: Any) -> str:
        beside = setting.ledger == "beside" and setting.place == "file"
        return f"{PATH}/{_HIDDEN}/ledger" if beside else two_phase.FOLDER

    def set_up(self, world: Any) -> None:
        world.faults_before = {}
        world.cluster.create_topic(SOURCE, world.setting.source_partitions)
        if world.setting.ledger == "kafka":
            world.cluster.create_topic(two_phase.TOPIC, 4, compact=True)
        world.readers = Reader(world)
        world.sim.spawn(world.sim.outside, world.readers.read, name="reader")

    def ledger(self, world: Any) -> Any:
        """The one beside the files is a folder like any other."""
        folder = self.ledger_folder(world.setting)
        return ledger_of(world) if folder == two_phase.FOLDER else ow.FolderLedger(folder)

    def sink(self, world: Any) -> Any:
        setting = world.setting
        note_faults(world)
        beside = self.ledger_folder(setting) != two_phase.FOLDER
        return Sink(
            path=f"file://{PATH}" if setting.place == "file" else f"{setting.place}://host{PATH}",
            pipeline_id=PIPELINE_ID,
            layout=layout_of(setting),
            partition_by="p" if setting.partition_by else None,
            max_records_per_file=setting.most_rows,
            ledger=None if beside else self.ledger(world),
            resume=world.operator.resume or "checkpoint",
            batch_attempts=setting.batch_attempts,
            batch_timeout_s=setting.batch_timeout_s,
            commit_timeout_s=setting.commit_timeout_s,
        )

    # ── what must come of it ──

    def judge(self, world: Any) -> list[str]:
        facts = Facts(world)
        return [
            str(violation)
            for violation in (*judge_chain(facts), *judge_files(facts, world.readers))
        ]


def layout_of(setting: Any) -> Any:
    return "manifest" if setting.place == "s3a" else setting.layout


class Reader:
    """Whoever reads the path, from time to time: what he has seen once must not change."""

    def __init__(self, world: Any) -> None:
        self._world = world
        self._tree: Tree = world.files.tree(world.setting.place)
        self._layout = layout_of(world.setting)
        self._seen: dict[str, dict[str, bytes]] = {}
        self.wrong: dict[str, None] = {}

    def read(self) -> None:
        """For as long as the story goes."""
        while True:
            self._world.sim.sleep(_LOOK * (0.5 + self._world.lots.time.random()))
            self.look()

    def look(self) -> dict[str, dict[str, bytes]]:
        """By batch what is there to be read: files and their bytes. Flat files are one batch
        each.
        """
        visible = {"batches": self._folders, "flat": self._flat, "manifest": self._lists}[
            self._layout
        ]()
        for batch, files in self._seen.items():
            if visible.get(batch) != files:
                self.wrong[
                    f"{batch} was seen with {sorted(files)}, and then with "
                    f"{sorted(visible.get(batch, {}))}"
                ] = None
        self._seen = visible
        return visible

    def _folders(self) -> dict[str, dict[str, bytes]]:
        top = self._tree.at(PATH)
        entries = {} if top is None else top.entries
        return {
            name: dict(_shown(folder))
            for name, folder in entries.items()
            if name.startswith(_BATCH)
        }

    def _flat(self) -> dict[str, dict[str, bytes]]:
        top = self._tree.at(PATH)
        return {} if top is None else {name: {name: data} for name, data in _shown(top)}

    def _lists(self) -> dict[str, dict[str, bytes]]:
        top = self._tree.at(f"{PATH}/{_LISTS}")
        found: dict[str, dict[str, bytes]] = {}
        for name, file in ({} if top is None else top.entries).items():
            if name.startswith("."):
                continue
            found[name] = {place: self._data(place) for place in _places(file.data)}
        return found

    def _data(self, place: str) -> bytes:
        file = self._tree.at(place)
        if file is None:
            self.wrong[f"{place} is in a list, and is not there"] = None
            return b""
        data: bytes = file.data
        return data


@lru_cache(maxsize=1_000)
def _places(listed: bytes) -> list[str]:
    """Of all files of a list. It is looked at again and again, and never another one."""
    return [line[line.index(PATH) :] for line in listed.decode().splitlines()]


def _shown(folder: Folder, within: str = "") -> Iterator[tuple[str, bytes]]:
    for name, node in folder.entries.items():
        if name.startswith((".", "_")):
            continue
        if node.__class__ is Folder:
            yield from _shown(node, f"{within}{name}/")
        else:
            yield f"{within}{name}", node.data


def judge_files(facts: Facts, reader: Reader) -> Iterator[Violation]:
    """What readers see against the source and the ledger."""
    world = facts.world
    tree = world.files.tree(world.setting.place)
    chain = chain_of(world)
    visible = reader.look()
    for sentence in reader.wrong:
        yield Violation("I4", sentence)
    records = {record.sequence: record for record in chain.records}
    rows = []
    for batch, files in visible.items():
        number = batch.rpartition("@")[2]
        record = records.get(int(number)) if number.isdecimal() else None
        if record is None and layout_of(world.setting) != "flat":
            yield Violation("I5", f"{batch} is visible, and the ledger has no such batch")
        for name, data in files.items():
            try:
                parts = list(rows_in(data))
            except (ValueError, EOFError, TypeError) as error:
                yield Violation("I4", f"{name} of {batch} cannot be read: {error}")
                continue
            for _, _, some in parts:
                rows.extend(some)
                if record is not None:
                    yield from _within(record, some, name)
    yield from _tidy(tree)
    yield from judge_rows(facts, chain, rows, "the files")
    left = [
        *_prepared(tree, chain),
        *([] if any(map(facts.beside, world.starts)) else _hidden(tree, chain)),
    ]
    yield from judge_leftovers(facts, chain, left, "the path", "I17")


def _tidy(tree: Tree) -> Iterator[Violation]:
    """In a published folder lies what its batch has, and nothing that a task has left there
    since.
    """
    top = tree.at(PATH)
    batches = (
        [] if top is None else [one for one in top.entries.items() if one[0].startswith(_BATCH)]
    )
    for batch, folder in batches:
        if left := sorted(name for name in folder.entries if name.startswith((".", "_"))):
            yield Violation(
                "I17", f"tasks have left {', '.join(left)} in {batch}, which is published"
            )


def _within(record: Record, rows: list[Any], name: str) -> Iterator[Violation]:
    starts, ends = range_of(record, SOURCE)
    for _, partition, offset in rows:
        if not starts.get(partition, 0) <= offset < ends.get(partition, 0):
            yield Violation("I4", f"{name} has source-{partition}@{offset}, not of {record.said}")


def _lose(world: Any) -> None:
    """A file that waits to be published."""
    lots = world.lots
    if not lots.fires("target:file lost"):
        return
    setting = world.setting
    tree = world.files.tree(setting.place)
    top = tree.at(
        f"{PATH}/{_HIDDEN}/{'files' if layout_of(setting) == 'manifest' else 'prepared'}"
    )
    published = {place for files in world.readers.look().values() for place in files}
    waiting = [] if top is None else sorted(_waiting(top))
    waiting = [
        (folder, name)
        for folder, name in waiting
        if f"{PATH}/{_HIDDEN}/files{folder}/{name}" not in published
    ]
    if waiting:
        folder, name = waiting[lots.below("target:file lost", len(waiting))]
        if lots.below("target:file lost", 2):
            del _at(top, folder).entries[name]
        else:
            file = _at(top, folder).entries[name]
            file.data = file.data[:-1]


def _waiting(folder: Folder, path: str = "") -> Iterator[tuple[str, str]]:
    for name, node in folder.entries.items():
        if node.__class__ is Folder:
            yield from _waiting(node, f"{path}/{name}")
        elif name.startswith("part-"):
            yield path, name


def _at(top: Folder, path: str) -> Folder:
    for name in path.split("/")[1:]:
        top = top.entries[name]
    return top


def _prepared(tree: Tree, chain: Chain) -> Iterator[tuple[str, float]]:
    """Attempts of which something is left that nobody reads. Of one that is decided a note may be
    left that a power failure has given its first name back: the start that publishes the batch
    spares all of it, the next one does not.
    """
    decided = {
        "{}.{}".format(*record.document.get("decided", record.document["attempt"]))
        for record in chain.records
    }
    hidden = tree.at(f"{PATH}/{_HIDDEN}")
    if hidden is None:
        return
    prepared = hidden.entries.get("prepared")
    for name, node in ({} if prepared is None else prepared.entries).items():
        if not (name.startswith(".") and name.rpartition("-")[2].rpartition(".")[0] in decided):
            yield name, node.made_at


def _hidden(tree: Tree, chain: Chain) -> Iterator[tuple[str, float]]:
    """Of layout "manifest": folders of attempts that no list will ever name. Not what tasks that
    were given up have written below Spark's own folder, after that was removed; nor what a copy
    writes while another one removes it.
    """
    decided = {
        "{}.{}".format(*record.document.get("decided", record.document["attempt"]))
        for record in chain.records
    }
    top = tree.at(f"{PATH}/{_HIDDEN}/files")
    for name, folder in ({} if top is None else top.entries).items():
        if decided.isdisjoint(name.split("-")) and any(_shown(folder)):
            yield name, folder.made_at


PIPELINES = (Pipeline,)
