"""Field cases of loads and saves through a small arena and a store that fails (B25, B42-B48)."""

import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from tests.client.world import POISON, Side, World
from tests.io_path.lab import (
    CHUNKS,
    PAGES,
    RANK,
    STAGING,
    Lab,
    arena_of,
    make_world,
    meter,
    page_bytes,
    reuse,
    settled,
    until,
)
from unikv import Client, Component, PagedCache, page_hashes
from unikv.kernels.reference import Route
from unikv.store import Outcomes, Span, Store
from unikv.testing_faults import Rule


def small_arena(lab: Lab, pages: int, world: World, **options: Any) -> Side:
    """Return a rank whose arena holds so many pages and no more."""
    probe = lab.side(lab.bare(), world=world, io="threads")
    size = -(-pages * page_bytes(probe) // 4096) * 4096
    return lab.side(lab.bare(), world=world, staging_bytes=size, **options)


def test_B25_back_to_back_loads_through_a_tiny_arena_do_not_reuse_a_slot_that_is_unpacked(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    worlds = [make_world(5), make_world(5, numerics="b"), make_world(5, numerics="c")]
    for world in worlds:
        lab.fill(world)
    unpack = Route.unpack

    def slowly(*args: Any) -> None:
        time.sleep(0.02)
        unpack(*args)

    monkeypatch.setattr(Route, "unpack", slowly)
    sides = [small_arena(lab, 2, world) for world in worlds]
    for _ in range(2):
        tickets = [
            side.client.load_async(world.pages, side.slots)
            for side, world in zip(sides, worlds, strict=True)
        ]
        assert [ticket.result(20).pages for ticket in tickets] == [5, 5, 5]
        for side, world in zip(sides, worlds, strict=True):
            assert world.holds(side, 5)
            reuse(side, POISON)


def test_B25_two_loads_of_one_client_share_two_pages_of_staging(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world(8)
    lab.fill(world)
    side = small_arena(lab, 2, world)
    unpack = Route.unpack

    def slowly(*args: Any) -> None:
        time.sleep(0.01)
        unpack(*args)

    monkeypatch.setattr(Route, "unpack", slowly)
    tickets = [side.client.load_async([world.pages[n]], side.slots[n : n + 1]) for n in range(8)]
    assert [ticket.result(20).pages for ticket in tickets] == [1] * 8
    assert world.holds(side, 8)


@pytest.mark.parametrize("stream", [False, True], ids=["load", "stream"])
def test_B42_room_for_four_of_six_pages_never_shows_unread_staging(
    lab: Lab, *, stream: bool
) -> None:
    lab.fill()
    side = small_arena(lab, 4, lab.world)
    arena = arena_of(side)
    arena.tensor.fill_(0xAB)
    report = side.client.load_async(lab.world.pages, side.slots, stream=stream).result(20)
    if stream:
        assert report.pages == 0  # all of it must fit at once, and it says so
        assert "arena" in str(report.stopped)
    else:
        assert report.pages == 6
    assert lab.world.holds(side, report.pages)


@pytest.mark.parametrize("fault", ["error", "miss", "short", "flip", "swap"])
@pytest.mark.parametrize("stream", [False, True], ids=["load", "stream"])
def test_B43_a_page_that_failed_is_not_counted_nor_those_behind_it(
    threads_lab: Lab, fault: Any, *, stream: bool
) -> None:
    lab = threads_lab
    lab.fill()
    bad = lab.world.pages[2]
    store = lab.store(Rule(fault, verbs=("get",), keys=f"{bad}*_L2-4*"))
    side = lab.side(store)
    ticket = side.client.load_async(lab.world.pages, side.slots, stream=stream)
    report = ticket.result(10)
    assert report.pages == (0 if stream else 2)
    assert report.failed[0].page == 2
    assert report.failed[0].key.startswith(bad)
    assert report.stopped
    if not stream:
        assert lab.world.holds(side, 2)
        ticket.wait_layer(5)
    else:
        with pytest.raises(OSError, match="no page was loaded"):
            ticket.wait_layer(0)
    assert settled(side)


class Pair:
    """Two components of one model, each with its pool, and one client for both."""

    def __init__(self, lab: Lab, store: Store, *, filled: bool = False, **options: Any) -> None:
        self.worlds = [lab.world, make_world(6, component="draft")]
        self.sides = [
            lab.side(lab.bare(), world=world, filled=filled, io="threads") for world in self.worlds
        ]
        names = ["target", "draft"]
        pools = [PagedCache.slots(side.pools[0], side.pools[1]) for side in self.sides]
        components = {
            name: Component(world.namespace, pool)
            for name, world, pool in zip(names, self.worlds, pools, strict=True)
        }
        self.client = Client(store, components, RANK, io=lab.io, staging_bytes=STAGING, **options)
        self.slots = {n: side.slots for n, side in zip(names, self.sides, strict=True)}

    def holds(self, pages: int) -> bool:
        return all(w.holds(s, pages) for w, s in zip(self.worlds, self.sides, strict=True))


@pytest.mark.parametrize("stream", [False, True], ids=["load", "stream"])
@pytest.mark.parametrize("component", [0, 1], ids=["target", "draft"])
def test_B44_a_page_that_fails_in_one_component_ends_both(
    lab: Lab, component: int, *, stream: bool
) -> None:
    filled = Pair(lab, lab.bare(), filled=True)
    with filled.client:
        assert filled.client.save(lab.world.pages, filled.slots).ok
    digest = filled.worlds[component].namespace.digest
    rule = Rule("error", verbs=("get",), keys=f"{lab.world.pages[3]}_{digest}*")
    pair = Pair(lab, lab.store(rule))
    with pair.client as client:
        report = client.load_async(lab.world.pages, pair.slots, stream=stream).result(20)
        end = 0 if stream else 3
        assert report.pages == end
        assert set(report.valid.values()) <= {0, 3}
        assert report.failed[0].page == 3
        if not stream:
            assert pair.holds(3)
        # and no later page of either is told to be there any more
        assert client.match(lab.world.pages).pages == 3


def test_B45_what_a_poller_sees_is_final(lab: Lab) -> None:
    """Whenever a layer counts as there, its bytes are those of the end."""
    world = make_world(6)
    lab.fill(world)
    rule = Rule("delay", verbs=("get",), keys=PAGES, seconds=0.02)
    side = lab.side(lab.store(rule))
    ticket = side.client.load_async(world.pages, side.slots, stream=True)
    wrong: list[int] = []
    seen: list[int] = []
    slots = side.slots.flatten()

    def poll(layer: int) -> None:
        ticket.wait_layer(layer, timeout=20)
        seen.append(layer)
        for part, whole in zip(side.pools, world.kv, strict=True):
            if not torch.equal(part[layer][slots], whole[layer]):
                wrong.append(layer)

    pollers = [threading.Thread(target=poll, args=(layer,)) for layer in range(6)]
    for poller in pollers:
        poller.start()
    for poller in pollers:
        poller.join()
    assert wrong == []
    assert sorted(seen) == list(range(6))
    assert ticket.result(5).pages == 6


def test_B45_done_says_that_the_pool_is_filled_and_the_pages_are_stored(lab: Lab) -> None:
    lab.fill()
    for _ in range(10):
        side = lab.side(lab.bare(), io="threads")
        ticket = side.client.load_async(lab.world.pages, side.slots)
        while not ticket.done():
            pass
        assert lab.world.holds(side, 6)
        side.client.close()
    writer = lab.side(lab.bare(), world=make_world(numerics="w"), filled=True)
    world = make_world(numerics="w")
    for n in range(6):
        saved = writer.client.save_async(world.pages[n : n + 1], writer.slots[n : n + 1])
        while not saved.done():
            pass
        reader = lab.side(lab.bare(), world=world, io="threads")
        assert reader.client.match(world.pages[n : n + 1]).pages == 1
        reader.client.close()
        assert saved.result(5).stored == CHUNKS


def test_B48_a_hundred_sessions_after_a_restart_each_get_their_own(lab: Lab) -> None:
    """All fill one disk; each page's header carries its own key, and its values its session."""
    count = 100
    world = make_world(2)
    sessions = [page_hashes(range(n * 1000, n * 1000 + 8), 4) for n in range(count)]
    writer = lab.side(lab.bare(), world=world, filled=True)
    for n, pages in enumerate(sessions):
        for part in writer.pools:
            for layer in part:
                layer.fill_(n + 1)
        assert writer.client.save_async(pages, writer.slots).result(20).ok
    writer.client.close()
    reader = lab.side(lab.bare(), world=world)  # a restart: another client and another process
    for n in reversed(range(count)):
        report = reader.client.load(sessions[n], reader.slots)
        assert report.pages == 2
        slots = reader.slots.flatten()
        assert all((layer[slots] == n + 1).all() for part in reader.pools for layer in part)
    assert meter(reader, "unikv_damaged_objects_total") == 0


class Swapping:
    """A store that answers every get with the bytes of another session's page."""

    def __init__(self, store: Store, theirs: Sequence[str], ours: Sequence[str]) -> None:
        self._store = store
        self._other = dict(zip(theirs, ours, strict=True))

    def get(self, spans: Sequence[Span]) -> Outcomes:
        return self._store.get(
            [s._replace(key=self._other.get(s.key[:64], s.key[:64]) + s.key[64:]) for s in spans]
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def test_B48_another_sessions_object_is_a_miss_and_is_counted(threads_lab: Lab) -> None:
    lab = threads_lab
    lab.fill()
    mine, theirs = lab.world.pages, page_hashes(range(5000, 5024), 4)
    side = lab.side(Swapping(lab.bare(), theirs, mine))
    report = side.client.load(theirs, side.slots)
    assert report.pages == 0
    assert lab.world.holds(side, 0)
    assert report.failed[0].kind == "damaged"
    assert meter(side, "unikv_damaged_objects_total") == 6 * CHUNKS
    assert lab.kinds()["damaged"] >= 1
    until(lambda: settled(side))
