"""What a call waits for before it touches the pool (B23, B24, B26, B40), and whom that holds up."""

import threading
import time
from typing import Any

import pytest
import torch

from tests.client.world import POISON, Side
from tests.io_path.lab import (
    CHUNKS,
    PAGES,
    Lab,
    damages,
    make_world,
    objects,
    reuse,
    settled,
    snapshot,
    start,
    unchanged,
    until,
    within,
)
from tests.io_path.signals import KINDS, event
from unikv.testing_faults import Rule


def fill(side: Side, lab: Lab) -> None:
    """Do as the engine's last kernel: write the pages' true values."""
    slots = side.slots.flatten()
    for part, whole in zip(side.pools, lab.world.kv, strict=True):
        for layer, values in zip(part, whole, strict=True):
            layer[slots] = values


@pytest.mark.parametrize("kind", KINDS)
def test_B23_B26_a_save_stores_what_is_there_once_its_event_has_happened(
    lab: Lab, kind: str
) -> None:
    side = lab.side(lab.store())  # poison: nothing is computed yet
    after = event(kind)
    ticket = side.client.save_async(lab.world.pages, side.slots, after=after)
    time.sleep(0.05)
    assert not ticket.source_free()
    assert not ticket.done()
    assert objects(lab.bare()) == 0
    fill(side, lab)
    after.set()
    assert ticket.wait_source_free(10)
    reuse(side)  # the slots are the engine's again
    assert ticket.result(10).stored == 6 * CHUNKS
    assert damages(lab.world, lab.bare()) == []
    reader = lab.side(lab.bare(), io="threads")
    assert reader.client.load(lab.world.pages, reader.slots).pages == 6
    assert lab.world.holds(reader, 6)


@pytest.mark.parametrize("stream", [False, True], ids=["load", "stream"])
@pytest.mark.parametrize("kind", KINDS)
def test_B24_a_load_fills_no_slot_before_its_event_has_happened(
    lab: Lab, kind: str, *, stream: bool
) -> None:
    lab.fill()
    side = lab.side(lab.store())
    before = reuse(side, 1)  # what the last reader of the slots still sums
    after = event(kind)
    ticket = side.client.load_async(lab.world.pages, side.slots, after=after, stream=stream)
    time.sleep(0.1)
    assert unchanged(side, before)
    reuse(side, POISON)
    after.set()
    assert ticket.result(10).pages == 6
    assert lab.world.holds(side, 6)


@pytest.mark.parametrize("kind", ["waits", "queries"])
@pytest.mark.parametrize("call", ["save", "load"])
def test_an_event_that_never_happens_costs_the_deadline_and_touches_nothing(
    threads_lab: Lab, call: str, kind: str
) -> None:
    lab = threads_lab
    lab.fill()
    side = lab.side(lab.store(), filled=call == "save", deadline_s=0.2)
    before = snapshot(side)
    never = event(kind)
    pages, slots = lab.world.pages, side.slots
    if call == "save":
        ticket: Any = side.client.save_async(pages, slots, after=never)
    else:
        ticket = side.client.load_async(pages, slots, after=never)
    with within(1):
        report = ticket.result(5)
    if call == "save":
        assert {failure.page for failure in report.failed} == set(range(6))
        assert all("has not happened" in failure.reason for failure in report.failed)
    else:
        assert report.pages == 0
        assert "has not happened" in str(report.stopped)
    assert unchanged(side, before)
    if call == "save":
        assert ticket.source_free()
    assert side.client.load(pages, slots).pages == 6  # and the slots are free


@pytest.mark.parametrize("many", [4, 12])
def test_calls_that_wait_for_their_events_hold_up_nobody_else(threads_lab: Lab, many: int) -> None:
    """As when saves wait for a step that itself waits for the load behind them."""
    lab = threads_lab
    world = make_world(16)
    lab.fill(world)
    side = lab.side(lab.store(), world=world, filled=True, deadline_s=3)
    step = threading.Event()
    saves = [
        side.client.save_async([world.pages[n]], side.slots[n : n + 1], after=step)
        for n in range(many)
    ]
    with within(1):
        load = side.client.load_async(world.pages[15:], side.slots[15:])
        assert load.result(5).pages == 1
    step.set()
    assert all(save.result(5).ok for save in saves)


@pytest.mark.parametrize("how", ["save", "async"])
def test_B40_a_save_of_slots_that_a_load_still_fills_waits_for_it(lab: Lab, how: str) -> None:
    """Its pages never hold what was in the slots before."""
    lab.fill()
    rule = Rule("delay", verbs=("get",), keys=PAGES, seconds=30, while_file=lab.gate())
    side = lab.side(lab.store(rule), deadline_s=20)
    start(lab, side)
    lab.shut()
    loading = side.client.load_async(lab.world.pages, side.slots)
    until(lab.befallen)
    target = make_world(6, numerics="copy")  # another name for the same slots
    other = [page.replace(page[0], "0" if page[0] != "0" else "1", 1) for page in lab.world.pages]
    assert target.pages == lab.world.pages
    reports: list[Any] = []
    if how == "async":
        saving = side.client.save_async(other, side.slots)
        time.sleep(0.1)
        assert not saving.source_free()
        assert not saving.done()
    else:
        thread = threading.Thread(
            target=lambda: reports.append(side.client.save(other, side.slots))
        )
        thread.start()
        thread.join(0.1)
        assert thread.is_alive()
    assert objects(lab.bare()) == 6 * CHUNKS
    lab.open()
    assert loading.result(10).pages == 6
    if how == "async":
        reports.append(saving.result(10))
    else:
        thread.join(10)
    assert reports[0].stored == 6 * CHUNKS
    reader = lab.side(lab.bare(), io="threads")
    assert reader.client.load(other, reader.slots).pages == 6
    assert lab.world.holds(reader, 6)  # the loaded bytes, not the poison from before


