"""Files of the simulated world, and the code that keeps things in them: files beside a checkpoint,
ledgers.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError

from onceward.engine.ledger.record import LedgerRecord
from onceward.errors import (
    CheckpointUnreachable,
    CommitInDoubt,
    LedgerUnreachable,
    LedgerUnreadable,
)
from onceward.files.ledger import FolderLedger
from onceward.ids import AttemptId, BatchId, PipelineId, SourceRange
from onceward.spark.batch.checkpoint_files import CheckpointFiles
from simulation.alone import run_to_the_end, standing_in, world
from simulation.kernel.scheduler import Process
from simulation.world.files import FAULTS, Files, Tree, posix
from simulation.world.files.stand_ins import STAND_INS
from support.errors import raises

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
            assert (
                missing.value.java_exception.getClass().getName()
                == "java.io.FileNotFoundException"
            )
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
            assert (
                there.value.java_exception.getClass()
                .getName()
                .endswith("FileAlreadyExistsException")
            )
            assert system.delete(at("/a"), True)
            assert not system.delete(at("/a"), True)

        run_to_the_end(sim, story)


def written(seed: int, odds: dict[str, float]) -> tuple[dict[str, str], bool, list[Any]]:
    """A process writes and removes files, and dies or not; what another one reads then, and
    whether the first ended.
    """
    with world(seed, odds) as sim, standing_in(STAND_INS):
        sim.world.files = files = Files(sim)
        ended: list[bool] = []
        found: dict[str, str] = {}

        def calls() -> None:
            beside = CheckpointFiles(
                files.session_for(CHECKPOINT), f"{CHECKPOINT}/onceward/{PIPELINE}"
            )
            with suppress(CheckpointUnreachable):
                assert set(beside.read()) <= set()
                beside.write("1.failed", "lost")
                beside.write("2.refused", "of rows")
                beside.remove("1.failed")
                beside.remove("7.failed")
                beside.write("2.refused", "of rows again")
                ended.append(True)

        def reader() -> None:
            driver = sim.process("driver")
            sim.spawn(driver, calls)
            sim.sleep(1_000.0)
            sim.lots.calm = True
            found.update(
                CheckpointFiles(
                    files.session_for(CHECKPOINT), f"{CHECKPOINT}/onceward/{PIPELINE}"
                ).read()
            )

        run_to_the_end(sim, reader)
        return found, bool(ended), sim.lots.fired


def test_what_lies_beside_the_checkpoint_is_read_by_the_next_process() -> None:
    found, ended, _ = written(1, {})
    assert ended
    assert found == {"2.refused": "of rows again"}


def test_whatever_befalls_a_file_that_was_written_its_name_is_there() -> None:
    ends, died = 0, 0
    for seed in range(SEEDS):
        found, ended, fired = written(seed, dict.fromkeys(FAULTS, 15.0))
        ends += ended
        died += not ended and bool(fired)
        if ended:
            assert found == {"2.refused": "of rows again"}, seed
        assert set(found) <= {"1.failed", "2.refused"}, seed
    assert ends > SEEDS / 10
    assert died > SEEDS / 10


def test_files_that_cannot_be_read_are_not_taken_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    with world(1) as sim, standing_in(STAND_INS):
        sim.world.files = files = Files(sim)
        read = Tree.read

        def story() -> None:
            beside = CheckpointFiles(files.session_for(), f"{CHECKPOINT}/onceward/{PIPELINE}")
            assert beside.read() == {}
            beside.write("0.failed", "the first try")
            monkeypatch.setattr(Tree, "read", _fails)
            with raises(CheckpointUnreachable):
                beside.read()
            monkeypatch.setattr(Tree, "read", read)
            assert beside.read() == {"0.failed": "the first try"}

        run_to_the_end(sim, story)


def _fails(tree: Tree, path: str) -> bytes:
    raise OSError("for a moment")


def test_the_same_seed_is_the_same_story() -> None:
    odds = dict.fromkeys(FAULTS, 10.0)
    assert [written(seed, odds) for seed in range(20)] == [
        written(seed, odds) for seed in range(20)
    ]


LEDGER_FAULTS = sorted(FAULTS)


def chain_of(seed: int, kinds: list[str], *, gap: float = 25.0) -> tuple[list[str], set[str], int]:
    """Two copies append to one chain, while their disk does what it does. Violations, what
    happened, and how far the chain came.
    """
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
            wrong.extend(
                f"{number} was decided and is gone"
                for number in said
                if there.get(number) != said[number]
            )

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
        kinds = [
            kind for number, kind in enumerate(LEDGER_FAULTS) if (seed >> number % 3 ^ number) & 1
        ]
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
        ("onceward.files.ledger.os.link", _rename_instead),
        ("onceward.files.ledger.sync", lambda path: None),
        ("onceward.files.ledger.os.fsync", lambda descriptor: None),
        ("onceward.files.ledger.FolderChain._still_ours", lambda chain: chain._listed()[0]),
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
