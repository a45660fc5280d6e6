"""Files of the simulated world, and the code that keeps things in them: notes beside a checkpoint, ledgers."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError

from onceward.errors import CheckpointUnreachable, CommitInDoubt, LedgerUnreachable, LedgerUnreadable
from onceward.ids import AttemptId, BatchId, PipelineId, SourceRange
from onceward.ledger.folder import FolderLedger
from onceward.ledger.record import LedgerRecord
from onceward.spark.handed_over import HandedOver, Note
from simulation.alone import run_to_the_end, standing_in, world
from simulation.kernel.scheduler import Process
from simulation.world.files import FAULTS, Files, Tree, posix
from simulation.world.files.stand_ins import STAND_INS

PIPELINE = PipelineId("pipeline")
CHECKPOINT = "hdfs://host/checkpoint"
SEEDS = 150


def test_what_java_answers() -> None:
    with world(1) as sim:
        files = Files(sim)
        context = files.session_for(CHECKPOINT)
        at = context._jvm.org.apache.hadoop.fs.Path
        system = at("hdfs://host/a/b").getFileSystem(None)

        def story() -> None:
            assert not system.exists(at("/a"))
            with pytest.raises(Py4JJavaError) as missing:
                system.listStatus(at("/a"))
            assert missing.value.java_exception.getClass().getName() == "java.io.FileNotFoundException"
            assert system.createNewFile(at("hdfs://host/a/b"))
            assert not system.createNewFile(at("/a/b"))
            stream = system.create(at("/a/b"), True)
            stream.write(bytearray(b"text"))
            assert system.listStatus(at("/a"))[0].getLen() == 0  # not there before it is closed
            stream.close()
            [status] = system.listStatus(at("/a"))
            assert (status.getPath().getName(), status.getLen()) == ("b", 4)
            assert bytes(system.open(at("/a/b")).readAllBytes()) == b"text"
            rename = files.hadoop.FileContext.getFileContext(at("/"), None).rename
            with pytest.raises(Py4JJavaError) as there:
                rename(at("/a/b"), at("/a"), [])
            assert there.value.java_exception.getClass().getName().endswith("FileAlreadyExistsException")
            assert system.delete(at("/a"), True)
            assert not system.delete(at("/a"), True)

        run_to_the_end(sim, story)


def notes_of(seed: int, odds: dict[str, float]) -> tuple[list[Note], bool, list[Any]]:
    """A process notes batch after batch, and dies or not; what another one reads then, and whether the first ended."""
    with world(seed, odds) as sim, standing_in(STAND_INS):
        sim.world.files = files = Files(sim)
        ended: list[bool] = []
        found: list[Note] = []

        def batches() -> None:
            notes = HandedOver(files.session_for(CHECKPOINT), CHECKPOINT, PIPELINE)
            with suppress(CheckpointUnreachable):
                for batch in range(4):
                    notes.notes(batch - 1, batch)
                    notes.give(batch, "run")
                    if batch == 2:
                        notes.failed(Note(2, "run", "of rows", lacking=True))
                ended.append(True)

        def reader() -> None:
            driver = sim.process("driver")
            sim.spawn(driver, batches)
            sim.sleep(1_000.0)
            sim.lots.calm = True
            found.extend(HandedOver(files.session_for(CHECKPOINT), CHECKPOINT, PIPELINE).notes(-1, 9))

        run_to_the_end(sim, reader)
        return found, bool(ended), sim.lots.fired


def test_notes_are_read_by_the_next_process() -> None:
    found, ended, _ = notes_of(1, {})
    assert ended
    assert found == [Note(2, "run", "of rows", lacking=True), Note(3, "run")]


def test_whatever_befalls_a_note_it_is_never_taken_for_less() -> None:
    """A batch that was handed over has its note while it may be asked for, and what was refused is never forgotten."""
    ends, died = 0, 0
    for seed in range(SEEDS):
        found, ended, fired = notes_of(seed, dict.fromkeys(FAULTS, 15.0))
        ends += ended
        died += not ended and bool(fired)
        if ended:
            assert [(note.batch_id, note.lacking) for note in found] == [(2, True), (3, False)], seed
        assert all(note.lacking or note.batch_id != 2 or not note.error for note in found), seed
    assert ends > SEEDS / 10
    assert died > SEEDS / 10


def test_a_note_that_cannot_be_read_for_a_moment_is_not_lacking_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    with world(1) as sim, standing_in(STAND_INS):
        sim.world.files = files = Files(sim)
        read = Tree.read

        def story() -> None:
            notes = HandedOver(files.session_for(), CHECKPOINT, PIPELINE)
            notes.give(0, "run")
            notes.failed(Note(0, "run", "the first try"))
            monkeypatch.setattr(Tree, "read", _fails)
            with pytest.raises(CheckpointUnreachable, match="beside the query's checkpoint"):
                notes.failed(Note(0, "run", "the second try"))
            with pytest.raises(CheckpointUnreachable, match="start the query again"):
                notes.notes(-1, 1)  # not: rows of batch 0 are missing
            monkeypatch.setattr(Tree, "read", read)
            assert notes.notes(-1, 0) == [Note(0, "run", "the first try")]
            notes.failed(Note(0, "run", "the second try"))
            assert notes.notes(-1, 0) == [Note(0, "run", "the second try")]

        run_to_the_end(sim, story)


@pytest.mark.parametrize("lacking", [False, True])
def test_a_note_that_was_cut_short_still_tells_whether_rows_are_lacking(lacking: bool) -> None:
    """Else a copy that is fenced, and cannot write down why, would stop its heirs for good."""
    with world(1) as sim, standing_in(STAND_INS):
        sim.world.files = files = Files(sim)

        def story() -> None:
            notes = HandedOver(files.session_for(), CHECKPOINT, PIPELINE)
            notes.failed(Note(0, "run", "why", lacking=lacking))
            path = f"/checkpoint/onceward/{PIPELINE}/0-run"
            whole = files.hdfs.read(path)
            for length in range(1, len(whole)):
                files.hdfs.at(path).data = whole[:length]
                assert notes.notes(-1, 9) == [Note(0, "run", "its note cannot be read", lacking=lacking)], length

        run_to_the_end(sim, story)


def test_what_is_lacking_is_not_written_over() -> None:
    """A file is emptied before it is written: should that fail, it would say that nothing is lacking."""
    with world(1) as sim, standing_in(STAND_INS):
        sim.world.files = files = Files(sim)

        def story() -> None:
            notes = HandedOver(files.session_for(), CHECKPOINT, PIPELINE)
            notes.failed(Note(0, "run", "of rows", lacking=True))
            whole = files.hdfs.at(f"/checkpoint/onceward/{PIPELINE}/0-run")
            notes.failed(Note(0, "run", "later"))
            assert files.hdfs.at(f"/checkpoint/onceward/{PIPELINE}/0-run") is whole
            assert notes.notes(-1, 0) == [Note(0, "run", "of rows", lacking=True)]
            whole.data = whole.data[:5]
            notes.failed(Note(0, "run", "later"))
            assert notes.notes(-1, 0) == [Note(0, "run", "later", lacking=True)]

        run_to_the_end(sim, story)


def _fails(tree: Tree, path: str) -> bytes:
    raise OSError("for a moment")


def test_the_same_seed_is_the_same_story() -> None:
    odds = dict.fromkeys(FAULTS, 10.0)
    assert [notes_of(seed, odds) for seed in range(20)] == [notes_of(seed, odds) for seed in range(20)]


LEDGER_FAULTS = sorted(FAULTS)


def chain_of(seed: int, kinds: list[str], *, gap: float = 25.0) -> tuple[list[str], set[str], int]:
    """Two copies append to one chain, while their disk does what it does. Violations, what happened, and how far the
    chain came."""
    with world(seed, dict.fromkeys(kinds, gap)) as sim, standing_in(STAND_INS):
        sim.world.files = files = Files(sim)
        said: dict[int, tuple[int, int]] = {}
        wrong: list[str] = []

        def decided(record: LedgerRecord) -> None:
            if said.setdefault(record.sequence, record.attempt) != record.attempt:
                wrong.append(f"{record.sequence} was decided twice")

        def copy() -> None:
            chain = FolderLedger("/ledger").chain(PIPELINE)
            while len(said) < 12:
                with suppress(LedgerUnreachable, LedgerUnreadable):
                    newest = chain.take()
                    while len(said) < 12:
                        record = record_behind(newest, chain.begin(newest))
                        sim.sleep(0.2 * sim.lots.time.random())
                        try:
                            chain.append(record)
                        except CommitInDoubt:
                            newest = chain.settle()
                            if newest == record:
                                decided(record)
                            continue
                        decided(record)
                        newest = record
                sim.sleep(0.5)

        def story() -> None:
            copies: list[Process] = []
            for _ in range(60):
                if len(said) >= 12:
                    break
                if sum(process.alive and bool(process.tasks) for process in copies) < 2:
                    copies.append(sim.process(f"copy-{len(copies)}"))
                    sim.spawn(copies[-1], copy)
                sim.sleep(3.0)
            for process in copies:
                sim.kill(process)
            sim.lots.calm = True
            try:
                kept = list(FolderLedger("/ledger").chain(PIPELINE).history(1_000))[::-1]
            except LedgerUnreadable as error:
                wrong.append(error.message)
                return
            for number, record in enumerate(kept):
                if record.sequence != number:
                    wrong.append(f"{record.sequence} is at {number}")
            there = {record.sequence: record.attempt for record in kept}
            wrong.extend(f"{number} was decided and is gone" for number in said if there.get(number) != said[number])

        run_to_the_end(sim, story)
        assert files.disk.at("/ledger") is not None
        return wrong, {kind for kind, _ in sim.lots.fired}, len(said)


def record_behind(newest: LedgerRecord | None, attempt: AttemptId) -> LedgerRecord:
    number = 0 if newest is None else newest.sequence + 1
    sources = (SourceRange(number, number + 1),)
    return LedgerRecord(PIPELINE, number, BatchId("query", number), sources, attempt, {}, 0)


def test_a_ledger_in_a_folder_is_one_chain_whatever_befalls_its_disk() -> None:
    came, met = 0, set()
    for seed in range(SEEDS):
        kinds = [kind for number, kind in enumerate(LEDGER_FAULTS) if (seed >> number % 3 ^ number) & 1]
        wrong, fired, far = chain_of(seed, kinds)
        assert not wrong, (seed, wrong)
        came += far
        met |= fired
    assert met == set(LEDGER_FAULTS)
    assert came > 4 * SEEDS


def _rename_instead(source: Any, target: Any) -> None:
    """As Spark's ``createAtomic`` does it: it looks, and renames then."""
    if posix.disk().look(str(target)) is not None:
        raise FileExistsError
    posix.disk().rename(str(source), str(target))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("onceward.ledger.folder.os.link", _rename_instead),
        ("onceward.ledger.folder.sync", lambda path: None),
        ("onceward.ledger.folder.os.fsync", lambda descriptor: None),
        ("onceward.ledger.folder.FolderChain._still_ours", lambda chain: chain._listed()[0]),
    ],
)
def test_what_a_ledger_in_a_folder_rests_on_is_missed_when_it_is_gone(
    name: str, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, _, attribute = name.rpartition(".")
    if owner.endswith(".os"):
        monkeypatch.setattr(posix.OS, attribute, value)
    else:
        monkeypatch.setattr(name, value)
    kinds = ["fs:power failure", "fs:pause", "fs:slow"]
    assert any(chain_of(seed, kinds)[0] for seed in range(SEEDS))
