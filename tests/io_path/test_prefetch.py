"""Prefetch: what it brings, what it holds, and what is left of one that was given up."""

import time
from typing import Any

import pytest

from tests.client.world import POISON
from tests.io_path.lab import (
    PAGES,
    Lab,
    arena_of,
    make_world,
    meter,
    page_bytes,
    reaped,
    reuse,
    settled,
    start,
    until,
    within,
)
from unikv import page_hashes
from unikv.testing_faults import Rule


def test_a_later_load_takes_over_what_was_prefetched(lab: Lab) -> None:
    lab.fill()
    side = lab.side(lab.store())
    report = side.client.prefetch(lab.world.pages).result(20)
    assert (report.pages, report.wanted, report.deferred, report.stopped) == (6, 6, False, None)
    assert lab.world.holds(side, 0)
    lab.bare().delete([entry.key for entry in lab.bare().list()])  # the load needs no store
    loaded = side.client.load(lab.world.pages, side.slots)
    assert (loaded.pages, loaded.prefetched, loaded.requests) == (6, 6, 0)
    assert lab.world.holds(side, 6)
    assert settled(side)
    reuse(side, POISON)
    assert side.client.load(lab.world.pages, side.slots).pages == 0  # it was handed over, not kept


def test_what_is_prefetched_in_part_is_loaded_whole(lab: Lab) -> None:
    lab.fill()
    side = lab.side(lab.store())
    pages = lab.world.pages
    for some in (pages[1:2], pages[3:5]):
        assert side.client.prefetch(some).result(20).pages == len(some)
    loaded = side.client.load(pages, side.slots)
    assert (loaded.pages, loaded.prefetched) == (6, 3)
    assert lab.world.holds(side, 6)
    assert settled(side)


def test_damaged_bytes_are_not_prefetched(lab: Lab) -> None:
    lab.fill()
    rule = Rule("flip", verbs=("get",), keys=f"{lab.world.pages[2]}*")
    side = lab.side(lab.store(rule))
    report = side.client.prefetch(lab.world.pages).result(20)
    assert report.stopped
    assert report.pages <= 2
    loaded = side.client.load(lab.world.pages, side.slots)
    assert loaded.pages == 2
    assert lab.world.holds(side, 2)
    assert settled(side)


@pytest.mark.parametrize("stage", ["queued", "querying", "reading", "done"])
def test_B75_prefetches_cancelled_at_a_stage_give_back_all_they_held(
    threads_lab: Lab, stage: str
) -> None:
    """1,000 in all: the budget is as at the start, and the next one is admitted."""
    lab = threads_lab
    lab.fill()
    verb: Any = "stat" if stage in ("queued", "querying") else "get"
    rule = Rule("delay", verbs=(verb,), keys=PAGES, seconds=30, while_file=lab.gate())
    side = lab.side(lab.store(rule), deadline_s=20)
    start(lab, side)
    arena = arena_of(side)
    if stage != "done":
        lab.shut()
    client, pages = side.client, lab.world.pages
    guard = client._transfers.guard
    for _ in range(25):
        if stage != "done":
            lab.shut()
        before = lab.befallen()
        tickets = [client.prefetch(pages) for _ in range(10)]
        if stage == "done":
            for ticket in tickets:
                assert ticket.result(20).pages == 6
        elif stage != "queued":
            until(lambda: lab.befallen() > before)  # noqa: B023 - called at once
        for ticket in tickets:
            ticket.cancel()
        lab.open()
        until(lambda: not client._movers._shop.jobs)
        until(lambda: reaped(side))
    if stage != "done":
        until(lambda: settled(side))
        assert len(client._transfers.larder) == 0
    # what is held for a load gives way to whoever wants room: all of the arena can be had
    slot = guard.take(arena.size, arena.size, time.monotonic() + 1, _gate())
    assert slot is not None
    slot.release()
    report = client.prefetch(pages).result(20)
    assert (report.pages, report.deferred) == (6, False)
    assert client.load(pages, side.slots).prefetched == 6
    assert lab.world.holds(side, 6)
    assert settled(side)


def _gate() -> Any:
    from unikv.gate import Gate

    return Gate()


