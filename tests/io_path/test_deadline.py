"""A deadline at every stage: the call ends there, and what the store does later hurts nobody."""

import threading
from contextlib import ExitStack

import pytest

from tests.client.world import POISON
from tests.io_path.lab import (
    CHUNKS,
    PAGES,
    Lab,
    arena_of,
    damages,
    make_world,
    meter,
    objects,
    page_bytes,
    patient,
    reaped,
    reuse,
    settled,
    snapshot,
    start,
    unchanged,
    until,
    within,
)
from tests.io_path.stages import LOAD_STAGES, SAVE_STAGES, cases, stopped_at
from unikv.testing_faults import Rule

DEADLINE_S = 0.3
SLACK_S = 0.3  # two cores are shared by many


@pytest.mark.parametrize(
    ("lab", "stage", "how"), cases(LOAD_STAGES, ["async", "load", "stream"]), indirect=["lab"]
)
def test_a_load_ends_at_its_deadline_and_late_bytes_go_nowhere(
    lab: Lab, stage: str, how: str
) -> None:
    lab.fill()
    with ExitStack() as held:
        side = lab.side(stopped_at(lab, stage, held), deadline_s=DEADLINE_S)
        lab.open()
        start(lab, side)
        if stage == "hints":
            side.client._transfers._siblings[0]._looked = None
        lab.shut()
        pages, slots = lab.world.pages, side.slots
        with within(DEADLINE_S + SLACK_S):
            if how == "load":
                report = side.client.load(pages, slots)
            else:
                ticket = side.client.load_async(pages, slots, stream=how == "stream")
                report = ticket.result(5)
        assert report.pages == 0
        assert report.stopped
        assert lab.world.holds(side, 0)
        if stage != "hints":
            assert arena_of(side).quarantined >= 6 * page_bytes(side)
            assert meter(side, "unikv_io_orders_total", outcome="timed_out") >= 1
        reused = reuse(side)
        lab.open()
        until(lambda: settled(side))
        assert unchanged(side, reused)
        reuse(side, POISON)
        patient(side)
        until(lambda: side.client.load(pages, slots).pages == 6)  # once a look is answered
        assert lab.world.holds(side, 6)


@pytest.mark.parametrize(
    ("lab", "stage", "how"), cases(SAVE_STAGES, ["async", "save"]), indirect=["lab"]
)
def test_a_save_ends_at_its_deadline_and_stores_whole_pages_or_none(
    lab: Lab, stage: str, how: str
) -> None:
    with ExitStack() as held:
        store = stopped_at(lab, stage, held)
        side = lab.side(store, filled=True, deadline_s=DEADLINE_S)
        lab.open()
        start(lab, side)
        lab.shut()
        kept = snapshot(side)
        with within(DEADLINE_S + SLACK_S):
            if how == "save":
                report = side.client.save(lab.world.pages, side.slots)
            else:
                report = side.client.save_async(lab.world.pages, side.slots).result(5)
        assert len(report.failed) == 6 * CHUNKS
        assert report.stored == 0
        reuse(side)
        lab.open()
        until(lambda: settled(side))
        assert damages(lab.world, lab.bare()) == []
        for now, then in zip((t for part in side.pools for t in part), kept, strict=True):
            now.copy_(then)
        patient(side)
        until(lambda: side.client.save(lab.world.pages, side.slots).ok)  # once a look is answered
        assert objects(lab.bare()) == 6 * CHUNKS
        assert damages(lab.world, lab.bare()) == []


@pytest.mark.parametrize("how", ["save", "async"])
def test_staging_that_a_late_put_still_reads_is_not_packed_anew(lab: Lab, how: str) -> None:
    """A save of many windows: the first one's put runs on beyond the deadline."""
    world = make_world(pages=24)
    rule = Rule("delay", verbs=("put",), keys=PAGES, count=1, seconds=30, while_file=lab.gate())
    side = lab.side(lab.store(rule), world=world, filled=True, deadline_s=0.4, staging_bytes=70_000)
    assert arena_of(side).size // page_bytes(side) < 12
    start(lab, side)
    lab.shut()
    if how == "save":
        report = side.client.save(world.pages, side.slots)
    else:
        report = side.client.save_async(world.pages, side.slots).result(5)
    assert report.failed
    lab.open()
    until(lambda: settled(side))
    assert damages(world, lab.bare()) == []


def test_what_is_quarantined_is_not_given_to_anybody_else(lab: Lab) -> None:
    """Other loads go on through what is left, while a late write waits for its moment."""
    lab.fill()
    others = make_world(6, numerics="others")
    lab.fill(others)
    page = lab.world.pages[0]
    digest = lab.world.namespace.digest
    late = Rule("late", keys=f"{page}_{digest}*", while_file=lab.gate())
    store = lab.store(late)
    side = lab.side(store, deadline_s=DEADLINE_S, staging_bytes=160_000)
    start(lab, side)
    lab.shut()
    report = side.client.load(lab.world.pages, side.slots)
    assert report.pages == 0
    arena = arena_of(side)
    quarantined = arena.quarantined
    assert quarantined > 0
    taken = []
    while (slot := arena.take(1, 4096)) is not None:
        taken.append(slot)
    assert sum(slot.size for slot in taken) == arena.size - quarantined
    for slot in taken:
        slot.cut(0, 1, slot.size).tensor.fill_(0x5A)
    lab.open()
    until(lambda: reaped(side) and arena.quarantined == 0)
    assert all((slot.cut(0, 1, slot.size).tensor == 0x5A).all() for slot in taken)
    for slot in taken:
        slot.release()
    assert settled(side)
    assert lab.world.holds(side, 0)


def test_many_calls_at_their_deadlines_leave_nothing_stuck(lab: Lab) -> None:
    lab.fill()
    rule = Rule("late", keys=PAGES, while_file=lab.gate())
    side = lab.side(lab.store(rule), deadline_s=DEADLINE_S, io_threads=3)
    start(lab, side)
    lab.shut()
    pages = lab.world.pages
    threads = [
        threading.Thread(target=side.client.load, args=(pages[n : n + 1], side.slots[n : n + 1]))
        for n in range(6)
    ]
    with within(DEADLINE_S + SLACK_S):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    with within(0.2):
        assert side.client.load(pages, side.slots).pages == 0  # at once: it is known to be dead
    assert lab.world.holds(side, 0)
    lab.open()
    until(lambda: settled(side))
    patient(side)
    until(lambda: side.client.load(pages, side.slots).pages == 6)
    assert lab.world.holds(side, 6)
