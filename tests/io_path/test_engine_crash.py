"""The engine process is killed at every stage: its I/O process ends, and the store is whole."""

import pytest

from tests.io_path.engines import Engine
from tests.io_path.lab import CHUNKS, Lab, alive, damages, objects, until
from tests.io_path.stages import LOAD_STAGES, SAVE_STAGES

ENDS_S = 3.0


@pytest.fixture
def lab(threads_lab: Lab) -> Lab:
    return threads_lab


@pytest.mark.slow
@pytest.mark.parametrize("io", ["process", "threads"])
@pytest.mark.parametrize("stage", SAVE_STAGES)
def test_an_engine_killed_at_a_stage_of_its_save(lab: Lab, stage: str, io: str) -> None:
    check_save(lab, stage, io)


@pytest.mark.slow
@pytest.mark.parametrize("io", ["process"])
@pytest.mark.parametrize("stage", LOAD_STAGES)
def test_an_engine_killed_at_a_stage_of_its_load(lab: Lab, stage: str, io: str) -> None:
    check_load(lab, stage, io)


def test_an_engine_killed_while_its_store_puts_late(lab: Lab) -> None:
    check_save(lab, "late put", "process")


def test_an_engine_killed_while_its_store_reads_late(lab: Lab) -> None:
    check_load(lab, "late garbage", "process")


def check_save(lab: Lab, stage: str, io: str) -> None:
    lab.shut()
    with Engine(lab, io, stage) as engine:
        engine.do("begin save")
        until(lab.befallen)
        engine.kill()
        if io == "process":
            until(lambda: not alive(engine.io_pid), ENDS_S)  # though its store still hangs
    lab.open()
    assert damages(lab.world, lab.bare()) == []
    side = lab.side(lab.store(), filled=True)
    assert side.client.save(lab.world.pages, side.slots).ok
    assert objects(lab.bare()) == 6 * CHUNKS
    assert lab.bare().sweep() >= 0
    assert damages(lab.world, lab.bare()) == []


def check_load(lab: Lab, stage: str, io: str) -> None:
    lab.fill()
    lab.shut()
    with Engine(lab, io, stage) as engine:
        engine.do("begin load")
        until(lab.befallen)
        engine.kill()
        until(lambda: not alive(engine.io_pid), ENDS_S)
    lab.open()
    side = lab.side(lab.store())
    assert side.client.load(lab.world.pages, side.slots).pages == 6
    assert lab.world.holds(side, 6)


def test_an_engine_killed_while_its_io_process_opens_the_store(lab: Lab) -> None:
    lab.shut()
    with Engine(lab, "process", "open") as engine:
        pid = engine.io_pid
        until(lab.befallen)
        engine.kill()
        until(lambda: not alive(pid), ENDS_S)
