"""One I/O process for all engines of a host: who comes and goes hurts nobody else."""

import os
import signal
import socket
import threading
from functools import partial
from pathlib import Path

import pytest

from tests.client.world import POISON, Side
from tests.io_path.engines import Engine, serving
from tests.io_path.lab import (
    CHUNKS,
    PAGES,
    RANK,
    Lab,
    alive,
    damages,
    make_world,
    nothing_left,
    objects,
    patient,
    reuse,
    settled,
    start,
    unchanged,
    until,
    within,
)
from unikv.errors import SpecError
from unikv.testing_faults import Rule


@pytest.fixture
def lab(threads_lab: Lab) -> Lab:
    threads_lab.io = f"host:{path(threads_lab)}"
    return threads_lab


def path(lab: Lab) -> str:
    return f"{lab.root}/io.sock"


def only(lab: Lab) -> int:
    """Return the one process that serves."""
    [pid] = serving(path(lab))
    return pid


def test_two_clients_share_a_process_and_the_last_one_ends_it(lab: Lab) -> None:
    one = lab.side(lab.store(), filled=True)
    two = lab.side(lab.store())
    assert one.client.save(lab.world.pages, one.slots).stored == 6 * CHUNKS
    assert two.client.load(lab.world.pages, two.slots).pages == 6
    assert lab.world.holds(two, 6)
    pid = only(lab)
    one.client.close()
    reuse(two, POISON)
    assert two.client.load(lab.world.pages, two.slots).pages == 6
    assert only(lab) == pid
    two.client.close()
    until(lambda: not alive(pid), 3)
    three = lab.side(lab.store())  # where nobody listens any more
    assert three.client.load(lab.world.pages, three.slots).pages == 6
    assert only(lab) != pid


def test_one_engine_is_killed_and_the_other_goes_on(lab: Lab) -> None:
    rule_stage = "late put"
    lab.shut()
    with Engine(lab, lab.io, rule_stage) as engine:
        engine.do("begin save")
        until(lab.befallen)
        side = lab.side(lab.bare(), filled=True)
        start(lab, side)
        pid = only(lab)
        world = make_world(numerics="others")
        other = lab.side(lab.bare(), world=world, filled=True)
        engine.kill()  # its put still waits in the shared process
        assert other.client.save(world.pages, other.slots).ok
        assert side.client.save(lab.world.pages, side.slots).ok
        lab.open()
        reuse(other, POISON)
        assert other.client.load(world.pages, other.slots).pages == 6
        assert world.holds(other, 6)
        assert only(lab) == pid
    assert damages(lab.world, lab.bare()) == []
    side.client.close()
    other.client.close()
    until(lambda: not alive(pid), 3)


def test_the_last_engine_is_killed_and_the_process_ends(lab: Lab) -> None:
    with Engine(lab, lab.io) as engine:
        assert engine.do("save")["stored"] == 6 * CHUNKS
        pid = only(lab)
        engine.kill()
    until(lambda: not alive(pid), 3)


def loads(lab: Lab, side: Side) -> bool:
    return side.client.load(lab.world.pages, side.slots).pages == 6


def test_the_process_is_killed_and_both_clients_go_on_with_one_new_one(lab: Lab) -> None:
    lab.fill()
    rule = Rule("hang", verbs=("get",), keys=PAGES, while_file=lab.gate())
    one, two = lab.side(lab.store(rule), deadline_s=20), lab.side(lab.store(rule), deadline_s=20)
    for side in (one, two):
        start(lab, side)
    lab.shut()
    tickets = [side.client.load_async(lab.world.pages, side.slots) for side in (one, two)]
    until(lambda: lab.befallen() == 2)
    pid = only(lab)
    lab.open()
    os.kill(pid, signal.SIGKILL)
    for ticket in tickets:
        with within(3):
            assert ticket.result(5).pages == 0
    for side in (one, two):
        assert lab.world.holds(side, 0)
        # The kernel may close the sockets of idle workers a little later.
        until(partial(loads, lab, side))
        assert lab.world.holds(side, 6)
    assert only(lab) != pid