def test_B40_a_load_into_slots_that_a_save_still_reads_waits_for_it(lab: Lab) -> None:
    rule = Rule("hang", verbs=("stat",), keys=PAGES, while_file=lab.gate())
    lab.fill()
    theirs = make_world(6, numerics="theirs")
    side = lab.side(lab.store(rule), world=theirs, filled=True, deadline_s=20)
    lab.fill(theirs)
    for part in side.pools:
        for layer in part:
            layer.add_(1)  # other KV, to be stored under other names
    start(lab, side)
    mine = [page.replace(page[0], "0" if page[0] != "0" else "1", 1) for page in theirs.pages]
    want = snapshot(side)
    lab.shut()
    saving = side.client.save_async(mine, side.slots)
    until(lab.befallen)
    loading = side.client.load_async(theirs.pages, side.slots)
    time.sleep(0.1)
    assert unchanged(side, want)
    lab.open()
    assert saving.result(10).stored == 6 * CHUNKS
    assert loading.result(10).pages == 6
    reuse(side, POISON)
    assert side.client.load(mine, side.slots).pages == 6
    slots = side.slots.flatten()
    now = snapshot(side)
    assert all(torch.equal(a[slots], b[slots]) for a, b in zip(now, want, strict=True))


def test_B40_transfers_of_other_slots_do_not_wait(lab: Lab) -> None:
    world = make_world(8)
    lab.fill(world)
    rule = Rule(
        "delay", verbs=("get",), keys=f"{world.pages[0]}*", seconds=30, while_file=lab.gate()
    )
    side = lab.side(lab.store(rule), world=world, deadline_s=20)
    start(lab, side)
    lab.shut()
    slow = side.client.load_async(world.pages[:1], side.slots[:1])
    until(lab.befallen)
    with within(1):
        assert side.client.load(world.pages[1:], side.slots[1:]).pages == 7
    lab.open()
    assert slow.result(10).pages == 1
    assert world.holds(side, 8)


def test_two_saves_of_the_same_slots_do_not_wait_for_each_other(lab: Lab) -> None:
    rule = Rule("hang", verbs=("stat",), keys=PAGES, count=1, while_file=lab.gate())
    side = lab.side(lab.store(rule), filled=True, deadline_s=20)
    start(lab, side)
    lab.shut()
    first = side.client.save_async(lab.world.pages[:3], side.slots[:3])
    until(lab.befallen)
    with within(2):
        assert side.client.save(lab.world.pages[3:], side.slots[:3]).ok
    lab.open()
    assert first.result(10).ok
    until(lambda: settled(side))


def test_turns_are_kept_in_the_order_of_calls_however_threads_are_scheduled(
    threads_lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread is preempted between taking its turn and handing in its work: no deadlock."""
    lab = threads_lab
    lab.fill()
    side = lab.side(lab.store(), deadline_s=3)
    turns, enter = side.client._transfers.turns, side.client._transfers.turns.enter
    entered, go_on = threading.Event(), threading.Event()

    def preempted(*args: Any, **options: Any) -> Any:
        turn = enter(*args, **options)
        if threading.current_thread().name == "slow":
            entered.set()
            go_on.wait(10)
        return turn

    monkeypatch.setattr(turns, "enter", preempted)
    tickets: list[Any] = []

    def call() -> None:
        tickets.append(side.client.load_async(lab.world.pages, side.slots))

    slow = threading.Thread(target=call, name="slow")
    slow.start()
    assert entered.wait(5)
    for _ in range(4):
        call()
    time.sleep(0.1)
    go_on.set()
    slow.join(5)
    with within(2):
        assert [ticket.result(10).pages for ticket in tickets] == [6] * 5


def test_two_calls_in_quick_succession_do_not_queue_behind_each_other(lab: Lab) -> None:
    """One thread is idle when both come: it cannot take both."""
    world = make_world(8)
    lab.fill(world)
    hung = f"{world.pages[0]}*"
    rule = Rule("delay", verbs=("get",), keys=hung, seconds=30, while_file=lab.gate())
    side = lab.side(lab.store(rule), world=world, deadline_s=3)
    start(lab, side)
    assert side.client.load_async(world.pages[2:3], side.slots[2:3]).result(10).pages == 1
    shop = side.client._movers._shop
    until(lambda: shop.idle == shop.started)
    lab.shut()
    with shop.change:  # as when the caller is not preempted in between
        slow = side.client.load_async(world.pages[:1], side.slots[:1])
        fast = side.client.load_async(world.pages[1:2], side.slots[1:2])
    with within(1):
        assert fast.result(10).pages == 1
    assert not slow.done()
    lab.open()
    assert slow.result(10).pages == 1


def test_calls_that_wait_are_not_a_thread_each_without_end(threads_lab: Lab) -> None:
    """A thousand saves wait for one event: the process does not get a thousand threads."""
    lab = threads_lab
    side = lab.side(lab.store(), filled=True, deadline_s=20)
    event_ = threading.Event()
    tickets = [
        side.client.save_async(lab.world.pages, side.slots, after=event_) for _ in range(1000)
    ]
    time.sleep(0.1)
    movers = sum(one.name == "unikv-mover" for one in threading.enumerate())
    event_.set()
    assert all(ticket.result(20).ok for ticket in tickets)
    assert movers <= 256
