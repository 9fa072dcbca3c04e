"""Streamed loads: layers one after the other, whole or not at all."""

import threading
from collections.abc import Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Any

import pytest
import torch

import unikv.streaming
from tests.client.world import POISON, Side
from tests.io_path.lab import (
    PAGES,
    RANK,
    REUSED,
    STAGING,
    Lab,
    arena_of,
    make_world,
    page_bytes,
    patient,
    reuse,
    settled,
    start,
    unchanged,
    until,
    within,
)
from unikv import Client, Component, PagedCache
from unikv.coverage import Window
from unikv.errors import PoolError, SpecError, StoreError
from unikv.testing_faults import Rule


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a step be one layer: the worlds here are small."""
    monkeypatch.setattr(unikv.streaming, "STEP_BYTES", 1)


def layer_is_right(lab: Lab, side: Side, layer: int) -> bool:
    slots = side.slots.flatten()
    return all(
        torch.equal(part[layer][slots], whole[layer])
        for part, whole in zip(side.pools, lab.world.kv, strict=True)
    )


def layer_is_untouched(side: Side, layer: int) -> bool:
    return all((part[layer] == POISON).all() for part in side.pools)


def test_a_stream_fills_the_pool_as_a_load_does(lab: Lab) -> None:
    lab.fill()
    side = lab.side(lab.store())
    ticket = side.client.load_async(lab.world.pages, side.slots, stream=True)
    for layer in range(6):
        ticket.wait_layer(layer, timeout=10)
        assert layer_is_right(lab, side, layer)
    report = ticket.result(10)
    assert (report.pages, report.stopped) == (6, None)
    assert lab.world.holds(side, 6)
    ticket.wait_layer(0)
    assert settled(side)


@pytest.mark.parametrize("pages", [[0, 1, 2, 3, 4, 5], [0, 1, 2], [4, 5], [1, 2, 4]], ids=str)
def test_a_stream_takes_over_what_was_prefetched(lab: Lab, pages: list[int]) -> None:
    lab.fill()
    side = lab.side(lab.store())
    client = side.client
    whole = client.load(lab.world.pages, side.slots)
    for n in pages:
        assert client.prefetch(lab.world.pages[n : n + 1]).result(10).pages == 1
    reuse(side, POISON)
    ticket = client.load_async(lab.world.pages, side.slots, stream=True)
    for layer in range(6):
        ticket.wait_layer(layer, timeout=10)
        assert layer_is_right(lab, side, layer)
    report = ticket.result(10)
    assert (report.pages, report.stopped, report.prefetched) == (6, None, len(pages))
    assert report.bytes_needed == whole.bytes_needed * (6 - len(pages)) // 6
    assert (report.bytes_read == 0) == (len(pages) == 6)
    assert lab.world.holds(side, 6)
    assert settled(side)


def test_a_layer_is_usable_while_later_ones_are_still_on_their_way(lab: Lab) -> None:
    """Layers 4 and 5 lie in objects whose slabs come late."""
    lab.fill()
    rule = Rule("delay", verbs=("get",), keys="*_L4-6*", seconds=30, while_file=lab.gate())
    side = lab.side(lab.store(rule), deadline_s=20)
    start(lab, side)
    lab.shut()
    ticket = side.client.load_async(lab.world.pages, side.slots, stream=True)
    for layer in range(4):
        ticket.wait_layer(layer, timeout=10)
        assert layer_is_right(lab, side, layer)
    assert layer_is_untouched(side, 4)
    assert layer_is_untouched(side, 5)
    with pytest.raises(TimeoutError, match="layer 4 is not there"):
        ticket.wait_layer(4, timeout=0.05)
    assert not ticket.done()
    lab.open()
    ticket.wait_layer(5, timeout=10)
    assert lab.world.holds(side, 6)


@pytest.mark.parametrize("fault", ["flip", "error", "miss", "short"])
@pytest.mark.parametrize("cut", ["0-2", "2-4", "4-6"])
def test_a_failure_at_any_layer_fails_the_whole_load(
    threads_lab: Lab, cut: str, fault: Any
) -> None:
    lab = threads_lab
    lab.fill()
    bad = f"{lab.world.pages[5]}*_L{cut}*"
    rule = Rule(fault, verbs=("get",), keys=bad, while_file=lab.gate())
    lab.shut()
    side = lab.side(lab.store(rule))
    ticket = side.client.load_async(lab.world.pages, side.slots, stream=True)
    report = ticket.result(10)
    assert report.pages == 0
    assert report.failed[0].key.startswith(lab.world.pages[5])
    assert report.valid == {"target": 0}
    for layer in range(6):
        with pytest.raises(StoreError, match="no page was loaded"):
            ticket.wait_layer(layer)
    first = int(cut[0])
    assert all(layer_is_right(lab, side, layer) for layer in range(first))
    assert all(layer_is_untouched(side, layer) for layer in range(first, 6))
    assert settled(side)
    lab.open()
    assert side.client.load(lab.world.pages, side.slots).pages == 6
    assert lab.world.holds(side, 6)


def test_who_waits_for_a_layer_is_told_when_the_stream_fails(lab: Lab) -> None:
    lab.fill()
    rule = Rule("hang", verbs=("get",), keys="*_L4-6*", while_file=lab.gate())
    side = lab.side(lab.store(rule), deadline_s=20)
    start(lab, side)
    lab.shut()
    ticket = side.client.load_async(lab.world.pages, side.slots, stream=True)
    said: list[str] = []

    def wait() -> None:
        try:
            ticket.wait_layer(5)
        except StoreError as error:
            said.append(str(error))

    waiters = [threading.Thread(target=wait) for _ in range(3)]
    for waiter in waiters:
        waiter.start()
    ticket.wait_layer(3, timeout=10)
    until(lab.befallen)
    lab.open()
    for waiter in waiters:
        waiter.join(10)
    assert len(said) == 3
    assert all("no page was loaded" in text for text in said)


def test_a_stream_cancelled_between_layers_touches_no_other_one(lab: Lab) -> None:
    lab.fill()
    rule = Rule("delay", verbs=("get",), keys="*_L4-6*", seconds=30, while_file=lab.gate())
    side = lab.side(lab.store(rule), deadline_s=20)
    start(lab, side)
    lab.shut()
    ticket = side.client.load_async(lab.world.pages, side.slots, stream=True)
    ticket.wait_layer(3, timeout=10)
    said: list[bool] = []

    def wait() -> None:
        with suppress(CancelledError):
            ticket.wait_layer(5)
            return
        said.append(True)

    waiter = threading.Thread(target=wait)
    waiter.start()
    with within(0.3):
        ticket.cancel()
    waiter.join(2)
    assert said == [True]
    reused = reuse(side)
    lab.open()
    until(lambda: settled(side))
    assert unchanged(side, reused)
    assert REUSED in reused[0]
    with pytest.raises(CancelledError):
        ticket.wait_layer(0)
    patient(side)
    assert side.client.load(lab.world.pages, side.slots).pages == 6


def test_a_stream_that_does_not_fit_the_arena_says_so_at_once(lab: Lab) -> None:
    lab.fill()
    probe = lab.side(lab.bare(), io="threads")
    side = lab.side(lab.store(), staging_bytes=3 * page_bytes(probe), deadline_s=20)
    start(lab, side)
    with within(1):
        report = side.client.load_async(lab.world.pages, side.slots, stream=True).result(5)
    assert report.pages == 0
    assert "arena is full" in str(report.stopped)
    assert side.client.load(lab.world.pages, side.slots).pages == 6


@pytest.mark.parametrize("layer", [-1, 6, 100])
def test_a_layer_that_is_none_is_refused(threads_lab: Lab, layer: int) -> None:
    lab = threads_lab
    lab.fill()
    side = lab.side(lab.store())
    ticket = side.client.load_async(lab.world.pages, side.slots, stream=True)
    with pytest.raises(PoolError, match=f"layer {layer}: the pool has 6"):
        ticket.wait_layer(layer)
    with pytest.raises(PoolError, match="a stream to wait in"):
        ticket.wait_layer(0, stream=object())
    assert ticket.result(10).pages == 6


def test_an_empty_stream_is_done(threads_lab: Lab) -> None:
    lab = threads_lab
    side = lab.side(lab.store())
    ticket = side.client.load_async([], side.slots[:0], stream=True)
    ticket.wait_layer(5, timeout=5)
    assert ticket.result(5).pages == 0


def test_a_plain_load_waits_for_layers_too(threads_lab: Lab) -> None:
    lab = threads_lab
    lab.fill()
    bad = Rule("error", verbs=("get",), keys=f"{lab.world.pages[4]}*")
    side = lab.side(lab.store(bad))
    ticket = side.client.load_async(lab.world.pages, side.slots)
    ticket.wait_layer(5, timeout=10)  # its report says how many pages are there
    assert ticket.result().pages == 4
    assert lab.world.holds(side, 4)


def components(lab: Lab, coverages: Sequence[Any], **options: Any) -> tuple[Client, list[Side]]:
    """Return a client of components with these coverages, and a side for each."""
    names = ["target", "swa"][: len(coverages)]
    worlds = [lab.world, make_world(6, component="swa")][: len(coverages)]
    sides = [lab.side(lab.bare(), world=world, io="threads", **options) for world in worlds]
    parts = {
        name: Component(world.namespace, PagedCache.slots(*side.pools), coverage=coverage)
        for name, world, side, coverage in zip(names, worlds, sides, coverages, strict=True)
    }
    return Client(lab.store(), parts, RANK, io=lab.io, staging_bytes=STAGING), sides


@pytest.mark.parametrize("prefetched", [0, 2, 6])
def test_a_window_beside_a_stream_is_there_before_the_first_layer_counts(
    lab: Lab, prefetched: int
) -> None:
    writer, filled = components(lab, [None, Window(6)], filled=True)
    slots = {"target": filled[0].slots, "swa": filled[1].slots}
    with writer:
        assert writer.save(lab.world.pages, slots).ok
    client, sides = components(lab, [None, Window(6)])
    slots = {"target": sides[0].slots, "swa": sides[1].slots}
    with client:
        for start_at in range(0, prefetched, 2):
            client.prefetch(lab.world.pages[start_at : start_at + 2]).result(10)
        ticket = client.load_async(lab.world.pages, slots, stream=True)
        ticket.wait_layer(0, timeout=10)
        tail = sides[1].slots[-2:].flatten()  # what the window reaches back to
        world = make_world(6, component="swa")
        for part, whole in zip(sides[1].pools, world.kv, strict=True):
            for layer, values in zip(part, whole, strict=True):
                assert torch.equal(layer[tail], values[-8:])
        assert ticket.result(10).pages == 6
        assert lab.world.holds(sides[0], 6)


def test_a_stream_without_a_component_of_every_page_is_refused(threads_lab: Lab) -> None:
    lab = threads_lab
    world = lab.world
    side = lab.side(lab.bare())
    part = Component(world.namespace, PagedCache.slots(*side.pools), coverage=Window(6))
    with (
        Client(lab.store(), {"target": part}, RANK, staging_bytes=STAGING) as client,
        pytest.raises(SpecError, match="none of them needs every page"),
    ):
        client.load_async(world.pages, {"target": side.slots}, stream=True)
    assert arena_of(side).used == 0


@pytest.mark.parametrize("stop", [False, True])
def test_streams_beside_each_other_are_right(lab: Lab, *, stop: bool) -> None:
    worlds = [make_world(6), make_world(6, numerics="b")]
    for world in worlds:
        lab.fill(world)
    rule = Rule("delay", verbs=("get",), keys=PAGES, seconds=0.003)
    sides = [lab.side(lab.store(rule), world=world) for world in worlds]
    for _ in range(4):
        tickets = [
            side.client.load_async(world.pages, side.slots, stream=True)
            for side, world in zip(sides, worlds, strict=True)
        ]
        if stop:
            tickets[0].cancel()
        for ticket, side, world in list(zip(tickets, sides, worlds, strict=True))[stop:]:
            assert ticket.result(20).pages == 6
            assert world.holds(side, 6)
        for side in sides:
            reuse(side, POISON)
