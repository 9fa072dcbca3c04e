"""The I/O process is killed or stopped at every stage: calls in flight fail, nothing else does."""

import os
import signal
import time
from concurrent.futures import CancelledError
from contextlib import ExitStack
from pathlib import Path

import pytest

import unikv.io_host
from tests.client.world import POISON
from tests.io_path.lab import (
    CHUNKS,
    PAGES,
    Lab,
    alive,
    arena_of,
    damages,
    io_pid,
    meter,
    objects,
    patient,
    reuse,
    settled,
    snapshot,
    start,
    unchanged,
    until,
    within,
)
from tests.io_path.stages import LOAD_STAGES, SAVE_STAGES, crashes, stopped_at
from unikv.testing_faults import Rule


@pytest.fixture
def lab(process_lab: Lab) -> Lab:
    return process_lab


@pytest.mark.parametrize("stage", crashes(LOAD_STAGES))
def test_a_load_whose_io_process_is_killed_fails_at_once_and_the_next_one_works(
    lab: Lab, stage: str
) -> None:
    lab.fill()
    with ExitStack() as held:
        side = lab.side(stopped_at(lab, stage, held), deadline_s=20)
        pages, slots = lab.world.pages, side.slots
        ticket = side.client.load_async(pages, slots)
        until(lab.befallen)
        pid = io_pid(side)
        lab.open()  # only for those to come
        lab.shut("other")
        os.kill(pid, signal.SIGKILL)
        with within(3):
            report = ticket.result(10)
        assert report.pages in ((0, 6) if stage == "hints" else (0,))
        assert lab.world.holds(side, report.pages)
        reuse(side, POISON)
        report = side.client.load(pages, slots)
        assert report.pages == 6
        assert lab.world.holds(side, 6)
        assert io_pid(side) != pid
        until(lambda: settled(side))
        assert meter(side, "unikv_io_process_restarts_total") == 1
        died = [event for event in lab.events if event.kind == "io_process_died"]
        assert [event.fields["exit_code"] for event in died] == [-signal.SIGKILL]


@pytest.mark.parametrize("stage", crashes(SAVE_STAGES))
def test_a_save_whose_io_process_is_killed_leaves_whole_objects_or_none(
    lab: Lab, stage: str
) -> None:
    with ExitStack() as held:
        side = lab.side(stopped_at(lab, stage, held), filled=True, deadline_s=20)
        before = snapshot(side)
        ticket = side.client.save_async(lab.world.pages, side.slots)
        until(lab.befallen)
        lab.open()
        os.kill(io_pid(side), signal.SIGKILL)
        with within(3):
            report = ticket.result(10)
        assert report.failed or stage in ("hints", "stat")
        assert unchanged(side, before)
        assert damages(lab.world, lab.bare()) == []
        assert side.client.save(lab.world.pages, side.slots).ok
        assert objects(lab.bare()) == 6 * CHUNKS
        assert damages(lab.world, lab.bare()) == []
        until(lambda: settled(side))


def test_an_io_process_that_crashes_in_mid_write_leaves_no_torn_object(lab: Lab) -> None:
    token = lab.gate("once")
    lab.shut("once")
    rule = Rule("crash", verbs=("put",), keys=PAGES, when="during", once_file=token)
    side = lab.side(lab.store(rule), filled=True)
    start(lab, side)
    report = side.client.save(lab.world.pages, side.slots)
    assert len(report.failed) == 6 * CHUNKS
    assert "died" in report.failed[0].reason
    assert objects(lab.bare()) == 3 * CHUNKS
    assert damages(lab.world, lab.bare()) == []
    again = side.client.save(lab.world.pages, side.slots)
    assert (again.stored, again.existed) == (3 * CHUNKS, 3 * CHUNKS)


def test_an_io_process_killed_while_idle_costs_nothing(lab: Lab) -> None:
    """However many of its threads have ever been at work."""
    lab.fill()
    rule = Rule("delay", verbs=("get",), keys=PAGES, seconds=30, while_file=lab.gate())
    side = lab.side(lab.store(rule), deadline_s=20)
    lab.shut()
    pages, slots = lab.world.pages, side.slots
    tickets = [side.client.load_async(pages[n : n + 1], slots[n : n + 1]) for n in range(4)]
    until(lambda: lab.befallen() == 4)
    lab.open()
    assert [ticket.result(5).pages for ticket in tickets] == [1, 1, 1, 1]
    pid = io_pid(side)
    os.kill(pid, signal.SIGKILL)
    until(lambda: not alive(pid))
    for _ in range(4):
        reuse(side, POISON)
        assert side.client.load(pages, slots).pages == 6
        assert lab.world.holds(side, 6)


def test_an_event_says_how_many_calls_failed_with_the_io_process(lab: Lab) -> None:
    lab.fill()
    rule = Rule("hang", verbs=("get",), keys=PAGES, while_file=lab.gate())
    side = lab.side(lab.store(rule), deadline_s=20)
    start(lab, side)
    lab.shut()
    pages, slots = lab.world.pages, side.slots
    tickets = [side.client.load_async(pages[n : n + 1], slots[n : n + 1]) for n in range(3)]
    until(lambda: lab.befallen() == 3)
    lab.open()
    os.kill(io_pid(side), signal.SIGKILL)
    assert [ticket.result(5).pages for ticket in tickets] == [0, 0, 0]
    assert side.client.load(pages, slots).pages == 6
    died = [event for event in lab.events if event.kind == "io_process_died"]
    assert [event.fields["tickets"] for event in died] == [3]