def test_B88_a_prefetch_without_room_says_deferred_and_is_served_later(lab: Lab) -> None:
    """Four requests at once, and room for the pages of two."""
    world = make_world(8)
    lab.fill(world)
    probe = lab.side(lab.bare(), world=world, io="threads")
    size = 4 * -(-page_bytes(probe) * 2 // 4096) * 4096 // 2 + 4096
    rule = Rule("delay", verbs=("get",), keys=PAGES, seconds=30, while_file=lab.gate())
    side = lab.side(lab.store(rule), world=world, deadline_s=20, staging_bytes=size)
    start(lab, side)
    lab.shut()
    parts = [world.pages[n : n + 2] for n in (0, 2, 4, 6)]
    tickets = [side.client.prefetch(part) for part in parts]
    until(lambda: lab.befallen() == 2 and sum(ticket.done() for ticket in tickets) == 2)
    lab.open()
    reports = [ticket.result(20) for ticket in tickets]
    assert all(report.wanted == 2 for report in reports)  # never a miss
    assert sorted((report.pages, report.deferred) for report in reports) == [
        (0, True),
        (0, True),
        (2, False),
        (2, False),
    ]
    for n, part in zip((0, 2, 4, 6), parts, strict=True):  # who asks again is served
        if reports[n // 2].pages:
            assert side.client.load(part, side.slots[n : n + 2]).prefetched == 2
    for part, report in zip(parts, reports, strict=True):
        if report.deferred:
            assert side.client.prefetch(part).result(20).pages == 2


@pytest.mark.parametrize("trouble", ["busy", "deadline", "breaker"])
def test_B88_a_prefetch_that_got_no_answer_is_no_miss(lab: Lab, trouble: str) -> None:
    lab.fill()
    rule = Rule("hang", verbs=("stat", "get"), while_file=lab.gate())
    side = lab.side(lab.store(rule), io_threads=1 if trouble == "busy" else 8, deadline_s=0.3)
    start(lab, side)
    lab.shut()
    if trouble == "breaker":
        side.client.match(lab.world.pages)
    elif trouble == "busy":
        held = side.client.load_async(lab.world.pages, side.slots)
        until(lab.befallen)
    report = side.client.prefetch(lab.world.pages).result(10)
    assert report.pages == 0
    assert report.deferred
    assert report.stopped
    if trouble == "busy":
        assert held.result(5).pages == 0


def test_B88_too_many_at_once_are_deferred(
    threads_lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = threads_lab
    lab.fill()
    rule = Rule("delay", verbs=("stat",), keys=PAGES, seconds=30, while_file=lab.gate())
    side = lab.side(lab.store(rule), deadline_s=20)
    start(lab, side)
    monkeypatch.setattr(side.client._movers, "_most", 2)
    lab.shut()
    tickets = [side.client.prefetch(lab.world.pages) for _ in range(12)]
    lab.open()
    reports = [ticket.result(20) for ticket in tickets]
    assert {report.deferred for report in reports} == {False, True}
    assert all(report.deferred or report.pages == 6 for report in reports)


def test_B105_nothing_is_held_while_the_store_is_asked_and_a_miss_shows_at_once(lab: Lab) -> None:
    lab.fill()
    rule = Rule("delay", verbs=("stat",), keys=PAGES, seconds=0.05)
    side = lab.side(lab.store(rule))
    start(lab, side)
    arena = arena_of(side)
    lookups = [page_hashes(range(n * 1000, n * 1000 + 24), 4) for n in range(2, 21)]
    lookups.insert(7, lab.world.pages)
    most_held = 0
    for pages in lookups:
        begun = time.monotonic()
        ticket = side.client.prefetch(pages)
        while not ticket.done():
            if pages is not lab.world.pages:
                most_held = max(most_held, arena.used)
            time.sleep(0.001)
        if pages is not lab.world.pages:
            assert time.monotonic() - begun < 0.05 * 2 + 0.75
            assert ticket.result().wanted == 0
        elif not ticket.result().deferred:
            assert ticket.result().pages == 6
            taken = side.client.load(pages, side.slots)
            assert taken.prefetched == 6
    assert most_held == 0
    assert meter(side, "unikv_arena_full_total") == 0


def test_B105_a_miss_does_not_wait_behind_a_prefetch_that_reads(lab: Lab) -> None:
    lab.fill()
    rule = Rule("delay", verbs=("get",), keys=PAGES, seconds=30, while_file=lab.gate())
    side = lab.side(lab.store(rule), deadline_s=20)
    start(lab, side)
    lab.shut()
    reading = side.client.prefetch(lab.world.pages)
    until(lab.befallen)
    with within(0.5):
        missed = side.client.prefetch(page_hashes(range(7000, 7024), 4)).result(5)
    assert (missed.wanted, missed.deferred) == (0, False)
    lab.open()
    assert reading.result(10).pages == 6
