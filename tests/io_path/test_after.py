"""What a call may be told to come after, and how each kind of it is waited for."""

import time
from concurrent.futures import CancelledError
from typing import Any

import pytest
import torch

from tests.io_path.lab import Lab, settled, snapshot, unchanged, until, within
from tests.io_path.signals import Synchronized, event
from unikv.after import Queries, wait_for
from unikv.errors import PoolError
from unikv.gate import Gate


@pytest.mark.parametrize("kind", ["waits", "queries"])
def test_a_call_is_cancelled_though_its_event_never_happens(threads_lab: Lab, kind: str) -> None:
    lab = threads_lab
    lab.fill()
    side = lab.side(lab.store(), deadline_s=20)
    ticket = side.client.load_async(lab.world.pages, side.slots, after=event(kind))
    time.sleep(0.1)
    with within(0.2):
        ticket.cancel()
        until(lambda: settled(side))
    assert side.client.load(lab.world.pages, side.slots).pages == 6


def test_an_event_that_can_only_block_keeps_neither_cancel_nor_close(threads_lab: Lab) -> None:
    """Its thread waits on; nobody else does, and it touches nothing when it goes on."""
    lab = threads_lab
    side = lab.side(lab.store(), deadline_s=0.3)
    before = snapshot(side)
    after = Synchronized()
    first, second = (side.client.load_async(lab.world.pages, side.slots, after=after) for _ in "12")
    assert after.asked.wait(5)
    with within(0.2):
        first.cancel()
        side.client.close()
    after.set()
    with pytest.raises(CancelledError):
        second.result(5)
    assert unchanged(side, before)


def test_an_event_that_is_asked_is_seen_soon_and_seldom_asked() -> None:
    """A wait of 0.2 s costs some dozens of looks, and is noticed an eighth late at most."""
    looks: list[float] = []
    end = time.monotonic() + 0.2

    class Timed:
        def query(self) -> bool:
            looks.append(time.monotonic())
            return looks[-1] >= end

    assert wait_for(Timed(), end + 5, Gate())
    assert 10 < len(looks) < 100


def test_an_event_that_is_asked_is_asked_once_more_at_the_deadline() -> None:
    class Late:
        def query(self) -> bool:
            return time.monotonic() >= deadline

    deadline = time.monotonic() + 0.05
    assert wait_for(Late(), deadline, Gate())


def test_the_events_of_torch_are_asked_and_never_left_to_block() -> None:
    """No GPU is needed to see what they offer."""
    for kind in (torch.cuda.Event, torch.Event):
        assert callable(kind.query)
        assert issubclass(kind, Queries)


@pytest.mark.parametrize("after", [object(), 5, "event"])
def test_what_is_no_event_is_refused(threads_lab: Lab, after: Any) -> None:
    lab = threads_lab
    side = lab.side(lab.store(), filled=True)
    with pytest.raises(PoolError, match=r"want an event"):
        side.client.save_async(lab.world.pages, side.slots, after=after)
    with pytest.raises(PoolError, match=r"want an event"):
        side.client.load_async(lab.world.pages, side.slots, after=after)
    assert side.client.save(lab.world.pages, side.slots).ok


def test_an_event_that_raises_fails_its_ticket_alone(threads_lab: Lab) -> None:
    class Broken:
        def synchronize(self) -> None:
            raise RuntimeError("CUDA error: an illegal memory access")

    lab = threads_lab
    side = lab.side(lab.store(), filled=True)
    ticket = side.client.save_async(lab.world.pages, side.slots, after=Broken())
    with pytest.raises(RuntimeError, match="illegal memory access"):
        ticket.result(5)
    assert side.client.save(lab.world.pages, side.slots).ok
