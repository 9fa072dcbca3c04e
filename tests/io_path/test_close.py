"""Close: what a client leaves behind, whatever is under way, and what it says afterwards."""

import gc
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Any

import pytest

from tests.client.world import Side
from tests.io_path.lab import (
    PAGES,
    Lab,
    alive,
    io_pid,
    left,
    nothing_left,
    reuse,
    start,
    until,
    within,
)
from tests.io_path.lab import unchanged as same
from unikv.errors import StoreError
from unikv.testing_faults import Rule


def hung(lab: Lab, verb: Any = "get", **options: Any) -> Side:
    """Return a rank whose store hangs from now on, whatever pages it is asked for."""
    side = lab.side(
        lab.store(Rule("hang", verbs=(verb,), keys=PAGES, while_file=lab.gate())), **options
    )
    start(lab, side)
    lab.shut()
    return side


CALLS: dict[str, Callable[[Any, Any, Any], object]] = {
    "match": lambda client, pages, _: client.match(pages),
    "save": lambda client, pages, slots: client.save(pages, slots),
    "load": lambda client, pages, slots: client.load(pages, slots),
    "save_async": lambda client, pages, slots: client.save_async(pages, slots),
    "load_async": lambda client, pages, slots: client.load_async(pages, slots),
    "prefetch": lambda client, pages, _: client.prefetch(pages),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_closed_client_says_so(threads_lab: Lab, call: str) -> None:
    lab = threads_lab
    lab.fill()
    side = lab.side(lab.store())
    side.client.close()
    side.client.close()
    with pytest.raises(StoreError, match="client is closed"):
        CALLS[call](side.client, lab.world.pages, side.slots)
    assert lab.world.holds(side, 0)


def test_a_closed_client_that_is_still_held_has_let_go_of_everything(lab: Lab) -> None:
    lab.fill()
    with nothing_left():
        side = lab.side(lab.store())
        assert side.client.load_async(lab.world.pages, side.slots).result(10).pages == 6
        assert side.client.prefetch(lab.world.pages).result(10).pages == 6
        side.client.close()
    assert side.client.meters.read()


def test_a_client_that_is_forgotten_closes_itself(lab: Lab) -> None:
    lab.fill()
    with nothing_left():
        side = lab.side(lab.store())
        assert side.client.load_async(lab.world.pages, side.slots).result(10).pages == 6
        lab.sides.clear()
        gone = weakref.ref(side.client)
        del side
        gc.collect()
        assert gone() is None


@pytest.mark.parametrize("verb", ["get", "stat"])
def test_closing_waits_for_no_io_and_the_thread_ends_with_it(lab: Lab, verb: Any) -> None:
    """A ticket is under way when the client is closed, and its deadline passes afterwards."""
    lab.fill()
    with nothing_left():
        side = hung(lab, verb, filled=verb == "stat", deadline_s=0.4)
        if verb == "get":
            ticket: Any = side.client.load_async(lab.world.pages, side.slots)
        else:
            ticket = side.client.save_async(lab.world.pages, side.slots)
        until(lab.befallen)
        with within(1):
            side.client.close()
        with pytest.raises(CancelledError):
            ticket.result(5)
        if verb == "get":
            assert lab.world.holds(side, 0)
        lab.open()
        lab.sides.clear()
        del side, ticket


@pytest.mark.parametrize("call", ["load", "match", "save"])
def test_closing_ends_a_sync_call_that_is_under_way(lab: Lab, call: str) -> None:
    lab.fill()
    side = hung(lab, "get" if call == "load" else "stat", filled=call == "save", deadline_s=20)
    said: list[str] = []

    def work() -> None:
        try:
            CALLS[call](side.client, lab.world.pages, side.slots)
        except StoreError as error:
            said.append(str(error))

    thread = threading.Thread(target=work)
    thread.start()
    until(lab.befallen)
    side.client.close()
    thread.join(3)
    assert not thread.is_alive()
    assert all("closed" in one for one in said)  # or nothing was found any more
    assert lab.world.holds(side, 6 if call == "save" else 0)


def test_closing_ends_the_look_at_a_silent_store(lab: Lab) -> None:
    lab.fill()
    with nothing_left():
        rule = Rule("hang", verbs=("get",), while_file=lab.gate())  # the look hangs as well
        side = lab.side(lab.store(rule), deadline_s=0.2)
        start(lab, side)
        lab.shut()
        assert side.client.load(lab.world.pages, side.slots).pages == 0
        assert side.client.load(lab.world.pages, side.slots).pages == 0
        until(lambda: lab.befallen() >= 2)
        side.client.close()
        lab.open()
        lab.sides.clear()
        del side


def test_tickets_that_wait_in_the_queue_end_when_the_client_is_closed(lab: Lab) -> None:
    lab.fill()
    side = hung(lab, deadline_s=0.5)
    tickets = [
        side.client.load_async(lab.world.pages[n : n + 1], side.slots[n : n + 1]) for n in range(6)
    ]
    until(lab.befallen)
    side.client.close()
    for ticket in tickets:
        with pytest.raises(CancelledError):
            ticket.result(1)
    reused = reuse(side)
    lab.open()
    assert same(side, reused)


def test_a_ticket_outlives_its_client(lab: Lab) -> None:
    """Whoever holds the ticket alone gets its report, or is told that it was given up."""
    lab.fill()
    side = lab.side(lab.store())
    ticket = side.client.load_async(lab.world.pages, side.slots)
    pools = side.pools
    lab.sides.clear()
    del side
    gc.collect()
    with suppress(CancelledError):
        assert ticket.result(10).pages == 6
    assert pools


def test_cancelling_after_close_is_fine(lab: Lab) -> None:
    lab.fill()
    side = hung(lab, deadline_s=0.3)
    ticket = side.client.load_async(lab.world.pages, side.slots)
    until(lab.befallen)
    side.client.close()
    ticket.cancel()
    with pytest.raises(CancelledError):
        ticket.result(1)


def test_the_io_process_ends_with_its_client(process_lab: Lab) -> None:
    lab = process_lab
    side = lab.side(lab.store())
    pid = io_pid(side)
    assert alive(pid)
    side.client.close()
    assert not alive(pid)


def test_the_io_process_ends_though_its_store_hangs(process_lab: Lab) -> None:
    lab = process_lab
    lab.fill()
    side = hung(lab, deadline_s=0.2)
    assert side.client.load(lab.world.pages, side.slots).pages == 0
    pid = io_pid(side)
    until(lab.befallen)
    with within(1):
        side.client.close()
    assert not alive(pid)


@pytest.mark.parametrize("io", ["threads", "process"])
def test_a_client_that_cannot_be_made_leaves_nothing(threads_lab: Lab, io: str) -> None:
    lab = threads_lab
    with nothing_left():
        with pytest.raises(Exception, match="want"):
            lab.side(lab.store(), io=f"host:{lab.root}/absent/io.sock")
        with pytest.raises(Exception, match="want"):
            lab.side(lab.store(), io="elsewhere")
        with pytest.raises(Exception, match="want"):
            lab.side(lab.store(), io=io, staging_bytes=100)
        with pytest.raises(Exception, match="want"):
            lab.side(lab.store(), io=io, deadline_s=0)
    assert left()
