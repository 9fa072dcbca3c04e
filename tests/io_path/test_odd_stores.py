"""Stores that raise or answer what no store should: a call fails, and nothing is stuck after it."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from tests.client.world import POISON
from tests.io_path.lab import (
    CHUNKS,
    Lab,
    alive,
    emptied,
    io_pid,
    meter,
    patient,
    reuse,
    start,
    until,
    within,
)
from tests.io_path.odd import CODES, ODD, Odd
from unikv import open_store
from unikv.errors import SpecError
from unikv.testing_faults import Rule

CASES = [
    *(("threads", how, call) for how in ODD for call in ("load", "save")),
    *(
        ("threads", how, call)
        for how in ("Panic", "too few", "texts")
        for call in ("match", "prefetch")
    ),
    *(pytest.param("process", how, "load", marks=pytest.mark.slow) for how in ODD),
    ("process", "foreign numbers", "save"),
    ("process", "Panic", "save"),
]


@pytest.mark.parametrize(("lab", "how", "call"), CASES, indirect=["lab"])
def test_an_odd_store_fails_the_call_at_once_and_nothing_is_stuck(
    lab: Lab, how: str, call: str
) -> None:
    lab.fill()
    side = lab.side(Odd.wrap(lab, how), filled=call == "save", deadline_s=1.5)
    start(lab, side)
    pages, slots = lab.world.pages, side.slots
    lab.shut()
    with within(1):
        if call == "load":
            report: Any = side.client.load(pages, slots)
            assert report.pages in (0, 6)
        elif call == "save":
            report = side.client.save(pages, slots)
        elif call == "match":
            assert side.client.match(pages).pages in (0, 6)
        else:
            assert side.client.prefetch(pages).result(2).pages in (0, 6)
    if call == "load":
        assert lab.world.holds(side, report.pages)
    lab.open()
    until(lambda: emptied(side))
    assert side.client._transfers.guard.crew.stuck == 0
    if call != "save":
        reuse(side, POISON)
    until(lambda: side.client.load(pages, slots).pages == 6, 7)
    assert lab.world.holds(side, 6)


@pytest.mark.parametrize("how", CODES)
def test_a_code_that_is_no_outcome_counts_as_nothing_stored(threads_lab: Lab, how: str) -> None:
    lab = threads_lab
    side = lab.side(Odd.wrap(lab, how), filled=True, deadline_s=5)
    lab.shut()
    report = side.client.save(lab.world.pages, side.slots)
    assert (report.stored, report.existed, report.ok) == (0, 0, False)
    assert "no outcomes" in report.failed[0].reason
    lab.open()
    assert side.client.save(lab.world.pages, side.slots).ok


def test_an_odd_error_is_told_in_the_report(lab: Lab) -> None:
    lab.fill()
    side = lab.side(Odd.wrap(lab, "RuntimeError"), deadline_s=5)
    start(lab, side)
    lab.shut()
    report = side.client.load(lab.world.pages, side.slots)
    assert "RuntimeError" in str(report.stopped)
    assert "out of cheese" in str(report.stopped)
    lab.open()


@pytest.mark.parametrize("io", ["process", "host"])
def test_a_store_that_no_process_can_open_is_refused_when_the_client_is_made(
    threads_lab: Lab, io: str
) -> None:
    lab = threads_lab
    io = f"host:{lab.root}/io.sock" if io == "host" else io
    with pytest.raises(SpecError, match=r"want io='threads', or a store that open_store"):
        lab.side(open_store("memory://"), io=io)


@pytest.mark.parametrize(
    "io", ["", "thread", "host:", "host:relative/x.sock", "host:/a\nb", 5, None]
)
def test_an_io_that_is_none_is_refused(threads_lab: Lab, io: Any) -> None:
    with pytest.raises(SpecError, match=r"io=.*want 'threads', 'process'"):
        threads_lab.side(threads_lab.store(), io=io)


@pytest.mark.parametrize("call", ["load", "save", "match", "prefetch"])
def test_an_io_process_that_cannot_open_its_store_says_why(process_lab: Lab, call: str) -> None:
    lab = process_lab
    side = lab.side(lab.unopenable(), filled=True, deadline_s=10)
    pages, slots = lab.world.pages, side.slots
    for _ in range(5):  # also once it is no longer tried again at every call
        with within(5):
            if call == "load":
                assert "no such place" in str(side.client.load(pages, slots).stopped)
            elif call == "save":
                assert "no such place" in side.client.save(pages, slots).failed[0].reason
            elif call == "match":
                assert side.client.match(pages).pages == 0
            else:
                report = side.client.prefetch(pages).result(10)
                assert report.deferred
                assert "no such place" in str(report.stopped)
    assert lab.world.holds(side, 6)
    assert lab.kinds()["io_process_started"] <= 3


def test_a_store_whose_secret_is_in_its_error_does_not_tell_it_in_events(process_lab: Lab) -> None:
    lab = process_lab
    side = lab.side(lab.unopenable(), filled=True, deadline_s=10)
    for _ in range(4):
        side.client.load(lab.world.pages, side.slots)
        side.client.save(lab.world.pages, side.slots)
    assert "pa55word" not in "".join(event.line() for event in lab.events)


def test_a_callback_that_raises_hurts_nobody(lab: Lab) -> None:
    def broken(event: object) -> None:
        raise RuntimeError(f"nobody wants {event}")

    lab.fill()
    side = lab.side(lab.store(), on_event=broken, deadline_s=0.5)
    start(lab, side)
    arena = side.client._transfers.guard.arena
    slot = arena.take(arena.size, arena.size)
    assert slot is not None
    assert side.client.load(lab.world.pages, side.slots).pages == 0  # which tells of the arena
    slot.release()
    patient(side)
    assert side.client.load(lab.world.pages, side.slots).pages == 6
    assert meter(side, "unikv_event_callback_failures_total") >= 1


def test_a_store_that_exits_the_process_costs_a_restart(process_lab: Lab) -> None:
    lab = process_lab
    lab.fill()
    token = lab.gate("once")
    lab.shut("once")
    side = lab.side(lab.store(Rule("crash", verbs=("stat",), how="exit", once_file=token)))
    pid = io_pid(side)
    side.client.match(lab.world.pages)
    until(lambda: not alive(pid))
    assert side.client.load(lab.world.pages, side.slots).pages == 6
    assert lab.world.holds(side, 6)


def test_cancellation_of_a_task_inside_a_store_is_an_error_of_the_store(threads_lab: Lab) -> None:
    """Stores on asyncio raise it, and it is no `Exception`."""
    lab = threads_lab
    lab.fill()
    raised: list[Sequence[object]] = []
    store: Any = lab.store()
    get = store.get

    def cancelled(spans: Sequence[object]) -> Any:
        if not raised:
            raised.append(spans)
            raise asyncio.CancelledError("the loop is closing")
        return get(spans)

    store.get = cancelled
    side = lab.side(store, siblings=False, deadline_s=5)
    with within(2):
        assert side.client.load(lab.world.pages, side.slots).pages == 0
    assert side.client.load(lab.world.pages, side.slots).pages == 6
    assert side.client.save(lab.world.pages, side.slots).existed == 6 * CHUNKS