def test_one_engine_whose_store_hangs_does_not_hold_up_the_other(lab: Lab) -> None:
    lab.fill()
    rule = Rule("late", keys=PAGES, while_file=lab.gate())
    one = lab.side(lab.store(rule), deadline_s=0.3, io_threads=2)
    start(lab, one)
    two = lab.side(lab.store())
    start(lab, two)
    lab.shut()
    for _ in range(3):
        assert one.client.load(lab.world.pages, one.slots).pages == 0
    reused = reuse(one)
    with within(2):
        assert two.client.load(lab.world.pages, two.slots).pages == 6
    one.client.close()
    lab.open()
    assert unchanged(one, reused)
    reuse(two, POISON)
    assert two.client.load(lab.world.pages, two.slots).pages == 6
    assert lab.world.holds(two, 6)


def test_one_engine_whose_store_is_slow_to_open_does_not_hold_up_the_other(lab: Lab) -> None:
    lab.fill()
    two = lab.side(lab.store())
    start(lab, two)
    lab.shut()
    one = lab.side(lab.slow_to_open(), deadline_s=0.2)
    assert one.client.load(lab.world.pages, one.slots).pages == 0
    until(lab.befallen)
    with within(2):
        report = two.client.load(lab.world.pages, two.slots)
        newcomer = lab.side(lab.store(), deadline_s=2)
        assert newcomer.client.load(lab.world.pages, newcomer.slots).pages == 6
    assert report.pages == 6


def test_one_engine_that_cannot_open_its_store_does_not_hurt_the_other(lab: Lab) -> None:
    lab.fill()
    two = lab.side(lab.store())
    start(lab, two)
    pid = only(lab)
    one = lab.side(lab.unopenable(), deadline_s=5)
    for _ in range(4):
        report = one.client.load(lab.world.pages, one.slots)
        assert report.pages == 0
        assert "no such place" in str(report.stopped)
    assert two.client.load(lab.world.pages, two.slots).pages == 6
    assert only(lab) == pid


def test_strangers_at_the_socket_hurt_nobody(lab: Lab) -> None:
    """Same user, but no client: half a message, garbage, a hello without descriptors."""
    lab.fill()
    side = lab.side(lab.store(), deadline_s=3)
    start(lab, side)
    pid = only(lab)
    for data in (b"", b"\x05", b"\xff" * 64, b"\x02\0\0\0[]", b"\x10\0\0\0[[1,2,[]],[],10]"):
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.connect(path(lab))
            stranger.sendall(data)
            with within(1):
                assert side.client.load(lab.world.pages, side.slots).pages == 6
    assert only(lab) == pid


def test_clients_that_come_and_go_at_once_always_work(lab: Lab) -> None:
    """Whoever joins just as the last one leaves gets a process all the same."""
    lab.fill()
    wrong: list[object] = []

    def come_and_go() -> None:
        for _ in range(6):
            try:
                side = lab.world.side(lab.bare(), RANK, io=lab.io, staging_bytes=1 << 20)
                with side.client:
                    report = side.client.load(lab.world.pages, side.slots)
                    if report.pages != 6:
                        wrong.append(report)
            except Exception as error:  # noqa: BLE001 - told below
                wrong.append(error)

    threads = [threading.Thread(target=come_and_go) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    until(lambda: serving(path(lab)) == [], 3)


def test_a_socket_that_cannot_be_used_is_refused(lab: Lab) -> None:
    place = Path(path(lab))
    place.mkdir()
    with nothing_left(), pytest.raises(SpecError, match=r"want the path of a socket"):
        lab.side(lab.store())


def test_a_file_in_place_of_the_socket_is_not_removed(lab: Lab) -> None:
    place = Path(path(lab))
    place.write_text("somebody's notes")
    with pytest.raises(SpecError, match=r"want the path of a socket"):
        lab.side(lab.store())
    assert place.read_text() == "somebody's notes"


def test_a_folder_that_is_gone_costs_misses_not_errors(lab: Lab) -> None:
    lab.fill()
    folder = lab.root / "run"
    folder.mkdir()
    side = lab.side(lab.store(), io=f"host:{folder}/io.sock", deadline_s=3)
    start(lab, side)
    [pid] = serving(f"{folder}/io.sock")
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    os.kill(pid, signal.SIGKILL)
    until(lambda: not alive(pid))
    for _ in range(3):
        report = side.client.load(lab.world.pages, side.slots)
        assert report.pages == 0
        assert report.stopped
    folder.mkdir()
    patient(side)
    until(lambda: side.client.load(lab.world.pages, side.slots).pages == 6)
    until(lambda: settled(side))
    assert objects(lab.bare()) == 6 * CHUNKS
