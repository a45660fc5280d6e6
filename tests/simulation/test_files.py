"""Files of the simulated world, and the code that keeps things in them: notes beside a checkpoint, ledgers."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError

from onceward.ids import PipelineId
from onceward.spark.handed_over import HandedOver, Note
from simulation.alone import run_to_the_end, standing_in, world
from simulation.world.files import FAULTS, Files
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
            with suppress(Py4JJavaError):
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


def test_the_same_seed_is_the_same_story() -> None:
    odds = dict.fromkeys(FAULTS, 10.0)
    assert [notes_of(seed, odds) for seed in range(20)] == [notes_of(seed, odds) for seed in range(20)]
