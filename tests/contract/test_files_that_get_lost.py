"""What may become of prepared files, and of the place they go to. In this process, with a writer
of pyarrow's.
"""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
from file_kits import FileKit, HereKit, dying_before_the_note_goes, write_here

import onceward as ow
from fault_table import fired
from onceward import events
from onceward.engine.micro_batch import MicroBatches
from onceward.engine.policy import SinkPolicy
from onceward.engine.target import Write
from onceward.errors import (
    ConfigurationError,
    Fenced,
    LedgerUnreachable,
    OncewardError,
    PreparedDataLost,
    PublishIncomplete,
    Recovery,
    ReportMismatch,
    SendFailed,
    TargetUnreachable,
)
from onceward.spark.files import file_writer
from onceward.spark.files.file_system import LocalFiles
from onceward.spark.files.file_writer import FileFormat, WrittenFiles
from onceward_testing.sink_contract import (
    FIRST,
    SECOND,
    Died,
    Process,
    assert_holds,
    batch,
    fault,
    run_batch,
)
from support.errors import raises
from support.tasks_here import ArrowFrame

pytestmark = pytest.mark.lengthy("ci")

LAYOUTS = ("batches", "flat", "manifest")
MANIFESTS = "_symlink_format_manifest"


@pytest.fixture(params=LAYOUTS)
def kit(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> HereKit:
    return HereKit(tmp_path, request.param, monkeypatch)


def another_than(layout: str) -> str:
    return LAYOUTS[LAYOUTS.index(layout) - 1]


def prepared(kit: FileKit) -> list[Path]:
    """What is hidden, but for the ledger, and named by no list."""
    if kit.layout == "manifest":
        published = set(kit.published())
        found = (kit.folder / "out" / "_onceward" / "files").rglob("*.parquet")
        return sorted(path for path in found if str(path) not in published)
    return sorted((kit.folder / "out" / "_onceward" / "prepared").rglob("*.parquet"))


def breaking_moves(
    patch: pytest.MonkeyPatch, number: int, what: Callable[[], object]
) -> list[str]:
    """Before publishing step ``number``, from 0, ``what`` happens: a rename, or a list; the steps
    so far.
    """
    move, put_if_absent, moved = LocalFiles.move, LocalFiles.put_if_absent, list[str]()

    def published(target: str) -> None:
        if not target.startswith("_onceward"):
            moved.append(target)
            if len(moved) == number + 1:
                what()

    def broken(files: LocalFiles, source: str, target: str) -> bool:
        published(target)
        return move(files, source, target)

    def broken_list(files: LocalFiles, path: str, text: str) -> str:
        published(path)
        return put_if_absent(files, path, text)

    patch.setattr(LocalFiles, "move", broken)
    patch.setattr(LocalFiles, "put_if_absent", broken_list)
    return moved


def die() -> None:
    raise Died


def dies_before_it_publishes(kit: HereKit, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batch 0 is decided."""
    with monkeypatch.context() as patch:
        breaking_moves(patch, 0, die)
        with pytest.raises(Died):
            run_batch(kit, 0, FIRST)


def fail() -> NoReturn:
    raise OSError("no space left on device")


@pytest.mark.fault("files-published-in-part")
@pytest.mark.parametrize("number", [0, 1])
def test_a_death_between_two_renames(kit: HereKit, monkeypatch: pytest.MonkeyPatch, number: int):
    run_batch(kit, 0, FIRST)
    with monkeypatch.context() as patch:
        moved = breaking_moves(patch, number, die)
        try:
            run_batch(kit, 1, SECOND)
        except Died:
            fired(kit.layout == "flat" or not number, "a batch has one folder, or one list")
    seen = kit.visible() - Counter(FIRST)
    assert set(seen) <= set(SECOND)
    assert set(seen.values()) <= {1}
    if kit.layout != "flat":
        assert seen in (Counter(), Counter(SECOND)), "half a batch was seen"
    run_batch(kit, 1, SECOND)
    assert_holds(kit, FIRST + SECOND, 1)
    assert prepared(kit) == []
    assert moved


@pytest.mark.fault("files-down")
def test_a_file_system_that_fails_while_a_batch_is_published(
    kit: HereKit, monkeypatch: pytest.MonkeyPatch
):
    """For a moment, and for good: then the query stops, and the next start goes on with it."""
    kit.settings["commit_timeout_s"] = 0.3
    with monkeypatch.context() as patch:
        breaking_moves(patch, 0, fail)
        run_batch(kit, 0, FIRST)
    assert_holds(kit, FIRST, 0)
    with monkeypatch.context() as patch:
        publishing_nothing(patch)
        for _ in range(2):
            with pytest.raises(PublishIncomplete):
                run_batch(kit, 1, SECOND)
    assert_holds(kit, FIRST, 1)
    run_batch(kit, 1, SECOND)
    run_batch(kit, 2, ["z"])
    assert_holds(kit, [*FIRST, *SECOND, "z"], 2)


def publishing_nothing(patch: pytest.MonkeyPatch) -> None:
    move, put_if_absent = LocalFiles.move, LocalFiles.put_if_absent

    def broken(files: LocalFiles, source: str, target: str) -> bool:
        return move(files, source, target) if target.startswith("_onceward") else bool(fail())

    def broken_list(files: LocalFiles, path: str, text: str) -> str:
        return put_if_absent(files, path, text) if path.startswith("_onceward") else str(fail())

    patch.setattr(LocalFiles, "move", broken)
    patch.setattr(LocalFiles, "put_if_absent", broken_list)


@pytest.mark.fault("files-down")
def test_a_path_that_cannot_be_written_to_is_named_before_anybody_is_fenced(kit: HereKit):
    (kit.folder / "a file").write_text("")
    healthy = Process(kit).open()
    healthy.commit(FIRST)
    kit.settings["path"] = f"file://{kit.folder}/a file/out"
    kit.settings["ledger"] = ow.FolderLedger(kit.folder / "out" / "_onceward" / "ledger")
    with raises(TargetUnreachable):
        run_batch(kit, 1, SECOND)
    kit.settings.clear()
    healthy.commit(SECOND)
    assert_holds(kit, FIRST + SECOND, 1)


@pytest.mark.fault("files-lost")
def test_prepared_files_that_are_gone_stop_the_query_by_name(
    kit: HereKit, monkeypatch: pytest.MonkeyPatch
):
    run_batch(kit, 0, FIRST)
    with monkeypatch.context() as patch:
        breaking_moves(patch, 0, die)
        with pytest.raises(Died):
            run_batch(kit, 1, SECOND)
    gone, *left = prepared(kit)
    content = gone.read_bytes()
    gone.unlink()
    for _ in range(2):
        with pytest.raises(PreparedDataLost, match="contract@"):
            run_batch(kit, 1, SECOND)
    assert kit.layout == "flat" or kit.visible() == Counter(FIRST), "half a batch was published"
    gone.parent.mkdir(exist_ok=True)
    gone.write_bytes(content)
    run_batch(kit, 1, SECOND)
    assert_holds(kit, FIRST + SECOND, 1)
    assert left


def test_a_file_that_was_cut_short_is_lost(kit: HereKit, monkeypatch: pytest.MonkeyPatch):
    dies_before_it_publishes(kit, monkeypatch)
    os.truncate(prepared(kit)[0], 10)
    with pytest.raises(PreparedDataLost):
        run_batch(kit, 0, FIRST)


@pytest.mark.fault("files-lost")
def test_keep_goes_on_with_what_is_left(kit: HereKit, monkeypatch: pytest.MonkeyPatch):
    dies_before_it_publishes(kit, monkeypatch)
    gone, *_ = prepared(kit)
    gone.unlink()
    target = kit.new_target()
    target._policy = SinkPolicy(kit.pipeline, resume="skip_missing")
    target.open(batch(0))
    newest = target.finish(target.peek())
    assert newest.state.value == "finished"
    assert kit.visible() == Counter(FIRST[1::2]), "every other row was in the file that is lost"
    run_batch(kit, 1, SECOND)
    assert_holds(kit, FIRST[1::2] + SECOND, 1)


@pytest.mark.fault("files-lost")
def test_keep_leaves_out_what_was_cut_short(kit: HereKit, monkeypatch: pytest.MonkeyPatch):
    dies_before_it_publishes(kit, monkeypatch)
    os.truncate(prepared(kit)[0], 10)
    target = kit.new_target()
    target._policy = SinkPolicy(kit.pipeline, resume="skip_missing")
    target.open(batch(0))
    target.finish(target.peek())
    assert kit.visible() == Counter(FIRST[1::2]), "a reader that meets half a file reads nothing"


@pytest.mark.fault("files-published-in-part")
@pytest.mark.parametrize("there", ["nothing", "a file of another", "one of the two"])
def test_a_folder_that_is_there_already_takes_nothing_for_lost(
    kit: HereKit, monkeypatch: pytest.MonkeyPatch, there: str
):
    """Somebody has made the batch's folder, or has begun to move its files by hand: what is
    prepared is there still.
    """
    if kit.layout != "batches":
        return  # its files have a place each, or are there already
    dies_before_it_publishes(kit, monkeypatch)
    place = kit.folder / "out" / "batch=contract@0000000000"
    place.mkdir()
    first = prepared(kit)[0]
    if there == "one of the two":
        first.rename(place / first.name)
    elif there == "a file of another":
        (place / "_another").write_text("hidden")
    run_batch(kit, 0, FIRST)
    run_batch(kit, 1, SECOND)
    assert_holds(kit, FIRST + SECOND, 1)
    assert prepared(kit) == []
    assert (there == "a file of another") == (place / "_another").exists()


@pytest.mark.fault("files-late-task")
def test_a_task_that_was_given_up_writes_on(kit: HereKit):
    """Below Spark's folder of unfinished work, and once more after the job has ended."""
    process = Process(kit).open()
    process.write(kit.frame(FIRST))
    folder = attempt_folder(kit)
    late = folder / "_temporary" / "0" / "part-9.parquet"
    late.parent.mkdir(parents=True)
    late.write_text("unfinished")
    process.stage_what_is_written()
    assert folder.exists() == (kit.layout == "manifest"), (
        "who knows the folder from before gets in"
    )
    folder.mkdir(exist_ok=True)
    (folder / "part-9.parquet").write_text("too late")
    process.attempt.commit()
    process.newest = process.attempt.record
    process.finish()
    assert_holds(kit, FIRST, 0)
    assert list((kit.folder / "out").rglob("_temporary")) == []
    Process(kit).open().begin()
    assert [path.name for path in prepared(kit)] == (
        ["part-9.parquet"] if kit.layout == "manifest" else []
    )


@pytest.mark.fault("files-late-task")
@pytest.mark.parametrize("amiss", ["one more", "one less", "cut short"])
def test_files_that_are_not_those_the_tasks_have_written(kit: HereKit, amiss: str):
    process = Process(kit).open()
    process.write(kit.frame(FIRST))
    folder = attempt_folder(kit)
    first = sorted(folder.glob("*.parquet"))[0]
    if amiss == "one more":
        shutil.copy(first, folder / "part-9.parquet")
    elif amiss == "one less":
        first.unlink()
    else:
        os.truncate(first, 10)
    with pytest.raises(ReportMismatch, match="tasks have written 2 files"):
        process.stage_what_is_written()
    process.attempt.abort()
    process.commit(SECOND)
    assert_holds(kit, SECOND, 0)


def attempt_folder(kit: FileKit) -> Path:
    hidden = kit.folder / "out" / "_onceward"
    (folder,) = hidden.glob(
        "files/_attempt=*/batch=*" if kit.layout == "manifest" else "prepared/*"
    )
    return folder


@pytest.mark.fault("files-two-publishers")
def test_two_copies_publish_the_same_batch(kit: HereKit, monkeypatch: pytest.MonkeyPatch):
    """The newer one has done it when the older one comes to its second rename, or to its first."""
    zombie = Process(kit).open()
    zombie.decide(FIRST)
    heirs: list[Process] = []
    with monkeypatch.context() as patch:
        breaking_moves(patch, 0, lambda: heirs.append(Process(kit).open()))
        with pytest.raises(Fenced):
            zombie.finish()
    assert_holds(kit, FIRST, 0)
    heirs[0].commit(SECOND)
    assert_holds(kit, FIRST + SECOND, 1)


def archive(kit: HereKit) -> Counter[str]:
    """What readers of a landing zone do: take away what is published, and its folder."""
    taken = kit.visible()
    files = [Path(file) for file in kit.published()]
    for file in files:
        file.unlink()
    for folder in {file.parent for file in files if kit.layout == "batches"}:
        folder.rmdir()
    return taken


@pytest.mark.fault("files-taken-by-readers")
def test_what_readers_take_away_before_the_ledger_says_finished_is_not_lost(
    kit: HereKit, monkeypatch: pytest.MonkeyPatch
):
    """The ledger is away for a moment, and this process ends; readers do not wait for it."""
    process = Process(kit).open()
    process.decide(FIRST)
    with monkeypatch.context() as patch:
        patch.setattr(process.target.chain, "progress", unreachable)
        with pytest.raises(LedgerUnreachable):
            process.finish()
    assert archive(kit) == Counter(FIRST)
    run_batch(kit, 0, FIRST)
    assert kit.layout == "manifest" or kit.visible() == Counter()
    kit.settings["ledger"] = ow.FolderLedger(kit.folder / "out" / "_onceward" / "ledger")
    for path in (kit.folder / "out" / MANIFESTS).glob("[!.]*"):
        path.unlink()
    run_batch(kit, 1, SECOND)
    run_batch(kit, 2, ["z"])
    assert kit.visible() == Counter([*SECOND, "z"])
    marks = (kit.folder / "out" / "_onceward" / "prepared").glob("*.published")
    assert len(list(marks)) == (kit.layout != "manifest"), "of the newest batch alone"


def unreachable(*_: object) -> NoReturn:
    raise LedgerUnreachable("the ledger is away for a moment", next_step="wait")


@pytest.mark.fault("files-taken-by-readers")
@pytest.mark.parametrize("with_folder", [False, True])
def test_a_reader_that_takes_each_file_as_soon_as_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_folder: bool
):
    """And, in between, removes the folder that is empty then."""
    kit = HereKit(tmp_path, "flat", monkeypatch)
    taken: list[str] = []
    move, make = LocalFiles.move, LocalFiles.make

    def moved_on(files: LocalFiles, source: str, target: str) -> bool:
        done = move(files, source, target)
        if done and not target.startswith("_onceward"):
            Path(files._at(target)).unlink()
            taken.append(target)
        return done

    def removed_again(files: LocalFiles, folder: str) -> None:
        make(files, folder)
        if folder.startswith("initial=") and not taken:
            taken.append(folder)
            Path(files._at(folder)).rmdir()

    with monkeypatch.context() as patch:
        patch.setattr(LocalFiles, "move", moved_on)
        if with_folder:
            patch.setattr(LocalFiles, "make", removed_again)
            patch.setattr(file_writer, "write", write_partitioned)
            kit.settings["partition_by"] = "initial"
        run_batch(kit, 0, FIRST)
        run_batch(kit, 1, SECOND)
    assert len(taken) == 4 + with_folder
    assert kit.visible() == Counter()


def write_partitioned(
    frame: ArrowFrame, folder: str, how: FileFormat, computation: object, lost: object
) -> WrittenFiles:
    return write_here(frame, f"{folder}/initial=a", how, computation, lost)


def taken_before_the_death(kit: HereKit, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Batch 0 dies between two of its files, and readers take away the first."""
    with monkeypatch.context() as patch:
        breaking_moves(patch, 1, die)
        with pytest.raises(Died):
            run_batch(kit, 0, FIRST)
    first = archive(kit)
    assert 0 < first.total() < len(FIRST)
    return first


@pytest.mark.parametrize("layout", ["batches", "flat"])
@pytest.mark.parametrize("of", ["the batch", "its files"])
def test_a_mark_that_a_power_failure_has_left_alone_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str, of: str
):
    """The rename before it is undone: of two names that were not synced either may be left."""
    kit = HereKit(tmp_path, layout, monkeypatch)
    dies_before_it_publishes(kit, monkeypatch)
    [ready] = (kit.folder / "out" / "_onceward" / "prepared").glob("*.ready")
    marked = [ready.with_suffix("")] if of == "the batch" else list(ready.rglob("part-*"))
    for path in marked:
        path.with_name(path.name + ".published").touch()
    run_batch(kit, 0, FIRST)
    assert kit.visible() == Counter(FIRST)
    assert prepared(kit) == []


@pytest.mark.fault("files-taken-by-readers")
def test_a_file_that_was_moved_before_the_death_and_taken_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    kit = HereKit(tmp_path, "flat", monkeypatch)
    first = taken_before_the_death(kit, monkeypatch)
    run_batch(kit, 0, FIRST)
    assert first + kit.visible() == Counter(FIRST)
    assert prepared(kit) == []


@pytest.mark.fault("files-taken-by-readers")
@pytest.mark.parametrize("resume", ["checkpoint", "skip_missing"])
def test_a_folder_that_was_published_in_part_and_taken_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resume: Any
):
    """Somebody had made it, so that its files went into it one by one."""
    kit = HereKit(tmp_path, "batches", monkeypatch)
    dies_before_it_publishes(kit, monkeypatch)
    (kit.folder / "out" / "batch=contract@0000000000").mkdir()
    first = taken_before_the_death(kit, monkeypatch)
    target = kit.new_target()
    target._policy = SinkPolicy(kit.pipeline, resume=resume)
    target.open(batch(0))
    assert target.finish(target.peek()).state.value == "finished"
    assert first + kit.visible() == Counter(FIRST)
    assert prepared(kit) == []


@pytest.mark.fault("files-taken-by-readers")
def test_an_older_copy_is_fenced_by_one_whose_files_are_taken_away(
    kit: HereKit, monkeypatch: pytest.MonkeyPatch
):
    zombie = Process(kit).open()
    zombie.decide(FIRST)
    heirs: list[Process] = []

    def taken_over() -> None:
        heirs.append(Process(kit).open())
        assert archive(kit) == Counter(FIRST)
        heirs[0].commit(SECOND)

    with monkeypatch.context() as patch:
        breaking_moves(patch, 0, taken_over)
        with pytest.raises(Fenced):
            zombie.finish()
    assert kit.layout == "manifest" or kit.visible() == Counter(SECOND)


@pytest.mark.fault("files-leftovers")
def test_what_is_left_is_removed_and_another_pipelines_is_not(kit: HereKit):
    """Also of a pipeline whose name begins alike, and what an attempt was still writing."""
    kit.settings["pipeline_id"] = "contract-2"
    other = Process(kit).open()
    other.stage(kit.frame(["of the other"]))
    del kit.settings["pipeline_id"]
    dead = Process(kit).open()
    dead.write(kit.frame(["being written"]))
    second = Process(kit).open()
    second.stage(kit.frame(["prepared"]))
    Process(kit).open().begin()
    of = {
        path.relative_to(kit.folder).parts[3].partition("@")[0].removeprefix("_attempt=")
        for path in prepared(kit)
    }
    assert of == {"contract-2"}
    assert [
        path.name.partition("@")[0]
        for path in (kit.folder / "out" / "_onceward" / "prepared").iterdir()
    ] == [*of]
    other.attempt.commit()
    other.newest = other.attempt.record
    other.finish()
    assert kit.visible() == Counter(["of the other"])


def test_a_pipeline_that_has_lost_its_ledger_writes_no_batch_twice(kit: HereKit):
    """Where each batch has a folder of its own: without the checkpoint, too, nobody else would
    notice.
    """
    run_batch(kit, 0, FIRST)
    kit.settings["ledger"] = ow.FolderLedger(kit.folder / "another")
    if kit.layout == "flat":
        return  # files have names by chance; a checkpoint that is left makes it LedgerBehind
    with raises(ConfigurationError):
        run_batch(kit, 0, FIRST)
    assert kit.visible() == Counter(FIRST)
    assert prepared(kit) == []


@pytest.mark.parametrize(
    "settings",
    [
        {"layout": "the other"},
        {"partition_by": "day"},
        {"batch_column": "pile"},
        {"format": "orc"},
        {"layout": "the other", "pipeline_id": "a-second-one"},
    ],
    ids=lambda settings: "-".join(settings),
)
def test_another_shape_below_the_same_path_is_refused_by_name(
    kit: HereKit, settings: dict[str, str]
):
    """Readers would pass over the files of one of them: folders that are no partitions, files of
    another format.
    """
    healthy = Process(kit).open()
    healthy.commit(FIRST)
    if settings.get("layout"):
        settings = {**settings, "layout": another_than(kit.layout)}
    if kit.layout == "flat" and "batch_column" in settings:
        return  # it has none
    kit.settings |= settings
    with pytest.raises(ConfigurationError) as refused:
        run_batch(kit, 1, SECOND)
    for name, value in settings.items():
        assert name == "pipeline_id" or f"{name}=" in str(refused.value)
        assert name == "pipeline_id" or value in str(refused.value)
    assert "shape.json" in str(refused.value)
    kit.settings.clear()
    healthy.commit(SECOND)
    assert_holds(kit, FIRST + SECOND, 1)


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b"\xff"])
def test_a_shape_that_is_damaged_is_named(kit: HereKit, damage: bytes):
    run_batch(kit, 0, FIRST)
    shape = kit.folder / "out" / "_onceward" / "shape.json"
    shape.write_bytes(damage)
    with pytest.raises(ConfigurationError, match=r"shape\.json is damaged") as damaged:
        run_batch(kit, 1, SECOND)
    shape.write_text(json.dumps(damaged.value.details["asked"]))
    run_batch(kit, 1, SECOND)
    assert_holds(kit, FIRST + SECOND, 1)


def test_a_path_that_was_emptied_takes_another_shape(kit: HereKit):
    """As the error advises; the ledger goes on."""
    run_batch(kit, 0, FIRST)
    for found in (kit.folder / "out").iterdir():
        if found.name != "_onceward":  # the lists, too
            shutil.rmtree(found) if found.is_dir() else found.unlink()
    kit.layout = kit.settings["layout"] = another_than(kit.layout)
    with raises(ConfigurationError) as another:
        run_batch(kit, 1, SECOND)
    (kit.folder / "out" / "_onceward" / "shape.json").write_text(
        json.dumps(another.value.details["asked"])
    )
    run_batch(kit, 1, SECOND)
    assert kit.visible() == Counter(SECOND)


@pytest.mark.fault("files-down")
@pytest.mark.parametrize("ledger", ["elsewhere", "below the path"])
def test_a_disk_that_is_not_mounted_is_waited_for(kit: HereKit, tmp_path: Path, ledger: str):
    """What is in its place then is an empty folder: what was written there would be hidden by the
    disk.
    """
    disk, away = tmp_path / "out", tmp_path / "the disk"
    if ledger == "elsewhere":
        kit.settings["ledger"] = ow.FolderLedger(tmp_path / "ledger")
    run_batch(kit, 0, FIRST)
    disk.rename(away)
    disk.mkdir()
    with raises((TargetUnreachable, LedgerUnreachable)) as not_mounted:
        run_batch(kit, 1, SECOND)
    assert not_mounted.value.recovery is Recovery.RESTART
    assert list(disk.iterdir()) == []
    disk.rmdir()
    away.rename(disk)
    run_batch(kit, 1, SECOND)
    assert_holds(kit, FIRST + SECOND, 1)


def test_a_disk_that_goes_in_mid_run_takes_no_batch_with_it(kit: HereKit, tmp_path: Path):
    """Before a batch is written, before its decision, and before its files are published."""
    disk, away = tmp_path / "out", tmp_path / "the disk"
    kit.settings |= {"ledger": ow.FolderLedger(tmp_path / "ledger"), "commit_timeout_s": 0.2}

    def unmount() -> None:
        if disk.exists():
            disk.rename(away)

    def mount() -> None:
        shutil.rmtree(disk, ignore_errors=True)
        away.rename(disk)

    run_batch(kit, 0, FIRST)
    for step in (events.SEND, events.COMMIT, events.PUBLISH):
        with fault(step, "started", unmount), pytest.raises(OncewardError) as failed:
            run_batch(kit, 1, SECOND)
        assert failed.value.recovery is not Recovery.STOP, failed.value
        with pytest.raises((TargetUnreachable, PublishIncomplete)):
            run_batch(kit, 1, SECOND)
        mount()
    run_batch(kit, 1, SECOND)
    assert_holds(kit, FIRST + SECOND, 1)


def test_settings_that_change_after_the_decision(kit: HereKit, monkeypatch: pytest.MonkeyPatch):
    """What was decided goes where it was decided to go."""
    dies_before_it_publishes(kit, monkeypatch)
    kit.settings["layout"] = another_than(kit.layout)
    kit.settings["path"] = f"file://{kit.folder}/elsewhere"
    kit.settings["ledger"] = ow.FolderLedger(kit.folder / "out" / "_onceward" / "ledger")
    Process(kit).open()
    assert kit.visible() == Counter(FIRST)
    assert list((kit.folder / "elsewhere").rglob("*.parquet")) == []
    batches = [path.name for path in (kit.folder / "out").glob("*/contract@0000000000")]
    assert len(list((kit.folder / "out").glob("batch=contract@0000000000"))) == (
        kit.layout == "batches"
    )
    assert len(batches) == (kit.layout == "manifest")


def test_a_disk_that_fails_before_the_decision_lets_the_batch_run_again(
    kit: HereKit, monkeypatch: pytest.MonkeyPatch
):
    failed: list[str] = []
    sync = LocalFiles.sync

    def failing_once(files: LocalFiles, folder: str) -> None:
        if not failed:
            failed.append(folder)
            fail()
        sync(files, folder)

    monkeypatch.setattr(LocalFiles, "sync", failing_once)
    with fault(events.ABORT, "started", lambda: None):
        run_batch(kit, 0, FIRST)
    assert_holds(kit, FIRST, 0)
    failed.clear()
    once = MicroBatches(kit.new_target(), SinkPolicy(kit.pipeline, batch_attempts=1))
    with raises(SendFailed):
        once.process([Write(kit.frame(SECOND))], batch(1))
    assert_holds(kit, FIRST, 0)


def test_all_is_synced_before_the_decision(kit: HereKit, monkeypatch: pytest.MonkeyPatch):
    """Each file and each folder on the way to it; and the names of what is published, before the
    ledger says so.
    """
    synced: list[str] = []
    real = os.fsync

    def noting(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", noting)
    process = Process(kit).open()
    process.stage(kit.frame(FIRST))
    files = prepared(kit)
    on_the_way = [
        folder
        for folder in files[0].parents
        if folder.is_relative_to(kit.folder / "out" / "_onceward")
    ]
    assert len(on_the_way) >= 2
    assert {str(path) for path in [*files, *on_the_way]} <= set(synced)
    process.attempt.commit()
    process.newest = process.attempt.record
    synced.clear()
    process.finish()
    assert str(kit.folder / "out") in synced


class TestLists:
    """What may become of the lists of ``layout="manifest"``."""

    @pytest.fixture
    def kit(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HereKit:
        return HereKit(tmp_path, "manifest", monkeypatch)

    def test_a_list_of_somebody_else_is_named_and_not_replaced(
        self, kit: HereKit, monkeypatch: pytest.MonkeyPatch
    ):
        dies_before_it_publishes(kit, monkeypatch)
        place = kit.folder / "out" / MANIFESTS / "contract@0000000000"
        place.write_text("file:///elsewhere/part\n")
        with raises(ConfigurationError):
            run_batch(kit, 0, FIRST)
        assert place.read_text() == "file:///elsewhere/part\n"
        place.unlink()
        run_batch(kit, 0, FIRST)
        assert_holds(kit, FIRST, 0)

    @pytest.mark.fault("files-leftovers")
    def test_a_ledger_of_before_the_decision_drops_nothing_that_a_list_names(
        self, kit: HereKit, monkeypatch: pytest.MonkeyPatch
    ):
        """The ledger was put back from a copy, and the process had died between the list and the
        end of its note.
        """
        run_batch(kit, 0, FIRST)
        ledger = kit.folder / "out" / "_onceward" / "ledger"
        shutil.copytree(ledger, kit.folder / "copy")
        with monkeypatch.context() as patch:
            dying_before_the_note_goes(patch, LocalFiles)
            with pytest.raises(Died):
                run_batch(kit, 1, SECOND)
        assert kit.visible() == Counter(FIRST + SECOND)
        shutil.rmtree(ledger)
        shutil.copytree(kit.folder / "copy", ledger)
        with raises(ConfigurationError):
            run_batch(kit, 1, SECOND)
        assert kit.visible() == Counter(FIRST + SECOND)

    @pytest.mark.fault("files-taken-by-readers")
    def test_a_batch_whose_file_is_taken_once_it_is_listed_keeps_its_list(
        self, kit: HereKit, monkeypatch: pytest.MonkeyPatch
    ):
        """Also with ``resume="skip_missing"``."""
        with monkeypatch.context() as patch:
            dying_before_the_note_goes(patch, LocalFiles)
            with pytest.raises(Died):
                run_batch(kit, 0, FIRST)
        place = kit.folder / "out" / MANIFESTS / "contract@0000000000"
        whole = place.read_text()
        Path(kit.published()[0]).unlink()
        target = kit.new_target()
        target._policy = SinkPolicy(kit.pipeline, resume="skip_missing")
        target.open(batch(0))
        assert target.finish(target.peek()).state.value == "finished"
        assert place.read_text() == whole
        assert list((kit.folder / "out" / "_onceward" / "prepared").iterdir()) == []


@pytest.mark.fault("files-leftovers")
def test_what_another_ledger_has_decided_is_left_to_it(
    kit: HereKit, monkeypatch: pytest.MonkeyPatch
):
    """The same pipeline, started with another ledger by mistake: back with its own it
    publishes.
    """
    dies_before_it_publishes(kit, monkeypatch)
    kit.settings["ledger"] = ow.FolderLedger(kit.folder / "another")
    Process(kit).open().begin()
    assert len(prepared(kit)) == 2
    kit.settings.clear()
    run_batch(kit, 0, FIRST)
    assert_holds(kit, FIRST, 0)
