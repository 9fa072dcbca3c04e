"""Cancel at every stage: the pool is left alone from then on, whatever the store does later."""

import threading
from concurrent.futures import CancelledError
from contextlib import ExitStack, suppress
from typing import Any

import pytest

from tests.client.world import POISON
from tests.io_path.lab import (
    CHUNKS,
    PAGES,
    REUSED,
    Lab,
    damages,
    objects,
    reuse,
    settled,
    snapshot,
    unchanged,
    until,
    within,
)
from tests.io_path.stages import LOAD_STAGES, SAVE_STAGES, cases, stopped_at
from unikv.kernels.reference import Route
from unikv.kernels.staging import Staging
from unikv.testing_faults import Rule


@pytest.mark.parametrize(
    ("lab", "stage", "how"), cases(LOAD_STAGES, ["load", "stream"]), indirect=["lab"]
)
def test_a_load_cancelled_at_a_stage_never_touches_the_pool_again(
    lab: Lab, stage: str, how: str
) -> None:
    lab.fill()
    with ExitStack() as held:
        side = lab.side(stopped_at(lab, stage, held), deadline_s=10)
        ticket = side.client.load_async(lab.world.pages, side.slots, stream=how == "stream")
        until(lab.befallen)
        with within(0.2):
            ticket.cancel()
        assert ticket.done()
        assert lab.world.holds(side, 0)
        reused = reuse(side)
        lab.open()
        until(lambda: settled(side))
        assert unchanged(side, reused)
        with pytest.raises(CancelledError):
            ticket.result()
        with pytest.raises(CancelledError):
            ticket.wait_layer(0)
        reuse(side, POISON)
        report = side.client.load(lab.world.pages, side.slots)  # no new client is needed
        assert (report.pages, report.stopped) == (6, None)
        assert lab.world.holds(side, 6)


@pytest.mark.parametrize("stage", SAVE_STAGES)
def test_a_save_cancelled_at_a_stage_stores_whole_pages_or_none(lab: Lab, stage: str) -> None:
    with ExitStack() as held:
        store = stopped_at(lab, stage, held)
        side = lab.side(store, filled=True, deadline_s=10)
        before = snapshot(side)
        ticket = side.client.save_async(lab.world.pages, side.slots)
        until(lab.befallen)
        with within(0.2):
            ticket.cancel()
        assert ticket.done()
        assert ticket.source_free()
        reuse(side)  # and nothing of this is ever stored
        lab.open()
        until(lambda: settled(side))
        with pytest.raises(CancelledError):
            ticket.result()
        bare = lab.bare()
        assert damages(lab.world, bare) == []
        for now, then in zip((t for part in side.pools for t in part), before, strict=True):
            now.copy_(then)
        report = side.client.save(lab.world.pages, side.slots)
        assert report.ok
        assert objects(bare) == 6 * CHUNKS
        assert damages(lab.world, bare) == []
        other = lab.side(bare, io="threads")
        assert other.client.load(lab.world.pages, other.slots).pages == 6
        assert lab.world.holds(other, 6)


class Stop:
    """Stops the method of a route that copies pages, in the middle of its first call."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self._copy = getattr(Route, name)

        def stopping(route: Route, places: Any, staging: Staging) -> None:
            self.copy(route, places, staging)

        monkeypatch.setattr(Route, name, stopping)
        self.reached = threading.Event()
        self.go_on = threading.Event()

    def copy(self, route: Route, places: Any, staging: Staging) -> None:
        """Copy half of the pages, and the others once it may go on."""
        half = len(places) // 2
        self._copy(route, places[:half], staging.rows(0, half))
        self.reached.set()
        assert self.go_on.wait(10)
        self._copy(route, places[half:], staging.rows(half, staging.pages))


@pytest.mark.parametrize("stream", [False, True], ids=["load", "stream"])
def test_cancel_waits_for_an_unpack_that_has_begun_and_for_nothing_else(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, *, stream: bool
) -> None:
    lab.fill()
    side = lab.side(lab.store(), deadline_s=10)
    stop = Stop(monkeypatch, "unpack")
    ticket = side.client.load_async(lab.world.pages, side.slots, stream=stream)
    assert stop.reached.wait(10)
    cancelling = threading.Thread(target=ticket.cancel)
    cancelling.start()
    cancelling.join(0.1)
    assert cancelling.is_alive()
    stop.go_on.set()
    cancelling.join(5)
    assert not cancelling.is_alive()
    reused = reuse(side)
    until(lambda: settled(side))
    assert unchanged(side, reused)
    with suppress(CancelledError):  # or it was the last unpack, and the call is done
        assert ticket.result().pages == 6


def test_cancel_waits_for_a_pack_that_has_begun(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    side = lab.side(lab.store(), filled=True, deadline_s=10)
    stop = Stop(monkeypatch, "pack")
    ticket = side.client.save_async(lab.world.pages, side.slots)
    assert stop.reached.wait(10)
    assert not ticket.source_free()
    cancelling = threading.Thread(target=ticket.cancel)
    cancelling.start()
    cancelling.join(0.1)
    assert cancelling.is_alive()
    stop.go_on.set()
    cancelling.join(5)
    assert not cancelling.is_alive()
    assert ticket.source_free()
    reuse(side)
    until(lambda: settled(side))
    assert damages(lab.world, lab.bare()) == []


def test_a_ticket_that_is_done_stays_done_when_cancelled(lab: Lab) -> None:
    side = lab.side(lab.store(), filled=True)
    ticket = side.client.save_async(lab.world.pages, side.slots)
    assert ticket.result(10).ok
    ticket.cancel()
    assert ticket.result().stored == 6 * CHUNKS
    assert REUSED not in snapshot(side)[0]


@pytest.mark.parametrize("call", ["load", "save"])
def test_the_slots_of_a_cancelled_call_are_free_for_the_next_one_at_once(
    lab: Lab, call: str
) -> None:
    """Its I/O goes on for long; who cancels wants the slots now, not at the deadline."""
    lab.fill()
    verb: Any = "get" if call == "load" else "stat"
    rule = Rule("hang", verbs=(verb,), keys=PAGES, while_file=lab.gate())
    lab.shut()
    side = lab.side(lab.store(rule), filled=True, deadline_s=2)
    client, pages, slots = side.client, lab.world.pages, side.slots
    first = client.load_async(pages, slots) if call == "load" else client.save_async(pages, slots)
    until(lab.befallen)
    first.cancel()
    with within(1):
        if call == "load":
            assert client.save(pages, slots).existed == 6 * CHUNKS
        else:
            assert client.load(pages, slots).pages == 6


def test_cancelled_calls_that_hang_leave_other_tickets_their_threads(lab: Lab) -> None:
    lab.fill()
    keys = lab.world.pages[0] + "*"
    lab.shut()
    rule = Rule("hang", verbs=("get",), keys=keys, while_file=lab.gate())
    side = lab.side(lab.store(rule), deadline_s=2)
    page = lab.world.pages[0]
    hung = [side.client.load_async([page], side.slots[n : n + 1]) for n in range(4)]
    until(lambda: lab.befallen() == 4)
    for ticket in hung:
        ticket.cancel()
    with within(1):
        ticket = side.client.load_async(lab.world.pages[1:2], side.slots[4:5])
        assert ticket.result(5).pages == 1