def test_a_restart_counts_however_long_the_process_lived(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unikv.io_host, "PAUSE_S", 0.0)
    lab.fill()
    side = lab.side(lab.store())
    assert side.client.load(lab.world.pages, side.slots).pages == 6
    pid = io_pid(side)
    os.kill(pid, signal.SIGKILL)
    until(lambda: not alive(pid))
    assert side.client.load(lab.world.pages, side.slots).pages == 6
    assert meter(side, "unikv_io_process_restarts_total") == 1
    started = [event for event in lab.events if event.kind == "io_process_started"]
    assert [event.fields["restarts"] for event in started] == [0, 1]


def test_a_store_that_kills_its_process_every_time_costs_misses_and_nothing_else(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never an error that is none of ours, and no storm of new processes."""
    monkeypatch.setattr(unikv.io_host, "PAUSE_S", 3.0)
    lab.fill()
    rule = Rule("crash", verbs=("get",), keys=PAGES, while_file=lab.gate())
    side = lab.side(lab.store(rule), deadline_s=5)
    start(lab, side)
    lab.shut()
    for _ in range(8):
        report = side.client.load(lab.world.pages, side.slots)
        assert report.pages == 0
        assert report.stopped
        side.client.match(lab.world.pages)
        assert side.client.prefetch(lab.world.pages).result(10).pages == 0
    assert lab.kinds()["io_process_started"] <= 3
    assert lab.world.holds(side, 0)
    lab.open()
    time.sleep(3)
    until(lambda: side.client.load(lab.world.pages, side.slots).pages == 6)
    assert lab.world.holds(side, 6)


@pytest.mark.parametrize("call", ["save", "load"])
def test_a_stopped_io_process_costs_one_deadline_then_fast_misses(lab: Lab, call: str) -> None:
    lab.fill()
    side = lab.side(lab.store(), filled=call == "save", deadline_s=0.3)
    start(lab, side)
    client, pages, slots = side.client, lab.world.pages, side.slots
    before = snapshot(side)
    pid = io_pid(side)
    os.kill(pid, signal.SIGSTOP)
    for n in range(4):
        with within(0.3 + 0.3 if n == 0 else 0.25):
            if call == "load":
                assert client.load(pages, slots).pages == 0
            else:
                client.save(pages, slots)
    assert unchanged(side, before)
    reused = reuse(side)
    os.kill(pid, signal.SIGCONT)
    until(lambda: settled(side))
    assert unchanged(side, reused)
    patient(side)
    reuse(side, POISON)
    until(lambda: client.load(pages, slots).pages == 6)
    assert lab.world.holds(side, 6)
    assert io_pid(side) == pid
    assert meter(side, "unikv_breaker_opens_total") >= 1
    assert meter(side, "unikv_breaker_state") == 0


def test_closing_a_client_whose_io_process_is_stopped_ends_it(lab: Lab) -> None:
    side = lab.side(lab.store())
    start(lab, side)
    pid = io_pid(side)
    os.kill(pid, signal.SIGSTOP)
    with within(4):
        side.client.close()
    assert not alive(pid)


def test_an_io_process_that_is_slow_to_start_costs_no_call_more_than_its_deadline(
    lab: Lab,
) -> None:
    """The store hangs while it is opened."""
    lab.fill()
    lab.shut()
    side = lab.side(lab.slow_to_open(), deadline_s=0.3)
    for _ in range(3):
        with within(0.3 + 0.3):
            report = side.client.load(lab.world.pages, side.slots)
        assert report.pages == 0
        assert report.stopped
    lab.open()
    patient(side)
    until(lambda: side.client.load(lab.world.pages, side.slots).pages == 6)


def test_a_client_can_be_closed_while_its_io_process_opens_the_store(lab: Lab) -> None:
    lab.fill()
    lab.shut()
    side = lab.side(lab.slow_to_open(), deadline_s=20)
    ticket = side.client.load_async(lab.world.pages, side.slots)
    until(lab.befallen)
    pid = io_pid(side)
    with within(4):
        side.client.close()
    assert not alive(pid)
    with pytest.raises(CancelledError):
        ticket.result(1)


def test_a_dead_process_that_nobody_needs_again_is_no_zombie_after_close(lab: Lab) -> None:
    side = lab.side(lab.store())
    start(lab, side)
    pid = io_pid(side)
    os.kill(pid, signal.SIGKILL)
    side.client.close()
    assert not Path(f"/proc/{pid}").exists()


def test_the_whole_arena_is_free_after_many_crashes(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unikv.io_host, "PAUSE_S", 0.0)
    lab.fill()
    rule = Rule("crash", verbs=("get",), keys=PAGES, nth=2)
    side = lab.side(lab.store(rule), deadline_s=5)
    got = [side.client.load(lab.world.pages, side.slots).pages for _ in range(6)]
    assert set(got) == {0, 6}
    until(lambda: settled(side))
    assert arena_of(side).take(arena_of(side).size, arena_of(side).size) is not None
