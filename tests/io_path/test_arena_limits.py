"""An arena that is too small, full or in quarantine: what a call says, and how long it waits."""

import threading
from typing import Any

import pytest

from tests.client.world import POISON, Side
from tests.io_path.lab import (
    CHUNKS,
    PAGES,
    Lab,
    arena_of,
    damages,
    emptied,
    make_world,
    meter,
    objects,
    page_bytes,
    patient,
    reuse,
    settled,
    start,
    until,
    within,
)
from unikv.errors import PoolError, SpecError
from unikv.testing_faults import Rule


def test_an_arena_smaller_than_a_page_is_refused_with_what_it_takes(lab: Lab) -> None:
    probe = lab.side(lab.bare(), io="threads")
    least = page_bytes(probe)
    with pytest.raises(PoolError, match=f"staging_bytes={least - 1} .*want at least {least}"):
        lab.side(lab.store(), staging_bytes=least - 1)
    side = lab.side(lab.store(), staging_bytes=-(-least // 4096) * 4096, filled=True)
    assert side.client.save(lab.world.pages, side.slots).stored == 6 * CHUNKS
    reuse(side, POISON)
    assert side.client.load(lab.world.pages, side.slots).pages == 6
    assert lab.world.holds(side, 6)


def test_the_least_arena_that_is_accepted_works(lab: Lab) -> None:
    """Sizes come in whole 4,096 bytes: what passes the check must do for a page."""
    probe = lab.side(lab.bare(), io="threads")
    lab.fill()
    side = lab.side(lab.store(), staging_bytes=page_bytes(probe), deadline_s=1)
    assert side.client.load(lab.world.pages, side.slots).pages == 6
    assert lab.world.holds(side, 6)


@pytest.mark.parametrize("size", [0, -1, 1.5, "64M", None, True])
def test_a_size_that_is_none_is_refused(threads_lab: Lab, size: Any) -> None:
    lab = threads_lab
    with pytest.raises(PoolError, match="staging_bytes"):
        lab.side(lab.store(), staging_bytes=size)


def test_more_shared_memory_than_there_is_is_refused_at_once(process_lab: Lab) -> None:
    lab = process_lab
    with within(1), pytest.raises(PoolError, match=r"want less \(staging_bytes=\)"):
        lab.side(lab.store(), staging_bytes=1 << 44)


@pytest.mark.parametrize("node", [-1, 64, 1000, 63])
def test_a_numa_node_that_is_none_is_refused(process_lab: Lab, node: int) -> None:
    lab = process_lab
    with pytest.raises(PoolError, match=f"numa_node={node}"):
        lab.side(lab.store(), numa_node=node)


def test_a_numa_node_in_threads_is_refused(threads_lab: Lab) -> None:
    with pytest.raises(SpecError, match="numa_node"):
        threads_lab.side(threads_lab.store(), numa_node=0)


def full(lab: Lab, *rules: Rule, **options: Any) -> tuple[Side, Any]:
    """Return a rank whose arena is all taken, and the slot that takes it."""
    side = lab.side(lab.store(*rules), **options)
    start(lab, side)
    arena = arena_of(side)
    slot = arena.take(arena.size, arena.size)
    assert slot is not None
    return side, slot


def test_a_full_arena_makes_an_async_save_drop_and_count_and_never_wait(lab: Lab) -> None:
    side, slot = full(lab, filled=True, deadline_s=20)
    with within(1):
        ticket = side.client.save_async(lab.world.pages, side.slots)
        report = ticket.result(5)
    assert ticket.source_free()
    assert {failure.page for failure in report.failed} == set(range(6))
    assert all("arena is full" in failure.reason for failure in report.failed)
    assert objects(lab.bare()) == 0
    assert meter(side, "unikv_arena_full_total", call="save") == 1
    assert meter(side, "unikv_pages_dropped_total", reason="arena_full") == 6
    assert meter(side, "unikv_saves_total", outcome="dropped") == 1
    assert (lab.kinds()["arena_full"], lab.kinds()["save_dropped"]) == (1, 1)
    slot.release()
    assert side.client.save_async(lab.world.pages, side.slots).result(10).ok


@pytest.mark.parametrize("stream", [False, True], ids=["load", "stream"])
def test_a_full_arena_makes_a_load_wait_for_room(lab: Lab, *, stream: bool) -> None:
    lab.fill()
    side, slot = full(lab, deadline_s=20)
    ticket = side.client.load_async(lab.world.pages, side.slots, stream=stream)
    timer = threading.Timer(0.15, slot.release)
    timer.start()
    assert not ticket.done()
    assert ticket.result(5).pages == 6
    timer.join()
    assert lab.world.holds(side, 6)


def test_a_full_arena_makes_a_load_miss_at_its_deadline(lab: Lab) -> None:
    lab.fill()
    side, slot = full(lab, deadline_s=0.3)
    with within(0.3 + 0.3):
        report = side.client.load(lab.world.pages, side.slots)
    assert report.pages == 0
    assert "arena is full" in str(report.stopped)
    assert lab.world.holds(side, 0)
    assert meter(side, "unikv_arena_full_total", call="load") == 1
    assert meter(side, "unikv_pages_missed_total", reason="arena_full") == 6
    slot.release()
    patient(side)
    assert side.client.load(lab.world.pages, side.slots).pages == 6


def test_a_sync_save_waits_for_room_too(lab: Lab) -> None:
    side, slot = full(lab, filled=True, deadline_s=20)
    timer = threading.Timer(0.15, slot.release)
    timer.start()
    assert side.client.save(lab.world.pages, side.slots).stored == 6 * CHUNKS
    timer.join()


def test_a_load_cancelled_while_it_waits_for_room_gives_its_thread_back(lab: Lab) -> None:
    lab.fill()
    side, slot = full(lab, deadline_s=20)
    tickets = [side.client.load_async(lab.world.pages, side.slots) for _ in range(6)]
    for ticket in tickets:
        ticket.cancel()
    slot.release()
    with within(2):
        assert side.client.load_async(lab.world.pages, side.slots).result(5).pages == 6


def test_when_quarantine_leaves_too_little_calls_miss_at_once(lab: Lab) -> None:
    """Hung I/O holds the arena: others do not wait for room that cannot come."""
    lab.fill()
    probe = lab.side(lab.bare(), io="threads")
    rule = Rule("late", keys=f"{lab.world.pages[0]}*", while_file=lab.gate())
    size = -(-page_bytes(probe) // 4096) * 4096
    side = lab.side(lab.store(rule), deadline_s=0.3, staging_bytes=size)
    start(lab, side)
    lab.shut()
    pages, slots = lab.world.pages, side.slots
    assert side.client.load(pages[:1], slots[:1]).pages == 0
    arena = arena_of(side)
    assert arena.quarantined == arena.size
    assert meter(side, "unikv_arena_quarantined_bytes") == arena.size
    patient(side)
    with within(0.5):
        report = side.client.load(pages[1:], slots[1:])
    assert report.pages == 0
    assert "arena is full" in str(report.stopped)
    with within(0.5):
        assert side.client.prefetch(pages[1:]).result(5).deferred
    with within(0.5):
        assert side.client.save(pages[1:], slots[1:]).existed == 5 * CHUNKS  # needs no room
    lab.open()
    until(lambda: settled(side))
    until(lambda: side.client.load(pages, slots).pages == 6)
    assert lab.world.holds(side, 6)


def test_two_saves_at_once_through_room_for_one_are_right(lab: Lab) -> None:
    worlds = [make_world(6), make_world(6)]
    other = [page.replace(page[0], "0" if page[0] != "0" else "1", 1) for page in worlds[0].pages]
    probe = lab.side(lab.bare(), io="threads")
    size = 2 * -(-page_bytes(probe) // 4096) * 4096
    side = lab.side(lab.store(), filled=True, staging_bytes=size, deadline_s=20)
    reports: list[Any] = []
    threads = [
        threading.Thread(target=lambda p=pages: reports.append(side.client.save(p, side.slots)))
        for pages in (worlds[0].pages, other)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert [report.stored for report in reports] == [6 * CHUNKS] * 2
    assert damages(lab.world, lab.bare()) == []
    reader = lab.side(lab.bare(), io="threads")
    assert reader.client.load(other, reader.slots).pages == 6
    assert lab.world.holds(reader, 6)


def test_everything_is_given_back_whatever_a_call_came_to(lab: Lab) -> None:
    lab.fill()
    rule = Rule("error", verbs=("get",), keys=PAGES, probability=0.3)
    side = lab.side(lab.store(rule), deadline_s=5)
    pages, slots = lab.world.pages, side.slots
    for n in range(12):
        ticket = side.client.load_async(pages, slots, stream=n % 2 == 1)
        if n % 3 == 0:
            ticket.cancel()
        else:
            assert ticket.result(10).pages <= 6
        side.client.prefetch(pages).result(10)
    until(lambda: emptied(side))
    assert side.client._transfers.turns._under_way == []


@pytest.mark.parametrize("stream", [False, True])
def test_a_load_cancelled_while_it_waits_for_room_gives_back_what_was_prefetched(
    lab: Lab, *, stream: bool
) -> None:
    lab.fill()
    side, slot = full(lab, deadline_s=20)
    slot.release()
    pages, slots = lab.world.pages, side.slots
    arena = arena_of(side)
    for _ in range(5):
        assert side.client.prefetch(pages[:2]).result(10).pages == 2
        rest = arena.take(4096, arena.size)
        ticket = side.client.load_async(pages, slots, stream=stream)
        until(lambda: len(side.client._transfers.larder) == 0)  # it has taken what was there
        ticket.cancel()
        rest.release()
        until(lambda: arena.used == 0)
    assert side.client.load(pages, slots).pages == 6
    assert lab.world.holds(side, 6)
