"""Loads and saves beside busy Python, from many threads, on a store whose I/O is watched."""

import random
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from tests.client.world import POISON
from tests.io_path.lab import (
    Lab,
    arena_of,
    damages,
    emptied,
    make_world,
    meter,
    reuse,
    start,
    until,
)
from unikv.arena import Slot
from unikv.store import Item, Outcomes, Span, Store


@contextmanager
def spinning() -> Iterator[None]:
    """Let a thread of this process compute in Python, as an engine's scheduler does."""
    stop = threading.Event()

    def spin() -> None:
        n = 0
        while not stop.is_set():
            n = (n * 1103515245 + 12345) % 2**31

    thread = threading.Thread(target=spin)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def test_transfers_beside_a_spinning_thread_are_right(lab: Lab) -> None:
    side = lab.side(lab.bare(), filled=True)
    start(lab, side)
    with spinning():
        ticket = side.client.save_async(lab.world.pages, side.slots)
        while not ticket.source_free():
            pass
        reuse(side, POISON)
        while not ticket.done():
            pass
        assert ticket.result(5).ok
        for stream in (False, True):
            loading = side.client.load_async(lab.world.pages, side.slots, stream=stream)
            while not loading.done():
                pass
            assert loading.result().pages == 6
            assert lab.world.holds(side, 6)
            reuse(side, POISON)
        assert side.client.prefetch(lab.world.pages).result(20).pages == 6
        assert side.client.load(lab.world.pages, side.slots).prefetched == 6
        assert lab.world.holds(side, 6)


class Watching:
    """A store that is slow, and holds on to the places in the arena that it works on."""

    def __init__(self, store: Store, late: float) -> None:
        self._store = store
        self._late = late
        self._lock = threading.Lock()
        self.places: list[tuple[int, int]] = []

    def put(self, items: Sequence[Item], *, replace: bool = False) -> Outcomes:
        with self._busy([memoryview(buffer) for item in items for buffer in item.buffers[1:2]]):
            return self._store.put(items, replace=replace)

    def get(self, spans: Sequence[Span]) -> Outcomes:
        with self._busy([view for span in spans for view in span.into]):
            return self._store.get(spans)

    @contextmanager
    def _busy(self, views: Sequence[memoryview]) -> Iterator[None]:
        mine = [(place, place + view.nbytes) for view in views if (place := address(view))]
        with self._lock:
            self.places += mine
        try:
            time.sleep(random.random() * self._late)
            yield
            time.sleep(random.random() * self._late)
        finally:
            with self._lock:
                for one in mine:
                    self.places.remove(one)

    def busy_in(self, start: int, stop: int) -> bool:
        with self._lock:
            return any(first < stop and start < last for first, last in self.places)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def address(view: memoryview) -> int:
    """Return where a view of writable memory lies, 0 for what is read only."""
    if view.readonly or not view.nbytes:
        return 0
    return torch.frombuffer(view, dtype=torch.uint8).data_ptr()


@pytest.mark.parametrize("late", [0.01, 0.12], ids=["in time", "beyond deadlines"])
def test_no_slot_is_given_out_while_a_call_still_works_on_it(  # noqa: C901, PLR0915 - one scene
    threads_lab: Lab, monkeypatch: pytest.MonkeyPatch, late: float
) -> None:
    """Many threads load, save, stream, prefetch and cancel; deadlines pass; the store is late."""
    lab = threads_lab
    world = make_world(12)
    lab.fill(world)
    store = Watching(lab.bare(), late)
    side = lab.side(
        store,
        world=world,
        filled=True,
        staging_bytes=160_000,
        deadline_s=0.15,
        io_threads=6,
    )
    arena = arena_of(side)
    base = arena.tensor.data_ptr()
    reused: list[int] = []
    take = arena.take

    def watched(least: int, most: int) -> Slot | None:
        slot: Slot | None = take(least, most)
        if slot is not None and store.busy_in(base + slot.start, base + slot.start + slot.size):
            reused.append(slot.start)
        return slot

    monkeypatch.setattr(arena, "take", watched)
    wrong: list[object] = []
    slots = side.slots

    def check(rows: range) -> bool:
        where = slots[rows.start : rows.stop].flatten()
        tokens = slice(rows.start * 4, rows.stop * 4)
        return all(
            torch.equal(layer[where], whole[n][tokens])
            for part, whole in zip(side.pools, world.kv, strict=True)
            for n, layer in enumerate(part)
        )

    def work(seed: int) -> None:
        draw = random.Random(seed)
        rows = range(seed * 3, seed * 3 + 3)
        mine, where = world.pages[rows.start : rows.stop], slots[rows.start : rows.stop]
        client = side.client
        try:
            for _ in range(25):
                match draw.choice(["load", "stream", "cancel", "save", "prefetch", "sync"]):
                    case "load" | "stream" as how:
                        client.load_async(mine, where, stream=how == "stream").result(20)
                    case "cancel":
                        ticket = client.load_async(mine, where, stream=draw.random() < 0.5)
                        time.sleep(draw.random() * late)
                        ticket.cancel()
                    case "save":
                        client.save_async(mine, where).result(20)
                    case "prefetch":
                        client.prefetch(mine)
                    case _:
                        client.load(mine, where)
                if not check(rows):  # whatever became of it: the values were these before, too
                    wrong.append(rows)
        except Exception as error:  # noqa: BLE001 - told below
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert reused == []
    until(lambda: store.places == [])
    until(lambda: emptied(side))
    assert side.client._transfers.turns._under_way == []
    assert damages(world, lab.bare()) == []
    assert meter(side, "unikv_damaged_objects_total") == 0


def test_gauges_come_back_to_nothing_however_threads_are_scheduled(threads_lab: Lab) -> None:
    lab = threads_lab
    lab.fill()
    side = lab.side(lab.store(), filled=True)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [
            threading.Thread(
                target=lambda: [side.client.save(lab.world.pages, side.slots) for _ in range(60)]
            )
            for _ in range(6)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert meter(side, "unikv_open_tickets", call="save") == 0
    assert meter(side, "unikv_saves_total") == 360
